//! AdamW on states of less than 32 bits: against float64 arithmetic that rounds states as declared,
//! and against float32 states.

use bridge_kernels::optim::{
    AdamW, AdamWState, Format, LowPrecisionAdamW, LowPrecisionFormats, Master, MasterFormat, Stored, UpdateStep, adamw,
    adamw_low_precision, adamw_low_precision_reference, adamw_magnitudes, adamw_magnitudes_reference,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{assert_close, assert_same_on_any_threads, read, values, wide};
use crate::optim::{flat, rule, step};

const FORMATS: [Format; 4] = [Format::Float32, Format::BFloat16, Format::Float16, Format::Float8];

fn start(parameter: Tensor<1>, formats: &LowPrecisionFormats) -> LowPrecisionAdamW {
    let (len, device) = (parameter.dims()[0], parameter.device());
    let moments = formats.moments.map(|format| Stored::zeros(len, format, &device));
    LowPrecisionAdamW { parameter, master: None, moments }
}

/// The scales that states get by the largest magnitudes.
fn scales(magnitudes: [f32; 3], formats: &LowPrecisionFormats) -> [f32; 3] {
    let master = formats.master.whole().map_or(1.0, |format| format.scale_for(magnitudes[0]));
    let [m, v] = [0, 1].map(|i| formats.moments[i].scale_for(magnitudes[i + 1]));
    [master, m, v]
}

fn advance(
    state: LowPrecisionAdamW,
    gradient: &Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
    formats: &LowPrecisionFormats,
) -> LowPrecisionAdamW {
    let scales = scales(adamw_magnitudes(&state, gradient, rule, step), formats);
    adamw_low_precision(state, gradient.clone(), rule, step, formats, scales)
}

/// Half the distance of two numbers of a format at the size of `x`, which is in units of the scale.
fn rounding(format: Format, x: f64) -> f64 {
    let (mantissa, smallest) = match format {
        Format::Float32 => (23, -126),
        Format::BFloat16 => (7, -126),
        Format::Float16 => (10, -14),
        Format::Float8 => (3, -6),
        Format::Blocks(_) => unreachable!("blocks have tests of their own"),
    };
    let exponent = if x == 0.0 { smallest } else { (x.abs().log2().floor() as i32).max(smallest) };
    2_f64.powi(exponent - mantissa - 1)
}

/// The nearest multiple of twice [`rounding`].
fn round(format: Format, x: f64, scale: f64) -> f64 {
    let unit = 2.0 * rounding(format, x / scale);
    (x / scale / unit).round_ties_even() * unit * scale
}

/// Master and moments of one tensor in float64, with the scales that they have.
struct Plain {
    states: [Vec<f64>; 3],
    formats: [Format; 3],
    scales: [f64; 3],
}

impl Plain {
    fn step(&mut self, gradient: &[f32], r: &AdamW, s: &UpdateStep<'_>) -> Vec<f64> {
        for (i, g) in gradient.iter().enumerate() {
            let [p, m, v] = [0, 1, 2].map(|state: usize| self.states[state][i]);
            let mut g = f64::from(*g) * s.gradient_scale;
            let mut next = p;
            if r.decoupled {
                next -= s.learning_rate * s.weight_decay * p;
            } else {
                g += s.weight_decay * p;
            }
            let (m, v) = (r.beta1 * m + (1.0 - r.beta1) * g, r.beta2 * v + (1.0 - r.beta2) * g * g);
            let (hat_m, hat_v) = (m / (1.0 - r.beta1.powf(s.number as f64)), v / (1.0 - r.beta2.powf(s.number as f64)));
            next -= s.learning_rate * hat_m / (hat_v.sqrt() + r.epsilon * s.eps_mult);
            for (state, value) in [next, m, v].into_iter().enumerate() {
                self.states[state][i] = value;
            }
        }
        let exact = self.states[0].clone();
        for (state, format) in self.formats.into_iter().enumerate() {
            let largest = self.states[state].iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            self.scales[state] = match format {
                Format::Float16 => largest / 65504.0,
                Format::Float8 => largest / 448.0,
                _ => 1.0,
            };
            let scale = if self.scales[state] == 0.0 { 1.0 } else { self.scales[state] };
            self.states[state].iter_mut().for_each(|x| *x = round(format, *x, scale));
        }
        exact
    }
}

/// Ten steps with these formats. Values that float32 and float64 round to different sides differ by
/// a unit of the format. That happens to few elements; all others agree to float32 precision.
fn agrees_with_float64(n: usize, dtype: FloatDType, formats: LowPrecisionFormats, decoupled: bool) {
    let what = format!("{n} x {dtype:?}, {formats:?}, decoupled {decoupled}");
    let first = flat(&values(1, n)).cast(dtype);
    let mut state = start(first.clone(), &formats);
    // A float32 parameter or master is not rounded further.
    let of_master = match formats.master.whole() {
        Some(Format::Float16) if dtype != FloatDType::F32 => Format::Float16,
        _ => Format::Float32,
    };
    let zeros = vec![0.0; n];
    let mut plain = Plain {
        states: [wide(&read(first)), zeros.clone(), zeros],
        formats: [of_master, formats.moments[0], formats.moments[1]],
        scales: [1.0; 3],
    };
    let (mut far, mut looked_at) = (0, 0);
    // The error of an earlier rounding is relative to the state's peak, which may be larger than
    // its current value.
    let mut peaks = [0, 1, 2].map(|_| vec![0.0_f64; n]);
    for number in 1..=10 {
        let (gradient, step) = (values(10 + number, n), step(number));
        state = advance(state, &flat(&gradient), &rule(decoupled), &step, &formats);
        let exact = plain.step(&gradient, &rule(decoupled), &step);
        let device = Device::flex();
        let master = state.master.as_ref().map(|master| master.widen(&state.parameter));
        let parameter = master.unwrap_or_else(|| state.parameter.clone());
        let found = [parameter, state.moments[0].widen(&device), state.moments[1].widen(&device)].map(read);
        for (i, (found, expected)) in found.iter().zip(&plain.states).enumerate() {
            let (format, scale) = (plain.formats[i], plain.scales[i].max(1e-300));
            for ((found, expected), peak) in found.iter().zip(expected).zip(&mut peaks[i]) {
                *peak = peak.max(expected.abs());
                // A unit for each of the few steps whose roundings still have an effect, and the
                // effect of unequal moments: on parameters, and, through weight decay in the
                // gradient, on the moments.
                let moved = [0.02, 0.002, 0.002][i] * if i == 0 || !decoupled { 1.0 } else { 0.0 };
                let allowed = 8.0 * rounding(format, *peak / scale) * scale + 2e-6 * *peak + 2e-7 + moved;
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= allowed, "{what}, step {number}, state {i}: {found}, expected {expected}");
                looked_at += 1;
                far += usize::from(difference > 1e-5 * expected.abs().max(1e-2 * scale.min(1.0)));
            }
        }
        if dtype == FloatDType::F32 {
            continue;
        }
        // The parameter is the exact value, rounded once, with any master format, except for moves
        // by unequal moments.
        for (found, exact) in read(state.parameter.clone()).iter().zip(exact) {
            let unit = if dtype == FloatDType::BF16 { 2.0_f64.powi(-8) } else { 2.0_f64.powi(-11) };
            let (difference, allowed) = ((f64::from(*found) - exact).abs(), 1.01 * unit * exact.abs());
            assert!(difference <= allowed + 0.02, "{what}: {found} {exact}");
            looked_at += 1;
            far += usize::from(difference > allowed);
        }
    }
    assert!(far * 100 <= looked_at, "{what}: {far} of {looked_at} values are far from float64");
}

