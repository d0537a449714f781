//! Times each operation, forward and backward, against its reference in plain Burn operations.
//!
//! The two run alternately, so that a busy machine slows both. The output is the ratio of the
//! medians, and milliseconds for orientation. Shapes are those of a small GPT: 4 sequences of 512
//! tokens, hidden size 384, 6 heads, 8192 tokens of vocabulary. Run one with `cargo bench -p
//! bridge-kernels -- NAME`.

use std::time::{Duration, Instant};

use bridge_kernels::activation::{self, Activation};
use bridge_kernels::attention::{self, AttentionOptions};
use bridge_kernels::cross_entropy::{self, CrossEntropyOptions};
use bridge_kernels::dropout::{self, DropoutKey};
use bridge_kernels::optim::{
    self, AdamW, AdamWState, Format, LowPrecisionAdamW, LowPrecisionFormats, MasterFormat, Stored, UpdateStep,
};
use bridge_kernels::rotary::{self, Positions, RotaryPairing, RotaryTable};
use bridge_kernels::vjp::attach;
use bridge_kernels::{DeltaInputs, DeltaOptions, Philox, embedding, gated_delta_rule, linear, norm};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// As in training, where the pages of large buffers are there from the second step on.
#[global_allocator]
static ALLOCATOR: bridge_kernels::memory::LargeBlocks = bridge_kernels::memory::LargeBlocks::new();

const B: usize = 4;
const T: usize = 512;
const N: usize = B * T;
const C: usize = 384;
const F: usize = 4 * C;
const H: usize = 6;
const V: usize = 8192;

type LowPrecisionUpdate =
    fn(LowPrecisionAdamW, Tensor<1>, &AdamW, &UpdateStep<'_>, &LowPrecisionFormats, [f32; 3]) -> LowPrecisionAdamW;

type Op<'a> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>;

fn input(seed: u64, count: usize) -> Vec<f32> {
    Philox::new(seed).normal(count, 1.0)
}

/// A loss whose backward hands `gradient` to `y` and costs nothing itself.
fn inject(y: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    let loss = Tensor::zeros([1], &Device::flex());
    attach(loss, vec![y.into_dispatch()], move |_: Tensor<1>| vec![gradient.into_dispatch()])
}

/// Forward and backward of `operation` with every input tracked.
fn run(operation: Op<'_>, inputs: &[Vec<f32>]) -> Duration {
    let device = Device::flex().autodiff();
    let leaf = |x: &Vec<f32>| Tensor::from_data(TensorData::new(x.clone(), [x.len()]), &device).require_grad();
    let inputs: Vec<Tensor<1>> = inputs.iter().map(leaf).collect();
    let start = Instant::now();
    let y = operation(&inputs);
    let forward = start.elapsed();
    let gradient = Tensor::ones(y.dims(), &Device::flex()) + 1e-3;
    let start = Instant::now();
    let gradients = inject(y, gradient).backward();
    let elapsed = forward + start.elapsed();
    assert!(inputs.iter().all(|x| x.grad(&gradients).is_some()));
    elapsed
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn report(name: &str, mut fast: impl FnMut() -> Duration, mut reference: impl FnMut() -> Duration) {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
        return;
    }
    fast();
    reference();
    let (fast, reference): (Vec<_>, Vec<_>) = (0..11).map(|_| (fast(), reference())).unzip();
    let (fast, reference) = (median(fast), median(reference));
    println!("{name:<32} {:6.2} times as fast   {fast:9.3} ms against {reference:9.3} ms", reference / fast);
}

fn compare(name: &str, inputs: &[Vec<f32>], fast: Op<'_>, reference: Op<'_>) {
    report(name, || run(fast, inputs), || run(reference, inputs));
}

fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.shape().num_elements();
    x.reshape([count])
}

fn ids(count: usize) -> Tensor<1, Int> {
    let values: Vec<i64> = (0..count).map(|i| (i * 7919 % V) as i64).collect();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex())
}

fn main() {
    layers();
    attentions();
    heads();
    delta_rules();
    optimizers();
}

