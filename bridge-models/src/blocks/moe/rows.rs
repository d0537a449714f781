//! Rows of a matrix by number. Both operations also work for no rows.

use std::ops::Range;

use bridge_kernels::embedding;
use bridge_kernels::vjp::attach;
use burn::tensor::{Int, Tensor, TensorData};

/// Rows `ids` of `x_nc`: `[ids.len(), c]`. A row may be taken more than once, and there may be
/// none.
pub(super) fn gather_rows(x_nc: Tensor<2>, ids: &[usize]) -> Tensor<2> {
    let [n, c] = x_nc.dims();
    let device = x_nc.device().without_autodiff();
    if ids.is_empty() {
        // Not just an empty tensor: the result keeps its place in the graph, so that all ranks'
        // graphs look alike.
        let dtype = x_nc.dtype();
        let zeros = move |rows: usize| Tensor::<2>::zeros([rows, c], (&device, dtype));
        return attach(zeros(0), vec![x_nc.into_dispatch()], move |_: Tensor<2>| vec![zeros(n).into_dispatch()]);
    }
    let values: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
    let ids_1m = Tensor::<2, Int>::from_data(TensorData::new(values, [1, ids.len()]), &device);
    embedding(x_nc, ids_1m).reshape([ids.len(), c])
}

/// `x_nc` and a row of zeros after it: `[n + 1, c]`, also for `n = 0`.
pub(super) fn with_zero_row(x_nc: Tensor<2>) -> Tensor<2> {
    let [n, c] = x_nc.dims();
    let input = x_nc.clone().into_dispatch();
    let x_nc = x_nc.without_autodiff();
    let (device, dtype) = (x_nc.device(), x_nc.dtype());
    let y = Tensor::cat(vec![x_nc, Tensor::zeros([1, c], (&device, dtype))], 0);
    attach(y, vec![input], move |dy: Tensor<2>| {
        let dx = if n == 0 { Tensor::zeros([0, c], (&device, dtype)) } else { dy.narrow(0, 0, n) };
        vec![dx.into_dispatch()]
    })
}

/// The rows that each expert of a rank works on, so that none has too little to do.
///
/// If each expert is an operation of its own, an expert without tokens gets a row of zeros: it then
/// has its place in the graph and gradients of zero, and ranks whose experts are idle still take
/// part in the exchanges of backward.
pub(super) struct ExpertRows {
    ids: Vec<usize>,
    counts: Vec<usize>,
    /// Index in the results of each requested row.
    places: Vec<usize>,
    needs_zero_row: bool,
}

impl ExpertRows {
    /// `ids` are rows of a table of `table_rows`, those of the first expert first; `counts` says
    /// how many each expert has, which works on `fewest` at least.
    pub fn new(ids: &[usize], counts: &[usize], table_rows: usize, fewest: usize) -> Self {
        let mut rows = Self { ids: Vec::new(), counts: Vec::new(), places: Vec::new(), needs_zero_row: false };
        let mut start = 0;
        for count in counts {
            rows.places.extend(rows.ids.len()..rows.ids.len() + count);
            rows.ids.extend(&ids[start..start + count]);
            let missing = fewest.saturating_sub(*count);
            rows.ids.extend(std::iter::repeat_n(table_rows, missing));
            rows.needs_zero_row |= missing > 0;
            rows.counts.push(count + missing);
            start += count;
        }
        rows
    }

    /// The rows of the table that experts work on.
    pub fn gather(&self, table: Tensor<2>) -> Tensor<2> {
        let table = if self.needs_zero_row { with_zero_row(table) } else { table };
        gather_rows(table, &self.ids)
    }

    /// Rows of each expert.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// Index in the results of the `index`-th requested row.
    pub fn place(&self, index: usize) -> usize {
        self.places[index]
    }
}

/// Consecutive rows of `x_nc`, at least one.
pub(super) fn take_rows(x_nc: Tensor<2>, range: Range<usize>) -> Tensor<2> {
    let [n, _] = x_nc.dims();
    if range == (0..n) { x_nc } else { x_nc.narrow(0, range.start, range.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn gradient(x: &Tensor<2>, y: Tensor<2>) -> Vec<f32> {
        x.grad(&y.sum().backward()).unwrap().into_data().try_into_vec().unwrap()
    }

    #[test]
    fn no_rows_are_rows_too() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::ones([5, 3], &device).require_grad();
        for ids in [vec![], vec![4, 0, 4]] {
            let y = gather_rows(x.clone(), &ids);
            assert_eq!(y.dims(), [ids.len(), 3]);
            let count = |row| ids.iter().filter(|id| **id == row).count() as f32;
            let expected: Vec<f32> = (0..5).flat_map(|row| [count(row); 3]).collect();
            assert_eq!(gradient(&x, y), expected, "{ids:?}");
        }
        let nothing = gather_rows(x.clone(), &[]);
        let row = with_zero_row(nothing);
        assert_eq!(row.dims(), [1, 3]);
        assert_eq!(gradient(&x, row), [0.0; 15]);
        assert_eq!(gradient(&x, with_zero_row(x.clone())), [1.0; 15]);
    }

    #[test]
    fn every_expert_has_a_row() {
        let rows = ExpertRows::new(&[3, 1, 0], &[0, 2, 0, 1], 5, 1);
        assert_eq!((rows.ids.as_slice(), rows.counts()), ([5, 3, 1, 5, 0].as_slice(), [1, 2, 1, 1].as_slice()));
        assert_eq!([0, 1, 2].map(|index| rows.place(index)), [1, 2, 4]);
        let table = Tensor::<2>::from_floats([[1.0], [2.0], [3.0], [4.0], [5.0]], &Device::flex());
        let gathered: Vec<f32> = rows.gather(table).into_data().try_into_vec().unwrap();
        assert_eq!(gathered, [0.0, 4.0, 2.0, 0.0, 1.0]);
        let rows = ExpertRows::new(&[3, 1, 0], &[0, 2, 0, 1], 5, 0);
        assert_eq!((rows.ids.as_slice(), rows.counts()), ([3, 1, 0].as_slice(), [0, 2, 0, 1].as_slice()));
        assert!(!rows.needs_zero_row);
    }
}
