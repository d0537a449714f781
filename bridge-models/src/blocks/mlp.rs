//! The feed-forward block, plain or gated.

use bridge_core::config::Activation;
use bridge_core::model::{Scope, SegmentCost, TensorPartition, WeightGradientStore, Workload};
use bridge_kernels::offload::{Module as OffloadModule, in_module, in_modules, in_unit};
use bridge_kernels::{
    DropoutKey, FeedForwardUnit, GroupedLinear, GroupedMlp, Recomputable, dropout, glu_recomputable, grouped_mlp,
};
use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{FloatDType, Tensor};

use super::init::InitialValues;
use super::linear::{Linear, LinearConfig, LowRank, activated, flops};
use super::regions::{Regions, enter_exchanges, leave_exchanges, total_exchanges};
use super::residual::BlockOutput;
use super::xielu::Xielu;
use crate::architecture::config::DecoderConfig;

/// An expert's first layer and non-linearity.
const EXPERT: [OffloadModule; 2] = [OffloadModule::ExpertFc1, OffloadModule::MoeAct];

/// Two linear layers with a non-linearity between them. The first layer of a gated unit has the
/// gate's rows, followed by the rows of the values.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    linear_fc1: Linear,
    linear_fc2: Linear,
    /// The non-linearity, if it has parameters.
    activation: Option<Xielu>,
    /// The non-linearity without parameters.
    #[module(skip)]
    unit: Option<FeedForwardUnit>,
    /// Factor on the gate, before the activation.
    gate_multiplier: f64,
    /// Number of standard deviations above the mean up to which gates are set to zero.
    cutoff: Option<f64>,
}

/// The two inner tensors of a feed-forward block of width `f` on a rank, over `rows` rows, in
/// bytes; their gradients are as large.
pub(crate) fn inner_bytes(config: &DecoderConfig, rows: u64, f: usize, work: &Workload) -> u64 {
    rows * ((config.fc1_blocks() + 1) * f) as u64 * work.activation_bytes
}

/// Bytes that backward keeps of the two, of which the second is the input of a linear layer.
pub(crate) fn kept_inner_bytes(config: &DecoderConfig, rows: u64, f: usize, work: &Workload) -> u64 {
    inner_bytes(config, rows, f, work) - unit_bytes(rows, f, work) + work.input_alone(rows * f as u64)
}

/// Bytes of 8-bit operands that the backward of a block of width `f` on a rank uses; `c` elements a
/// token are read and written.
pub(crate) fn block_operands(config: &DecoderConfig, rows: u64, [c, f]: [usize; 2], work: &Workload) -> u64 {
    let first = work.operands_in_hand(rows, [c, config.fc1_blocks() * f]);
    first.max(work.operands_in_hand(rows, [f, c]))
}

/// Bytes of the second inner tensor: the output of the unit.
pub(crate) fn unit_bytes(rows: u64, f: usize, work: &Workload) -> u64 {
    rows * f as u64 * work.activation_bytes
}

/// FLOPs of a feed-forward block of width `f`, over all ranks and `tokens`.
pub(crate) fn block_flops(config: &DecoderConfig, tokens: f64, f: usize) -> f64 {
    flops(tokens, config.hidden_size, (config.fc1_blocks() + 1) * f)
}

