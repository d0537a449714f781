//! Descriptions, run by the stand-in, against products in float64 that know neither columns nor
//! leading dimensions.

mod batch;
pub(crate) mod host;
pub(crate) mod host_table;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::host::{Memory, Read, Written, gelu, run, stored};
use super::description::{ColumnMajor, Compute, Element, Epilogue, Matrix, Order, Product};
use crate::random::Philox;

/// Values of a matrix, row by row, in float64, and the memory that it describes.
struct Laid {
    values: Vec<f64>,
    memory: Memory,
    matrix: Matrix,
}

/// A matrix of random values with gaps of `gap` elements in memory.
fn laid(key: u64, [rows, columns]: [usize; 2], order: Order, gap: usize, element: Element) -> Laid {
    let mut matrix = Matrix::contiguous([rows, columns], element);
    matrix.order = order;
    matrix.leading = gap + if order == Order::Rows { columns } else { rows };
    let random = Philox::new(key).uniform_range(0..rows * columns);
    let values: Vec<f64> = random.iter().map(|x| f64::from(stored(x - 0.5, element))).collect();
    let mut memory = Memory::unwritten(matrix.span());
    for row in 0..rows {
        for column in 0..columns {
            let place = match order {
                Order::Rows => row * matrix.leading + column,
                Order::Columns => column * matrix.leading + row,
            };
            memory.0[place] = values[row * columns + column] as f32;
        }
    }
    Laid { values, memory, matrix }
}

/// One product with everything that varies.
#[derive(Clone, Copy, Debug)]
struct Trial {
    sizes: [usize; 3],
    orders: [Order; 2],
    gaps: [usize; 3],
    elements: [Element; 2],
    scales: [f32; 2],
    adds: bool,
    epilogue: Epilogue,
}

/// `alpha * a b + beta * c + bias` in rows, before an activation.
fn plain(trial: &Trial, a: &[f64], b: &[f64], c: &[f64], bias: &[f64]) -> Vec<f64> {
    let [m, k, n] = trial.sizes;
    let [alpha, beta] = trial.scales.map(f64::from);
    let mut d = Vec::new();
    for row in 0..m {
        for column in 0..n {
            let product: f64 = (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum();
            let added = if trial.adds { beta * c[row * n + column] } else { 0.0 };
            let bias = if trial.epilogue.reads_bias() { bias[column] } else { 0.0 };
            d.push(alpha * product + added + bias);
        }
    }
    d
}

fn check(trial: &Trial) {
    let Trial { sizes: [m, k, n], orders, gaps, elements, scales: [alpha, beta], adds, epilogue } = *trial;
    let a = laid(1, [m, k], orders[0], gaps[0], elements[0]);
    let b = laid(2, [k, n], orders[1], gaps[1], elements[0]);
    let c = laid(3, [m, n], Order::Rows, gaps[2], elements[1]);
    let bias = laid(4, [1, n], Order::Rows, 0, elements[1]);
    let mut product =
        Product::new(a.matrix, b.matrix, elements[1], Compute::Float32).unwrap().times(alpha).then(epilogue);
    if adds {
        product = product.plus(c.matrix, beta).unwrap();
    }
    // The memory of the factors changes places, that is all a caller has to know.
    let read =
        Read { a: &b.memory, b: &a.memory, c: adds.then_some(&c.memory), bias: Some(&bias.memory), scales: [1.0; 2] };
    let Written { d, extra } = run(&product.in_columns(), [product.alpha, product.beta], &read);
    let before = plain(trial, &a.values, &b.values, &c.values, &bias.values);
    let is_gelu = matches!(epilogue, Epilogue::Gelu { .. });
    let expected: Vec<f32> = before.iter().map(|x| stored(if is_gelu { gelu(*x) } else { *x }, elements[1])).collect();
    close(&d.0, &expected, trial);
    if epilogue.keeps() {
        let (kept, matrix) = (extra.unwrap(), product.kept().unwrap());
        let rows = kept.0.chunks(matrix.leading).flat_map(|row| row[..n].to_vec());
        let expected: Vec<f32> = before.iter().map(|x| stored(*x, elements[1])).collect();
        close(&rows.collect::<Vec<_>>(), &expected, trial);
        let mut gaps = kept.0.chunks(matrix.leading).flat_map(|row| row[n..].to_vec());
        assert!(gaps.all(f32::is_nan), "{trial:?}: gaps are written");
    } else if epilogue == Epilogue::BiasGradient {
        let sums = a.values.chunks(k).map(|row| stored(row.iter().sum(), elements[1]));
        close(&extra.unwrap().0, &sums.collect::<Vec<_>>(), trial);
    } else {
        assert!(extra.is_none());
    }
}

/// Both were made in float64 in the same order, but for the place of the bias.
fn close(found: &[f32], expected: &[f32], trial: &Trial) {
    assert_eq!(found.len(), expected.len(), "{trial:?}");
    let most = match trial.elements[1] {
        Element::F32 => 1e-6,
        Element::F16 => 1e-3,
        _ => 1e-2,
    };
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= most * expected.abs().max(0.01), "{trial:?}: element {i} is {found}, not {expected}");
    }
}

