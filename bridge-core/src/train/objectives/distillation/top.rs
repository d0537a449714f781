//! A teacher's top-k tokens, and the probability of all other tokens together.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

/// Teacher's best tokens of some sequences, at the temperature.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Best {
    /// Tokens told apart.
    pub k: usize,
    /// Ids, `[tokens, k]`, the likeliest first.
    pub ids: Vec<u32>,
    /// Log-probabilities, `[tokens, k]`.
    pub log_probabilities: Vec<f32>,
    /// Log-probability of all others, `[tokens]`.
    pub rest: Vec<f32>,
}

impl Best {
    /// Best tokens of `logits`, `rows` a token, which are divided by `temperature`. `k` is below
    /// `rows`. Among equal logits the one with the lower id comes first.
    pub fn select(logits: &[f32], rows: usize, k: usize, temperature: f64) -> Self {
        let of_token = |logits: &[f32]| {
            let mut order: Vec<u32> = (0..rows as u32).collect();
            let compare = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
            order.select_nth_unstable_by(k - 1, compare);
            let (best, others) = order.split_at_mut(k);
            best.sort_unstable_by(compare);
            // In an order that the selection does not decide.
            others.sort_unstable();
            let scaled = |id: &u32| f64::from(logits[*id as usize]) / temperature;
            let best_logits: Vec<f64> = best.iter().map(scaled).collect();
            let rest = log_sum_exp(others.iter().map(scaled));
            let all = log_sum_exp(best_logits.iter().copied().chain([rest]));
            let log_probabilities: Vec<f32> = best_logits.iter().map(|logit| (logit - all) as f32).collect();
            Self { k, ids: best.to_vec(), log_probabilities, rest: vec![(rest - all) as f32] }
        };
        Self::join(logits.par_chunks(rows).map(of_token).collect::<Vec<_>>())
    }

    /// Tokens one after the other.
    pub fn join(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.k = part.k;
            all.ids.extend(part.ids);
            all.log_probabilities.extend(part.log_probabilities);
            all.rest.extend(part.rest);
        }
        all
    }

    /// The sequences of `length` tokens that it has.
    pub fn sequences(&self, length: usize) -> impl Iterator<Item = Self> {
        let numbers = length * self.k;
        let parts = self.ids.chunks(numbers).zip(self.log_probabilities.chunks(numbers)).zip(self.rest.chunks(length));
        parts.map(|((ids, log_probabilities), rest)| Self {
            k: self.k,
            ids: ids.to_vec(),
            log_probabilities: log_probabilities.to_vec(),
            rest: rest.to_vec(),
        })
    }

    /// The divergence of a model with these logits (already divided by the temperature), `[b, t,
    /// v]` -> `[b, t]`: over the best tokens, each by itself, and all others as one.
    pub fn divergence(&self, logits_btv: Tensor<3>) -> Tensor<2> {
        let [b, t, v] = logits_btv.dims();
        let device = logits_btv.device().without_autodiff();
        let ids: Vec<i64> = self.ids.iter().map(|id| i64::from(*id)).collect();
        let ids_btk = Tensor::<3, Int>::from_data(TensorData::new(ids, [b, t, self.k]), &device);
        let all_bt1 = log_sum_exp_of(logits_btv.clone());
        let best_btk = logits_btv.clone().gather(2, ids_btk) - all_bt1.clone();
        let rest_bt1 = log_sum_exp_of(logits_btv + self.without_best([b, t, v], &device)) - all_bt1;
        let floats =
            |values: &[f32], k: usize| Tensor::<3>::from_data(TensorData::new(values.to_vec(), [b, t, k]), &device);
        let of_teacher = Tensor::cat(vec![floats(&self.log_probabilities, self.k), floats(&self.rest, 1)], 2);
        let of_model = Tensor::cat(vec![best_btk, rest_bt1], 2);
        (of_teacher.clone().exp() * (of_teacher - of_model)).sum_dim(2).reshape([b, t])
    }

    /// Mask that removes the best tokens from a sum of exponentials when it is added.
    fn without_best(&self, [b, t, v]: [usize; 3], device: &Device) -> Tensor<3> {
        const NOTHING: f32 = -1e30;
        let mut values = vec![0.0_f32; b * t * v];
        for (row, ids) in values.chunks_mut(v).zip(self.ids.chunks(self.k)) {
            ids.iter().for_each(|id| row[*id as usize] = NOTHING);
        }
        Tensor::from_data(TensorData::new(values, [b, t, v]), device)
    }
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
    most + values.map(|value| (value - most).exp()).sum::<f64>().ln()
}

/// `[b, t, v]` -> `[b, t, 1]`.
fn log_sum_exp_of(x_btv: Tensor<3>) -> Tensor<3> {
    let most = x_btv.clone().without_autodiff().max_dim(2);
    (x_btv - most.clone()).exp().sum_dim(2).log() + most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tokens_and_the_rest_are_one() {
        let logits = [1.0, 4.0, 4.0, -2.0, 3.0, 0.5, 0.0, 9.0, -80.0, 2.0, 0.0, 0.0];
        let best = Best::select(&logits, 6, 3, 2.0);
        assert_eq!(best.ids, [1, 2, 4, 1, 3, 0]);
        for token in 0..2 {
            let of_best: f64 = best.log_probabilities[token * 3..][..3].iter().map(|log| f64::from(*log).exp()).sum();
            assert!((of_best + f64::from(best.rest[token]).exp() - 1.0).abs() < 1e-6);
            let of_token = &logits[token * 6..][..6];
            let sum: f64 = of_token.iter().map(|logit| (f64::from(*logit) / 2.0).exp()).sum();
            let first = (f64::from(of_token[best.ids[token * 3] as usize]) / 2.0).exp() / sum;
            assert!((f64::from(best.log_probabilities[token * 3]).exp() - first).abs() < 1e-6);
        }
        let parts: Vec<Best> = best.sequences(1).collect();
        assert_eq!(parts.len(), 2);
        assert_eq!(Best::join(parts), best);
    }

    #[test]
    fn a_model_that_says_the_same_does_not_diverge_and_another_does() {
        let values = [1.0_f32, 4.0, 3.9, -2.0, 3.0, 0.5];
        let best = Best::select(&values, 6, 2, 1.0);
        let of = |values: [f32; 6]| {
            let logits = Tensor::<3>::from_data(TensorData::new(values.to_vec(), [1, 1, 6]), &Device::flex());
            best.divergence(logits).into_data().iter::<f64>().next().unwrap()
        };
        assert!(of(values).abs() < 1e-6);
        // All that differs is inside the rest.
        assert!(of([1.0, 4.0, 3.9, 0.5, 3.0, -2.0]).abs() < 1e-6);
        let other = [2.0_f32, 1.0, 3.9, -2.0, 3.0, 0.5];
        let sum: f64 = other.iter().map(|logit| f64::from(*logit).exp()).sum();
        let [p1, p2] = [1.0_f64, f64::from(3.9_f32)].map(|logit| logit.exp() / sum);
        let [q1, q2, rest] = [best.log_probabilities[0], best.log_probabilities[1], best.rest[0]].map(f64::from);
        let expected =
            q1.exp() * (q1 - p1.ln()) + q2.exp() * (q2 - p2.ln()) + rest.exp() * (rest - (1.0 - p1 - p2).ln());
        assert!((of(other) - expected).abs() < 1e-6, "{} {expected}", of(other));
    }
}