impl Mlp {
    /// Cost of a dense block of width `f` over all ranks.
    pub fn cost(config: &DecoderConfig, f: usize, work: &Workload) -> SegmentCost {
        let c = config.hidden_size as u64;
        let (rows, width) = (work.tokens(), f / work.place.tensor.size);
        let inside = inner_bytes(config, rows, width, work);
        let stream = work.tokens() * c * work.activation_bytes;
        let row = c * work.collective_bytes;
        SegmentCost {
            flops: block_flops(config, work.all_tokens(), f),
            kept: work.input_alone(rows * c) + kept_inner_bytes(config, rows, width, work),
            backward: inside + block_operands(config, rows, [config.hidden_size, width], work),
            deferred: 2 * stream + inside,
            exchanges: [enter_exchanges(row, work), leave_exchanges(row, work)].concat(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`, of width `f` over all ranks.
    pub fn new(config: &DecoderConfig, f: usize, scope: &Scope) -> Self {
        let gate_multiplier = config.hybrid.as_ref().map_or(1.0, |hybrid| hybrid.factors.mlp_gate);
        Self { gate_multiplier, ..Self::with_second(config, config.hidden_size, f, scope, Linear::new) }
    }

    /// The block of which the SiLU of a gate is at most `limit`, and the linear half within it on
    /// both sides. SiLU rises where it is positive: the gate is bounded instead.
    pub fn limited(mut self, limit: Option<f64>) -> Self {
        if let (Some(FeedForwardUnit::Gated(unit)), Some(limit)) = (&mut self.unit, limit) {
            (unit.clamp, unit.gate_clamp) = (Some(limit), Some(inverse_silu(limit)));
        }
        self
    }

    /// The block with gates set to zero up to `cutoff` standard deviations above their mean.
    pub fn with_sparse_gates(self, cutoff: Option<f64>) -> Self {
        Self { cutoff, ..self }
    }

    /// Cost of setting gates of a block of width `f` to zero: gates in float32, their squares, and
    /// the unit's input.
    pub fn cost_of_sparse_gates(f: usize, work: &Workload) -> SegmentCost {
        let gates = work.tokens() * (f / work.place.tensor.size) as u64;
        let bytes = gates * (2 * 4 + 2 * work.activation_bytes);
        SegmentCost { kept: bytes, unmoved: bytes, exchanges: total_exchanges(2, work), ..SegmentCost::default() }
    }

    /// The block that reads and writes `c` elements a token, and of which each of `ranks` computes
    /// a term of a sum ([`Self::forward_term`]).
    pub fn of_terms(config: &DecoderConfig, c: usize, f: usize, scope: &Scope, ranks: usize) -> Self {
        Self::with_second(config, c, f, scope, |config, scope, name| Linear::of_terms(config, scope, name, ranks))
    }

    fn with_second(
        config: &DecoderConfig,
        c: usize,
        f: usize,
        scope: &Scope,
        second: impl FnOnce(&LinearConfig, &Scope, &str) -> Linear,
    ) -> Self {
        let initial = InitialValues::new(config);
        let (blocks, bias) = (config.fc1_blocks(), config.mlp_bias);
        let linear_fc1 = LinearConfig {
            inputs: c,
            outputs: blocks * f,
            bias,
            cut: TensorPartition::Blocks(blocks),
            initial: initial.weight,
        };
        let linear_fc2 =
            LinearConfig { inputs: f, outputs: c, bias, cut: TensorPartition::Columns, initial: initial.output };
        Self {
            linear_fc1: Linear::new(&linear_fc1, scope, "linear_fc1"),
            linear_fc2: second(&linear_fc2, scope, "linear_fc2"),
            activation: (config.activation == Activation::Xielu).then(|| Xielu::new(scope)),
            unit: config.feed_forward_unit(),
            gate_multiplier: 1.0,
            cutoff: None,
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        regions: &Regions,
        store: Option<&'a WeightGradientStore>,
    ) -> BlockOutput<'a> {
        let x_btc = regions.enter_recomputable(x_btc);
        let h_btf = match (self.cutoff, self.unit) {
            (Some(cutoff), Some(FeedForwardUnit::Gated(unit))) => {
                let x_btf = self.linear_fc1.forward(x_btc, store);
                in_unit(|| glu_recomputable(with_sparse_gates(x_btf, cutoff, regions), unit))
            }
            (_, _) => self.hidden(x_btc, store),
        };
        BlockOutput::Product { x: h_btf, linear: &self.linear_fc2, store, module: None }
    }

    /// [`Self::forward`] with a branch beside the first layer.
    pub fn forward_with_branch<'a>(&'a self, x_btc: Tensor<3>, branch: &LowRank, regions: &Regions) -> BlockOutput<'a> {
        let x_btc = regions.enter(x_btc);
        let h_btf = self.linear_fc1.forward(x_btc.clone(), None) + branch.forward(x_btc);
        let x = activated(h_btf, self.fixed_unit());
        BlockOutput::Product { x, linear: &self.linear_fc2, store: None, module: None }
    }

    /// [`Self::forward`] with dropout at `rate` of the inner activations, of which each rank has
    /// its own: the key is the rank's.
    pub fn forward_with_dropout<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        regions: &Regions,
        store: Option<&'a WeightGradientStore>,
        rate: f64,
        key: Option<DropoutKey>,
    ) -> BlockOutput<'a> {
        let h_btf = self.hidden(regions.enter_recomputable(x_btc), store);
        let h_btf = match key.filter(|_| rate > 0.0) {
            Some(key) => dropout(h_btf.tensor, rate, key).into(),
            None => h_btf,
        };
        BlockOutput::Product { x: h_btf, linear: &self.linear_fc2, store, module: None }
    }

    /// [`Self::forward_term`] that recomputes the output of the non-linearity in backward instead
    /// of keeping it.
    pub fn forward_term_recomputing(&self, x_nc: Tensor<2>) -> Tensor<2> {
        let [n, c] = x_nc.dims();
        let before = in_module(OffloadModule::ExpertFc1, || self.linear_fc1.forward(x_nc.reshape([1, n, c]), None));
        self.linear_fc2.forward_of_unit(before, self.fixed_unit()).reshape([n, c])
    }

    /// The block, bound to the current pass: for operations that run again in backward.
    pub fn in_this_pass(&self) -> Self {
        let (linear_fc1, linear_fc2) = (self.linear_fc1.in_this_pass(), self.linear_fc2.in_this_pass());
        Self { linear_fc1, linear_fc2, ..self.clone() }
    }

    /// This rank's term of a sum over the tensor-parallel ranks, without communication; with one
    /// such rank, the whole.
    ///
    /// `[n, c]` -> `[n, c]`. The block is one [of terms](Self::of_terms).
    pub fn forward_term(&self, x_nc: Tensor<2>) -> Tensor<2> {
        self.term(x_nc, |x| self.hidden(x, None))
    }

    /// [`Self::forward_term`] of a block that is an expert.
    pub fn forward_expert(&self, x_nc: Tensor<2>) -> Tensor<2> {
        self.term(x_nc, |x| in_modules(EXPERT, || self.hidden(x, None)))
    }

    fn term(&self, x_nc: Tensor<2>, hidden: impl FnOnce(Recomputable<3>) -> Recomputable<3>) -> Tensor<2> {
        let [n, c] = x_nc.dims();
        self.linear_fc2.forward(hidden(x_nc.reshape([1, n, c]).into()), None).reshape([n, c])
    }

    /// True if the layers are only weights and biases: no adapter changes them, and no weight is
    /// quantized.
    pub fn is_plain(&self) -> bool {
        [&self.linear_fc1, &self.linear_fc2].into_iter().all(Linear::is_plain)
    }

    /// [`Self::forward_term`] of several blocks as one operation: `[m, c]`, rows of the first block
    /// first and `counts` of each, -> the same. Panics if a block is not [plain](Self::is_plain).
    pub fn forward_terms(blocks: &[Self], x_mc: Tensor<2>, counts: &[usize]) -> Tensor<2> {
        let grouped = |layer: fn(&Self) -> &Linear| {
            let plain = |block| layer(block).plain().expect("the blocks are plain");
            let (weights_oi, biases_o): (Vec<_>, Vec<_>) = blocks.iter().map(plain).unzip();
            GroupedLinear { weights_oi, biases_o: biases_o.into_iter().flatten().collect() }
        };
        let (first, second) = (grouped(|block| &block.linear_fc1), grouped(|block| &block.linear_fc2));
        in_modules(EXPERT, || grouped_mlp(x_mc, counts, &GroupedMlp { first, unit: blocks[0].fixed_unit(), second }))
    }

    /// `[b, t, c]` -> `[b, t, f]`, of this rank's columns.
    fn hidden(&self, x_btc: Recomputable<3>, store: Option<&WeightGradientStore>) -> Recomputable<3> {
        if let Some(xielu) = &self.activation {
            let x_btf = self.linear_fc1.forward(x_btc, store);
            return in_unit(|| xielu.forward(x_btf));
        }
        match self.fixed_unit() {
            FeedForwardUnit::Gated(unit) if self.gate_multiplier != 1.0 => {
                glu_recomputable(with_gate_scaled(self.linear_fc1.forward(x_btc, store), self.gate_multiplier), unit)
            }
            unit => self.linear_fc1.forward_and_activate(x_btc, unit, store),
        }
    }

    /// The non-linearity of a block whose non-linearity has no parameters.
    fn fixed_unit(&self) -> FeedForwardUnit {
        self.unit.expect("the configuration has checked that experts have no unit with parameters")
    }
}

/// The first product of a gated unit with a factor on the gate, its first half: `[b, t, 2 f]` ->
/// the same.
fn with_gate_scaled(x: Tensor<3>, factor: f64) -> Tensor<3> {
    let [_, _, columns] = x.dims();
    let half = |factor: f64| Tensor::<1>::full([columns / 2], factor, (&x.device(), x.dtype()));
    let factors = Tensor::cat(vec![half(factor), half(1.0)], 0);
    x * factors.unsqueeze()
}

/// The first product of a gated unit with `relu(gate - mean - cutoff * deviation)` in place of the
/// gate, its first half: `[b, t, 2 f]` -> the same. Mean and deviation are over all ranks.
fn with_sparse_gates(x_btf: Tensor<3>, cutoff: f64, regions: &Regions) -> Tensor<3> {
    let (dtype, f) = (FloatDType::from(x_btf.dtype()), x_btf.dims()[2] / 2);
    let gates = x_btf.clone().narrow(2, 0, f).cast(FloatDType::F32);
    let ranks = regions.tensor().size();
    let moments = [gates.clone(), gates.clone().powi_scalar(2)].map(|x| x.sum_dim(2) / (f * ranks) as f64);
    let moments = Tensor::cat(moments.to_vec(), 2);
    let moments = if ranks == 1 { moments } else { regions.total(moments) };
    let (mean, square) = (moments.clone().narrow(2, 0, 1), moments.narrow(2, 1, 1));
    let variance = (square - mean.clone().powi_scalar(2)).clamp_min(LEAST_VARIANCE);
    let gates = relu(gates - (mean + variance.sqrt() * cutoff));
    Tensor::cat(vec![gates.cast(dtype), x_btf.narrow(2, f, f)], 2)
}

/// Variance of equal gates, whose deviation would have no gradient.
const LEAST_VARIANCE: f64 = 1e-20;

/// The number whose SiLU is `y`, above 0, by bisection: `x - silu(x)` is between 0 and 0.28 there.
fn inverse_silu(y: f64) -> f64 {
    let (mut low, mut high) = (y, y + 0.28);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        let is_below = middle / (1.0 + (-middle).exp()) < y;
        (low, high) = if is_below { (middle, high) } else { (low, middle) };
    }
    high
}

#[cfg(test)]
mod tests {
    use super::inverse_silu;

    #[test]
    fn the_inverse_of_silu_is_one() {
        for y in [1e-6, 0.03, 0.4, 1.0, 2.5, 7.0, 16.0, 300.0] {
            let x = inverse_silu(y);
            assert!((x / (1.0 + (-x).exp()) / y - 1.0).abs() < 1e-9, "{y}: {x}");
        }
    }
}
