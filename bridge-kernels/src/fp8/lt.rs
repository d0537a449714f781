//! Linear layers in 8 bits by a [`Table`] of products, for operands with one scale each. A function returns `None` where it does not apply (another
//! device, mixed dtypes, blocks with scales of their own, no algorithm); a product of backward that the table does not have is emulated.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};

use super::cube::{Codes, OneScale};
use super::pass::Fp8Pass;
use super::reference::DevicePass;
use super::rule::{Operand, Share};
use crate::cube::Buffer;
use crate::flex::inputs as inputs_of;
use crate::lt::{Compute, Element, Epilogue, Operands, Product, Table, multiply};
use crate::offload::Kept;
use crate::precision::{narrow, sum_of_rows, widen};
use crate::vjp;

/// `a b^T + bias`, `[m, k]` by `[n, k]`, stored as `result` says. A result of 16 bits is rounded once, with the bias in it.
fn product<T: Table>(table: &T, [a, b]: [Codes; 2], result: DType, bias_n: Option<&Tensor<1>>) -> Option<Tensor<2>> {
    let product = Product::new(a.matrix, b.matrix.transposed(), Element::of(result)?, Compute::Float32)?;
    let mut operands = Operands { scales: Some([a.inverse, b.inverse]), ..Operands::new(a.tensor, b.tensor) };
    match bias_n {
        // cuBLASLt has no bias of float32 here.
        Some(bias_n) if result == DType::F32 => {
            table.multiply(&product, &mut operands).map(|results| results.d + bias_n.clone().unsqueeze())
        }
        Some(bias_n) => {
            operands.bias = Some(bias_n.clone());
            table.multiply(&product.then(Epilogue::Bias), &mut operands).map(|results| results.d)
        }
        None => table.multiply(&product, &mut operands).map(|results| results.d),
    }
}

/// How an operand with one scale becomes codes; its largest magnitude is noted. `None` for others.
fn one_scale(pass: &DevicePass, x: &Buffer, operand: Operand) -> Option<OneScale> {
    let Share::Tensor(given) = pass.share(operand) else { return None };
    let given = match &given {
        Some(given) => Some(Buffer::of_f32(given)?),
        None => None,
    };
    let scale = OneScale::new(x, pass.0.rule.format(operand), given.as_ref());
    if let Some(maxima) = &pass.0.maxima {
        maxima.note_tensor(operand, scale.largest());
    }
    Some(scale)
}

/// See [`super::fp8_linear`].
pub(super) fn fp8_linear<T: Table, const D: usize>(
    table: &T,
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    pass: &Fp8Pass,
) -> Option<Tensor<D>> {
    let (dims, [outputs, inputs], dtype) = (x.dims(), weight_oi.dims(), x.dtype());
    let is_one_dtype = weight_oi.dtype() == dtype && bias_o.is_none_or(|bias| bias.dtype() == dtype);
    (pass.rule.is_one_cast() && is_one_dtype).then_some(())?;
    let rows: usize = dims[..D - 1].iter().product();
    let (x_ni, weight, pass) = (Buffer::of(x)?, Buffer::of(weight_oi)?, pass.on_device());
    let of_x = one_scale(&pass, &x_ni, Operand::Input)?;
    let of_weight = one_scale(&pass, &weight, Operand::Weight)?;
    let codes = [of_x.along(&x_ni, [rows, inputs]), of_weight.along(&weight, [outputs, inputs])];
    let bias = bias_o.map(|bias| bias.clone().without_autodiff());
    let y = product(table, codes, dtype, bias.as_ref())?;
    let mut shape = dims;
    shape[D - 1] = outputs;
    let backward = Backward {
        table: table.clone(),
        pass,
        sizes: [rows, inputs, outputs],
        dims,
        x: weight_oi.is_tracked().then(|| (Kept::of(x), of_x)),
        weight: x.is_tracked().then_some((weight, of_weight)),
        bias: bias_o.map(Tensor::is_tracked),
    };
    let graph = inputs_of(x, weight_oi, bias_o);
    Some(vjp::attach_some(y.reshape(shape), graph, move |dy: Tensor<D>| backward.gradients(dy)))
}

/// The backward of a layer. What a frozen input would need is not kept.
struct Backward<T, const D: usize> {
    table: T,
    pass: DevicePass,
    /// Rows, inputs, outputs.
    sizes: [usize; 3],
    dims: [usize; D],
    x: Option<(Kept, OneScale)>,
    weight: Option<(Buffer, OneScale)>,
    /// Whether there is a bias, and whether it is tracked.
    bias: Option<bool>,
}

impl<T: Table, const D: usize> Backward<T, D> {
    /// Gradients of input, weight and, if there is one, bias.
    fn gradients(self, dy: Tensor<D>) -> Vec<Option<DispatchTensor>> {
        let Self { table, pass, sizes: [rows, inputs, outputs], dims, x, weight, bias } = self;
        let dy = Buffer::of_gradient(dy.reshape([rows, outputs]));
        let dtype = dy.0.dtype;
        let of_dy = one_scale(&pass, &dy, Operand::Gradient).expect("the forward had one scale too");
        let dy_no: Tensor<2> = dy.clone().tensor();
        let dx = weight.map(|(weight, of_weight)| {
            let codes = [of_dy.along(&dy, [rows, outputs]), of_weight.across(&weight, [outputs, inputs])];
            let emulated = || {
                let dy = pass.rounded(widen(dy_no.clone()), Operand::Gradient);
                narrow(dy.times(pass.rounded(widen(weight.tensor()), Operand::WeightAcross)), dtype)
            };
            product(&table, codes, dtype, None).unwrap_or_else(emulated).reshape(dims).into_dispatch()
        });
        let dw = x.map(|(x, of_x)| {
            let x_ni: Tensor<2> = x.into_tensor::<D>().reshape([rows, inputs]);
            let dw = match pass.0.rule.weight_gradient {
                true => {
                    let x = Buffer::of(&x_ni).expect("the forward had it");
                    let codes = [of_dy.across(&dy, [rows, outputs]), of_x.across(&x, [rows, inputs])];
                    product(&table, codes, dtype, None).unwrap_or_else(|| {
                        let dy = pass.rounded(widen(dy_no.clone()), Operand::GradientAcross);
                        narrow(dy.transposed().times(pass.rounded(widen(x_ni), Operand::InputAcross)), dtype)
                    })
                }
                false => {
                    let dy_on = dy_no.clone().transpose();
                    let dw = Element::of(dtype).and_then(|element| multiply(&table, &dy_on, &x_ni, element));
                    dw.unwrap_or_else(|| dy_on.matmul(x_ni))
                }
            };
            dw.into_dispatch()
        });
        let mut gradients = vec![dx, dw];
        if let Some(is_tracked) = bias {
            gradients.push(is_tracked.then(|| sum_of_rows(dy_no, dtype).into_dispatch()));
        }
        gradients
    }
}
