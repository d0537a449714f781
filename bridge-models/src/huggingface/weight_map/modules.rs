//! Which rows of a tensor are those of a parameter, as what belongs to a module of a family is read by.

use super::WeightEntry;

impl WeightEntry {
    /// For each tensor, which of its rows (of a matrix stored as `[inputs, outputs]`, its columns) are the parameter's, in the parameter's order.
    pub(crate) fn stored_rows(&self) -> Vec<Vec<usize>> {
        let width = self.row_length().max(1);
        let counts: Vec<usize> =
            self.tensors.iter().map(|stored| stored.shape.iter().product::<usize>() / width).collect();
        let mut rows = vec![Vec::new(); counts.len()];
        for (range, step) in self.order(counts.iter().sum()) {
            for mut row in range.step_by(step) {
                let mut tensor = 0;
                while row >= counts[tensor] {
                    row -= counts[tensor];
                    tensor += 1;
                }
                rows[tensor].push(row);
            }
        }
        rows
    }
}
