//! Products in each form that the machine has, against float64.

use half::bf16;

use super::*;
use crate::random::Philox;

const FORMS: [Form; 4] = [Form::Tiles, Form::Pairs, Form::Widened, Form::Copies];

fn values<E: Element>(key: u64, count: usize) -> Vec<E> {
    Philox::new(key).normal(count, 1.0).into_iter().map(E::narrow).collect()
}

/// A matrix of a shape, some of whose elements lie between others that do not belong to it.
fn strided<E: Element>(data: &[E], [rows, cols]: [usize; 2], is_transposed: bool) -> Matrix<'_, E> {
    match is_transposed {
        true => Matrix::strided(data, rows, cols, 1, rows + 3),
        false => Matrix::strided(data, rows, cols, cols + 3, 1),
    }
}

fn at<E: Element>(x: Matrix<'_, E>, row: usize, col: usize) -> f64 {
    f64::from(x.data()[row * x.strides()[0] + col * x.strides()[1]].wide())
}

/// Compares a product with terms with float64; operands of float32 count as rounded.
fn check<A: Element, B: Element, O: Element>(form: Form, [m, n, k]: [usize; 3], transposed: [bool; 2], output: Output) {
    let (a_data, b_data) = (values::<A>(1, (m + 3) * (k + 3)), values::<B>(2, (k + 3) * (n + 3)));
    let (a, b) = (strided(&a_data, [m, k], transposed[0]), strided(&b_data, [k, n], transposed[1]));
    let (old, bias, residual) = (values::<O>(3, m * n), values::<f32>(4, n), values::<bf16>(5, m * n));
    let mut y = old.clone();
    let factors = Factors { a, b, scale: 0.5, bias: Some(&bias), residual: Some(Matrix::new(&residual, m, n)) };
    product_by(form, &MatrixMut::new(&mut y, m, n), output, factors, Threads::One);
    for (i, y) in y.iter().enumerate() {
        let (row, col) = (i / n, i % n);
        let old = if output == Output::Add { f64::from(old[i].wide()) } else { 0.0 };
        let added = old + f64::from(bias[col]) + f64::from(residual[i].wide());
        let terms = (0..k).map(|l| at(a, row, l) * at(b, l, col));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        let expected = added + 0.5 * sum;
        // Two roundings of operands to bfloat16 where these are wider, float32 sums, one rounding
        // of the result.
        let of_operands = if A::DTYPE == bf16::DTYPE && B::DTYPE == bf16::DTYPE { 1e-6 } else { 1.0 / 128.0 };
        let of_result = if O::DTYPE == bf16::DTYPE { 1.0 / 256.0 } else { 1e-6 };
        let bound = of_operands * size + of_result * expected.abs() + 1e-5;
        let found = f64::from(y.wide());
        assert!(
            (found - expected).abs() <= bound,
            "{form:?} {m}x{n}x{k} {transposed:?}: {row}, {col} is {found}, not {expected}"
        );
    }
}

/// A product without terms is what is added to it, if operands have no memory, too.
#[test]
fn products_of_empty_operands_are_their_terms() {
    let (m, n) = (5, 70);
    let bias = values::<f32>(4, n);
    for form in FORMS.into_iter().filter(|form| form.is_supported()) {
        let (a, b) = (Matrix::<bf16>::new(&[], m, 0), Matrix::<bf16>::new(&[], 0, n));
        let mut y = vec![7.0; m * n];
        let factors = Factors { a, b, scale: 0.5, bias: Some(&bias), residual: None };
        product_by(form, &MatrixMut::new(&mut y, m, n), Output::Set, factors, Threads::One);
        assert!(y.chunks(n).all(|row| row == bias), "{form:?}");
    }
}

#[test]
fn products_are_those_of_float64() {
    for form in FORMS.into_iter().filter(|form| form.is_supported()) {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            check::<bf16, bf16, bf16>(form, [31, 37, 67], transposed, Output::Set);
            check::<bf16, bf16, f32>(form, [17, 79, 33], transposed, Output::Add);
            check::<f32, bf16, bf16>(form, [15, 33, 41], transposed, Output::Add);
            check::<bf16, f32, f32>(form, [3, 5, 7], transposed, Output::Set);
        }
        // Several blocks of `k`; of rows; no `k`; one element.
        check::<bf16, bf16, bf16>(form, [5, 35, 4500], [false, true], Output::Add);
        check::<bf16, bf16, f32>(form, [5, 35, 4500], [true, false], Output::Set);
        check::<f32, bf16, bf16>(form, [540, 3, 2050], [false, false], Output::Set);
        check::<bf16, bf16, bf16>(form, [1, 67, 131], [false, true], Output::Set);
        check::<f32, bf16, f32>(form, [3, 70, 64], [true, true], Output::Add);
        check::<bf16, f32, bf16>(form, [4, 9, 33], [false, true], Output::Set);
        check::<bf16, bf16, bf16>(form, [2, 3, 0], [false, true], Output::Set);
        check::<bf16, bf16, bf16>(form, [7, 3, 0], [false, false], Output::Set);
        check::<bf16, bf16, bf16>(form, [1, 1, 1], [false, false], Output::Set);
    }
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    for form in FORMS.into_iter().filter(|form| form.is_supported()) {
        for [m, n, k] in [[300, 500, 4200], [1000, 40, 130], [40, 1000, 130], [2, 700, 130]] {
            let (a, b) = (values::<bf16>(1, m * k), values::<bf16>(2, k * n));
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let factors = Factors::new(Matrix::new(&a, m, k), Matrix::new(&b, n, k).t());
                let fill = |y: &mut [bf16]| {
                    product_by(form, &MatrixMut::new(y, m, n), Output::Set, factors, Threads::All);
                };
                pool.install(|| filled(m * n, fill))
            };
            let one = run(1);
            for threads in 2..=4 {
                assert!(run(threads) == one, "{form:?} {m}x{n}x{k} on {threads} threads");
            }
        }
    }
}
