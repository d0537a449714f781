//! Balancing of the load of experts: auxiliary losses, and Sinkhorn's normalization of scores.

use bridge_dist::comm::{Group, ReduceOp};

use super::choice::Choice;
use super::input::MoeInput;
use crate::architecture::config::MoeConfig;

/// Weights of the auxiliary losses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coefficients {
    pub micro_batch: f64,
    pub sequence: f64,
    pub global_batch: f64,
    pub z: f64,
}

/// Gradients of auxiliary losses.
pub(super) struct AuxLossGradients {
    /// With respect to the probability of each expert, for tokens of each sequence, `[b, e]`.
    per_expert_be: Vec<f64>,
    /// Tokens of a sequence on this rank.
    length: usize,
    num_experts: usize,
    /// Gradient with respect to a token's log-partition function, divided by that function's value.
    pub log_z: f64,
}

impl AuxLossGradients {
    /// With respect to the probability of each expert for a token.
    pub fn of_token(&self, token: usize) -> &[f64] {
        &self.per_expert_be[token / self.length * self.num_experts..][..self.num_experts]
    }
}

/// Groups of ranks over which the auxiliary losses of a micro-batch are computed.
struct BalancingGroups<'a> {
    groups: Vec<&'a Group>,
    /// Fraction of the gradients that a rank adds.
    share: f64,
}

impl<'a> BalancingGroups<'a> {
    /// Tensor-parallel ranks have the same tokens here, or each its own; gradients of the scores of
    /// the same tokens are summed over the ranks, which all add the same gradients.
    fn from_input(input: &MoeInput<'a>) -> Self {
        let (context, tensor) = (input.regions.context(), input.regions.tensor());
        match input.regions.shards_experts_alike() {
            true => Self { groups: vec![context], share: 1.0 / tensor.size() as f64 },
            false => Self { groups: vec![context, tensor], share: 1.0 },
        }
    }

    fn sum(&self, values: &mut Vec<f64>) {
        self.groups.iter().for_each(|group| sum(group, values));
    }
}

fn sum(group: &Group, values: &mut Vec<f64>) {
    if let Err(error) = group.all_reduce(values.into(), ReduceOp::Sum) {
        std::panic::panic_any(error);
    }
}

impl Coefficients {
    pub fn new(moe: &MoeConfig) -> Self {
        Self {
            micro_batch: moe.aux_loss_coeff,
            sequence: moe.seq_aux_loss_coeff,
            global_batch: moe.global_aux_loss_coeff,
            z: moe.z_loss_coeff,
        }
    }

    fn are_zero(&self) -> bool {
        [self.micro_batch, self.sequence, self.global_batch, self.z].iter().all(|coefficient| *coefficient == 0.0)
    }

    /// Values of the auxiliary losses of `batch` sequences, to the collector, and what their
    /// gradients need.
    pub fn losses(&self, choice: &Choice, batch: usize, input: &MoeInput) -> AuxLossGradients {
        let e = choice.num_experts();
        let length = choice.num_tokens() / batch;
        let mut aux_gradients =
            AuxLossGradients { per_expert_be: vec![0.0; batch * e], length, num_experts: e, log_z: 0.0 };
        if self.are_zero() && input.auxiliary.metrics.is_none() {
            return aux_gradients;
        }
        let balancing = BalancingGroups::from_input(input);
        // Tokens of each expert by score alone, sums of probabilities, sum of squared
        // log-partitions, tokens that it was given.
        let mut totals = choice.totals(0..choice.num_tokens());
        totals.push(choice.squared_log_z());
        totals.extend(choice.tokens_per_expert());
        balancing.sum(&mut totals);
        let k = choice.experts_nk.len() as f64 / choice.num_tokens() as f64;
        // Each token except padding is counted for `k` experts. In a batch that was filled up with
        // whole samples, all tokens may be padding.
        let counted = |tokens: &[f64]| (tokens.iter().sum::<f64>() / k).max(1.0);
        let n = counted(&totals[..e]);
        let scale = e as f64 / (k * n * n);
        let (tokens, probabilities) = (&totals[..e], &totals[e..2 * e]);
        let record = |name, value| {
            if let Some(metrics) = input.auxiliary.metrics {
                metrics.record(name, input.layer, value);
            }
        };
        record("load_balancing_loss", vec![scale * product(tokens, probabilities)]);
        record("z_loss", vec![totals[2 * e] / n]);
        record("tokens_per_expert", totals[2 * e + 1..].to_vec());
        let share = balancing.share * input.auxiliary.gradient_scale;
        aux_gradients.log_z = share * self.z * 2.0 / n;
        for row in aux_gradients.per_expert_be.chunks_exact_mut(e) {
            add(row, share * self.micro_batch * scale, tokens);
        }
        if self.sequence != 0.0 {
            let sequences = sequence_totals(choice, batch, &balancing);
            // A mean over the sequences that are not padding from end to end.
            let is_counted = |totals: &&[f64]| totals[..e].iter().any(|tokens| *tokens > 0.0);
            let rows = sequences.chunks_exact(2 * e).filter(is_counted).count().max(1) as f64;
            let scale = |totals: &[f64]| {
                let n = counted(&totals[..e]);
                e as f64 / (k * n * n) / rows
            };
            let values =
                sequences.chunks_exact(2 * e).map(|totals| scale(totals) * product(&totals[..e], &totals[e..]));
            record("seq_load_balancing_loss", vec![values.sum()]);
            for (row, totals) in aux_gradients.per_expert_be.chunks_exact_mut(e).zip(sequences.chunks_exact(2 * e)) {
                add(row, share * self.sequence * scale(totals), &totals[..e]);
            }
        }
        if self.global_batch != 0.0 {
            let replicas = input.regions.data().size() as f64;
            let tokens = tokens_of_global_batch(tokens, input);
            // Where samples have lengths of their own, replicas and micro-batches have different
            // numbers of tokens; elsewhere the exact number avoids the rounding of the mean.
            let (all, alike) = (counted(&tokens), n * replicas);
            let all = if (all - alike).abs() <= 1e-9 * alike { alike } else { all };
            let scale = e as f64 / (k * n * all);
            record("global_load_balancing_loss", vec![scale * product(&tokens, probabilities)]);
            for row in aux_gradients.per_expert_be.chunks_exact_mut(e) {
                add(row, share * self.global_batch * scale, &tokens);
            }
        }
        aux_gradients
    }
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(row: &mut [f64], factor: f64, tokens: &[f64]) {
    row.iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += factor * tokens);
}

