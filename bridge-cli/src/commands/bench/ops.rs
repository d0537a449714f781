//! `bridge bench --ops`: forward and backward of single operations, with the shapes of the PyTorch
//! peer's `ops`.

use std::time::{Duration, Instant};

use bridge_core::config::DType;
use bridge_kernels::optim::{AdamW, AdamWState, UpdateStep, adamw};
use bridge_kernels::rotary::{Positions, RotaryPairing};
use bridge_kernels::vjp::attach;
use bridge_kernels::{
    Activation, AttentionOptions, CrossEntropyOptions, Philox, RotaryTable, activation, apply_rotary, attention,
    embedding, glu, layer_norm, linear, linear_cross_entropy, rms_norm,
};
use bridge_models::decoder::KIND;
use bridge_models::decoder::presets::Preset;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use serde_json::{Map, Value, json};

use super::watch::{computes_behind, wait_for};

/// Elements of the parameter that AdamW updates.
const PARAMETER: usize = 1 << 22;
/// Most elements of a tensor: more than any device has room for.
const MOST_ELEMENTS: usize = 1 << 36;
/// Most numbers that are drawn for one input; a larger one repeats them.
const MOST_DRAWN: usize = 1 << 22;

/// The sizes of a decoder's layers and of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// Sequences and tokens of each.
    b: usize,
    t: usize,
    /// Width of the residual stream.
    c: usize,
    /// Query heads, key and value heads, width of each.
    h: usize,
    g: usize,
    d: usize,
    /// Width of the feed-forward block, and of its activation's input.
    f: usize,
    wide_f: usize,
    /// Rows of the embedding.
    v: usize,
    /// True if linear layers have biases.
    has_bias: bool,
}

impl Shapes {
    /// Sizes of a preset; `None` for a model with other layers.
    pub fn from_preset(preset: &Preset) -> Option<Self> {
        let model = &preset.transformer;
        if preset.kind != KIND || model.num_moe_experts.is_some() {
            return None;
        }
        let (c, h) = (model.hidden_size, model.num_attention_heads);
        let f = model.ffn_hidden_size.unwrap_or(4 * c);
        Some(Self {
            b: preset.micro_batch_size,
            t: model.seq_length,
            c,
            h,
            g: model.num_query_groups.unwrap_or(h),
            d: model.kv_channels.unwrap_or(c / h),
            f,
            wide_f: if model.gated_linear_unit { 2 * f } else { f },
            v: model.vocab_size?,
            has_bias: model.add_bias_linear,
        })
    }

    /// True if each tensor has a size that can be allocated.
    fn is_possible(&self) -> bool {
        let widest = (4 * self.c).max(2 * self.f).max(self.h * self.d);
        self.b.checked_mul(self.t).and_then(|n| n.checked_mul(widest)).is_some_and(|count| count <= MOST_ELEMENTS)
    }

    /// Tokens of a batch.
    fn n(&self) -> usize {
        self.b * self.t
    }
}

/// An operation on flat inputs, with a flat output.
type Operation = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

struct Case {
    name: &'static str,
    /// Elements of each input.
    inputs: Vec<usize>,
    operation: Operation,
}

/// Operations of one shape and dtype on a device.
pub struct Bench {
    shapes: Shapes,
    dtype: FloatDType,
    device: Device,
}

impl Bench {
    /// On `device`, with inputs stored in `dtype`.
    ///
    /// # Errors
    /// The device does not have the dtype, or no device has room for the shapes.
    pub fn new(shapes: Shapes, dtype: DType, device: Device) -> Result<Self, String> {
        let dtype = match dtype {
            DType::BFloat16 => FloatDType::BF16,
            DType::Float16 => FloatDType::F16,
            _ => FloatDType::F32,
        };
        if !device.supports_dtype(dtype) {
            return Err(format!("--dtype: the device does not have {dtype:?}"));
        }
        if !shapes.is_possible() {
            return Err(format!("--micro-batch, --seq: no device has room for {} x {} tokens", shapes.b, shapes.t));
        }
        Ok(Self { shapes, dtype, device })
    }

    /// Median milliseconds of each operation, by name.
    ///
    /// # Errors
    /// The device failed.
    pub fn milliseconds(&self, repeats: u32) -> Result<Value, String> {
        let mut times = Map::new();
        for case in self.cases().into_iter().chain(self.products()) {
            let inputs: Vec<Tensor<1>> =
                (1..).zip(&case.inputs).map(|(seed, count)| self.normal(seed, *count).cast(self.dtype)).collect();
            let gradient = (case.operation)(&inputs) * 0.5;
            let run = || self.forward_backward(&case.operation, &inputs, &gradient);
            // The first run chooses kernels.
            run()?;
            times.insert(case.name.to_owned(), median(repeats, run)?);
        }
        times.insert("adamw".to_owned(), self.optimizer(repeats)?);
        Ok(times.into())
    }

