//! Casts of the operands of a linear layer to 8-bit floats, and the record of their magnitudes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;

use super::format::Fp8Format;
use crate::read_together;

/// Precision of the three products of a linear layer: the output, the input's gradient, and the
/// weight's gradient.
///
/// Inputs and weights are E4M3. Sums are float32, and the output has the dtype of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Rule {
    /// Format of the gradients of outputs.
    pub gradient: Fp8Format,
    /// Source of the scales.
    pub scaling: Fp8Scaling,
    /// True if the operands of the weight's gradient are cast too.
    pub weight_gradient: bool,
}

/// Source of the scales that multiply an operand before it is cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scaling {
    /// One scale for each tensor, from its own largest magnitude.
    Current,
    /// One given scale for each tensor ([`Fp8Pass::scales`](super::Fp8Pass::scales)), from the
    /// magnitudes of earlier steps.
    Delayed,
    /// A power of two for every 32 elements along the sum (Rouhani et al., arXiv:2310.10537).
    Microscaling,
    /// A power of two for every 128 elements along the sum, of weights for 128 x 128 (DeepSeek-AI,
    /// arXiv:2412.19437).
    Blockwise,
}

/// An operand of one of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// `x [n, i]`, of the output.
    Input,
    /// `w [o, i]`, of the output.
    Weight,
    /// `dy [n, o]`, of the input's gradient.
    Gradient,
    /// `w [o, i]`, of the input's gradient, where rows are summed over.
    WeightAcross,
    /// `dy [n, o]`, of the weight's gradient, where rows are summed over.
    GradientAcross,
    /// `x [n, i]`, of the weight's gradient.
    InputAcross,
}

impl Operand {
    /// Index of the operand in a layer: input, weight, gradient of the output.
    const fn operand_index(self) -> usize {
        match self {
            Self::Input | Self::InputAcross => 0,
            Self::Weight | Self::WeightAcross => 1,
            Self::Gradient | Self::GradientAcross => 2,
        }
    }
}

/// Elements that share a scale, which is a number on the host or a tensor on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Share<T> {
    /// All of them; the scale, if it is given.
    Tensor(Option<T>),
    /// Rows and columns of a block.
    Block([usize; 2]),
}

impl Fp8Rule {
    pub(super) const fn format(self, operand: Operand) -> Fp8Format {
        match operand {
            Operand::Gradient | Operand::GradientAcross => self.gradient,
            Operand::Input | Operand::Weight | Operand::WeightAcross | Operand::InputAcross => Fp8Format::E4M3,
        }
    }

    /// Sharing of scales by an operand; `scales` are given scales of input, weight and gradient.
    /// Panics if given scales are required and missing.
    pub(super) fn share<T: Clone>(self, operand: Operand, scales: Option<&[T; 3]>) -> Share<T> {
        let is_across = matches!(operand, Operand::WeightAcross | Operand::GradientAcross | Operand::InputAcross);
        let is_weight = matches!(operand, Operand::Weight | Operand::WeightAcross);
        match self.scaling {
            Fp8Scaling::Current => Share::Tensor(None),
            Fp8Scaling::Delayed => {
                let scales = scales.expect("scales of earlier steps are given");
                Share::Tensor(Some(scales[operand.operand_index()].clone()))
            }
            Fp8Scaling::Microscaling => Share::Block(if is_across { [32, 1] } else { [1, 32] }),
            Fp8Scaling::Blockwise if is_weight => Share::Block([128, 128]),
            Fp8Scaling::Blockwise => Share::Block(if is_across { [128, 1] } else { [1, 128] }),
        }
    }

    /// True if one scale serves all elements of an operand, so that one cast serves both of its
    /// products.
    pub const fn is_one_cast(self) -> bool {
        matches!(self.scaling, Fp8Scaling::Current | Fp8Scaling::Delayed)
    }
}

/// The largest magnitudes of a layer's operands (input, weight, gradient) since they were last
/// taken. Delayed scales are computed from them.
///
/// Magnitudes of tensors on a GPU stay there until they are taken, so that recording them waits for
/// no device.
#[derive(Debug, Default)]
pub struct OperandMaxima {
    host: [AtomicU32; 3],
    device: Mutex<[Option<Tensor<1>>; 3]>,
}