const EPILOGUES: [Epilogue; 7] = [
    Epilogue::Plain,
    Epilogue::Bias,
    Epilogue::Gelu { bias: false, keeps: false },
    Epilogue::Gelu { bias: true, keeps: false },
    Epilogue::Gelu { bias: false, keeps: true },
    Epilogue::Gelu { bias: true, keeps: true },
    Epilogue::BiasGradient,
];
/// Orders of a matrix in memory.
pub(super) const ORDERS: [Order; 2] = [Order::Rows, Order::Columns];
/// Element types of factors and result.
pub(super) const ELEMENTS: [[Element; 2]; 5] = [
    [Element::F32, Element::F32],
    [Element::BF16, Element::BF16],
    [Element::F16, Element::F16],
    [Element::BF16, Element::F32],
    [Element::F16, Element::F32],
];

/// Every epilogue, order of factors, dtype and sum, at distinct primes.
#[test]
fn products_are_those_of_float64() {
    for epilogue in EPILOGUES {
        for elements in ELEMENTS {
            for (orders, adds) in
                ORDERS.iter().flat_map(|a| ORDERS.map(|b| [*a, b])).flat_map(|o| [(o, false), (o, true)])
            {
                check(&Trial {
                    sizes: [5, 13, 7],
                    orders,
                    gaps: [3, 0, 2],
                    elements,
                    scales: [0.75, 1.0],
                    adds,
                    epilogue,
                });
            }
        }
    }
}

#[test]
fn products_of_any_size_are_those_of_float64() {
    let orders = || prop::sample::select(ORDERS.to_vec());
    let trials = (
        [1..20usize, 1..20, 1..20],
        [orders(), orders()],
        [0..4usize, 0..4, 0..4],
        prop::sample::select(ELEMENTS.to_vec()),
        [-2f32..2.0, -2f32..2.0],
        any::<bool>(),
        prop::sample::select(EPILOGUES.to_vec()),
    );
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&trials, |(sizes, orders, gaps, elements, scales, adds, epilogue)| {
        check(&Trial { sizes, orders, gaps, elements, scales, adds, epilogue });
        Ok(())
    });
    outcome.unwrap();
}