    /// Float32 inputs, as small as real activations and weights: with a standard deviation of 1, a
    /// softmax over the vocabulary underflows, and PyTorch spends its time on denormal numbers.
    fn normal(&self, seed: u64, count: usize) -> Tensor<1> {
        let drawn = count.min(MOST_DRAWN);
        let numbers = Tensor::from_data(TensorData::new(Philox::new(seed).normal(drawn, 0.1), [drawn]), &self.device);
        match count.div_ceil(drawn) {
            1 => numbers,
            times => numbers.repeat_dim(0, times).narrow(0, 0, count),
        }
    }

    /// Waits for a device that computes asynchronously.
    fn settle(&self) -> Result<(), String> {
        if computes_behind(&self.device) { wait_for(&self.device) } else { Ok(()) }
    }

    fn forward_backward(
        &self,
        operation: &Operation,
        inputs: &[Tensor<1>],
        gradient: &Tensor<1>,
    ) -> Result<Duration, String> {
        let inputs: Vec<Tensor<1>> = inputs.iter().map(|x| x.clone().autodiff().require_grad()).collect();
        let (zero, gradient) = (Tensor::<1>::zeros([1], &self.device), gradient.clone());
        self.settle()?;
        let start = Instant::now();
        let y = operation(&inputs);
        // A loss whose backward passes the gradient on and costs nothing itself.
        let loss = attach(zero, vec![y.into_dispatch()], move |_: Tensor<1>| vec![gradient.into_dispatch()]);
        let gradients = loss.backward();
        self.settle()?;
        let elapsed = start.elapsed();
        drop(gradients);
        Ok(elapsed)
    }

    fn cases(&self) -> Vec<Case> {
        let Shapes { b, t, c, h, g, d, f, v, .. } = self.shapes;
        let n = self.shapes.n();
        let frequencies: Vec<f32> = (0..d / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / d as f32)).collect();
        let table = RotaryTable::new(&frequencies, t, RotaryPairing::Halves, &self.device);
        let labels = self.ids();
        let tokens = labels.clone().reshape([b, t]);
        let mask = Tensor::<1>::ones([n], &self.device);
        let heads = move |x: &Tensor<1>, heads: usize| -> Tensor<4> { x.clone().reshape([b, t, heads, d]) };
        vec![
            linear_case("linear", n, c, 4 * c, true),
            case("rms_norm", &[n * c, c], move |x| flat(rms_norm(matrix(&x[0], c), x[1].clone(), 1e-5))),
            case("layer_norm", &[n * c, c, c], move |x| {
                flat(layer_norm(matrix(&x[0], c), x[1].clone(), Some(x[2].clone()), 1e-5))
            }),
            case("rotary", &[n * h * d], move |x| flat(apply_rotary(heads(&x[0], h), &table, &Positions::From(0)))),
            case("swiglu", &[n * 2 * f], move |x| flat(glu(x[0].clone().reshape([b, t, 2 * f]), Activation::Silu))),
            case("gelu_tanh", &[n * 4 * c], move |x| flat(activation(matrix(&x[0], 4 * c), Activation::GeluTanh))),
            case("attention", &[n * h * d, n * g * d, n * g * d], move |x| {
                let (q, k, v) = (heads(&x[0], h), heads(&x[1], g), heads(&x[2], g));
                flat(attention(q, k, v, &AttentionOptions::causal(d)))
            }),
            case("embedding", &[v * c], move |x| flat(embedding(matrix(&x[0], c), tokens.clone()))),
            case("linear_cross_entropy", &[n * c, v * c], move |x| {
                let options = CrossEntropyOptions::default();
                linear_cross_entropy(matrix(&x[0], c), matrix(&x[1], c), labels.clone(), mask.clone(), &options)
            }),
        ]
    }

    /// The linear layers of a decoder's layer.
    fn products(&self) -> Vec<Case> {
        let Shapes { c, h, g, d, f, wide_f, has_bias, .. } = self.shapes;
        let of = |name, inputs, outputs| linear_case(name, self.shapes.n(), inputs, outputs, has_bias);
        vec![of("qkv", c, (h + 2 * g) * d), of("projection", h * d, c), of("fc1", c, wide_f), of("fc2", f, c)]
    }

    fn ids(&self) -> Tensor<1, Int> {
        let n = self.shapes.n();
        let values: Vec<i64> = (0..n).map(|i| (i * 7919 % self.shapes.v) as i64).collect();
        Tensor::from_data(TensorData::new(values, [n]), &self.device)
    }

    /// An update of float32 parameters, as masters of any dtype are.
    fn optimizer(&self, repeats: u32) -> Result<Value, String> {
        let rule = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, decoupled: true };
        let step = UpdateStep {
            learning_rate: 3e-4,
            weight_decay: 0.1,
            eps_mult: 1.0,
            number: 3,
            gradient_scale: 0.5,
            shape: &[PARAMETER],
        };
        let zeros = || Tensor::zeros([PARAMETER], &self.device);
        let mut state =
            Some(AdamWState { parameter: self.normal(1, PARAMETER), exp_avg: zeros(), exp_avg_sq: zeros() });
        let gradient = self.normal(2, PARAMETER);
        let mut run = || {
            let (old, gradient) = (state.take().expect("put back below"), gradient.clone());
            self.settle()?;
            let start = Instant::now();
            state = Some(adamw(old, gradient, &rule, &step));
            self.settle()?;
            Ok(start.elapsed())
        };
        run()?;
        median(repeats, run)
    }
}

