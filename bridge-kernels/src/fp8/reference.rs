//! Linear layers in 8 bits by plain operations, on every backend. No value is read by the host:
//! scales and magnitudes are tensors of one element.

use burn::tensor::{DType, Tensor};

use super::format::Fp8Format;
use super::pass::Fp8Pass;
use super::rule::{Operand, Share};
use crate::flex::inputs as inputs_of;
use crate::offload::Kept;
use crate::precision::{float32, sum_of_rows};
use crate::vjp;

/// [`fp8_linear`](super::fp8_linear) of float32 by other operations.
pub fn reference<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    pass: &Fp8Pass,
) -> Tensor<D> {
    let kept = (x.clone().without_autodiff(), weight_oi.clone().without_autodiff());
    plain(x, weight_oi, bias_o, (pass, kept))
}

/// [`reference`]; `kept` are input and weight as they are held without it, in their own dtype.
pub(super) fn plain<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    (pass, (kept_x, kept_weight)): (&Fp8Pass, (Tensor<D>, Tensor<2>)),
) -> Tensor<D> {
    let (dims, [outputs, inputs]) = (x.dims(), weight_oi.dims());
    let rows: usize = dims[..D - 1].iter().product();
    let mut shape = dims;
    shape[D - 1] = outputs;
    let graph = inputs_of(&x, &weight_oi, bias_o.as_ref());
    let tracked = [x.is_tracked(), weight_oi.is_tracked(), bias_o.as_ref().is_some_and(Tensor::is_tracked)];
    let has_bias = bias_o.is_some();
    let pass = pass.on_device();
    let x_ni = pass.rounded(x.without_autodiff().reshape([rows, inputs]), Operand::Input);
    let product = x_ni.times(pass.rounded(weight_oi.without_autodiff(), Operand::Weight).transposed());
    let y_no = match bias_o {
        Some(bias_o) => product + bias_o.without_autodiff().unsqueeze(),
        None => product,
    };
    let kept_weight = tracked[0].then_some(kept_weight);
    let kept_x = tracked[1].then(|| Kept::from_tensor(&kept_x));
    vjp::attach_some(y_no.reshape(shape), graph, move |dy: Tensor<D>| {
        let dy_no = dy.reshape([rows, outputs]);
        let is_shared = pass.0.rule.is_one_cast();
        let along = (is_shared || kept_weight.is_some()).then(|| pass.rounded(dy_no.clone(), Operand::Gradient));
        let dx = kept_weight.map(|weight_oi| {
            let weight_oi = pass.rounded(float32(weight_oi), Operand::WeightAcross);
            along.clone().expect("it is cast for this product").times(weight_oi).reshape(dims).into_dispatch()
        });
        let dw = kept_x.map(|x| {
            let x_ni: Tensor<2> = float32(x.into_tensor::<D>()).reshape([rows, inputs]);
            if !pass.0.rule.weight_gradient {
                return dy_no.clone().transpose().matmul(x_ni).into_dispatch();
            }
            let across = || pass.rounded(dy_no.clone(), Operand::GradientAcross);
            let dy_no = along.filter(|_| is_shared).unwrap_or_else(across);
            dy_no.transposed().times(pass.rounded(x_ni, Operand::InputAcross)).into_dispatch()
        });
        let db = tracked[2].then(|| sum_of_rows(dy_no, DType::F32).into_dispatch());
        let mut gradients = vec![dx, dw];
        gradients.extend(has_bias.then_some(db));
        gradients
    })
}

/// A matrix of the values of codes without their scale, `[1, 1]`: products are scaled afterwards,
/// as on matrix units.
#[derive(Clone)]
pub(super) struct Rounded {
    values: Tensor<2>,
    factor: Option<Tensor<2>>,
}

impl Rounded {
    pub(super) fn transposed(self) -> Self {
        Self { values: self.values.transpose(), ..self }
    }

