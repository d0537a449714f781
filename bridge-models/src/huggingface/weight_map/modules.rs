//! Modules of the tensors of a map: their rows of a layer, and their names.

use super::{ExpertLayout, HALF, Storage, WeightEntry, WeightRule, pattern, placeholders, with_numbers};

impl WeightEntry {
    /// For each tensor, which of its rows (of a matrix stored as `[inputs, outputs]`, its columns)
    /// are the parameter's, in the parameter's order.
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

impl WeightEntry {
    /// True if the tensors are stored as `[inputs, outputs]`.
    pub(crate) fn rows_are_inputs(&self) -> bool {
        self.storage == Storage::RowsAreInputs
    }
}

impl WeightRule {
    /// The names of the tensors that a parameter is made of, if the rule is its own and the tensors
    /// are not those of other parameters too. Where files number layers otherwise than we do, names
    /// begin behind the number: another family's layer of our number is meant by it.
    pub fn names_of(&self, parameter: &str) -> Option<Vec<String>> {
        let (pattern, numbers) = pattern(parameter);
        let is_own = self.megatron == pattern && self.experts == ExpertLayout::Apart;
        let is_whole = self.hugging_face.iter().all(|name| placeholders(name) == numbers.len());
        let name = |name: &&str| {
            let whole = with_numbers(name, &numbers);
            match name.find(HALF).and_then(|at| whole[at..].split_once('.')) {
                Some((_, behind)) => behind.to_owned(),
                None => whole,
            }
        };
        (is_own && is_whole).then(|| self.hugging_face.iter().map(name).collect())
    }
}
