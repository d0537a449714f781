//! A linear layer with its parameters.

use bridge_core::model::{
    Added, EightBitProducts, GradientScope, Initial, LinearAdaptation, LinearChange, LinearLayer, LinearParameter,
    ParameterRole, QuantizedValues, Scope, TensorPartition, WeightGradientStore,
};
use bridge_kernels::offload::in_unit;
use bridge_kernels::{
    FeedForwardUnit, LinearWeight, LowRankSum, Recomputable, activation_recomputable, glu_recomputable,
    linear_activation, linear_deferred, linear_glu, linear_low_rank, linear_of_activation, linear_of_glu,
    linear_weighted,
};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::recompute::recomputed;
use super::regions::Regions;

/// `x w^T + bias`, or this rank's slice of it.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Param<Tensor<2>>,
    /// The values of a weight that is held quantised.
    #[module(skip)]
    quantized: Option<QuantizedValues>,
    /// 8-bit products, if the layer has them.
    eight_bits: Option<EightBitProducts>,
    bias: Option<Param<Tensor<1>>>,
    /// Adaptation of the layer.
    adaptation: Option<LinearAdaptation>,
    /// Share of the bias that a product adds: less than one if the product is a term of a sum over
    /// ranks that each add theirs.
    bias_share: f64,
    /// Name of the weight outside this module.
    #[module(skip)]
    weight_name: String,
}

/// Configuration of a linear layer; sizes are those of the whole layer.
#[derive(Clone, Debug)]
pub(crate) struct LinearConfig {
    /// Size of the input.
    pub inputs: usize,
    /// Size of the output: rows of the weight.
    pub outputs: usize,
    /// With a bias.
    pub bias: bool,
    /// Sharding of the weight: its rows, for a column-parallel layer, or its columns, for a
    /// row-parallel one.
    pub cut: TensorPartition,
    /// Initial value of the weight.
    pub initial: Initial,
}

/// Output of a unit for the first product of a feed-forward block, `[b, t, ..]`.
pub(super) fn activated(x: Tensor<3>, unit: FeedForwardUnit) -> Recomputable<3> {
    match unit {
        FeedForwardUnit::Plain(kind) => activation_recomputable(x, kind),
        FeedForwardUnit::Gated(unit) => glu_recomputable(x, unit),
    }
}

/// FLOPs of a linear layer over `tokens`, forward and backward: two products backward for one
/// forward.
pub(crate) fn flops(tokens: f64, inputs: usize, outputs: usize) -> f64 {
    6.0 * tokens * inputs as f64 * outputs as f64
}

impl Linear {
    /// The layer called `name`. If it is row-parallel, the bias is added to the sum of all ranks'
    /// terms.
    pub fn new(config: &LinearConfig, scope: &Scope, name: &str) -> Self {
        Self::with_bias_of(config, GradientScope::ResidualStream, scope, name)
    }

    /// The row-parallel layer called `name` of which each of `ranks` computes a term of a sum, the
    /// bias included, of which each has a share.
    pub fn of_terms(config: &LinearConfig, scope: &Scope, name: &str, ranks: usize) -> Self {
        let layer = Self::with_bias_of(config, GradientScope::OwnPart, scope, name);
        Self { bias_share: 1.0 / ranks as f64, ..layer }
    }

    fn with_bias_of(config: &LinearConfig, meets: GradientScope, scope: &Scope, name: &str) -> Self {
        let scope = scope.child(name);
        let LinearConfig { inputs, outputs, cut, initial, .. } = *config;
        let bias_cut = if cut == TensorPartition::Columns { TensorPartition::Replicated(meets) } else { cut };
        let bias = || scope.parameter("bias", [outputs], bias_cut, Initial::Zeros, ParameterRole::Bias);
        let layer = LinearLayer { name: scope.path().to_owned(), inputs, outputs, cut };
        let LinearParameter { param, quantized, eight_bits } = scope.linear_weight(&layer, initial);
        Self {
            weight: param,
            quantized,
            eight_bits,
            bias: config.bias.then(bias),
            adaptation: scope.adapt(&layer),
            bias_share: 1.0,
            weight_name: scope.name("weight"),
        }
    }

