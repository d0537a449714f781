//! Batches of products, run by the stand-in, against products in float64 of each pair of matrices.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::host::{Memory, Read, put, run, stored};
use super::host_table::HostStandIn;
use super::{ELEMENTS, ORDERS};
use crate::cublaslt::description::{
    ColumnMajor, Compute, Element, Epilogue, Layout, Matrix, Operation, Order, Product,
};
use crate::cublaslt::{Table, add_product, multiply};
use crate::precision::widen;
use crate::random::Philox;

/// Spacing of the matrices of a batch.
#[derive(Clone, Copy, Debug)]
enum Follow {
    /// All are the same memory.
    Same,
    /// After each other, with a gap.
    Behind(usize),
    /// Rows (or columns) of all lie between those of each other, as heads do.
    Between,
}

/// A batch in memory, and its values in float64, matrix by matrix and row by row.
struct Laid {
    values: Vec<Vec<f64>>,
    memory: Memory,
    matrix: Matrix,
}

impl Laid {
    fn new(key: u64, [batches, rows, columns]: [usize; 3], order: Order, follow: Follow, element: Element) -> Self {
        let run = if order == Order::Rows { columns } else { rows };
        let mut matrix = Matrix { order, leading: run + 1, ..Matrix::contiguous([rows, columns], element) };
        let apart = match follow {
            Follow::Same => 0,
            Follow::Behind(gap) => matrix.span() + gap,
            Follow::Between => {
                matrix.leading = batches * run + 1;
                run
            }
        };
        matrix = matrix.batched(batches, apart);
        let mut memory = Memory::unwritten(matrix.span());
        let random = Philox::new(key).uniform_range(0..matrix.span());
        for (place, value) in memory.0.iter_mut().zip(&random) {
            *place = stored(value - 0.5, element);
        }
        let of = |batch: usize| {
            let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let place = |(row, column)| match order {
                Order::Rows => batch * matrix.apart + row * matrix.leading + column,
                Order::Columns => batch * matrix.apart + column * matrix.leading + row,
            };
            places.map(|at| f64::from(memory.0[place(at)])).collect()
        };
        Self { values: (0..batches).map(of).collect(), memory, matrix }
    }
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Matrices, rows, terms of a sum, columns.
    sizes: [usize; 4],
    orders: [Order; 2],
    follow: [Follow; 2],
    elements: [Element; 2],
    alpha: f32,
    /// Spacing of the summand, and true if the result replaces it.
    added: Option<(Follow, bool)>,
}

fn check(trial: &Trial) {
    let Trial { sizes: [batches, m, k, n], orders, follow, elements, alpha, added } = *trial;
    let a = Laid::new(1, [batches, m, k], orders[0], follow[0], elements[0]);
    let b = Laid::new(2, [batches, k, n], orders[1], follow[1], elements[0]);
    let c = added.map(|(follow, _)| Laid::new(3, [batches, m, n], Order::Rows, follow, elements[1]));
    let mut product = Product::new(a.matrix, b.matrix, elements[1], Compute::Float32).unwrap().times(alpha);
    if let (Some(c), Some((_, onto))) = (&c, added) {
        product = if onto { product.onto(c.matrix) } else { product.plus(c.matrix, 1.0) }.unwrap();
    }
    let read = Read { a: &b.memory, b: &a.memory, c: c.as_ref().map(|c| &c.memory), bias: None, scales: [1.0; 2] };
    let columns = product.in_columns();
    let written = run(&columns, product.scales(), &read).d;
    let under = c.as_ref().filter(|_| product.is_onto()).map(|c| c.memory.0.clone());
    let mut found = Memory(under.unwrap_or_else(|| vec![f32::NAN; product.d.span()]));
    put(&written, columns.d, &mut found);
    let mut untouched = found.0.clone();
    for batch in 0..batches {
        for row in 0..m {
            for column in 0..n {
                let sum: f64 =
                    (0..k).map(|i| a.values[batch][row * k + i] * b.values[batch][i * n + column]).sum::<f64>();
                let of_added = c.as_ref().map_or(0.0, |c| c.values[batch][row * n + column]);
                let expected = stored(f64::from(alpha) * sum + of_added, elements[1]);
                let place = batch * product.d.apart + row * product.d.leading + column;
                assert_eq!(found.0[place], expected, "{trial:?}: matrix {batch}, row {row}, column {column}");
                untouched[place] = f32::NAN;
            }
        }
    }
    if let Some(c) = c.filter(|_| product.is_onto()) {
        let kept = untouched.iter().zip(&c.memory.0).filter(|(found, _)| !found.is_nan());
        assert!(kept.into_iter().all(|(found, before)| found == before), "{trial:?}: gaps are written");
        assert!(found.0.len() > batches * m * n, "there are gaps");
    }
}

