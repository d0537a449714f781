//! One transformer layer: attention and a feed-forward block on the residual stream.

use std::cell::Cell;

use bridge_core::config::{BlockOrder, NormPlacement};
use bridge_core::model::{
    Boundary, ChunkScope, Component, GradientScope, Initial, LayerState, ParameterRole, Scope, SegmentCost,
    SegmentRole, TensorPartition, Workload,
};
use bridge_kernels::offload::Module as OffloadModule;
use bridge_kernels::{DropoutKey, Recomputable};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Tensor};

use super::decoder_layer::Memory;
use super::shared_block::SharedBlock;
use crate::architecture::config::{DecoderConfig, ResidualConfig};
use crate::architecture::derived::SHORTCUT;
use crate::blocks::altup::AltUp;
use crate::blocks::attention::{AttentionInput, SelfAttention};
use crate::blocks::compressed_attention::CompressedAttention;
use crate::blocks::gated_delta_net::GatedDeltaNet;
use crate::blocks::hyper_connection::{self, HyperConnection, StreamUse};
use crate::blocks::mla::LatentAttention;
use crate::blocks::mlp::Mlp;
use crate::blocks::moe::{DenseAndExperts, Moe, MoeInput};
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::per_layer::PerLayerBranch;
use crate::blocks::recurrent_state::RecurrentState;
use crate::blocks::regions::Regions;
use crate::blocks::residual::{BlockOutput, Branch, BranchInput, Residual, scaled};

/// Attention and a feed-forward block, with the norms that [`NormPlacement`] puts around them.
#[derive(Module, Debug)]
pub(crate) struct TransformerLayer {
    attention_connection: Option<HyperConnection>,
    input_layernorm: Option<Norm>,
    attention: Attention,
    post_self_attention_layernorm: Option<Norm>,
    mlp_connection: Option<HyperConnection>,
    pre_mlp_layernorm: Option<Norm>,
    feed_forward: FeedForward,
    post_mlp_layernorm: Option<Norm>,
    /// Experts that read the feed-forward block's norm, for the end of the next layer.
    shortcut: Option<Moe>,
    /// Branch of the layer's own vectors, behind all others.
    per_layer: Option<PerLayerBranch>,
    /// Steps between the stream that the layer reads and writes and all others.
    altup: Option<AltUp>,
    /// Factor on the stream at the layer's end, which is not trained.
    layer_scalar: Option<Param<Tensor<1>>>,
    dropout: f64,
    #[module(skip)]
    residual: ResidualConfig,
    /// Dtype of the blocks' inputs and outputs.
    #[module(skip)]
    dtype: FloatDType,
}

/// Attention of a layer: multi-head (or grouped-query) attention, multi-head latent attention, or
/// linear attention.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
enum Attention {
    Mha(SelfAttention),
    Mla(LatentAttention),
    Linear(GatedDeltaNet),
    Compressed(CompressedAttention),
}

impl Attention {
    fn new(config: &DecoderConfig, index: usize, scope: &Scope) -> Self {
        if let Some(compressed) = &config.compressed {
            return Self::Compressed(CompressedAttention::new(config, compressed, index, scope));
        }
        match (config.linear_layer(index), &config.latent) {
            (Some(linear), _) => Self::Linear(GatedDeltaNet::new(config, linear, scope)),
            (None, Some(latent)) => Self::Mla(LatentAttention::new(config, latent, index, scope)),
            (None, None) => Self::Mha(SelfAttention::new(config, index, scope)),
        }
    }

    fn cost(config: &DecoderConfig, index: usize, work: &Workload) -> SegmentCost {
        if let Some(compressed) = &config.compressed {
            return CompressedAttention::cost(config, compressed, index, work);
        }
        match (config.linear_layer(index), &config.latent) {
            (Some(linear), _) => GatedDeltaNet::cost(config, linear, work),
            (None, Some(latent)) => LatentAttention::cost(config, latent, index, work),
            (None, None) => SelfAttention::cost(config, index, work),
        }
    }

