//! Self-attention with grouped key/value heads.

mod cost;

use bridge_core::config::{Normalization, QkNormScope};
use std::sync::Arc;

use bridge_core::model::{Auxiliary, ParameterRole, Scope, TensorPartition, WeightGradientStore};
use bridge_kernels::offload::{Module as OffloadModule, in_module};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{
    AttentionOptions, DropoutKey, MaxLogit, MaxLogitProbe, PackedHeads, Recomputable, RotaryTable, apply_rotary,
    packed_attention, rms_norm,
};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Int, Tensor};
pub(super) use cost::{context_exchanges, scores_bytes, seen_keys, statistics_bytes};

use super::chunks::Chunks;
use super::compressed_attention::CompressedState;
use super::context_parallel::{Heads, attend};
use super::indexer::{Indexer, VisibleKeys, choice_of_layer};
use super::init::InitialValues;
use super::key_values::KeyValues;
use super::linear::{Linear, LinearConfig, LowRank};
use super::norm::Norm;
use super::output_gate;
use super::query_scale;
use super::recurrent_state::RecurrentState;
use super::regions::Regions;
use super::residual::{BlockOutput, scaled};
use super::rope::LayerTables;
use crate::architecture::config::{DecoderConfig, NormConfig, QueryScaleConfig};

/// Query, key and value projection, attention, output projection.
#[derive(Module, Debug)]
pub(crate) struct SelfAttention {
    /// Projection of queries, keys and values, unless layers below are in its place.
    linear_qkv: Option<Linear>,
    /// Projection of queries alone.
    linear_q_proj: Option<Linear>,
    /// Projection of keys, which are the values too; without it another layer's are used.
    linear_k_proj: Option<Linear>,
    q_layernorm: Option<Norm>,
    k_layernorm: Option<Norm>,
    /// The sinks of this rank's heads, `[h]`.
    softmax_offset: Option<Param<Tensor<1>>>,
    /// Gates on the output, where they have a layer of their own.
    linear_gate: Option<Linear>,
    /// Choice of keys.
    indexer: Option<Indexer>,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// The heads of this rank.
    packed: PackedHeads,
    /// Size of a head of values.
    value_size: usize,
    value_scale: f64,
    has_other_values: bool,
    scale: f64,
    window: Option<usize>,
    chunks: Option<Chunks>,
    softcap: Option<f64>,
    dropout: f64,
    use_rope: bool,
    /// Epsilon of the weightless norm of queries and keys.
    l2_norm: Option<f64>,
    /// Epsilon of the weightless norm of values.
    value_norm: Option<f64>,
    /// Scope of the norms of queries and keys.
    norm_scope: QkNormScope,
    /// True if they are normalized after the rotation.
    norm_after_rope: bool,
    /// Query and key heads of all ranks.
    all_heads: [usize; 2],
    /// True if the projection also makes the gates on the output.
    fused_gates: bool,
    /// Limit of queries, keys and values on both sides.
    clip: Option<f64>,
    query_scale: Option<QueryScaleConfig>,
}

/// The heads of one of `ranks`: whole groups, or of one group a part of the query heads with the
/// key/value head that they use.
fn heads_of_a_rank(config: &DecoderConfig, ranks: usize) -> PackedHeads {
    let groups = (config.num_query_groups / ranks).max(1);
    let queries = config.num_attention_heads / ranks;
    PackedHeads { groups, queries_per_group: queries / groups, head_size: config.kv_channels }
}

