//! Optimizer arithmetic.

use bridge_kernels::optim::{
    AdamW, AdamWState, AdamWUpdates, GradientSums, SquareSums, UpdateStep, accumulate, adamw, adamw_reference,
    adamw_rounded, count_zeros, reads_16_bits, sgd, sgd_reference, sum_of_squares,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{assert_close, assert_same_on_any_threads, read, tensor, values, wide};

pub fn flat(values: &[f32]) -> Tensor<1> {
    tensor(values, [values.len()], &Device::flex())
}

pub fn rule(decoupled: bool) -> AdamW {
    AdamW { beta1: 0.9, beta2: 0.95, epsilon: 2e-8, decoupled }
}

pub fn step(number: u64) -> UpdateStep<'static> {
    UpdateStep { learning_rate: 1e-2, weight_decay: 0.1, eps_mult: 0.5, number, gradient_scale: 0.5, shape: &[] }
}

/// AdamW of one element in float64.
fn plain_adamw(state: &mut [f64; 3], gradient: f64, r: &AdamW, s: &UpdateStep<'_>) {
    let [p, m, v] = state;
    let mut g = gradient * s.gradient_scale;
    if r.decoupled {
        *p -= s.learning_rate * s.weight_decay * *p;
    } else {
        g += s.weight_decay * *p;
    }
    *m = r.beta1 * *m + (1.0 - r.beta1) * g;
    *v = r.beta2 * *v + (1.0 - r.beta2) * g * g;
    let (m, v) = (*m / (1.0 - r.beta1.powf(s.number as f64)), *v / (1.0 - r.beta2.powf(s.number as f64)));
    *p -= s.learning_rate * m / (v.sqrt() + r.epsilon * s.eps_mult);
}

#[test]
fn adamw_follows_float64_and_its_reference_over_steps() {
    for rule in [true, false].map(rule) {
        for n in [0, 1, 67, 40_009] {
            let start = values(1, n);
            let zeros = vec![0.0; n];
            let state = |p: &[f32]| AdamWState { parameter: flat(p), exp_avg: flat(&zeros), exp_avg_sq: flat(&zeros) };
            let (mut fast, mut reference) = (state(&start), state(&start));
            let mut plain: Vec<[f64; 3]> = start.iter().map(|p| [f64::from(*p), 0.0, 0.0]).collect();
            for i in 1..=3 {
                let (gradient, step) = (values(10 + i, n), step(i));
                fast = adamw(fast, flat(&gradient), &rule, &step);
                reference = adamw_reference(reference, flat(&gradient), &rule, &step);
                plain.iter_mut().zip(&gradient).for_each(|(state, g)| plain_adamw(state, f64::from(*g), &rule, &step));
            }
            let column = |i: usize| plain.iter().map(|state| state[i]).collect::<Vec<_>>();
            for (i, (fast, reference)) in [
                (fast.parameter, reference.parameter),
                (fast.exp_avg, reference.exp_avg),
                (fast.exp_avg_sq, reference.exp_avg_sq),
            ]
            .into_iter()
            .enumerate()
            {
                let fast = read(fast);
                assert_close("adamw", &fast, &column(i), 1e-6);
                assert_close("reference", &fast, &wide(&read(reference)), 1e-6);
            }
        }
    }
}

#[test]
fn shared_and_sliced_parameters_are_left_alone() {
    let whole = flat(&values(1, 30));
    let before = read(whole.clone());
    let slice = whole.clone().narrow(0, 5, 20);
    let state = AdamWState { parameter: slice, exp_avg: flat(&[0.0; 20]), exp_avg_sq: flat(&[0.0; 20]) };
    let gradient = flat(&values(2, 20));
    let next = adamw(state, gradient.clone(), &rule(true), &step(1));
    assert_eq!(read(whole), before, "the buffer that the slice came from");
    assert_eq!(read(gradient), values(2, 20));
    let direct =
        AdamWState { parameter: flat(&before[5..25]), exp_avg: flat(&[0.0; 20]), exp_avg_sq: flat(&[0.0; 20]) };
    let direct = adamw(direct, flat(&values(2, 20)), &rule(true), &step(1));
    assert_eq!(read(next.parameter), read(direct.parameter));
}

#[test]
fn sgd_and_accumulation_follow_their_references() {
    let step = UpdateStep { learning_rate: 0.1, weight_decay: 0.01, ..step(1) };
    for n in [1, 33_000] {
        let [p, m, g] = [1, 2, 3].map(|seed| flat(&values(seed, n)));
        let fast = sgd(p.clone(), m.clone(), g.clone(), 0.9, &step);
        let reference = sgd_reference(p.clone(), m.clone(), g.clone(), 0.9, &step);
        assert_close("parameter", &read(fast.0), &wide(&read(reference.0)), 1e-6);
        assert_close("momentum", &read(fast.1), &wide(&read(reference.1)), 1e-6);
        let expected: Vec<f32> = values(1, n).iter().zip(values(3, n)).map(|(a, b)| a + b).collect();
        assert_eq!(read(accumulate(p.clone(), g)), expected);
        assert_eq!(read(p), values(1, n), "a shared accumulator is copied");
    }
}

