//! `model.fp8`: linear layers of transformer layers whose products are made of 8-bit floats, of any kind of model.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bridge_kernels::{Fp8Format, Fp8Pass, Fp8Rule, Fp8Scales, Fp8Scaling, OperandMaxima, Quantization, fp8_linear};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{
    Adapter, Cut, Declaration, Initial, LinearAdaptation, LinearLayer, Meets, ModelBuildError, ParameterRole,
    PassStream, Scope,
};
use crate::config::{Fp8Format as FormatName, Fp8Recipe, TransformerConfig};

/// Name, in a layer's scope, of the scales of its operands: input, weight, gradient.
pub(crate) const SCALES: &str = "fp8_scale";
/// Name of the largest magnitudes of the last steps, a row an operand, the newest first.
pub(crate) const HISTORY: &str = "fp8_amax_history";

/// How a linear layer computes in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EightBitLayer {
    /// How operands are cast.
    pub rule: Fp8Rule,
    /// Steps whose largest magnitudes are kept, for scales that come from them.
    pub history: usize,
}

/// Gives linear layers 8-bit products, and leaves all else to another adapter, if there is one.
#[derive(Debug)]
pub(super) struct EightBits {
    layer: EightBitLayer,
    /// Numbers of the layers that have them, of the model's own.
    layers: Range<usize>,
    /// Layers of the model; those behind them, of multi-token prediction, have 8-bit products too.
    count: usize,
    /// Whether a linear layer was declared that has them.
    is_met: AtomicBool,
    /// Whether the other adapter changes one of these layers.
    is_adapted: AtomicBool,
    other: Option<Arc<dyn Adapter>>,
}

impl EightBits {
    /// What a model section asks for; `None` without `model.fp8`.
    pub fn of(section: &TransformerConfig, other: Option<&Arc<dyn Adapter>>) -> Option<Self> {
        let format = section.fp8?;
        let scaling = match section.fp8_recipe? {
            Fp8Recipe::Tensorwise => Fp8Scaling::Current,
            Fp8Recipe::Delayed => Fp8Scaling::Delayed,
            Fp8Recipe::Mxfp8 => Fp8Scaling::Microscaling,
            Fp8Recipe::Blockwise => Fp8Scaling::Blockwise,
            Fp8Recipe::Custom => unreachable!("a recipe of scales from code is refused"),
        };
        let gradient = match format {
            FormatName::E4m3 => Fp8Format::E4M3,
            FormatName::Hybrid => Fp8Format::E5M2,
        };
        let rule = Fp8Rule { gradient, scaling, weight_gradient: section.fp8_wgrad };
        let count = section.num_layers;
        let layers = if section.first_last_layers_bf16 {
            section.num_layers_at_start_in_bf16..count.saturating_sub(section.num_layers_at_end_in_bf16)
        } else {
            0..count
        };
        let layer = EightBitLayer { rule, history: section.fp8_amax_history_len };
        Some(Self {
            layer,
            layers,
            count,
            is_met: AtomicBool::default(),
            is_adapted: AtomicBool::default(),
            other: other.cloned(),
        })
    }
}

impl Adapter for EightBits {
    fn trains(&self, declaration: &Declaration) -> bool {
        self.other.as_ref().is_none_or(|other| other.trains(declaration))
    }

    fn inner(&self) -> Option<&dyn Adapter> {
        self.other.as_deref()
    }

    fn eight_bits(&self, number: Option<usize>) -> Option<EightBitLayer> {
        let is_one = |number: &usize| self.layers.contains(number) || *number >= self.count;
        let found = number.filter(is_one).map(|_| self.layer);
        self.is_met.fetch_or(found.is_some(), Ordering::Relaxed);
        found.or_else(|| self.inner()?.eight_bits(number))
    }

    fn quantization(&self, layer: &LinearLayer) -> Option<Quantization> {
        let found = self.inner()?.quantization(layer);
        self.is_adapted.fetch_or(found.is_some(), Ordering::Relaxed);
        found
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let found = self.inner()?.adapt(layer, scope);
        self.is_adapted.fetch_or(found.is_some(), Ordering::Relaxed);
        found
    }

    fn check_met(&self) -> Result<(), ModelBuildError> {
        if self.is_adapted.load(Ordering::Relaxed) {
            let message = "8-bit products of layers that an adapter changes are not implemented".to_owned();
            return Err(ModelBuildError::Invalid { key: "model.fp8".into(), message });
        }
        if !self.is_met.load(Ordering::Relaxed) {
            let message = "this kind of model has no linear layer that 8-bit products were built for".to_owned();
            return Err(ModelBuildError::Invalid { key: "model.fp8".into(), message });
        }
        self.other.as_ref().map_or(Ok(()), |other| other.check_met())
    }
}

/// The 8-bit products of a linear layer: a part of its module.
#[derive(Module, Debug)]
pub struct EightBitProducts {
    /// Of input, weight and gradient, where they come from earlier steps.
    scales: Option<Param<Tensor<1>>>,
    /// `[3, steps]`: what the scales are made of. Not read here.
    history: Option<Param<Tensor<2>>>,
    #[module(skip)]
    rule: Fp8Rule,
    #[module(skip)]
    maxima: Arc<OperandMaxima>,
    #[module(skip)]
    pass: PassStream,
}

impl EightBitProducts {
    /// Those of the layer at `scope`, whose state is declared there; and where its magnitudes are noted, if scales are made of them.
    pub(super) fn new(layer: EightBitLayer, scope: &Scope, pass: PassStream) -> (Self, Option<Arc<OperandMaxima>>) {
        let scope = scope.frozen();
        let is_delayed = layer.rule.scaling == Fp8Scaling::Delayed;
        let cut = Cut::Replicated(Meets::ResidualStream);
        let scales = || scope.parameter(SCALES, [3], cut, Initial::Ones, ParameterRole::CastState);
        let history = || scope.parameter(HISTORY, [3, layer.history], cut, Initial::Zeros, ParameterRole::CastState);
        let maxima = Arc::<OperandMaxima>::default();
        let noted = is_delayed.then(|| Arc::clone(&maxima));
        let products =
            Self { scales: is_delayed.then(scales), history: is_delayed.then(history), rule: layer.rule, maxima, pass };
        (products, noted)
    }

    /// `x w^T + bias`, see [`fp8_linear`].
    pub fn linear<const D: usize>(&self, x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
        let scales = self.scales.as_ref().map_or_else(Fp8Scales::default, |scales| {
            let values: Vec<f32> = scales.val().without_autodiff().into_data().iter::<f32>().collect();
            Fp8Scales { input: values[0], weight: values[1], gradient: values[2] }
        });
        // What evaluation sees does not change how the model is trained.
        let is_noted = self.scales.is_some() && self.pass.get().is_some();
        let maxima = is_noted.then(|| Arc::clone(&self.maxima));
        fp8_linear(x, weight_oi, bias_o, &Fp8Pass { rule: self.rule, scales, maxima })
    }
}
