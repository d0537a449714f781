//! Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): layers after the last one
//! that predict the tokens after the next one.
//!
//! Layer `k` (from 0) reads the hidden state of each token and the embedding of the token `k + 1`
//! positions later. It predicts the token after that (equations 21 to 25). The layers share the
//! model's embedding and output table. They are part of the head's segment: they need its norm's
//! output and its table, and only their losses leave the segment.

use bridge_core::model::{
    Batch, Boundary, Component, GradientScope, LayerMetrics, PREDICTION_LOSS, PassKind, Scope, SegmentCost,
    SegmentRole, TensorPartition, TrafficKind, Workload,
};
use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_regions::{Cut, all_gather, all_gather_int};
use burn::module::Module;
use burn::tensor::kind::Numeric;
use burn::tensor::{FloatDType, Int, Tensor};

use super::transformer_layer::{LayerInput, TransformerLayer};
use crate::architecture::config::DecoderConfig;
use crate::blocks::embedding::{Embedding, Table, WORD_EMBEDDINGS};
use crate::blocks::head::{Targets, cost as head_cost};
use crate::blocks::init::InitialValues;
use crate::blocks::linear::{Linear, LinearConfig, flops};
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::regions::{Regions, exchange};

/// The layers, and the word embedding that they need.
#[derive(Module, Debug)]
pub(super) struct MultiTokenPrediction {
    /// A copy of the word embedding, on a stage that has it neither before the first layer nor as
    /// the output's table.
    words: Option<Table>,
    layers: Vec<MultiTokenPredictionLayer>,
    /// Global number of the first of these layers.
    first_layer: usize,
    /// Factor on the sum of the layers' losses.
    weight: f64,
}

#[derive(Module, Debug)]
struct MultiTokenPredictionLayer {
    /// Norm of the embedding.
    enorm: Norm,
    /// Norm of the hidden states of the layer before.
    hnorm: Norm,
    /// Projection of both, side by side, to the residual stream.
    eh_proj: Linear,
    transformer_layer: TransformerLayer,
    final_layernorm: Norm,
    /// True if the stream of the transformer layer is in float32 with any dtype of the parameters.
    is_wide: bool,
}

/// Prefix of the names of their parameters, before the depth.
const LAYERS: &str = "mtp.layers.";
/// Next component of the names of a transformer layer's parameters.
const TRANSFORMER: &str = "transformer_layer";

/// Name of the parameter `name` of one of these layers if they are counted after the `num_layers`
/// layers of the decoder, as in files: a parameter of the transformer layer is named like one of
/// the decoder's. `None` for other parameters.
pub(crate) fn name_behind_layers(name: &str, num_layers: usize) -> Option<String> {
    let (depth, rest) = name.strip_prefix(LAYERS)?.split_once('.')?;
    let layer = num_layers + depth.parse::<usize>().ok()?;
    Some(match rest.strip_prefix(TRANSFORMER) {
        Some(rest) => format!("decoder.layers.{layer}{rest}"),
        None => format!("{LAYERS}{layer}.{rest}"),
    })
}

/// Word embedding of a stage with the head.
pub(super) enum WordEmbedding {
    /// On the stage, as its input embedding or its output table.
    OnStage,
    /// On another stage: the layers get a copy.
    Elsewhere,
}

impl MultiTokenPrediction {
    /// The layers of the model's head, whose scope is `head`; `None` for a model without.
    pub fn new(config: &DecoderConfig, words: &WordEmbedding, head: &Scope) -> Option<Self> {
        if config.mtp_num_layers == 0 {
            return None;
        }
        let words = match words {
            WordEmbedding::OnStage => {
                head.uses(WORD_EMBEDDINGS);
                None
            }
            WordEmbedding::Elsewhere => {
                Some(Embedding::words_at(config, &head.component(Component::Embedding).child("embedding")))
            }
        };
        let scope = |depth| head.of_layer(config.num_layers + depth).child(&format!("{LAYERS}{depth}"));
        let layer = |depth| MultiTokenPredictionLayer::new(config, &scope(depth));
        Some(Self {
            words,
            layers: (0..config.mtp_num_layers).map(layer).collect(),
            first_layer: config.num_layers,
            weight: config.mtp_loss_scaling_factor / config.mtp_num_layers as f64,
        })
    }

