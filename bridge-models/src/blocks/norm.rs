//! LayerNorm or RMSNorm with its parameters, if it has any.

use bridge_core::config::Normalization;
use bridge_core::model::{Component, GradientScope, Initial, ParameterRole, Scope, SegmentCost, TensorPartition};
use bridge_kernels::{Recomputable, layer_norm, residual_layer_norm, residual_rms_norm, rms_norm};
use burn::module::{Module, Param};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::architecture::config::NormConfig;

/// A norm over the last dimension.
#[derive(Module, Debug)]
pub(crate) struct Norm {
    weight: Option<Param<Tensor<1>>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: NormConfig,
    /// Dtype of the layers, which that of a weight is too.
    #[module(skip)]
    dtype: FloatDType,
}

/// Cost of a norm besides the input that it keeps: bytes of statistics over `rows` rows, in
/// float32.
pub(crate) fn statistics(config: NormConfig, rows: u64) -> SegmentCost {
    let numbers = match config.kind {
        Normalization::LayerNorm | Normalization::LayerNormNoBias => 2,
        Normalization::RmsNorm => 1,
    };
    let bytes = rows * numbers * 4;
    SegmentCost { kept: bytes, unmoved: bytes, ..SegmentCost::default() }
}

impl Norm {
    /// The norm of the residual stream called `name`: the identity's parameters, weight one and
    /// bias zero.
    pub fn new(config: NormConfig, size: usize, scope: &Scope, name: &str) -> Self {
        let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
        Self::with(config, size, cut, ParameterRole::Norm, &scope.child(name))
    }

    /// The norm of queries or keys called `name`, of which each rank sees its own heads.
    pub fn of_heads(config: NormConfig, size: usize, scope: &Scope, name: &str) -> Self {
        Self::of_projection(config, size, TensorPartition::Replicated(GradientScope::OwnPart), scope, name)
    }

    /// The norm of queries or keys called `name`, with weights for all heads, of which each rank
    /// has those of its own: `size` in all.
    pub fn of_projection(config: NormConfig, size: usize, cut: TensorPartition, scope: &Scope, name: &str) -> Self {
        Self::with(config, size, cut, ParameterRole::QueryKeyNorm, &scope.child(name))
    }

    fn with(config: NormConfig, size: usize, cut: TensorPartition, role: ParameterRole, scope: &Scope) -> Self {
        let scope = scope.component(Component::Norm);
        let initial = if config.zero_centered_gamma { Initial::Zeros } else { Initial::Ones };
        let vector = |name, initial, role| scope.parameter(name, [size], cut, initial, role);
        Self {
            weight: config.affine.then(|| vector("weight", initial, role)),
            bias: (config.affine && config.kind == Normalization::LayerNorm)
                .then(|| vector("bias", Initial::Zeros, ParameterRole::Bias)),
            config,
            dtype: scope.dtype(),
        }
    }

    /// `[.., size]` -> the same, in the dtype of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = self.parameters_for(&x);
        match self.config.kind {
            Normalization::LayerNorm | Normalization::LayerNormNoBias => {
                layer_norm(x, weight, bias, self.config.epsilon)
            }
            Normalization::RmsNorm => rms_norm(x, weight, self.config.epsilon),
        }
    }

    /// [`Self::forward`] in the dtype of the layers: `x` may be a wider stream.
    pub fn forward_into_layers<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward(x).cast(self.dtype())
    }

    /// The norm of a residual stream, in the dtype of the layers, and the stream: `[b, t, size]` ->
    /// twice the same.
    pub fn forward_residual(&self, x: Tensor<3>) -> (Recomputable<3>, Tensor<3>) {
        let (weight, bias) = self.parameters_for(&x);
        let (normed, x) = match self.config.kind {
            Normalization::LayerNorm | Normalization::LayerNormNoBias => {
                residual_layer_norm(x, weight, bias, self.config.epsilon)
            }
            Normalization::RmsNorm => residual_rms_norm(x, weight, self.config.epsilon),
        };
        let dtype = self.dtype();
        // If the output is rounded, the norm cannot be recomputed in its place.
        let is_narrower = FloatDType::from(normed.tensor.dtype()) != dtype;
        (if is_narrower { normed.tensor.cast(dtype).into() } else { normed }, x)
    }

    /// Dtype of the layers, which is the weight's.
    pub fn dtype(&self) -> FloatDType {
        self.weight.as_ref().map_or(self.dtype, |weight| FloatDType::from(weight.val().dtype()))
    }

    /// Weight and bias as they are applied to `x`: as wide as it is, so that one kernel takes all.
    /// Without parameters the weight is one.
    fn parameters_for<const D: usize>(&self, x: &Tensor<D>) -> (Tensor<1>, Option<Tensor<1>>) {
        let Some(weight) = self.weight() else {
            return (Tensor::ones([x.dims()[D - 1]], (&x.device(), x.dtype())), None);
        };
        let bias = self.bias.as_ref().map(|bias| bias.val());
        match x.dtype() {
            DType::F32 => (weight.cast(FloatDType::F32), bias.map(|bias| bias.cast(FloatDType::F32))),
            _ => (weight, bias),
        }
    }

    /// `[b, t, heads, d]` -> the same, for heads that are part of a root-mean-square norm over more
    /// heads: `mean_square_bt1` is the mean square of all heads, in float32.
    pub fn forward_part(&self, x_bthd: Tensor<4>, mean_square_bt1: Tensor<3>) -> Tensor<4> {
        let [b, t, h, d] = x_bthd.dims();
        let dtype = FloatDType::from(x_bthd.dtype());
        let factors_bt1 = (mean_square_bt1 + self.config.epsilon).sqrt().recip();
        let x_btf = x_bthd.reshape([b, t, h * d]).cast(FloatDType::F32);
        let y_btf = x_btf * factors_bt1;
        let y_btf = match self.weight() {
            Some(weight) => y_btf * weight.cast(FloatDType::F32).unsqueeze(),
            None => y_btf,
        };
        y_btf.cast(dtype).reshape([b, t, h, d])
    }

    /// `[b, t, heads, d]` -> the same: a norm for each head, whose weights are of that head.
    pub fn forward_each_head(&self, x_bthd: Tensor<4>) -> Tensor<4> {
        let [_, _, h, d] = x_bthd.dims();
        let dtype = FloatDType::from(x_bthd.dtype());
        let x_bthd = x_bthd.cast(FloatDType::F32);
        let ones_d = Tensor::ones([d], (&x_bthd.device().without_autodiff(), x_bthd.dtype()));
        let y_bthd = match self.config.kind {
            Normalization::LayerNorm | Normalization::LayerNormNoBias => {
                layer_norm(x_bthd, ones_d, None, self.config.epsilon)
            }
            Normalization::RmsNorm => rms_norm(x_bthd, ones_d, self.config.epsilon),
        };
        let y_bthd = match self.weight() {
            Some(weight) => y_bthd * weight.cast(FloatDType::F32).reshape([1, 1, h, d]),
            None => y_bthd,
        };
        y_bthd.cast(dtype)
    }

    /// Weight as it is applied.
    fn weight(&self) -> Option<Tensor<1>> {
        let weight = self.weight.as_ref()?.val();
        Some(match self.config.zero_centered_gamma {
            // In 16 bits the sum would round away the precision that storing the weight around 0
            // gains.
            true => weight.cast(FloatDType::F32) + 1.0,
            false => weight,
        })
    }
}
