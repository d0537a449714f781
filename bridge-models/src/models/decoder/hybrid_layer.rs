//! A layer of a hybrid model: one norm and one block, or two blocks side by side, on the residual
//! stream. In sandwich norms there is a norm of a block's output too.

use bridge_core::model::{Boundary, ChunkScope, Component, LayerState, SegmentCost, SegmentRole, Workload};
use bridge_kernels::Recomputable;
use bridge_kernels::offload::Module as OffloadModule;
use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};

use super::shared_block::{SharedMamba, apart};
use super::transformer_layer::LayerInput;
use crate::architecture::config::{DecoderConfig, ResidualConfig};
use crate::architecture::hybrid::{BlockFactors, HybridBlock, HybridConfig};
use crate::blocks::attention::{AttentionInput, SelfAttention};
use crate::blocks::key_values::KeyValues;
use crate::blocks::mlp::Mlp;
use crate::blocks::moe::Moe;
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::recurrent_state::RecurrentState;
use crate::blocks::residual::{BlockOutput, Branch, BranchInput, Residual, scaled};
use crate::blocks::short_conv::ShortConv;
use crate::blocks::ssm::Mamba;
use crate::blocks::ssm::selective::SelectiveMamba;

/// The norm and the block that the layer has.
#[derive(Module, Debug)]
pub(crate) struct HybridLayer {
    norm: Norm,
    output_norm: Option<Norm>,
    mixer: Mixer,
    dropout: f64,
    #[module(skip)]
    residual: ResidualConfig,
    #[module(skip)]
    factors: BlockFactors,
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
    Selective(SelectiveMamba),
    ShortConv(ShortConv),
    MambaAttention(MambaAttention),
    SharedMamba(SharedMamba),
}

/// Two blocks that read one norm.
#[derive(Module, Debug)]
struct MambaAttention {
    mamba: Mamba,
    attention: SelfAttention,
}

/// Generation state of the two.
#[derive(Debug)]
pub(super) struct MambaAttentionState {
    pub mamba: RecurrentState,
    pub attention: KeyValues,
}

/// The layer as a segment, by its block.
fn parts(block: HybridBlock) -> &'static [SegmentRole] {
    match block {
        HybridBlock::Mamba
        | HybridBlock::Selective
        | HybridBlock::ShortConv
        | HybridBlock::MambaAttention
        | HybridBlock::SharedMamba => &[SegmentRole::Layer],
        HybridBlock::Attention => &[SegmentRole::Attention],
        HybridBlock::Mlp => &[SegmentRole::Mlp],
        HybridBlock::Moe => &[SegmentRole::Moe],
    }
}

/// Name of the norm in front of a block as a module in recipes.
fn module_of_norm(block: HybridBlock) -> Option<OffloadModule> {
    match block {
        HybridBlock::Mamba | HybridBlock::Selective | HybridBlock::ShortConv | HybridBlock::SharedMamba => None,
        HybridBlock::Attention | HybridBlock::MambaAttention => Some(OffloadModule::AttnNorm),
        HybridBlock::Mlp | HybridBlock::Moe => Some(OffloadModule::MlpNorm),
    }
}