    pub(super) fn times(self, other: Self) -> Tensor<2> {
        let product = self.values.matmul(other.values);
        match (self.factor, other.factor) {
            (Some(factor), Some(other)) => product * (factor * other),
            (Some(factor), None) | (None, Some(factor)) => product * factor,
            (None, None) => product,
        }
    }
}

/// A pass with a separate scale `[1, 1]` for each operand.
pub(super) struct DevicePass(pub(super) Fp8Pass, Option<[Tensor<2>; 3]>);

impl Fp8Pass {
    pub(super) fn on_device(&self) -> DevicePass {
        let each = |scales: &Tensor<1>| {
            let scales = scales.clone().without_autodiff();
            std::array::from_fn(|place| scales.clone().narrow(0, place, 1).reshape([1, 1]))
        };
        DevicePass(self.clone(), self.scales.as_ref().map(each))
    }
}

impl DevicePass {
    /// Sharing of scales by an operand, `[1, 1]` if scales are given.
    pub(super) fn share(&self, operand: Operand) -> Share<Tensor<2>> {
        self.0.rule.share(operand, self.1.as_ref())
    }

    /// Operand after the round trip through 8 bits.
    pub(super) fn rounded(&self, x: Tensor<2>, operand: Operand) -> Rounded {
        let pass = &self.0;
        let format = pass.rule.format(operand);
        match self.share(operand) {
            Share::Tensor(given) => {
                let cast = Cast::new(x);
                let is_read = given.is_none() || pass.maxima.is_some();
                let largest = is_read.then(|| cast.largest(&[0, 1]));
                if let Some((maxima, largest)) = pass.maxima.as_ref().zip(largest.clone()) {
                    let is_finite = largest.clone().lower_equal_elem(f32::MAX);
                    maxima.note_tensor(operand, largest.mask_fill(is_finite.bool_not(), f32::INFINITY).reshape([1]));
                }
                let scale = given.or_else(|| Some(scale_of(largest?, format))).expect("one of them is there");
                Rounded { values: cast.codes(scale.clone(), format), factor: Some(scale.recip()) }
            }
            Share::Block(block) => Rounded { values: by_blocks(x, block, format), factor: None },
        }
    }
}

/// Matrix after the round trip with one power of two as the scale of each block.
fn by_blocks(x: Tensor<2>, block: [usize; 2], format: Fp8Format) -> Tensor<2> {
    let dims = x.dims();
    let [down, across]: [usize; 2] = std::array::from_fn(|dim| dims[dim].div_ceil(block[dim]));
    let padded = [down * block[0], across * block[1]];
    // Blocks at the edges are filled with zeros, which change no magnitude.
    let x = match padded == dims {
        true => x,
        false => Tensor::zeros(padded, (&x.device(), x.dtype())).slice_assign([0..dims[0], 0..dims[1]], x),
    };
    let cast = Cast::new(x.reshape([down, block[0], across, block[1]]));
    let scale = power_of_two(scale_of(cast.largest(&[1, 3]), format));
    let values = cast.codes(scale.clone(), format) * scale.recip();
    let values: Tensor<2> = values.reshape(padded);
    if padded == dims { values } else { values.slice([0..dims[0], 0..dims[1]]) }
}

/// A tensor that is cast.
struct Cast<const D: usize> {
    x: Tensor<D>,
    /// Zero where elements are finite, NaN where they are not.
    poison: Tensor<D>,
}

impl<const D: usize> Cast<D> {
    fn new(x: Tensor<D>) -> Self {
        Self { poison: x.clone() - x.clone(), x }
    }

    /// The largest magnitude over some dims; NaN if an element is not finite, even if the device's
    /// maximum ignores NaN.
    fn largest(&self, dims: &[usize]) -> Tensor<D> {
        self.x.clone().max_abs_dims(dims) + self.poison.clone().sum_dims(dims)
    }

    /// Decoded values of the tensor times a scale. Infinite values become NaN.
    fn codes(self, scale: Tensor<D>, format: Fp8Format) -> Tensor<D> {
        nearest(self.x * scale, format) + self.poison
    }
}

