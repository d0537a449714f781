//! Factors on queries that grow with the position, so that attention over long contexts stays
//! sharp: `1 + beta * log(1 + floor((first + position) / length))`.

use bridge_kernels::rotary::Positions;
use burn::tensor::{Tensor, TensorData};

use crate::architecture::config::QueryScaleConfig;

/// Queries times the factors of their positions, `[b, t, h, d]` -> the same.
pub(super) fn scaled(q_bthd: Tensor<4>, scale: Option<QueryScaleConfig>, positions: &Positions) -> Tensor<4> {
    let Some(QueryScaleConfig { beta, length, first, .. }) = scale else { return q_bthd };
    let [b, t, ..] = q_bthd.dims();
    let (device, dtype) = (q_bthd.device().without_autodiff(), q_bthd.dtype());
    let factors = match positions {
        Positions::From(offset) => {
            let factor = |place: usize| {
                let steps = (first + offset + place) / length;
                (1.0 + beta * (steps as f64).ln_1p()) as f32
            };
            let factors: Vec<f32> = (0..t).map(factor).collect();
            Tensor::<1>::from_data(TensorData::new(factors, [t]), &device).reshape([1, t, 1, 1])
        }
        Positions::Explicit(positions_bt) => {
            let steps_bt = ((positions_bt.clone().float() + first as f64) / length as f64).floor();
            ((steps_bt + 1.0).log() * beta + 1.0).reshape([b, t, 1, 1])
        }
    };
    q_bthd * factors.cast(dtype)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int};

    use super::*;

    #[test]
    fn factors_grow_by_steps_and_gradients_follow() {
        let scale = QueryScaleConfig { beta: 0.3, length: 4, first: 1, unrotated_only: false };
        let expected = |position: usize| 1.0 + 0.3 * (((position + 1) / 4) as f64).ln_1p();
        let device = Device::flex().autodiff();
        let explicit = [5_i64, 6, 7, 0, 3, 31];
        let ids = Tensor::<2, Int>::from_data(TensorData::new(explicit.to_vec(), [2, 3]), &Device::flex());
        for (positions, places) in [
            (Positions::From(6), [6_usize, 7, 8, 6, 7, 8].to_vec()),
            (Positions::Explicit(ids), explicit.iter().map(|place| *place as usize).collect()),
        ] {
            let q = Tensor::<4>::ones([2, 3, 2, 2], &device).require_grad();
            let y = scaled(q.clone(), Some(scale), &positions);
            let gradients = y.clone().sum().backward();
            for values in [y.into_data(), q.grad(&gradients).unwrap().into_data()] {
                let found: Vec<f32> = values.try_into_vec().unwrap();
                for (token, values) in found.chunks(4).enumerate() {
                    let factor = expected(places[token]);
                    assert!(values.iter().all(|value| (f64::from(*value) - factor).abs() < 1e-6), "{values:?}");
                }
            }
        }
    }
}