/// Bits of a magnitude: nonnegative floats have the order of their bits. NaN counts as infinite.
const fn ordered(largest: f32) -> u32 {
    if largest.is_finite() { largest.to_bits() } else { f32::INFINITY.to_bits() }
}

impl OperandMaxima {
    /// Records the largest magnitude of a tensor. NaN counts as infinite.
    pub(super) fn note(&self, operand: Operand, largest: f32) {
        self.host[operand.operand_index()].fetch_max(ordered(largest), Ordering::Relaxed);
    }

    /// Notes the largest magnitude `[1]` of a tensor on a device, which is finite or infinite.
    pub(super) fn note_tensor(&self, operand: Operand, largest: Tensor<1>) {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = &mut device[operand.operand_index()];
        *noted = Some(match noted.take() {
            Some(before) => before.max_pair(largest),
            None => largest,
        });
    }

    /// Begins anew.
    pub fn forget(&self) {
        let _ = self.take_host();
        let _ = self.take_device();
    }

    /// Takes the magnitudes (input, weight, gradient) that each of a rank's layers recorded, and
    /// resets the records. A device is waited for once.
    pub fn take_all<'a>(layers: impl IntoIterator<Item = &'a Self>) -> Vec<[f32; 3]> {
        let (mut all, mut places, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
        for (layer, maxima) in layers.into_iter().enumerate() {
            all.push(maxima.take_host());
            for (place, tensor) in maxima.take_device().into_iter().enumerate() {
                if let Some(tensor) = tensor {
                    places.push((layer, place));
                    tensors.push(tensor);
                }
            }
        }
        for ((layer, place), data) in places.into_iter().zip(read_together(tensors)) {
            let largest = data.iter::<f32>().next().expect("a magnitude is one element");
            let noted: &mut f32 = &mut all[layer][place];
            *noted = noted.max(f32::from_bits(ordered(largest)));
        }
        all
    }

    fn take_host(&self) -> [f32; 3] {
        std::array::from_fn(|place| f32::from_bits(self.host[place].swap(0, Ordering::Relaxed)))
    }

    fn take_device(&self) -> [Option<Tensor<1>>; 3] {
        std::mem::take(&mut *self.device.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_is_kept_until_it_is_taken() {
        let maxima = [OperandMaxima::default(), OperandMaxima::default()];
        for (operand, largest) in [(Operand::Input, 0.5), (Operand::Weight, 2.0), (Operand::Input, 0.25)] {
            maxima[1].note(operand, largest);
        }
        assert_eq!(OperandMaxima::take_all(&maxima), [[0.0; 3], [0.5, 2.0, 0.0]]);
        maxima[0].note(Operand::Gradient, f32::NAN);
        assert_eq!(OperandMaxima::take_all(&maxima), [[0.0, 0.0, f32::INFINITY], [0.0; 3]]);
        maxima[0].note(Operand::Gradient, 1.0);
        maxima[0].forget();
        assert_eq!(OperandMaxima::take_all(&maxima), [[0.0; 3]; 2]);
    }

    #[test]
    fn magnitudes_on_a_device_are_read_when_they_are_taken() {
        let device = burn::tensor::Device::flex();
        let maxima = [OperandMaxima::default(), OperandMaxima::default()];
        let tensor = |largest: f32| Tensor::<1>::from_data([largest], &device);
        for (operand, largest) in [(Operand::Input, 0.5), (Operand::Input, 0.75), (Operand::Weight, f32::INFINITY)] {
            maxima[1].note_tensor(operand, tensor(largest));
        }
        maxima[0].note_tensor(Operand::GradientAcross, tensor(3.0));
        maxima[0].note(Operand::Gradient, 2.0);
        assert_eq!(OperandMaxima::take_all(&maxima), [[0.0, 0.0, 3.0], [0.75, f32::INFINITY, 0.0]]);
        maxima[1].note_tensor(Operand::Input, tensor(4.0));
        maxima[1].forget();
        assert_eq!(OperandMaxima::take_all(&maxima), [[0.0; 3]; 2]);
    }
}
