//! Experts' layers on GPUs: Burn's product for the rows of each expert, read where they are, and
//! one kernel that adds the bias and writes the result to its rows. The products run on matrix
//! units, which a kernel for all experts written here would not: it would pay for very many experts
//! with few rows each alone. As one operation, backward needs no matrix of zeros for each slice
//! either.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::GroupedLinear;
use crate::cube::Buffer;
use crate::precision::sum_of_rows;
use crate::vjp;

/// Writes rows, with the bias added, into `all` from element `first` on; a unit an element.
#[cube(launch)]
fn write_rows<X: Float>(
    rows: &[X],
    bias: ComptimeOption<&[X]>,
    all: &mut [X],
    first: u32,
    columns: u32,
    #[define(X)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= rows.len() {
        terminate!();
    }
    let mut value = f32::cast_from(rows[i]);
    #[comptime]
    match bias {
        ComptimeOption::Some(bias) => value += f32::cast_from(bias[i % columns as usize]),
        ComptimeOption::None => {}
    }
    all[first as usize + i] = X::cast_from(value);
}

/// A layer outside any graph, and which rows are whose.
struct Held {
    weights_oi: Vec<Tensor<2>>,
    biases_o: Vec<Buffer>,
    /// First row and rows of each expert.
    spans: Vec<(usize, usize)>,
}

impl Held {
    fn new(layer: &GroupedLinear, counts: &[usize]) -> Option<Self> {
        let weights_oi = layer.weights_oi.iter().map(|weight| weight.clone().without_autodiff()).collect();
        let biases_o: Option<Vec<_>> = layer.biases_o.iter().map(Buffer::from_tensor).collect();
        let spans = counts.iter().scan(0, |next, count| {
            *next += count;
            Some((*next - count, *count))
        });
        Some(Self { weights_oi, biases_o: biases_o?, spans: spans.collect() })
    }

    /// Writes the products of experts with rows to their rows of `[m, columns]`, each with the
    /// expert's bias where `biases` are given.
    fn joined(
        &self,
        like: &Buffer,
        columns: usize,
        biases: &[Buffer],
        product: impl Fn(usize) -> Tensor<2>,
    ) -> Option<Buffer> {
        let rows = self.spans.iter().map(|(_, count)| count).sum::<usize>();
        let all = like.uninitialised([rows, columns], like.0.dtype);
        for (expert, (start, count)) in self.spans.iter().enumerate() {
            if count * columns == 0 {
                continue;
            }
            let part = Buffer::from_tensor(&product(expert))?;
            let (grid, dim) = part.unit_per_element();
            write_rows::launch(
                &like.0.client,
                grid,
                dim,
                part.arg(),
                biases.get(expert).map(Buffer::arg).into(),
                all.arg(),
                (start * columns) as u32,
                columns as u32,
                all.storage(),
            );
        }
        Some(all)
    }

    /// An expert's rows.
    fn rows(&self, x: &Tensor<2>, expert: usize) -> Tensor<2> {
        let (start, count) = self.spans[expert];
        x.clone().narrow(0, start, count)
    }

    fn weight_gradient(&self, dy: &Tensor<2>, x: &Tensor<2>, expert: usize) -> Tensor<2> {
        match self.spans[expert].1 {
            0 => self.weights_oi[expert].zeros_like(),
            _ => self.rows(dy, expert).transpose().matmul(self.rows(x, expert)),
        }
    }

    fn bias_gradient(&self, dy: &Tensor<2>, expert: usize) -> Tensor<1> {
        match self.spans[expert].1 {
            0 => self.biases_o[expert].clone().tensor::<1>().zeros_like(),
            _ => sum_of_rows(self.rows(dy, expert), dy.dtype()),
        }
    }
}

/// See [`crate::grouped_linear()`]. All tensors are of one dtype, or it does not apply.
pub fn grouped_linear(x_mi: &Tensor<2>, counts: &[usize], layer: &GroupedLinear) -> Option<Tensor<2>> {
    let ([_, inputs], [outputs, _], dtype) = (x_mi.dims(), layer.weights_oi[0].dims(), x_mi.dtype());
    let is_one_dtype = layer.weights_oi.iter().all(|weight| weight.dtype() == dtype)
        && layer.biases_o.iter().all(|bias| bias.dtype() == dtype);
    (is_one_dtype && outputs > 0).then_some(())?;
    let (x_buffer, held) = (Buffer::from_tensor(x_mi)?, Held::new(layer, counts)?);
    let x = x_buffer.clone().tensor::<2>();
    let y = held.joined(&x_buffer, outputs, &held.biases_o, |expert| {
        held.rows(&x, expert).matmul(held.weights_oi[expert].clone().transpose())
    })?;
    let wanted: Vec<bool> = layer.weights_oi.iter().map(Tensor::is_tracked).collect();
    let bias_wanted: Vec<bool> = layer.biases_o.iter().map(Tensor::is_tracked).collect();
    let is_x_tracked = x_mi.is_tracked();
    let mut all = vec![x_mi.clone().into_dispatch()];
    all.extend(layer.inputs());
    let needs_x = wanted.contains(&true);
    // Without gradients of weights only the device and the dtype of the input matter.
    let kept = needs_x.then(|| x_buffer.kept());
    Some(vjp::attach_some(y.tensor(), all, move |dy: Tensor<2>| {
        let like = Buffer::from_gradient(dy.clone());
        let x = kept.map(|x| x.buffer().tensor::<2>());
        let dx =
            || held.joined(&like, inputs, &[], |expert| held.rows(&dy, expert).matmul(held.weights_oi[expert].clone()));
        let mut gradients = vec![is_x_tracked.then(dx).flatten().and_then(Buffer::gradient)];
        for (expert, wanted) in wanted.into_iter().enumerate() {
            let x = x.as_ref().filter(|_| wanted);
            gradients.push(x.map(|x| held.weight_gradient(&dy, x, expert).into_dispatch()));
        }
        for (expert, wanted) in bias_wanted.into_iter().enumerate() {
            gradients.push(wanted.then(|| held.bias_gradient(&dy, expert).into_dispatch()));
        }
        gradients
    }))
}
