//! Matrices in slices, to read and to write.

use std::marker::PhantomData;
use std::ops::Range;

use burn::tensor::DType;

use super::buffer::Shared;
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
        let offset = if count == 0 || self.cols == 0 { 0 } else { start * self.row_stride };
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

// SAFETY: it is a `&mut [E]` with gaps; callers of `block`, of `row` and of the pointer of `start`
// keep parts apart.
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
    pub unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
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
