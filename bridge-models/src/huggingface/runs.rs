//! Where the rows of a parameter lie in a tensor, and gathering them. Which rows these are says `weight_map`.

use std::ops::Range;

use super::error::HfError;

/// Rows of a parameter that lie in one tensor at equal distances.
pub(super) struct Run {
    /// Of the parameter.
    pub rows: Range<usize>,
    /// The number of the tensor.
    pub tensor: usize,
    /// Where the first of the rows begins in it.
    pub first: usize,
    /// From the beginning of a row to that of the next.
    pub row_stride: usize,
    /// From an element of a row to the next.
    pub column_stride: usize,
}

impl Run {
    /// Where a row begins in the tensor.
    pub fn place(&self, row: usize) -> usize {
        self.first + (row - self.rows.start) * self.row_stride
    }
}

/// Fills a slice with the elements of a tensor from a place on.
type ReadElements<'a> = dyn FnMut(usize, &mut [f32]) -> Result<(), HfError> + 'a;

/// Distances of rows, and of the elements of a row, in a tensor.
pub(super) struct Strides {
    pub rows: usize,
    pub columns: usize,
}

impl Strides {
    /// Fills `target` with rows of `width` elements, of which the first begins at `first`. `read` gives elements that lie one behind the other.
    pub fn gather(
        &self,
        (first, width): (usize, usize),
        target: &mut [f32],
        read: &mut ReadElements<'_>,
    ) -> Result<(), HfError> {
        if self.columns == 1 && self.rows == width {
            return read(first, target);
        }
        if self.columns == 1 {
            let mut rows = target.chunks_mut(width).enumerate();
            return rows.try_for_each(|(row, target)| read(first + row * self.rows, target));
        }
        // Column by column: what lies between two rows is read with them, which is little.
        let count = target.len() / width;
        let mut column = vec![0.0; (count - 1) * self.rows + 1];
        for index in 0..width {
            read(first + index * self.columns, &mut column)?;
            for (row, value) in column.iter().step_by(self.rows).enumerate() {
                target[row * width + index] = *value;
            }
        }
        Ok(())
    }
}
