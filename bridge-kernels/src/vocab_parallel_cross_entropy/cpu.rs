//! Output projection and cross-entropy on one rank's rows of the vocabulary, in chunks of tokens.

use rayon::prelude::*;

use super::shard::VocabularyShard;
use crate::activation::cpu::softcap_in_place;
use crate::cpu::element::Element;
use crate::cpu::simd::{exp_in_place, exp_or_zero, max, sum_map, vectorised};
use crate::cross_entropy::CrossEntropyOptions;
use crate::cross_entropy::cpu::{LossAndGradients, Problem, WantedGradients, in_chunks, token_loss};

/// The tokens of one chunk.
struct Chunk<'a> {
    /// This rank's logits, `[count, v]`; at the end their gradients.
    logits: &'a mut [f32],
    /// Output for the losses.
    losses: &'a mut [f64],
    /// Rows of this rank.
    v: usize,
    /// Targets in the whole vocabulary.
    targets: &'a [usize],
    mask: &'a [f32],
}

/// Sum over tokens of the masked loss, with gradients: of the weight, and this rank's term of that
/// of the hidden states.
///
/// `problem.targets` count from the start of the whole vocabulary.
pub fn solve<E: Element>(
    problem: Problem<'_, E>,
    wanted: WantedGradients,
    shard: &VocabularyShard<'_>,
) -> LossAndGradients {
    let v = problem.weight.rows();
    in_chunks(problem, wanted, |range, logits, losses| {
        let (targets, mask) = (&problem.targets[range.clone()], &problem.mask[range]);
        Chunk { logits, losses, v, targets, mask }.solve(problem.options, shard);
    })
}

impl Chunk<'_> {
    /// Fills in the losses; the logits become their gradients.
    fn solve(self, options: CrossEntropyOptions, shard: &VocabularyShard<'_>) {
        let Self { logits, losses, v, targets, mask } = self;
        let count = targets.len();
        let softcap = options.softcap.map(|cap| cap as f32);
        let mut largest = vec![0.0_f32; count];
        rows_of(logits, v).zip(largest.par_iter_mut()).zip(mask).for_each(|((row, largest), mask)| {
            vectorised!({
                if *mask == 0.0 {
                    // A token that does not count may hold anything, infinities included.
                    row.fill(0.0);
                }
                if let Some(cap) = softcap {
                    softcap_in_place(row, cap);
                }
                *largest = max(row);
            });
        });
        shard.exchange.max(&mut largest);

        // Sums of exponentials, then the targets' logits: one message.
        let mut totals = vec![0.0_f32; 2 * count];
        let (sums, target_logits) = totals.split_at_mut(count);
        let places: Vec<Option<usize>> =
            targets.iter().map(|target| target.checked_sub(shard.start).filter(|place| *place < v)).collect();
        rows_of(logits, v)
            .zip(sums.par_iter_mut().zip(target_logits.par_iter_mut()))
            .zip(largest.par_iter().zip(&places))
            .for_each(|((row, (sum, target)), (top, place))| {
                vectorised!({
                    *target = place.map_or(0.0, |place| row[place]);
                    *sum = match softcap {
                        None => exp_in_place(row, *top),
                        // The capped logits are needed again for the slope of the cap.
                        Some(_) => sum_map(row, |l| exp_or_zero(l - *top)),
                    };
                });
            });
        shard.exchange.sum(&mut totals);

        let (sums, target_logits) = totals.split_at(count);
        rows_of(logits, v).zip(losses.par_iter_mut()).enumerate().for_each(|(i, (row, loss))| {
            let (top, sum, mask) = (largest[i], sums[i], mask[i]);
            if mask == 0.0 {
                row.fill(0.0);
                return;
            }
            let log_z = f64::from(top) + f64::from(sum).ln();
            let (value, factor) = token_loss(log_z, target_logits[i], mask, options.z_loss);
            *loss = value;
            vectorised!(row_gradient(row, places[i], factor / sum, mask, softcap.map(|cap| (cap, top))));
        });
    }
}

/// One task a row. An empty shard of the vocabulary has no elements, so `v.max(1)` only avoids an
/// invalid chunk size.
fn rows_of(logits: &mut [f32], v: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
    logits.par_chunks_mut(v.max(1))
}

/// Exponentials (or, under a cap, capped logits with their cap and largest value) to gradients.
#[inline(always)]
fn row_gradient(row: &mut [f32], target: Option<usize>, factor: f32, mask: f32, capped: Option<(f32, f32)>) {
    match capped {
        None => {
            row.iter_mut().for_each(|p| *p *= factor);
            if let Some(target) = target {
                row[target] -= mask;
            }
        }
        Some((cap, top)) => {
            let inverse = 1.0 / cap;
            let slope = |l: f32| 1.0 - (l * inverse) * (l * inverse);
            let at_target =
                target.map(|target| (target, (exp_or_zero(row[target] - top) * factor - mask) * slope(row[target])));
            row.iter_mut().for_each(|l| *l = exp_or_zero(*l - top) * factor * slope(*l));
            if let Some((target, gradient)) = at_target {
                row[target] = gradient;
            }
        }
    }
}