const FOLLOW: [Follow; 3] = [Follow::Same, Follow::Behind(5), Follow::Between];

/// Every order, dtype and way to follow of both factors, alone, added to something, and onto it, at
/// distinct primes.
#[test]
fn batches_are_products_of_their_pairs() {
    let both = |orders: [Order; 2], follow: [Follow; 2], elements| {
        for added in [None, Some((Follow::Between, false)), Some((Follow::Behind(3), true))] {
            check(&Trial { sizes: [3, 5, 11, 7], orders, follow, elements, alpha: 0.75, added });
        }
    };
    for elements in ELEMENTS {
        for (first, second) in ORDERS.iter().flat_map(|a| ORDERS.map(|b| (*a, b))) {
            for (a, b) in FOLLOW.iter().flat_map(|a| FOLLOW.map(|b| (*a, b))) {
                both([first, second], [a, b], elements);
            }
        }
    }
}

#[test]
fn batches_of_any_size() {
    let order = || prop::sample::select(ORDERS.to_vec());
    let follow = || prop_oneof![Just(Follow::Same), (0..4usize).prop_map(Follow::Behind), Just(Follow::Between)];
    let added = || prop_oneof![Just(None), (follow(), Just(false)).prop_map(Some)];
    let sizes = [1..5usize, 1..9, 1..9, 1..9];
    let elements = prop::sample::select(ELEMENTS.to_vec());
    let trials = (sizes, [order(), order()], [follow(), follow()], elements, -2f32..2.0, added());
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&trials, |(sizes, orders, follow, elements, alpha, added)| {
        check(&Trial { sizes, orders, follow, elements, alpha, added });
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn batch_dimensions_at_one_stride_are_batches() {
    let of = |shape: &[usize], strides: &[usize]| {
        Matrix::from_strides(shape, strides, Element::F32).map(|m| (m.batches, m.apart, m.leading, m.order))
    };
    assert_eq!(of(&[3, 5], &[5, 1]), Some((1, 0, 5, Order::Rows)));
    assert_eq!(of(&[2, 3, 5, 7], &[105, 35, 7, 1]), Some((6, 35, 7, Order::Rows)));
    // Heads of one sequence, of several, and transposed.
    assert_eq!(of(&[1, 3, 5, 7], &[105, 7, 21, 1]), Some((3, 7, 21, Order::Rows)));
    assert_eq!(of(&[2, 3, 5, 7], &[105, 7, 21, 1]), None);
    assert_eq!(of(&[2, 1, 5, 7], &[105, 7, 21, 1]), Some((2, 105, 21, Order::Rows)));
    assert_eq!(of(&[1, 3, 7, 5], &[105, 7, 1, 21]), Some((3, 7, 21, Order::Columns)));
    // A part of the rows, broadcast batches, batches of which some are broadcast, dimensions of
    // one.
    assert_eq!(of(&[2, 3, 4, 7], &[105, 35, 7, 1]), Some((6, 35, 7, Order::Rows)));
    assert_eq!(of(&[2, 3, 5, 7], &[0, 0, 7, 1]), Some((6, 0, 7, Order::Rows)));
    assert_eq!(of(&[2, 3, 5, 7], &[35, 0, 7, 1]), None);
    assert_eq!(of(&[2, 3, 5, 7], &[0, 35, 7, 1]), None);
    assert_eq!(of(&[1, 1, 5, 7], &[9, 4, 7, 1]), Some((1, 0, 7, Order::Rows)));
    assert_eq!(of(&[4, 1, 3, 5, 7], &[105, 1, 35, 7, 1]), Some((12, 35, 7, Order::Rows)));
    // No matrices, and none that a product reads.
    assert_eq!(of(&[0, 3, 5], &[15, 5, 1]), None);
    assert_eq!(of(&[2, 5, 7], &[1, 14, 2]), None);
}

/// Scores of grouped heads in cuBLASLt's terms, by hand: `q [b g, rows, d]` and the keys of `[b g,
/// s, d]` from the second on, transposed.
#[test]
fn scores_in_columns() {
    let q = Matrix::from_shape(&[2, 3, 8, 5], Element::BF16);
    let k = Matrix::from_strides(&[2, 3, 11, 5], &[3 * 65, 65, 5, 1], Element::BF16).unwrap().transposed();
    let told = Product::new(q, k, Element::F32, Compute::Float32).unwrap().in_columns();
    let layout = |rows, columns, leading, element, apart| Layout { rows, columns, leading, element, batches: 6, apart };
    let scores = layout(11, 8, 11, Element::F32, 88);
    let expected = ColumnMajor {
        m: 11,
        n: 8,
        k: 5,
        a: layout(5, 11, 5, Element::BF16, 65),
        b: layout(5, 8, 5, Element::BF16, 40),
        c: scores,
        d: scores,
        operations: [Operation::Transposed, Operation::AsItIs],
        epilogue: Epilogue::Plain,
        leading_of_kept: None,
        compute: Compute::Float32,
    };
    assert_eq!(told, expected);
}

#[test]
fn results_do_not_overlap() {
    let matrix = |apart| Matrix::contiguous([3, 4], Element::F32).batched(2, apart);
    let product = Product::new(
        matrix(12),
        Matrix::contiguous([4, 4], Element::F32).batched(2, 0),
        Element::F32,
        Compute::Float32,
    );
    let product = product.unwrap();
    assert!(product.onto(matrix(11)).is_none() && product.onto(matrix(0)).is_none());
    assert!(product.onto(matrix(12)).is_some() && product.plus(matrix(0), 1.0).is_some());
}

fn values<const D: usize>(key: u64, shape: [usize; D]) -> Tensor<D> {
    let data = TensorData::new(Philox::new(key).normal(shape.iter().product(), 0.5), shape);
    Tensor::from_data(data, &Device::default())
}

fn assert_close<const D: usize>(found: &Tensor<D>, expected: &Tensor<D>, most: f32) {
    assert_eq!(found.dims(), expected.dims());
    let [found, expected] = [found, expected].map(|x| widen(x.clone()).into_data().try_into_vec::<f32>().unwrap());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= most * (1.0 + expected.abs()), "{found}, not {expected}");
    }
}

