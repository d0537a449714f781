//! Tensors as files have them, made of the rows of a parameter: whole, or block by block. Where
//! each row lies says `weight_map`.

use std::ops::Range;

use super::checkpoint::HostTensor;
use super::error::HfError;
use super::runs::{BLOCK, row_blocks};
use super::weight_map::{StoredTensor, WeightEntry};

/// Gives rows of a parameter, whole, row-major.
pub type ReadRows<'a> = dyn FnMut(Range<usize>) -> Result<Vec<f32>, HfError> + 'a;

impl WeightEntry {
    /// The tensors of a parameter's values. Padding is dropped.
    ///
    /// # Panics
    /// If there are not as many values as the parameter has.
    pub fn split(&self, values: &[f32]) -> Vec<HostTensor> {
        assert_eq!(values.len(), self.shape.iter().product::<usize>(), "number of values of `{}`", self.parameter);
        let width = self.row_length();
        let mut read = |rows: Range<usize>| Ok(values[rows.start * width..rows.end * width].to_vec());
        let tensor = |(number, stored): (usize, &StoredTensor)| {
            let values = self.stored(number, 0..stored.shape.iter().product(), &mut read);
            HostTensor { shape: stored.shape.clone(), values: values.expect("values in memory can be read") }
        };
        self.tensors.iter().enumerate().map(tensor).collect()
    }

    /// Elements of tensor number `tensor`, of which the parameter's rows are there. Padding is
    /// dropped. Fails with errors of `read`.
    pub(super) fn stored(
        &self,
        tensor: usize,
        elements: Range<usize>,
        read: &mut ReadRows<'_>,
    ) -> Result<Vec<f32>, HfError> {
        let (mut target, width) = (vec![0.0; elements.len()], self.row_length());
        for run in self.runs().iter().filter(|run| run.tensor == tensor) {
            for rows in row_blocks(run.rows_among(&elements, width), width) {
                let values = read(rows.clone())?;
                run.scatter(rows, &values, width, &elements, &mut target);
            }
        }
        Ok(target)
    }

    /// The elements of tensor number `tensor` in blocks of whole rows, as many as a multiple of
    /// `multiple` but at the end. A tensor whose rows are the parameter's columns is one block:
    /// each of its rows is made of all of the parameter.
    pub(super) fn stored_blocks(&self, tensor: usize, multiple: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let shape = &self.tensors[tensor].shape;
        // A scalar has one row of one element.
        let width = shape.iter().skip(1).product::<usize>().max(1);
        let stored_rows = shape.first().copied().unwrap_or(1);
        let rows = match self.rows_are_inputs() {
            true => stored_rows.max(1),
            false => (BLOCK / width).max(1).next_multiple_of(multiple),
        };
        let (count, each) = (stored_rows * width, rows * width);
        (0..count).step_by(each).map(move |start| start..count.min(start + each))
    }
}
