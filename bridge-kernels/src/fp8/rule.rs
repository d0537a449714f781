//! How the operands of a linear layer's products become 8-bit floats, and what is noted of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;

use super::format::Fp8Format;
use crate::reads::read_together;

/// How the three products of a linear layer are made: of the output, of the input's gradient, of the weight's gradient.
///
/// Inputs and weights are E4M3. Sums are float32, and what comes out has the dtype of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Rule {
    /// What gradients of outputs are cast to.
    pub gradient: Fp8Format,
    /// Where scales come from.
    pub scaling: Fp8Scaling,
    /// Whether the operands of the weight's gradient are cast too.
    pub weight_gradient: bool,
}

/// Where the scales come from by which an operand is multiplied before it is cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scaling {
    /// One for each tensor, from its own largest magnitude.
    Current,
    /// One for each tensor, given ([`Fp8Scales`]): from the magnitudes of earlier steps.
    Delayed,
    /// A power of two for every 32 elements along the sum (Rouhani et al., arXiv:2310.10537).
    Microscaling,
    /// A power of two for every 128 elements along the sum, of weights for 128 x 128 (DeepSeek-AI, arXiv:2412.19437).
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
    /// The place of its tensor among those of a layer: input, weight, gradient of the output.
    const fn place(self) -> usize {
        match self {
            Self::Input | Self::InputAcross => 0,
            Self::Weight | Self::WeightAcross => 1,
            Self::Gradient | Self::GradientAcross => 2,
        }
    }
}

/// Elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Share {
    /// All of them; the scale, if it is given.
    Tensor(Option<f32>),
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

    pub(super) const fn share(self, operand: Operand, scales: Fp8Scales) -> Share {
        let is_across = matches!(operand, Operand::WeightAcross | Operand::GradientAcross | Operand::InputAcross);
        let is_weight = matches!(operand, Operand::Weight | Operand::WeightAcross);
        match self.scaling {
            Fp8Scaling::Current => Share::Tensor(None),
            Fp8Scaling::Delayed => Share::Tensor(Some(scales.of(operand))),
            Fp8Scaling::Microscaling => Share::Block(if is_across { [32, 1] } else { [1, 32] }),
            Fp8Scaling::Blockwise if is_weight => Share::Block([128, 128]),
            Fp8Scaling::Blockwise => Share::Block(if is_across { [128, 1] } else { [1, 128] }),
        }
    }

    /// Whether an operand is the same in both of its products, so that one cast serves both.
    pub(super) const fn is_one_cast(self) -> bool {
        matches!(self.scaling, Fp8Scaling::Current | Fp8Scaling::Delayed)
    }
}

/// The scales of [`Fp8Scaling::Delayed`], which other scalings do not read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Scales {
    /// Of the input.
    pub input: f32,
    /// Of the weight.
    pub weight: f32,
    /// Of the output's gradient.
    pub gradient: f32,
}

impl Default for Fp8Scales {
    /// Those before there is any history.
    fn default() -> Self {
        Self { input: 1.0, weight: 1.0, gradient: 1.0 }
    }
}

impl Fp8Scales {
    const fn of(self, operand: Operand) -> f32 {
        [self.input, self.weight, self.gradient][operand.place()]
    }
}

/// The largest magnitudes of a layer's operands (input, weight, gradient) since they were last taken: what delayed scales are made of.
#[derive(Debug, Default)]
pub struct OperandMaxima {
    seen: [AtomicU32; 3],
    /// Those that a device has not been asked for yet, `[1]` each: reading one waits for all that the device was given before.
    on_device: Mutex<Vec<(Operand, Tensor<1>)>>,
}

impl OperandMaxima {
    /// Notes the largest magnitude of a tensor. What is not finite counts as infinite.
    pub(super) fn note(&self, operand: Operand, largest: f32) {
        // Floats that are not negative are ordered as their bits are.
        let largest = if largest.is_finite() { largest } else { f32::INFINITY };
        self.seen[operand.place()].fetch_max(largest.to_bits(), Ordering::Relaxed);
    }

    /// Notes the largest magnitude of a tensor, `[1]`, without waiting for the device.
    #[cfg(any(test, feature = "cube"))]
    pub(super) fn note_on_device(&self, operand: Operand, largest: Tensor<1>) {
        self.on_device.lock().unwrap_or_else(PoisonError::into_inner).push((operand, largest));
    }

    /// What was noted, and begins anew: input, weight, gradient.
    pub fn take(&self) -> [f32; 3] {
        let pending = std::mem::take(&mut *self.on_device.lock().unwrap_or_else(PoisonError::into_inner));
        let (operands, tensors): (Vec<_>, Vec<_>) = pending.into_iter().unzip();
        if !tensors.is_empty() {
            for (operand, data) in operands.into_iter().zip(read_together(tensors)) {
                data.iter::<f32>().for_each(|largest| self.note(operand, largest));
            }
        }
        std::array::from_fn(|place| f32::from_bits(self.seen[place].swap(0, Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_is_kept_until_it_is_taken() {
        let maxima = OperandMaxima::default();
        for (operand, largest) in [(Operand::Input, 0.5), (Operand::Weight, 2.0), (Operand::Input, 0.25)] {
            maxima.note(operand, largest);
        }
        maxima.note_on_device(Operand::Gradient, Tensor::from_floats([0.125], &burn::tensor::Device::flex()));
        maxima.note_on_device(Operand::Input, Tensor::from_floats([0.375], &burn::tensor::Device::flex()));
        assert_eq!(maxima.take(), [0.5, 2.0, 0.125]);
        maxima.note(Operand::Gradient, f32::NAN);
        assert_eq!(maxima.take(), [0.0, 0.0, f32::INFINITY]);
        assert_eq!(maxima.take(), [0.0; 3]);
    }
}
