//! Attaches a hand-written backward to an operation: the one backend extension all fused operations
//! share.
//!
//! A fused operation computes its outputs on plain (inner) tensors and calls [`attach_all`] (or,
//! for one output, [`attach`] or [`attach_some`]) with its inputs and a *pullback*: the
//! vector-Jacobian product that turns the outputs' gradients into the inputs' gradients. Captures
//! of the pullback are freed as soon as it has run.
//!
//! An operation with one output is one node of the autodiff graph. With more, each output is a node
//! whose backward only keeps its gradient, and their common parent runs the pullback. Autodiff
//! visits all children of a node before the node, so all gradients have arrived by then. A node of
//! Burn has a fixed number of parents; where there are more inputs, the last parent is a *relay*, a
//! node that hands gradients on to the rest.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchKindConversion, DispatchTensor,
    DispatchTensorKind, ExtensionType, Flex, TensorMetadata, backend_extension,
};
use burn::tensor::{Shape, Tensor};

/// Parents of a node.
const SLOTS: usize = 4;

/// Gradients of tensors in their order; `None` for tensors without a gradient.
type MaybeGradients = Vec<Option<DispatchTensor>>;

type PullbackFn = Box<dyn FnOnce(MaybeGradients) -> MaybeGradients + Send>;

/// The backward of one fused operation, on its way: output gradients in, one gradient an input out.
///
/// The closure runs at most once; clones share it.
#[derive(Clone)]
pub struct Pullback(Arc<Mutex<Call>>);

struct Call {
    function: Option<PullbackFn>,
    /// Gradients of the outputs that have arrived.
    outputs: MaybeGradients,
    /// Gradients of the inputs that have not been passed on, once the pullback has run.
    inputs: MaybeGradients,
}

impl Pullback {
    fn new(outputs: usize, function: PullbackFn) -> Self {
        Self(Arc::new(Mutex::new(Call { function: Some(function), outputs: vec![None; outputs], inputs: Vec::new() })))
    }

    fn call(&self) -> MutexGuard<'_, Call> {
        self.0.lock().expect("nothing panics with the lock")
    }

    /// Keeps the gradient of an output.
    fn keep(&self, output: usize, gradient: DispatchTensor) {
        self.call().outputs[output] = Some(gradient);
    }

    /// True if no output's gradient has arrived yet.
    fn is_first(&self) -> bool {
        self.call().outputs.iter().all(Option::is_none)
    }

    fn run(&self) {
        let (function, outputs) = {
            let mut call = self.call();
            (call.function.take(), std::mem::take(&mut call.outputs))
        };
        let function = function.expect("a pullback runs once: backward was called twice on one graph");
        let inputs = function(outputs);
        self.call().inputs = inputs;
    }

    /// The gradient of an input, which it gives once.
    fn take(&self, input: usize) -> Option<DispatchTensor> {
        self.call().inputs[input].take()
    }
}

impl fmt::Debug for Pullback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pullback")
    }
}

/// Any number of float tensors of one backend.
#[derive(Debug)]
pub struct Tensors<B: Backend>(Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for Tensors<B> {
    type Target = Tensors<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor { kind: map_kind(BackendTensor::Float(tensor)), autodiff };
        Tensors(self.0.into_iter().map(wrap).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        target.0.iter().fold(DispatchAutodiffContext::Disabled, |context, tensor| context.merge(tensor.autodiff))
    }
}

/// The backend extension behind [`attach_all`].
#[backend_extension(Cube: cfg(feature = "cube"), Flex, Autodiff)]
pub trait VjpOps: Backend {
    /// Returns `outputs`; under autodiff, as nodes that come from `inputs` and whose common
    /// backward is `pullback`.
    fn vjp(
        #[extension_type] outputs: Tensors<Self>,
        #[extension_type] inputs: Tensors<Self>,
        pullback: Pullback,
    ) -> Tensors<Self>;
}

/// Conversion between a backend's primitive and the run-time dispatched tensor that pullbacks work
/// on.
pub trait Lift: Backend {
    /// Wraps a primitive.
    fn lift(tensor: FloatTensor<Self>) -> DispatchTensor;
    /// Unwraps a tensor of this backend.
    fn lower(tensor: DispatchTensor) -> FloatTensor<Self>;
}

impl<B: Backend> Lift for B
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn lift(tensor: FloatTensor<Self>) -> DispatchTensor {
        <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
    }

    fn lower(tensor: DispatchTensor) -> FloatTensor<Self> {
        match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
            Ok(BackendTensor::Float(tensor)) => tensor,
            _ => panic!("a pullback returned a tensor of another backend or kind than the operation's output"),
        }
    }
}

