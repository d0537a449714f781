//! A layer of a decoder, of either sort: attention with a feed-forward block, or one block of a
//! hybrid.

use bridge_core::model::{Boundary, ChunkScope, GenerationState, LayerState, SegmentCost, SegmentRole, Workload};
use burn::module::Module;
use burn::tensor::Tensor;

use super::hybrid_layer::{HybridLayer, MambaAttentionState};
use super::shared_block::SharedMamba;
use super::transformer_layer::{LayerInput, TransformerLayer};
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::HybridBlock;

/// A layer of a decoder. All layers of a decoder are of one sort.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum DecoderLayer {
    Transformer(TransformerLayer),
    Hybrid(HybridLayer),
}

/// Form of the state that a layer keeps in generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// A KV cache.
    KeysAndValues,
    /// A [`CompressedState`](crate::blocks::compressed_attention::CompressedState).
    Compressed,
    /// A [`RecurrentState`](crate::blocks::recurrent_state::RecurrentState).
    Recurrent,
    /// A [`MambaAttentionState`].
    Both,
    /// The layer sees one token at a time.
    None,
}

impl DecoderLayer {
    /// Layer `index` (global). Each of its parts is a segment.
    pub fn new(config: &DecoderConfig, index: usize, scope: &ChunkScope) -> Self {
        match &config.hybrid {
            Some(hybrid) => Self::Hybrid(HybridLayer::new(config, hybrid, index, scope)),
            None => Self::Transformer(TransformerLayer::new(config, index, scope)),
        }
    }

    /// Cost of a part of layer `index` (global).
    pub fn cost(config: &DecoderConfig, index: usize, part: SegmentRole, work: &Workload) -> SegmentCost {
        let cost = match &config.hybrid {
            Some(hybrid) => HybridLayer::cost(config, hybrid, index, work),
            None => TransformerLayer::cost(config, index, part, work),
        };
        let carried_tensors = config.carried_into(index).len() as u64;
        SegmentCost { input: cost.input * (1 + carried_tensors), carried_tensors, ..cost }
    }

    /// The parts that can run, and be recomputed, separately.
    pub fn parts(&self) -> &'static [SegmentRole] {
        match self {
            Self::Transformer(layer) => layer.parts(),
            Self::Hybrid(layer) => layer.parts(),
        }
    }

    /// Generation state of the layer before the first token.
    pub fn new_state(&self) -> LayerState {
        match self {
            Self::Transformer(layer) => layer.new_state(),
            Self::Hybrid(layer) => layer.new_state(),
        }
    }

    /// Runs one of the [parts](Self::parts), `[b, t, c]` -> the same. `beside` are the tensors that
    /// pass beside the stream.
    pub fn forward(&self, part: SegmentRole, x_btc: Tensor<3>, input: LayerInput, beside: &mut Boundary) -> Tensor<3> {
        match self {
            Self::Transformer(layer) => layer.forward(part, x_btc, input, beside),
            Self::Hybrid(layer) => layer.forward(x_btc, input, beside),
        }
    }

    /// [`Self::forward`] of tokens after those that `state`, of which this is layer `local`, has
    /// seen.
    pub fn generate<'a>(
        &'a self,
        part: SegmentRole,
        x_btc: Tensor<3>,
        mut input: LayerInput<'a>,
        beside: &mut Boundary,
        state: &'a mut GenerationState,
        local: usize,
    ) -> Tensor<3> {
        match self.memory() {
            Memory::KeysAndValues => input.attention.state = Some(state.layer(local)),
            Memory::Compressed => input.attention.compressed = Some(state.layer(local)),
            Memory::Recurrent => input.attention.recurrent = Some(state.layer(local)),
            Memory::Both => {
                let both: &mut MambaAttentionState = state.layer(local);
                input.attention.recurrent = Some(&mut both.mamba);
                input.attention.state = Some(&mut both.attention);
            }
            Memory::None => {}
        }
        self.forward(part, x_btc, input, beside)
    }

    /// The part of the layer that has to do with a shared block, if it uses one.
    pub fn shared(&self) -> Option<&SharedMamba> {
        match self {
            Self::Transformer(_) => None,
            Self::Hybrid(layer) => layer.shared(),
        }
    }

    /// Form of the layer's generation state.
    fn memory(&self) -> Memory {
        match self {
            Self::Transformer(layer) => layer.memory(),
            Self::Hybrid(layer) => match layer.block() {
                HybridBlock::Mamba | HybridBlock::Selective | HybridBlock::ShortConv => Memory::Recurrent,
                HybridBlock::MambaAttention | HybridBlock::SharedMamba => Memory::Both,
                HybridBlock::Attention => Memory::KeysAndValues,
                HybridBlock::Mlp | HybridBlock::Moe => Memory::None,
            },
        }
    }
}
