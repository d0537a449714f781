//! A layer of a hybrid model: one norm and one block on the residual stream.

use bridge_core::model::{ChunkScope, Component, LayerState, SegmentCost, SegmentRole, Workload};
use bridge_kernels::Recomputable;
use bridge_kernels::offload::Module as OffloadModule;
use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};

use super::transformer_layer::LayerInput;
use crate::architecture::config::{DecoderConfig, ResidualConfig};
use crate::architecture::hybrid::{HybridBlock, HybridConfig};
use crate::blocks::attention::SelfAttention;
use crate::blocks::mlp::Mlp;
use crate::blocks::moe::Moe;
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::residual::{BlockOutput, Branch, BranchInput, Residual};
use crate::blocks::ssm::{Mamba, MambaState};

/// The norm and the one block that the layer has.
#[derive(Module, Debug)]
pub(crate) struct HybridLayer {
    norm: Norm,
    mixer: Mixer,
    dropout: f64,
    #[module(skip)]
    residual: ResidualConfig,
    /// Dtype of the block's input and output.
    #[module(skip)]
    dtype: FloatDType,
}

/// The block of a layer, as [`HybridBlock`] names it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
enum Mixer {
    Mamba(Mamba),
    Attention(SelfAttention),
    Mlp(Mlp),
    Moe(Moe),
}

/// The layer as a segment, by its block.
fn parts(block: HybridBlock) -> &'static [SegmentRole] {
    match block {
        HybridBlock::Mamba => &[SegmentRole::Layer],
        HybridBlock::Attention => &[SegmentRole::Attention],
        HybridBlock::Mlp => &[SegmentRole::Mlp],
        HybridBlock::Moe => &[SegmentRole::Moe],
    }
}

/// Name of the norm in front of a block as a module in recipes.
fn module_of_norm(block: HybridBlock) -> Option<OffloadModule> {
    match block {
        HybridBlock::Mamba => None,
        HybridBlock::Attention => Some(OffloadModule::AttnNorm),
        HybridBlock::Mlp | HybridBlock::Moe => Some(OffloadModule::MlpNorm),
    }
}

impl HybridLayer {
    /// Layer `index` (global), a segment.
    pub fn new(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, scope: &ChunkScope) -> Self {
        let block = hybrid.layers[index];
        let scope = scope.segment(parts(block)[0], Some(index)).child(&format!("decoder.layers.{index}"));
        let norm = match block {
            HybridBlock::Mamba => "norm",
            HybridBlock::Attention => "input_layernorm",
            HybridBlock::Mlp | HybridBlock::Moe => "pre_mlp_layernorm",
        };
        // The norm is declared before the block.
        let norm = Norm::new(config.norm, config.hidden_size, &scope, norm);
        let feed_forward = scope.component(Component::Mlp).child("mlp");
        let mixer = match block {
            HybridBlock::Mamba => {
                let scope = scope.component(Component::StateSpace).child("mixer");
                Mixer::Mamba(Mamba::new(config, &hybrid.mamba, &scope))
            }
            HybridBlock::Attention => {
                let scope = scope.component(Component::Attention).child("self_attention");
                Mixer::Attention(SelfAttention::new(config, index, &scope))
            }
            HybridBlock::Mlp => Mixer::Mlp(Mlp::new(config, config.ffn_hidden_size, &feed_forward)),
            HybridBlock::Moe => Mixer::Moe(Moe::new(config, config.moe.as_ref().expect("validated"), &feed_forward)),
        };
        Self { norm, mixer, dropout: config.hidden_dropout, residual: config.residual, dtype: scope.dtype() }
    }

    /// Cost of layer `index` (global): its norm and its block.
    pub fn cost(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, work: &Workload) -> SegmentCost {
        let block = match hybrid.layers[index] {
            HybridBlock::Mamba => Mamba::cost(config, &hybrid.mamba, work),
            HybridBlock::Attention => SelfAttention::cost(config, index, work),
            HybridBlock::Mlp => Mlp::cost(config, work),
            HybridBlock::Moe => Moe::cost(config, config.moe.as_ref().expect("validated"), work),
        };
        let stream = work.tokens_between_blocks() * config.hidden_size as u64;
        let read = module_of_norm(hybrid.layers[index]).map(|module| (module.name(), stream * work.stream_bytes));
        let norm = SegmentCost {
            modules: read.into_iter().collect(),
            ..statistics(config.norm, work.tokens_between_blocks())
        };
        SegmentCost { input: stream, ..norm.and(block) }
    }

    /// The layer as a segment.
    pub fn parts(&self) -> &'static [SegmentRole] {
        parts(self.block())
    }

    /// The block.
    pub fn block(&self) -> HybridBlock {
        match self.mixer {
            Mixer::Mamba(_) => HybridBlock::Mamba,
            Mixer::Attention(_) => HybridBlock::Attention,
            Mixer::Mlp(_) => HybridBlock::Mlp,
            Mixer::Moe(_) => HybridBlock::Moe,
        }
    }

    /// Generation state of the layer before the first token: an SSM state, a KV cache, or none.
    pub fn new_state(&self) -> LayerState {
        match &self.mixer {
            Mixer::Mamba(_) => Box::new(MambaState::default()),
            Mixer::Attention(attention) => Box::new(attention.new_state()),
            Mixer::Mlp(_) | Mixer::Moe(_) => Box::new(()),
        }
    }

    /// `[b, t, c]` -> the same. `state` is the SSM state of a Mamba layer, in generation.
    pub fn forward(&self, x_btc: Tensor<3>, input: LayerInput, state: Option<&mut MambaState>) -> Tensor<3> {
        let LayerInput { attention, attention_key, mlp, mlp_key } = input;
        let regions = mlp.regions;
        let key = match self.mixer {
            Mixer::Mamba(_) | Mixer::Attention(_) => attention_key,
            Mixer::Mlp(_) | Mixer::Moe(_) => mlp_key,
        };
        let block = move |x_btc: Recomputable<3>| match &self.mixer {
            Mixer::Mamba(block) => block.forward(x_btc, attention, state),
            Mixer::Attention(block) => block.forward(x_btc, attention),
            Mixer::Mlp(block) => block.forward(x_btc, mlp.regions, mlp.weight_gradients),
            Mixer::Moe(block) => BlockOutput::Computed(block.forward(x_btc.tensor, &mlp)),
        };
        let module = module_of_norm(self.block());
        let branch = Branch { input: BranchInput::Norm(&self.norm, module), block: Box::new(block), after: None, key };
        let residual = Residual {
            regions,
            dropout: self.dropout,
            branch_multiplier: self.residual.branch_multiplier,
            stream_multiplier: self.residual.stream_multiplier,
            adds_to_norm: self.residual.adds_to_norm,
            norm: None,
            block_dtype: self.dtype,
        };
        residual.step(x_btc, [branch])
    }
}