#[test]
fn ten_steps_agree_with_float64_in_every_format() {
    for (i, m) in FORMATS.into_iter().enumerate() {
        for (k, v) in FORMATS.into_iter().enumerate() {
            let moments = [m, v];
            let decoupled = (i + k) % 2 == 0;
            let n = [1, 67, 1031, 33_013][(i + 3 * k) % 4];
            let formats = |master| LowPrecisionFormats { master, moments };
            agrees_with_float64(n, FloatDType::F32, formats(MasterFormat::Float32), decoupled);
            agrees_with_float64(n, FloatDType::BF16, formats(MasterFormat::Remainders), decoupled);
            agrees_with_float64(n, FloatDType::BF16, formats(MasterFormat::Float16), !decoupled);
            agrees_with_float64(n, FloatDType::F16, formats(MasterFormat::Float16), decoupled);
            agrees_with_float64(n, FloatDType::F16, formats(MasterFormat::Float32), !decoupled);
        }
    }
}

#[test]
fn twenty_steps_with_remainders_have_the_bits_of_whole_masters() {
    let n = 200_003;
    for moments in [[Format::Float32; 2], [Format::BFloat16, Format::Float8]] {
        let formats = |master| LowPrecisionFormats { master, moments };
        let (low, whole) = (formats(MasterFormat::Remainders), formats(MasterFormat::Float32));
        let first = flat(&values(1, n)).cast(FloatDType::BF16);
        let (mut a, mut b) = (start(first.clone(), &low), start(first.clone(), &whole));
        let zeros = || flat(&vec![0.0; n]);
        let mut c = AdamWState { parameter: first.cast(FloatDType::F32), exp_avg: zeros(), exp_avg_sq: zeros() };
        let mut ties = 0;
        for number in 1..=20 {
            let (gradient, step) = (flat(&values(10 + number, n)), step(number));
            a = advance(a, &gradient, &rule(true), &step, &low);
            b = advance(b, &gradient, &rule(true), &step, &whole);
            c = adamw(c, gradient, &rule(true), &step);
            let Some(Master::Remainders(remainders)) = &a.master else { panic!("remainders are kept") };
            ties += remainders.ties.len();
            assert_eq!(a.parameter.to_data(), b.parameter.to_data(), "step {number}");
            let [low, whole] = [&a, &b].map(|state| state.master.as_ref().unwrap().widen(&state.parameter).to_data());
            assert_eq!(low, whole, "step {number}");
            if moments == [Format::Float32; 2] {
                assert_eq!(whole, c.parameter.to_data(), "step {number}: as plain AdamW");
                assert_eq!(a.moments[1].to_data(), c.exp_avg_sq.to_data());
            }
            // A saved and restored master continues with the same bits.
            if number == 11 {
                let value = a.master.as_ref().unwrap().widen(&a.parameter);
                a.master = Some(Master::narrow(value, MasterFormat::Remainders, 1.0, &a.parameter));
            }
        }
        assert!(ties > 5, "values midway between two bfloat16 numbers occur: {ties}");
        assert!(a.master.unwrap().bytes() == 2 * n as u64 && b.master.unwrap().bytes() == 4 * n as u64);
    }
}

