//! Attaches a hand-written backward to an operation: the one backend extension all fused operations share.
//!
//! A fused operation computes its output on plain (inner) tensors and calls [`attach`] with its inputs and a
//! *pullback*: the vector-Jacobian product that turns the output's gradient into the inputs' gradients. The autodiff graph
//! then holds one node for the whole operation. What the pullback captured is freed as soon as it has run.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex, backend_extension,
};
use burn::tensor::Tensor;

/// Inputs that an operation may have.
const SLOTS: usize = 4;

type PullbackFn = Box<dyn FnOnce(DispatchTensor) -> [Option<DispatchTensor>; SLOTS] + Send>;

/// The backward of one fused operation: output gradient in, one gradient an input out (`None` for an unused slot).
///
/// It runs at most once; clones share the one closure.
#[derive(Clone)]
pub struct Pullback(Arc<Mutex<Option<PullbackFn>>>);

impl Pullback {
    fn new(function: PullbackFn) -> Self {
        Self(Arc::new(Mutex::new(Some(function))))
    }

    fn run(&self, gradient: DispatchTensor) -> [Option<DispatchTensor>; SLOTS] {
        let function = self.0.lock().expect("a pullback never panics while it is being taken").take();
        (function.expect("a pullback runs once: backward was called twice on one graph"))(gradient)
    }
}

impl fmt::Debug for Pullback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pullback")
    }
}

/// The backend extension behind [`attach`].
#[backend_extension(Cube: cfg(feature = "cube"), Flex, Autodiff)]
pub trait VjpOps: Backend {
    /// Returns `output`; under autodiff, as a node whose parents are `a` to `d` and whose backward is `pullback`.
    fn vjp(
        output: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        pullback: Pullback,
    ) -> FloatTensor<Self>;
}

/// Conversion between a back end's primitive and the run-time dispatched tensor that pullbacks work on.
pub trait Lift: Backend {
    /// Wraps a primitive.
    fn lift(tensor: FloatTensor<Self>) -> DispatchTensor;
    /// Unwraps a tensor of this back end.
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
            _ => panic!("a pullback returned a tensor of another back end or kind than the operation's output"),
        }
    }
}

impl VjpOps for Flex {
    fn vjp(
        output: FloatTensor<Self>,
        _a: FloatTensor<Self>,
        _b: FloatTensor<Self>,
        _c: FloatTensor<Self>,
        _d: FloatTensor<Self>,
        _pullback: Pullback,
    ) -> FloatTensor<Self> {
        output
    }
}

#[cfg(feature = "cube")]
impl VjpOps for burn::backend::Cube {
    fn vjp(
        output: FloatTensor<Self>,
        _a: FloatTensor<Self>,
        _b: FloatTensor<Self>,
        _c: FloatTensor<Self>,
        _d: FloatTensor<Self>,
        _pullback: Pullback,
    ) -> FloatTensor<Self> {
        output
    }
}

#[derive(Debug)]
struct Vjp;

impl<B: Lift> Backward<B, SLOTS> for Vjp {
    type State = Pullback;

    fn backward(self, ops: Ops<Pullback, SLOTS>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let input_gradients = ops.state.run(B::lift(gradient));
        for (parent, gradient) in ops.parents.into_iter().zip(input_gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, B::lower(gradient));
            }
        }
    }
}

impl<B: VjpOps + Lift, C: CheckpointStrategy> VjpOps for Autodiff<B, C> {
    fn vjp(
        output: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        pullback: Pullback,
    ) -> FloatTensor<Self> {
        let (_, a) = a.into_parts();
        let (_, b) = b.into_parts();
        let (_, c) = c.into_parts();
        let (_, d) = d.into_parts();
        match Vjp.prepare::<C>([a, b, c, d]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(pullback, output.into_primitive()),
            OpsKind::UnTracked(prep) => prep.finish(output.into_primitive()),
        }
    }
}

/// Makes `output` (computed on inner tensors) the result of an operation on `inputs` whose backward is `pullback`.
///
/// `inputs` are 1 to 4 float tensors of any rank, as dispatched tensors ([`Tensor::into_dispatch`]). The pullback gets the
/// gradient of `output` and returns one gradient for each input, in order; entries beyond the inputs are ignored.
///
/// # Panics
/// If there are no inputs or more than four, or if the back end is neither Flex nor one of CubeCL's.
pub fn attach<const D: usize>(
    output: Tensor<D>,
    inputs: Vec<DispatchTensor>,
    pullback: impl FnOnce(Tensor<D>) -> Vec<DispatchTensor> + Send + 'static,
) -> Tensor<D> {
    attach_some(output, inputs, |gradient| pullback(gradient).into_iter().map(Some).collect())
}

/// [`attach`] with a pullback that leaves out gradients nobody asks for: `None` for an input that is not tracked.
///
/// # Panics
/// If there are no inputs or more than four, or if the back end is neither Flex nor one of CubeCL's.
pub fn attach_some<const D: usize>(
    output: Tensor<D>,
    inputs: Vec<DispatchTensor>,
    pullback: impl FnOnce(Tensor<D>) -> Vec<Option<DispatchTensor>> + Send + 'static,
) -> Tensor<D> {
    let arity = inputs.len();
    assert!((1..=SLOTS).contains(&arity), "attach takes 1 to {SLOTS} inputs, got {arity}");
    let output = output.into_dispatch();
    // Unused slots hold the output itself: a constant, so no gradient is ever asked of it.
    let mut slots = inputs.into_iter().chain(std::iter::repeat_with(|| output.clone()));
    let mut next = || slots.next().expect("the iterator is endless");
    let (a, b, c, d) = (next(), next(), next(), next());
    drop(slots);
    let pullback = Pullback::new(Box::new(move |gradient| {
        let mut gradients = pullback(Tensor::from_dispatch(gradient)).into_iter();
        assert_eq!(gradients.len(), arity, "a pullback returns one gradient for each input");
        [(); SLOTS].map(|()| gradients.next().flatten())
    }));
    Tensor::from_dispatch(<Dispatch as VjpOps>::vjp(output, a, b, c, d, pullback))
}
