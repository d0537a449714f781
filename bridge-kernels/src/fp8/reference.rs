//! Linear layers in 8 bits by plain operations, on every backend.

use burn::tensor::{Tensor, TensorData};

use super::Fp8Pass;
use super::cpu::largest_magnitude;
use super::format::Fp8Format;
use super::rule::{Operand, Share};
use crate::cpu::simd::larger_magnitude;
use crate::flex::inputs as inputs_of;
use crate::offload::Kept;
use crate::vjp;

/// [`fp8_linear`](super::fp8_linear) of float32 by other operations. Scales are made on the host.
pub fn reference<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    pass: &Fp8Pass,
) -> Tensor<D> {
    let (dims, [outputs, inputs]) = (x.dims(), weight_oi.dims());
    let rows: usize = dims[..D - 1].iter().product();
    let mut shape = dims;
    shape[D - 1] = outputs;
    let graph = inputs_of(&x, &weight_oi, bias_o.as_ref());
    let tracked = [x.is_tracked(), weight_oi.is_tracked(), bias_o.as_ref().is_some_and(Tensor::is_tracked)];
    let has_bias = bias_o.is_some();
    let x_ni = x.without_autodiff().reshape([rows, inputs]);
    let weight_oi = weight_oi.without_autodiff();
    let product =
        pass.rounded(x_ni.clone(), Operand::Input).matmul(pass.rounded(weight_oi.clone(), Operand::Weight).transpose());
    let y_no = match bias_o {
        Some(bias_o) => product + bias_o.without_autodiff().unsqueeze(),
        None => product,
    };
    let pass = pass.clone();
    let kept = tracked[1].then(|| Kept::of(&x_ni));
    vjp::attach_some(y_no.reshape(shape), graph, move |dy: Tensor<D>| {
        let dy_no = dy.reshape([rows, outputs]);
        let dx = tracked[0].then(|| {
            let dy_no = pass.rounded(dy_no.clone(), Operand::Gradient);
            dy_no.matmul(pass.rounded(weight_oi, Operand::WeightAcross)).reshape(dims).into_dispatch()
        });
        let dw = kept.map(|x_ni| {
            let x_ni: Tensor<2> = x_ni.into_tensor();
            let (dy_no, x_ni) = match pass.rule.weight_gradient {
                true => {
                    (pass.rounded(dy_no.clone(), Operand::GradientAcross), pass.rounded(x_ni, Operand::InputAcross))
                }
                false => (dy_no.clone(), x_ni),
            };
            dy_no.transpose().matmul(x_ni).into_dispatch()
        });
        let db = tracked[2].then(|| dy_no.sum_dim(0).reshape([outputs]).into_dispatch());
        let mut gradients = vec![dx, dw];
        gradients.extend(has_bias.then_some(db));
        gradients
    })
}

impl Fp8Pass {
    /// What is left of an operand in 8 bits.
    pub(super) fn rounded(&self, x: Tensor<2>, operand: Operand) -> Tensor<2> {
        let (format, [rows, columns]) = (self.rule.format(operand), x.dims());
        let values: Vec<f32> = x.to_data().iter::<f32>().collect();
        let scales_of = |scales: Vec<f32>| {
            let data = TensorData::new(scales, [rows, columns]);
            Tensor::<2>::from_data(data, (&x.device(), x.dtype()))
        };
        let scales = match self.rule.share(operand, self.scales) {
            Share::Tensor(given) => {
                let largest = largest_magnitude(&values);
                if let Some(maxima) = &self.maxima {
                    maxima.note(operand, largest);
                }
                vec![given.unwrap_or_else(|| format.scale(largest)); values.len()]
            }
            Share::Block([height, width]) => {
                let across = columns.div_ceil(width);
                let block = |place: usize| place / columns / height * across + place % columns / width;
                let mut largest = vec![0.0_f32; rows.div_ceil(height) * across];
                for (place, value) in values.iter().enumerate() {
                    let largest = &mut largest[block(place)];
                    *largest = larger_magnitude(*largest, *value);
                }
                (0..values.len()).map(|place| format.power_of_two_scale(largest[block(place)])).collect()
            }
        };
        let inverses = scales_of(scales.iter().map(|scale| 1.0 / scale).collect());
        // What is infinite becomes NaN.
        nearest(x.clone() * scales_of(scales), format) * inverses + (x.clone() - x)
    }
}

/// The nearest values of a format, ties to even.
fn nearest(x: Tensor<2>, format: Fp8Format) -> Tensor<2> {
    let x = x.clamp(-format.largest(), format.largest());
    // The distance of values from each other doubles from one power of two to the next.
    let mut distance = x.clone().zeros_like() + format.quantum();
    let mut power = 2.0 * format.least_normal();
    while power <= format.largest() {
        let is_above = x.clone().abs().greater_equal_elem(power);
        distance = distance.clone().mask_where(is_above, distance * 2.0);
        power *= 2.0;
    }
    (x / distance.clone()).round() * distance
}