/// Heads of tokens, parts of keys, broadcast batches: views with one batch stride are read in
/// place, all others are copied. All results equal Burn's.
#[test]
fn products_of_views_are_burns() {
    let (b, t, g, heads, s, d) = (2, 5, 3, 2, 7, 11);
    let q = values::<5>(1, [b, t, g, heads, d]).permute([0, 2, 3, 1, 4]).reshape([b, g, heads * t, d]);
    let k = values::<4>(2, [b, s, g, d]).permute([0, 2, 1, 3]);
    let own = |x: &Tensor<4>| x.clone().narrow(0, 1, 1).narrow(2, 2, 4);
    let shared = values::<4>(3, [1, 1, d, 6]);
    let contiguous = values::<4>(4, [b, g, s, d]).narrow(2, 1, 5);
    let pairs = [
        (q.clone(), k.clone().transpose()),
        (own(&q), own(&k).transpose()),
        (q.clone(), contiguous.transpose()),
        (k.clone(), shared.clone()),
        (shared.transpose(), k.clone().transpose()),
        (k.clone().transpose(), values::<4>(5, [1, g, s, 13])),
        (values::<4>(6, [1, 1, 3, s]), values::<4>(7, [1, 1, s, 4])),
    ];
    for (a, b) in pairs {
        let table = HostStandIn::default();
        let found = multiply(&table, &a, &b, Element::F32).unwrap();
        assert_close(&found, &a.clone().matmul(b.clone()), 1e-5);
        assert_eq!(table.ran(), 1);
        for (dtype, most) in [(FloatDType::BF16, 0.004), (FloatDType::F16, 0.0005)] {
            let [a, b] = [&a, &b].map(|x| x.clone().cast(dtype));
            let exact = widen(a.clone()).matmul(widen(b.clone()));
            let wide = multiply(&table, &a, &b, Element::F32).unwrap();
            assert_eq!(wide.dtype(), DType::F32);
            assert_close(&wide, &exact, 1e-5);
            let narrow = multiply(&table, &a, &b, Element::from_dtype(dtype.into()).unwrap()).unwrap();
            assert_eq!(narrow.dtype(), dtype.into());
            assert_close(&narrow, &exact, most);
        }
    }
    assert_eq!(HostStandIn::default().operand(own(&k)).unwrap().matrix.apart, d, "one sequence is read where it is");
    let refuses = HostStandIn { refused: Some(|_| true), ..HostStandIn::default() };
    assert!(multiply(&refuses, &k, &values::<4>(5, [b, g, d, 3]), Element::F32).is_none());
    let nothing = multiply(&refuses, &values::<4>(5, [b, 0, s, d]), &values::<4>(5, [b, 0, d, 3]), Element::F32);
    assert!(nothing.is_none());
}

