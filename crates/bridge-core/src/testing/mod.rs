//! A language model small enough for unit tests of the loop: embedding, residual feed-forward layers, head.

use bridge_kernels::{
    Activation, CrossEntropyOptions, Philox, activation, dropout, embedding, linear, linear_cross_entropy, rms_norm,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use crate::data::MicroBatch;
use crate::model::{
    Batch, ForwardContext, ModelChunk, ModuleChunk, ParameterRole, Segment, SegmentOutput, SegmentRole, Segments,
};

/// Vocabulary of the toy model.
pub const VOCAB: usize = 23;
const HIDDEN: usize = 7;

/// One residual layer.
#[derive(Module, Debug)]
pub struct ToyLayer {
    norm: Param<Tensor<1>>,
    up: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    down: Param<Tensor<2>>,
}

/// The model. Its head shares the embedding.
#[derive(Module, Debug)]
pub struct Toy {
    embedding: Param<Tensor<2>>,
    layers: Vec<ToyLayer>,
}

fn parameter<const D: usize>(name: &str, shape: [usize; D], device: &Device, dtype: FloatDType) -> Param<Tensor<D>> {
    let count = shape.iter().product();
    let values = Philox::new(1).derive_name(name).normal(count, 0.3);
    let plain = device.clone().without_autodiff();
    let tensor = Tensor::<D>::from_data(TensorData::new(values, shape), &plain).cast(dtype);
    Param::from_tensor(tensor.autodiff())
}

/// A toy model with `layers` layers, parameters of `dtype`.
pub fn toy(layers: usize, dtype: FloatDType) -> Box<dyn ModelChunk> {
    let device = &Device::flex().autodiff();
    let layer = |i: usize| ToyLayer {
        norm: parameter(&format!("{i}.norm"), [HIDDEN], device, dtype),
        up: parameter(&format!("{i}.up"), [11, HIDDEN], device, dtype),
        bias: parameter(&format!("{i}.bias"), [11], device, dtype),
        down: parameter(&format!("{i}.down"), [HIDDEN, 11], device, dtype),
    };
    let model = Toy {
        embedding: parameter("embedding", [VOCAB, HIDDEN], device, dtype),
        layers: (0..layers).map(layer).collect(),
    };
    Box::new(ModuleChunk::new(model))
}

impl Segments for Toy {
    fn segments(&self) -> Vec<Segment> {
        let layers = (0..self.layers.len()).map(|i| Segment { role: SegmentRole::Layer, layer: Some(i) });
        std::iter::once(Segment { role: SegmentRole::Embedding, layer: None })
            .chain(layers)
            .chain(std::iter::once(Segment { role: SegmentRole::Head, layer: None }))
            .collect()
    }

    fn forward_segment(&self, index: usize, input: Option<Tensor<3>>, context: &ForwardContext) -> SegmentOutput {
        let Batch { tokens, labels, loss_mask, .. } = context.batch;
        let Some(x) = input else {
            return SegmentOutput::Hidden(embedding(self.embedding.val(), tokens.clone()));
        };
        if index <= self.layers.len() {
            let layer = &self.layers[index - 1];
            let normed = rms_norm(x.clone(), layer.norm.val(), 1e-5);
            let up = activation(linear(normed, layer.up.val(), Some(layer.bias.val())), Activation::GeluTanh);
            let up = match context.dropout_key(index - 1, 0) {
                Some(key) => dropout(up, 0.25, key),
                None => up,
            };
            return SegmentOutput::Hidden(x + linear(up, layer.down.val(), None));
        }
        let [b, t, c] = x.dims();
        let targets: Tensor<1, Int> = labels.clone().reshape([b * t]);
        SegmentOutput::LossSum(linear_cross_entropy(
            x.reshape([b * t, c]),
            self.embedding.val(),
            targets,
            loss_mask.clone().reshape([b * t]),
            &CrossEntropyOptions::default(),
        ))
    }

    fn parameter_role(&self, name: &str) -> ParameterRole {
        if name == "embedding" { ParameterRole::EmbeddingOrOutput } else { ParameterRole::Hidden }
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
        document_ids: None,
    }
}
