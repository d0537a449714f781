//! AdamW and sums of squares.

use bridge_kernels::optim::{
    AdamW, AdamWState, AdamWUpdates, GradientSums, SquareSums, UpdateStep, accumulate, adamw, adamw_reference,
    adamw_rounded, cube, reads_16_bits, sum_of_squares,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{assert_close, device, read, tensor, values};

/// Sizes of more tensors than a launch takes, in an order in which vectors of all widths, and
/// groups with other constants, alternate.
const SIZES: [usize; 37] = [
    1, 768, 601, 7, 4096, 33, 2, 70_001, 16, 5, 3072, 9, 1024, 31, 12, 17_000, 640, 11, 4, 768, 768, 768, 13, 2304,
    768, 6, 1536, 768, 3, 40_000, 8, 768, 19, 20, 768, 64, 10,
];

fn rule(decoupled: bool) -> AdamW {
    AdamW { beta1: 0.9, beta2: 0.95, epsilon: 2e-8, decoupled }
}

fn step(number: u64) -> UpdateStep<'static> {
    UpdateStep { learning_rate: 0.01, weight_decay: 0.1, eps_mult: 0.5, number, gradient_scale: 0.25, shape: &[] }
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
            let (rule, step) = (rule(decoupled), step(number));
            assert!(cube::applies_to(&fused, &flat(&gradient, &device())));
            fused = adamw(fused, flat(&gradient, &device()), &rule, &step);
            expected = adamw_reference(expected, flat(&gradient, &Device::flex()), &rule, &step);
            for (got, want) in read_all(&fused).iter().zip(read_all(&expected)) {
                assert_close(&format!("step {number} of {n}"), got, &want, 1e-6);
            }
        }
    }
}

/// 16-bit gradients, and parameters rounded in the same pass, equal casts around a float32 step to
/// the bit.
#[test]
fn parameters_of_16_bits() {
    for (dtype, _) in crate::half::dtypes() {
        for n in [1, 7, 601, 4096] {
            let (mut fused, mut expected) = (start(n, &device()), start(n, &device()));
            for number in 1..=3 {
                let gradient = flat(&values(10 + number, n), &device()).cast(dtype);
                let previous = fused.parameter.clone().cast(dtype);
                let (state, rounded) = adamw_rounded(fused, gradient.clone(), &rule(true), &step(number), previous);
                assert_eq!(rounded.dtype(), dtype.into());
                expected = adamw(expected, gradient.cast(FloatDType::F32), &rule(true), &step(number));
                assert_eq!(read_all(&state), read_all(&expected));
                assert_eq!(read(rounded), read(expected.parameter.clone().cast(dtype)));
                fused = state;
            }
        }
    }
}

/// AdamW written out in float64: parameter and moments of one element.
fn in_float64([p, m, v]: [f64; 3], gradient: f64, rule: &AdamW, step: &UpdateStep<'_>) -> [f64; 3] {
    let g = gradient * step.gradient_scale + if rule.decoupled { 0.0 } else { step.weight_decay * p };
    let (m, v) = (rule.beta1 * m + (1.0 - rule.beta1) * g, rule.beta2 * v + (1.0 - rule.beta2) * g * g);
    let n = step.number as i32;
    let (m_hat, v_hat) = (m / (1.0 - rule.beta1.powi(n)), v / (1.0 - rule.beta2.powi(n)));
    let kept = if rule.decoupled { p * (1.0 - step.learning_rate * step.weight_decay) } else { p };
    [kept - step.learning_rate * m_hat / (v_hat.sqrt() + rule.epsilon * step.eps_mult), m, v]
}