/// Sums for the first keys of each head, in parts of the queries, of 16 bits and of 32.
#[test]
fn parts_add_up() {
    let (b, g, s, t, d) = (2, 3, 9, 8, 5);
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let table = HostStandIn::default();
        let (mut sum, mut expected) = (values::<4>(1, [b, g, s, d]), values::<4>(1, [b, g, s, d]));
        for (key, keys) in [(2, 9), (3, 4), (4, 1)] {
            let [p, q] = [[b, g, t, keys], [b, g, t, d]].map(|shape| values::<4>(key, shape).cast(dtype));
            sum = add_product(&table, &p.clone().transpose(), &q, &mut Some(sum)).unwrap();
            let part = widen(p).transpose().matmul(widen(q));
            let whole = expected.clone().narrow(2, 0, keys) + part;
            expected = expected.slice_assign([0..b, 0..g, 0..keys, 0..d], whole);
        }
        assert_eq!(table.ran(), 3);
        assert_close(&sum, &expected, 1e-5);
        let refuses = HostStandIn { refused: Some(|_| true), ..HostStandIn::default() };
        let [p, q] = [[b, g, t, 2], [b, g, t, d]].map(|shape| values::<4>(5, shape).cast(dtype));
        let mut left = Some(sum);
        assert!(add_product(&refuses, &p.transpose(), &q, &mut left).is_none());
        assert_close(&left.expect("a refusal leaves the sum"), &expected, 1e-5);
        let [p, q] = [[b, g, t, 2], [b, g, t, 1]].map(|shape| values::<4>(5, shape).cast(dtype));
        let mut gaps = Some(values::<4>(6, [b, g, s, d]).narrow(3, 1, 1));
        assert!(add_product(&table, &p.transpose(), &q, &mut gaps).is_none(), "what has gaps is left alone");
        assert_close(&gaps.unwrap(), &values::<4>(6, [b, g, s, d]).narrow(3, 1, 1), 0.0);
    }
}