fn layers() {
    let x_w_b = [input(1, N * C), input(2, F * C), input(3, F)];
    let shaped = |t: &[Tensor<1>]| (t[0].clone().reshape([N, C]), t[1].clone().reshape([F, C]), Some(t[2].clone()));
    compare(
        "linear",
        &x_w_b,
        &|t| {
            let (x, w, b) = shaped(t);
            flat(linear::linear(x, w, b))
        },
        &|t| {
            let (x, w, b) = shaped(t);
            flat(linear::reference(x, w, b))
        },
    );
    let x_w = [input(1, N * C), input(2, C), input(3, C)];
    compare("rms_norm", &x_w[..2], &|t| flat(norm::rms_norm(t[0].clone().reshape([N, C]), t[1].clone(), 1e-5)), &|t| {
        flat(norm::rms_norm_reference(t[0].clone().reshape([N, C]), t[1].clone(), 1e-5))
    });
    compare(
        "layer_norm",
        &x_w,
        &|t| flat(norm::layer_norm(t[0].clone().reshape([N, C]), t[1].clone(), Some(t[2].clone()), 1e-5)),
        &|t| flat(norm::layer_norm_reference(t[0].clone().reshape([N, C]), t[1].clone(), Some(t[2].clone()), 1e-5)),
    );
    let wide = [input(1, N * F)];
    for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        compare(&format!("activation {kind:?}"), &wide, &|t| activation::activation(t[0].clone(), kind), &|t| {
            activation::reference(t[0].clone(), kind)
        });
    }
    compare("glu Silu", &wide, &|t| flat(activation::glu(t[0].clone().reshape([B, T, F]), Activation::Silu)), &|t| {
        flat(activation::glu_reference(t[0].clone().reshape([B, T, F]), Activation::Silu))
    });
    let key = DropoutKey(Philox::new(1));
    compare("dropout", &wide, &|t| dropout::dropout(t[0].clone(), 0.1, key), &|t| {
        dropout::reference(t[0].clone(), 0.1, key)
    });
}

fn attentions() {
    let d = C / H;
    let qkv = [input(1, N * C), input(2, N * C), input(3, N * C)];
    let heads = |x: &Tensor<1>| x.clone().reshape([B, T, H, d]);
    let key = DropoutKey(Philox::new(1));
    for (name, dropout) in [("attention", None), ("attention with dropout", Some((0.1, key)))] {
        let options = AttentionOptions { dropout, ..AttentionOptions::causal(d) };
        compare(
            name,
            &qkv,
            &|t| flat(attention::attention(heads(&t[0]), heads(&t[1]), heads(&t[2]), &options)),
            &|t| flat(attention::reference(heads(&t[0]), heads(&t[1]), heads(&t[2]), &options)),
        );
    }
    let frequencies: Vec<f32> = (0..d / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / d as f32)).collect();
    let table = RotaryTable::new(&frequencies, T, RotaryPairing::Halves, &Device::flex());
    compare("rotary", &qkv[..1], &|t| flat(rotary::apply_rotary(heads(&t[0]), &table, &Positions::From(0))), &|t| {
        flat(rotary::reference(heads(&t[0]), &table, &Positions::From(0)))
    });
}

fn heads() {
    // Logits of order one, as at the start of training.
    let small = |values: Vec<f32>| values.iter().map(|v| v / (C as f32).sqrt()).collect::<Vec<f32>>();
    let x_w = [input(1, N * C), small(input(2, V * C))];
    let arguments = |t: &[Tensor<1>]| {
        let mask = Tensor::<1>::ones([N], &Device::flex());
        (t[0].clone().reshape([N, C]), t[1].clone().reshape([V, C]), ids(N), mask)
    };
    let options = CrossEntropyOptions::default();
    compare(
        "linear_cross_entropy",
        &x_w,
        &|t| {
            let (x, w, targets, mask) = arguments(t);
            cross_entropy::linear_cross_entropy(x, w, targets, mask, &options)
        },
        &|t| {
            let (x, w, targets, mask) = arguments(t);
            cross_entropy::reference(x, w, targets, mask, &options)
        },
    );
    compare(
        "embedding",
        &x_w[1..],
        &|t| flat(embedding::embedding(t[0].clone().reshape([V, C]), ids(N).reshape([B, T]))),
        &|t| flat(embedding::reference(t[0].clone().reshape([V, C]), ids(N).reshape([B, T]))),
    );
}