/// Updates in a batch or not, with 16-bit gradients and a rounded value, equal casts around a
/// float32 step.
#[test]
fn parameters_of_16_bits() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let start = |n| {
            let zeros = vec![0.0; n];
            AdamWState { parameter: flat(&values(1, n)), exp_avg: flat(&zeros), exp_avg_sq: flat(&zeros) }
        };
        let mut updates = AdamWUpdates::default();
        for n in [1, 31, 1_025] {
            let gradient = flat(&values(2, n)).cast(dtype);
            assert_eq!(reads_16_bits(&gradient), dtype == FloatDType::BF16, "float16 is widened once");
            let expected = adamw(start(n), gradient.clone().cast(FloatDType::F32), &rule(true), &step(1)).parameter;
            let previous = start(n).parameter.cast(dtype);
            let of_batch = updates.add(start(n), gradient.clone(), &rule(true), &step(1), Some(previous.clone()));
            let (state, rounded) = adamw_rounded(start(n), gradient, &rule(true), &step(1), previous);
            for (state, rounded) in [(state, Some(rounded)), of_batch] {
                let rounded = rounded.expect("a previous value was given");
                assert_eq!((read(state.parameter), rounded.dtype()), (read(expected.clone()), dtype.into()));
                assert_eq!(
                    read(rounded.cast(FloatDType::F32)),
                    read(expected.clone().cast(dtype).cast(FloatDType::F32))
                );
            }
        }
        updates.finish();
    }
}

#[test]
fn gradients_of_16_bits_add_up_in_float32() {
    let dtypes = [FloatDType::BF16, FloatDType::F16, FloatDType::F32];
    for (a, b) in dtypes.iter().flat_map(|a| dtypes.iter().map(move |b| (*a, *b))) {
        for n in [1, 33, 1_500] {
            let (first, second) = (flat(&values(1, n)).cast(a), flat(&values(2, n)).cast(b));
            let wide = |x: &Tensor<1>| read(x.clone().cast(FloatDType::F32));
            let expected: Vec<f32> = wide(&first).iter().zip(wide(&second)).map(|(a, b)| a + b).collect();
            let mut sums = GradientSums::default();
            let sum = sums.add(first.clone(), second.clone());
            sums.launch();
            assert_eq!(sum.dtype(), FloatDType::F32.into());
            assert_eq!(read(sum), expected, "{a:?} and {b:?}");
            if a == FloatDType::F32 {
                assert_eq!(read(accumulate(first, second)), expected, "{b:?} onto float32");
            }
        }
    }
}

#[test]
fn sums_and_counts() {
    for n in [0, 1, 31, 100_003] {
        let mut x = values(1, n);
        x.iter_mut().step_by(7).for_each(|v| *v = 0.0);
        let expected: f64 = wide(&x).iter().map(|v| v * v).sum();
        assert!((sum_of_squares(&flat(&x)) - expected).abs() <= 1e-12 * expected, "n = {n}");
        assert_eq!(count_zeros(&flat(&x)), n.div_ceil(7) as u64, "n = {n}");
    }
    let view = flat(&values(1, 50)).narrow(0, 3, 11);
    let expected: f64 = wide(&values(1, 50)[3..14]).iter().map(|v| v * v).sum();
    assert!((sum_of_squares(&view) - expected).abs() <= 1e-12 * expected);
    assert!(sum_of_squares(&flat(&[f32::INFINITY, 1.0])).is_infinite());
    assert!(sum_of_squares(&flat(&[f32::NAN, 1.0])).is_nan());
    let mut sums = SquareSums::default();
    let all = [3, 0, 1_500].map(|n| flat(&values(n as u64 + 1, n)));
    all.iter().for_each(|x| sums.add(x));
    assert_eq!(sums.finish(), all.iter().map(sum_of_squares).collect::<Vec<_>>());
}

#[test]
fn the_same_on_any_number_of_threads() {
    let n = 200_003;
    assert_same_on_any_threads("optimizer", || {
        let state = AdamWState {
            parameter: flat(&values(1, n)),
            exp_avg: flat(&values(2, n)),
            exp_avg_sq: flat(&vec![0.5; n]),
        };
        let state = adamw(state, flat(&values(4, n)), &rule(true), &step(3));
        let squares = sum_of_squares(&state.parameter).to_bits();
        let halves = vec![f32::from_bits(squares as u32), f32::from_bits((squares >> 32) as u32)];
        vec![read(state.parameter), read(state.exp_avg), read(state.exp_avg_sq), halves]
    });
}

#[test]
#[should_panic(expected = "adamw: parameter, moments and gradient have sizes [3, 3, 3, 2]")]
fn different_sizes_are_named() {
    let state = AdamWState { parameter: flat(&[0.0; 3]), exp_avg: flat(&[0.0; 3]), exp_avg_sq: flat(&[0.0; 3]) };
    adamw(state, flat(&[0.0; 2]), &rule(true), &step(1));
}