    fn memory(&self) -> Memory {
        match self {
            Self::Mha(_) | Self::Mla(_) => Memory::KeysAndValues,
            Self::Linear(_) => Memory::Recurrent,
            Self::Compressed(_) => Memory::Compressed,
        }
    }

    fn new_state(&self) -> LayerState {
        match self {
            Self::Mha(attention) => Box::new(attention.new_state()),
            Self::Mla(attention) => Box::new(attention.new_state()),
            Self::Linear(_) => Box::new(RecurrentState::default()),
            Self::Compressed(attention) => Box::new(attention.new_state()),
        }
    }

    fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        match self {
            Self::Mha(attention) => attention.forward(x_btc, input),
            Self::Mla(attention) => attention.forward(x_btc, input),
            Self::Linear(attention) => attention.forward(x_btc, input),
            Self::Compressed(attention) => attention.forward(x_btc, input),
        }
    }
}

/// Feed-forward block of a layer: an MLP, a mixture of experts, or both side by side.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
enum FeedForward {
    Dense(Mlp),
    Moe(Moe),
    Both(DenseAndExperts),
}

impl FeedForward {
    fn new(config: &DecoderConfig, index: usize, scope: &Scope) -> Self {
        let (f, limits) = (config.ffn_size(index), config.output_limits(index));
        match config.moe_layer(index).filter(|moe| !moe.shortcut) {
            Some(moe) if moe.dense_beside => Self::Both(DenseAndExperts::new(config, moe, f, scope)),
            Some(moe) => Self::Moe(Moe::new(config, &moe.of_layer(index), scope).limited(limits)),
            None => {
                Self::Dense(Mlp::new(config, f, scope).limited(limits[0]).with_sparse_gates(config.gate_cutoff(index)))
            }
        }
    }

    fn cost(config: &DecoderConfig, index: usize, work: &Workload) -> SegmentCost {
        let f = config.ffn_size(index);
        match config.moe_layer(index) {
            Some(moe) if moe.shortcut => Mlp::cost(config, f, work).and(Moe::cost(config, moe, work)),
            Some(moe) if moe.dense_beside => DenseAndExperts::cost(config, moe, f, work),
            Some(moe) => Moe::cost(config, moe, work),
            None if config.gate_cutoff(index).is_some() => {
                Mlp::cost(config, f, work).and(Mlp::cost_of_sparse_gates(f, work))
            }
            None => Mlp::cost(config, f, work),
        }
    }

    fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: &MoeInput<'a>) -> BlockOutput<'a> {
        match self {
            Self::Dense(mlp) => mlp.forward(x_btc, input.regions, input.weight_gradients),
            Self::Moe(moe) => BlockOutput::Computed(moe.forward(x_btc.tensor, None, input)),
            Self::Both(both) => BlockOutput::Computed(both.forward(x_btc.tensor, input, input.weight_gradients)),
        }
    }
}

/// Random stream of the dropout of experts' output beside the residual stream, under the router's.
const SHORTCUT_KEY: u64 = 2;

/// Input of a block behind a norm.
fn norm_input(norm: &Option<Norm>, module: OffloadModule) -> Option<BranchInput<'_>> {
    norm.as_ref().map(|norm| BranchInput::Norm(norm, Some(module)))
}

/// Inputs of a layer besides the residual stream.
pub(crate) struct LayerInput<'a> {
    pub attention: AttentionInput<'a>,
    /// Key of the dropout of attention's output.
    pub attention_key: Option<DropoutKey>,
    pub mlp: MoeInput<'a>,
    /// Key of the dropout of the feed-forward block's output.
    pub mlp_key: Option<DropoutKey>,
    /// The block that the layer shares with others.
    pub shared: Option<&'a SharedBlock>,
    /// Vectors of the layer, `[b, this rank's tokens, p]`, in models that have them.
    pub per_layer: Option<Tensor<3>>,
}