#[test]
fn all_forms_agree() {
    for (n, dtype) in [(1, FloatDType::BF16), (1031, FloatDType::F32), (40_009, FloatDType::BF16)] {
        for formats in [
            LowPrecisionFormats { master: MasterFormat::Remainders, moments: [Format::BFloat16, Format::Float32] },
            LowPrecisionFormats { master: MasterFormat::Float16, moments: [Format::Float16, Format::Float16] },
        ] {
            let mut state = start(flat(&values(1, n)).cast(dtype), &formats);
            for number in 1..=3 {
                let (gradient, step) = (flat(&values(10 + number, n)), step(number));
                let magnitudes = adamw_magnitudes(&state, &gradient, &rule(true), &step);
                for (found, expected) in
                    magnitudes.into_iter().zip(adamw_magnitudes_reference(&state, &gradient, &rule(true), &step))
                {
                    assert!((found - expected).abs() <= 1e-6 * expected, "{formats:?}: {found} {expected}");
                }
                let scales = scales(magnitudes, &formats);
                let reference = adamw_low_precision_reference(
                    state.clone(),
                    gradient.clone(),
                    &rule(true),
                    &step,
                    &formats,
                    scales,
                );
                state = adamw_low_precision(state, gradient, &rule(true), &step, &formats, scales);
                for (found, expected) in state.moments.iter().zip(&reference.moments) {
                    assert_eq!((found.format(), found.scale()), (expected.format(), expected.scale()));
                    let [found, expected] = [found, expected].map(|moment| read(moment.widen(&Device::flex())));
                    assert_close("moments", &found, &wide(&expected), 1e-3);
                }
                assert_eq!(state.parameter.dtype(), reference.parameter.dtype());
                assert_close("parameter", &read(state.parameter.clone()), &wide(&read(reference.parameter)), 1e-3);
            }
        }
    }
}

