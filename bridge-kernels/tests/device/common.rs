//! Code that the tests of all kernels share.

use bridge_kernels::Philox;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// The device that the build is for; creating it fails where the machine has none.
pub fn device() -> Device {
    #[cfg(feature = "cuda")]
    return Device::cuda(0);
    #[cfg(all(feature = "vulkan", not(feature = "cuda")))]
    return Device::vulkan(burn::tensor::DeviceKind::DefaultDevice);
    #[cfg(not(any(feature = "vulkan", feature = "cuda")))]
    return Device::wgpu(burn::tensor::DeviceKind::DefaultDevice);
}

/// Normally distributed values; a seed is a place in the test.
pub fn values(seed: u64, count: usize) -> Vec<f32> {
    Philox::new(seed).normal(count, 1.0)
}

pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

pub fn ints<const D: usize>(values: &[i64], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &device.clone().without_autodiff())
}

pub fn read<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Fails unless `got` is `want` to `tolerance` in norm, and to ten times that in each element
/// (against the larger of the element and the typical element).
pub fn assert_close(name: &str, got: &[f32], want: &[f32], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}: lengths");
    let square = |x: f64| x * x;
    let rms = (want.iter().map(|w| square(f64::from(*w))).sum::<f64>() / want.len() as f64).sqrt();
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let norm = (difference / want.len() as f64).sqrt();
    assert!(norm <= tolerance * rms + 1e-30, "{name}: relative error {:.2e}", norm / rms);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = 10.0 * tolerance * f64::from(w.abs()).max(rms) + 1e-30;
        assert!((f64::from(*g) - f64::from(*w)).abs() <= allowed, "{name}: element {i} is {g}, expected {w}");
    }
}

/// An operation on flat tensors, which creates its other inputs on the given device.
pub type Operation<'a> = &'a dyn Fn(&[Tensor<1>], &Device) -> Tensor<1>;

/// One operation in two forms.
pub struct Case<'a> {
    pub name: &'a str,
    pub inputs: Vec<Vec<f32>>,
    pub fused: Operation<'a>,
    pub reference: Operation<'a>,
}

/// Relative tolerances of outputs and of gradients: those of the CPU kernels. Sums of a hundred
/// terms in float32 stay well below, and so do the exponentials that WebGPU promises, off by `3 + 2
/// |x|` units in the last place.
const OUTPUT: f64 = 2e-6;
const GRADIENT: f64 = 1e-5;

impl Case<'_> {
    /// Output and the gradients of every input, with all and with single inputs tracked.
    pub fn check(&self) {
        let everything = vec![true; self.inputs.len()];
        let expected = self.run(self.reference, &Device::flex(), &everything);
        let stock = self.run(self.reference, &device(), &everything);
        let fused = self.run(self.fused, &device(), &everything);
        let again = self.run(self.fused, &device(), &everything);
        assert!(fused.0 == again.0, "{}: the outputs of two runs differ", self.name);
        for (i, (one, other)) in fused.1.iter().zip(&again.1).enumerate() {
            assert!(one == other, "{}: the gradients of input {i} differ between two runs", self.name);
        }
        assert_close(&format!("{}: output", self.name), &fused.0, &expected.0, OUTPUT);
        assert_close(&format!("{}: output of the reference", self.name), &stock.0, &expected.0, GRADIENT);
        for (i, expected) in expected.1.iter().enumerate() {
            let name = format!("{}: gradient of input {i}", self.name);
            let expected = expected.as_ref().expect("every input is tracked");
            let gradient = fused.1[i].as_ref().expect("every input is tracked");
            assert_close(&name, gradient, expected, GRADIENT);
            let stock = stock.1[i].as_ref().expect("every input is tracked");
            assert_close(&format!("{name} by the reference"), stock, expected, 2.0 * GRADIENT);
            let only: Vec<bool> = (0..self.inputs.len()).map(|j| j == i).collect();
            let alone = self.run(self.fused, &device(), &only);
            assert!(alone.1[i].as_ref() == Some(gradient), "{name} differs where it is tracked alone");
        }
    }

    /// The output, and the gradients of `sum(output * cotangent)` with respect to the tracked
    /// inputs.
    fn run(&self, operation: Operation<'_>, device: &Device, tracked: &[bool]) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
        let device = device.clone().autodiff();
        let input = |(x, tracked): (&Vec<f32>, &bool)| {
            let x = tensor(x, [x.len()], &device);
            if *tracked { x.require_grad() } else { x }
        };
        let inputs: Vec<Tensor<1>> = self.inputs.iter().zip(tracked).map(input).collect();
        let output = operation(&inputs, &device);
        let cotangent = tensor(&values(999, output.dims()[0]), output.dims(), &device);
        let gradients = (output.clone() * cotangent).sum().backward();
        (read(output), inputs.iter().map(|x| x.grad(&gradients).map(read)).collect())
    }
}