    /// The product without communication, `[.., inputs]` -> `[.., outputs]`: of a whole layer, or
    /// of one whose outputs are cut.
    ///
    /// With a store, backward leaves the gradient of the weight there.
    pub fn forward<const D: usize>(
        &self,
        x: impl Into<Recomputable<D>>,
        store: Option<&WeightGradientStore>,
    ) -> Tensor<D> {
        let x = x.into();
        let change = self.change(&x.tensor);
        self.changed_product(x, self.bias(), None, change, store)
    }

    /// [`Self::forward`] and the activation of a feed-forward block, of which this is the first
    /// layer.
    pub fn forward_and_activate(
        &self,
        x: Recomputable<3>,
        unit: FeedForwardUnit,
        store: Option<&WeightGradientStore>,
    ) -> Recomputable<3> {
        let is_fused = store.is_none() && self.is_plain();
        match (is_fused, unit) {
            (true, FeedForwardUnit::Gated(unit)) => linear_glu(x.tensor, self.weight.val(), self.bias(), unit).into(),
            (true, FeedForwardUnit::Plain(kind)) => {
                linear_activation(x.tensor, self.weight.val(), self.bias(), kind).into()
            }
            (false, unit) => {
                let y = self.forward(x, store);
                in_unit(|| activated(y, unit))
            }
        }
    }

    /// The product of `unit(x)`, which is recomputed in backward: `[b, t, ..]` -> `[b, t,
    /// outputs]`.
    pub fn forward_of_unit(&self, x: Tensor<3>, unit: FeedForwardUnit) -> Tensor<3> {
        match (self.is_plain(), unit) {
            (true, FeedForwardUnit::Gated(unit)) => linear_of_glu(x, unit, self.weight.val(), self.bias()),
            (true, FeedForwardUnit::Plain(kind)) => linear_of_activation(x, kind, self.weight.val(), self.bias()),
            (false, _) => {
                recomputed(self.in_this_pass(), [x], move |linear, [x]| linear.forward(activated(x, unit), None))
            }
        }
    }

    /// The layer, bound to the current pass: for operations that run again in backward, possibly
    /// during another pass.
    pub fn in_this_pass(&self) -> Self {
        let adaptation = self.adaptation.as_ref().map(LinearAdaptation::in_this_pass);
        Self { adaptation, ..self.clone() }
    }

    /// [`Self::forward`] added to the residual stream `[b, t, outputs]`, as one operation.
    pub fn forward_and_add(&self, x: Recomputable<3>, stream_btc: Tensor<3>) -> Tensor<3> {
        let change = self.change(&x.tensor);
        self.changed_product(x, self.bias(), Some(stream_btc), change, None)
    }

    /// The product of a layer whose inputs are cut over tensor-parallel ranks: terms are summed,
    /// then the bias is added, once.
    pub fn forward_and_leave(
        &self,
        x: Recomputable<3>,
        regions: &Regions,
        store: Option<&WeightGradientStore>,
    ) -> Tensor<3> {
        if regions.tensor().size() == 1 {
            return self.forward(x, store);
        }
        let change = self.change(&x.tensor);
        with_bias(regions.leave(self.changed_product(x, None, None, change, store)), self.bias())
    }

    /// True if the layer is only weight and bias: no adapter changes the product, the weight is not
    /// quantized, and products are not of 8 bits.
    pub fn is_plain(&self) -> bool {
        self.adaptation.is_none() && self.quantized.is_none() && self.eight_bits.is_none()
    }

    /// Weight and bias of a layer that [is no more](Self::is_plain) than these.
    pub fn plain(&self) -> Option<(Tensor<2>, Option<Tensor<1>>)> {
        self.is_plain().then(|| (self.weight.val(), self.bias()))
    }

    fn bias(&self) -> Option<Tensor<1>> {
        let share = |bias: Tensor<1>| if self.bias_share == 1.0 { bias } else { bias * self.bias_share };
        self.bias.as_ref().map(|bias| share(bias.val()))
    }