/// [`Fp8Format::scale`].
fn scale_of<const D: usize>(largest: Tensor<D>, format: Fp8Format) -> Tensor<D> {
    let is_usable = largest.clone().lower_equal_elem(f32::MAX).bool_and(largest.clone().greater_elem(0.0));
    let scale = (largest.zeros_like() + format.largest()) / largest;
    scale.clamp_max(f32::MAX).mask_fill(is_usable.bool_not(), 1.0)
}

/// The power of two that is as large as `x` or next below, for positive normal values (Rump,
/// Zimmermann, Boldo and Melquiond, BIT 49, 2009).
fn power_of_two<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    // Large values are scaled down first, so that the computation does not overflow.
    let is_large = x.clone().greater_equal_elem(1.0);
    let power = unit_in_the_first_place(x.clone().mask_where(is_large.clone(), x * 2.0_f32.powi(-64)));
    power.clone().mask_where(is_large, power * 2.0_f32.powi(64))
}

/// The power of two that is as large as `x` or next below; 0 for 0. Valid for values of at least
/// zero and below `2^104`.
fn unit_in_the_first_place<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let grown = x * (2.0_f32.powi(23) + 1.0);
    grown.clone() - grown * (1.0 - 2.0_f32.powi(-24))
}

/// The nearest values of a format, ties to even.
fn nearest<const D: usize>(x: Tensor<D>, format: Fp8Format) -> Tensor<D> {
    let x = x.clamp(-format.largest(), format.largest());
    // The distance of values from each other doubles from one power of two to the next.
    let relative = format.quantum() / format.least_normal();
    let distance = (unit_in_the_first_place(x.clone().abs()) * relative).clamp_min(format.quantum());
    (x / distance.clone()).round() * distance
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn values(x: Tensor<1>) -> Vec<u32> {
        x.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    fn tensor(x: &[f32]) -> Tensor<1> {
        Tensor::from_data(TensorData::from(x), &Device::flex())
    }

    /// Floats around all powers of two, and some between.
    fn floats() -> Vec<f32> {
        let around = (1..255_u32).flat_map(|exponent| {
            let bits = exponent << 23;
            [bits, bits + 1, bits + 0x2a_5a5a, bits + 0x40_0000, bits + 0x7f_ffff]
        });
        around.map(f32::from_bits).collect()
    }

    #[test]
    fn powers_of_two_are_those_of_the_bits() {
        let floats = floats();
        let expected: Vec<u32> = floats.iter().map(|x| x.to_bits() & 0xff80_0000).collect();
        assert_eq!(values(power_of_two(tensor(&floats))), expected);
    }

    #[test]
    fn scales_are_those_of_the_host() {
        let largest = [&floats()[..], &[0.0, 1e-42, f32::INFINITY, f32::NAN]].concat();
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let expected: Vec<u32> = largest.iter().map(|x| format.scale(*x).to_bits()).collect();
            assert_eq!(values(scale_of(tensor(&largest), format)), expected, "{format:?}");
            let expected: Vec<u32> = largest.iter().map(|x| format.power_of_two_scale(*x).to_bits()).collect();
            assert_eq!(values(power_of_two(scale_of(tensor(&largest), format))), expected, "{format:?}");
        }
    }

    #[test]
    fn values_are_those_of_the_codes() {
        // All values of a format, the midpoints between them, and the next floats on both sides.
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let codes: Vec<f32> = (0..=255_u8).map(|code| format.value(code)).filter(|x| x.is_finite()).collect();
            let halves = codes.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
            let near = |x: f32| [x, x.next_up(), x.next_down()];
            let x: Vec<f32> = codes.iter().copied().chain(halves).flat_map(near).chain([1e9, -1e9, 1e-42]).collect();
            let found: Vec<f32> = nearest(tensor(&x), format).into_data().iter::<f32>().collect();
            for (x, found) in x.iter().zip(found) {
                assert_eq!(found, format.value(format.code(*x)), "{format:?}: {x:e}");
            }
        }
    }
}
