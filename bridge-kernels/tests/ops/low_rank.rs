//! Linear layer with low-rank branches.

#![expect(clippy::single_range_in_vec_init, reason = "the rows of a branch are some ranges")]

use std::ops::Range;

use bridge_kernels::low_rank::{
    LowRank, LowRankSum, linear_low_rank, low_rank_row_squares, low_rank_sum, reference, reference_row_squares,
};
use bridge_kernels::{
    Activation, GatedUnit, Recomputable, activation_recomputable, glu_recomputable, residual_layer_norm,
    residual_rms_norm,
};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, read, run_all, tensor, values, wide};
use crate::plain;

/// Rows, inputs and outputs of a layer, and of its branches the rank and the outputs.
struct Layer {
    n: usize,
    inputs: usize,
    outputs: usize,
    branches: Vec<(usize, Vec<Range<usize>>)>,
}

const SCALES: [f64; 2] = [0.7, 1.9];

impl Layer {
    fn counts(&self) -> Vec<usize> {
        let rows = |places: &[Range<usize>]| places.iter().map(Range::len).sum::<usize>();
        let matrices = self.branches.iter().flat_map(|(rank, places)| [rank * self.inputs, rows(places) * rank]);
        let Self { n, inputs, outputs, .. } = *self;
        [n * inputs, outputs * inputs, outputs, outputs, n * outputs].into_iter().chain(matrices).collect()
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.counts().iter().enumerate().map(|(index, count)| values(index as u64 + 1, *count)).collect()
    }

    fn branches(&self, t: &[Tensor<1>]) -> Vec<LowRank> {
        let branch = |(index, (rank, places)): (usize, &(usize, Vec<Range<usize>>))| {
            let rows = places.iter().map(Range::len).sum::<usize>();
            LowRank {
                a_ri: t[5 + 2 * index].clone().reshape([*rank, self.inputs]),
                b_pr: t[6 + 2 * index].clone().reshape([rows, *rank]),
                scale: SCALES[index],
                outputs: places.clone(),
            }
        };
        self.branches.iter().enumerate().map(branch).collect()
    }

    fn check(&self) {
        type Sum = fn(Tensor<2>, Tensor<2>, Option<Tensor<1>>, LowRankSum, Option<Tensor<2>>) -> Tensor<2>;
        let Self { n, inputs, outputs, .. } = *self;
        for (is_plain, name) in [(true, "branches"), (false, "branches, factors, bias, residual")] {
            let run = |t: &[Tensor<1>], sum: Sum| {
                let x_ni = t[0].clone().reshape([n, inputs]);
                let branches = self.branches(t);
                let given = |index: usize| Some(t[index].clone()).filter(|_| !is_plain);
                let sum_of = LowRankSum { branches, factors_o: given(3) };
                let residual = given(4).map(|residual| residual.reshape([n, outputs]));
                let y_no = sum(x_ni, t[1].clone().reshape([outputs, inputs]), given(2), sum_of, residual);
                // All inputs have a gradient, also those that are not used.
                let rest = t[2].clone().sum() + t[3].clone().sum() + t[4].clone().sum();
                y_no.reshape([n * outputs]) + rest * 0.0
            };
            Case {
                name: &format!("{name} {n} x {inputs} -> {outputs}"),
                inputs: self.values(),
                fast: &|t| run(t, linear_low_rank),
                reference: &|t| run(t, reference),
                plain: &|v| self.plain(v, is_plain),
            }
            .check();
        }
    }

    fn plain(&self, v: &[Vec<f64>], is_plain: bool) -> Vec<f64> {
        let Self { n, inputs, outputs, .. } = *self;
        let mut z = plain::linear(&v[0], &v[1], None, inputs);
        for (index, (rank, places)) in self.branches.iter().enumerate() {
            let u = plain::linear(&v[0], &v[5 + 2 * index], None, inputs);
            let added = plain::linear(&u, &v[6 + 2 * index], None, *rank);
            let columns: Vec<usize> = places.iter().cloned().flatten().collect();
            for row in 0..n {
                for (place, column) in columns.iter().enumerate() {
                    z[row * outputs + column] += SCALES[index] * added[row * columns.len() + place];
                }
            }
        }
        if is_plain {
            return z;
        }
        let scaled = z.iter().enumerate().map(|(at, value)| v[4][at] + v[3][at % outputs] * value + v[2][at % outputs]);
        scaled.collect()
    }
}

/// Branches of the whole layer, of all its parts, and of some of its parts.
fn layers() -> Vec<Layer> {
    vec![
        Layer { n: 7, inputs: 11, outputs: 13, branches: vec![(3, vec![0..13])] },
        Layer { n: 131, inputs: 29, outputs: 83, branches: vec![(5, vec![0..7, 31..53]), (2, vec![7..29, 60..83])] },
        Layer { n: 5, inputs: 17, outputs: 142, branches: vec![(1, vec![71..142])] },
    ]
}

#[test]
fn agrees_with_reference_and_float64() {
    layers().iter().for_each(Layer::check);
}

