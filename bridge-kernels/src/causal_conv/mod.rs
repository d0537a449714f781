//! Causal depthwise convolution along the sequence: with SiLU the short convolution of Mamba
//! layers, without it that of layers which gate its input and its output.

mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;

use burn::tensor::{Int, Tensor, activation::silu};

use crate::precision::{is_narrow_on_cpu, narrow, widen};

/// `silu(bias + sum over j of weight[.., j] * x[t - k + 1 + j])`, for each channel separately.
/// Before the beginning of the sequence (with document ids, of the document) `x` is zero.
///
/// Computed in float32 whatever the input's dtype, and rounded once.
///
/// # Shapes
/// `x_btc` `[b, t, c]`, `weight_ck` `[c, k]`, `bias_c` `[c]`, `document_ids` `[b, t]` -> `[b, t,
/// c]`.
///
/// # Panics
/// If the sizes differ, or `k` is 0.
pub fn causal_conv(
    x_btc: Tensor<3>,
    weight_ck: Tensor<2>,
    bias_c: Option<Tensor<1>>,
    document_ids: Option<Tensor<2, Int>>,
) -> Tensor<3> {
    check(&x_btc, &weight_ck, bias_c.as_ref());
    #[cfg(feature = "cube")]
    if let Some(y) = cube::causal_conv(&x_btc, &weight_ck, bias_c.as_ref(), document_ids.as_ref()) {
        return y;
    }
    if is_narrow_on_cpu(&x_btc) {
        let dtype = x_btc.dtype();
        return narrow(causal_conv(widen(x_btc), widen(weight_ck), bias_c.map(widen), document_ids), dtype);
    }
    flex::causal_conv(&x_btc, &weight_ck, bias_c.as_ref(), document_ids.as_ref(), true)
        .unwrap_or_else(|| causal_conv_reference(x_btc, weight_ck, bias_c, document_ids))
}

/// [`causal_conv`] without the SiLU.
///
/// # Panics
/// As [`causal_conv`].
pub fn linear_causal_conv(
    x_btc: Tensor<3>,
    weight_ck: Tensor<2>,
    bias_c: Option<Tensor<1>>,
    document_ids: Option<Tensor<2, Int>>,
) -> Tensor<3> {
    check(&x_btc, &weight_ck, bias_c.as_ref());
    if is_narrow_on_cpu(&x_btc) {
        let dtype = x_btc.dtype();
        return narrow(linear_causal_conv(widen(x_btc), widen(weight_ck), bias_c.map(widen), document_ids), dtype);
    }
    flex::causal_conv(&x_btc, &weight_ck, bias_c.as_ref(), document_ids.as_ref(), false)
        .unwrap_or_else(|| linear_causal_conv_reference(x_btc, weight_ck, bias_c, document_ids))
}

fn check(x_btc: &Tensor<3>, weight_ck: &Tensor<2>, bias_c: Option<&Tensor<1>>) {
    let ([_, _, c], [channels, k]) = (x_btc.dims(), weight_ck.dims());
    assert!(channels == c && k > 0, "causal_conv: {k} taps of {channels} channels do not fit an input of {c}");
    if let Some(bias_c) = bias_c {
        assert_eq!(bias_c.dims(), [c], "causal_conv: the bias does not fit {c} channels");
    }
}

/// [`causal_conv`] in plain Burn operations.
pub fn causal_conv_reference(
    x_btc: Tensor<3>,
    weight_ck: Tensor<2>,
    bias_c: Option<Tensor<1>>,
    document_ids: Option<Tensor<2, Int>>,
) -> Tensor<3> {
    let dtype = x_btc.dtype();
    narrow(silu(sum_of_taps(x_btc, weight_ck, bias_c, document_ids)), dtype)
}

/// [`linear_causal_conv`] in plain Burn operations.
pub fn linear_causal_conv_reference(
    x_btc: Tensor<3>,
    weight_ck: Tensor<2>,
    bias_c: Option<Tensor<1>>,
    document_ids: Option<Tensor<2, Int>>,
) -> Tensor<3> {
    let dtype = x_btc.dtype();
    narrow(sum_of_taps(x_btc, weight_ck, bias_c, document_ids), dtype)
}

/// The convolution in float32, before the SiLU.
fn sum_of_taps(
    x_btc: Tensor<3>,
    weight_ck: Tensor<2>,
    bias_c: Option<Tensor<1>>,
    document_ids: Option<Tensor<2, Int>>,
) -> Tensor<3> {
    let ([b, t, c], [_, k]) = (x_btc.dims(), weight_ck.dims());
    let x = widen(x_btc);
    let before = Tensor::zeros([b, k - 1, c], (&x.device(), x.dtype()));
    let padded = if k == 1 { x } else { Tensor::cat(vec![before, x], 1) };
    let weight_kc = widen(weight_ck).swap_dims(0, 1);
    let term = |j: usize| {
        let lag = (k - 1 - j).min(t);
        let term = padded.clone().narrow(1, j, t) * weight_kc.clone().narrow(0, j, 1).reshape([1, 1, c]);
        match &document_ids {
            Some(ids_bt) if lag > 0 && lag < t => {
                let [later, earlier] = [lag, 0].map(|start| ids_bt.clone().narrow(1, start, t - lag));
                let other = later.not_equal(earlier).reshape([b, t - lag, 1]).expand([b, t - lag, c]);
                let reached = term.clone().narrow(1, lag, t - lag).mask_fill(other, 0.0);
                Tensor::cat(vec![term.narrow(1, 0, lag), reached], 1)
            }
            Some(_) | None => term,
        }
    };
    let sum = (0..k).map(term).reduce(|a, b| a + b).expect("a convolution has a tap");
    match bias_c {
        Some(bias_c) => sum + widen(bias_c).reshape([1, 1, c]),
        None => sum,
    }
}