/// The gated delta rule against a product of matrices with the FLOPs of its products, where a
/// triangle counts half: forward, and backward with the part of the forward that it repeats.
fn delta_rules() {
    for (d, e) in [(64, 1), (128, 1), (64, 64), (128, 128)] {
        let (b, t, g, h, l) = (2, 1024, if e == 1 { 4 } else { 8 }, 8, 64);
        let mut inputs = vec![input(1, b * t * g * d), input(2, b * t * g * d), input(3, b * t * h * d)];
        inputs.push(input(4, b * t * h * e).iter().map(|x| -0.1 * x.exp()).collect());
        inputs.push(input(5, b * t * h).iter().map(|x| (1.0 + (-x).exp()).recip()).collect());
        let options = DeltaOptions::new(d);
        let rule = |x: &[Tensor<1>]| {
            let inputs = DeltaInputs {
                q_btgk: x[0].clone().reshape([b, t, g, d]),
                k_btgk: x[1].clone().reshape([b, t, g, d]),
                v_bthp: x[2].clone().reshape([b, t, h, d]),
                decay_bthe: x[3].clone().reshape([b, t, h, e]),
                beta_bth: x[4].clone().reshape([b, t, h]),
                document_ids: None,
            };
            flat(gated_delta_rule(inputs, &options))
        };
        // Multiply-adds of a chunk: products with the state, triangles of a value head, and
        // triangles that the value heads of a key head share.
        let (state, triangle) = (l * d * d, l * l * d / 2);
        let of_head = 10 * state + 7 * triangle;
        let work = b * (t / l) * (h * of_head + if e == 1 { g } else { h } * 8 * triangle);
        let side = 1024;
        let depth = work / (side * side);
        let [left, right] = [(6, [side, depth]), (7, [depth, side])].map(|(seed, shape)| {
            Tensor::<2>::from_data(TensorData::new(input(seed, side * depth), shape), &Device::flex())
        });
        let product = || {
            let start = Instant::now();
            std::hint::black_box(linear::linear(left.clone(), right.clone().transpose(), None));
            start.elapsed()
        };
        report(&format!("gated_delta_rule {d}, {e} decays"), || run(&rule, &inputs), product);
    }
}

fn optimizers() {
    let count = 1 << 22;
    let flat = |seed| Tensor::<1>::from_data(TensorData::new(input(seed, count), [count]), &Device::flex());
    let rule = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, decoupled: true };
    let step = UpdateStep {
        learning_rate: 1e-3,
        weight_decay: 0.1,
        eps_mult: 1.0,
        number: 3,
        gradient_scale: 0.5,
        shape: &[count],
    };
    let new = || AdamWState { parameter: flat(1), exp_avg: flat(2), exp_avg_sq: flat(3).powi_scalar(2) };
    let gradient = flat(4);
    type Plain = fn(AdamWState, Tensor<1>, &AdamW, &UpdateStep<'_>) -> AdamWState;
    let time = |state: &mut Option<AdamWState>, update: Plain| {
        let (old, gradient) = (state.take().expect("put back below"), gradient.clone());
        let start = Instant::now();
        *state = Some(update(old, gradient, &rule, &step));
        start.elapsed()
    };
    let (mut fast, mut reference) = (Some(new()), Some(new()));
    report("adamw", || time(&mut fast, optim::adamw), || time(&mut reference, optim::adamw_reference));
    for (name, master, moments) in [
        ("adamw_remainders", MasterFormat::Remainders, [Format::Float32; 2]),
        ("adamw_bfloat16", MasterFormat::Remainders, [Format::BFloat16; 2]),
        ("adamw_float16", MasterFormat::Float32, [Format::Float16; 2]),
        ("adamw_float8", MasterFormat::Remainders, [Format::Float8; 2]),
    ] {
        let formats = LowPrecisionFormats { master, moments };
        let first = || {
            let moments = moments.map(|format| Stored::zeros(count, format, &Device::flex()));
            Some(LowPrecisionAdamW { parameter: flat(1).cast(FloatDType::BF16), master: None, moments })
        };
        let time = |state: &mut Option<LowPrecisionAdamW>, update: LowPrecisionUpdate| {
            let (old, gradient) = (state.take().expect("put back below"), gradient.clone());
            let start = Instant::now();
            let magnitudes = match moments[0].is_scaled() {
                true => optim::adamw_magnitudes(&old, &gradient, &rule, &step),
                false => [0.0; 3],
            };
            let scales = [1.0, moments[0].scale_for(magnitudes[1]), moments[1].scale_for(magnitudes[2])];
            *state = Some(update(old, gradient, &rule, &step, &formats, scales));
            start.elapsed()
        };
        let (mut fast, mut reference) = (first(), first());
        report(
            name,
            || time(&mut fast, optim::adamw_low_precision),
            || time(&mut reference, optim::adamw_low_precision_reference),
        );
    }
    let x = flat(5);
    let time = |f: fn(&Tensor<1>) -> f64| {
        let start = Instant::now();
        std::hint::black_box(f(&x));
        start.elapsed()
    };
    report("sum_of_squares", || time(optim::sum_of_squares), || time(optim::sum_of_squares_reference));
}