impl VjpOps for Flex {
    fn vjp(outputs: Tensors<Self>, _inputs: Tensors<Self>, _pullback: Pullback) -> Tensors<Self> {
        outputs
    }
}

#[cfg(feature = "cube")]
impl VjpOps for burn::backend::Cube {
    fn vjp(outputs: Tensors<Self>, _inputs: Tensors<Self>, _pullback: Pullback) -> Tensors<Self> {
        outputs
    }
}

/// Treatment of a node's incoming gradient, before the node passes gradients on.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// The operation's only output: the pullback runs once its gradient is there.
    Whole,
    /// Stores the gradient of one of several outputs.
    Output(usize),
    /// Below several outputs: runs the pullback.
    Core,
    /// Passes the signal on.
    Relay,
}

/// Value that a node passes to a parent.
#[derive(Clone, Copy, Debug)]
enum Parcel {
    /// The gradient of an input.
    Gradient(usize),
    /// Signal to run, without a gradient: for a core or a relay.
    Signal,
}

#[derive(Clone, Debug)]
struct State {
    pullback: Pullback,
    role: Role,
    parcels: Vec<Parcel>,
}

#[derive(Debug)]
struct Vjp;

impl<B: Lift> Backward<B, SLOTS> for Vjp {
    type State = State;