fn median(repeats: u32, mut run: impl FnMut() -> Result<Duration, String>) -> Result<Value, String> {
    let times: Result<Vec<f64>, String> = (0..repeats).map(|_| Ok(run()?.as_secs_f64() * 1e3)).collect();
    let mut times = times?;
    times.sort_by(f64::total_cmp);
    Ok(json!((times[times.len() / 2] * 1e4).round() / 1e4))
}

fn case(name: &'static str, inputs: &[usize], operation: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static) -> Case {
    Case { name, inputs: inputs.to_vec(), operation: Box::new(operation) }
}

/// A linear layer on `n` rows.
fn linear_case(name: &'static str, n: usize, inputs: usize, outputs: usize, has_bias: bool) -> Case {
    let bias = has_bias.then_some(outputs);
    let sizes: Vec<usize> = [n * inputs, outputs * inputs].into_iter().chain(bias).collect();
    case(name, &sizes, move |x| flat(linear(matrix(&x[0], inputs), matrix(&x[1], inputs), x.get(2).cloned())))
}

fn matrix(x: &Tensor<1>, columns: usize) -> Tensor<2> {
    let rows = x.shape().num_elements() / columns;
    x.clone().reshape([rows, columns])
}

fn flat<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    let count = x.shape().num_elements();
    x.reshape([count])
}

#[cfg(test)]
mod tests {
    use bridge_models::decoder::presets::preset;

    use super::*;

    #[test]
    fn shapes_are_those_of_the_preset() {
        let of = |name| Shapes::from_preset(&preset(name).expect("a preset"));
        let llama = of("nano-llama").expect("a transformer");
        let (b, t, c, h, g, d, f, wide_f, v) = (8, 256, 384, 6, 2, 64, 1024, 2048, 8192);
        assert_eq!(llama, Shapes { b, t, c, h, g, d, f, wide_f, v, has_bias: false });
        let gpt2 = of("gpt2-124m").expect("a transformer");
        assert_eq!((gpt2.f, gpt2.wide_f, gpt2.has_bias, gpt2.n()), (3072, 3072, true, 512));
        assert_eq!((of("moe-8x"), of("mamba2-20m")), (None, None));
    }

    /// Every operation runs and takes time, in each dtype.
    #[test]
    fn operations_run_in_both_widths() {
        let (b, t, c, h, g, d, f, wide_f, v) = (1, 8, 12, 3, 1, 4, 10, 20, 31);
        let shapes = Shapes { b, t, c, h, g, d, f, wide_f, v, has_bias: true };
        for dtype in [DType::Float32, DType::BFloat16] {
            let bench = Bench::new(shapes, dtype, Device::flex()).unwrap();
            let times = bench.milliseconds(3).unwrap();
            let times = times.as_object().expect("times by name");
            assert_eq!(times.len(), 14, "{times:?}");
            assert!(times.values().all(|time| time.as_f64().is_some_and(|time| time > 0.0)), "{times:?}");
            for case in bench.cases().iter().chain(&bench.products()) {
                let inputs: Vec<Tensor<1>> =
                    case.inputs.iter().map(|count| bench.normal(1, *count).cast(bench.dtype)).collect();
                let wanted = if case.name == "linear_cross_entropy" { FloatDType::F32 } else { bench.dtype };
                assert_eq!(FloatDType::from((case.operation)(&inputs).dtype()), wanted, "{}", case.name);
            }
        }
    }

    #[test]
    fn large_inputs_repeat_what_was_drawn() {
        let (b, t, c, h, g, d, f, wide_f, v) = (1, 1, 1, 1, 1, 1, 1, 1, 1);
        let shapes = Shapes { b, t, c, h, g, d, f, wide_f, v, has_bias: false };
        let bench = Bench::new(shapes, DType::Float32, Device::flex()).unwrap();
        let numbers: Vec<f32> = bench.normal(1, MOST_DRAWN + 3).into_data().try_into_vec().unwrap();
        assert_eq!(numbers.len(), MOST_DRAWN + 3);
        assert_eq!(numbers[MOST_DRAWN..], numbers[..3]);
    }
}
