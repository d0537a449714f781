//! Matrix products on strided views: of float32 by the `gemm` crate, with bfloat16 by
//! [`super::bf16`].

use std::marker::PhantomData;
use std::ops::Range;

use burn::tensor::DType;
use gemm::Parallelism;
use rayon::prelude::*;

use super::bf16;
use super::buffer::{Shared, filled};
use super::element::Element;

/// A matrix somewhere in a slice.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, E = f32> {
    data: &'a [E],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// Number of elements from the first to the last, both included.
fn span(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + (cols - 1) * col_stride + 1 }
}

impl<'a, E: Element> Matrix<'a, E> {
    /// A contiguous row-major matrix.
    pub fn new(data: &'a [E], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols, 1)
    }

    /// A matrix with any strides.
    ///
    /// # Panics
    /// If it does not fit the slice.
    pub fn strided(data: &'a [E], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        let needed = span(rows, cols, row_stride, col_stride);
        assert!(needed <= data.len(), "a {rows} x {cols} matrix spans {needed} elements, the slice has {}", data.len());
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// The transposed view.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            data: self.data,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next, and from one column to the next.
    pub fn strides(&self) -> [usize; 2] {
        [self.row_stride, self.col_stride]
    }

    /// The first element.
    pub fn as_ptr(&self) -> *const E {
        self.data.as_ptr()
    }

    /// Everything from the first element on.
    pub fn data(&self) -> &'a [E] {
        self.data
    }

    /// A row whose elements are adjacent.
    pub fn row(&self, row: usize) -> &'a [E] {
        assert!(self.col_stride == 1 || self.cols <= 1, "the elements of a row are adjacent");
        &self.data[row * self.row_stride..][..self.cols]
    }

    /// The same matrix of float32, if it is one.
    pub fn wide(self) -> Option<Matrix<'a>> {
        self.with_elements()
    }

    /// The same matrix, if its elements are `T`.
    pub fn with_elements<T: Element>(self) -> Option<Matrix<'a, T>> {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        let is_same = E::DTYPE == T::DTYPE;
        is_same.then(|| Matrix { data: bytemuck::cast_slice(data), rows, cols, row_stride, col_stride })
    }

    /// Columns `start .. start + count`.
    pub fn col_range(self, start: usize, count: usize) -> Self {
        self.t().row_range(start, count).t()
    }

    /// Rows `start .. start + count`.
    pub fn row_range(self, start: usize, count: usize) -> Self {
        let offset = if count == 0 { 0 } else { start * self.row_stride };
        Self::strided(&self.data[offset..], count, self.cols, self.row_stride, self.col_stride)
    }
}

/// A matrix to be written: rows `row_stride` apart, columns adjacent.
#[derive(Debug)]
pub struct MatrixMut<'a, E = f32> {
    start: *mut E,
    rows: usize,
    cols: usize,
    row_stride: usize,
    data: PhantomData<&'a mut [E]>,
}

// SAFETY: it is a `&mut [E]` with gaps; parts are only handed out by `block`, whose callers keep
// them apart.
unsafe impl<E: Element> Sync for MatrixMut<'_, E> {}

impl<'a, E: Element> MatrixMut<'a, E> {
    /// A contiguous row-major matrix.
    pub fn new(data: &'a mut [E], rows: usize, cols: usize) -> Self {
        assert!(rows * cols <= data.len(), "a {rows} x {cols} matrix does not fit {} elements", data.len());
        Self { start: data.as_mut_ptr(), rows, cols, row_stride: cols, data: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Place of an element, and the elements from one row to the next.
    pub fn start(&self, row: usize, column: usize) -> (*mut E, usize) {
        assert!(row < self.rows.max(1) && column < self.cols.max(1), "element {row}, {column} lies outside");
        (self.start.wrapping_add(row * self.row_stride + column), self.row_stride)
    }

    /// The elements of a row.
    ///
    /// # Safety
    /// There may be no other reference to them.
    pub unsafe fn row(&self, row: usize) -> &'a mut [E] {
        let (start, _) = self.start(row, 0);
        // SAFETY: the row lies in the slice that the matrix was made of.
        unsafe { std::slice::from_raw_parts_mut(start, self.cols) }
    }

    /// The same matrix of float32, if it is one.
    pub fn wide(&self) -> Option<MatrixMut<'a>> {
        let Self { start, rows, cols, row_stride, .. } = *self;
        (E::DTYPE == DType::F32).then(|| MatrixMut { start: start.cast(), rows, cols, row_stride, data: PhantomData })
    }

    /// The block of these rows and columns, which must lie inside.
    ///
    /// # Safety
    /// No other task may touch the block's elements at the same time.
    unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && cols.end <= self.cols, "rows {rows:?} and columns {cols:?} lie outside");
        let start = self.start.wrapping_add(rows.start * self.row_stride + cols.start);
        Self { start, rows: rows.len(), cols: cols.len(), row_stride: self.row_stride, data: PhantomData }
    }

    /// A strided block that starts at element `start` of a shared slice.
    ///
    /// # Safety
    /// No other task may touch the block's elements at the same time.
    pub unsafe fn shared(data: Shared<'a, E>, start: usize, rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(cols <= row_stride || rows <= 1, "rows of {cols} overlap at a stride of {row_stride}");
        let start = data.block(start, start + span(rows, cols, row_stride, 1));
        Self { start, rows, cols, row_stride, data: PhantomData }
    }
}

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
    let min_rows = smallest(MIN_PIECE.0, PIECE_UNIT.0, b.cols);
    let min_cols = smallest(MIN_PIECE.1, PIECE_UNIT.1, a.rows);
    if a.col_stride != 1 {
        let rows = at_most(a.rows, min_rows, threads);
        (rows, at_most(b.cols, min_cols, threads.div_ceil(rows)))
    } else {
        let cols = at_most(b.cols, min_cols, threads);
        (at_most(a.rows, min_rows, threads.div_ceil(cols)), cols)
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
    let (m, n) = (a.rows, b.cols);
    assert!(
        out.rows == m && out.cols == n && b.rows == a.cols,
        "product of {m} x {} and {} x {n} into {} x {}",
        a.cols,
        b.rows,
        out.rows,
        out.cols
    );
    match (out.wide(), a.wide(), b.wide()) {
        (Some(out), Some(a), Some(b)) => wide(&out, output, scale, a, b, threads),
        _ => bf16::product(out, output, bf16::Factors { scale, ..bf16::Factors::new(a, b) }, threads),
    }
}

/// [`gemm()`] of float32, of operands that fit.
pub(super) fn wide(out: &MatrixMut<'_>, output: Output, scale: f32, a: Matrix<'_>, b: Matrix<'_>, threads: Threads) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
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
    filled(a.rows * b.cols, |out| gemm(MatrixMut::new(out, a.rows, b.cols), Output::Set, scale, a, b, threads))
}

/// [`gemm()`] on the calling thread, of operands that fit.
fn product(out: MatrixMut<'_>, output: Output, scale: f32, a: Matrix<'_>, b: Matrix<'_>) {
    // SAFETY: the views were checked against their slices when they were made; `out` is exclusive
    // and its rows do not overlap; with `read_dst` false the output is not read.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out.start,
            1,
            out.row_stride as isize,
            output == Output::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
