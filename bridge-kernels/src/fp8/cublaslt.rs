//! Linear layers in 8 bits by a [`Table`] of products, for operands with one scale each. A function
//! returns `None` where it does not apply (another device, mixed dtypes, blocks with scales of
//! their own, no algorithm); a product of backward that the table does not have is emulated.

use std::cell::OnceCell;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};

use super::cube::{OneScale, Room};
use super::pass::Fp8Pass;
use super::reference::DevicePass;
use super::rule::{Operand, Share};
use crate::cube::Buffer;
use crate::cublaslt::{Compute, Element, Epilogue, Operands, Product, Table, multiply};
use crate::flex::inputs as inputs_of;
use crate::offload::Kept;
use crate::precision::{narrow, sum_of_rows, widen};
use crate::vjp;

/// A product of two tensors in 8 bits that the table has; their codes are not made yet.
struct Decided<'a, T> {
    table: &'a T,
    product: Product,
    operands: Operands<2>,
    rooms: [Room; 2],
    /// A bias that the product does not add itself.
    bias_n: Option<Tensor<1>>,
}

/// `a b^T + bias`, `[m, k]` by `[n, k]`, stored as `result` says, if the table has it. A result of
/// 16 bits is rounded once, with the bias in it.
fn decide<'a, T: Table>(
    table: &'a T,
    rooms: [Room; 2],
    result: DType,
    bias_n: Option<&Tensor<1>>,
) -> Option<Decided<'a, T>> {
    let [a, b] = &rooms;
    let product = Product::new(a.matrix, b.matrix.transposed(), Element::from_dtype(result)?, Compute::Float32)?;
    let scales = Some([a.inverse(), b.inverse()]);
    let operands = Operands { scales, ..Operands::new(a.tensor(), b.tensor()) };
    let (product, operands, bias_n) = match bias_n.cloned() {
        // For 8-bit products cuBLASLt does not support a float32 bias.
        Some(bias_n) if result != DType::F32 => {
            (product.then(Epilogue::Bias), Operands { bias: Some(bias_n), ..operands }, None)
        }
        bias_n => (product, operands, bias_n),
    };
    table.has(&product, &operands).then_some(Decided { table, product, operands, rooms, bias_n })
}

impl<T: Table> Decided<'_, T> {
    /// Casts both tensors and multiplies.
    fn run(mut self, scales: [&OneScale; 2]) -> Option<Tensor<2>> {
        for (room, scale) in self.rooms.iter().zip(scales) {
            room.fill(scale);
        }
        self.operands.scales = Some(scales.map(OneScale::inverse));
        let y = self.table.multiply(&self.product, &mut self.operands)?.d;
        Some(match self.bias_n {
            Some(bias_n) => y + bias_n.unsqueeze(),
            None => y,
        })
    }
}

/// Cast of an operand with one scale; its largest magnitude is recorded. `None` for other operands.
fn one_scale(pass: &DevicePass, x: &Buffer, operand: Operand) -> Option<OneScale> {
    let Share::Tensor(given) = pass.share(operand) else { return None };
    let given = match &given {
        Some(given) => Some(Buffer::from_f32(given)?),
        None => None,
    };
    let noted = pass.0.maxima.is_some();
    let scale = OneScale::new(x, pass.0.rule.format(operand), given.as_ref(), noted);
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
    let (x_ni, weight, pass) = (Buffer::from_tensor(x)?, Buffer::from_tensor(weight_oi)?, pass.on_device());
    let format = |operand| pass.0.rule.format(operand);
    let rooms = [
        Room::along(&x_ni, [rows, inputs], format(Operand::Input)),
        Room::along(&weight, [outputs, inputs], format(Operand::Weight)),
    ];
    let bias = bias_o.map(|bias| bias.clone().without_autodiff());
    // Before anything is cast.
    let decided = decide(table, rooms, dtype, bias.as_ref())?;
    let of_x = one_scale(&pass, &x_ni, Operand::Input)?;
    let of_weight = one_scale(&pass, &weight, Operand::Weight)?;
    let y = decided.run([&of_x, &of_weight])?;
    let mut shape = dims;
    shape[D - 1] = outputs;
    let backward = Backward {
        table: table.clone(),
        pass,
        sizes: [rows, inputs, outputs],
        dims,
        x: weight_oi.is_tracked().then(|| (Kept::from_tensor(x), of_x)),
        weight: x.is_tracked().then_some((weight, of_weight)),
        bias: bias_o.map(Tensor::is_tracked),
    };
    let graph = inputs_of(x, weight_oi, bias_o);
    Some(vjp::attach_some(y.reshape(shape), graph, move |dy: Tensor<D>| backward.gradients(dy)))
}

/// The backward of a layer. Tensors that only gradients of frozen inputs need are not kept.
struct Backward<T, const D: usize> {
    table: T,
    pass: DevicePass,
    /// Rows, inputs, outputs.
    sizes: [usize; 3],
    dims: [usize; D],
    x: Option<(Kept, OneScale)>,
    weight: Option<(Buffer, OneScale)>,
    /// `Some` if there is a bias, true if it is tracked.
    bias: Option<bool>,
}

impl<T: Table, const D: usize> Backward<T, D> {
    /// Gradients of input, weight and, if there is one, bias.
    fn gradients(self, dy: Tensor<D>) -> Vec<Option<DispatchTensor>> {
        let Self { table, pass, sizes: [rows, inputs, outputs], dims, x, weight, bias } = self;
        let dy = Buffer::from_gradient(dy.reshape([rows, outputs]));
        let dtype = dy.0.dtype;
        let of_dy = OnceCell::new();
        let of_dy =
            || of_dy.get_or_init(|| one_scale(&pass, &dy, Operand::Gradient).expect("the forward had one scale too"));
        let format = |operand| pass.0.rule.format(operand);
        let dy_no: Tensor<2> = dy.clone().tensor();
        let dx = weight.map(|(weight, of_weight)| {
            let rooms = [
                Room::along(&dy, [rows, outputs], format(Operand::Gradient)),
                Room::across(&weight, [outputs, inputs], format(Operand::WeightAcross)),
            ];
            let emulated = || {
                let dy = pass.rounded(widen(dy_no.clone()), Operand::Gradient);
                narrow(dy.times(pass.rounded(widen(weight.tensor()), Operand::WeightAcross)), dtype)
            };
            let decided = decide(&table, rooms, dtype, None);
            let dx = decided.and_then(|decided| decided.run([of_dy(), &of_weight])).unwrap_or_else(emulated);
            dx.reshape(dims).into_dispatch()
        });
        let dw = x.map(|(x, of_x)| {
            let x_ni: Tensor<2> = x.into_tensor::<D>().reshape([rows, inputs]);
            let dw = match pass.0.rule.weight_gradient {
                true => {
                    let x = Buffer::from_tensor(&x_ni).expect("the forward had it");
                    let rooms = [
                        Room::across(&dy, [rows, outputs], format(Operand::GradientAcross)),
                        Room::across(&x, [rows, inputs], format(Operand::InputAcross)),
                    ];
                    let decided = decide(&table, rooms, dtype, None);
                    decided.and_then(|decided| decided.run([of_dy(), &of_x])).unwrap_or_else(|| {
                        let dy = pass.rounded(widen(dy_no.clone()), Operand::GradientAcross);
                        narrow(dy.transposed().times(pass.rounded(widen(x_ni), Operand::InputAcross)), dtype)
                    })
                }
                false => {
                    let dy_on = dy_no.clone().transpose();
                    let dw = Element::from_dtype(dtype).and_then(|element| multiply(&table, &dy_on, &x_ni, element));
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