/// The three products of a linear layer in cuBLASLt's terms, worked out by hand: an error that the
/// replacement and the translation share would show here.
#[test]
fn the_products_of_a_linear_layer_in_columns() {
    let (tokens, inputs, outputs) = (3, 5, 7);
    let matrix = |sizes| Matrix::contiguous(sizes, Element::BF16);
    let (x, w, dy) = (matrix([tokens, inputs]), matrix([outputs, inputs]), matrix([tokens, outputs]));
    let told = |a, b| {
        let ColumnMajor { m, n, k, a, b, d, operations, .. } =
            Product::new(a, b, Element::BF16, Compute::Float32).unwrap().in_columns();
        let layouts = [a, b, d].map(|layout| [layout.rows, layout.columns, layout.leading]);
        ([m, n, k], layouts, operations.map(|operation| format!("{operation:?}")))
    };
    // y^T [o, n] = w [o, i] x^T [i, n]; the memory of w is the matrix [i, o] in columns.
    let forward = ([7, 3, 5], [[5, 7, 5], [5, 3, 5], [7, 3, 7]], ["Transposed".into(), "AsItIs".into()]);
    assert_eq!(told(x, w.transposed()), forward);
    // dx^T [i, n] = w^T [i, o] dy^T [o, n].
    let grad_input = ([5, 3, 7], [[5, 7, 5], [7, 3, 7], [5, 3, 5]], ["AsItIs".into(), "AsItIs".into()]);
    assert_eq!(told(dy, w), grad_input);
    // dw^T [i, o] = x^T [i, n] dy [n, o].
    let grad_weight = ([5, 7, 3], [[5, 3, 5], [7, 3, 7], [5, 7, 5]], ["AsItIs".into(), "Transposed".into()]);
    assert_eq!(told(dy.transposed(), x), grad_weight);
}

#[test]
fn strides_become_leading_dimensions_or_are_refused() {
    let strided = |sizes, strides| Matrix::strided(sizes, strides, Element::F32).map(|m| (m.order, m.leading));
    assert_eq!(strided([3, 5], [5, 1]), Some((Order::Rows, 5)));
    assert_eq!(strided([3, 5], [8, 1]), Some((Order::Rows, 8)));
    assert_eq!(strided([3, 5], [1, 3]), Some((Order::Columns, 3)));
    assert_eq!(strided([3, 5], [1, 4]), Some((Order::Columns, 4)));
    // Dimensions of one element have any stride.
    assert_eq!(strided([1, 5], [0, 1]), Some((Order::Rows, 5)));
    assert_eq!(strided([1, 5], [7, 2]), Some((Order::Columns, 2)));
    assert_eq!(strided([4, 1], [3, 0]), Some((Order::Rows, 3)));
    assert_eq!(strided([1, 1], [0, 0]), Some((Order::Rows, 1)));
    // Broadcast, every second column of every second row, overlapping rows, nothing.
    assert_eq!(strided([3, 5], [0, 1]), None);
    assert_eq!(strided([3, 5], [1, 0]), None);
    assert_eq!(strided([3, 5], [20, 2]), None);
    assert_eq!(strided([3, 5], [2, 1]), None);
    assert_eq!(strided([0, 5], [5, 1]), None);
}

#[test]
fn products_that_are_not_there_are_refused() {
    let matrix = |element| Matrix::contiguous([4, 4], element);
    let product = |a, b, result, compute| Product::new(matrix(a), matrix(b), result, compute).is_some();
    assert!(product(Element::F32, Element::F32, Element::F32, Compute::Tf32));
    assert!(!product(Element::BF16, Element::BF16, Element::F32, Compute::Tf32));
    assert!(!product(Element::F32, Element::BF16, Element::F32, Compute::Float32));
    assert!(!product(Element::F32, Element::F32, Element::BF16, Compute::Float32));
    assert!(!product(Element::F16, Element::F16, Element::BF16, Compute::Float32));
    let sum = Product::new(matrix(Element::BF16), matrix(Element::BF16), Element::F32, Compute::Float32).unwrap();
    assert!(sum.plus(matrix(Element::F32), 1.0).is_some());
    assert!(sum.plus(matrix(Element::BF16), 1.0).is_none());
    assert!(sum.plus(matrix(Element::F32).transposed(), 1.0).is_none());
}