/// The parts of a layer that can run, and be recomputed, separately.
fn parts(blocks: BlockOrder, has_altup: bool, has_experts: bool) -> &'static [SegmentRole] {
    match (blocks, has_experts) {
        _ if has_altup => &[SegmentRole::Layer],
        (BlockOrder::Sequential, false) => &[SegmentRole::Attention, SegmentRole::Mlp],
        (BlockOrder::Sequential, true) => &[SegmentRole::Attention, SegmentRole::Moe],
        (BlockOrder::Parallel | BlockOrder::ParallelSharedNorm, _) => &[SegmentRole::Layer],
    }
}

impl TransformerLayer {
    /// Layer `index` (global). Each of its parts is a segment.
    pub fn new(config: &DecoderConfig, index: usize, scope: &ChunkScope) -> Self {
        let name = format!("decoder.layers.{index}");
        let parts = parts(config.residual.blocks, config.altup.is_some(), config.moe_layer(index).is_some()).iter();
        let segments: Vec<Scope> = parts.map(|role| scope.segment(*role, Some(index)).child(&name)).collect();
        Self::at(config, index, [&segments[0], &segments[segments.len() - 1]])
    }

    /// A layer of the sort of layer `index` (global): attention at the first scope, the
    /// feed-forward block at the last.
    pub fn at(config: &DecoderConfig, index: usize, [first, last]: [&Scope; 2]) -> Self {
        let residual = config.residual_of(index);
        let norm =
            |exists: bool, scope: &Scope, name| exists.then(|| Norm::new(config.norm, config.hidden_size, scope, name));
        let norms = residual.layer_norms();
        let has_dense_beside = config.moe_layer(index).is_some_and(|moe| moe.dense_beside);
        let attention = first.component(Component::Attention).child("self_attention");
        let feed_forward = last.component(Component::Mlp).child("mlp");
        let connection =
            |scope: &Scope, name| HyperConnection::new(config, StreamUse::ReadAndWrite, &scope.child(name));
        Self {
            attention_connection: connection(first, "self_attention_hyper_connection"),
            input_layernorm: norm(norms.before_attention, first, "input_layernorm"),
            attention: Attention::new(config, index, &attention),
            post_self_attention_layernorm: norm(norms.after_attention, first, "post_self_attention_layernorm"),
            mlp_connection: connection(last, "mlp_hyper_connection"),
            // Blocks side by side have norms of their own.
            pre_mlp_layernorm: norm(norms.before_mlp && !has_dense_beside, last, "pre_mlp_layernorm"),
            feed_forward: FeedForward::new(config, index, &feed_forward),
            post_mlp_layernorm: norm(norms.after_mlp, last, "post_mlp_layernorm"),
            shortcut: config
                .shortcut_experts(index)
                .map(|moe| Moe::new(config, moe, &feed_forward).limited(config.output_limits(index))),
            per_layer: config.per_layer.map(|per_layer| PerLayerBranch::new(config, per_layer, last)),
            altup: AltUp::new(config, last),
            layer_scalar: config.layer_scalar.then(|| {
                let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
                last.frozen().parameter("layer_scalar", [1], cut, Initial::Ones, ParameterRole::Norm)
            }),
            dropout: config.hidden_dropout,
            residual,
            dtype: first.dtype(),
        }
    }

