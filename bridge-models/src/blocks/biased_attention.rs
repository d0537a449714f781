//! Attention whose scores are made whole: with a bias for each head and distance, in both
//! directions or causal, and across sequences.
//!
//! Scores are `[b, h, t, s]` in memory, so that a bias can be added to them and has a gradient; the
//! tiled kernel of `attention` has neither.

use bridge_core::model::{Component, Initial, ParameterRole, Scope, TensorPartition, WeightGradientStore};
use bridge_kernels::{DropoutKey, MaxLogit, Recomputable, dropout, embedding};
use burn::module::{Module, Param};
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor, TensorData};

use super::context_parallel::Heads;
use super::init::InitialValues;
use super::key_values::KeyValues;
use super::linear::{Linear, LinearConfig};
use super::regions::Regions;
use super::residual::BlockOutput;
use crate::architecture::config::{DecoderConfig, RelativeConfig};

/// Keys that a query attends to besides earlier ones of its own sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// All keys, as in an encoder.
    Both,
    /// Only earlier keys, as in a decoder.
    Causal,
}

/// A learned number for each head and distance between a query and a key, shared by the layers of a
/// stack.
#[derive(Module, Debug)]
pub(crate) struct RelativeBias {
    weight: Param<Tensor<2>>,
    #[module(skip)]
    config: RelativeConfig,
    #[module(skip)]
    direction: Direction,
}

impl RelativeBias {
    /// The table at `scope`: a row a bucket of distances, a column a head.
    pub fn new(config: &DecoderConfig, relative: RelativeConfig, direction: Direction, scope: &Scope) -> Self {
        let scope = scope.component(Component::Attention).child("relative_attention_bias");
        let shape = [relative.num_buckets, config.num_attention_heads];
        let initial = InitialValues::new(config).weight;
        let weight = scope.parameter("weight", shape, TensorPartition::Columns, initial, ParameterRole::Weight);
        Self { weight, config: relative, direction }
    }

    /// The bias of the `t` last of `s` positions as queries and all of them as keys, `[h, t, s]` of
    /// this rank's heads.
    pub fn forward(&self, t: usize, s: usize) -> Tensor<3> {
        let bucket = |query: usize, key: usize| bucket(key as i64 - query as i64, self.direction, self.config) as i64;
        let buckets: Vec<i64> = (s - t..s).flat_map(|query| (0..s).map(move |key| bucket(query, key))).collect();
        let weight = self.weight.val();
        let device = weight.device().without_autodiff();
        let buckets_ts = Tensor::<2, Int>::from_data(TensorData::new(buckets, [t, s]), &device);
        embedding(weight, buckets_ts).permute([2, 0, 1])
    }
}

/// The bucket of a distance, from query to key: one each for small distances, then ever wider ones
/// (Raffel et al., arXiv:1910.10683, section 2.1). In float32, as in the models that were trained
/// with it: elsewhere some distances would be in the next bucket.
fn bucket(distance: i64, direction: Direction, config: RelativeConfig) -> usize {
    let (buckets, offset) = match direction {
        Direction::Causal => (config.num_buckets, 0),
        Direction::Both if distance > 0 => (config.num_buckets / 2, config.num_buckets / 2),
        Direction::Both => (config.num_buckets / 2, 0),
    };
    let length = match direction {
        Direction::Causal => (-distance).max(0),
        Direction::Both => distance.abs(),
    } as usize;
    let exact = buckets / 2;
    if length < exact {
        return offset + length;
    }
    let scale = (config.max_distance as f64 / exact as f64).ln() as f32;
    let wide = (length as f32 / exact as f32).ln() / scale * (buckets - exact) as f32;
    offset + (exact + wide as usize).min(buckets - 1)
}

/// Terms of the scores besides products, and the mask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scores {
    /// Added to them, `[h, t, s]` of this rank's heads.
    pub bias_hts: Option<Tensor<3>>,
    /// True where a key is not seen, broadcastable to `[b, h, t, s]`.
    pub hidden: Option<Tensor<4, Bool>>,
}