/// Inputs of attention besides the residual stream.
pub(crate) struct AttentionInput<'a> {
    /// The ranks that share this attention.
    pub regions: &'a Regions,
    /// Rotary tables, for models that have them.
    pub rotary: Option<LayerTables>,
    /// Positions of the tokens.
    pub positions: &'a Positions,
    /// Document of each token, `[b, t]`.
    pub document_ids: Option<Tensor<2, Int>>,
    /// Key of the dropout mask of the probabilities.
    pub dropout_key: Option<DropoutKey>,
    /// Store for the deferred gradients of the projections.
    pub weight_gradients: Option<&'a WeightGradientStore>,
    /// Keys and values that several layers use.
    pub shared: SharedKeyValues<'a>,
    /// Choice of keys that several layers use, as numbers.
    pub choice: Option<&'a mut Option<Tensor<3>>>,
    /// Keys and values of earlier tokens, in generation.
    pub state: Option<&'a mut KeyValues>,
    /// State of compressed attention after earlier tokens, in generation.
    pub compressed: Option<&'a mut CompressedState>,
    /// State of a recurrent block after earlier tokens, in generation.
    pub recurrent: Option<&'a mut RecurrentState>,
    /// Destination of the max logit, if it is recorded.
    pub max_logit: Option<Arc<MaxLogit>>,
    /// Global number of the layer.
    pub layer: usize,
    /// Scale and destination of losses of the layer's own.
    pub auxiliary: Auxiliary<'a>,
}

/// Keys and values of one layer that later layers use too: `[b, t, g, d]` and `[b, t, g, w]`, as
/// attention reads them.
#[allow(clippy::large_enum_variant)]
pub(crate) enum SharedKeyValues<'a> {
    /// No other layer uses the layer's own.
    None,
    /// The layer leaves its own here.
    Left(&'a mut Option<[Tensor<4>; 2]>),
    /// The layer uses those of an earlier one.
    Used([Tensor<4>; 2]),
}

/// The sinks of this rank's heads, if the model has them.
pub(super) fn sinks(config: &DecoderConfig, scope: &Scope) -> Option<Param<Tensor<1>>> {
    let (scope, initial) = (scope.child("core_attention"), InitialValues::new(config).weight);
    let heads = config.num_attention_heads;
    config
        .attention_sinks
        .then(|| scope.parameter("softmax_offset", [heads], TensorPartition::Rows, initial, ParameterRole::Bias))
}

/// Rate and key of the dropout of probabilities. Ranks with different heads draw different masks,
/// so that heads do: not those that one rank would have drawn.
pub(super) fn dropout(rate: f64, key: Option<DropoutKey>, regions: &Regions) -> Option<(f64, DropoutKey)> {
    regions.own_key(key.filter(|_| rate > 0.0)).map(|key| (rate, key))
}

impl SelfAttention {
    /// The block at `scope`, in layer `index` (global).
    pub fn new(config: &DecoderConfig, index: usize, scope: &Scope) -> Self {
        Self::reading(config, index, config.hidden_size, scope)
    }

