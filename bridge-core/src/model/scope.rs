//! Scope in which blocks declare their parameters: a dotted path inside a segment, on one rank.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bridge_dist::comm::Group;
use bridge_kernels::{Philox, Quantization};
use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor, TensorData};

use super::{
    Adapter, BuildContext, CAST_HISTORY, CAST_SCALES, Component, Declaration, Declarations, DeferredParameters,
    DelayedScalingLayer, EightBitLayer, EightBitProducts, GradientScope, Initial, LinearAdaptation, LinearForLastLayer,
    LinearLayer, LinearParameter, Parallel, ParameterRole, QuantizedValues, RankPlace, ReplicaGroup, Segment,
    SegmentRole, TensorPartition, released,
};

/// The declarations of a chunk that is being built, segment by segment.
#[derive(Debug)]
pub struct ChunkScope(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    place: RankPlace,
    adapter: Option<Arc<dyn Adapter>>,
    /// `None` for an outline, whose parameters have no values.
    values: Option<Values>,
    table: RefCell<Declarations>,
}

#[derive(Debug)]
struct Values {
    device: Device,
    dtype: FloatDType,
    stream: Philox,
    deferred: Option<DeferredParameters>,
    parallel: Parallel,
}

impl ChunkScope {
    /// A chunk whose parameters are made, on the device of `context`, or left for later if it says
    /// so.
    pub fn new(context: &BuildContext) -> Self {
        let values = Values {
            device: context.device.clone(),
            dtype: context.params_dtype,
            stream: Philox::new(context.seed),
            deferred: context.deferred.clone(),
            parallel: context.parallel.clone(),
        };
        Self::with(context.parallel.place(), context.adapter.clone(), Some(values))
    }

    /// A chunk on the rank at `place` that is declared and not made: its parameters have shapes,
    /// and no memory.
    pub fn outline(place: RankPlace, adapter: Option<Arc<dyn Adapter>>) -> Self {
        Self::with(place, adapter, None)
    }

    fn with(place: RankPlace, adapter: Option<Arc<dyn Adapter>>, values: Option<Values>) -> Self {
        Self(Rc::new(Shared { place, adapter, values, table: RefCell::default() }))
    }

    /// Opens the next segment. The segment uses the parameters declared in the returned scope. They
    /// are counted in the usual component of this role, unless a block chooses another
    /// ([`Scope::component`]).
    pub fn segment(&self, role: SegmentRole, layer: Option<usize>) -> Scope {
        let mut table = self.0.table.borrow_mut();
        table.segments.push(Segment { role, layer });
        let segment = table.segments.len() - 1;
        Scope {
            shared: Rc::clone(&self.0),
            segment,
            layer,
            path: String::new(),
            component: match role {
                SegmentRole::Embedding => Component::Embedding,
                SegmentRole::Attention => Component::Attention,
                SegmentRole::Mlp | SegmentRole::Moe | SegmentRole::Layer => Component::Mlp,
                SegmentRole::StackEnd => Component::Norm,
                SegmentRole::Head => Component::Output,
            },
            replicas: ReplicaGroup::Dense,
            of_adapter: false,
            of_last_layer: false,
            is_frozen: false,
        }
    }

    /// All that was declared.
    pub fn finish(self) -> Declarations {
        self.0.table.take()
    }
}

/// A place in a segment where parameters are declared.
#[derive(Clone, Debug)]
pub struct Scope {
    shared: Rc<Shared>,
    segment: usize,
    /// Global number of the layer, where this is part of one.
    layer: Option<usize>,
    /// Dotted, empty at the root.
    path: String,
    component: Component,
    replicas: ReplicaGroup,
    /// True if declarations here belong to an adapter.
    of_adapter: bool,
    /// True if declarations here belong to the replacement of the output projection.
    of_last_layer: bool,
    /// True if parameters declared here are not trained.
    is_frozen: bool,
}