    /// Weight for products.
    fn weight(&self) -> LinearWeight {
        match &self.quantized {
            Some(quantized) => quantized.weight(),
            None => self.weight.val().into(),
        }
    }

    /// Change of the product by the adapter.
    fn change<const D: usize>(&self, x: &Tensor<D>) -> Option<LinearChange> {
        self.adaptation.as_ref().map(|adaptation| adaptation.change(flat(x.clone()), self.weight()))
    }

    /// The product as the adapter changes it, with a bias and added to a residual stream, if they
    /// are given.
    fn changed_product<const D: usize>(
        &self,
        x: Recomputable<D>,
        bias: Option<Tensor<1>>,
        residual: Option<Tensor<D>>,
        change: Option<LinearChange>,
        store: Option<&WeightGradientStore>,
    ) -> Tensor<D> {
        let product = |x, bias, residual: Option<Tensor<D>>| match (residual, &self.eight_bits) {
            (Some(residual), Some(eight_bits)) => residual + eight_bits.linear(x, self.weight.val(), bias),
            (Some(residual), None) => linear_weighted(x, &self.weight(), bias, Some(residual)),
            (None, _) => self.product(x, bias, store),
        };
        let (added, factors_o) = match (change, store) {
            (None, _) => return product(x.tensor, bias, residual),
            (Some(LinearChange { added: Added::LowRank(branches), factors_o }), None) => {
                return linear_low_rank(x, self.weight(), bias, LowRankSum { branches, factors_o }, residual);
            }
            (Some(LinearChange { added, factors_o }), _) => (added, factors_o),
        };
        let x = x.tensor;
        let mut shape = x.dims();
        shape[D - 1] = self.weight.dims()[0];
        let added = added.values(flat(x.clone()), shape[D - 1]).reshape(shape);
        let Some(factors_o) = factors_o else { return product(x, bias, residual) + added };
        let y = with_bias((product(x, None, None) + added) * factors_o.unsqueeze(), bias);
        match residual {
            Some(residual) => residual + y,
            None => y,
        }
    }

    fn product<const D: usize>(
        &self,
        x: Tensor<D>,
        bias: Option<Tensor<1>>,
        store: Option<&WeightGradientStore>,
    ) -> Tensor<D> {
        if let Some(eight_bits) = &self.eight_bits {
            return eight_bits.linear(x, self.weight.val(), bias);
        }
        let Some(store) = store.filter(|_| self.quantized.is_none()).cloned() else {
            return linear_weighted(x, &self.weight(), bias, None);
        };
        let name = self.weight_name.clone();
        linear_deferred(x, self.weight.val(), bias, move |gradient| {
            store.defer(&name, move || {
                let gradient_oi = gradient();
                let count = gradient_oi.shape().num_elements();
                gradient_oi.reshape([count])
            });
        })
    }
}

fn with_bias<const D: usize>(y: Tensor<D>, bias: Option<Tensor<1>>) -> Tensor<D> {
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

/// `[.., i]` -> `[n, i]`.
fn flat<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let shape = x.dims();
    x.reshape([shape[..D - 1].iter().product(), shape[D - 1]])
}

/// Two matrices with a small size between them, beside a layer whose outputs are cut.
#[derive(Module, Debug)]
pub(crate) struct LowRank {
    down: Linear,
    up: Linear,
}

impl LowRank {
    /// The branch at `scope` beside a layer of these inputs and outputs, which are cut so.
    pub fn new([inputs, rank, outputs]: [usize; 3], cut: TensorPartition, initial: Initial, scope: &Scope) -> Self {
        let whole = TensorPartition::Replicated(GradientScope::OwnPart);
        let layer = |inputs, outputs, cut, name| {
            Linear::new(&LinearConfig { inputs, outputs, bias: false, cut, initial }, scope, name)
        };
        Self { down: layer(inputs, rank, whole, "down"), up: layer(rank, outputs, cut, "up") }
    }

    /// `[b, t, inputs]` in a tensor-parallel region -> `[b, t, this rank's outputs]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.up.forward(self.down.forward(x, None), None)
    }
}