    /// [`Self::new`] of a block that reads `inputs` elements a token.
    pub fn reading(config: &DecoderConfig, index: usize, inputs: usize, scope: &Scope) -> Self {
        let config = &*config.of_layer(index);
        let initial = InitialValues::new(config);
        let (c, d, w) = (config.hidden_size, config.kv_channels, config.value_size());
        let (heads, groups) = (config.num_attention_heads, config.num_query_groups);
        let normalizes = config.normalizes_heads(index);
        let qk_norm = |name, heads: usize, cut| {
            (config.qk_layernorm && normalizes).then(|| match config.qk_layernorm_scope {
                QkNormScope::Head => Norm::of_heads(config.norm, d, scope, name),
                QkNormScope::Projection => Norm::of_projection(config.norm, heads * d, cut, scope, name),
                QkNormScope::EachHead => {
                    let kind = match config.norm.kind {
                        Normalization::LayerNorm => Normalization::LayerNormNoBias,
                        kind => kind,
                    };
                    Norm::of_projection(NormConfig { kind, ..config.norm }, heads * d, cut, scope, name)
                }
            })
        };
        let projection = |outputs, cut, name| {
            let layer = LinearConfig { inputs, outputs, bias: config.qkv_bias, cut, initial: initial.weight };
            Linear::new(&layer, scope, name)
        };
        let of_groups = TensorPartition::KeyValueGroups { groups, head_sizes: [d, w], gates: config.has_fused_gates() };
        let of_keys = TensorPartition::KeyHeads { heads: groups };
        let (uses, has_one) = (config.keys_from(index).is_some(), config.has_keys_as_values(index));
        let is_fused = !uses && !has_one;
        let linear_proj = LinearConfig {
            inputs: heads * w,
            outputs: c,
            bias: config.proj_bias,
            cut: TensorPartition::Columns,
            initial: initial.output,
        };
        Self {
            linear_qkv: is_fused.then(|| projection(config.qkv_size(), of_groups, "linear_qkv")),
            linear_q_proj: (!is_fused).then(|| projection(heads * d, TensorPartition::Rows, "linear_q_proj")),
            linear_k_proj: (!is_fused && !uses).then(|| projection(groups * d, of_keys, "linear_k_proj")),
            q_layernorm: qk_norm("q_layernorm", heads, TensorPartition::Rows),
            k_layernorm: if uses { None } else { qk_norm("k_layernorm", groups, of_keys) },
            softmax_offset: sinks(config, scope),
            linear_gate: output_gate::layer(config, w, scope),
            indexer: config.indexer_of(index).map(|indexer| Indexer::new(config, indexer, inputs, scope)),
            linear_proj: Linear::new(&linear_proj, scope, "linear_proj"),
            settings: Settings {
                packed: heads_of_a_rank(config, scope.place().tensor.size),
                value_size: w,
                value_scale: config.value_scale,
                has_other_values: config.has_other_values(),
                scale: config.softmax_scale,
                window: config.window(index),
                chunks: Chunks::of_layer(config, index),
                softcap: config.attention_softcap,
                dropout: config.attention_dropout,
                use_rope: !config.no_rope_layers.includes(index),
                l2_norm: (config.qk_l2_norm && normalizes).then_some(config.norm.epsilon),
                value_norm: config.v_l2_norm.then_some(config.norm.epsilon),
                norm_scope: config.qk_layernorm_scope,
                norm_after_rope: config.qk_layernorm_after_rope,
                all_heads: [heads, groups],
                fused_gates: config.has_fused_gates(),
                clip: config.clip_qkv,
                query_scale: config.query_scale(index),
            },
        }
    }

    /// KV cache before the first token of a generation.
    pub fn new_state(&self) -> KeyValues {
        KeyValues::new(self.settings.window).in_chunks(self.settings.chunks.is_some())
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        self.forward_with_branches(x_btc, &[], input)
    }

