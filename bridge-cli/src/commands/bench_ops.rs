//! `bridge bench --ops`: forward and backward of single operations, with the shapes of the PyTorch peer's `ops`.

use std::time::{Duration, Instant};

use bridge_kernels::optim::{AdamWState, AdamWStep, adamw};
use bridge_kernels::rotary::{Positions, RotaryPairing};
use bridge_kernels::vjp::attach;
use bridge_kernels::{
    Activation, AttentionOptions, CrossEntropyOptions, Philox, RotaryTable, activation, apply_rotary, attention,
    embedding, glu, layer_norm, linear, linear_cross_entropy, rms_norm,
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::{Map, Value, json};

const B: usize = 8;
const T: usize = 256;
const N: usize = B * T;
const C: usize = 384;
const H: usize = 6;
const G: usize = 2;
const D: usize = 64;
const F: usize = 1024;
const V: usize = 8192;
/// Elements of the parameter that AdamW updates.
const PARAMETER: usize = 1 << 22;

/// An operation on flat inputs, with a flat output.
type Operation = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

struct Case {
    name: &'static str,
    /// Elements of each input.
    inputs: Vec<usize>,
    operation: Operation,
}

/// Median milliseconds of each operation, by name. Needs a device with float32 in host memory.
pub fn milliseconds(repeats: u32, device: &Device) -> Value {
    let mut times = Map::new();
    for case in cases(device) {
        let inputs: Vec<Tensor<1>> =
            (1..).zip(&case.inputs).map(|(seed, count)| normal(seed, *count, device)).collect();
        let run = || forward_backward(&case.operation, &inputs);
        times.insert(case.name.to_owned(), median(repeats, run));
    }
    times.insert("adamw".to_owned(), optimizer(repeats, device));
    times.into()
}

fn median(repeats: u32, mut run: impl FnMut() -> Duration) -> Value {
    let mut times: Vec<f64> = (0..repeats).map(|_| run().as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    json!((times[times.len() / 2] * 1e4).round() / 1e4)
}

/// Inputs, as small as real activations and weights: with a standard deviation of 1, a softmax over the vocabulary underflows, and PyTorch
/// spends its time on denormal numbers.
fn normal(seed: u64, count: usize, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(Philox::new(seed).normal(count, 0.1), [count]), device)
}

fn forward_backward(operation: &Operation, inputs: &[Tensor<1>]) -> Duration {
    let inputs: Vec<Tensor<1>> = inputs.iter().map(|x| x.clone().autodiff().require_grad()).collect();
    let start = Instant::now();
    let y = operation(&inputs);
    let forward = start.elapsed();
    let gradient = y.clone().without_autodiff() * 0.5;
    // A loss whose backward passes the gradient on and costs nothing itself.
    let loss = attach(Tensor::<1>::zeros([1], &gradient.device()), vec![y.into_dispatch()], move |_: Tensor<1>| {
        vec![gradient.into_dispatch()]
    });
    let start = Instant::now();
    let gradients = loss.backward();
    let elapsed = forward + start.elapsed();
    drop(gradients);
    elapsed
}

fn flat<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    let count = x.shape().num_elements();
    x.reshape([count])
}

fn ids(device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = (0..N).map(|i| (i * 7919 % V) as i64).collect();
    Tensor::from_data(TensorData::new(values, [N]), device)
}

fn cases(device: &Device) -> Vec<Case> {
    let case = |name, inputs: &[usize], operation: Operation| Case { name, inputs: inputs.to_vec(), operation };
    let frequencies: Vec<f32> = (0..D / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / D as f32)).collect();
    let table = RotaryTable::new(&frequencies, T, RotaryPairing::Halves, device);
    let (tokens, labels) = (ids(device).reshape([B, T]), ids(device));
    let mask = Tensor::<1>::ones([N], device);
    let matrix = |x: &Tensor<1>, columns: usize| -> Tensor<2> {
        let rows = x.shape().num_elements() / columns;
        x.clone().reshape([rows, columns])
    };
    let heads = |x: &Tensor<1>, heads: usize| -> Tensor<4> { x.clone().reshape([B, T, heads, D]) };
    vec![
        case(
            "linear",
            &[N * C, 4 * C * C, 4 * C],
            Box::new(move |x| flat(linear(matrix(&x[0], C), matrix(&x[1], C), Some(x[2].clone())))),
        ),
        case("rms_norm", &[N * C, C], Box::new(move |x| flat(rms_norm(matrix(&x[0], C), x[1].clone(), 1e-5)))),
        case(
            "layer_norm",
            &[N * C, C, C],
            Box::new(move |x| flat(layer_norm(matrix(&x[0], C), x[1].clone(), Some(x[2].clone()), 1e-5))),
        ),
        case(
            "rotary",
            &[N * H * D],
            Box::new(move |x| flat(apply_rotary(heads(&x[0], H), &table, &Positions::From(0)))),
        ),
        case(
            "swiglu",
            &[N * 2 * F],
            Box::new(move |x| flat(glu(x[0].clone().reshape([B, T, 2 * F]), Activation::Silu))),
        ),
        case(
            "gelu_tanh",
            &[N * 4 * C],
            Box::new(move |x| flat(activation(matrix(&x[0], 4 * C), Activation::GeluTanh))),
        ),
        case(
            "attention",
            &[N * H * D, N * G * D, N * G * D],
            Box::new(move |x| {
                let (q, k, v) = (heads(&x[0], H), heads(&x[1], G), heads(&x[2], G));
                flat(attention(q, k, v, &AttentionOptions::causal(D)))
            }),
        ),
        case("embedding", &[V * C], Box::new(move |x| flat(embedding(matrix(&x[0], C), tokens.clone())))),
        case(
            "linear_cross_entropy",
            &[N * C, V * C],
            Box::new(move |x| {
                let options = CrossEntropyOptions::default();
                linear_cross_entropy(matrix(&x[0], C), matrix(&x[1], C), labels.clone(), mask.clone(), &options)
            }),
        ),
    ]
}

fn optimizer(repeats: u32, device: &Device) -> Value {
    let step = AdamWStep {
        lr: 3e-4,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        decoupled: true,
        step: 3,
        gradient_scale: 0.5,
    };
    let zeros = || Tensor::zeros([PARAMETER], device);
    let mut state = Some(AdamWState { parameter: normal(1, PARAMETER, device), exp_avg: zeros(), exp_avg_sq: zeros() });
    let gradient = normal(2, PARAMETER, device);
    median(repeats, || {
        let (old, gradient) = (state.take().expect("put back below"), gradient.clone());
        let start = Instant::now();
        state = Some(adamw(old, gradient, &step));
        start.elapsed()
    })
}
