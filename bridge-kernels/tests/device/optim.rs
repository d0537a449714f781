//! AdamW and sums of squares.

use bridge_kernels::optim::cube;
use bridge_kernels::optim::{
    AdamWState, AdamWStep, SquareSums, accumulate, adamw, adamw_reference, adamw_rounded, reads_16_bits, sum_of_squares,
    sum_widened,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{assert_close, device, read, tensor, values};

fn step(number: u64, decoupled: bool) -> AdamWStep {
    AdamWStep {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        decoupled,
        step: number,
        gradient_scale: 0.25,
    }
}

fn flat(values: &[f32], device: &Device) -> Tensor<1> {
    tensor(values, [values.len()], device)
}

fn start(n: usize, device: &Device) -> AdamWState {
    AdamWState {
        parameter: flat(&values(1, n), device),
        exp_avg: flat(&vec![0.0; n], device),
        exp_avg_sq: flat(&vec![0.0; n], device),
    }
}

fn read_all(state: &AdamWState) -> [Vec<f32>; 3] {
    [&state.parameter, &state.exp_avg, &state.exp_avg_sq].map(|x| read(x.clone()))
}

#[test]
fn several_steps() {
    for (n, decoupled) in [(1, true), (601, false), (70_001, true)] {
        let (mut fused, mut expected) = (start(n, &device()), start(n, &Device::flex()));
        for number in 1..=3 {
            let gradient = values(10 + number, n);
            let step = step(number, decoupled);
            assert!(cube::applies_to(&fused, &flat(&gradient, &device())));
            fused = cube::adamw(fused, &flat(&gradient, &device()), &step, None).0;
            expected = adamw_reference(expected, flat(&gradient, &Device::flex()), &step);
            for (got, want) in read_all(&fused).iter().zip(read_all(&expected)) {
                assert_close(&format!("step {number} of {n}"), got, &want, 1e-6);
            }
        }
    }
}

/// Gradients of 16 bits, and parameters rounded in the same pass: what casts around a step in float32 give, to the bit.
#[test]
fn parameters_of_16_bits() {
    for (dtype, _) in crate::half::dtypes() {
        for n in [1, 7, 601, 4096] {
            let (mut fused, mut expected) = (start(n, &device()), start(n, &device()));
            for number in 1..=3 {
                let gradient = flat(&values(10 + number, n), &device()).cast(dtype);
                let (state, rounded) = adamw_rounded(fused, gradient.clone(), &step(number, true), dtype);
                assert_eq!(rounded.dtype(), dtype.into());
                expected = adamw(expected, gradient.cast(FloatDType::F32), &step(number, true));
                assert_eq!(read_all(&state), read_all(&expected));
                assert_eq!(read(rounded), read(expected.parameter.clone().cast(dtype)));
                fused = state;
            }
        }
    }
}

/// In place where nobody else has the sum, and of gradients of 16 bits without a copy in 32.
#[test]
fn gradients_add_up() {
    let dtypes = crate::half::dtypes().into_iter().map(|(dtype, _)| dtype).chain([FloatDType::F32]);
    for dtype in dtypes {
        for n in [1, 7, 601, 4096] {
            let sum = flat(&values(1, n), &device());
            let gradient = flat(&values(2, n), &device()).cast(dtype);
            assert!(cube::can_accumulate(&sum, &gradient));
            let expected = read(sum.clone() + gradient.clone().cast(FloatDType::F32));
            let view = flat(&values(1, 2 * n), &device()).narrow(0, 0, n);
            assert_eq!(read(accumulate(view.clone(), gradient.clone())), expected);
            assert_eq!(read(view), values(1, 2 * n)[..n], "others see what they had");
            assert_eq!(read(accumulate(sum, gradient)), expected);
        }
    }
}

/// Two gradients of 16 bits add up as their float32 values do, and have their sums of squares, to the bit.
#[test]
fn gradients_of_16_bits_stand_for_their_float32() {
    for (dtype, _) in crate::half::dtypes() {
        for n in [1, 7, 601, 20_000] {
            let [first, second] = [1, 2].map(|seed| flat(&values(seed, n), &device()).cast(dtype));
            let wide = |x: &Tensor<1>| x.clone().cast(FloatDType::F32);
            assert!(reads_16_bits(&first) && !reads_16_bits(&wide(&first)));
            let expected = read(accumulate(wide(&first), second.clone()));
            let exact: Vec<f32> = read(wide(&first)).iter().zip(read(wide(&second))).map(|(a, b)| a + b).collect();
            assert_eq!(expected, exact);
            for (a, b) in [(first.clone(), second.clone()), (wide(&first), second.clone()), (first.clone(), wide(&second))]
            {
                let sum = sum_widened(a, b);
                assert_eq!(sum.dtype(), FloatDType::F32.into());
                assert_eq!(read(sum), expected, "{dtype:?}, n = {n}");
            }
            let view = flat(&values(1, 2 * n), &device()).cast(dtype).narrow(0, n, n);
            assert_eq!(read(sum_widened(view.clone(), second.clone())), read(wide(&view) + wide(&second)));
            assert_eq!(sum_of_squares(&first), sum_of_squares(&wide(&first)), "{dtype:?}, n = {n}");
        }
    }
}

#[test]
fn what_others_hold_is_left_alone() {
    let state = start(20, &device());
    let before = read_all(&state);
    let whole = flat(&values(7, 40), &device());
    let view = AdamWState { parameter: whole.clone().narrow(0, 8, 20), ..state.clone() };
    let gradient = flat(&values(2, 20), &device());
    let next = adamw(state.clone(), gradient.clone(), &step(1, true));
    let from_view = adamw(view, gradient.clone(), &step(1, true));
    assert_eq!(read_all(&state), before);
    assert_eq!(read(gradient), values(2, 20));
    assert_eq!(read(whole), values(7, 40));
    assert_ne!(read(next.parameter), before[0]);
    assert_ne!(read(from_view.parameter), values(7, 40)[8..28]);
}

#[test]
fn sums_of_squares() {
    for n in [1, 31, 16_384, 100_003] {
        let x = values(1, n);
        let expected: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let x = flat(&x, &device());
        let mut blocks = cube::BlockSums::default();
        let place = blocks.add(&x).expect("it applies");
        let sum = blocks.finish(&[place])[0];
        assert!((sum - expected).abs() <= 1e-6 * expected, "n = {n}: {sum}, expected {expected}");
        assert_eq!(sum_of_squares(&x), sum, "the public function takes the kernel");
    }
    let view = flat(&values(1, 50), &device()).narrow(0, 3, 11);
    let expected: f64 = values(1, 50)[3..14].iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    assert!((sum_of_squares(&view) - expected).abs() <= 1e-6 * expected);
    assert!(!sum_of_squares(&flat(&[f32::INFINITY, 1.0], &device())).is_finite());
    assert!(!sum_of_squares(&flat(&[f32::NAN, 1.0], &device())).is_finite());
    assert_eq!(sum_of_squares(&flat(&[], &device())), 0.0);
}

#[test]
fn sums_of_squares_are_read_together() {
    let mut sums = SquareSums::default();
    let mut expected = Vec::new();
    for (seed, n) in [(1, 40_000), (2, 0), (3, 1), (4, 16_385)] {
        let x = flat(&values(seed, n), &device());
        sums.add(&x);
        expected.push(sum_of_squares(&x));
    }
    assert_eq!(sums.finish(), expected);
    assert_eq!(SquareSums::default().finish(), Vec::<f64>::new());
}
