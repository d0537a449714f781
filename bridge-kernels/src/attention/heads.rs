//! Memory layout of heads: tensors of heads, and heads inside a wider projection.

use std::ops::Range;

use crate::cpu::buffer::Shared;
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut};

/// Strides, in elements, of heads whose own elements are adjacent.
#[derive(Clone, Copy, Debug)]
pub struct HeadStrides {
    /// Elements from one sequence to the next.
    pub batch: usize,
    /// Elements from one token to the next.
    pub token: usize,
    /// Elements from one group of heads to the next.
    pub group: usize,
    /// Elements from one head to the next of its group.
    pub head: usize,
    /// Heads of a group.
    pub per_group: usize,
}

impl HeadStrides {
    /// Strides of a tensor `[b, s, heads, d]` from those of its first three dimensions.
    pub fn even([batch, token, head]: [usize; 3]) -> Self {
        Self { batch, token, group: head, head: 0, per_group: 1 }
    }

    /// Strides of a contiguous tensor `[b, s, heads, d]`.
    pub fn contiguous(s: usize, heads: usize, d: usize) -> Self {
        Self::even([s * heads * d, heads * d, d])
    }

    #[inline(always)]
    fn start(self, batch: usize, head: usize, token: usize) -> usize {
        let (group, head) = (head / self.per_group, head % self.per_group);
        batch * self.batch + token * self.token + group * self.group + head * self.head
    }
}

/// Heads that are read.
#[derive(Clone, Copy)]
pub struct Heads<'a, E = f32> {
    /// From the first head's first element on.
    pub data: &'a [E],
    /// Strides of the heads.
    pub strides: HeadStrides,
}

impl<'a, E: Element> Heads<'a, E> {
    /// Tokens `tokens` of one head of one sequence: a matrix `[tokens, d]`.
    pub fn matrix(self, batch: usize, head: usize, tokens: Range<usize>, d: usize) -> Matrix<'a, E> {
        let start = self.strides.start(batch, head, tokens.start);
        let data = if tokens.is_empty() { &[] } else { &self.data[start..] };
        Matrix::strided(data, tokens.len(), d, self.strides.token, 1)
    }

    /// One token of one head.
    #[inline(always)]
    pub fn row(self, batch: usize, head: usize, token: usize, d: usize) -> &'a [E] {
        &self.data[self.strides.start(batch, head, token)..][..d]
    }
}

/// Heads that several tasks write, each its own.
#[derive(Clone, Copy)]
pub struct HeadsMut<'a, E = f32> {
    /// Memory that contains the heads.
    pub data: Shared<'a, E>,
    /// The first head's first element.
    pub offset: usize,
    /// Strides of the heads.
    pub strides: HeadStrides,
}

impl<'a, E: Element> HeadsMut<'a, E> {
    /// Tokens `tokens` of one head of one sequence: a matrix `[tokens, d]`.
    ///
    /// # Safety
    /// No other task may touch them at the same time.
    pub unsafe fn matrix(self, batch: usize, head: usize, tokens: Range<usize>, d: usize) -> MatrixMut<'a, E> {
        let start = self.offset + self.strides.start(batch, head, tokens.start);
        // SAFETY: as this function's.
        unsafe { MatrixMut::shared(self.data, start, tokens.len(), d, self.strides.token) }
    }

    /// One token of one head.
    ///
    /// # Safety
    /// No other task may touch it at the same time, nor may there be another reference to it.
    #[inline(always)]
    pub unsafe fn row(self, batch: usize, head: usize, token: usize, d: usize) -> &'a mut [E] {
        // SAFETY: as this function's.
        unsafe { self.data.part(self.offset + self.strides.start(batch, head, token), d) }
    }
}