    /// [`Self::forward`] with branches beside the projections of queries, of keys and of values,
    /// each for every head, or with none.
    pub fn forward_with_branches<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        branches: &[LowRank],
        input: AttentionInput<'a>,
    ) -> BlockOutput<'a> {
        let (regions, store) = (input.regions, input.weight_gradients);
        let rotary = input.rotary.as_ref().filter(|_| self.settings.use_rope);
        let rotary = rotary.map(|tables| (tables.for_window(self.settings.window), input.positions));
        let mut index = self.indexer.as_ref().map(|indexer| {
            let heads = indexer.heads(&x_btc.tensor, &x_btc.tensor, rotary, regions);
            (indexer, heads)
        });
        let stream_btc = x_btc.tensor.clone();
        let x_btc = regions.enter_recomputable(x_btc);
        let [b, t, _] = x_btc.tensor.dims();
        let mut options = AttentionOptions {
            scale: self.settings.scale,
            window: self.settings.window,
            softcap: self.settings.softcap,
            dropout: dropout(self.settings.dropout, input.dropout_key, regions),
            document_ids: input.document_ids.clone(),
            choice: None,
            sinks_h: self.softmax_offset.as_ref().map(|sinks_h| sinks_h.val()),
            probe: input.max_logit.map(|max_logit| MaxLogitProbe { max_logit, first_query: 0 }),
        };
        let mut gates_btf = self
            .linear_gate
            .as_ref()
            .map(|layer| in_module(OffloadModule::QkvLinear, || layer.forward(x_btc.clone(), store)));
        // In the projection's order: for each head its query, its key and its value.
        let heads = |y: Tensor<3>| -> Tensor<5> {
            y.reshape([b, t, self.settings.packed.groups, 1, self.settings.packed.head_size])
        };
        let added: Vec<_> = branches.iter().map(|branch| heads(branch.forward(x_btc.tensor.clone()))).collect();
        let has_norms = self.q_layernorm.is_some() || self.settings.l2_norm.is_some();
        let has_others = self.settings.query_scale.is_some() || self.settings.has_other_values;
        let comes_between = has_norms || self.settings.fused_gates || has_others || self.settings.value_norm.is_some();
        let chooses = index.is_some() || input.choice.is_some();
        let is_alone = matches!(input.shared, SharedKeyValues::None) && input.state.is_none() && !chooses;
        let is_plain = !comes_between && is_alone && regions.context().size() == 1;
        let device = x_btc.tensor.device().without_autodiff();
        let mut stay_in_chunks = |keys: usize| {
            if let Some(chunks) = self.settings.chunks {
                let documents = options.document_ids.take();
                options.document_ids = chunks.documents(documents, input.positions, [b, t, keys], &device);
            }
        };
        let fused = |linear_qkv: &Linear, x_btc: Recomputable<3>| -> Tensor<3> {
            let qkv_btf = linear_qkv.forward(x_btc, store);
            if added.is_empty() {
                return qkv_btf;
            }
            let shape = qkv_btf.dims();
            qkv_btf + Tensor::cat(added.clone(), 3).reshape(shape)
        };
        let y_bthd = match self.linear_qkv.as_ref().filter(|_| is_plain) {
            Some(linear_qkv) => {
                let packed = self.settings.packed;
                let qkv_btf = in_module(OffloadModule::QkvLinear, || self.limited(fused(linear_qkv, x_btc)));
                stay_in_chunks(t);
                in_module(OffloadModule::CoreAttn, || packed_attention(qkv_btf, packed, rotary, &options))
            }
            None => {
                let used = if let SharedKeyValues::Used(used) = &input.shared { Some(used.clone()) } else { None };
                let (mut heads, gates_bthd) = in_module(OffloadModule::QkvLinear, || {
                    let projected = match &self.linear_qkv {
                        Some(linear_qkv) => self.unpacked(fused(linear_qkv, x_btc)),
                        None => (self.projected_apart(x_btc, used, store), None),
                    };
                    self.heads(projected, rotary, input.positions, regions)
                });
                gates_btf = gates_bthd.map(|gates_bthd| gates_bthd.flatten(2, 3)).or(gates_btf);
                if let Some(state) = input.state.filter(|_| self.makes_keys()) {
                    let new = [heads.k_btgd, heads.v_btgd];
                    [heads.k_btgd, heads.v_btgd] = match &mut index {
                        Some((_, index)) => index.append_keys(state, new),
                        None => state.append(new),
                    };
                }
                let s = heads.k_btgd.dims()[1] * regions.context().size();
                let chosen = index.map(|(indexer, heads)| {
                    let documents = input.document_ids.clone();
                    indexer.choose(heads, VisibleKeys::new([t, s], self.settings.window, documents, regions))
                });
                options.choice = choice_of_layer(chosen.as_ref(), input.choice, s, &stream_btc);
                if let SharedKeyValues::Left(left) = input.shared {
                    *left = Some([heads.k_btgd.clone(), heads.v_btgd.clone()]);
                }
                stay_in_chunks(heads.k_btgd.dims()[1]);
                in_module(OffloadModule::CoreAttn, || attend(heads, options, regions))
            }
        };
        let y_bthd = match gates_btf {
            Some(gates_btf) => in_module(OffloadModule::CoreAttn, || output_gate::gated(y_bthd, gates_btf)),
            None => y_bthd,
        };
        let [_, _, h, d] = y_bthd.dims();
        let (x, module) = (y_bthd.reshape([b, t, h * d]).into(), Some(OffloadModule::AttnProj));
        BlockOutput::Product { x, linear: &self.linear_proj, store, module }
    }

    /// True if the layer has keys and values of its own.
    fn makes_keys(&self) -> bool {
        self.linear_qkv.is_some() || self.linear_k_proj.is_some()
    }

    /// Queries, keys and values of the fused projection, and gates of the same projection.
    fn unpacked(&self, qkv_btf: Tensor<3>) -> ([Tensor<4>; 3], Option<Tensor<4>>) {
        let Settings { packed, value_size, fused_gates, .. } = self.settings;
        if !fused_gates {
            return (packed.unpack_with_values(qkv_btf, value_size), None);
        }
        let [q_bthd, gates_bthd, k_btgd, v_btgd] = packed.unpack_with_gates(qkv_btf);
        ([q_bthd, k_btgd, v_btgd], Some(gates_bthd))
    }

    /// Queries, and keys that are the values too, unless those of another layer are `used`.
    fn projected_apart(
        &self,
        x_btc: Recomputable<3>,
        used: Option<[Tensor<4>; 2]>,
        store: Option<&WeightGradientStore>,
    ) -> [Tensor<4>; 3] {
        let d = self.settings.packed.head_size;
        let of = |linear: &Linear| {
            let y_btf = linear.forward(x_btc.clone(), store);
            let [b, t, f] = y_btf.dims();
            y_btf.reshape([b, t, f / d, d])
        };
        let q_bthd = of(self.linear_q_proj.as_ref().expect("a layer without a fused projection has one of queries"));
        let [k_btgd, v_btgd] = used.unwrap_or_else(|| {
            let k_btgd = of(self.linear_k_proj.as_ref().expect("keys are the layer's own or another's"));
            [k_btgd.clone(), k_btgd]
        });
        [q_bthd, k_btgd, v_btgd]
    }

    /// Queries, keys and values, normalized and rotated, and the gates of the same projection.
    fn heads(
        &self,
        ([q_bthd, k_btgd, v_btgd], gates_bthd): ([Tensor<4>; 3], Option<Tensor<4>>),
        rotary: Option<(&RotaryTable, &Positions)>,
        positions: &Positions,
        regions: &Regions,
    ) -> (Heads, Option<Tensor<4>>) {
        let rotated = |x_bthd: Tensor<4>| match rotary {
            Some((table, positions)) => apply_rotary(x_bthd, table, positions),
            None => x_bthd,
        };
        let alone = |x_bthd, norm| match self.settings.norm_after_rope {
            false => rotated(self.limited(self.normalized(x_bthd, norm))),
            true => self.normalized(rotated(self.limited(x_bthd)), norm),
        };
        let (q_bthd, k_btgd, v_btgd) = match (&self.q_layernorm, &self.k_layernorm) {
            _ if !self.makes_keys() => (alone(q_bthd, &self.q_layernorm), k_btgd, v_btgd),
            (Some(of_queries), Some(of_keys)) if self.settings.norm_scope == QkNormScope::Projection => {
                let normalized = |[q_bthd, k_btgd]: [Tensor<4>; 2]| {
                    let parts = [(of_queries, q_bthd), (of_keys, k_btgd)];
                    normalized_over_ranks(parts, self.settings.all_heads, regions)
                };
                let heads = [q_bthd, k_btgd];
                let [q_bthd, k_btgd] = match self.settings.norm_after_rope {
                    false => normalized(heads).map(|x_bthd| rotated(self.limited(x_bthd))),
                    true => normalized(heads.map(|x_bthd| rotated(self.limited(x_bthd)))),
                };
                (q_bthd, k_btgd, self.values(v_btgd))
            }
            (of_queries, of_keys) => (alone(q_bthd, of_queries), alone(k_btgd, of_keys), self.values(v_btgd)),
        };
        let q_bthd = query_scale::scaled(q_bthd, self.settings.query_scale, positions);
        (Heads { q_bthd, k_btgd, v_btgd }, gates_bthd)
    }

    /// Values of the projection as attention reads them.
    fn values(&self, v_btgd: Tensor<4>) -> Tensor<4> {
        let v_btgd = scaled(self.limited(v_btgd), self.settings.value_scale);
        match self.settings.value_norm {
            Some(epsilon) => l2_normalized(v_btgd, epsilon),
            None => v_btgd,
        }
    }

    /// Values within the layer's limit on both sides.
    fn limited<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.settings.clip {
            Some(limit) => x.clamp(-limit, limit),
            None => x,
        }
    }

    /// Queries or keys, `[b, t, heads, d]`, by the norm of a head, if the layer has one.
    fn normalized(&self, x_bthd: Tensor<4>, norm: &Option<Norm>) -> Tensor<4> {
        match (norm, self.settings.l2_norm) {
            (Some(norm), _) if self.settings.norm_scope == QkNormScope::EachHead => norm.forward_each_head(x_bthd),
            (Some(norm), _) => norm.forward(x_bthd),
            (None, Some(epsilon)) => l2_normalized(x_bthd, epsilon),
            (None, None) => x_bthd,
        }
    }
}

