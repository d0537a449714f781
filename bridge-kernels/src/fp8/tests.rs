//! Against a plain computation in float64, and the two forms against each other.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor, TensorData};

use super::format::Fp8Format;
use super::rule::{Operand, Share};
use super::*;

const RULES: [Fp8Rule; 6] = [
    Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Current, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E4M3, scaling: Fp8Scaling::Current, weight_gradient: false },
    Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Delayed, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E4M3, scaling: Fp8Scaling::Microscaling, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Blockwise, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E4M3, scaling: Fp8Scaling::Blockwise, weight_gradient: false },
];

/// Batch, sequence, inputs, outputs: blocks that are not full, and several of each kind.
const SHAPES: [[usize; 4]; 4] = [[1, 1, 3, 2], [2, 5, 33, 7], [1, 37, 130, 65], [3, 50, 64, 257]];

/// Scales of input, weight and gradient, if they are given.
const SCALES: [f32; 3] = [96.0, 1024.0, 3000.0];

fn pass(rule: Fp8Rule) -> Fp8Pass {
    let scales = Tensor::from_data(SCALES, &Device::flex());
    Fp8Pass { rule, scales: (rule.scaling == Fp8Scaling::Delayed).then_some(scales), maxima: None }
}

/// Values over many powers of two, in rows and columns of different sizes.
fn values(count: usize, columns: usize, seed: u64, size: f32) -> Vec<f32> {
    let stream = crate::Philox::new(seed);
    let draws = stream.normal_range(0..count, 1.0);
    let grown = |(place, draw): (usize, f32)| {
        let (row, column) = (place / columns, place % columns);
        draw * size * 2.0_f32.powi((row % 5) as i32 - (column % 7) as i32)
    };
    draws.into_iter().enumerate().map(grown).collect()
}

/// The value of `format` nearest to `x`, found by looking at all.
fn nearest(format: Fp8Format, x: f64) -> f64 {
    let codes = (0..=255_u8).filter(|code| format.value(*code).is_finite());
    let distance = |code: &u8| (f64::from(format.value(*code)) - x).abs();
    let best = codes.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    f64::from(format.value(best.expect("a format has values")))
}

/// An operand after its cast, in float64.
fn cast(pass: &Fp8Pass, x: &[f32], [rows, columns]: [usize; 2], operand: Operand) -> Vec<f64> {
    let format = pass.rule.format(operand);
    let [height, width] = match pass.rule.share(operand, Some(&SCALES)) {
        Share::Tensor(_) => [rows, columns],
        Share::Block(block) => block,
    };
    let block = |place: usize| (place / columns / height, place % columns / width);
    let mut largest = HashMap::new();
    for (place, x) in x.iter().enumerate() {
        let largest = largest.entry(block(place)).or_insert(0.0_f32);
        *largest = largest.max(x.abs());
    }
    let scale_of = |largest: f32| match pass.rule.share(operand, Some(&SCALES)) {
        Share::Tensor(given) => given.unwrap_or(format.largest() / largest),
        Share::Block(_) if largest == 0.0 => 1.0,
        Share::Block(_) => 2.0_f64.powf((f64::from(format.largest()) / f64::from(largest)).log2().floor()) as f32,
    };
    let of = |place: usize| {
        let scale = scale_of(largest[&block(place)]);
        nearest(format, f64::from(x[place] * scale)) / f64::from(scale)
    };
    (0..x.len()).map(of).collect()
}

/// `a [m, k]` times `b [k, n]`, by functions of places.
fn product([m, k, n]: [usize; 3], a: impl Fn(usize, usize) -> f64, b: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..m * n).map(|place| (0..k).map(|l| a(place / n, l) * b(l, place % n)).sum()).collect()
}

struct Case {
    shape: [usize; 4],
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

impl Case {
    fn new(shape: [usize; 4]) -> Self {
        let [b, t, i, o] = shape;
        Self {
            shape,
            x: values(b * t * i, i, 1, 1.5),
            weight: values(o * i, i, 2, 0.05),
            bias: values(o, o, 3, 1.0),
            dy: values(b * t * o, o, 4, 0.01),
        }
    }

    /// Output, and gradients of input, weight and bias.
    fn expected(&self, pass: &Fp8Pass) -> [Vec<f64>; 4] {
        let [b, t, i, o] = self.shape;
        let n = b * t;
        let plain = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
        let (x, w) = (cast(pass, &self.x, [n, i], Operand::Input), cast(pass, &self.weight, [o, i], Operand::Weight));
        let mut y = product([n, i, o], |r, l| x[r * i + l], |l, c| w[c * i + l]);
        y.iter_mut().enumerate().for_each(|(place, y)| *y += f64::from(self.bias[place % o]));
        let dy = cast(pass, &self.dy, [n, o], Operand::Gradient);
        let w = cast(pass, &self.weight, [o, i], Operand::WeightAcross);
        let dx = product([n, o, i], |r, l| dy[r * o + l], |l, c| w[l * i + c]);
        let (dy, x) = match pass.rule.weight_gradient {
            true => (
                cast(pass, &self.dy, [n, o], Operand::GradientAcross),
                cast(pass, &self.x, [n, i], Operand::InputAcross),
            ),
            false => (plain(&self.dy), plain(&self.x)),
        };
        let dw = product([o, n, i], |r, l| dy[l * o + r], |l, c| x[l * i + c]);
        let db = (0..o).map(|c| (0..n).map(|r| f64::from(self.dy[r * o + c])).sum()).collect();
        [y, dx, dw, db]
    }