impl Scope {
    /// The scope of a part called `name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { path: self.name(name), ..self.clone() }
    }

    /// The same place, whose parameters are counted as `component`.
    #[must_use]
    pub fn component(&self, component: Component) -> Self {
        Self { component, ..self.clone() }
    }

    /// The same place in layer number `layer` (global): for layers inside a segment of another
    /// name.
    #[must_use]
    pub fn of_layer(&self, layer: usize) -> Self {
        Self { layer: Some(layer), ..self.clone() }
    }

    /// The same place, whose parameters are frozen: they have no gradient and no optimizer state.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self { is_frozen: true, ..self.clone() }
    }

    /// The scopes of this rank's experts, of `num_experts` in all, each called by its global
    /// number.
    pub fn experts(&self, num_experts: usize) -> Vec<Self> {
        let group = self.place().expert;
        let each = num_experts / group.size;
        let own = group.rank * each..(group.rank + 1) * each;
        let scope = Self { replicas: ReplicaGroup::Expert, component: Component::Experts, ..self.clone() };
        own.map(|number| scope.child(&number.to_string())).collect()
    }

    /// dtype of the parameters; float32 in an outline.
    pub fn dtype(&self) -> FloatDType {
        self.shared.values.as_ref().map_or(FloatDType::F32, |values| values.dtype)
    }

    /// The rank.
    pub fn place(&self) -> &RankPlace {
        &self.shared.place
    }

    /// Dotted name of the place, empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// True if this is inside one of several experts.
    pub fn is_of_expert(&self) -> bool {
        self.replicas == ReplicaGroup::Expert
    }

    /// Number of ranks over which weights are sharded here.
    pub fn num_ranks(&self) -> usize {
        match self.replicas {
            ReplicaGroup::Dense => self.place().tensor.size,
            ReplicaGroup::Expert => self.place().expert_tensor.size,
        }
    }

    /// The ranks over which weights are cut here; `None` in an outline, which no ranks run.
    pub fn group(&self) -> Option<&Group> {
        let groups = &self.shared.values.as_ref()?.parallel.groups;
        Some(match self.replicas {
            ReplicaGroup::Dense => groups.tensor(),
            ReplicaGroup::Expert => groups.expert_tensor(),
        })
    }

    /// Adaptation of the linear layer [`LinearLayer::name`] at this scope by the chunk's adapter.
    pub fn adapt(&self, layer: &LinearLayer) -> Option<LinearAdaptation> {
        let adapter = self.shared.adapter.as_ref()?;
        let adaptation = adapter.adapt(layer, &Self { of_adapter: true, ..self.clone() })?;
        Some(adaptation.of_layer(&layer.name, self.shared.table.borrow().pass.clone()))
    }

    /// Replacement of this head's output projection and the scope of its declarations, if there is
    /// one ([`LastLayer::declare`](super::LastLayer::declare)).
    pub(super) fn last_layer(&self) -> Option<(LinearForLastLayer, Self)> {
        let layer = self.shared.adapter.as_ref()?.last_layer()?;
        Some((layer, Self { of_last_layer: true, ..self.clone() }))
    }

    /// Dotted name of the parameter or part called `name` here.
    pub fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Declares that this segment uses the parameter with the dotted name `name`, which an earlier
    /// one declared.
    ///
    /// # Panics
    /// If none did.
    pub fn uses(&self, name: &str) {
        self.shared.table.borrow_mut().add_use(name, self.segment);
    }

    /// [`Self::uses`] of every parameter of the part with the dotted name `part`.
    pub fn uses_part(&self, part: &str) {
        let mut table = self.shared.table.borrow_mut();
        let is_of_part = |name: &str| name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
        let names = table.parameters.iter().map(|parameter| parameter.name.clone());
        let names: Vec<String> = names.filter(|name| is_of_part(name)).collect();
        names.iter().for_each(|name| table.add_use(name, self.segment));
    }

    /// Declares the parameter called `name` here, whose whole shape is `shape`, and makes this
    /// rank's shard.
    ///
    /// # Panics
    /// If it is declared already, or its shape does not divide as `cut` wants it.
    pub fn parameter<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        cut: TensorPartition,
        initial: Initial,
        role: ParameterRole,
    ) -> Param<Tensor<D>> {
        self.declare(name, shape, cut, initial, role, None).0
    }

    /// Declares the weight of the linear layer at this scope, whose name it has, as
    /// [`Self::parameter`] does. The chunk's adapter may have a frozen one quantised.
    ///
    /// # Panics
    /// As [`Self::parameter`].
    pub fn linear_weight(&self, layer: &LinearLayer, initial: Initial) -> LinearParameter {
        let quantization = self.shared.adapter.as_ref().and_then(|adapter| adapter.quantization(layer));
        let shape = [layer.outputs, layer.inputs];
        let (param, quantized) = self.declare("weight", shape, layer.cut, initial, ParameterRole::Weight, quantization);
        let eight_bits = self.shared.adapter.as_ref().and_then(|adapter| adapter.eight_bits(self.layer));
        if eight_bits.is_some_and(|layer| layer.rule.is_one_cast()) {
            self.shared.table.borrow_mut().add_cast(&self.name("weight"));
        }
        let eight_bits = eight_bits.map(|layer| self.eight_bit_products(layer));
        LinearParameter { param, quantized, eight_bits }
    }

    /// The 8-bit products of the layer at this scope, whose state is declared here.
    fn eight_bit_products(&self, layer: EightBitLayer) -> EightBitProducts {
        let (scope, cut) = (self.frozen(), TensorPartition::Replicated(GradientScope::ResidualStream));
        let state = layer.has_state().then(|| {
            let role = ParameterRole::CastState;
            let history = scope.parameter(CAST_HISTORY, [3, layer.history], cut, Initial::Zeros, role);
            (scope.parameter(CAST_SCALES, [3], cut, Initial::Ones, role), history)
        });
        let mut table = self.shared.table.borrow_mut();
        let products = EightBitProducts::new(layer.rule, state, table.pass.clone());
        let maxima = products.maxima().map(Arc::clone);
        table.delayed_scaling.extend(maxima.map(|maxima| DelayedScalingLayer {
            name: self.path.clone(),
            replicas: self.replicas,
            maxima,
        }));
        products
    }

    /// Declares a table of the vocabulary here, `[v, c]`, as [`Self::parameter`] does. The chunk's
    /// adapter may have a frozen one quantised.
    ///
    /// # Panics
    /// As [`Self::parameter`].
    pub fn table(&self, name: &str, shape: [usize; 2], initial: Initial, role: ParameterRole) -> LinearParameter {
        let adapter = self.shared.adapter.as_ref();
        let quantization = adapter.and_then(|adapter| adapter.table_quantization(&self.name(name)));
        let (param, quantized) =
            self.declare(name, shape, TensorPartition::VocabularyRows, initial, role, quantization);
        LinearParameter { param, quantized, eight_bits: None }
    }

    /// [`Self::parameter`]. One that is not trained is held as `quantization` says.
    fn declare<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        cut: TensorPartition,
        initial: Initial,
        role: ParameterRole,
        quantization: Option<Quantization>,
    ) -> (Param<Tensor<D>>, Option<QuantizedValues>) {
        let placement = cut.placement(&shape, self.place(), self.replicas);
        let mut local = shape;
        if let Some(shard) = &placement.shard {
            local[shard.dim] = shard.local_size();
        }
        let mut declaration = Declaration {
            name: self.name(name),
            shape: local.to_vec(),
            partition: cut,
            placement,
            role,
            component: self.component,
            segments: vec![self.segment],
            layer: self.layer,
            trainable: !self.is_frozen,
            of_adapter: self.of_adapter,
            of_last_layer: self.of_last_layer,
            has_cast: false,
            quantization: None,
        };
        if let Some(adapter) = self.shared.adapter.as_ref().filter(|_| !declaration.is_added()) {
            declaration.trainable &= adapter.trains(&declaration);
        }
        declaration.quantization = quantization.filter(|_| !declaration.trainable);
        let quantized = declaration.quantization.map(QuantizedValues::new);
        let id = ParamId::new();
        let param = match &self.shared.values {
            Some(values) => values.parameter(id, &declaration, local, initial, quantized.as_ref()),
            None => without_value(id, local),
        };
        let mut table = self.shared.table.borrow_mut();
        let is_whole = declaration.is_float32();
        if !is_whole && self.shared.values.as_ref().is_some_and(|values| values.deferred.is_some()) {
            let place = table.parameters.len();
            table.deferred.insert(place);
        }
        table.declare(id, declaration);
        if let Some(quantized) = &quantized {
            table.quantized.insert(id, quantized.clone());
        }
        (param, quantized)
    }
}

