//! Weighted sums of rows on Flex.

use burn::tensor::Tensor;

use super::cpu::Terms;
use crate::flex::{Values, gradient, tensor};
use crate::vjp;

/// See [`crate::weighted_rows()`]; `idle` are the rows without a place.
pub(crate) fn weighted_rows(
    rows_mc: &Tensor<2>,
    weights_nk: &Tensor<2>,
    places_nk: &[Option<usize>],
    idle: Vec<usize>,
) -> Option<Tensor<2>> {
    let (rows, weights) = (Values::contiguous_of(rows_mc)?, Values::contiguous_of(weights_nk)?);
    let ([m, c], [n, k]) = (rows_mc.dims(), weights_nk.dims());
    if c * n * k == 0 {
        return None;
    }
    let places = places_nk.to_vec();
    let y = Terms { rows: rows.slice(), weights: weights.slice(), places: &places, sizes: [c, k] }.forward();
    let inputs = vec![rows_mc.clone().into_dispatch(), weights_nk.clone().into_dispatch()];
    Some(vjp::attach_some(tensor(y, [n, c]), inputs, move |dy: Tensor<2>| {
        let terms = Terms { rows: rows.slice(), weights: weights.slice(), places: &places, sizes: [c, k] };
        let [d_rows, d_weights] = terms.backward(Values::of_gradient(dy).slice(), &idle);
        vec![gradient(d_rows, [m, c]), gradient(d_weights, [n, k])]
    }))
}
