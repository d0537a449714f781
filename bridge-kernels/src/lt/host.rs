//! A stand-in for cuBLASLt in tests, for tensors of the Flex backend. It reads nothing but the translated description: factors in columns,
//! leading dimensions, operations, epilogue. Sums are float64; each element is rounded once, when it is stored.

use std::sync::{Arc, Mutex};

use burn::backend::Flex;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use half::{bf16, f16};

use super::description::{ColumnMajor, Compute, Element, Epilogue, Layout, Matrix, Operation, Product};
use super::table::{Operand, Operands, Results, Table};
use crate::flex::Values;

/// Memory from a matrix' first element on, each element widened.
pub(crate) struct Memory(pub Vec<f32>);

impl Memory {
    /// Not yet written: what is read before shows.
    pub fn unwritten(elements: usize) -> Self {
        Self(vec![f32::NAN; elements])
    }

    fn at(&self, layout: Layout, row: usize, column: usize) -> f64 {
        assert!(row < layout.rows && column < layout.columns, "outside {layout:?}");
        f64::from(self.0[column * layout.leading + row])
    }

    fn set(&mut self, place: usize, value: f64, element: Element) {
        assert!(self.0[place].is_nan(), "element {place} is written twice");
        self.0[place] = stored(value, element);
    }
}

/// What is read back of `value`.
pub(crate) fn stored(value: f64, element: Element) -> f32 {
    match element {
        Element::F32 => value as f32,
        Element::F16 => f16::from_f64(value).to_f32(),
        Element::BF16 => bf16::from_f64(value).to_f32(),
    }
}

/// A factor as the product reads it: TF32 has the upper 10 bits of the fraction.
fn factor(value: f64, compute: Compute) -> f64 {
    match compute {
        Compute::Float32 => value,
        Compute::Tf32 => {
            let bits = (value as f32).to_bits();
            f64::from(f32::from_bits((bits + 0x0fff + ((bits >> 13) & 1)) & !0x1fff))
        }
    }
}

/// GELU by the tanh approximation.
pub(crate) fn gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

/// What is read: factors, what is added, the bias.
pub(crate) struct Read<'a> {
    pub a: &'a Memory,
    pub b: &'a Memory,
    pub c: Option<&'a Memory>,
    pub bias: Option<&'a Memory>,
}

/// What is written. `extra` is what the epilogue keeps, or a bias' gradient.
pub(crate) struct Written {
    pub d: Memory,
    pub extra: Option<Memory>,
}

/// Computes a product in columns.
pub(crate) fn run(product: &ColumnMajor, [alpha, beta]: [f32; 2], read: &Read) -> Written {
    let ColumnMajor { m, n, k, operations, epilogue, compute, .. } = *product;
    check(product);
    let element = |memory: &Memory, layout, operation, row, column| match operation {
        Operation::AsItIs => memory.at(layout, row, column),
        Operation::Transposed => memory.at(layout, column, row),
    };
    let first = |row, column| element(read.a, product.a, operations[0], row, column);
    let second = |row, column| element(read.b, product.b, operations[1], row, column);
    let stored_as = product.d.element;
    let mut d = Memory::unwritten((n - 1) * product.d.leading + m);
    let mut extra = match (epilogue, product.leading_of_kept) {
        (Epilogue::BiasGradient, _) => Some(Memory::unwritten(n)),
        (_, Some(leading)) => Some(Memory::unwritten(leading * n)),
        _ => None,
    };
    for column in 0..n {
        for row in 0..m {
            let term = |i| factor(first(row, i), compute) * factor(second(i, column), compute);
            let mut value = f64::from(alpha) * (0..k).map(term).sum::<f64>();
            if beta != 0.0 {
                value += f64::from(beta) * read.c.expect("a sum has an addend").at(product.c, row, column);
            }
            if epilogue.reads_bias() {
                value += f64::from(read.bias.expect("the epilogue reads a bias").0[row]);
            }
            if let Epilogue::Gelu { keeps, .. } = epilogue {
                if keeps {
                    let place = column * product.leading_of_kept.expect("there is room for it") + row;
                    extra.as_mut().expect("there is memory for it").set(place, value, stored_as);
                }
                value = gelu(value);
            }
            d.set(column * product.d.leading + row, value, stored_as);
        }
        if epilogue == Epilogue::BiasGradient {
            let sum = (0..k).map(|i| second(i, column)).sum();
            extra.as_mut().expect("there is memory for it").set(column, sum, stored_as);
        }
    }
    Written { d, extra }
}