impl Values {
    fn parameter<const D: usize>(
        &self,
        id: ParamId,
        declaration: &Declaration,
        local: [usize; D],
        initial: Initial,
        quantized: Option<&QuantizedValues>,
    ) -> Param<Tensor<D>> {
        let dtype = if declaration.is_float32() { DType::F32 } else { DType::from(self.dtype) };
        let stream = self.stream.derive_name(&declaration.name);
        let (placement, shape) = (declaration.placement.clone(), declaration.global_shape());
        let make = move |device: &Device| match initial {
            Initial::Zeros => Tensor::<D>::zeros(local, (device, dtype)),
            Initial::Ones => Tensor::ones(local, (device, dtype)),
            Initial::Normal(std) => {
                let runs = placement.held_runs(&shape);
                // In memory of their size: the values are the parameter from then on.
                let values = match runs.as_slice() {
                    [run] => stream.normal_range(run.clone(), std),
                    runs => {
                        let mut values = Vec::with_capacity(local.iter().product());
                        runs.iter().for_each(|run| values.extend(stream.normal_range(run.clone(), std)));
                        values
                    }
                };
                Tensor::from_data(TensorData::new(values, local), (device, dtype))
            }
            Initial::Uniform(_) | Initial::LogOfUniform(_) | Initial::TimeSteps { .. } => {
                let mut values = Vec::with_capacity(local.iter().product());
                let value = |draw| initial.of_uniform(draw).expect("made of uniform draws") as f32;
                for run in placement.held_runs(&shape) {
                    values.extend(stream.uniform_range(run).into_iter().map(value));
                }
                Tensor::from_data(TensorData::new(values, local), (device, dtype))
            }
        };
        // Parameters that are whole on each rank are not deferred.
        let value = match self.deferred.as_ref().filter(|_| !declaration.is_float32()) {
            None => match quantized {
                None => make(&self.device),
                Some(quantized) => {
                    let made = make(&self.device.clone().without_autodiff()).reshape([declaration.num_elements()]);
                    quantized.set(Some(made), declaration.matrix());
                    released(local, &self.device, dtype).autodiff()
                }
            },
            Some(deferred) => {
                let plain = self.device.clone().without_autodiff();
                let count = declaration.num_elements();
                deferred.defer(&declaration.name, move || make(&plain).reshape([count]));
                released(local, &self.device, dtype).autodiff()
            }
        };
        Param::initialized(id, value.set_require_grad(declaration.trainable))
    }
}

/// A parameter of an outline.
fn without_value<const D: usize>(id: ParamId, local: [usize; D]) -> Param<Tensor<D>> {
    let no_value = |_: &Device, _: bool| -> Tensor<D> { panic!("a parameter of an outline has no value") };
    Param::uninitialized(id, no_value, Device::flex(), false, Shape::from(local))
}