#[test]
fn gradients_of_16_bits_are_taken_as_they_are_and_other_formats_are_turned() {
    let n = 1031;
    let from = LowPrecisionFormats { master: MasterFormat::Float32, moments: [Format::Float32; 2] };
    let to = LowPrecisionFormats { master: MasterFormat::Remainders, moments: [Format::Float8, Format::BFloat16] };
    let gradient = flat(&values(9, n)).cast(FloatDType::BF16);
    let wide_gradient = gradient.clone().cast(FloatDType::F32);
    let state =
        advance(start(flat(&values(1, n)).cast(FloatDType::BF16), &from), &gradient, &rule(true), &step(1), &from);
    let same =
        advance(start(flat(&values(1, n)).cast(FloatDType::BF16), &from), &wide_gradient, &rule(true), &step(1), &from);
    assert_eq!(state.parameter.to_data(), same.parameter.to_data());
    // States that were saved in other formats are read as they are, and kept as they are to be.
    let turned = advance(state.clone(), &gradient, &rule(true), &step(2), &to);
    let plain = advance(state, &gradient, &rule(true), &step(2), &from);
    assert_eq!(turned.parameter.to_data(), plain.parameter.to_data());
    assert!(turned.master.as_ref().is_some_and(|master| master.has(MasterFormat::Remainders)));
    assert_eq!(turned.moments.each_ref().map(Stored::format), to.moments.map(Some));
    assert_eq!(turned.moments.each_ref().map(Stored::bytes), [n as u64 + 4, 2 * n as u64]);
    let back = advance(turned, &gradient, &rule(true), &step(3), &from);
    assert_eq!(back.moments.each_ref().map(Stored::bytes), [4 * n as u64; 2]);
}

#[test]
fn what_others_hold_is_left_alone_and_parts_have_the_scale() {
    let formats = LowPrecisionFormats { master: MasterFormat::Remainders, moments: [Format::Float8, Format::Float16] };
    let state = advance(
        start(flat(&values(1, 97)).cast(FloatDType::BF16), &formats),
        &flat(&values(2, 97)),
        &rule(true),
        &step(1),
        &formats,
    );
    let kept = state.clone();
    let seen = |state: &LowPrecisionAdamW| {
        let moments = state.moments.each_ref().map(|moment| read(moment.widen(&Device::flex())));
        let master = read(state.master.as_ref().unwrap().widen(&state.parameter));
        (read(state.parameter.clone()), master, moments)
    };
    let before = seen(&state);
    let next = advance(state, &flat(&values(3, 97)), &rule(true), &step(2), &formats);
    assert_ne!(seen(&next), before);
    assert_eq!(seen(&kept), before);
    for moment in &kept.moments {
        let part = moment.part(&(31..90));
        assert_eq!((part.scale(), part.len()), (moment.scale(), 59));
        assert_eq!(read(part.widen(&Device::flex())), read(moment.widen(&Device::flex()))[31..90]);
    }
    assert!(Stored::zeros(0, Format::Float8, &Device::flex()).is_empty());
}

#[test]
fn the_same_on_any_number_of_threads() {
    let n = 100_003;
    let formats = LowPrecisionFormats { master: MasterFormat::Remainders, moments: [Format::Float8, Format::Float16] };
    assert_same_on_any_threads("reduced", || {
        let mut state = start(flat(&values(1, n)).cast(FloatDType::BF16), &formats);
        for number in 1..=2 {
            state = advance(state, &flat(&values(number, n)), &rule(true), &step(number), &formats);
        }
        let moments = state.moments.each_ref().map(|moment| read(moment.widen(&Device::flex())));
        [vec![read(state.parameter)], moments.to_vec()].concat()
    });
}

#[test]
fn formats_have_their_bytes() {
    assert_eq!(FORMATS.map(Format::bytes), [4.0, 2.0, 2.0, 1.0]);
    let masters = [MasterFormat::Float32, MasterFormat::Float16, MasterFormat::Remainders];
    assert_eq!(masters.map(MasterFormat::bytes), [4, 2, 2]);
}

#[test]
#[should_panic(expected = "adamw: parameter, moments and gradient have sizes [3, 3, 3, 2]")]
fn different_sizes_are_named() {
    let formats = LowPrecisionFormats { master: MasterFormat::Float32, moments: [Format::BFloat16; 2] };
    advance(start(flat(&[0.0; 3]), &formats), &flat(&[0.0; 2]), &rule(true), &step(1), &formats);
}
