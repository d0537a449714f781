//! A small Llama with all of this crate's operations, trained for some steps on the device and on
//! the CPU.

use bridge_kernels::optim::{AdamW, AdamWState, UpdateStep, adamw, sum_of_squares};
use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable, apply_rotary};
use bridge_kernels::{
    Activation, AttentionOptions, CrossEntropyOptions, attention, embedding, glu, layer_norm, linear,
    linear_cross_entropy, rms_norm,
};
use burn::tensor::{Device, Int, Tensor};

use crate::common::{device, ints, read, tensor, values};

// Batch, sequence, heads, key/value heads, head size, hidden, feed-forward, vocabulary.
const B: usize = 2;
const T: usize = 11;
const H: usize = 4;
const G: usize = 2;
const D: usize = 6;
const C: usize = H * D;
const F: usize = 37;
const V: usize = 53;

/// Shapes of the parameters, in the order in which [`loss`] takes them.
const SHAPES: [&[usize]; 11] =
    [&[V, C], &[C], &[(H + 2 * G) * D, C], &[C, C], &[C], &[C], &[2 * F, C], &[C, F], &[F], &[C], &[V, C]];

/// Initial value of a parameter: matrices small, weights of norms near one.
fn start(device: &Device) -> Vec<AdamWState> {
    let parameter = |(seed, shape): (usize, &&[usize])| {
        let count = shape.iter().product();
        let (centre, deviation) = if shape.len() == 1 { (1.0, 0.1) } else { (0.0, 0.2) };
        let values: Vec<f32> = values(seed as u64, count).into_iter().map(|v| centre + deviation * v).collect();
        let zeros = tensor(&vec![0.0; count], [count], device);
        AdamWState { parameter: tensor(&values, [count], device), exp_avg: zeros.clone(), exp_avg_sq: zeros }
    };
    SHAPES.iter().enumerate().map(parameter).collect()
}

/// Mean loss of one batch: an embedding, one layer, the head.
fn loss(parameters: &[Tensor<1>], ids_bt: Tensor<2, Int>, targets_n: Tensor<1, Int>, table: &RotaryTable) -> Tensor<1> {
    let vector = |i: usize| parameters[i].clone();
    let matrix = |i: usize| -> Tensor<2> { parameters[i].clone().reshape([SHAPES[i][0], SHAPES[i][1]]) };
    let mask_n = tensor(&[1.0; B * T], [B * T], &targets_n.device());
    let hidden = embedding(matrix(0), ids_bt);
    let qkv = linear(rms_norm(hidden.clone(), vector(1), 1e-5), matrix(2), None);
    let heads = |start: usize, count: usize| -> Tensor<4> {
        qkv.clone().narrow(2, start * D, count * D).reshape([B, T, count, D])
    };
    let turned = |x: Tensor<4>| apply_rotary(x, table, &Positions::From(0));
    let attended = attention(turned(heads(0, H)), turned(heads(H, G)), heads(H + G, G), &AttentionOptions::causal(D));
    let hidden = hidden + linear(attended.reshape([B, T, C]), matrix(3), None);
    let normed = layer_norm(hidden.clone(), vector(4), Some(vector(5)), 1e-5);
    let inner = glu(linear(normed, matrix(6), None), Activation::Silu);
    let hidden = hidden + linear(inner * vector(8).reshape([1, 1, F]), matrix(7), None);
    let last = rms_norm(hidden, vector(9), 1e-5).reshape([B * T, C]);
    linear_cross_entropy(last, matrix(10), targets_n, mask_n, &CrossEntropyOptions::default()) / (B * T) as f64
}

/// Losses and gradient norms of `steps` steps of AdamW, with clipping, on one batch.
fn train(device: &Device, steps: u64) -> (Vec<f64>, Vec<f64>) {
    let table = RotaryTable::new(&[1.0, 0.3, 0.02], T, RotaryPairing::Halves, device);
    let ids: Vec<i64> = (0..B * T).map(|i| (i * 7919 % V) as i64).collect();
    let targets: Vec<i64> = (0..B * T).map(|i| ((i + 1) * 7919 % V) as i64).collect();
    let mut states = start(device);
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    let rule = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, decoupled: true };
    for number in 1..=steps {
        let leaves: Vec<Tensor<1>> =
            states.iter().map(|state| state.parameter.clone().autodiff().require_grad()).collect();
        let loss = loss(&leaves, ints(&ids, [B, T], device), ints(&targets, [B * T], device), &table);
        losses.push(f64::from(read(loss.clone())[0]));
        let gradients = loss.backward();
        let gradients: Vec<Tensor<1>> =
            leaves.iter().map(|leaf| leaf.grad(&gradients).expect("every parameter is used")).collect();
        drop(leaves);
        let norm = gradients.iter().map(sum_of_squares).sum::<f64>().sqrt();
        norms.push(norm);
        let step = UpdateStep {
            learning_rate: 1e-2,
            weight_decay: 0.1,
            eps_mult: 1.0,
            number,
            gradient_scale: (1.0 / norm).min(1.0),
            shape: &[],
        };
        states =
            states.into_iter().zip(gradients).map(|(state, gradient)| adamw(state, gradient, &rule, &step)).collect();
    }
    (losses, norms)
}

#[test]
fn losses_are_those_of_the_cpu() {
    let (found, expected) = (train(&device(), 10), train(&Device::flex(), 10));
    println!("losses on the device: {:?}\nlosses on the CPU:    {:?}", found.0, expected.0);
    println!("norms on the device:  {:?}\nnorms on the CPU:     {:?}", found.1, expected.1);
    assert!(expected.0[9] < 0.8 * expected.0[0], "the test is meant to train");
    // Differences of float32 sums in another order after ten steps: the tolerances of `bridge
    // verify`.
    for (name, found, expected, tolerance) in [("loss", found.0, expected.0, 1e-5), ("norm", found.1, expected.1, 5e-5)]
    {
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= tolerance * expected, "{name} of step {step}: {found}, {expected}");
        }
    }
}