/// Many tensors with two sets of constants, some with a rounded value and 16-bit gradients. Results
/// equal single updates to the bit, and agree with float64.
#[test]
fn tensors_of_one_launch_are_updated_as_by_themselves() {
    let dtypes = crate::half::dtypes().into_iter().map(|(dtype, _)| dtype);
    let rules = [true, false].map(rule);
    let steps = |number| [step(number), UpdateStep { weight_decay: 0.0, ..step(number) }];
    for dtype in dtypes.map(Some).chain([None]) {
        for count in [1, 2, 5, 16, 17, SIZES.len()] {
            let sizes = &SIZES[..count];
            let begin = || -> Vec<AdamWState> { sizes.iter().map(|n| start(*n, &device())).collect() };
            let (mut together, mut alone) = (begin(), begin());
            let mut wide: Vec<Vec<[f64; 3]>> =
                sizes.iter().map(|n| values(1, *n).iter().map(|p| [f64::from(*p), 0.0, 0.0]).collect()).collect();
            for number in 1..=2 {
                let gradient = |i: usize, n: usize| {
                    let gradient = flat(&values(100 * number + i as u64, n), &device());
                    dtype.map_or(gradient.clone(), |dtype| gradient.cast(dtype))
                };
                let previous = |state: &AdamWState| dtype.map(|dtype| state.parameter.clone().cast(dtype));
                let mut updates = AdamWUpdates::default();
                let mut rounded = Vec::new();
                for (i, state) in together.iter_mut().enumerate() {
                    let (gradient, previous) = (gradient(i, sizes[i]), previous(state));
                    let before = std::mem::replace(state, start(1, &device()));
                    let (after, narrow) = updates.add(before, gradient, &rules[i % 2], &steps(number)[i % 2], previous);
                    *state = after;
                    rounded.push(narrow);
                }
                updates.finish();
                for (i, state) in alone.iter_mut().enumerate() {
                    let (gradient, rule, step) = (gradient(i, sizes[i]), &rules[i % 2], steps(number)[i % 2]);
                    let wide_gradient = read(gradient.clone().cast(FloatDType::F32));
                    for (element, g) in wide[i].iter_mut().zip(wide_gradient) {
                        *element = in_float64(*element, f64::from(g), rule, &step);
                    }
                    let before = std::mem::replace(state, start(1, &device()));
                    let (after, narrow) = match previous(&before) {
                        Some(previous) => {
                            let (after, narrow) = adamw_rounded(before, gradient, rule, &step, previous);
                            (after, Some(narrow))
                        }
                        None => (adamw(before, gradient, rule, &step), None),
                    };
                    assert_eq!(read_all(&after), read_all(&together[i]), "tensor {i} of {count}, {dtype:?}");
                    assert_eq!(narrow.map(read), rounded[i].clone().map(read), "tensor {i} of {count}, {dtype:?}");
                    *state = after;
                }
            }
            for (i, state) in together.iter().enumerate() {
                for (which, found) in read_all(state).iter().enumerate() {
                    let expected: Vec<f32> = wide[i].iter().map(|element| element[which] as f32).collect();
                    assert_close(&format!("{which} of tensor {i} of {count}, float64"), found, &expected, 2e-6);
                }
            }
        }
    }
}

/// Identity of a tensor's memory.
fn memory(x: &Tensor<1>) -> String {
    let x = x.clone().try_into_primitive::<burn::backend::Cube>().expect("it is on a CubeCL device");
    // The place is only known when the device has come so far; the number stays.
    let memory = format!("{:?}", x.handle.memory);
    let number = memory.split(", location").next().expect("all texts have a beginning");
    format!("{number} from {:?}", x.handle.offset_start)
}

/// States and the rounded parameter keep their memory from step to step, unless it is shared.
#[test]
fn memory_is_written_again() {
    let dtype = crate::half::dtypes()[0].0;
    let gradient = flat(&values(2, 601), &device());
    let state = start(601, &device());
    let previous = state.parameter.clone().cast(dtype);
    let places = |state: &AdamWState, rounded: &Tensor<1>| {
        [&state.parameter, &state.exp_avg, &state.exp_avg_sq, rounded].map(memory)
    };
    let before = places(&state, &previous);
    assert!((0..4).all(|i| (0..i).all(|j| before[i] != before[j])), "four places: {before:?}");
    let (state, rounded) = adamw_rounded(state, gradient.clone(), &rule(true), &step(1), previous);
    assert_eq!(places(&state, &rounded), before);
    let held = rounded.clone();
    let values = read(held.clone());
    let (state, rounded) = adamw_rounded(state, gradient, &rule(true), &step(2), rounded);
    assert_eq!(places(&state, &rounded)[..3], before[..3]);
    assert_ne!(memory(&rounded), before[3]);
    assert_eq!(read(held), values);
    assert_ne!(read(rounded), values);
}

/// Sums in place if the sum is exclusive, and without a 32-bit copy of 16-bit gradients.
#[test]
fn gradients_add_up() {
    let dtypes = crate::half::dtypes().into_iter().map(|(dtype, _)| dtype).chain([FloatDType::F32]);
    for dtype in dtypes {
        for n in [1, 7, 601, 4096] {
            let sum = flat(&values(1, n), &device());
            let gradient = flat(&values(2, n), &device()).cast(dtype);
            assert!(cube::adds(&sum, &gradient));
            let expected = read(sum.clone() + gradient.clone().cast(FloatDType::F32));
            let view = flat(&values(1, 2 * n), &device()).narrow(0, 0, n);
            assert_eq!(read(accumulate(view.clone(), gradient.clone())), expected);
            assert_eq!(read(view), values(1, 2 * n)[..n], "others see what they had");
            assert_eq!(read(accumulate(sum, gradient)), expected);
        }
    }
}

