//! Matrix products on strided views: of float32 by the `gemm` crate, with bfloat16 by
//! [`super::bf16`].

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::bf16;
use super::buffer::filled;
use super::element::Element;
pub use super::matrix::{Matrix, MatrixMut};

/// Use of the output's old contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Overwritten (it may be uninitialised).
    Set,
    /// The product is added to the old contents.
    Add,
}

/// Threads that run a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// On the calling thread.
    One,
    /// On the threads of the current Rayon pool.
    All,
}

/// Below this many multiply-adds a product stays on one thread.
pub(super) const PARALLEL_WORK: usize = 96 * 96 * 96;

/// Rows and columns of the smallest piece that a thread is given, see [`smallest`].
const MIN_PIECE: (usize, usize) = (96, 128);
/// Products of at most this many elements are summed in another order by the crate.
const TINY: usize = 256;
/// Pieces begin at multiples of these, where the crate's kernel has few ragged edges.
const PIECE_UNIT: (usize, usize) = (6, 32);

/// Numbers of rows and columns of pieces that a product is divided into for a number of threads.
///
/// Each thread copies its parts of the operands into the kernel's order. That is expensive for an
/// `a` that lies column by column (the gradient of a weight), so then rows are cut, which divides
/// `a`; otherwise columns are, which divides `b`.
fn pieces(a: &Matrix<'_>, b: &Matrix<'_>, threads: usize) -> (usize, usize) {
    let at_most = |len: usize, min: usize, wanted: usize| (len / min).clamp(1, wanted);
    let min_rows = smallest(MIN_PIECE.0, PIECE_UNIT.0, b.cols());
    let min_cols = smallest(MIN_PIECE.1, PIECE_UNIT.1, a.rows());
    if a.strides()[1] != 1 {
        let rows = at_most(a.rows(), min_rows, threads);
        (rows, at_most(b.cols(), min_cols, threads.div_ceil(rows)))
    } else {
        let cols = at_most(b.cols(), min_cols, threads);
        (at_most(a.rows(), min_rows, threads.div_ceil(cols)), cols)
    }
}

/// The least size of a piece in one dimension, for a size of `other` in the other one.
///
/// The sum of an element must not depend on the number of pieces. Pieces of more than 64 rows or
/// columns have the whole product's blocking along `k`, and those of more than [`TINY`] elements
/// are summed as the whole is. A piece may be smaller than an even share by a unit.
fn smallest(min: usize, unit: usize, other: usize) -> usize {
    min.max(TINY / other.max(1) + 1 + unit)
}

/// Start of piece `piece` of `pieces`.
fn cut(len: usize, unit: usize, piece: usize, pieces: usize) -> usize {
    (len.div_ceil(unit) * piece / pieces * unit).min(len)
}

/// `out = scale * a * b`, or `out += scale * a * b`.
///
/// Every element is summed in the same order on any number of threads: only rows and columns are
/// divided between them. Panics if the shapes do not fit.
pub fn gemm<A: Element, B: Element, O: Element>(
    out: MatrixMut<'_, O>,
    output: Output,
    scale: f32,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    threads: Threads,
) {
    let (m, n) = (a.rows(), b.cols());
    assert!(
        out.rows() == m && out.cols() == n && b.rows() == a.cols(),
        "product of {m} x {} and {} x {n} into {} x {}",
        a.cols(),
        b.rows(),
        out.rows(),
        out.cols()
    );
    match (out.wide(), a.wide(), b.wide()) {
        (Some(out), Some(a), Some(b)) => wide(&out, output, scale, a, b, threads),
        _ => bf16::product(out, output, bf16::Factors { scale, ..bf16::Factors::new(a, b) }, threads),
    }
}

/// [`gemm()`] of float32, of operands that fit.
pub(super) fn wide(out: &MatrixMut<'_>, output: Output, scale: f32, a: Matrix<'_>, b: Matrix<'_>, threads: Threads) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    let (rows, cols) = match threads {
        Threads::All if m * n * k >= PARALLEL_WORK => pieces(&a, &b, rayon::current_num_threads()),
        _ => (1, 1),
    };
    let product = |rows: Range<usize>, cols: Range<usize>| {
        // SAFETY: pieces do not overlap.
        let block = unsafe { out.block(rows.clone(), cols.clone()) };
        product(block, output, scale, a.row_range(rows.start, rows.len()), b.col_range(cols.start, cols.len()));
    };
    if rows * cols == 1 {
        return product(0..m, 0..n);
    }
    (0..rows * cols).into_par_iter().with_max_len(1).for_each(|piece| {
        let (row, col) = (piece / cols, piece % cols);
        let (top, bottom) = (cut(m, PIECE_UNIT.0, row, rows), cut(m, PIECE_UNIT.0, row + 1, rows));
        let (left, right) = (cut(n, PIECE_UNIT.1, col, cols), cut(n, PIECE_UNIT.1, col + 1, cols));
        product(top..bottom, left..right);
    });
}

/// `scale * a * b` in memory of its own, row-major.
///
/// # Panics
/// If the shapes do not fit.
pub fn multiplied<A: Element, B: Element, O: Element>(
    scale: f32,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    threads: Threads,
) -> Vec<O> {
    filled(a.rows() * b.cols(), |out| gemm(MatrixMut::new(out, a.rows(), b.cols()), Output::Set, scale, a, b, threads))
}

/// [`gemm()`] on the calling thread, of operands that fit.
fn product(out: MatrixMut<'_>, output: Output, scale: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let ([a_rows, a_cols], [b_rows, b_cols]) = (a.strides(), b.strides());
    let (start, stride) = out.start(0, 0);
    // SAFETY: the views were checked against their slices when they were made; `out` is exclusive
    // and its rows do not overlap; with `read_dst` false the output is not read.
    unsafe {
        gemm::gemm(
            a.rows(),
            b.cols(),
            a.cols(),
            start,
            1,
            stride as isize,
            output == Output::Add,
            a.as_ptr(),
            a_cols as isize,
            a_rows as isize,
            b.as_ptr(),
            b_cols as isize,
            b_rows as isize,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