/// TF32 differs from float32 by the rounding of the factors, and by no more.
#[test]
fn tf32_rounds_its_factors() {
    let [a, b] = [1, 2].map(|key| laid(key, [3, 3], Order::Rows, 0, Element::F32));
    let read = Read { a: &b.memory, b: &a.memory, c: None, bias: None, scales: [1.0; 2] };
    let result = |compute| {
        let product = Product::new(a.matrix, b.matrix, Element::F32, compute).unwrap();
        run(&product.in_columns(), [1.0, 0.0], &read).d.0
    };
    let (exact, rounded) = (result(Compute::Float32), result(Compute::Tf32));
    assert_ne!(exact, rounded);
    for (exact, rounded) in exact.iter().zip(&rounded) {
        assert!((exact - rounded).abs() < 3.0 * 0.25 * 2f32.powi(-10), "{exact} became {rounded}");
    }
}

/// Factors of 8 bits of every pair of formats, with a scale each, at sizes that leave gaps after
/// rows.
#[test]
fn codes_are_multiplied_with_their_scales() {
    let (m, k, n, gap) = (5, 32, 7, 16);
    let scales = [0.125_f32, 3.0];
    let laid = |key: u64, rows: usize, element| {
        let draws = Philox::new(key).uniform_range(0..rows * (k + gap));
        let values = draws.iter().map(|draw| Element::value_of(element, (draw * 255.0) as u8 & 0xbb));
        let memory = Memory(values.collect());
        let matrix = Matrix { leading: k + gap, ..Matrix::contiguous([rows, k], element) };
        (memory, matrix)
    };
    for pair in [[Element::E4M3, Element::E4M3], [Element::E4M3, Element::E5M2], [Element::E5M2, Element::E4M3]] {
        let ((a, a_matrix), (b, b_matrix)) = (laid(1, m, pair[0]), laid(2, n, pair[1]));
        for result in [Element::F32, Element::BF16, Element::F16] {
            let product = Product::new(a_matrix, b_matrix.transposed(), result, Compute::Float32).unwrap().times(0.5);
            let read = Read { a: &b, b: &a, c: None, bias: None, scales: [scales[1], scales[0]] };
            let d = run(&product.in_columns(), product.scales(), &read).d;
            for (place, found) in d.0.iter().enumerate() {
                let row = |memory: &Memory, row: usize| memory.0[row * (k + gap)..][..k].to_vec();
                let terms = row(&a, place / n).into_iter().zip(row(&b, place % n));
                let sum: f64 = terms.map(|(a, b)| f64::from(a) * f64::from(b)).sum();
                assert_eq!(*found, stored(0.5 * 0.375 * sum, result), "{pair:?}, {result:?}: {place}");
            }
        }
    }
}

/// Two of E5M2, sums over 8 or over rows, batches, results of 8 bits, and codes with floats are not
/// there.
#[test]
fn codes_have_one_layout() {
    let codes = |element, rows, k| Matrix::contiguous([rows, k], element);
    let product = |a: Matrix, b: Matrix, result| Product::new(a, b, result, Compute::Float32).is_some();
    let (a, b) = (codes(Element::E4M3, 3, 16), codes(Element::E5M2, 4, 16));
    assert!(product(a, b.transposed(), Element::F32));
    assert!(!product(Matrix { element: Element::E5M2, ..a }, b.transposed(), Element::F32));
    assert!(!product(codes(Element::E4M3, 3, 8), codes(Element::E4M3, 4, 8).transposed(), Element::F32));
    assert!(!product(a, codes(Element::E4M3, 16, 16), Element::F32));
    assert!(!product(codes(Element::E4M3, 16, 3).transposed(), b.transposed(), Element::F32));
    assert!(!product(a.batched(2, 48), b.transposed().batched(2, 64), Element::F32));
    assert!(!product(a, b.transposed(), Element::E4M3));
    assert!(!product(a, codes(Element::BF16, 4, 16).transposed(), Element::F32));
    assert!(!product(codes(Element::BF16, 4, 16), b.transposed(), Element::BF16));
    assert_eq!([Element::E4M3, Element::BF16, Element::F32].map(Element::bytes), [1, 2, 4]);
}
