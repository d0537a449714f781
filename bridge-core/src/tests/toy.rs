//! A language model small enough for unit tests of the loop: embedding, residual feed-forward
//! layers, head.

use bridge_data::MicroBatch;
use bridge_kernels::{
    Activation, CrossEntropyOptions, DropoutKey, Philox, activation, dropout, embedding, linear, linear_cross_entropy,
    linear_deferred, rms_norm,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor};

use crate::model::{
    Batch, Boundary, BoundaryTensor, BuildContext, ChunkScope, ForwardContext, GradientScope, Initial, ModelChunk,
    ModuleChunk, Parallel, ParameterRole, Scope, SegmentOutput, SegmentRole, Segments, StackPart, Stage,
    TensorPartition,
};

/// Vocabulary of the toy model.
pub const VOCAB: usize = 23;
/// Hidden size of the toy model.
pub const HIDDEN: usize = 7;

/// One residual layer.
#[derive(Module, Debug)]
pub struct ToyLayer {
    norm: Param<Tensor<1>>,
    up: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    down: Param<Tensor<2>>,
}

/// The model, or a stage of it. Its head shares the embedding; a stage with only the head has a
/// copy.
#[derive(Module, Debug)]
pub struct Toy {
    embedding: Option<Param<Tensor<2>>>,
    layers: Vec<ToyLayer>,
    output: Option<Param<Tensor<2>>>,
    #[module(skip)]
    stage: ToyStage,
}

#[derive(Clone, Copy, Debug)]
struct ToyStage {
    first_layer: usize,
    embedding: bool,
    head: bool,
    dtype: FloatDType,
}

/// A toy model with `layers` layers, parameters of `dtype`.
pub fn toy(layers: usize, dtype: FloatDType) -> Box<dyn ModelChunk> {
    toy_stage(&Stage::whole([layers]), dtype)
}

/// A stage of the toy model, parameters of `dtype`.
pub fn toy_stage(stage: &Stage, dtype: FloatDType) -> Box<dyn ModelChunk> {
    let scope = scope(dtype);
    let model = Toy::new(stage.only_stack(), dtype, &scope);
    Box::new(ModuleChunk::new(model, scope.finish()).expect("the toy model declares what it has"))
}

/// A scope that makes parameters of `dtype`.
pub fn scope(dtype: FloatDType) -> ChunkScope {
    ChunkScope::new(&BuildContext {
        device: Device::flex().autodiff(),
        seed: 1,
        params_dtype: dtype,
        padded_vocab_size: VOCAB,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    })
}

/// Declares a parameter of a toy, which no rank cuts.
pub fn parameter<const D: usize>(
    scope: &Scope,
    name: &str,
    shape: [usize; D],
    role: ParameterRole,
) -> Param<Tensor<D>> {
    scope.parameter(name, shape, TensorPartition::Replicated(GradientScope::ResidualStream), Initial::Normal(0.3), role)
}

impl Toy {
    fn new(part: &StackPart, dtype: FloatDType, scope: &ChunkScope) -> Self {
        let table = |scope: &Scope| parameter(scope, "embedding", [VOCAB, HIDDEN], ParameterRole::Embedding);
        let embedding = part.start.then(|| table(&scope.segment(SegmentRole::Embedding, None)));
        let layer = |i: usize| {
            let scope = scope.segment(SegmentRole::Layer, Some(i));
            ToyLayer::new(&scope.child(&format!("layers.{i}")))
        };
        let layers = part.layers.clone().map(layer).collect();
        let head = part.end.then(|| scope.segment(SegmentRole::Head, None));
        let output = match (&head, &embedding) {
            (Some(head), Some(_)) => {
                head.uses("embedding");
                None
            }
            (Some(head), None) => Some(table(head)),
            (None, _) => None,
        };
        let stage = ToyStage { first_layer: part.layers.start, embedding: part.start, head: part.end, dtype };
        Self { embedding, layers, output, stage }
    }
}

