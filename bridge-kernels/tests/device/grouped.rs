//! Linear layers of several experts.

use bridge_kernels::grouped::{GroupedMlp, cube, grouped_linear, grouped_mlp, mlp_reference, reference};
use bridge_kernels::{Activation, FeedForwardUnit, GatedUnit};
use burn::tensor::Tensor;

use crate::common::{Case, device, read, tensor, values};
use crate::operands::experts::Sizes;

fn check(sizes: &Sizes) {
    let Sizes { counts, inputs, outputs, .. } = *sizes;
    let m = sizes.rows();
    let rows = |t: &[Tensor<1>]| t[0].clone().reshape([m, inputs]);
    Case {
        name: &format!("grouped_linear {counts:?} x {inputs} -> {outputs}, bias {}", sizes.has_bias),
        inputs: [vec![values(1, m * inputs)], sizes.parameters(100)].concat(),
        fused: &|t, _| {
            let y = cube::grouped_linear(&rows(t), counts, &sizes.layer(&t[1..]));
            y.expect("it applies").reshape([m * outputs])
        },
        reference: &|t, _| reference(rows(t), counts, &sizes.layer(&t[1..])).reshape([m * outputs]),
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
        check(&Sizes { counts: &[67, 0, 41], inputs: 33, outputs: 19, has_bias });
    }
}

#[test]
fn feed_forward_blocks() {
    let limited = GatedUnit { clamp: Some(0.9), linear_offset: 1.0, ..Activation::QuickGelu.into() };
    let (c, f) = (5, 7);
    for (counts, unit, has_bias) in [
        ([3, 0, 2], FeedForwardUnit::Gated(Activation::Silu.into()), false),
        ([1, 2, 1], FeedForwardUnit::Gated(limited), true),
        ([0, 4, 1], FeedForwardUnit::Plain(Activation::GeluTanh), true),
    ] {
        let before = if matches!(unit, FeedForwardUnit::Gated(_)) { 2 * f } else { f };
        let first = Sizes { counts: &counts, inputs: c, outputs: before, has_bias };
        let second = Sizes { counts: &counts, inputs: f, outputs: c, has_bias };
        let (m, of_first) = (first.rows(), first.parameters(0).len());
        let mlp = |t: &[Tensor<1>]| {
            let (one, two) = t[1..].split_at(of_first);
            (t[0].clone().reshape([m, c]), GroupedMlp { first: first.layer(one), unit, second: second.layer(two) })
        };
        Case {
            name: &format!("grouped_mlp {counts:?}, {unit:?}, bias {has_bias}"),
            inputs: [vec![values(1, m * c)], first.parameters(100), second.parameters(200)].concat(),
            fused: &|t, _| {
                let (x, mlp) = mlp(t);
                grouped_mlp(x, &counts, &mlp).reshape([m * c])
            },
            reference: &|t, _| {
                let (x, mlp) = mlp(t);
                mlp_reference(x, &counts, &mlp).reshape([m * c])
            },
        }
        .check();
    }
}

#[test]
fn views_and_the_public_function() {
    let sizes = Sizes { counts: &[2, 0, 3], inputs: 7, outputs: 11, has_bias: true };
    let parameters: Vec<Tensor<1>> = sizes.parameters(100).iter().map(|v| tensor(v, [v.len()], &device())).collect();
    let mut layer = sizes.layer(&parameters);
    layer.weights_oi[0] = tensor(&values(9, 77), [7, 11], &device()).swap_dims(0, 1);
    let x = tensor(&values(1, 7 * 9), [7, 9], &device()).narrow(1, 2, 5).swap_dims(0, 1);
    let y = cube::grouped_linear(&x, sizes.counts, &layer).expect("it applies");
    crate::common::assert_close("views", &read(y.clone()), &read(reference(x.clone(), sizes.counts, &layer)), 2e-6);
    assert_eq!(read(grouped_linear(x, sizes.counts, &layer)), read(y), "the public function takes the kernel");
}
