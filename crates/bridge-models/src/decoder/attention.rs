//! Self-attention with grouped key/value heads.

use bridge_core::model::{LayerCache, WeightGradientStore};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{AttentionOptions, DropoutKey, RotaryTable, apply_rotary};
use burn::module::Module;
use burn::tensor::{Int, Tensor};

use super::config::DecoderConfig;
use super::context_parallel::{Heads, attend};
use super::init::{Deviations, Initializer};
use super::linear::{Linear, LinearConfig};
use super::norm::Norm;
use super::regions::Regions;

/// Query, key and value projection, attention, output projection.
#[derive(Module, Debug)]
pub(super) struct SelfAttention {
    linear_qkv: Linear,
    q_layernorm: Option<Norm>,
    k_layernorm: Option<Norm>,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Key/value groups of this rank.
    groups: usize,
    queries_per_group: usize,
    head_size: usize,
    scale: f64,
    window: Option<usize>,
    softcap: Option<f64>,
    dropout: f64,
    use_rope: bool,
}

/// What attention reads besides the residual stream.
pub(super) struct AttentionInput<'a> {
    /// The ranks that share this attention.
    pub regions: &'a Regions,
    /// Rotary tables, for models that have them.
    pub rotary: Option<&'a RotaryTable>,
    /// Positions of the tokens.
    pub positions: &'a Positions,
    /// Document of each token, `[b, t]`.
    pub document_ids: Option<Tensor<2, Int>>,
    /// Key of the dropout mask of the probabilities.
    pub dropout_key: Option<DropoutKey>,
    /// Where the gradients of the projections are put off to.
    pub weight_gradients: Option<&'a WeightGradientStore>,
    /// Keys and values of earlier tokens, in generation.
    pub cache: Option<&'a mut LayerCache>,
}

impl SelfAttention {
    /// Layer `index` is global; `name` is the module's dotted name.
    pub fn new(config: &DecoderConfig, index: usize, name: &str, init: &Initializer) -> Self {
        let std = Deviations::new(config);
        let (c, d) = (config.hidden_size, config.kv_channels);
        let qk_norm = || config.qk_layernorm.then(|| Norm::new(config.norm, d, init));
        let linear_qkv = LinearConfig {
            name: format!("{name}.linear_qkv"),
            inputs: c,
            outputs: config.qkv_size(),
            bias: config.qkv_bias,
            std: std.weight,
        };
        let linear_proj = LinearConfig {
            name: format!("{name}.linear_proj"),
            inputs: config.num_attention_heads * d,
            outputs: c,
            bias: config.proj_bias,
            std: std.output,
        };
        Self {
            linear_qkv: Linear::new(&linear_qkv, init),
            q_layernorm: qk_norm(),
            k_layernorm: qk_norm(),
            linear_proj: Linear::new(&linear_proj, init),
            settings: Settings {
                groups: config.num_query_groups / init.tensor_size(),
                queries_per_group: config.num_attention_heads / config.num_query_groups,
                head_size: d,
                scale: config.softmax_scale,
                window: config.window_size.filter(|_| config.window_layers.includes(index)),
                softcap: config.attention_softcap,
                dropout: config.attention_dropout,
                use_rope: !config.no_rope_layers.includes(index),
            },
        }
    }

    /// `[b, t, c]` of the residual stream -> the same.
    pub fn forward(&self, x_btc: Tensor<3>, input: AttentionInput) -> Tensor<3> {
        let (regions, store) = (input.regions, input.weight_gradients);
        let x_btc = regions.enter(x_btc);
        let [b, t, _] = x_btc.dims();
        let Settings { groups, queries_per_group, head_size, .. } = self.settings;
        let (q_bthd, k_btgd, v_btgd) = self.project(x_btc, &input);
        let (k_btgd, v_btgd) = match input.cache {
            Some(cache) => cache.append(k_btgd, v_btgd),
            None => (k_btgd, v_btgd),
        };
        let options = AttentionOptions {
            scale: self.settings.scale,
            window: self.settings.window,
            softcap: self.settings.softcap,
            dropout: self.dropout(input.dropout_key, regions),
            document_ids: input.document_ids,
        };
        let y_bthd = attend(Heads { q_bthd, k_btgd, v_btgd }, options, regions);
        let y_btc = y_bthd.reshape([b, t, groups * queries_per_group * head_size]);
        self.linear_proj.forward_and_leave(y_btc, regions, store)
    }

    /// Rate and key of the dropout of probabilities. Ranks with different heads draw different masks, so that heads do: not those that one
    /// rank would have drawn.
    fn dropout(&self, key: Option<DropoutKey>, regions: &Regions) -> Option<(f64, DropoutKey)> {
        let key = key.filter(|_| self.settings.dropout > 0.0)?;
        let group = regions.tensor();
        let key = if group.size() == 1 { key } else { DropoutKey(key.0.derive(group.rank() as u64)) };
        Some((self.settings.dropout, key))
    }

    /// Query `[b, t, h, d]`, key and value `[b, t, g, d]`, normalized and rotated.
    fn project(&self, x_btc: Tensor<3>, input: &AttentionInput) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [b, t, _] = x_btc.dims();
        let Settings { groups: g, queries_per_group: r, head_size: d, .. } = self.settings;
        // Rows of the projection: for each group its queries, then its key, then its value.
        let qkv_btgrd: Tensor<5> = self.linear_qkv.forward(x_btc, input.weight_gradients).reshape([b, t, g, r + 2, d]);
        let mut q_bthd = qkv_btgrd.clone().narrow(3, 0, r).reshape([b, t, g * r, d]);
        let mut k_btgd = qkv_btgrd.clone().narrow(3, r, 1).reshape([b, t, g, d]);
        let v_btgd = qkv_btgrd.narrow(3, r + 1, 1).reshape([b, t, g, d]);
        if let Some(norm) = &self.q_layernorm {
            q_bthd = norm.forward(q_bthd);
        }
        if let Some(norm) = &self.k_layernorm {
            k_btgd = norm.forward(k_btgd);
        }
        if let Some(table) = input.rotary.filter(|_| self.settings.use_rope) {
            q_bthd = apply_rotary(q_bthd, table, input.positions);
            k_btgd = apply_rotary(k_btgd, table, input.positions);
        }
        (q_bthd, k_btgd, v_btgd)
    }
}
