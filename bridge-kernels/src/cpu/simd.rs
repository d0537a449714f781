//! Run-time dispatch to the vector extensions, and float32 functions written so that loops over
//! them vectorise.

use super::element::Element;

/// Evaluates an expression compiled for the widest vector extension of this machine: AVX-512, or
/// AVX2 with FMA, or the target's baseline, such as NEON on AArch64.
///
/// Functions that the expression calls have to be `#[inline(always)]` to be compiled for that
/// extension too. A macro, because the closure has to be inlined: otherwise the compiler may call
/// it, and compile it without the vector extension.
macro_rules! vectorised {
    ($body:expr) => {
        $crate::cpu::simd::dispatch(
            #[inline(always)]
            || $body,
        )
    };
}
pub(crate) use vectorised;

/// The function behind [`vectorised!`].
#[inline(always)]
pub fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let fma = has!("avx2") && has!("fma");
        if fma && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
            // SAFETY: the machine has every feature that the function enables.
            return unsafe { with_avx512(f) };
        }
        if fma {
            // SAFETY: as above.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Partial sums a reduction keeps: enough for four 16-lane registers, so that additions overlap.
pub const LANES: usize = 64;

/// Adds the lanes up pairwise. The widths are constants, so that it is done in registers.
#[inline(always)]
pub fn tree_sum(lanes: [f32; LANES]) -> f32 {
    let lanes: [f32; 16] = std::array::from_fn(|i| (lanes[i] + lanes[i + 32]) + (lanes[i + 16] + lanes[i + 48]));
    let lanes: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let lanes: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
    (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
}

/// Sum of `f(a[i], b[i])`.
#[inline(always)]
pub fn sum_map2<A: Element, B: Element>(a: &[A], b: &[B], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a_blocks, a_rest), (b_blocks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for i in 0..LANES {
            lanes[i] += f(x[i].wide(), y[i].wide());
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += f(x.wide(), y.wide());
    }
    tree_sum(lanes)
}

/// Sum of `a[i] * b[i]`.
#[inline(always)]
pub fn dot<A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    sum_map2(a, b, |x, y| x * y)
}

/// Sum of `f(a[i])`.
#[inline(always)]
pub fn sum_map<E: Element>(a: &[E], f: impl Fn(f32) -> f32) -> f32 {
    sum_map2(a, a, |x, _| f(x))
}

/// Largest element, `-inf` of nothing. NaN is not seen: it comes back by the sum of exponentials
/// that follows.
#[inline(always)]
pub fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = a.as_chunks::<LANES>();
    for x in blocks {
        for i in 0..LANES {
            lanes[i] = if x[i] > lanes[i] { x[i] } else { lanes[i] };
        }
    }
    let top = lanes.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
    rest.iter().fold(top, |m, v| if *v > m { *v } else { m })
}

/// The larger of a largest magnitude and that of `x`; NaN if one of them is.
#[inline(always)]
pub fn larger_magnitude(largest: f32, x: f32) -> f32 {
    if x.abs() > largest || x.is_nan() { x.abs() } else { largest }
}

/// `e^x` for a softmax: 0 below `e^-80`.
///
/// Without the cut, products of such probabilities fall into the denormal range, where a CPU is a
/// hundred times slower; the lost values are 35 orders of magnitude below the largest probability.
#[inline(always)]
pub fn exp_or_zero(x: f32) -> f32 {
    if x < -80.0 { 0.0 } else { exp(x) }
}

/// Replaces every element by `exp_or_zero(x - shift)` and returns their sum.
#[inline(always)]
pub fn exp_in_place(a: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = a.as_chunks_mut::<LANES>();
    for x in blocks {
        for i in 0..LANES {
            x[i] = exp_or_zero(x[i] - shift);
            lanes[i] += x[i];
        }
    }
    for (x, lane) in rest.iter_mut().zip(&mut lanes) {
        *x = exp_or_zero(*x - shift);
        *lane += *x;
    }
    tree_sum(lanes)
}

/// `e^x` to about one unit in the last place.
///
/// Range reduction by `ln 2` in two parts, a polynomial of degree 6 on `[-ln 2 / 2, ln 2 / 2]`, and
/// a scaling in two steps so that results near the ends of the range come out right.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which the low bits of the sum then hold.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 5] = [0.001_381_432, 0.008_368_852, 0.041_668_4, 0.166_665_2, 0.499_999_94];
    // Written so that NaN passes through. Beyond these limits the result is 0 or infinite.
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if x > 90.0 { 90.0 } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(r, *coefficient);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let half = exponent >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    p * power(half) * power(exponent - half)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent: a polynomial near zero (Cephes' `tanhf`), exponentials elsewhere.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    const POLYNOMIAL: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let magnitude = x.abs();
    let z = x * x;
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(z, *coefficient);
    }
    let near = (p * z).mul_add(x, x);
    let far = (1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0)).copysign(x);
    if magnitude < 0.625 { near } else { far }
}

