//! Weighted sums of rows: what the experts of each token made of it becomes one row again.
//!
//! Shape legend: `n` sums, `k` terms of each, `m` rows, of which some may be in no sum.

mod cpu;
mod flex;

use burn::tensor::{Int, Tensor, TensorData};

/// For each of `n` sums `weights[n, k] * rows[places[n, k]]` over its `k` terms; a term without a place is none.
///
/// # Shapes
/// `rows_mc` `[m, c]`, `weights_nk` `[n, k]` of the same dtype, `places_nk` `n k` numbers of rows -> `[n, c]`.
///
/// # Panics
/// If the sizes do not fit each other, a place is not a row, or a row has two places.
pub fn weighted_rows(rows_mc: Tensor<2>, weights_nk: Tensor<2>, places_nk: Vec<Option<usize>>) -> Tensor<2> {
    let ([m, _], [n, k]) = (rows_mc.dims(), weights_nk.dims());
    assert_eq!(places_nk.len(), n * k, "weighted_rows: a place for each of {n} x {k} weights");
    let mut is_taken = vec![false; m];
    for place in places_nk.iter().flatten() {
        assert!(*place < m, "weighted_rows: there is no row {place} of {m}");
        assert!(!std::mem::replace(&mut is_taken[*place], true), "weighted_rows: row {place} has two places");
    }
    let idle: Vec<usize> = (0..m).filter(|row| !is_taken[*row]).collect();
    flex::weighted_rows(&rows_mc, &weights_nk, &places_nk, idle)
        .unwrap_or_else(|| reference(rows_mc, weights_nk, &places_nk))
}

/// [`weighted_rows`] in plain Burn operations.
pub fn reference(rows_mc: Tensor<2>, weights_nk: Tensor<2>, places_nk: &[Option<usize>]) -> Tensor<2> {
    let ([m, c], [n, k]) = (rows_mc.dims(), weights_nk.dims());
    let device = rows_mc.device();
    // Terms without a place take a row of zeros behind the others.
    let zeros = Tensor::zeros([1, c], (&device, rows_mc.dtype()));
    let table = if m == 0 { zeros } else { Tensor::cat(vec![rows_mc, zeros], 0) };
    let ids: Vec<i64> = places_nk.iter().map(|place| place.unwrap_or(m) as i64).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [n * k]), &device.without_autodiff());
    let terms_nkc: Tensor<3> = table.select(0, ids).reshape([n, k, c]);
    (terms_nkc * weights_nk.reshape([n, k, 1])).sum_dim(1).reshape([n, c])
}
