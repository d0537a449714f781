//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values are projected from one small latent vector a
//! token, and a part of each key that is rotated is the same for all heads. In generation only the latent vector and that part are kept.
//!
//! The projections into latent vectors are replicated over tensor-parallel ranks and work on the tokens of the residual stream; those out of
//! them are cut by heads.
//!
//! Further shape letters: `r` latent size, `n` and `p` elements of a head that are not and that are rotated, `v` elements of a value.

use bridge_core::model::{Cut, Meets, Scope, SegmentCost, Workload};
use bridge_kernels::attention::workspace_bytes;
use bridge_kernels::rotary::Positions;
use bridge_kernels::{AttentionOptions, Remakeable, RotaryTable, apply_rotary};
use burn::module::Module;
use burn::tensor::Tensor;

use super::attention::{AttentionInput, context_exchanges, dropout};
use super::context_parallel::{Heads, attend};
use super::init::InitialValues;
use super::key_values::KeyValues;
use super::linear::{Linear, LinearConfig};
use super::norm::Norm;
use super::regions::{enter_exchanges, leave_exchanges};
use super::residual::BlockOutput;
use crate::models::decoder::config::{DecoderConfig, LatentConfig, NormConfig};

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
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Of this rank.
    heads: usize,
    latent: usize,
    unrotated: usize,
    rotated: usize,
    value: usize,
    scale: f64,
    window: Option<usize>,
    softcap: Option<f64>,
    dropout: f64,
    use_rope: bool,
}

