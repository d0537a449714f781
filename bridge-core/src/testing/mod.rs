//! A language model small enough for unit tests of the loop: embedding, residual feed-forward layers, head.

mod two_stacks;

use bridge_data::MicroBatch;
use bridge_kernels::{
    Activation, CrossEntropyOptions, DropoutKey, Philox, activation, dropout, embedding, linear, linear_cross_entropy,
    linear_deferred, rms_norm,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use crate::model::{
    Batch, Boundary, BoundaryTensor, ForwardContext, ModelChunk, ModuleChunk, ParameterRole, Segment, SegmentOutput,
    SegmentRole, Segments, StackPart, Stage,
};

pub use two_stacks::{STACKS, source_and_target, two_stacks};

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

/// The model, or a stage of it. Its head shares the embedding; a stage with only the head has a copy.
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

fn parameter<const D: usize>(name: &str, shape: [usize; D], dtype: FloatDType) -> Param<Tensor<D>> {
    let count = shape.iter().product();
    let values = Philox::new(1).derive_name(name).normal(count, 0.3);
    let tensor = Tensor::<D>::from_data(TensorData::new(values, shape), &Device::flex()).cast(dtype);
    Param::from_tensor(tensor.autodiff())
}

/// A toy model with `layers` layers, parameters of `dtype`.
pub fn toy(layers: usize, dtype: FloatDType) -> Box<dyn ModelChunk> {
    toy_stage(&Stage::whole([layers]), dtype)
}

/// A stage of the toy model, parameters of `dtype`.
pub fn toy_stage(stage: &Stage, dtype: FloatDType) -> Box<dyn ModelChunk> {
    let StackPart { layers, start, end } = stage.only_stack().clone();
    let table = || parameter("embedding", [VOCAB, HIDDEN], dtype);
    let model = Toy {
        embedding: start.then(table),
        layers: layers.clone().map(|i| ToyLayer::new(&i.to_string(), dtype)).collect(),
        output: (end && !start).then(table),
        stage: ToyStage { first_layer: layers.start, embedding: start, head: end, dtype },
    };
    Box::new(ModuleChunk::new(model))
}

/// A linear layer as models write it: the gradient of the weight called `name` comes later where the schedule asks for it.
fn linear_of(
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
    fn new(name: &str, dtype: FloatDType) -> Self {
        Self {
            norm: parameter(&format!("{name}.norm"), [HIDDEN], dtype),
            up: parameter(&format!("{name}.up"), [11, HIDDEN], dtype),
            bias: parameter(&format!("{name}.bias"), [11], dtype),
            down: parameter(&format!("{name}.down"), [HIDDEN, 11], dtype),
        }
    }

    /// `name` is that of the layer outside.
    fn forward(&self, x: Tensor<3>, name: &str, key: Option<DropoutKey>, context: &ForwardContext) -> Tensor<3> {
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
    fn segments(&self) -> Vec<Segment> {
        let first = self.stage.first_layer;
        let layers = (0..self.layers.len()).map(|i| Segment { role: SegmentRole::Layer, layer: Some(first + i) });
        let embedding = self.embedding.iter().map(|_| Segment { role: SegmentRole::Embedding, layer: None });
        let head = self.stage.head.then_some(Segment { role: SegmentRole::Head, layer: None });
        embedding.chain(layers).chain(head).collect()
    }

    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let [b, t] = batch.tokens.dims();
        let is_end = (index == 0 && self.stage.embedding) || (index == self.segments().len() && self.stage.head);
        if is_end { Vec::new() } else { vec![BoundaryTensor::hidden_states([b, t, HIDDEN], self.stage.dtype)] }
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

    fn parameter_role(&self, name: &str) -> ParameterRole {
        if name == "embedding" { ParameterRole::EmbeddingOrOutput } else { ParameterRole::Hidden }
    }

    fn parameter_name(&self, path: &str) -> String {
        if path == "output" {
            return "embedding".to_owned();
        }
        match path.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((local, rest)) => {
                let local: usize = local.parse().expect("children of a Vec are numbered");
                format!("layers.{}.{rest}", self.stage.first_layer + local)
            }
            None => path.to_owned(),
        }
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