    fn backward(self, ops: Ops<State, SLOTS>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let State { pullback, role, parcels } = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let mut signal = parcels.iter().any(|parcel| matches!(parcel, Parcel::Signal)).then(|| match role {
            // The signal's value is never read, so an existing tensor is used: a new one would be a
            // kernel launch.
            Role::Output(_) => gradient.clone(),
            _ => B::float_zeros(Shape::new([1]), &gradient.device(), gradient.dtype().into()),
        });
        match role {
            Role::Whole => {
                pullback.keep(0, B::lift(gradient));
                pullback.run();
            }
            Role::Output(output) => {
                // Only the first output sends a signal, because signals of several outputs would be
                // added up.
                signal = signal.filter(|_| pullback.is_first());
                pullback.keep(output, B::lift(gradient));
            }
            Role::Core => {
                // The signal may be an output's gradient. Dropping it lets the pullback write into
                // that gradient in place.
                drop(gradient);
                pullback.run();
            }
            Role::Relay => {}
        }
        for (parent, parcel) in ops.parents.into_iter().zip(parcels) {
            let Some(parent) = parent else { continue };
            let parcel = match parcel {
                Parcel::Gradient(input) => pullback.take(input).map(B::lower),
                Parcel::Signal => signal.take(),
            };
            if let Some(gradient) = parcel {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Parents of a node, with the value that each receives.
type Parents = Vec<(NodeGuard, Parcel)>;

/// Makes `value` a node of the graph. Slots without a parent hold `blank`: a constant, of which no
/// gradient is ever asked.
fn record<B: VjpOps + Lift, C: CheckpointStrategy>(
    value: FloatTensor<B>,
    parents: Parents,
    blank: &FloatTensor<Autodiff<B, C>>,
    role: Role,
    pullback: &Pullback,
) -> FloatTensor<Autodiff<B, C>> {
    let (guards, parcels): (Vec<_>, Vec<_>) = parents.into_iter().unzip();
    let mut guards = guards.into_iter();
    let nodes = std::array::from_fn(|_| guards.next().unwrap_or_else(|| blank.node()));
    match Vjp.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(State { pullback: pullback.clone(), role, parcels }, value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}

impl<B: VjpOps + Lift, C: CheckpointStrategy> VjpOps for Autodiff<B, C> {
    fn vjp(outputs: Tensors<Self>, inputs: Tensors<Self>, pullback: Pullback) -> Tensors<Self> {
        let mut outputs = outputs.0;
        let blank = outputs[0].clone();
        let guards = inputs.0.into_iter().map(|input| input.into_parts().1);
        let mut parents: Parents = guards.enumerate().map(|(i, guard)| (guard, Parcel::Gradient(i))).collect();
        let below = |parents, role| record::<B, C>(blank.primitive().clone(), parents, &blank, role, &pullback);
        while parents.len() > SLOTS {
            let rest = parents.split_off(parents.len() - SLOTS);
            parents.push((below(rest, Role::Relay).into_parts().1, Parcel::Signal));
        }
        if outputs.len() == 1 {
            let value = outputs.remove(0).into_primitive();
            return Tensors(vec![record::<B, C>(value, parents, &blank, Role::Whole, &pullback)]);
        }
        let core = below(parents, Role::Core);
        let node = |(i, output): (usize, FloatTensor<Self>)| {
            record::<B, C>(
                output.into_primitive(),
                vec![(core.node(), Parcel::Signal)],
                &blank,
                Role::Output(i),
                &pullback,
            )
        };
        Tensors(outputs.into_iter().enumerate().map(node).collect())
    }
}

/// Makes `outputs` (computed on inner tensors) the results of an operation on `inputs` whose
/// backward is `pullback`.
///
/// Both are one or more float tensors of any rank and one backend, as dispatched tensors
/// ([`Tensor::into_dispatch`]). The pullback gets a gradient for each output (`None` if the loss
/// does not depend on the output), and returns one for each input (`None` for an untracked input).
///
/// # Panics
/// If there are no inputs or no outputs, or if the backend is neither Flex nor one of CubeCL's. In
/// backward, if the pullback returns another number of gradients.
pub fn attach_all(
    outputs: Vec<DispatchTensor>,
    inputs: Vec<DispatchTensor>,
    pullback: impl FnOnce(Vec<Option<DispatchTensor>>) -> Vec<Option<DispatchTensor>> + Send + 'static,
) -> Vec<DispatchTensor> {
    let arity = inputs.len();
    assert!(arity > 0 && !outputs.is_empty(), "an operation has inputs and outputs, got {arity} and {}", outputs.len());
    let checked = move |gradients| {
        let gradients = pullback(gradients);
        assert_eq!(gradients.len(), arity, "a pullback returns one gradient for each input");
        gradients
    };
    let pullback = Pullback::new(outputs.len(), Box::new(checked));
    <Dispatch as VjpOps>::vjp(Tensors(outputs), Tensors(inputs), pullback).0
}

/// [`attach_all`] for one output.
///
/// # Panics
/// As [`attach_all`].
pub fn attach_some<const D: usize>(
    output: Tensor<D>,
    inputs: Vec<DispatchTensor>,
    pullback: impl FnOnce(Tensor<D>) -> Vec<Option<DispatchTensor>> + Send + 'static,
) -> Tensor<D> {
    let outputs = attach_all(vec![output.into_dispatch()], inputs, |mut gradients| {
        let gradient = gradients.pop().flatten().expect("backward comes by the only output");
        pullback(Tensor::from_dispatch(gradient))
    });
    Tensor::from_dispatch(outputs.into_iter().next().expect("as many come back as were given"))
}

/// [`attach_some`] with a pullback that gives every input a gradient.
///
/// # Panics
/// As [`attach_all`].
pub fn attach<const D: usize>(
    output: Tensor<D>,
    inputs: Vec<DispatchTensor>,
    pullback: impl FnOnce(Tensor<D>) -> Vec<DispatchTensor> + Send + 'static,
) -> Tensor<D> {
    attach_some(output, inputs, |gradient| pullback(gradient).into_iter().map(Some).collect())
}