    /// Cost of the layers, with the embedding and the output projection of each.
    pub fn cost(config: &DecoderConfig, work: &Workload) -> SegmentCost {
        let c = config.hidden_size;
        let stream = work.tokens_between_blocks() * c as u64 * work.activation_bytes;
        let norm = || statistics(config.norm, work.tokens_between_blocks());
        let projection = || SegmentCost {
            flops: flops(work.all_tokens(), 2 * c, c),
            // The two inputs of the norms, and the projection's.
            kept: 2 * stream + work.input_alone(2 * work.tokens_between_blocks() * c as u64),
            backward: work.operands_in_hand(work.tokens_between_blocks(), [2 * c, c]),
            ..SegmentCost::default()
        };
        let layer = || SegmentCost {
            input: 0,
            ..TransformerLayer::cost(config, config.num_layers - 1, SegmentRole::Layer, work)
        };
        let one = || {
            let entry = Embedding::cost(config, work).and(norm()).and(norm()).and(projection());
            entry.and(layer()).and(norm()).and(head_cost(config, work))
        };
        let mut whole = SegmentCost::default();
        for _ in 0..config.mtp_num_layers {
            whole = whole.and(one());
        }
        if config.mtp_num_layers > 0 && work.context_size > 1 {
            whole.exchanges.extend(exchanges(work));
        }
        whole
    }

    /// The loss of the model with the gradients of the layers' losses: its value is that of `loss`
    /// alone. Without gradients nothing is computed.
    pub fn with_losses(&self, loss: Tensor<1>, x_btc: Tensor<3>, context: &MtpContext) -> Tensor<1> {
        if !loss.device().is_autodiff() {
            return loss;
        }
        let shifted = ShiftedLabels::new(context.batch, context.regions);
        let mut stream = x_btc;
        let mut losses: Option<Tensor<1>> = None;
        for (depth, layer) in self.layers.iter().enumerate() {
            let words = (context.words)(self.words.as_ref(), shifted.labels(depth), depth);
            stream = layer.forward(stream, words, &|| (context.input)(depth));
            let targets = shifted.targets(depth + 1);
            let tokens = context.metrics.map(|metrics| (metrics, targets.mask_bt.clone().sum()));
            let loss = (context.loss)(stream.clone(), targets);
            if let Some((metrics, tokens)) = tokens {
                let values = [&loss, &tokens].map(|sum| f64::from(sum.clone().into_scalar::<f32>()));
                metrics.record(PREDICTION_LOSS, self.first_layer + depth, values.to_vec());
            }
            losses = Some(match losses {
                Some(sum) => sum + loss,
                None => loss,
            });
        }
        let losses = losses.expect("there is a layer");
        let value = losses.clone().detach();
        loss + (losses - value) * self.weight
    }
}

/// Embeds ids `[b, t]` as `[b, t, c]`, by a table or the stage's own, at a depth.
pub(super) type EmbedWords<'a> = dyn Fn(Option<&Table>, Tensor<2, Int>, usize) -> Tensor<3> + 'a;

/// The model around the layers: inputs, embedding and loss.
pub(super) struct MtpContext<'a> {
    pub regions: &'a Regions,
    pub batch: &'a Batch,
    /// Takes the layers' losses.
    pub metrics: Option<&'a LayerMetrics>,
    /// Embeds ids, by the table that is given or else the stage's own; the depth names the dropout
    /// mask.
    pub words: &'a EmbedWords<'a>,
    /// Inputs of the transformer layer of a depth besides the stream.
    pub input: &'a dyn Fn(usize) -> LayerInput<'a>,
    /// Output projection and sum of the loss.
    pub loss: &'a dyn Fn(Tensor<3>, Targets) -> Tensor<1>,
}

impl MultiTokenPredictionLayer {
    fn new(config: &DecoderConfig, scope: &Scope) -> Self {
        let c = config.hidden_size;
        let norm = |name| Norm::new(config.norm, c, scope, name);
        let projection = LinearConfig {
            inputs: 2 * c,
            outputs: c,
            bias: false,
            cut: TensorPartition::Replicated(GradientScope::ResidualStream),
            initial: InitialValues::new(config).weight,
        };
        let layer = scope.child(TRANSFORMER);
        Self {
            enorm: norm("enorm"),
            hnorm: norm("hnorm"),
            eh_proj: Linear::new(&projection, &scope.component(Component::Mlp), "eh_proj"),
            // Like the last layer of the decoder.
            transformer_layer: TransformerLayer::at(config, config.num_layers - 1, [&layer, &layer]),
            final_layernorm: norm("final_layernorm"),
            is_wide: config.fp32_residual,
        }
    }

