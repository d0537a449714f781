//! A transformer block that several layers of a hybrid share (Zamba2, arXiv:2411.15242, section 2).
//!
//! The block reads the residual stream beside the embedding. Each layer has a linear layer of its
//! own, which adds the block's output to the input of the layer's Mamba-2 block, and low-rank
//! branches of its own beside the shared projections. The first layer that uses a block holds it.

use bridge_core::model::{Boundary, Component, GradientScope, Scope, SegmentCost, TensorPartition, Workload};
use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};

use crate::architecture::config::DecoderConfig;
use crate::architecture::derived::WORDS;
use crate::architecture::hybrid::HybridConfig;
use crate::blocks::attention::{AttentionInput, SelfAttention, SharedKeyValues};
use crate::blocks::init::InitialValues;
use crate::blocks::linear::{Linear, LinearConfig, LowRank, flops};
use crate::blocks::mlp::Mlp;
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::residual::BlockOutput;
use crate::blocks::ssm::Mamba;

/// Attention over the stream and the embedding, then a feed-forward block, each behind a norm.
#[derive(Module, Debug)]
pub(crate) struct SharedBlock {
    input_layernorm: Norm,
    self_attention: SelfAttention,
    pre_mlp_layernorm: Norm,
    mlp: Mlp,
}

/// A Mamba-2 block, and all of a layer that adds a shared block's output to its input.
#[derive(Module, Debug)]
pub(crate) struct SharedMamba {
    /// The block, in the layer that holds it.
    block: Option<SharedBlock>,
    mlp_branch: LowRank,
    /// Branches beside queries, keys and values.
    attention_branches: Vec<LowRank>,
    linear: Linear,
    mamba: Mamba,
    /// The layer (global) that holds the block.
    holder: usize,
    /// True if no later layer reads the embedding.
    is_last: bool,
}

impl SharedBlock {
    fn new(config: &DecoderConfig, holder: usize, scope: &Scope) -> Self {
        let attention = scope.component(Component::Attention).child("self_attention");
        Self {
            input_layernorm: Norm::new(config.norm, 2 * config.hidden_size, scope, "input_layernorm"),
            self_attention: SelfAttention::reading(config, holder, 2 * config.hidden_size, &attention),
            pre_mlp_layernorm: Norm::new(config.norm, config.hidden_size, scope, "pre_mlp_layernorm"),
            mlp: Mlp::new(config, config.ffn_hidden_size, &scope.component(Component::Mlp).child("mlp")),
        }
    }
}

impl SharedMamba {
    /// The parts of layer `index` (global), declared in `segment`.
    pub fn new(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, segment: &Scope) -> Self {
        let shared_use = hybrid.shared_use(index).expect("the layer uses a block");
        let (c, initial) = (config.hidden_size, InitialValues::new(config).weight);
        let holder = segment.child(&format!("decoder.layers.{}", shared_use.holder));
        let block = holder.child("shared_block");
        let is_holder = shared_use.holder == index;
        if !is_holder {
            segment.uses_part(block.path());
        }
        // Branches are called by the block, as in files.
        let branches = holder.child("adapters").child(&shared_use.number.to_string());
        let branch = |name, inputs, outputs, cut, component| {
            let sizes = [inputs, hybrid.shared.adapter_rank, outputs];
            LowRank::new(sizes, cut, initial, &branches.component(component).child(name))
        };
        let of_heads = |name| {
            let outputs = config.num_attention_heads * config.kv_channels;
            branch(name, 2 * c, outputs, TensorPartition::Rows, Component::Attention)
        };
        let blocks = config.fc1_blocks();
        let outputs = blocks * config.ffn_hidden_size;
        let names: &[&str] = if hybrid.shared.attention_adapters { &["query", "key", "value"] } else { &[] };
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let linear = LinearConfig { inputs: c, outputs: c, bias: false, cut: whole, initial };
        let scope = segment.child(&format!("decoder.layers.{index}"));
        Self {
            block: is_holder.then(|| SharedBlock::new(config, index, &block)),
            mlp_branch: branch("mlp", c, outputs, TensorPartition::Blocks(blocks), Component::Mlp),
            attention_branches: names.iter().map(|name| of_heads(*name)).collect(),
            linear: Linear::new(&linear, &scope, "linear"),
            mamba: Mamba::new(config, hybrid, &scope.component(Component::StateSpace).child("mamba.mixer")),
            holder: shared_use.holder,
            is_last: shared_use.is_last,
        }
    }