impl LatentAttention {
    /// What the block costs in layer `index` (global).
    pub fn cost(config: &DecoderConfig, latent: &LatentConfig, index: usize, work: &Workload) -> SegmentCost {
        const FLOAT32: u64 = 4;
        let (a, n, ranks) = (work.activation_bytes, work.tokens(), work.context_size as u64);
        let heads = (config.num_attention_heads / work.place.tensor.size) as u64;
        let scored = latent.qk_head_dim + latent.qk_pos_emb_head_dim;
        // Values are as wide as keys while attention works on them.
        let width = scored.max(latent.v_head_dim);
        let all = n * heads * width as u64 * a;
        let small = latent.q_lora_rank.unwrap_or(0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim;
        let latents = n * small as u64 * a;
        let stream = n * config.hidden_size as u64 * a;
        let row = config.hidden_size as u64 * work.collective_bytes;
        let small_row = small as u64 * work.collective_bytes;
        SegmentCost {
            flops: flops(config, latent, index, work),
            // The stream, latent vectors before and after their norms, queries, keys, values and the output.
            kept: stream + 2 * latents + 4 * all + n * heads * FLOAT32 + if ranks > 1 { 2 * all * ranks } else { 0 },
            backward: 2 * all + 2 * all * ranks,
            put_off: 2 * stream + latents + 3 * all,
            attention: workspace_bytes(work.seq_length / work.context_size, work.seq_length, width) as u64,
            exchanges: [
                enter_exchanges(small_row, work),
                context_exchanges(n * heads * width as u64 * work.collective_bytes, work),
                leave_exchanges(row, work),
            ]
            .concat(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`, in layer `index` (global).
    pub fn new(config: &DecoderConfig, latent: &LatentConfig, index: usize, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, h) = (config.hidden_size, config.num_attention_heads);
        let (r, scored) = (latent.kv_lora_rank, latent.qk_head_dim + latent.qk_pos_emb_head_dim);
        let linear = |name, inputs, outputs, cut, bias| {
            let initial = if cut == Cut::Columns { initial.output } else { initial.weight };
            Linear::new(&LinearConfig { inputs, outputs, bias, cut, initial }, scope, name)
        };
        let whole = Cut::Replicated(Meets::ResidualStream);
        let norm = |name, size| {
            let norm = NormConfig { epsilon: latent.norm_epsilon, ..config.norm };
            config.qk_layernorm.then(|| Norm::new(norm, size, scope, name))
        };
        let q = latent.q_lora_rank;
        Self {
            linear_q_proj: q.is_none().then(|| linear("linear_q_proj", c, h * scored, Cut::Rows, false)),
            linear_q_down_proj: q.map(|q| linear("linear_q_down_proj", c, q, whole, config.qkv_bias)),
            q_layernorm: q.and_then(|q| norm("q_layernorm", q)),
            linear_q_up_proj: q.map(|q| linear("linear_q_up_proj", q, h * scored, Cut::Rows, false)),
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
                Cut::Rows,
                false,
            ),
            linear_proj: linear("linear_proj", h * latent.v_head_dim, c, Cut::Columns, config.proj_bias),
            settings: Settings {
                heads: h / scope.place().tensor.size,
                latent: r,
                unrotated: latent.qk_head_dim,
                rotated: latent.qk_pos_emb_head_dim,
                value: latent.v_head_dim,
                scale: config.softmax_scale,
                window: config.window_size.filter(|_| config.window_layers.includes(index)),
                softcap: config.attention_softcap,
                dropout: config.attention_dropout,
                use_rope: !config.no_rope_layers.includes(index),
            },
        }
    }

    /// What the block remembers before the first token of a generation: latent vectors, and the rotated part of keys.
    pub fn new_state(&self) -> KeyValues {
        KeyValues::new(self.settings.window)
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Remakeable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let (regions, store) = (input.regions, input.weight_gradients);
        let Settings { heads: h, latent: r, rotated: p, unrotated: n, value: v, .. } = self.settings;
        let rotary = input.rotary.filter(|_| self.settings.use_rope);
        let rotary = rotary.map(|tables| (tables.of(self.settings.window), input.positions));
        let down_btf = self.linear_kv_down_proj.forward(x_btc.clone(), store);
        let latent_btr = down_btf.clone().narrow(FEATURES, 0, r);
        let latent_btr = regions.enter(normed(&self.kv_layernorm, latent_btr));
        let rotated_btp = regions.enter(down_btf.narrow(FEATURES, r, p));
        let q_btf = match (&self.linear_q_down_proj, &self.linear_q_up_proj, &self.linear_q_proj) {
            (Some(down), Some(up), _) => {
                let latent = normed(&self.q_layernorm, down.forward(x_btc, store));
                up.forward(regions.enter(latent), store)
            }
            (_, _, Some(linear)) => linear.forward(regions.enter_remakeable(x_btc), store),
            _ => unreachable!("queries come from the stream or from a latent vector"),
        };
        let [b, t, _] = latent_btr.dims();
        let q_bthd: Tensor<4> = q_btf.reshape([b, t, h, n + p]);
        let q_bthp = rotate(q_bthd.clone().narrow(HEAD, n, p), rotary);
        let q_bthd = Tensor::cat(vec![q_bthd.narrow(HEAD, 0, n), q_bthp], HEAD);
        let mut kept = [latent_btr.reshape([b, t, 1, r]), rotate(rotated_btp.reshape([b, t, 1, p]), rotary)];
        if let Some(state) = input.state {
            kept = state.append(kept);
        }
        let [latent_bs1r, k_bs1p] = kept;
        let [_, s, ..] = latent_bs1r.dims();
        let up_bsf = self.linear_kv_up_proj.forward(latent_bs1r.reshape([b, s, r]), store);
        let up_bshf: Tensor<4> = up_bsf.reshape([b, s, h, n + v]);
        let k_bshn = up_bshf.clone().narrow(HEAD, 0, n);
        let k_bshd = Tensor::cat(vec![k_bshn, k_bs1p.expand([b, s, h, p])], HEAD);
        // Attention wants keys and values of one width; elements of zero change nothing.
        let width = (n + p).max(v);
        let heads = Heads {
            q_bthd: widened(q_bthd, width),
            k_btgd: widened(k_bshd, width),
            v_btgd: widened(up_bshf.narrow(HEAD, n, v), width),
        };
        let options = AttentionOptions {
            scale: self.settings.scale,
            window: self.settings.window,
            softcap: self.settings.softcap,
            dropout: dropout(self.settings.dropout, input.dropout_key, regions),
            document_ids: input.document_ids.clone(),
            sinks_h: None,
        };
        let y_bthv = attend(heads, options, regions).narrow(HEAD, 0, v);
        BlockOutput::Product { x: y_bthv.reshape([b, t, h * v]).into(), linear: &self.linear_proj, store }
    }
}

/// FLOPs of the block over all ranks; see the same of grouped heads.
fn flops(config: &DecoderConfig, latent: &LatentConfig, index: usize, work: &Workload) -> f64 {
    let (tokens, t) = (work.all_tokens(), work.seq_length as f64);
    let size = |value: usize| value as f64;
    let (c, h) = (size(config.hidden_size), size(config.num_attention_heads));
    let (r, p, v) = (size(latent.kv_lora_rank), size(latent.qk_pos_emb_head_dim), size(latent.v_head_dim));
    let scored = size(latent.qk_head_dim) + p;
    let queries = match latent.q_lora_rank {
        Some(q) => size(q) * (c + h * scored),
        None => c * h * scored,
    };
    let projections = queries + c * (r + p) + r * h * (size(latent.qk_head_dim) + v) + h * v * c;
    let whole = tokens * t;
    let seen = match config.window_size.filter(|_| config.window_layers.includes(index)) {
        Some(window) => ((window + 1) as f64 * tokens).min(whole),
        None => whole,
    };
    6.0 * projections * tokens + 3.0 * h * (scored + v) * seen
}

fn normed(norm: &Option<Norm>, x_btr: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x_btr),
        None => x_btr,
    }
}

fn rotate(x_bthp: Tensor<4>, rotary: Option<(&RotaryTable, &Positions)>) -> Tensor<4> {
    match rotary {
        Some((table, positions)) => apply_rotary(x_bthp, table, positions),
        None => x_bthp,
    }
}

/// Heads with zeros behind their elements, up to `width` of them.
fn widened(x_bthd: Tensor<4>, width: usize) -> Tensor<4> {
    let [b, t, h, d] = x_bthd.dims();
    if d == width {
        return x_bthd;
    }
    let zeros = Tensor::zeros([b, t, h, width - d], (&x_bthd.device(), x_bthd.dtype()));
    Tensor::cat(vec![x_bthd, zeros], HEAD)
}