    /// Both `[b, t, c]` of the residual stream -> the same.
    fn forward<'a>(
        &self,
        before_btc: Tensor<3>,
        words_btc: Tensor<3>,
        input: &dyn Fn() -> LayerInput<'a>,
    ) -> Tensor<3> {
        let both = Tensor::cat(vec![self.enorm.forward(words_btc), self.hnorm.forward(before_btc)], 2);
        let x_btc = self.eh_proj.forward(both, None);
        let x_btc = if self.is_wide { x_btc.cast(FloatDType::F32) } else { x_btc };
        let layer = &self.transformer_layer;
        let x_btc = layer
            .parts()
            .iter()
            .fold(x_btc, |x_btc, part| layer.forward(*part, x_btc, input(), &mut Boundary::default()));
        self.final_layernorm.forward_into_layers(x_btc)
    }
}

/// The dimension of the sequence.
const SEQUENCE: usize = 1;

/// Labels of later tokens, and their weights.
struct ShiftedLabels<'a> {
    regions: &'a Regions,
    /// Labels of whole sequences.
    labels_bs: Tensor<2, Int>,
    mask_bs: Tensor<2>,
    documents_bs: Option<Tensor<2, Int>>,
}

impl<'a> ShiftedLabels<'a> {
    /// All ranks that share the sequences of `batch` call this together.
    fn new(batch: &Batch, regions: &'a Regions) -> Self {
        let group = regions.context();
        let whole = |ids_bt: Tensor<2, Int>| all_gather_int(ids_bt, SEQUENCE, Cut::Zigzag, group);
        let mask_bs = match group.size() {
            1 => batch.loss_mask.clone(),
            _ => all_gather(batch.loss_mask.clone(), SEQUENCE, Cut::Zigzag, group),
        };
        let documents_bs = batch.document_ids.clone().map(whole);
        Self { regions, labels_bs: whole(batch.labels.clone()), mask_bs, documents_bs }
    }

    /// Label `offset` positions after each of this rank's tokens; 0 beyond the end.
    fn labels(&self, offset: usize) -> Tensor<2, Int> {
        self.own(shifted(self.labels_bs.clone(), offset))
    }

    /// [`Self::labels`] as targets. Labels beyond the end or of another document have no weight.
    fn targets(&self, offset: usize) -> Targets {
        let mut mask_bs = shifted(self.mask_bs.clone(), offset);
        if let Some(documents_bs) = &self.documents_bs {
            let is_same = documents_bs.clone().equal(shifted(documents_bs.clone(), offset));
            let dtype = mask_bs.dtype();
            mask_bs = mask_bs * is_same.float().cast(FloatDType::from(dtype));
        }
        Targets { labels_bt: self.labels(offset), mask_bt: self.own(mask_bs) }
    }

    /// This rank's part of whole sequences.
    fn own<K: Numeric>(&self, x_bs: Tensor<2, K>) -> Tensor<2, K> {
        let group = self.regions.context();
        if group.size() == 1 {
            return x_bs;
        }
        let [_, s] = x_bs.dims();
        let parts = Cut::Zigzag.parts(s, group.rank(), group.size()).into_iter();
        Tensor::cat(parts.map(|part| x_bs.clone().narrow(SEQUENCE, part.start, part.len())).collect(), SEQUENCE)
    }
}

/// Each sequence shifted to the left by `offset` positions, zeros at its end.
fn shifted<K: Numeric>(x_bs: Tensor<2, K>, offset: usize) -> Tensor<2, K> {
    let [b, s] = x_bs.dims();
    let offset = offset.min(s);
    if offset == 0 {
        return x_bs;
    }
    let zeros = Tensor::zeros([b, offset], (&x_bs.device(), x_bs.dtype()));
    if offset == s {
        return zeros;
    }
    Tensor::cat(vec![x_bs.narrow(SEQUENCE, offset, s - offset), zeros], SEQUENCE)
}

/// Labels, weights and documents of whole sequences, to every rank that shares them.
fn exchanges(work: &Workload) -> Vec<bridge_core::model::Exchange> {
    const INT64: u64 = 8;
    const FLOAT32: u64 = 4;
    let of = |bytes| {
        exchange(
            TrafficKind::Context,
            GroupKind::Context,
            Operation::AllGather,
            PassKind::Forward,
            1,
            work.tokens() * bytes,
        )
    };
    let documents = if work.documents { vec![of(INT64)] } else { Vec::new() };
    [vec![of(INT64), of(FLOAT32)], documents].concat()
}