    /// Cost of a part of layer `index` (global): its norms and its blocks.
    pub fn cost(config: &DecoderConfig, index: usize, part: SegmentRole, work: &Workload) -> SegmentCost {
        let residual = config.residual_of(index);
        let norms = residual.layer_norms();
        let stream = work.tokens_between_blocks() * config.hidden_size as u64;
        // A norm before a block reads the stream, which is the segment's input; a norm after the
        // block keeps its own input.
        let with_norms = |block: SegmentCost, before: Option<OffloadModule>, after: bool| {
            let statistics = || statistics(config.norm, work.tokens_between_blocks());
            let read = |module: OffloadModule| SegmentCost {
                modules: vec![(module.name(), stream * work.stream_bytes)],
                ..statistics()
            };
            let block = before.map(read).unwrap_or_default().and(block);
            // A norm of the sum reads the stream.
            let is_of_sum = residual.norms == NormPlacement::Sum;
            let bytes = if is_of_sum { work.stream_bytes } else { work.activation_bytes };
            let output = SegmentCost { kept: stream * bytes, ..SegmentCost::default() };
            let block = if after { block.and(statistics()).and(output) } else { block };
            block.and(hyper_connection::cost(config, StreamUse::ReadAndWrite, work))
        };
        let attention = || {
            let block = Attention::cost(config, index, work);
            with_norms(block, norms.before_attention.then_some(OffloadModule::AttnNorm), norms.after_attention)
        };
        let feed_forward = || {
            let block = FeedForward::cost(config, index, work);
            let block = with_norms(block, norms.before_mlp.then_some(OffloadModule::MlpNorm), norms.after_mlp);
            match config.per_layer {
                Some(per_layer) => block.and(PerLayerBranch::cost(config, per_layer, work)),
                None => block,
            }
        };
        let blocks = match part {
            SegmentRole::Attention => attention(),
            SegmentRole::Mlp | SegmentRole::Moe => feed_forward(),
            SegmentRole::Layer => attention().and(feed_forward()).and(AltUp::cost(config, work)),
            SegmentRole::Embedding | SegmentRole::StackEnd | SegmentRole::Head => {
                panic!("{part:?} is no part of a layer")
            }
        };
        SegmentCost { input: work.tokens_between_blocks() * config.stream_size() as u64, ..blocks }
    }

