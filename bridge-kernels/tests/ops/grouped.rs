//! Linear layers of several experts.

use bridge_kernels::grouped::{self, GroupedLinear, GroupedMlp, grouped_linear, grouped_mlp};
use bridge_kernels::{Activation, FeedForwardUnit, GatedUnit, linear};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, read, run_all, tensor, values, wide};
use crate::operands::experts::Sizes;
use crate::plain;

impl Sizes<'_> {
    /// In float64.
    fn plain(&self, x: &[f64], v: &[Vec<f64>]) -> Vec<f64> {
        let (mut start, mut y) = (0, Vec::new());
        for (expert, count) in self.counts.iter().enumerate() {
            let end = start + count * self.inputs;
            let bias = v.get(self.counts.len() + expert).map(Vec::as_slice);
            y.extend(plain::linear(&x[start..end], &v[expert], bias, self.inputs));
            start = end;
        }
        y
    }
}

fn check(sizes: &Sizes) {
    let Sizes { counts, inputs, outputs, .. } = *sizes;
    let m = sizes.rows();
    let rows = |t: &[Tensor<1>]| t[0].clone().reshape([m, inputs]);
    Case {
        name: &format!("grouped_linear {counts:?} x {inputs} -> {outputs}, bias {}", sizes.has_bias),
        inputs: [vec![values(1, m * inputs)], sizes.parameters(100)].concat(),
        fast: &|t| grouped_linear(rows(t), counts, &sizes.layer(&t[1..])).reshape([m * outputs]),
        reference: &|t| grouped::reference(rows(t), counts, &sizes.layer(&t[1..])).reshape([m * outputs]),
        plain: &|v| sizes.plain(&v[0], &v[1..]),
    }
    .check();
}

#[test]
fn layers() {
    for has_bias in [false, true] {
        check(&Sizes { counts: &[3, 5, 2], inputs: 7, outputs: 11, has_bias });
        // Experts without rows, at the ends and between.
        check(&Sizes { counts: &[0, 3, 0, 0, 1, 0], inputs: 5, outputs: 3, has_bias });
        check(&Sizes { counts: &[13], inputs: 1, outputs: 2, has_bias });
    }
}

fn check_mlp(counts: &[usize], unit: FeedForwardUnit, has_bias: bool) {
    let (c, f) = (5, 7);
    let before = if matches!(unit, FeedForwardUnit::Gated(_)) { 2 * f } else { f };
    let first = Sizes { counts, inputs: c, outputs: before, has_bias };
    let second = Sizes { counts, inputs: f, outputs: c, has_bias };
    let (m, of_first) = (first.rows(), first.parameters(0).len());
    let mlp = |t: &[Tensor<1>]| {
        let (one, two) = t[1..].split_at(of_first);
        (t[0].clone().reshape([m, c]), GroupedMlp { first: first.layer(one), unit, second: second.layer(two) })
    };
    Case {
        name: &format!("grouped_mlp {counts:?}, {unit:?}, bias {has_bias}"),
        inputs: [vec![values(1, m * c)], first.parameters(100), second.parameters(200)].concat(),
        fast: &|t| {
            let (x, mlp) = mlp(t);
            grouped_mlp(x, counts, &mlp).reshape([m * c])
        },
        reference: &|t| {
            let (x, mlp) = mlp(t);
            grouped::mlp_reference(x, counts, &mlp).reshape([m * c])
        },
        plain: &|v| {
            let (one, two) = v[1..].split_at(of_first);
            let x = first.plain(&v[0], one);
            let hidden: Vec<f64> = match unit {
                FeedForwardUnit::Plain(kind) => plain::activation(&x, kind),
                FeedForwardUnit::Gated(unit) => plain::glu(&x, f, unit),
            };
            second.plain(&hidden, two)
        },
    }
    .check();
}

#[test]
fn feed_forward_blocks() {
    let limited = GatedUnit { clamp: Some(0.9), linear_offset: 1.0, ..Activation::QuickGelu.into() };
    check_mlp(&[3, 0, 2], FeedForwardUnit::Gated(Activation::Silu.into()), false);
    check_mlp(&[1, 2], FeedForwardUnit::Gated(limited), true);
    check_mlp(&[0, 4, 1], FeedForwardUnit::Plain(Activation::GeluTanh), true);
}

