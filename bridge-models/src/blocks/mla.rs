//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values are
//! projected from one small latent vector a token, and a part of each key that is rotated is the
//! same for all heads. In generation only the latent vector and that part are kept.
//!
//! The projections into latent vectors are replicated over tensor-parallel ranks and work on the
//! tokens of the residual stream; those out of them are cut by heads.
//!
//! Further shape letters: `r` latent size, `n` and `p` elements of a head that are not and that are
//! rotated, `v` elements of a value.

use bridge_core::model::{
    Exchange, GradientScope, PassKind, Scope, SegmentCost, TensorPartition, WeightGradientStore, Workload,
};
use bridge_kernels::offload::{Module as OffloadModule, in_module};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{AttentionOptions, DropoutKey, KeyChoice, MaxLogitProbe, Recomputable, RotaryTable, apply_rotary};
use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};

use super::attention::{AttentionInput, context_exchanges, dropout, scores_bytes, seen_keys, sinks, statistics_bytes};
use super::context_parallel::{Heads, attend};
use super::indexer::{Indexer, Teacher, VisibleKeys, choice_of_layer};
use super::init::InitialValues;
use super::key_values::KeyValues;
use super::linear::{Linear, LinearConfig};
use super::norm::Norm;
use super::output_gate;
use super::query_scale;
use super::recompute::recomputed;
use super::regions::{Regions, enter_exchanges, leave_exchanges};
use super::residual::{BlockOutput, scaled};
use crate::architecture::config::{DecoderConfig, LatentConfig, NormConfig, QueryScaleConfig};

/// The dimension of a token's elements in `[b, t, c]`, and of a head's in `[b, t, h, d]`.
const FEATURES: usize = 2;
const HEAD: usize = 3;

/// Projections into latent vectors and out of them, attention, output projection.
#[derive(Module, Debug)]
pub(crate) struct LatentAttention {
    /// Queries without a latent vector.
    linear_q_proj: Option<Linear>,
    linear_q_down_proj: Option<Linear>,
    q_layernorm: Option<Norm>,
    linear_q_up_proj: Option<Linear>,
    linear_kv_down_proj: Linear,
    kv_layernorm: Option<Norm>,
    linear_kv_up_proj: Linear,
    /// Choice of keys.
    indexer: Option<Indexer>,
    /// The sinks of this rank's heads, `[h]`.
    softmax_offset: Option<Param<Tensor<1>>>,
    /// Gates on the output.
    linear_gate: Option<Linear>,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
    /// True if tensors derived from latent vectors are recomputed in backward.
    #[module(skip)]
    recomputes: bool,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Heads of this rank.
    heads: usize,
    latent: usize,
    unrotated: usize,
    rotated: usize,
    value: usize,
    scale: f64,
    /// Factor on the latent vector of keys and values.
    multiplier: f64,
    window: Option<usize>,
    softcap: Option<f64>,
    dropout: f64,
    use_rope: bool,
    query_scale: Option<QueryScaleConfig>,
}