    fn found(&self, f: impl FnOnce(Tensor<3>, Tensor<2>, Tensor<1>) -> Tensor<3>) -> [Vec<f64>; 4] {
        let [b, t, i, o] = self.shape;
        let device = Device::flex().autodiff();
        let tensor3 =
            |x: &[f32], shape: [usize; 3]| Tensor::<3>::from_data(TensorData::new(x.to_vec(), shape), &device);
        let x = tensor3(&self.x, [b, t, i]).require_grad();
        let weight = Tensor::<2>::from_data(TensorData::new(self.weight.clone(), [o, i]), &device).require_grad();
        let bias = Tensor::<1>::from_data(TensorData::new(self.bias.clone(), [o]), &device).require_grad();
        let y = f(x.clone(), weight.clone(), bias.clone());
        let gradients = (y.clone() * tensor3(&self.dy, [b, t, o])).sum().backward();
        let read = |data: TensorData| data.iter::<f64>().collect();
        [
            read(y.into_data()),
            read(x.grad(&gradients).expect("tracked").into_data()),
            read(weight.grad(&gradients).expect("tracked").into_data()),
            read(bias.grad(&gradients).expect("tracked").into_data()),
        ]
    }
}

/// The largest distance, relative to the largest magnitude.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-30_f64, |largest, x| largest.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0_f64, |distance, (a, b)| distance.max((a - b).abs())) / largest
}

#[test]
fn products_and_gradients_are_those_of_float64() {
    for shape in SHAPES {
        let case = Case::new(shape);
        for rule in RULES {
            let pass = pass(rule);
            let expected = case.expected(&pass);
            let kernel = case.found(|x, weight, bias| fp8_linear(x, weight, Some(bias), &pass));
            let plain = case.found(|x, weight, bias| reference(x, weight, Some(bias), &pass));
            for (place, what) in ["y", "dx", "dw", "db"].into_iter().enumerate() {
                for (form, found) in [("kernel", &kernel), ("reference", &plain)] {
                    let distance = distance(&found[place], &expected[place]);
                    assert!(distance < 2e-6, "{form}, {rule:?}, {shape:?}: {what} is {distance:e} away");
                }
            }
        }
    }
}

#[test]
fn eight_bits_are_near_the_product_and_not_equal_to_it() {
    let case = Case::new(SHAPES[2]);
    let exact = case.found(|x, weight, bias| crate::linear(x, weight, Some(bias)));
    for rule in RULES.into_iter().filter(|rule| rule.scaling != Fp8Scaling::Delayed) {
        let pass = pass(rule);
        let found = case.found(|x, weight, bias| fp8_linear(x, weight, Some(bias), &pass));
        for place in 0..3 {
            let distance = distance(&found[place], &exact[place]);
            let is_exact = place == 2 && !rule.weight_gradient;
            assert!(distance < 0.1 && (distance > 1e-4) != is_exact, "{rule:?}: {distance:e} at {place}");
        }
    }
}

#[test]
fn magnitudes_are_noted_forward_and_backward() {
    let case = Case::new(SHAPES[1]);
    let maxima = Arc::new(OperandMaxima::default());
    let watched = Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(RULES[2]) };
    let largest = |x: &[f32]| x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let expected = [largest(&case.x), largest(&case.weight), largest(&case.dy)];
    case.found(|x, weight, bias| fp8_linear(x, weight, Some(bias), &watched));
    assert_eq!(OperandMaxima::take_all([maxima.as_ref()]), [expected]);
    case.found(|x, weight, bias| reference(x, weight, Some(bias), &watched));
    assert_eq!(OperandMaxima::take_all([maxima.as_ref()]), [expected]);
}

#[test]
fn sixteen_bits_are_widened_before_and_rounded_once() {
    let device = Device::flex();
    let make = |dtype| {
        let x = Tensor::<3>::random([2, 5, 48], Distribution::Normal(0.0, 1.0), &device).cast(FloatDType::BF16);
        let weight = Tensor::<2>::random([9, 48], Distribution::Normal(0.0, 0.1), &device).cast(FloatDType::BF16);
        (x.clone().cast(dtype), weight.clone().cast(dtype), x, weight)
    };
    let (x, weight, x16, weight16) = make(FloatDType::F32);
    let pass = pass(RULES[0]);
    let wide = fp8_linear(x, weight, None, &pass).cast(FloatDType::BF16);
    let narrow = fp8_linear(x16, weight16, None, &pass);
    assert_eq!(narrow.dtype(), DType::BF16);
    assert_eq!(narrow.into_data(), wide.into_data());
}

#[test]
fn values_that_are_not_finite_are_seen_in_their_rows_alone() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for rule in RULES {
            let mut case = Case::new(SHAPES[1]);
            case.x[0] = value;
            let outputs = case.shape[3];
            let of_kernel = case.found(|x, weight, bias| fp8_linear(x, weight, Some(bias), &pass(rule)));
            let plain = case.found(|x, weight, bias| reference(x, weight, Some(bias), &pass(rule)));
            for [y, ..] in [of_kernel, plain] {
                let is_local = y[..outputs].iter().all(|y| y.is_nan()) && y[outputs..].iter().all(|y| y.is_finite());
                assert!(is_local, "{rule:?}: {value}");
            }
            // An overflow in backward reaches the gradients, so that the step does not count.
            let mut case = Case::new(SHAPES[1]);
            case.dy[1] = value;
            let [_, dx, dw, _] = case.found(|x, weight, bias| fp8_linear(x, weight, Some(bias), &pass(rule)));
            assert!(dx.iter().chain(&dw).any(|d| !d.is_finite()), "{rule:?}: {value}");
        }
    }
}