impl HybridLayer {
    /// Layer `index` (global), a segment.
    pub fn new(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, scope: &ChunkScope) -> Self {
        let block = hybrid.layers[index];
        let segment = scope.segment(parts(block)[0], Some(index));
        let scope = segment.child(&format!("decoder.layers.{index}"));
        let [before, after] = match block {
            HybridBlock::Mamba | HybridBlock::Selective | HybridBlock::ShortConv => ["norm", "post_norm"],
            HybridBlock::SharedMamba => ["mamba.norm", "post_norm"],
            HybridBlock::Attention | HybridBlock::MambaAttention => {
                ["input_layernorm", "post_self_attention_layernorm"]
            }
            HybridBlock::Mlp | HybridBlock::Moe => ["pre_mlp_layernorm", "post_mlp_layernorm"],
        };
        // The norms are declared before the block.
        let norm = |name| Norm::new(config.norm, config.hidden_size, &scope, name);
        let (norm, output_norm) = (norm(before), config.has_sandwich_norms().then(|| norm(after)));
        let feed_forward = scope.component(Component::Mlp).child("mlp");
        let state_space = scope.component(Component::StateSpace).child("mixer");
        let attention =
            || SelfAttention::new(config, index, &scope.component(Component::Attention).child("self_attention"));
        let mixer = match block {
            HybridBlock::Mamba => Mixer::Mamba(Mamba::new(config, hybrid, &state_space)),
            HybridBlock::Attention => Mixer::Attention(attention()),
            HybridBlock::Mlp => Mixer::Mlp(Mlp::new(config, config.ffn_hidden_size, &feed_forward)),
            HybridBlock::Moe => Mixer::Moe(Moe::new(config, config.moe.as_ref().expect("validated"), &feed_forward)),
            HybridBlock::Selective => Mixer::Selective(SelectiveMamba::new(config, &hybrid.mamba, &state_space)),
            HybridBlock::ShortConv => Mixer::ShortConv(ShortConv::new(config, &hybrid.short_conv, &state_space)),
            HybridBlock::MambaAttention => {
                let mamba = Mamba::new(config, hybrid, &state_space);
                Mixer::MambaAttention(MambaAttention { mamba, attention: attention() })
            }
            HybridBlock::SharedMamba => Mixer::SharedMamba(SharedMamba::new(config, hybrid, index, &segment)),
        };
        Self {
            norm,
            output_norm,
            mixer,
            dropout: config.hidden_dropout,
            residual: config.residual,
            factors: hybrid.factors,
            dtype: scope.dtype(),
        }
    }

    /// Cost of layer `index` (global): its norm and its block.
    pub fn cost(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, work: &Workload) -> SegmentCost {
        let block = match hybrid.layers[index] {
            HybridBlock::Mamba => Mamba::cost(config, hybrid, work),
            HybridBlock::Attention => SelfAttention::cost(config, index, work),
            HybridBlock::Mlp => Mlp::cost(config, config.ffn_hidden_size, work),
            HybridBlock::Moe => Moe::cost(config, config.moe.as_ref().expect("validated"), work),
            HybridBlock::Selective => SelectiveMamba::cost(config, &hybrid.mamba, work),
            HybridBlock::ShortConv => ShortConv::cost(config, &hybrid.short_conv, work),
            HybridBlock::MambaAttention => {
                Mamba::cost(config, hybrid, work).and(SelfAttention::cost(config, index, work))
            }
            HybridBlock::SharedMamba => SharedMamba::cost(config, hybrid, index, work),
        };
        let stream = work.tokens_between_blocks() * config.hidden_size as u64;
        let read = module_of_norm(hybrid.layers[index]).map(|module| (module.name(), stream * work.stream_bytes));
        let norm = SegmentCost {
            modules: read.into_iter().collect(),
            ..statistics(config.norm, work.tokens_between_blocks())
        };
        let block = match config.has_sandwich_norms() {
            true => {
                let output = SegmentCost { kept: stream * work.activation_bytes, ..SegmentCost::default() };
                block.and(statistics(config.norm, work.tokens_between_blocks())).and(output)
            }
            false => block,
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
            Mixer::Selective(_) => HybridBlock::Selective,
            Mixer::ShortConv(_) => HybridBlock::ShortConv,
            Mixer::MambaAttention(_) => HybridBlock::MambaAttention,
            Mixer::SharedMamba(_) => HybridBlock::SharedMamba,
        }
    }

    /// Generation state of the layer before the first token.
    pub fn new_state(&self) -> LayerState {
        match &self.mixer {
            Mixer::Mamba(_) | Mixer::Selective(_) | Mixer::ShortConv(_) => Box::new(RecurrentState::default()),
            Mixer::Attention(attention) => Box::new(attention.new_state()),
            Mixer::MambaAttention(both) => {
                let attention = both.attention.new_state();
                Box::new(MambaAttentionState { mamba: RecurrentState::default(), attention })
            }
            Mixer::SharedMamba(_) => {
                let attention = KeyValues::new(None);
                Box::new(MambaAttentionState { mamba: RecurrentState::default(), attention })
            }
            Mixer::Mlp(_) | Mixer::Moe(_) => Box::new(()),
        }
    }

