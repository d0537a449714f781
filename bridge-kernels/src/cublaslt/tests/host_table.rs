//! A stand-in for cuBLASLt in tests, for tensors of the Flex backend.

use std::sync::{Arc, Mutex};

use burn::backend::Flex;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::host::{Memory, Read, Written, put, run};
use crate::cublaslt::description::{ColumnMajor, Element, Epilogue, Matrix, Product};
use crate::cublaslt::table::{Operand, Operands, Results, Table};
use crate::flex::Values;

/// Runs products on the host, and records them.
#[derive(Clone, Default)]
pub(crate) struct HostStandIn {
    /// Products that ran, in order.
    pub log: Arc<Mutex<Vec<ColumnMajor>>>,
    /// Predicate of products that the table refuses.
    pub refused: Option<fn(&ColumnMajor) -> bool>,
}

impl HostStandIn {
    /// Number of products that ran since the last call.
    pub fn ran(&self) -> usize {
        std::mem::take(&mut *self.log.lock().unwrap()).len()
    }
}

/// The memory of a float32 tensor from its first element on; of a tensor of 16 bits, widened.
fn memory<const D: usize>(tensor: Tensor<D>) -> Memory {
    let tensor = if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(FloatDType::F32) };
    let values = Values::from_tensor(&tensor).expect("the tensor is on the host");
    Memory(values.strided().expect("no dimension runs backwards").0.to_vec())
}

/// A tensor of this shape from memory, without its gaps between rows and matrices.
fn tensor<const D: usize>(memory: Memory, matrix: Matrix, shape: [usize; D]) -> Tensor<D> {
    let Matrix { rows, columns, leading, element, batches, .. } = matrix;
    assert!(batches == 1 || matrix.apart == rows * leading, "a result has no gaps between matrices");
    let mut elements = memory.0;
    elements.resize(batches * rows * leading, f32::NAN);
    from_vec(elements, [batches * rows, leading], element).narrow(1, 0, columns).reshape(shape)
}

fn from_vec<const D: usize>(elements: Vec<f32>, shape: [usize; D], element: Element) -> Tensor<D> {
    let whole = Tensor::<D>::from_data(TensorData::new(elements, shape), (&Device::default(), DType::F32));
    if element == Element::F32 { whole } else { whole.cast(FloatDType::from(element.dtype())) }
}

impl Table for HostStandIn {
    fn operand<const D: usize>(&self, x: Tensor<D>) -> Option<Operand<D>> {
        let element = Element::from_dtype(x.dtype())?;
        let primitive = x.clone().try_into_primitive::<Flex>().ok()?;
        // Tensors of 16 bits lose their strides when they are widened.
        let strides =
            if element == Element::F32 { Values::new(primitive).strided().map(|(_, strides)| strides) } else { None };
        let matrix = strides.and_then(|strides| Matrix::from_strides(&x.dims(), &strides, element));
        if let Some(matrix) = matrix {
            return Some(Operand { tensor: x, matrix });
        }
        let is_empty = x.dims().contains(&0);
        let copy = || Tensor::from_data(x.to_data(), (&x.device(), x.dtype()));
        (!is_empty).then(|| Operand { tensor: copy(), matrix: Matrix::from_shape(&x.dims(), element) })
    }

    fn has<const D: usize>(&self, product: &Product, _operands: &Operands<D>) -> bool {
        !self.refused.is_some_and(|refused| refused(&product.in_columns()))
    }

    fn multiply<const D: usize>(&self, product: &Product, operands: &mut Operands<D>) -> Option<Results<D>> {
        let columns = product.in_columns();
        if !self.has(product, operands) {
            return None;
        }
        self.log.lock().unwrap().push(columns);
        let shape = product.shape_of_result(operands);
        let c = operands.c.take().map(memory);
        let bias = operands.bias.clone().map(memory);
        // The factors change places.
        let [a, b] = [&operands.b, &operands.a].map(|factor| memory(factor.clone()));
        let read = Read { a: &a, b: &b, c: c.as_ref(), bias: bias.as_ref(), scales: [1.0; 2] };
        let Written { d, extra } = run(&columns, [product.alpha, product.beta], &read);
        let d = match c.filter(|_| product.is_onto()) {
            Some(mut c) => {
                put(&d, columns.d, &mut c);
                c.0.truncate(shape.iter().product());
                from_vec(c.0, shape, product.d.element)
            }
            None => tensor(d, product.d, shape),
        };
        let (mut kept, mut bias_gradient) = (None, None);
        match product.epilogue {
            Epilogue::BiasGradient => {
                let rows = product.d.rows;
                let sums = Matrix::contiguous([1, rows], product.d.element);
                bias_gradient = extra.map(|extra| tensor(extra, sums, [rows]));
            }
            _ => kept = extra.zip(product.kept()).map(|(extra, matrix)| tensor(extra, matrix, shape)),
        }
        Some(Results { d, kept, bias_gradient })
    }
}