/// Settings of one attention.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Heads of this rank.
    num_heads: usize,
    head_size: usize,
    scale: f64,
    dropout: f64,
}

impl Settings {
    fn new(config: &DecoderConfig, scope: &Scope) -> Self {
        Self {
            num_heads: config.num_attention_heads / scope.place().tensor.size,
            head_size: config.kv_channels,
            scale: config.softmax_scale,
            dropout: config.attention_dropout,
        }
    }

    /// `[b, t, parts * h * d]` -> the parts, `[b, t, h, d]` each.
    fn heads<const N: usize>(&self, x_btf: &Tensor<3>) -> [Tensor<4>; N] {
        let ([b, t, _], width) = (x_btf.dims(), self.num_heads * self.head_size);
        let part = |index| x_btf.clone().narrow(2, index * width, width);
        std::array::from_fn(|index| part(index).reshape([b, t, self.num_heads, self.head_size]))
    }

    /// Attention of `heads`, whose keys may be those of another sequence: `[b, t, h * d]`. Scores
    /// are in float32 with any dtype.
    fn attend(&self, heads: Heads, input: &BiasedInput) -> Tensor<3> {
        let BiasedInput { scores, dropout_key, .. } = input;
        let Heads { q_bthd, k_btgd, v_btgd } = heads;
        let ([b, t, h, d], dtype) = (q_bthd.dims(), q_bthd.dtype());
        let (q, k) = (q_bthd.permute([0, 2, 1, 3]), k_btgd.permute([0, 2, 3, 1]));
        let mut weights_bhts = in_float32(q.matmul(k)) * self.scale;
        if let Some(bias_hts) = &scores.bias_hts {
            weights_bhts = weights_bhts + in_float32(bias_hts.clone()).unsqueeze();
        }
        if let Some(hidden) = &scores.hidden {
            let hidden = hidden.clone().expand(weights_bhts.dims());
            // A finite value, so that a row without any key does not become NaN.
            weights_bhts = weights_bhts.mask_fill(hidden, f32::MIN);
        }
        if let Some(max_logit) = input.max_logit {
            max_logit.record_max(weights_bhts.clone());
        }
        // Softmax is written out, because backends fuse Burn's softmax if there is no graph, and a
        // recomputed segment would round differently.
        let exponentials = (weights_bhts.clone() - weights_bhts.detach().max_dim(3)).exp();
        let sums = exponentials.clone().sum_dim(3);
        let mut weights_bhts = exponentials / sums;
        if let Some(key) = dropout_key.filter(|_| self.dropout > 0.0) {
            weights_bhts = dropout(weights_bhts, self.dropout, key);
        }
        let out = weights_bhts.cast(dtype).matmul(v_btgd.permute([0, 2, 1, 3]));
        out.permute([0, 2, 1, 3]).reshape([b, t, h * d])
    }
}

fn in_float32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F32 { x } else { x.cast(FloatDType::F32) }
}

/// Inputs of attention besides the residual stream.
pub(crate) struct BiasedInput<'a> {
    pub regions: &'a Regions,
    pub scores: Scores,
    /// Key of the dropout mask of the probabilities, of this rank's heads.
    pub dropout_key: Option<DropoutKey>,
    pub weight_gradients: Option<&'a WeightGradientStore>,
    /// Destination of the max logit, if it is recorded.
    pub max_logit: Option<&'a MaxLogit>,
}

/// Attention inside one sequence.
#[derive(Module, Debug)]
pub(crate) struct BiasedAttention {
    linear_qkv: Linear,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

impl BiasedAttention {
    /// The block at `scope`.
    pub fn new(config: &DecoderConfig, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, d) = (config.hidden_size, config.kv_channels);
        let groups = config.num_attention_heads;
        let cut = TensorPartition::KeyValueGroups { groups, head_sizes: [d, d], gates: false };
        Self {
            linear_qkv: linear(scope, "linear_qkv", [c, config.qkv_size()], cut, initial.weight),
            linear_proj: linear(scope, "linear_proj", [groups * d, c], TensorPartition::Columns, initial.output),
            settings: Settings::new(config, scope),
        }
    }

