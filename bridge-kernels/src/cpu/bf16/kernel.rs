//! Contract of micro-kernels: packed operands, and the tiles that are computed from them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use crate::cpu::element::Element;
use crate::cpu::matrix::{Matrix, MatrixMut};

/// Columns of a tile: two registers.
pub const COLUMNS: usize = 2 * LANES;
/// Float32 values of a register.
pub const LANES: usize = 16;

/// A cache line of a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; LANES]);

// SAFETY: an array of values, without padding.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

impl Line {
    /// The values of adjacent lines.
    pub fn values_mut(lines: &mut [Self]) -> &mut [u32] {
        bytemuck::cast_slice_mut(lines)
    }
}

/// Computes tiles of [`COLUMNS`] columns from panels of packed vectors: rows of the left operand,
/// columns of the right one. The implementation defines the order inside a panel.
pub trait MicroKernel: Sized {
    /// Rows of a tile, at most.
    const ROWS: usize;
    /// Elements along `k` of a block, at most.
    const LONGEST: usize;
    /// Length of every block of `k` but the last is a multiple of this.
    const UNIT: usize;
    /// Values of a packed group of columns, which the second-level cache holds.
    const GROUP: usize;

    /// Values of 32 bits that `len` elements of a vector take in a panel.
    fn steps(len: usize) -> usize;

    /// Rows of a panel that holds `rows` rows.
    fn stored_rows(rows: usize) -> usize;

    /// Packs the rows of `rows`, at most [`Self::ROWS`], into a panel.
    ///
    /// # Safety
    /// The machine must have the instructions of the form.
    unsafe fn pack_rows<E: Element>(panel: &mut [u32], rows: Matrix<'_, E>);

    /// Packs the columns of `columns`, at most [`COLUMNS`], into a panel of that width, with zeros
    /// for missing columns.
    ///
    /// # Safety
    /// As [`Self::pack_rows`].
    unsafe fn pack_columns<E: Element>(panel: &mut [u32], columns: Matrix<'_, E>);

    /// Prepares the thread for tiles, until the value is dropped.
    ///
    /// # Safety
    /// As [`Self::pack_rows`].
    unsafe fn start() -> Self;

    /// True if tiles read such a left operand without a panel, in panels of [`Self::ROWS`] rows.
    fn reads_in_place(_a: Matrix<'_, bf16>) -> bool {
        false
    }

    /// Computes the tiles of `out` in some rows and columns, from rows and from panels of
    /// [`COLUMNS`] columns, and adds their part of `terms`, which are as large as `out`. `next` are
    /// the rows that are likely to be read next.
    ///
    /// # Safety
    /// No other task may touch the tiles at the same time, and the partial sums must be as large as
    /// `out`.
    unsafe fn tiles<O: Element>(
        &self,
        out: &MatrixMut<'_, O>,
        place: [Range<usize>; 2],
        left: Left<'_>,
        next: Option<Left<'_>>,
        right: &[u32],
        terms: Terms<'_>,
    );
}

/// At most [`MicroKernel::ROWS`] rows of the left operand.
#[derive(Clone, Copy)]
pub enum Left<'a> {
    /// Packed rows.
    Panel(&'a [u32]),
    /// Rows where they are, see [`MicroKernel::reads_in_place`].
    Rows(Matrix<'a, bf16>),
}

/// Values that are added to `scale` times a product.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    pub scale: f32,
    /// `[m, n]`: partial sums, which may be in the memory of the output.
    pub sums: Option<&'a MatrixMut<'a>>,
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    /// `[m, n]`, with adjacent columns.
    pub residual: Option<Matrix<'a, bf16>>,
}
