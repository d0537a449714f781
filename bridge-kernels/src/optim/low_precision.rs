//! AdamW on states of less than 32 bits: inputs and outputs of the update, and its form in plain
//! Burn operations. The fused form is in `cpu/low_precision`, its connection to tensors in
//! `flex/low_precision`.

use burn::tensor::{DType, FloatDType, Tensor};

use super::formats::Format;
use super::steps::{AdamW, AdamWConstants, AdamWState, UpdateStep};
use super::stored::{Master, MasterFormat, Stored, magnitude};
use super::{adamw, adamw_reference, flex};
use crate::precision::widen;

/// A parameter with its AdamW state, or the range of both that a rank has. All are flat and of one
/// length.
#[derive(Clone, Debug)]
pub struct LowPrecisionAdamW {
    /// The parameter in the dtype of the model: float32, bfloat16 or float16.
    pub parameter: Tensor<1>,
    /// Float32 value of a parameter of 16 bits that was updated before.
    pub master: Option<Master>,
    /// Running means of the gradient and of its square.
    pub moments: [Stored; 2],
}

/// Formats that states get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowPrecisionFormats {
    /// Format of the float32 value, if the parameter has 16 bits.
    pub master: MasterFormat,
    /// Formats of the two moments.
    pub moments: [Format; 2],
}

/// One AdamW update of states that are kept in less than 32 bits: they are widened to float32,
/// updated as [`adamw`] does, and rounded to nearest even. The parameter is the rounded float32
/// value.
///
/// `scales` are the new scales of master and moments (see [`Format::scale_for`]), 1 for formats
/// without one. The gradient is float32 or bfloat16. The formats of the old states may differ from
/// the new ones. Exclusive memory is reused.
///
/// # Panics
/// If the sizes differ.
pub fn adamw_low_precision(
    state: LowPrecisionAdamW,
    gradient: Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
    formats: &LowPrecisionFormats,
    scales: [f32; 3],
) -> LowPrecisionAdamW {
    state.check(&gradient);
    match flex::low_precision::applies_to(&state, &gradient, formats) {
        true => flex::low_precision::adamw(state, &gradient, AdamWConstants::new(rule, step), formats, scales),
        false => update(state, gradient, formats, scales, |state, gradient| adamw(state, gradient, rule, step)),
    }
}

/// [`adamw_low_precision`] in plain Burn operations, but for the coding of elements.
pub fn adamw_low_precision_reference(
    state: LowPrecisionAdamW,
    gradient: Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
    formats: &LowPrecisionFormats,
    scales: [f32; 3],
) -> LowPrecisionAdamW {
    update(state, gradient, formats, scales, |state, gradient| adamw_reference(state, gradient, rule, step))
}

/// The largest magnitudes that the float32 parameter and the moments would have after the update,
/// from which follow their scales. States are not changed, and shared memory is not copied.
///
/// # Panics
/// If the sizes differ.
pub fn adamw_magnitudes(
    state: &LowPrecisionAdamW,
    gradient: &Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
) -> [f32; 3] {
    state.check(gradient);
    flex::low_precision::magnitudes(state, gradient, AdamWConstants::new(rule, step))
        .unwrap_or_else(|| adamw_magnitudes_reference(state, gradient, rule, step))
}

/// [`adamw_magnitudes`] by an update that is thrown away.
pub fn adamw_magnitudes_reference(
    state: &LowPrecisionAdamW,
    gradient: &Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
) -> [f32; 3] {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = adamw(widened(state), widen(gradient.clone()), rule, step);
    [parameter, exp_avg, exp_avg_sq].map(magnitude)
}

impl LowPrecisionAdamW {
    fn check(&self, gradient: &Tensor<1>) {
        let [exp_avg, exp_avg_sq] = self.moments.each_ref().map(Stored::len);
        let sizes = [self.parameter.dims()[0], exp_avg, exp_avg_sq, gradient.dims()[0]];
        let are_same = sizes.iter().all(|size| *size == sizes[0]);
        assert!(are_same, "adamw: parameter, moments and gradient have sizes {sizes:?}");
    }
}

fn widened(state: &LowPrecisionAdamW) -> AdamWState {
    let device = state.parameter.device();
    let [exp_avg, exp_avg_sq] = state.moments.each_ref().map(|moment| moment.widen(&device));
    let master = state.master.as_ref().map(|master| master.widen(&state.parameter));
    let parameter = master.unwrap_or_else(|| widen(state.parameter.clone()));
    AdamWState { parameter, exp_avg, exp_avg_sq }
}

fn update(
    state: LowPrecisionAdamW,
    gradient: Tensor<1>,
    formats: &LowPrecisionFormats,
    scales: [f32; 3],
    adamw: impl FnOnce(AdamWState, Tensor<1>) -> AdamWState,
) -> LowPrecisionAdamW {
    let dtype = state.parameter.dtype();
    let wide_state = widened(&state);
    drop(state);
    let AdamWState { parameter: updated, exp_avg, exp_avg_sq } = adamw(wide_state, widen(gradient));
    let moments = [
        Stored::narrow(exp_avg, formats.moments[0], scales[1]),
        Stored::narrow(exp_avg_sq, formats.moments[1], scales[2]),
    ];
    if dtype == DType::F32 {
        return LowPrecisionAdamW { parameter: updated, master: None, moments };
    }
    let parameter = updated.clone().cast(FloatDType::from(dtype));
    let master = Master::narrow(updated, formats.master, scales[0], &parameter);
    LowPrecisionAdamW { parameter, master: Some(master), moments }
}