/// The standard normal distribution function and density at `x`.
///
/// The tail is `exp(-x^2 / 2)` times a polynomial in `1 / (1 + p |x|)` (the form of Abramowitz and
/// Stegun, 7.1.26, fitted anew for float32), so its relative accuracy holds far to the left.
#[inline(always)]
pub fn normal_cdf_pdf(x: f32) -> (f32, f32) {
    const P: f32 = 0.47 * std::f32::consts::FRAC_1_SQRT_2;
    const POLYNOMIAL: [f32; 9] = [
        -0.044_212_15,
        0.254_633_66,
        -0.538_777_53,
        0.439_703_1,
        -0.107_478_86,
        0.240_484_79,
        0.224_155_1,
        0.266_375_36,
        0.265_116_54,
    ];
    const INVERSE_ROOT_2_PI: f32 = 0.398_942_3;
    let magnitude = x.abs();
    let square = x * x;
    // The rounding error of the square is significant in the exponent.
    let lost = x.mul_add(x, -square);
    let gaussian = exp(-0.5 * square);
    let gaussian = (-0.5 * lost * gaussian) + gaussian;
    let t = 1.0 / P.mul_add(magnitude, 1.0);
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(t, *coefficient);
    }
    let tail = 0.5 * p * t * gaussian;
    // At |x| beyond about 14 the density is 0 and its correction NaN-free; infinities give 0 * inf
    // otherwise.
    let tail = if magnitude < 20.0 { tail } else { 0.0 };
    let density = if magnitude < 20.0 { INVERSE_ROOT_2_PI * gaussian } else { 0.0 };
    let cdf = if x > 0.0 { 1.0 - tail } else { tail };
    if x.is_nan() { (x, x) } else { (cdf, density) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of `f` against `truth`, relative with a floor of `floor` on the magnitude.
    fn worst(f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64, from: f32, to: f32, floor: f64) -> f64 {
        (0..=200_000)
            .map(|i| from + (to - from) * i as f32 / 200_000.0)
            .map(|x| {
                let expected = truth(f64::from(x));
                (f64::from(f(x)) - expected).abs() / expected.abs().max(floor)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_accurate_and_keeps_special_values() {
        assert!(worst(exp, f64::exp, -87.0, 88.7, 0.0) < 2.5e-7);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-100.0) > 0.0, "the denormal range is not cut off");
    }

    #[test]
    fn tanh_and_sigmoid_are_accurate() {
        assert!(worst(tanh, f64::tanh, -12.0, 12.0, 0.0) < 4e-7);
        assert!(worst(tanh, f64::tanh, -1e-3, 1e-3, 1e-30) < 4e-7);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
        assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0, 80.0, 0.0) < 5e-7);
    }

    #[test]
    fn normal_distribution_is_accurate_in_both_tails() {
        // Phi by its continued fraction (left) and by the series of erf (centre), in float64.
        let cdf = |x: f64| {
            if x < -3.0 {
                let z = -x;
                let fraction = (1..=200).rev().fold(z, |f, k| z + f64::from(k) / f);
                return (-0.5 * z * z).exp() / (std::f64::consts::TAU).sqrt() / fraction;
            }
            let (mut term, mut sum) = (x, x);
            for k in 1..200 {
                term *= x * x / f64::from(2 * k + 1);
                sum += term;
            }
            0.5 + sum * (-0.5 * x * x).exp() / (std::f64::consts::TAU).sqrt()
        };
        assert!(worst(|x| normal_cdf_pdf(x).0, cdf, -12.0, 4.0, 0.0) < 1e-6);
        let pdf = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        assert!(worst(|x| normal_cdf_pdf(x).1, pdf, -12.0, 12.0, 0.0) < 5e-7);
        assert_eq!(normal_cdf_pdf(f32::INFINITY), (1.0, 0.0));
        assert_eq!(normal_cdf_pdf(f32::NEG_INFINITY), (0.0, 0.0));
        assert!(normal_cdf_pdf(f32::NAN).0.is_nan());
    }

    #[test]
    fn reductions_take_every_element_once() {
        for n in [0, 1, 63, 64, 65, 131, 1000] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f64 = (0..n).map(|i| f64::from(i * i)).sum();
            assert!((f64::from(dot(&a, &a)) - expected).abs() <= 1e-6 * expected, "n = {n}");
            assert_eq!(max(&a), if n == 0 { f32::NEG_INFINITY } else { (n - 1) as f32 });
        }
    }
}
