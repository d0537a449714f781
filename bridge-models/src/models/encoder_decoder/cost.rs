//! Cost of the segments of an encoder and a decoder. Shape legend: `s` tokens of the encoder's
//! sequences, `t` of the decoder's.

use std::sync::Arc;

use bridge_core::model::{Adapter, ChunkScope, Outline, Segment, SegmentCost, SegmentRole, Stage, Workload};

use super::model::declare;
use crate::architecture::config::{DecoderConfig, EncoderConfig};
use crate::blocks::embedding::Embedding;
use crate::blocks::head::cost as head_cost;
use crate::blocks::linear::flops;
use crate::blocks::mlp::Mlp;
use crate::blocks::norm::statistics;
use crate::blocks::regions::{enter_exchanges, leave_exchanges};

const FLOAT32: u64 = 4;

/// Declarations and cost of a stage of the model `config` on the rank of `work`. No tensors are
/// made.
pub(crate) fn outline(
    config: &DecoderConfig,
    work: &Workload,
    stage: &Stage,
    adapter: Option<Arc<dyn Adapter>>,
) -> Outline {
    let encoder = config.encoder.expect("a model of this kind has an encoder");
    let declarations = declare(config, ChunkScope::outline(work.place, adapter.clone()), stage);
    let of = |segment: &Segment| {
        let source = work.in_layer(adapter.as_deref(), segment.layer);
        let target = Workload { seq_length: encoder.target_length, ..source };
        Costs { config, encoder, source, target }.segment_cost(*segment)
    };
    let costs = declarations.segments().iter().map(of).collect();
    Outline { declarations, costs: Some(costs) }
}

struct Costs<'a> {
    config: &'a DecoderConfig,
    encoder: EncoderConfig,
    /// A micro-batch of the encoder's sequences.
    source: Workload,
    /// Workload of the decoder.
    target: Workload,
}

impl Costs<'_> {
    fn segment_cost(&self, segment: Segment) -> SegmentCost {
        let Self { config, source, target, .. } = self;
        let is_encoder = segment.layer.is_some_and(|layer| layer < self.encoder.num_layers);
        let own = if is_encoder { source } else { target };
        match segment.role {
            SegmentRole::Embedding => Embedding::cost(config, source).and(Embedding::cost(config, target)),
            SegmentRole::Attention => {
                let cross = if is_encoder { SegmentCost::default() } else { self.attention(target, source) };
                SegmentCost { input: self.between(is_encoder), ..self.attention(own, own).and(cross) }
            }
            SegmentRole::Mlp => {
                let block = self.norm(own).and(Mlp::cost(config, config.ffn_hidden_size, own));
                let inner = own.tokens() * config.ffn_hidden_size as u64 * own.activation_bytes;
                // Dropout keeps the inner activations once more.
                let kept = block.kept + if config.hidden_dropout > 0.0 { inner } else { 0 };
                SegmentCost { input: self.between(is_encoder), kept, ..block }
            }
            SegmentRole::StackEnd => SegmentCost { input: self.between(true), ..self.norm(source) },
            SegmentRole::Head => {
                SegmentCost { input: self.between(false), ..self.norm(target).and(head_cost(config, target)) }
            }
            SegmentRole::Moe | SegmentRole::Layer => panic!("{:?} is no segment of this kind of model", segment.role),
        }
    }

    fn norm(&self, work: &Workload) -> SegmentCost {
        statistics(self.config.norm, work.tokens_between_blocks())
    }

    /// Elements of a boundary inside a stack: both streams and the bias.
    fn between(&self, is_encoder: bool) -> u64 {
        let heads = (self.config.num_attention_heads / self.source.place.tensor.size) as u64;
        let length = if is_encoder { self.source.seq_length } else { self.target.seq_length } as u64;
        let streams = self.source.tokens_between_blocks() + self.target.tokens_between_blocks();
        streams * self.config.hidden_size as u64 + heads * length * length
    }

    /// A norm and attention of `queries` to `keys`, which are the queries' own sequences or the
    /// encoder's.
    fn attention(&self, queries: &Workload, keys: &Workload) -> SegmentCost {
        let config = self.config;
        let (a, c) = (queries.activation_bytes, config.hidden_size);
        let width = config.num_attention_heads * config.kv_channels;
        let ranks = queries.place.tensor.size;
        let heads = (config.num_attention_heads / ranks) as u64;
        let (t, s) = (queries.tokens(), keys.tokens());
        let part = (width / ranks) as u64 * a;
        let scores = queries.micro_batch_size as u64 * heads * (queries.seq_length * keys.seq_length) as u64 * FLOAT32;
        let products = 12.0 * queries.all_tokens() * keys.seq_length as f64 * width as f64;
        let is_across = queries.seq_length != keys.seq_length || !std::ptr::eq(queries, keys);
        let row = c as u64 * queries.collective_bytes;
        let mut exchanges = enter_exchanges(row, queries);
        if is_across {
            exchanges.extend(enter_exchanges(row, keys));
        }
        exchanges.extend(leave_exchanges(row, queries));
        let projections = flops(queries.all_tokens(), c, width) * 2.0 + flops(keys.all_tokens(), c, width) * 2.0;
        let source = if is_across { s * c as u64 } else { 0 };
        let rank = width / ranks;
        let layers = [(t, [c, rank]), (s, [c, 2 * rank]), (t, [rank, c])];
        let in_hand = layers.map(|(rows, layer)| queries.operands_in_hand(rows, layer)).into_iter().max().unwrap_or(0);
        let block = SegmentCost {
            flops: projections + products,
            // The input of each product; of the softmax, scores, exponentials and weights.
            kept: queries.input_alone(t * c as u64 + source + t * rank as u64) + t * part + 2 * s * part + 3 * scores,
            backward: 2 * t * part + 2 * s * part + 2 * scores + in_hand,
            deferred: 2 * (t * c as u64 * a + t * part) + source * a + 2 * s * part,
            exchanges,
            ..SegmentCost::default()
        };
        self.norm(queries).and(block)
    }
}
