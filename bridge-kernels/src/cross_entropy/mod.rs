//! Next-token cross-entropy, fused with the output projection.

mod accuracy;
mod chunks;
pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
pub(crate) mod flex;
mod options;

use burn::tensor::{Int, Tensor, activation::log_softmax};

pub use accuracy::TokenAccuracy;
pub use chunks::{chunk_rows, workspace_bytes, workspace_bytes_on_gpu};
pub use options::CrossEntropyOptions;

use crate::cpu::element::Element;
use crate::flex::{Values, by_element};
use crate::linear::linear;
use crate::precision::widen;
use crate::quantized::LinearWeight;

/// Output projection: `x w^T + bias`.
#[derive(Clone, Debug)]
pub struct OutputLayer {
    /// `[v, c]`.
    pub weight_vc: LinearWeight,
    /// `[v]`, in the weight's dtype.
    pub bias_v: Option<Tensor<1>>,
}

impl From<LinearWeight> for OutputLayer {
    fn from(weight_vc: LinearWeight) -> Self {
        Self { weight_vc, bias_v: None }
    }
}

impl From<Tensor<2>> for OutputLayer {
    fn from(weight_vc: Tensor<2>) -> Self {
        LinearWeight::from(weight_vc).into()
    }
}

impl OutputLayer {
    /// Fails early on a bias that does not fit the weight.
    pub(crate) fn check(&self) {
        if let Some(bias_v) = &self.bias_v {
            let [v, _] = self.weight_vc.dims();
            assert_eq!(bias_v.dims(), [v], "the bias of an output projection does not fit its {v} rows");
        }
    }

    /// The bias in float32, if there is one; `None` if it has other elements than `E` on Flex.
    pub(crate) fn wide_bias<E: Element>(&self) -> Option<Option<Values>> {
        let bias_v = self.bias_v.as_ref();
        if bias_v.is_some_and(|bias_v| bias_v.dtype() != E::DTYPE) { None } else { Values::optional_widened_of(bias_v) }
    }

    pub(crate) fn wanted_gradients(&self, x_nc: &Tensor<2>) -> cpu::WantedGradients {
        cpu::WantedGradients {
            x: x_nc.is_tracked(),
            weight: self.weight_vc.is_tracked(),
            bias: self.bias_v.as_ref().is_some_and(Tensor::is_tracked),
        }
    }
}

/// Sum over tokens of `mask * cross_entropy(x w^T + bias, target)`, without a mean: the caller
/// divides.
///
/// Log-probabilities are in float32 whatever the inputs' dtype.
///
/// # Shapes
/// `x_nc` `[n, c]`, `output` `[v, c]`, `targets_n` `[n]` with values in `0..v`, `mask_n` `[n]`
/// float32 -> `[1]` float32.
///
/// # Panics
/// If the shapes do not fit, or a token that counts has a target outside `0..v`; on GPUs such a
/// target makes the loss infinite instead.
pub fn linear_cross_entropy(
    x_nc: Tensor<2>,
    output: impl Into<OutputLayer>,
    targets_n: Tensor<1, Int>,
    mask_n: Tensor<1>,
    options: &CrossEntropyOptions,
) -> Tensor<1> {
    linear_cross_entropy_counting(x_nc, output, targets_n, mask_n, options, None)
}

/// [`linear_cross_entropy`], which counts the tokens that the model gets right where its kernel
/// can.
pub fn linear_cross_entropy_counting(
    x_nc: Tensor<2>,
    output: impl Into<OutputLayer>,
    targets_n: Tensor<1, Int>,
    mask_n: Tensor<1>,
    options: &CrossEntropyOptions,
    accuracy: Option<&TokenAccuracy>,
) -> Tensor<1> {
    let output = output.into();
    output.check();
    let ([n, c], shape) = (x_nc.dims(), output.weight_vc.dims());
    assert_eq!(c, shape[1], "linear_cross_entropy: hidden states of size {c} do not match the weight {shape:?}");
    assert!(
        targets_n.dims() == [n] && mask_n.dims() == [n],
        "linear_cross_entropy: {n} tokens need as many targets and mask values, got {:?} and {:?}",
        targets_n.dims(),
        mask_n.dims()
    );
    #[cfg(feature = "cube")]
    if let LinearWeight::Whole(weight_vc) = &output.weight_vc
        && let Some(loss) =
            cube::output_cross_entropy(&x_nc, (weight_vc, output.bias_v.as_ref()), &targets_n, &mask_n, options)
    {
        return loss;
    }
    by_element!(x_nc, E => flex::linear_cross_entropy::<E>(&x_nc, &output, &targets_n, &mask_n, options, accuracy))
        .unwrap_or_else(|| reference(x_nc, output, targets_n, mask_n, options))
}

/// [`linear_cross_entropy`] in plain Burn operations; the logits are materialised.
pub fn reference(
    x_nc: Tensor<2>,
    output: impl Into<OutputLayer>,
    targets_n: Tensor<1, Int>,
    mask_n: Tensor<1>,
    options: &CrossEntropyOptions,
) -> Tensor<1> {
    let ([n, _], OutputLayer { weight_vc, bias_v }) = (x_nc.dims(), output.into());
    let weight_vc = weight_vc.whole(&x_nc.device(), x_nc.dtype().into());
    let logits_nv = cap(widen(linear(x_nc, weight_vc, bias_v)), options.softcap);
    let log_p_nv = log_softmax(logits_nv.clone(), 1);
    // A token that does not count may have any target, and any loss.
    let ignored_n = mask_n.clone().equal_elem(0.0);
    let targets_n = targets_n.mask_fill(ignored_n.clone(), 0);
    let mut loss_n = -log_p_nv.clone().gather(1, targets_n.reshape([n, 1])).reshape([n]);
    if let Some(weight) = options.z_loss {
        // log Z = logit - log p, the same in every column.
        let log_z_n: Tensor<1> = (logits_nv.narrow(1, 0, 1) - log_p_nv.narrow(1, 0, 1)).reshape([n]);
        loss_n = loss_n + log_z_n.clone() * log_z_n * weight;
    }
    (loss_n.mask_fill(ignored_n, 0.0) * mask_n).sum()
}

/// `cap * tanh(x / cap)`, or `x` without a cap.
pub fn cap<const D: usize>(x: Tensor<D>, softcap: Option<f64>) -> Tensor<D> {
    match softcap {
        Some(cap) => (x / cap).tanh() * cap,
        None => x,
    }
}