/// What cuBLASLt demands of layouts.
fn check(product: &ColumnMajor) {
    let ColumnMajor { m, n, k, operations, .. } = *product;
    for layout in [product.a, product.b, product.c, product.d] {
        assert!(layout.leading >= layout.rows, "columns overlap: {layout:?}");
    }
    let read = |layout: Layout, operation| match operation {
        Operation::AsItIs => [layout.rows, layout.columns],
        Operation::Transposed => [layout.columns, layout.rows],
    };
    assert_eq!(read(product.a, operations[0]), [m, k], "{product:?}");
    assert_eq!(read(product.b, operations[1]), [k, n], "{product:?}");
    for layout in [product.c, product.d] {
        assert_eq!([layout.rows, layout.columns], [m, n], "{product:?}");
    }
    if let Some(leading) = product.leading_of_kept {
        assert!(leading >= m && leading % 8 == 0, "kept with a leading dimension of {leading} for {m} rows");
    }
}

/// Runs products on the host, and remembers them.
#[derive(Clone, Default)]
pub(crate) struct HostStandIn {
    /// What ran, in order.
    pub log: Arc<Mutex<Vec<ColumnMajor>>>,
    /// What it does not run.
    pub refused: Option<fn(&ColumnMajor) -> bool>,
}

impl HostStandIn {
    /// How many products ran since the last call.
    pub fn ran(&self) -> usize {
        std::mem::take(&mut *self.log.lock().unwrap()).len()
    }
}

/// The memory of a float32 tensor from its first element on; of a tensor of 16 bits, widened.
fn memory(tensor: Tensor<2>) -> Memory {
    let tensor = if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(FloatDType::F32) };
    let values = Values::of(&tensor).expect("the tensor is on the host");
    Memory(values.strided().expect("no dimension runs backwards").0.to_vec())
}

/// A tensor of `columns` elements a row, each `leading` behind the last, of which `matrix` is a part.
fn tensor(memory: Memory, matrix: Matrix) -> Tensor<2> {
    let Matrix { rows, columns, leading, element, .. } = matrix;
    let mut elements = memory.0;
    elements.resize(rows * leading, f32::NAN);
    let data = TensorData::new(elements, [rows, leading]);
    let whole = Tensor::<2>::from_data(data, (&Device::default(), DType::F32));
    let whole = if element == Element::F32 { whole } else { whole.cast(FloatDType::from(element.dtype())) };
    whole.narrow(1, 0, columns)
}

impl Table for HostStandIn {
    fn operand(&self, x: Tensor<2>) -> Option<Operand> {
        let element = Element::of(x.dtype())?;
        let primitive = x.clone().try_into_primitive::<Flex>().ok()?;
        // Tensors of 16 bits lose their strides when they are widened.
        let strides =
            if element == Element::F32 { Values(primitive).strided().map(|(_, strides)| strides) } else { None };
        let matrix = strides.and_then(|strides| Matrix::strided(x.dims(), [strides[0], strides[1]], element));
        if let Some(matrix) = matrix {
            return Some(Operand { tensor: x, matrix });
        }
        let [rows, columns] = x.dims();
        let is_empty = rows * columns == 0;
        let copy = || Tensor::from_data(x.to_data(), (&x.device(), x.dtype()));
        (!is_empty).then(|| Operand { tensor: copy(), matrix: Matrix::contiguous([rows, columns], element) })
    }

    fn multiply(&self, product: &Product, operands: &mut Operands) -> Option<Results> {
        let columns = product.in_columns();
        if self.refused.is_some_and(|refused| refused(&columns)) {
            return None;
        }
        self.log.lock().unwrap().push(columns);
        let bias = operands.bias.clone().map(|bias| bias.unsqueeze());
        let [c, bias] = [operands.c.take(), bias].map(|tensor| tensor.map(memory));
        // The factors change places.
        let [a, b] = [&operands.b, &operands.a].map(|factor| memory(factor.clone()));
        let read = Read { a: &a, b: &b, c: c.as_ref(), bias: bias.as_ref() };
        let Written { d, extra } = run(&columns, [product.alpha, product.beta], &read);
        let d = tensor(d, product.d);
        let (mut kept, mut bias_gradient) = (None, None);
        match product.epilogue {
            Epilogue::BiasGradient => {
                let sums = Matrix::contiguous([1, product.d.rows], product.d.element);
                bias_gradient = extra.map(|extra| tensor(extra, sums).reshape([product.d.rows]));
            }
            _ => kept = extra.zip(product.kept()).map(|(extra, matrix)| tensor(extra, matrix)),
        }
        Some(Results { d, kept, bias_gradient })
    }
}