    /// The block's output, `[b, t, c]` -> the same. `state` has the keys and values of earlier
    /// tokens, in generation.
    pub fn forward<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        input: BiasedInput<'a>,
        state: Option<&mut KeyValues>,
    ) -> BlockOutput<'a> {
        let store = input.weight_gradients;
        let qkv_btf = self.linear_qkv.forward(input.regions.enter_recomputable(x_btc), store);
        let Settings { num_heads, head_size, .. } = self.settings;
        let [b, t, _] = qkv_btf.dims();
        // A head's rows of queries, keys and values are beside each other.
        let qkv = qkv_btf.reshape([b, t, num_heads, 3 * head_size]);
        let part = |index: usize| qkv.clone().narrow(3, index * head_size, head_size);
        let mut heads = Heads { q_bthd: part(0), k_btgd: part(1), v_btgd: part(2) };
        if let Some(state) = state {
            [heads.k_btgd, heads.v_btgd] = state.append([heads.k_btgd, heads.v_btgd]);
        }
        let x = self.settings.attend(heads, &input);
        BlockOutput::Product { x: x.into(), linear: &self.linear_proj, store, module: None }
    }
}

/// Attention of one sequence to another.
#[derive(Module, Debug)]
pub(crate) struct CrossAttention {
    linear_q: Linear,
    linear_kv: Linear,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

impl CrossAttention {
    /// The block at `scope`.
    pub fn new(config: &DecoderConfig, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, width) = (config.hidden_size, config.num_attention_heads * config.kv_channels);
        Self {
            linear_q: linear(scope, "linear_q", [c, width], TensorPartition::Rows, initial.weight),
            linear_kv: linear(scope, "linear_kv", [c, 2 * width], TensorPartition::Blocks(2), initial.weight),
            linear_proj: linear(scope, "linear_proj", [width, c], TensorPartition::Columns, initial.output),
            settings: Settings::new(config, scope),
        }
    }

    /// Keys and values of the other sequence, `[b, s, c]` -> `[b, s, h, d]` each.
    pub fn keys_and_values(
        &self,
        source_bsc: Tensor<3>,
        regions: &Regions,
        store: Option<&WeightGradientStore>,
    ) -> [Tensor<4>; 2] {
        self.settings.heads(&self.linear_kv.forward(regions.enter(source_bsc), store))
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        [k_btgd, v_btgd]: [Tensor<4>; 2],
        input: BiasedInput<'a>,
    ) -> BlockOutput<'a> {
        let store = input.weight_gradients;
        let [q_bthd] = self.settings.heads(&self.linear_q.forward(input.regions.enter_recomputable(x_btc), store));
        let x = self.settings.attend(Heads { q_bthd, k_btgd, v_btgd }, &input);
        BlockOutput::Product { x: x.into(), linear: &self.linear_proj, store, module: None }
    }
}

fn linear(scope: &Scope, name: &str, [inputs, outputs]: [usize; 2], cut: TensorPartition, initial: Initial) -> Linear {
    Linear::new(&LinearConfig { inputs, outputs, bias: false, cut, initial }, scope, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buckets of transformers' `T5Attention._relative_position_bucket`.
    #[test]
    fn buckets_are_those_of_t5() {
        let config = |num_buckets, max_distance| RelativeConfig { num_buckets, max_distance };
        let found = |distances: &[i64], direction, config| -> Vec<usize> {
            distances.iter().map(|distance| bucket(*distance, direction, config)).collect()
        };
        let distances = [-200, -128, -127, -64, -63, -32, -16, -15, -8, -7, -1, 0, 1, 7, 8, 16, 31, 64, 127, 500];
        assert_eq!(
            found(&distances, Direction::Both, config(32, 128)),
            [15, 15, 15, 14, 13, 12, 10, 9, 8, 7, 1, 0, 17, 23, 24, 26, 27, 30, 31, 31]
        );
        assert_eq!(
            found(&distances, Direction::Causal, config(32, 128)),
            [31, 31, 31, 26, 26, 21, 16, 15, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