fn added(first: Tensor<1>, second: Tensor<1>) -> Tensor<1> {
    let mut sums = GradientSums::default();
    let sum = sums.add(first, second);
    sums.launch();
    sum
}

/// Sums of all widths, dtypes and both kinds, more than a launch takes: the bits are those of
/// float32, and shared memory does not change.
#[test]
fn sums_of_one_launch_are_those_of_single_tensors() {
    let dtypes: Vec<FloatDType> =
        crate::half::dtypes().into_iter().map(|(dtype, _)| dtype).chain([FloatDType::F32]).collect();
    for count in [1, 2, 16, SIZES.len()] {
        let mut sums = GradientSums::default();
        let (mut found, mut expected, mut held) = (Vec::new(), Vec::new(), Vec::new());
        for (i, n) in SIZES[..count].iter().enumerate() {
            let [first, second] = [i, i / 2].map(|place| dtypes[place % dtypes.len()]);
            let first = flat(&values(i as u64, *n), &device()).cast(first);
            let second = flat(&values(100 + i as u64, *n), &device()).cast(second);
            let wide = |x: &Tensor<1>| read(x.clone().cast(FloatDType::F32));
            expected.push(wide(&first).iter().zip(wide(&second)).map(|(a, b)| a + b).collect::<Vec<f32>>());
            if i % 5 == 0 {
                held.push((first.clone(), wide(&first)));
            }
            found.push(sums.add(first, second));
        }
        sums.launch();
        for (i, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            assert_eq!(found.dtype(), FloatDType::F32.into());
            assert_eq!(read(found), expected, "tensor {i} of {count}");
        }
        for (x, before) in held {
            assert_eq!(read(x.cast(FloatDType::F32)), before);
        }
    }
}

/// Two gradients of 16 bits add up as their float32 values do, and have their sums of squares, to
/// the bit.
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
            for (a, b) in
                [(first.clone(), second.clone()), (wide(&first), second.clone()), (first.clone(), wide(&second))]
            {
                let sum = added(a, b);
                assert_eq!(sum.dtype(), FloatDType::F32.into());
                assert_eq!(read(sum), expected, "{dtype:?}, n = {n}");
            }
            let view = flat(&values(1, 2 * n), &device()).cast(dtype).narrow(0, n, n);
            assert_eq!(read(added(view.clone(), second.clone())), read(wide(&view) + wide(&second)));
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
    let next = adamw(state.clone(), gradient.clone(), &rule(true), &step(1));
    let from_view = adamw(view, gradient.clone(), &rule(true), &step(1));
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
        let index = blocks.add(&x).expect("it applies");
        let sum = blocks.finish(&[index], Vec::new()).0[0];
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
    let others = vec![flat(&[3.0, 4.0], &device()), flat(&[5.0], &device())];
    let (found, others) = sums.finish_with(others);
    assert_eq!(found, expected);
    assert_eq!(
        others.iter().map(|x| x.iter::<f32>().collect()).collect::<Vec<Vec<f32>>>(),
        [vec![3.0, 4.0], vec![5.0]]
    );
    assert_eq!(SquareSums::default().finish(), Vec::<f64>::new());
}

/// Tensors of all dtypes and widths in turn, more than a launch takes: each has the same sum as
/// alone, to the bit, and agrees with float64.
#[test]
fn sums_of_squares_of_one_launch_are_those_of_single_tensors() {
    let dtypes: Vec<FloatDType> =
        crate::half::dtypes().into_iter().map(|(dtype, _)| dtype).chain([FloatDType::F32]).collect();
    for count in [2, 15, 16, SIZES.len()] {
        let mut sums = SquareSums::default();
        let (mut single, mut exact) = (Vec::new(), Vec::new());
        for (i, n) in SIZES[..count].iter().enumerate() {
            let x = flat(&values(i as u64, *n), &device()).cast(dtypes[i % dtypes.len()]);
            sums.add(&x);
            if i == 9 {
                sums.launch();
            }
            exact.push(read(x.clone().cast(FloatDType::F32)).iter().map(|v| f64::from(*v).powi(2)).sum::<f64>());
            single.push(sum_of_squares(&x));
        }
        let found = sums.finish();
        assert_eq!(found, single, "{count}");
        for (found, exact) in found.iter().zip(&exact) {
            assert!((found - exact).abs() <= 1e-6 * exact, "{count}: {found}, expected {exact}");
        }
    }
}
