//! Batched products in cuBLASLt's terms, for tensors of this device: results that a [`StandIn`]
//! computes on the host from the device's own memory, by offsets, strides and the translated
//! description, against Burn's products. It includes the stand-in of the crate's tests, so that
//! both have the same arithmetic.

use std::sync::{Arc, Mutex};

pub use bridge_kernels::cublaslt::*;
use burn::backend::Cube;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use half::{bf16, f16};

use crate::common::{assert_close, device, read, tensor, values};
use crate::half::dtypes;

#[path = "../../src/cublaslt/tests/host.rs"]
mod host;

use host::{Memory, Read, Written, put, run};

/// Runs products on the host, and remembers them.
#[derive(Clone, Default)]
pub struct StandIn {
    /// Products that ran, in order.
    log: Arc<Mutex<Vec<ColumnMajor>>>,
    /// Predicate of products that it refuses.
    refused: Option<fn(&ColumnMajor) -> bool>,
}

impl StandIn {
    /// A table that refuses some products.
    pub fn without(refused: fn(&ColumnMajor) -> bool) -> Self {
        Self { refused: Some(refused), ..Self::default() }
    }

    /// The products that ran since the last call.
    pub fn ran(&self) -> Vec<ColumnMajor> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

/// The device's memory from a tensor's first element on, each element widened.
fn memory<const D: usize>(tensor: Tensor<D>, element: Element) -> Memory {
    assert_eq!(tensor.dtype(), element.dtype(), "memory is what the product says");
    let primitive = tensor.try_into_primitive::<Cube>().expect("the tensor is on this device");
    let mut whole = primitive.handle.clone();
    let start = whole.offset_start.take().unwrap_or(0) as usize;
    let bytes = primitive.client.read_one(whole).expect("the device can be read");
    let pairs = || bytes[start..].as_chunks::<2>().0.iter();
    Memory(match element {
        Element::F32 => bytes[start..].as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        Element::F16 => pairs().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
        Element::BF16 => pairs().map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
        Element::E4M3 | Element::E5M2 => bytes[start..].iter().map(|code| element.value_of(*code)).collect(),
    })
}

impl Table for StandIn {
    fn operand<const D: usize>(&self, x: Tensor<D>) -> Option<Operand<D>> {
        on_device::operand(x)
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
        let result = product.result().element;
        let c = operands.c.take().map(|c| memory(c, result));
        let bias = operands.bias.clone().map(|bias| memory(bias, result));
        // The factors change places.
        let (a, b) = (memory(operands.b.clone(), columns.a.element), memory(operands.a.clone(), columns.b.element));
        let scales = match columns.a.element.is_code() {
            true => operands.scales.clone().expect("codes have scales").map(|scale| memory(scale, Element::F32).0[0]),
            false => [1.0; 2],
        };
        let read = Read { a: &a, b: &b, c: c.as_ref(), bias: bias.as_ref(), scales: [scales[1], scales[0]] };
        let Written { d, extra } = run(&columns, product.scales(), &read);
        assert!(extra.is_none(), "epilogues that write something are not asked for here");
        let d = match c.filter(|_| product.is_onto()) {
            Some(mut c) => {
                put(&d, columns.d, &mut c);
                c
            }
            None => d,
        };
        let elements = d.0[..shape.iter().product()].to_vec();
        let d = Tensor::<D>::from_data(TensorData::new(elements, shape), (&operands.a.device(), DType::F32));
        let d = if result == Element::F32 { d } else { d.cast(FloatDType::from(result.dtype())) };
        Some(Results { d, kept: None, bias_gradient: None })
    }
}

/// Heads of tokens, parts of keys and broadcast matrices: views with one batch stride, and views
/// that have to be copied.
fn check_views<T: Table>(table: &T, [t, s, d]: [usize; 3]) {
    let (b, g, heads) = (2, 3, 2);
    let of = |seed, shape: [usize; 4]| tensor(&values(seed, shape.iter().product()), shape, &device());
    let q: Tensor<5> = of(1, [b, t, g * heads, d]).reshape([b, t, g, heads, d]).permute([0, 2, 3, 1, 4]);
    let q: Tensor<4> = q.reshape([b, g, heads * t, d]);
    let k = of(2, [b, s, g, d]).permute([0, 2, 1, 3]);
    let own = |x: &Tensor<4>| x.clone().narrow(0, 1, 1).narrow(2, 2, s - 3);
    let pairs = [
        (q.clone(), k.clone().transpose()),
        (own(&q), own(&k).transpose()),
        (q.clone(), of(3, [b, g, s, d]).narrow(2, 1, s - 2).transpose()),
        (k.clone(), of(4, [1, 1, d, 8])),
        (k.transpose(), of(5, [1, g, s, 16])),
    ];
    for (a, b) in pairs {
        let wide = multiply(table, &a, &b, Element::F32).expect("the table has it");
        assert_close("float32", &read(wide), &read(a.clone().matmul(b.clone())), 1e-6);
        for (dtype, half_ulp) in dtypes() {
            let [a, b] = [&a, &b].map(|x| x.clone().cast(dtype));
            let exact = read(a.clone().cast(FloatDType::F32).matmul(b.clone().cast(FloatDType::F32)));
            let result = |element| multiply(table, &a, &b, element).expect("the table has it");
            assert_close("a wide result", &read(result(Element::F32)), &exact, 1e-6);
            let narrow = result(Element::from_dtype(dtype.into()).expect("products are made of it"));
            assert_eq!(narrow.dtype(), dtype.into());
            assert_close("a narrow result", &read(narrow.cast(FloatDType::F32)), &exact, f64::from(half_ulp));
        }
    }
}

#[test]
fn products_of_views() {
    check_views(&StandIn::default(), [5, 7, 11]);
}

/// The first rows of each matrix get more terms than the last.
fn check_sums<T: Table>(table: &T, [s, d]: [usize; 2]) {
    let (b, g, t) = (2, 3, 8);
    let of = |seed, shape: [usize; 4]| tensor::<4>(&values(seed, shape.iter().product()), shape, &device());
    let (mut sum, mut expected) = (of(1, [b, g, s, d]), of(1, [b, g, s, d]));
    for keys in [s, s / 2, 8] {
        let (p, q) = (of(2, [b, g, t, keys]).transpose(), of(3, [b, g, t, d]));
        sum = add_product(table, &p, &q, &mut Some(sum)).expect("the table has it");
        let whole = expected.clone().narrow(2, 0, keys) + p.matmul(q);
        expected = expected.slice_assign([0..b, 0..g, 0..keys, 0..d], whole);
    }
    assert_close("sums", &read(sum), &read(expected), 1e-6);
}

#[test]
fn parts_add_up() {
    check_sums(&StandIn::default(), [17, 5]);
}

/// The same by cuBLASLt itself, at sizes that its kernels for matrix units take.
#[cfg(feature = "cuda")]
#[test]
fn products_by_cublaslt() {
    let on_device = tensor(&[0.0], [1], &device());
    let table = cuda::CublasLt::from_tensor(&on_device).expect("this machine has cuBLASLt");
    check_views(&table, [8, 16, 64]);
    check_sums(&table, [32, 16]);
}