/// A linear layer as models write it: the gradient of the weight called `name` comes later where
/// the schedule asks for it.
pub(super) fn linear_of(
    x: Tensor<3>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
    name: &str,
    context: &ForwardContext,
) -> Tensor<3> {
    let Some(store) = context.weight_gradients.cloned() else {
        return linear(x, weight.val(), bias);
    };
    let name = name.to_owned();
    linear_deferred(x, weight.val(), bias, move |gradient| {
        store.defer(&name, move || {
            let gradient = gradient();
            let count = gradient.shape().num_elements();
            gradient.reshape([count])
        });
    })
}

impl ToyLayer {
    pub(super) fn new(scope: &Scope) -> Self {
        let weight = ParameterRole::Weight;
        Self {
            norm: parameter(scope, "norm", [HIDDEN], ParameterRole::Norm),
            up: parameter(scope, "up", [11, HIDDEN], weight),
            bias: parameter(scope, "bias", [11], ParameterRole::Bias),
            down: parameter(scope, "down", [HIDDEN, 11], weight),
        }
    }

    /// `name` is that of the layer outside.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        name: &str,
        key: Option<DropoutKey>,
        context: &ForwardContext,
    ) -> Tensor<3> {
        let normed = rms_norm(x.clone(), self.norm.val(), 1e-5);
        let up = linear_of(normed, &self.up, Some(self.bias.val()), &format!("{name}.up"), context);
        let up = activation(up, Activation::GeluTanh);
        let up = match key {
            Some(key) => dropout(up, 0.25, key),
            None => up,
        };
        x + linear_of(up, &self.down, None, &format!("{name}.down"), context)
    }
}

impl Segments for Toy {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let [b, t] = batch.tokens.dims();
        let ToyStage { embedding, head, dtype, .. } = self.stage;
        let num_segments = usize::from(embedding) + self.layers.len() + usize::from(head);
        let is_end = (index == 0 && embedding) || (index == num_segments && head);
        if is_end { Vec::new() } else { vec![BoundaryTensor::hidden_states([b, t, HIDDEN], dtype)] }
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        let Batch { tokens, labels, loss_mask, .. } = context.batch;
        if let (0, Some(table)) = (index, &self.embedding) {
            return SegmentOutput::Boundary(Boundary::hidden_states(embedding(table.val(), tokens.clone())));
        }
        let x = input.take_hidden_states();
        let local = index - usize::from(self.embedding.is_some());
        if local < self.layers.len() {
            let index = self.stage.first_layer + local;
            let key = context.dropout_key(index, 0);
            let y = self.layers[local].forward(x, &format!("layers.{index}"), key, context);
            return SegmentOutput::Boundary(Boundary::hidden_states(y));
        }
        let table = self.output.as_ref().or(self.embedding.as_ref()).expect("a stage with the head has the table");
        let [b, t, c] = x.dims();
        let targets: Tensor<1, Int> = labels.clone().reshape([b * t]);
        SegmentOutput::LossSum(linear_cross_entropy(
            x.reshape([b * t, c]),
            table.val(),
            targets,
            loss_mask.clone().reshape([b * t]),
            &CrossEntropyOptions::default(),
        ))
    }
}

/// A micro-batch of `b` sequences of `t` tokens, different for each `seed`.
pub fn micro_batch(b: usize, t: usize, seed: u64) -> MicroBatch {
    let words: Vec<i64> = (0..(b * t).div_ceil(4) as u64)
        .flat_map(|i| Philox::new(seed).block(i))
        .map(|w| i64::from(w) % VOCAB as i64)
        .collect();
    let tokens = words[..b * t].to_vec();
    let labels = tokens.iter().map(|token| (token * 3 + 1) % VOCAB as i64).collect();
    MicroBatch {
        tokens,
        labels,
        loss_mask: (0..b * t).map(|i| if i % 5 == 4 { 0.0 } else { 1.0 }).collect(),
        position_ids: (0..b).flat_map(|_| 0..t as i64).collect(),
        batch_size: b,
        seq_length: t,
        ..MicroBatch::default()
    }
}