impl LatentAttention {
    /// Cost of the block in layer `index` (global).
    pub fn cost(config: &DecoderConfig, latent: &LatentConfig, index: usize, work: &Workload) -> SegmentCost {
        let (a, n, ranks) = (work.activation_bytes, work.tokens(), work.context_size as u64);
        let heads = (config.num_attention_heads / work.place.tensor.size) as u64;
        let scored = latent.qk_head_dim + latent.qk_pos_emb_head_dim;
        let of_heads = |size: usize| n * heads * size as u64;
        let [keys, values] = [scored, latent.v_head_dim].map(|size| of_heads(size) * a);
        let small = latent.q_lora_rank.unwrap_or(0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim;
        let latents = n * small as u64 * a;
        let stream = n * config.hidden_size as u64 * a;
        let row = config.hidden_size as u64 * work.collective_bytes;
        // Input of the query projection, latent vectors of keys and values, and the rotated
        // elements of keys.
        let q = latent.q_lora_rank.unwrap_or(config.hidden_size);
        let entered = [q, latent.kv_lora_rank, latent.qk_pos_emb_head_dim].into_iter();
        let of_gates = output_gate::cost(config, [heads as usize, latent.v_head_dim], work);
        let entered = entered.chain(config.output_gate.map(|_| config.hidden_size));
        let enter = entered.flat_map(|size| enter_exchanges(size as u64 * work.collective_bytes, work));
        // Queries, keys, values and the output.
        let gathered = if ranks > 1 { (keys + values) * ranks } else { 0 };
        let statistics = statistics_bytes(heads, work);
        let heads_of_all = 2 * (keys + values) + statistics + gathered;
        let is_recomputed = config.recomputed.mla_up_proj;
        let sent = [scored, latent.v_head_dim].map(|size| of_heads(size) * work.collective_bytes);
        // An indexer gathers the documents of tokens.
        let mut context = context_exchanges(
            sent,
            &Workload { documents: work.documents && config.chosen_keys(index).is_none(), ..*work },
        );
        if is_recomputed {
            let forward = context.iter().filter(|exchange| exchange.pass == PassKind::Forward);
            let again: Vec<_> = forward.map(|one| Exchange { pass: PassKind::Backward, ..*one }).collect();
            context.extend(again);
        }
        let window = config.window(index);
        let of_rank = |size: usize| heads as usize * size;
        let of_indexer = Indexer::cost(config, index, q, [heads as usize, scored], work);
        let layers = [
            [latent.kv_lora_rank, of_rank(latent.qk_head_dim + latent.v_head_dim)],
            [q, of_rank(scored)],
            [of_rank(latent.v_head_dim), config.hidden_size],
        ];
        let in_hand = layers.map(|layer| work.operands_in_hand(n, layer)).into_iter().max().unwrap_or(0);
        SegmentCost {
            flops: flops(config, latent, index, work) + of_gates.flops + of_indexer.flops,
            // The stream, which projections of queries and of keys and values read, latent vectors
            // before and after their norms, and the queries, keys and values made of them.
            kept: work.input_alone(n * config.hidden_size as u64)
                + work.input_besides(n * config.hidden_size as u64)
                + latents
                + work.input_alone(n * small as u64)
                + work.input_besides(of_heads(latent.v_head_dim))
                + of_gates.kept
                + of_indexer.kept
                + if is_recomputed { values } else { heads_of_all },
            modules: vec![
                (OffloadModule::QkvLinear.name(), stream + 2 * latents),
                (OffloadModule::CoreAttn.name(), if is_recomputed { 0 } else { heads_of_all - statistics }),
            ],
            unmoved: of_indexer.unmoved + if is_recomputed { 0 } else { statistics },
            brought_back: if is_recomputed { heads_of_all } else { 0 },
            recomputed_flops: if is_recomputed { recomputed_flops(config, latent, index, work) / 3.0 } else { 0.0 },
            backward: (keys + values) * (1 + ranks) + in_hand,
            deferred: 2 * stream + latents + 2 * keys + values,
            attention: scores_bytes([heads as usize; 2], [scored, latent.v_head_dim], window, work),
            exchanges: enter.chain(of_indexer.exchanges).chain(context).chain(leave_exchanges(row, work)).collect(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`, in layer `index` (global).
    pub fn new(config: &DecoderConfig, latent: &LatentConfig, index: usize, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, h) = (config.hidden_size, config.num_attention_heads);
        let (r, scored) = (latent.kv_lora_rank, latent.qk_head_dim + latent.qk_pos_emb_head_dim);
        let linear = |name, inputs, outputs, cut, bias| {
            let initial = if cut == TensorPartition::Columns { initial.output } else { initial.weight };
            Linear::new(&LinearConfig { inputs, outputs, bias, cut, initial }, scope, name)
        };
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let norm = |name, size| {
            let norm = NormConfig { epsilon: latent.norm_epsilon, ..config.norm };
            config.qk_layernorm.then(|| Norm::new(norm, size, scope, name))
        };
        let q = latent.q_lora_rank;
        Self {
            linear_q_proj: q.is_none().then(|| linear("linear_q_proj", c, h * scored, TensorPartition::Rows, false)),
            linear_q_down_proj: q.map(|q| linear("linear_q_down_proj", c, q, whole, config.qkv_bias)),
            q_layernorm: q.and_then(|q| norm("q_layernorm", q)),
            linear_q_up_proj: q.map(|q| linear("linear_q_up_proj", q, h * scored, TensorPartition::Rows, false)),
            linear_kv_down_proj: linear(
                "linear_kv_down_proj",
                c,
                r + latent.qk_pos_emb_head_dim,
                whole,
                config.qkv_bias,
            ),
            kv_layernorm: norm("kv_layernorm", r),
            linear_kv_up_proj: linear(
                "linear_kv_up_proj",
                r,
                h * (latent.qk_head_dim + latent.v_head_dim),
                TensorPartition::Rows,
                false,
            ),
            indexer: config.indexer_of(index).map(|indexer| Indexer::new(config, indexer, q.unwrap_or(c), scope)),
            softmax_offset: sinks(config, scope),
            linear_gate: output_gate::layer(config, latent.v_head_dim, scope),
            linear_proj: linear("linear_proj", h * latent.v_head_dim, c, TensorPartition::Columns, config.proj_bias),
            settings: Settings {
                heads: h / scope.place().tensor.size,
                latent: r,
                unrotated: latent.qk_head_dim,
                rotated: latent.qk_pos_emb_head_dim,
                value: latent.v_head_dim,
                scale: config.softmax_scale,
                multiplier: latent.kv_multiplier.unwrap_or(1.0),
                window: config.window(index),
                softcap: config.attention_softcap,
                dropout: config.attention_dropout,
                use_rope: !config.no_rope_layers.includes(index),
                query_scale: config.query_scale(index),
            },
            recomputes: config.recomputed.mla_up_proj,
        }
    }

    /// Generation state before the first token: latent vectors, and the rotated part of keys.
    pub fn new_state(&self) -> KeyValues {
        KeyValues::new(self.settings.window)
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let (regions, store) = (input.regions, input.weight_gradients);
        let Settings { heads: h, latent: r, rotated: p, value: v, .. } = self.settings;
        let rotary = input.rotary.as_ref().filter(|_| self.settings.use_rope);
        let rotary = rotary.map(|tables| (tables.for_window(self.settings.window).clone(), input.positions.clone()));
        let of_linear = OffloadModule::QkvLinear;
        let gates_btf = self.linear_gate.as_ref().map(|layer| {
            let x_btc = regions.enter_recomputable(x_btc.clone());
            in_module(of_linear, || layer.forward(x_btc, store))
        });
        let down_btf = in_module(of_linear, || self.linear_kv_down_proj.forward(x_btc.clone(), store));
        let latent_btr = down_btf.clone().narrow(FEATURES, 0, r);
        let latent_btr = in_module(of_linear, || normed(&self.kv_layernorm, latent_btr));
        let latent_btr = regions.enter(scaled(latent_btr, self.settings.multiplier));
        let rotated_btp = regions.enter(down_btf.narrow(FEATURES, r, p));
        let stream_btc = self.indexer.as_ref().map(|_| x_btc.tensor.clone());
        let (queries, x_btf): (_, Recomputable<3>) =
            match (&self.linear_q_down_proj, &self.linear_q_up_proj, &self.linear_q_proj) {
                (Some(down), Some(up), _) => {
                    let normed = in_module(of_linear, || normed(&self.q_layernorm, down.forward(x_btc, store)));
                    (up, normed.into())
                }
                (_, _, Some(linear)) => (linear, x_btc),
                _ => unreachable!("queries come from the stream or from a latent vector"),
            };
        let mut index = stream_btc.as_ref().zip(self.indexer.as_ref()).map(|(x_btc, indexer)| {
            let rotary = rotary.as_ref().map(|(table, positions)| (table, positions));
            (indexer, indexer.heads(x_btc, &x_btf.tensor, rotary, regions))
        });
        let x_btf = regions.enter_recomputable(x_btf);
        let [b, t, _] = latent_btr.dims();
        let rotated_bt1p = rotate(rotated_btp.reshape([b, t, 1, p]), rotary.as_ref());
        let mut kept = [latent_btr.reshape([b, t, 1, r]), rotated_bt1p];
        let is_training = input.state.is_none();
        match (input.state, &mut index) {
            (Some(state), Some((_, heads))) => kept = heads.append_keys(state, kept),
            (Some(state), None) => kept = state.append(kept),
            (None, _) => {}
        }
        let [latent_bsr, k_bsp] = kept.map(|kept| {
            let [b, s, _, size] = kept.dims();
            kept.reshape([b, s, size])
        });
        let s = latent_bsr.dims()[1] * regions.context().size();
        let chosen = index.map(|(indexer, heads)| {
            let visible = VisibleKeys::new([t, s], self.settings.window, input.document_ids.clone(), regions);
            indexer.choose(heads, visible)
        });
        let context = AttentionContext {
            choice: choice_of_layer(chosen.as_ref(), input.choice, s, &latent_bsr),
            settings: self.settings,
            regions: regions.clone(),
            rotary,
            positions: input.positions.clone(),
            dropout: dropout(self.settings.dropout, input.dropout_key, regions),
            document_ids: input.document_ids,
            probe: input.max_logit.map(|max_logit| MaxLogitProbe { max_logit, first_query: 0 }),
            store: store.cloned(),
        };
        let values = &self.linear_kv_up_proj;
        let y_btf = if self.recomputes && is_training {
            let layers = (queries.in_this_pass(), values.in_this_pass(), self.softmax_offset.clone());
            recomputed(
                layers,
                [x_btf.tensor, latent_bsr, k_bsp],
                move |(queries, values, sinks), [x_btf, latent_bsr, k_bsp]| {
                    context.attend((queries, values, sinks), x_btf, [latent_bsr, k_bsp], |y_bthd, _| y_bthd)
                },
            )
        } else {
            let layers = (queries, values, &self.softmax_offset);
            context.attend(layers, x_btf, [latent_bsr, k_bsp], |y_bthd, heads| match &chosen {
                Some(chosen) => {
                    let Settings { scale, softcap, .. } = self.settings;
                    let (auxiliary, layer) = (input.auxiliary, input.layer);
                    chosen.with_loss(y_bthd, &Teacher { heads, scale, softcap, regions, auxiliary, layer })
                }
                None => y_bthd,
            })
        };
        let y_btf = match gates_btf {
            Some(gates_btf) => in_module(OffloadModule::CoreAttn, || {
                output_gate::gated(y_btf.reshape([b, t, h, v]), gates_btf).reshape([b, t, h * v])
            }),
            None => y_btf,
        };
        let (x, module) = (y_btf.reshape([b, t, h * v]).into(), Some(OffloadModule::AttnProj));
        BlockOutput::Product { x, linear: &self.linear_proj, store, module }
    }
}

/// Inputs of attention besides the layers that read latent vectors and their inputs.
struct AttentionContext {
    settings: Settings,
    regions: Regions,
    rotary: Option<(RotaryTable, Positions)>,
    positions: Positions,
    dropout: Option<(f64, DropoutKey)>,
    document_ids: Option<Tensor<2, Int>>,
    choice: Option<KeyChoice>,
    probe: Option<MaxLogitProbe>,
    store: Option<WeightGradientStore>,
}

impl AttentionContext {
    /// Attention from the inputs of queries, latent vectors and rotated elements of keys: `[b, t,
    /// ..]`, `[b, s, r]` and `[b, s, p]` -> `[b, t, h * v]`. The output of heads passes through
    /// `after`, with queries and keys.
    fn attend(
        &self,
        (queries, values, sinks): (&Linear, &Linear, &Option<Param<Tensor<1>>>),
        x_btf: impl Into<Recomputable<3>>,
        [latent_bsr, k_bsp]: [Tensor<3>; 2],
        after: impl FnOnce(Tensor<4>, [Tensor<4>; 2]) -> Tensor<4>,
    ) -> Tensor<3> {
        let Settings { heads: h, rotated: p, unrotated: n, value: v, scale, window, softcap, .. } = self.settings;
        let (store, x_btf) = (self.store.as_ref(), x_btf.into());
        let ([b, t, _], [_, s, _]) = (x_btf.tensor.dims(), latent_bsr.dims());
        let of_linear = OffloadModule::QkvLinear;
        let q_bthd: Tensor<4> = in_module(of_linear, || queries.forward(x_btf, store)).reshape([b, t, h, n + p]);
        let q_bthp = rotate(q_bthd.clone().narrow(HEAD, n, p), self.rotary.as_ref());
        let q_bthd = Tensor::cat(vec![q_bthd.narrow(HEAD, 0, n), q_bthp], HEAD);
        let q_bthd = query_scale::scaled(q_bthd, self.settings.query_scale, &self.positions);
        let up_bshf = in_module(of_linear, || values.forward(latent_bsr, store));
        let up_bshf: Tensor<4> = up_bshf.reshape([b, s, h, n + v]);
        let k_bshn = up_bshf.clone().narrow(HEAD, 0, n);
        let k_bshd = Tensor::cat(vec![k_bshn, k_bsp.reshape([b, s, 1, p]).expand([b, s, h, p])], HEAD);
        let scored = [q_bthd.clone(), k_bshd.clone()];
        let heads = Heads { q_bthd, k_btgd: k_bshd, v_btgd: up_bshf.narrow(HEAD, n, v) };
        let (dropout, document_ids, probe) = (self.dropout, self.document_ids.clone(), self.probe.clone());
        let (choice, sinks_h) = (self.choice.clone(), sinks.as_ref().map(Param::val));
        let options = AttentionOptions { scale, window, softcap, dropout, document_ids, choice, sinks_h, probe };
        let y_bthd = in_module(OffloadModule::CoreAttn, || attend(heads, options, &self.regions));
        after(y_bthd, scored).reshape([b, t, h * v])
    }
}

/// FLOPs of the block over all ranks; see the same of grouped heads.
fn flops(config: &DecoderConfig, latent: &LatentConfig, index: usize, work: &Workload) -> f64 {
    let down = latent.q_lora_rank.unwrap_or(0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim;
    let out = config.num_attention_heads * latent.v_head_dim;
    6.0 * (config.hidden_size * (down + out)) as f64 * work.all_tokens() + recomputed_flops(config, latent, index, work)
}

/// FLOPs that recompute of `mla_up_proj` repeats: projections out of latent vectors, and attention.
fn recomputed_flops(config: &DecoderConfig, latent: &LatentConfig, index: usize, work: &Workload) -> f64 {
    let tokens = work.all_tokens();
    let size = |value: usize| value as f64;
    let h = size(config.num_attention_heads);
    let (r, p, v) = (size(latent.kv_lora_rank), size(latent.qk_pos_emb_head_dim), size(latent.v_head_dim));
    let scored = size(latent.qk_head_dim) + p;
    let queries = size(latent.q_lora_rank.unwrap_or(config.hidden_size)) * h * scored;
    let projections = queries + r * h * (size(latent.qk_head_dim) + v);
    6.0 * projections * tokens + 3.0 * h * (scored + v) * seen_keys(config, index, work)
}

fn normed(norm: &Option<Norm>, x_btr: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x_btr),
        None => x_btr,
    }
}

fn rotate(x_bthp: Tensor<4>, rotary: Option<&(RotaryTable, Positions)>) -> Tensor<4> {
    match rotary {
        Some((table, positions)) => apply_rotary(x_bthp, table, positions),
        None => x_bthp,
    }
}