    /// The parts that can run, and be recomputed, separately.
    pub fn parts(&self) -> &'static [SegmentRole] {
        let has_experts = !matches!(self.feed_forward, FeedForward::Dense(_)) || self.shortcut.is_some();
        parts(self.residual.blocks, self.altup.is_some(), has_experts)
    }

    /// Form of the layer's generation state.
    pub fn memory(&self) -> Memory {
        self.attention.memory()
    }

    /// Generation state of the layer before the first token.
    pub fn new_state(&self) -> LayerState {
        self.attention.new_state()
    }

    /// Runs one of the [parts](Self::parts), `[b, t, c]`, or `[b, t, n * c]` of several streams, ->
    /// the same. `beside` are the tensors that pass beside the stream.
    pub fn forward(&self, part: SegmentRole, x_btc: Tensor<3>, input: LayerInput, beside: &mut Boundary) -> Tensor<3> {
        let LayerInput { attention, attention_key, mlp, mlp_key, per_layer, .. } = input;
        let regions = mlp.regions;
        let (shortcut, stream) = (Cell::new(None), FloatDType::from(x_btc.dtype()));
        let key = mlp.key.map(|key| DropoutKey(key.0.derive(SHORTCUT_KEY)));
        let attention = self.attention_branch(attention, attention_key);
        let feed_forward = self.feed_forward_branch(mlp, mlp_key, &shortcut);
        let (after_attention, after_mlp) = (&self.post_self_attention_layernorm, &self.post_mlp_layernorm);
        let x_btc = match part {
            SegmentRole::Attention => {
                return self.residual(regions, after_attention).step_of(x_btc, &self.attention_connection, attention);
            }
            SegmentRole::Mlp | SegmentRole::Moe => {
                let x_btc = self.residual(regions, after_mlp).step_of(x_btc, &self.mlp_connection, feed_forward);
                let added = beside.get(SHORTCUT).is_some().then(|| beside.take(SHORTCUT));
                if let Some(y_btc) = shortcut.take() {
                    let y_btc = regions.dropout(scaled(y_btc, self.residual.branch_multiplier), self.dropout, key);
                    *beside = std::mem::take(beside).with(SHORTCUT, y_btc.cast(stream));
                }
                match added {
                    Some(y_btc) => x_btc + y_btc,
                    None => x_btc,
                }
            }
            SegmentRole::Layer => match &self.altup {
                Some(altup) => self.step_of_one(altup, x_btc, regions, [attention, feed_forward]),
                None => self.residual(regions, after_mlp).step(x_btc, [attention, feed_forward]),
            },
            SegmentRole::Embedding | SegmentRole::StackEnd | SegmentRole::Head => {
                panic!("{part:?} is no part of a layer")
            }
        };
        let dtype = FloatDType::from(x_btc.dtype());
        let x_btc = match (&self.per_layer, per_layer) {
            (Some(branch), Some(vectors_btp)) => match &self.altup {
                Some(altup) => altup.add_branch(x_btc, |x_btc| branch.forward(x_btc, vectors_btp)),
                None => x_btc.clone() + branch.forward(x_btc, vectors_btp).cast(dtype),
            },
            (_, _) => x_btc,
        };
        match &self.layer_scalar {
            Some(factor) => x_btc * factor.val().cast(dtype).unsqueeze(),
            None => x_btc,
        }
    }

    /// A step of several streams, `[b, t, n * c]` -> the same, of which the blocks read and write
    /// one. The sum of attention, the branch beside it and the stream is divided by the root of 2.
    fn step_of_one<'a>(
        &'a self,
        altup: &'a AltUp,
        x_btf: Tensor<3>,
        regions: &Regions,
        [attention, feed_forward]: [Branch<'a>; 2],
    ) -> Tensor<3> {
        let predicted_btf = altup.predict(x_btf);
        let residual = self.residual(regions, &self.post_mlp_layernorm);
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let summing =
            Residual { branch_multiplier: half * residual.branch_multiplier, stream_multiplier: half, ..residual };
        let beside = Branch {
            input: BranchInput::Shared,
            block: Box::new(|x_btc: Recomputable<3>| BlockOutput::Computed(altup.laurel(x_btc.tensor))),
            after: None,
            multiplier: 1.0,
            key: None,
        };
        let y_btc = summing.step(altup.active(&predicted_btf), [attention, beside]);
        altup.correct(predicted_btf, residual.step(y_btc, [feed_forward]))
    }

    /// Attention as a branch of the residual stream.
    fn attention_branch<'a>(&'a self, input: AttentionInput<'a>, key: Option<DropoutKey>) -> Branch<'a> {
        Branch {
            input: norm_input(&self.input_layernorm, OffloadModule::AttnNorm).unwrap_or(BranchInput::Stream),
            block: Box::new(move |x_btc| self.attention.forward(x_btc, input)),
            after: self.norm_of_output(&self.post_self_attention_layernorm),
            multiplier: 1.0,
            key,
        }
    }

    /// The feed-forward block as a branch of the residual stream. `shortcut` gets the output of the
    /// experts beside it.
    fn feed_forward_branch<'a>(
        &'a self,
        input: MoeInput<'a>,
        key: Option<DropoutKey>,
        shortcut: &'a Cell<Option<Tensor<3>>>,
    ) -> Branch<'a> {
        let without_norm = if self.residual.blocks == BlockOrder::ParallelSharedNorm {
            BranchInput::Shared
        } else {
            BranchInput::Stream
        };
        Branch {
            input: norm_input(&self.pre_mlp_layernorm, OffloadModule::MlpNorm).unwrap_or(without_norm),
            block: Box::new(move |x_btc| {
                shortcut.set(self.shortcut.as_ref().map(|experts| experts.forward(x_btc.tensor.clone(), None, &input)));
                self.feed_forward.forward(x_btc, &input)
            }),
            after: self.norm_of_output(&self.post_mlp_layernorm),
            multiplier: 1.0,
            key,
        }
    }

    fn norm_of_output<'a>(&self, after: &'a Option<Norm>) -> Option<&'a Norm> {
        after.as_ref().filter(|_| self.residual.norms != NormPlacement::Sum)
    }

    fn residual<'a>(&self, regions: &'a Regions, after: &'a Option<Norm>) -> Residual<'a> {
        Residual {
            regions,
            dropout: self.dropout,
            branch_multiplier: self.residual.branch_multiplier,
            stream_multiplier: self.residual.stream_multiplier,
            adds_to_norm: self.residual.adds_to_norm,
            norm: after.as_ref().filter(|_| self.residual.norms == NormPlacement::Sum),
            block_dtype: self.dtype,
        }
    }
}