    /// The part of the layer that has to do with a shared block, if it uses one.
    pub fn shared(&self) -> Option<&SharedMamba> {
        match &self.mixer {
            Mixer::SharedMamba(shared) => Some(shared),
            _ => None,
        }
    }

    /// `[b, t, c]` -> the same. `beside` are the tensors that pass beside the stream.
    pub fn forward(&self, x_btc: Tensor<3>, input: LayerInput, beside: &mut Boundary) -> Tensor<3> {
        let LayerInput { attention, attention_key, mlp, mlp_key, shared, .. } = input;
        let (factors, regions) = (self.factors, mlp.regions);
        let residual = Residual {
            regions,
            dropout: self.dropout,
            branch_multiplier: self.residual.branch_multiplier,
            stream_multiplier: self.residual.stream_multiplier,
            adds_to_norm: self.residual.adds_to_norm,
            norm: None,
            block_dtype: self.dtype,
        };
        let norm = BranchInput::Norm(&self.norm, module_of_norm(self.block()));
        let (key, (block, multiplier)): (_, (Block, f64)) = match &self.mixer {
            Mixer::MambaAttention(both) => {
                let (of_mamba, of_attention) = apart(attention);
                let (block, multiplier) = mamba_block(&both.mamba, of_mamba, factors);
                let first = Branch { input: norm, block, after: None, multiplier, key: attention_key };
                let (block, multiplier) = attention_block(&both.attention, of_attention, factors);
                let second = Branch { input: BranchInput::Shared, block, after: None, multiplier, key: mlp_key };
                return residual.step(x_btc, [first, second]);
            }
            Mixer::SharedMamba(block) => {
                let words_btc = block.take_words(beside);
                let shared = shared.expect("the layer that holds the block is on the same stage");
                let run = move |x: Recomputable<3>| block.forward(x.tensor, words_btc, shared, &self.norm, attention);
                let branch = Branch {
                    input: BranchInput::Stream,
                    block: Box::new(run),
                    after: None,
                    multiplier: 1.0,
                    key: attention_key,
                };
                return residual.step(x_btc, [branch]);
            }
            Mixer::Mamba(block) => (attention_key, mamba_block(block, attention, factors)),
            Mixer::Attention(block) => (attention_key, attention_block(block, attention, factors)),
            Mixer::Selective(block) => (attention_key, (Box::new(move |x| block.forward(x, attention)), 1.0)),
            Mixer::ShortConv(block) => (attention_key, (Box::new(move |x| block.forward(x, attention)), 1.0)),
            Mixer::Mlp(block) => {
                let run = move |x| block.forward(x, mlp.regions, mlp.weight_gradients);
                (mlp_key, (Box::new(run), factors.mlp_output))
            }
            Mixer::Moe(block) => {
                let run = move |x: Recomputable<3>| BlockOutput::Computed(block.forward(x.tensor, None, &mlp));
                (mlp_key, (Box::new(run), 1.0))
            }
        };
        residual.step(x_btc, [Branch { input: norm, block, after: self.output_norm.as_ref(), multiplier, key }])
    }
}

/// A block as a branch of the residual stream has it.
type Block<'a> = Box<dyn FnOnce(Recomputable<3>) -> BlockOutput<'a> + 'a>;

/// A Mamba-2 block, and the factor on its output.
fn mamba_block<'a>(block: &'a Mamba, input: AttentionInput<'a>, factors: BlockFactors) -> (Block<'a>, f64) {
    let run = move |x| block.forward(with_factor(x, factors.mamba_input), input);
    (Box::new(run), factors.mamba_output)
}

/// Attention, and the factor on its output.
fn attention_block<'a>(block: &'a SelfAttention, input: AttentionInput<'a>, factors: BlockFactors) -> (Block<'a>, f64) {
    let run = move |x| block.forward(with_factor(x, factors.attention_input), input);
    (Box::new(run), factors.attention_output)
}

/// `x` times a factor.
fn with_factor(x_btc: Recomputable<3>, factor: f64) -> Recomputable<3> {
    if factor == 1.0 { x_btc } else { scaled(x_btc.tensor, factor).into() }
}