#[test]
fn what_is_added_is_the_difference_of_both_products() {
    for layer in layers() {
        let t: Vec<Tensor<1>> =
            layer.values().iter().map(|values| tensor(values, [values.len()], &Device::flex())).collect();
        let x_ni = t[0].clone().reshape([layer.n, layer.inputs]);
        let weight_oi = t[1].clone().reshape([layer.outputs, layer.inputs]);
        let sum = LowRankSum { branches: layer.branches(&t), factors_o: None };
        let added = low_rank_sum(x_ni.clone(), &sum.branches, layer.outputs);
        let whole = linear_low_rank(x_ni.clone(), weight_oi.clone(), None, sum, None);
        let base = bridge_kernels::linear(x_ni, weight_oi, None);
        let count = layer.n * layer.outputs;
        assert_close("sum", &read((base + added).reshape([count])), &wide(&read(whole.reshape([count]))), 1e-5);
    }
}

#[test]
fn squares_of_rows_are_those_of_the_sum() {
    for layer in layers() {
        let t: Vec<Tensor<1>> =
            layer.values().iter().map(|values| tensor(values, [values.len()], &Device::flex())).collect();
        let weight_oi = t[1].clone().reshape([layer.outputs, layer.inputs]);
        let branches = layer.branches(&t);
        let found = read(low_rank_row_squares(weight_oi.clone(), &branches));
        assert_close("squares", &found, &wide(&read(reference_row_squares(weight_oi, &branches))), 1e-5);
    }
}

/// Gradients through a layer with a branch, whose input `made` makes of the first of `inputs`, `[n,
/// i]`, with the weights in the second. With `is_kept` backward has the input as it was.
fn through_a_layer(
    given: &[Vec<f32>],
    [n, i]: [usize; 2],
    is_kept: bool,
    made: &dyn Fn(&[Tensor<1>]) -> Recomputable<2>,
) -> Vec<Vec<f32>> {
    let (rank, outputs) = (3, 17);
    let of_layer = [values(11, outputs * i), values(12, rank * i), values(13, outputs * rank)];
    run_all(&[given, &of_layer].concat(), |t| {
        let x = made(t);
        assert!(x.recompute.is_some() && x.tensor.dims() == [n, i]);
        let x = if is_kept { x.tensor.into() } else { x };
        let [weight, a, b] = std::array::from_fn(|index| t[given.len() + index].clone());
        let (a_ri, b_pr) = (a.reshape([rank, i]), b.reshape([outputs, rank]));
        let branches = vec![LowRank { a_ri, b_pr, scale: 0.7, outputs: vec![0..outputs] }];
        let sum = LowRankSum { branches, factors_o: None };
        linear_low_rank(x, weight.reshape([outputs, i]), None, sum, None).reshape([n * outputs])
    })
}

#[test]
fn inputs_that_are_made_again_give_the_bits_of_those_that_are_kept() {
    // More rows than a task of a norm has.
    let [n, i] = [67, 29];
    let of_norm = [values(1, n * i), values(2, i), values(3, i)];
    let x_of = |t: &[Tensor<1>]| t[0].clone().reshape([n, i]);
    let glu_of = |t: &[Tensor<1>], unit: GatedUnit| {
        let gated = glu_recomputable(t[0].clone().reshape([1, n, 2 * i]), unit);
        gated.reshaped(|y_bti| y_bti.reshape([n, i]))
    };
    type Made<'a> = (&'a str, Vec<Vec<f32>>, Box<dyn Fn(&[Tensor<1>]) -> Recomputable<2> + 'a>);
    let limited = GatedUnit { clamp: Some(1.5), linear_offset: 1.0, ..Activation::QuickGelu.into() };
    let cases: Vec<Made<'_>> = vec![
        ("rms", of_norm[..2].to_vec(), Box::new(|t| residual_rms_norm(x_of(t), t[1].clone(), 1e-5).0)),
        ("layer norm", of_norm[..2].to_vec(), Box::new(|t| residual_layer_norm(x_of(t), t[1].clone(), None, 1e-5).0)),
        (
            "layer norm with a bias",
            of_norm.to_vec(),
            Box::new(|t| residual_layer_norm(x_of(t), t[1].clone(), Some(t[2].clone()), 1e-5).0),
        ),
        ("silu", vec![values(4, n * 2 * i)], Box::new(|t| glu_of(t, Activation::Silu.into()))),
        ("limited", vec![values(5, n * 2 * i)], Box::new(|t| glu_of(t, limited))),
        ("gelu", vec![values(6, n * i)], Box::new(|t| activation_recomputable(x_of(t), Activation::Gelu))),
    ];
    for (name, given, made) in cases {
        let [kept, recomputed] = [true, false].map(|is_kept| through_a_layer(&given, [n, i], is_kept, &*made));
        assert_eq!(recomputed, kept, "{name}");
    }
}

#[test]
fn the_same_bits_on_any_number_of_threads() {
    let layer = Layer { n: 257, inputs: 211, outputs: 307, branches: vec![(7, vec![0..150]), (3, vec![150..307])] };
    let values = layer.values();
    assert_same_on_any_threads("low rank", || {
        let device = Device::flex().autodiff();
        let t: Vec<Tensor<1>> =
            values.iter().map(|values| tensor(values, [values.len()], &device).require_grad()).collect();
        let sum = LowRankSum { branches: layer.branches(&t), factors_o: Some(t[3].clone()) };
        let x_ni = t[0].clone().reshape([layer.n, layer.inputs]);
        let y_no = linear_low_rank(x_ni, t[1].clone().reshape([layer.outputs, layer.inputs]), None, sum, None);
        let gradients = (y_no.clone() * y_no.clone()).sum().backward();
        let used = [0, 1, 3, 5, 6, 7, 8];
        used.iter().map(|index| read(t[*index].grad(&gradients).expect("it is used"))).collect()
    });
}
