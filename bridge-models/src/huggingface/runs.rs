//! Positions of a parameter's rows in a tensor, and their gathering and scattering. The module
//! `weight_map` chooses the rows.

use std::ops::Range;

use super::error::HfError;

/// Elements that are read and written at a time where a tensor need not be in memory.
pub(super) const BLOCK: usize = 1 << 20;

/// Splits rows of `width` elements into blocks of at most 2^20 elements, or of one row, so that not
/// all rows are in memory together.
pub fn row_blocks(rows: Range<usize>, width: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (BLOCK / width.max(1)).max(1);
    rows.clone().step_by(each).map(move |start| start..rows.end.min(start + each))
}

/// Rows of a parameter that lie in one tensor at equal distances.
pub(super) struct Run {
    /// Rows of the parameter.
    pub rows: Range<usize>,
    /// The number of the tensor.
    pub tensor: usize,
    /// Start of the first row in the tensor.
    pub first: usize,
    /// Elements from the beginning of a row to that of the next.
    pub row_stride: usize,
    /// Elements from one element of a row to the next.
    pub column_stride: usize,
}

impl Run {
    /// Start of a row in the tensor.
    pub fn place(&self, row: usize) -> usize {
        self.first + (row - self.rows.start) * self.row_stride
    }

    /// The rows, of `width` elements each, of which some are among these elements of the tensor.
    pub fn rows_among(&self, elements: &Range<usize>, width: usize) -> Range<usize> {
        if self.column_stride != 1 || self.row_stride == 0 {
            return self.rows.clone();
        }
        let number = |distance: usize| distance.div_ceil(self.row_stride).min(self.rows.len()) + self.rows.start;
        number((elements.start + 1).saturating_sub(self.first + width))..number(elements.end.saturating_sub(self.first))
    }

    /// Brings rows, of `width` elements each, to their places among these elements of the tensor.
    pub fn scatter(
        &self,
        rows: Range<usize>,
        values: &[f32],
        width: usize,
        elements: &Range<usize>,
        target: &mut [f32],
    ) {
        for (row, values) in rows.zip(values.chunks_exact(width.max(1))) {
            let place = self.place(row);
            if self.column_stride == 1 {
                let common = place.max(elements.start)..(place + width).min(elements.end);
                if !common.is_empty() {
                    let to = common.start - elements.start..common.end - elements.start;
                    target[to].copy_from_slice(&values[common.start - place..common.end - place]);
                }
                continue;
            }
            for (column, value) in values.iter().enumerate() {
                let place = place + column * self.column_stride;
                if elements.contains(&place) {
                    target[place - elements.start] = *value;
                }
            }
        }
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
    /// Fills `target` with rows of `width` elements, of which the first begins at `first`. `read`
    /// gives elements that lie one after the other.
    pub fn gather(
        &self,
        first: usize,
        width: usize,
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
        // Column by column: elements between two rows are few and are read along.
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