/// Results and gradients of products that are cut for threads, bit for bit those of a linear layer
/// an expert.
#[test]
fn large_products_are_those_of_each_expert_by_itself() {
    let (counts, inputs, outputs) = ([131, 0, 257, 1, 96], 129, 211);
    let sizes = Sizes { counts: &counts, inputs, outputs, has_bias: true };
    let all = [vec![values(1, sizes.rows() * inputs)], sizes.parameters(100)].concat();
    let shaped = |t: &[Tensor<1>]| (t[0].clone().reshape([sizes.rows(), inputs]), sizes.layer(&t[1..]));
    let grouped = || {
        run_all(&all, |t| {
            let (x, layer) = shaped(t);
            grouped_linear(x, &counts, &layer).reshape([sizes.rows() * outputs])
        })
    };
    let apart = run_all(&all, |t| {
        let (x, layer) = shaped(t);
        let mut start = 0;
        let mut parts = Vec::new();
        for (expert, count) in counts.into_iter().enumerate() {
            let (weight, bias) = (layer.weights_oi[expert].clone(), layer.biases_o[expert].clone());
            if count > 0 {
                parts.push(linear(x.clone().narrow(0, start, count), weight, Some(bias)));
            } else {
                // An expert without rows has a gradient of zero.
                parts.push(linear(x.clone().narrow(0, 0, 1), weight, Some(bias)).narrow(0, 0, 1) * 0.0);
            }
            start += count;
        }
        let kept = [parts[0].clone(), parts[2].clone(), parts[3].clone(), parts[4].clone()];
        let nothing = parts[1].clone().sum();
        (Tensor::cat(kept.to_vec(), 0) + nothing.reshape([1, 1])).reshape([sizes.rows() * outputs])
    });
    assert!(grouped() == apart, "the grouped product differs from those of the experts");
    assert_same_on_any_threads("grouped_linear", grouped);
}

#[test]
fn no_rows_at_all_are_a_result_with_gradients() {
    let device = Device::flex().autodiff();
    let sizes = Sizes { counts: &[0, 0], inputs: 3, outputs: 5, has_bias: true };
    let parameters: Vec<Tensor<1>> =
        sizes.parameters(100).iter().map(|v| tensor(v, [v.len()], &device).require_grad()).collect();
    let y = grouped_linear(Tensor::zeros([0, 3], &device), &[0, 0], &sizes.layer(&parameters));
    assert_eq!(y.dims(), [0, 5]);
    let gradients = (y.sum() + tensor::<1>(&[1.0], [1], &device).require_grad()).backward();
    for parameter in &parameters {
        let gradient = read(parameter.grad(&gradients).expect("it has its place in the graph"));
        assert!(gradient.iter().all(|g| *g == 0.0));
    }
}

#[test]
fn sixteen_bits_take_the_products_of_each_expert() {
    let sizes = Sizes { counts: &[2, 0, 3], inputs: 7, outputs: 5, has_bias: false };
    let device = Device::flex();
    let flat = |v: &Vec<f32>| tensor(v, [v.len()], &device);
    let (x, parameters) = (flat(&values(1, 35)), sizes.parameters(100).iter().map(flat).collect::<Vec<_>>());
    let narrow = |x: &Tensor<1>| x.clone().cast(FloatDType::BF16);
    let halves: Vec<_> = parameters.iter().map(narrow).collect();
    let y = grouped_linear(narrow(&x).reshape([5, 7]), sizes.counts, &sizes.layer(&halves));
    let expected = grouped_linear(x.reshape([5, 7]), sizes.counts, &sizes.layer(&parameters));
    assert_close("bfloat16", &read(y), &wide(&read(expected)), 1e-2);
}

#[test]
#[should_panic(expected = "grouped_linear: the experts' rows are those of the input")]
fn counts_that_do_not_fit_are_named() {
    let device = Device::flex();
    let layer = GroupedLinear { weights_oi: vec![Tensor::zeros([2, 3], &device)], biases_o: Vec::new() };
    grouped_linear(Tensor::zeros([4, 3], &device), &[3], &layer);
}
