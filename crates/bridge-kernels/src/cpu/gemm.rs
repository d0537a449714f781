//! Matrix products on strided views, by the `gemm` crate.

use std::marker::PhantomData;

use gemm::Parallelism;

use super::buffer::Shared;

/// A matrix somewhere in a slice.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// Number of elements from the first to the last, both included.
fn span(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + (cols - 1) * col_stride + 1 }
}

impl<'a> Matrix<'a> {
    /// A contiguous row-major matrix.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols, 1)
    }

    /// A matrix with any strides.
    ///
    /// # Panics
    /// If it does not fit the slice.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
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

    /// Rows `start .. start + count`.
    pub fn row_range(self, start: usize, count: usize) -> Self {
        let offset = if count == 0 { 0 } else { start * self.row_stride };
        Self::strided(&self.data[offset..], count, self.cols, self.row_stride, self.col_stride)
    }
}

/// A matrix to be written: rows `row_stride` apart, columns adjacent.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    start: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    data: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// A contiguous row-major matrix.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert!(rows * cols <= data.len(), "a {rows} x {cols} matrix does not fit {} elements", data.len());
        Self { start: data.as_mut_ptr(), rows, cols, row_stride: cols, data: PhantomData }
    }

    /// A strided block that starts at element `start` of a shared slice.
    ///
    /// # Safety
    /// No other task may touch the block's elements at the same time.
    pub unsafe fn shared(data: Shared<'a>, start: usize, rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(cols <= row_stride || rows <= 1, "rows of {cols} overlap at a stride of {row_stride}");
        let start = data.block(start, start + span(rows, cols, row_stride, 1));
        Self { start, rows, cols, row_stride, data: PhantomData }
    }
}

/// What happens to the output's old contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Overwritten (it may be uninitialised).
    Set,
    /// Added to.
    Add,
}

/// Where a product runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// On the calling thread.
    One,
    /// On the threads of the current Rayon pool.
    All,
}

/// Below this many multiply-adds a product stays on one thread.
const PARALLEL_WORK: usize = 96 * 96 * 96;

/// `out = scale * a * b`, or `out += scale * a * b`.
///
/// Every element is summed in the same order on any number of threads: only rows and columns are divided between them.
///
/// # Panics
/// If the shapes do not fit.
pub fn gemm(out: MatrixMut<'_>, output: Output, scale: f32, a: Matrix<'_>, b: Matrix<'_>, threads: Threads) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(
        out.rows == m && out.cols == n && b.rows == k,
        "product of {m} x {k} and {} x {n} into {} x {}",
        b.rows,
        out.rows,
        out.cols
    );
    let parallelism = match threads {
        Threads::All if m * n * k >= PARALLEL_WORK => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    // SAFETY: the views were checked against their slices when they were made; `out` is exclusive and its rows do not
    // overlap; with `read_dst` false the output is not read.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
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
            parallelism,
        );
    }
}