    /// Cost of the block in layer `index` (global), with all that adds to its input.
    pub fn cost(config: &DecoderConfig, hybrid: &HybridConfig, index: usize, work: &Workload) -> SegmentCost {
        let (c, rank, tensor) = (config.hidden_size, hybrid.shared.adapter_rank, work.place.tensor.size);
        let (tokens, n, between) = (work.all_tokens(), work.tokens(), work.tokens_between_blocks());
        let branch = |inputs, outputs: usize| SegmentCost {
            flops: flops(tokens, inputs, rank) + flops(tokens, rank, outputs),
            kept: n * (rank + outputs / tensor) as u64 * work.activation_bytes,
            ..SegmentCost::default()
        };
        let norms = statistics(config.norm, between).and(statistics(config.norm, between));
        let around = SegmentCost {
            flops: flops(tokens, c, c),
            // Inputs of the norms and of the linear layer.
            kept: 4 * between * c as u64 * work.activation_bytes + work.input_alone(between * c as u64),
            ..SegmentCost::default()
        };
        let heads = config.num_attention_heads * config.kv_channels;
        let attention = SelfAttention::cost_reading(config, index, 2 * c, work);
        let mlp = Mlp::cost(config, config.ffn_hidden_size, work)
            .and(branch(c, config.fc1_blocks() * config.ffn_hidden_size));
        let beside = (0..if hybrid.shared.attention_adapters { 3 } else { 0 }).map(|_| branch(2 * c, heads));
        let all = [norms, around, attention, mlp, Mamba::cost(config, hybrid, work)].into_iter().chain(beside);
        all.fold(SegmentCost::default(), SegmentCost::and)
    }

    /// The layer (global) that holds the block.
    pub fn holder(&self) -> usize {
        self.holder
    }

    /// The block, if the layer holds it.
    pub fn block(&self) -> Option<&SharedBlock> {
        self.block.as_ref()
    }

    /// The embedding's output among the tensors beside the stream. It stays there for later layers.
    pub fn take_words(&self, beside: &mut Boundary) -> Tensor<3> {
        if self.is_last { beside.take(WORDS) } else { beside.get(WORDS).expect("the model carries it").clone() }
    }

    /// The Mamba-2 block's output, `[b, t, c]` of the stream and of the embedding -> the same.
    pub fn forward<'a>(
        &'a self,
        x_btc: Tensor<3>,
        words_btc: Tensor<3>,
        shared: &'a SharedBlock,
        norm: &Norm,
        input: AttentionInput<'a>,
    ) -> BlockOutput<'a> {
        let (regions, dtype) = (input.regions, FloatDType::from(x_btc.dtype()));
        let (of_mamba, of_attention) = apart(input);
        // Layers share weights: gradients of one are not deferred beside those of another.
        let of_attention = AttentionInput { weight_gradients: None, ..of_attention };
        let both = Tensor::cat(vec![x_btc.clone(), words_btc.cast(dtype)], 2);
        let both = shared.input_layernorm.forward(both).into();
        let y = shared.self_attention.forward_with_branches(both, &self.attention_branches, of_attention);
        let y_btc = shared.pre_mlp_layernorm.forward(y.compute(regions));
        let y_btc = shared.mlp.forward_with_branch(y_btc, &self.mlp_branch, regions).compute(regions);
        let y_btc = self.linear.forward(y_btc, None);
        self.mamba.forward(norm.forward(x_btc + y_btc).into(), of_mamba)
    }
}

/// The inputs of a Mamba-2 block and of attention that are side by side.
pub(super) fn apart(input: AttentionInput) -> (AttentionInput, AttentionInput) {
    let of_mamba = AttentionInput {
        regions: input.regions,
        rotary: None,
        positions: input.positions,
        document_ids: input.document_ids.clone(),
        dropout_key: None,
        weight_gradients: input.weight_gradients,
        shared: SharedKeyValues::None,
        choice: None,
        state: None,
        compressed: None,
        recurrent: input.recurrent,
        max_logit: None,
        layer: input.layer,
        auxiliary: input.auxiliary,
    };
    (of_mamba, AttentionInput { recurrent: None, ..input })
}