/// Queries and keys, `[b, t, heads, d]`, each divided by the root mean square over all `heads` of
/// all ranks, and weighted.
fn normalized_over_ranks(parts: [(&Norm, Tensor<4>); 2], heads: [usize; 2], regions: &Regions) -> [Tensor<4>; 2] {
    let ranks = regions.tensor().size();
    if ranks == 1 {
        return parts.map(|(norm, x_bthd)| {
            let [b, t, h, d] = x_bthd.dims();
            norm.forward(x_bthd.reshape([b, t, h * d])).reshape([b, t, h, d])
        });
    }
    let mut places = heads.into_iter();
    let terms = parts.each_ref().map(|(_, x_bthd)| {
        let [b, t, own, d] = x_bthd.dims();
        let all = places.next().expect("queries and keys");
        let x_btf = x_bthd.clone().reshape([b, t, own * d]).cast(FloatDType::F32);
        // A head that several ranks hold is counted by each of them.
        let copies = own * ranks / all;
        (x_btf.clone() * x_btf).sum_dim(2) / (all * d * copies) as f64
    });
    let mean_squares_bt2 = regions.total(Tensor::cat(terms.to_vec(), 2));
    let mut index = 0;
    parts.map(|(norm, x_bthd)| {
        let mean_square_bt1 = mean_squares_bt2.clone().narrow(2, index, 1);
        index += 1;
        norm.forward_part(x_bthd, mean_square_bt1)
    })
}