/// The totals of each sequence, over all ranks that share it.
fn sequence_totals(choice: &Choice, batch: usize, balancing: &BalancingGroups) -> Vec<f64> {
    let length = choice.num_tokens() / batch;
    let mut all = (0..batch).flat_map(|row| choice.totals(row * length..(row + 1) * length)).collect();
    balancing.sum(&mut all);
    all
}

/// Tokens of each expert by score over all data-parallel ranks: the mean over the micro-batches of
/// the step so far.
fn tokens_of_global_batch(tokens: &[f64], input: &MoeInput) -> Vec<f64> {
    let of_all_ranks = || {
        let mut tokens = tokens.to_vec();
        sum(input.regions.data(), &mut tokens);
        tokens
    };
    match input.auxiliary.metrics {
        Some(metrics) => metrics.mean_of_step("tokens_per_expert_by_score", input.layer, of_all_ranks),
        None => of_all_ranks(),
    }
}

/// The largest change of a column's factor, on average, at which [`sinkhorn`] ends.
const TOLERANCE: f64 = 1e-4;
/// Keeps quotients finite.
const SMALLEST: f64 = 1e-8;
/// Limit on rounds, far above the number that convergence takes.
const MOST_ROUNDS: usize = 10_000;

/// Exponentials of the scores `[n, e]`, with rows and columns scaled in turn until all tokens count
/// alike and all experts too (Clark et al., arXiv:2202.01169, appendix B.2.1).
pub(super) fn sinkhorn(scores_ne: &[f64], e: usize) -> Vec<f64> {
    let n = scores_ne.len() / e;
    let mut cost: Vec<f64> = Vec::with_capacity(scores_ne.len());
    for scores in scores_ne.chunks_exact(e) {
        // A factor of a row changes nothing, and this one keeps all finite.
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        cost.extend(scores.iter().map(|score| (score - top).exp()));
    }
    let (mut of_tokens, mut of_experts) = (vec![1.0; n], vec![1.0; e]);
    for _ in 0..MOST_ROUNDS {
        for (factor, row) in of_tokens.iter_mut().zip(cost.chunks_exact(e)) {
            *factor = 1.0 / n as f64 / (product(row, &of_experts) + SMALLEST);
        }
        let mut sums = vec![0.0; e];
        cost.chunks_exact(e).zip(&of_tokens).for_each(|(row, factor)| add(&mut sums, *factor, row));
        let before =
            std::mem::replace(&mut of_experts, sums.into_iter().map(|sum| 1.0 / e as f64 / (sum + SMALLEST)).collect());
        let change: f64 = before.iter().zip(&of_experts).map(|(before, after)| (before - after).abs()).sum();
        if change / e as f64 <= TOLERANCE {
            break;
        }
    }
    for (row, factor) in cost.chunks_exact_mut(e).zip(&of_tokens) {
        row.iter_mut().zip(&of_experts).for_each(|(value, of_expert)| *value *= factor * of_expert);
    }
    cost
}

/// Rows `[n, width]` of every rank that shares the micro-batch, by the numbers of their tokens in
/// it, and the numbers of those here.
pub(super) struct WholeBatch {
    pub rows: Vec<f64>,
    pub own: Vec<usize>,
}

impl WholeBatch {
    /// Gathers rows of `batch` sequences.
    pub fn gather(rows: &[f64], n: usize, batch: usize, input: &MoeInput) -> Self {
        let own = input.regions.token_numbers(batch, n / batch);
        let mut numbered: Vec<f64> = Vec::with_capacity(rows.len() + n);
        let width = rows.len() / n;
        for (number, row) in own.iter().zip(rows.chunks_exact(width)) {
            numbered.push(*number as f64);
            numbered.extend(row);
        }
        for group in BalancingGroups::from_input(input).groups.into_iter().filter(|group| group.size() > 1) {
            let mut all = vec![0.0; numbered.len() * group.size()];
            if let Err(error) = group.all_gather((&numbered).into(), (&mut all).into()) {
                std::panic::panic_any(error);
            }
            numbered = all;
        }
        let mut rows = vec![0.0; numbered.len() / (width + 1) * width];
        for row in numbered.chunks_exact(width + 1) {
            rows[row[0] as usize * width..][..width].copy_from_slice(&row[1..]);
        }
        Self { rows, own }
    }

    /// Rows of the tokens here, from rows `[all tokens, width]`.
    pub fn own_rows(&self, rows: &[f64], width: usize) -> Vec<f64> {
        self.own.iter().flat_map(|number| rows[number * width..][..width].iter().copied()).collect()
    }
}
