//! Code that the tests of all operations share.

use bridge_kernels::Philox;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::plain;

/// Normally distributed values; a seed is a place in the test.
pub fn values(seed: u64, count: usize) -> Vec<f32> {
    Philox::new(seed).normal(count, 1.0)
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

pub fn ints<const D: usize>(values: &[i64], shape: [usize; D]) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

pub fn read<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Fails unless `got` is `want` to `tolerance` in norm, and to ten times that in each element
/// (against the larger of the element and the typical element).
pub fn assert_close(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: lengths");
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len().max(1) as f64).sqrt();
    let difference: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>();
    let norm = (difference / want.len().max(1) as f64).sqrt();
    assert!(norm <= tolerance * rms + 1e-30, "{name}: relative error {:.2e}", norm / rms);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = 10.0 * tolerance * w.abs().max(rms) + 1e-30;
        assert!((f64::from(*g) - w).abs() <= allowed, "{name}: element {i} is {g}, expected {w}");
    }
}

/// One operation in three forms. The forms on tensors take flat tensors and return a flat one.
pub struct Case<'a> {
    pub name: &'a str,
    pub inputs: Vec<Vec<f32>>,
    pub fast: &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>,
    pub reference: &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>,
    pub plain: &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>,
}

/// Relative tolerances of outputs and of gradients.
const OUTPUT: f64 = 2e-6;
const GRADIENT: f64 = 1e-5;

impl Case<'_> {
    /// Outputs and the gradients of every input, in all forms, with all and with single inputs
    /// tracked.
    pub fn check(&self) {
        let expected = (self.plain)(&self.wide_inputs());
        let outside = self.tensors(&Device::flex());
        let output = read((self.fast)(&outside));
        assert_close(&format!("{}: output", self.name), &output, &expected, OUTPUT);
        assert_close(&format!("{}: reference", self.name), &read((self.reference)(&outside)), &expected, GRADIENT);
        let cotangent = values(999, expected.len());
        let everything = vec![true; self.inputs.len()];
        let gradients = self.gradients(self.fast, &everything, &cotangent);
        let reference = self.gradients(self.reference, &everything, &cotangent);
        for (i, gradient) in gradients.iter().enumerate() {
            let gradient = gradient.as_ref().expect("every input is tracked");
            let name = format!("{}: gradient of input {i}", self.name);
            assert_close(&name, gradient, &self.numeric_gradient(i, &cotangent), GRADIENT);
            let reference = wide(reference[i].as_ref().expect("every input is tracked"));
            assert_close(&format!("{name} against the reference"), gradient, &reference, 2.0 * GRADIENT);
            let only: Vec<bool> = (0..self.inputs.len()).map(|j| j == i).collect();
            let alone = self.gradients(self.fast, &only, &cotangent);
            assert_eq!(alone[i].as_ref(), Some(gradient), "{name}, tracked alone");
        }
    }

    fn wide_inputs(&self) -> Vec<Vec<f64>> {
        self.inputs.iter().map(|x| wide(x)).collect()
    }

    fn tensors(&self, device: &Device) -> Vec<Tensor<1>> {
        self.inputs.iter().map(|x| tensor(x, [x.len()], device)).collect()
    }

    /// Gradients of `sum(output * cotangent)` with respect to the tracked inputs.
    fn gradients(
        &self,
        operation: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
        tracked: &[bool],
        cotangent: &[f32],
    ) -> Vec<Option<Vec<f32>>> {
        let device = Device::flex().autodiff();
        let track = |(x, tracked): (Tensor<1>, &bool)| if *tracked { x.require_grad() } else { x };
        let inputs: Vec<Tensor<1>> = self.tensors(&device).into_iter().zip(tracked).map(track).collect();
        let loss = (operation(&inputs) * tensor(cotangent, [cotangent.len()], &device)).sum();
        let gradients = loss.backward();
        inputs.iter().map(|x| x.grad(&gradients).map(read)).collect()
    }

    fn numeric_gradient(&self, input: usize, cotangent: &[f32]) -> Vec<f64> {
        let (inputs, cotangent) = (self.wide_inputs(), wide(cotangent));
        let value = |x: &[f64]| {
            let mut inputs = inputs.clone();
            inputs[input] = x.to_vec();
            plain::dot(&(self.plain)(&inputs), &cotangent)
        };
        plain::gradient(value, &inputs[input])
    }
}

/// Fails unless `run` gives the same bits on one, two and four threads, and twice in a row.
pub fn assert_same_on_any_threads(name: &str, run: impl Fn() -> Vec<Vec<f32>> + Sync) {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started");
        pool.install(&run)
    };
    let bits = |values: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
        values.into_iter().map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
    };
    let one = bits(on(1));
    assert!(one == bits(on(1)), "{name}: two runs differ");
    assert!(one == bits(on(2)), "{name}: one and two threads differ");
    assert!(one == bits(on(4)), "{name}: one and four threads differ");
}

/// Output and gradients of all inputs, for [`assert_same_on_any_threads`].
pub fn run_all(inputs: &[Vec<f32>], operation: impl Fn(&[Tensor<1>]) -> Tensor<1>) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let inputs: Vec<Tensor<1>> = inputs.iter().map(|x| tensor(x, [x.len()], &device).require_grad()).collect();
    let output = operation(&inputs);
    let cotangent = tensor(&values(998, output.dims()[0]), output.dims(), &device);
    let gradients = (output.clone() * cotangent).sum().backward();
    let mut all = vec![read(output)];
    all.extend(inputs.iter().map(|x| read(x.grad(&gradients).expect("every input is tracked"))));
    all
}