/// Heads divided by their root mean square, `[b, t, h, d]` -> the same: an RMSNorm whose weights
/// are one and are not learned.
fn l2_normalized(x_bthd: Tensor<4>, epsilon: f64) -> Tensor<4> {
    let ones_d = Tensor::ones([x_bthd.dims()[3]], (&x_bthd.device(), x_bthd.dtype()));
    rms_norm(x_bthd, ones_d, epsilon)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn heads_are_divided_by_their_root_mean_square_and_gradients_follow() {
        let (shape, epsilon) = ([1, 3, 2, 5], 1e-2);
        let values: Vec<f32> = (0..30_u8).map(|i| (f32::from(i) * 0.7).sin()).collect();
        let x =
            Tensor::<4>::from_data(TensorData::new(values.clone(), shape), &Device::flex().autodiff()).require_grad();
        let weights: Vec<f32> = (0..30_u8).map(|i| (f32::from(i) * 0.3).cos()).collect();
        let y = l2_normalized(x.clone(), epsilon);
        let loss = (y.clone() * Tensor::from_data(TensorData::new(weights.clone(), shape), &x.device())).sum();
        let gradients: Vec<f32> = x.grad(&loss.backward()).unwrap().into_data().try_into_vec().unwrap();
        let plain = |values: &[f64]| -> Vec<f64> {
            let normed = values.chunks(5).flat_map(|head| {
                let mean = head.iter().map(|value| value * value).sum::<f64>() / 5.0;
                head.iter().map(move |value| value / (mean + epsilon).sqrt())
            });
            normed.collect()
        };
        let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let expected = plain(&exact);
        let found: Vec<f32> = y.into_data().try_into_vec().unwrap();
        assert!(found.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6));
        let sum = |values: &[f64]| plain(values).iter().zip(&weights).map(|(y, w)| y * f64::from(*w)).sum::<f64>();
        for (index, gradient) in gradients.iter().enumerate() {
            let at = |step: f64| {
                sum(&exact.iter().enumerate().map(|(i, x)| if i == index { x + step } else { *x }).collect::<Vec<_>>())
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((f64::from(*gradient) - slope).abs() < 1e-5, "{index}: {gradient} and {slope}");
        }
    }
}
