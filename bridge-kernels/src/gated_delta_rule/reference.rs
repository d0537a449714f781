//! The gated delta rule in plain Burn operations.

use burn::tensor::{Bool, Int, Tensor};

use super::shape::{DeltaInputs, DeltaOptions};
use crate::precision::{narrow, widen};

/// Largest chunk with a decay for each channel, of which each pair of tokens has a vector.
const CHANNEL_CHUNK: usize = 16;

/// [`gated_delta_rule_from`](super::gated_delta_rule_from) in plain Burn operations, with
/// gradients.
pub fn gated_delta_rule_reference(
    inputs: DeltaInputs,
    state_bhkp: Option<Tensor<4>>,
    options: &DeltaOptions,
) -> (Tensor<4>, Tensor<4>) {
    let sizes = inputs.check(options);
    let (b, t, g, h, k) = (sizes.b, sizes.t, sizes.g, sizes.h, sizes.k);
    let dtype = inputs.v_bthp.dtype();
    let by_head = |x_btgk: Tensor<4>| {
        let x = widen(x_btgk);
        let x = match options.norm_epsilon {
            Some(epsilon) => {
                let squares = (x.clone() * x.clone()).sum_dim(3) + epsilon;
                x * squares.sqrt().recip()
            }
            None => x,
        };
        let of_groups = x.reshape([b, t, g, 1, k]).expand([b, t, g, h / g, k]);
        of_groups.reshape([b, t, h, k]).swap_dims(1, 2)
    };
    let (q_bhtk, k_bhtk) = (by_head(inputs.q_btgk) * options.scale, by_head(inputs.k_btgk));
    let v_bhtp = widen(inputs.v_bthp).swap_dims(1, 2);
    let decay_bhte = widen(inputs.decay_bthe).swap_dims(1, 2);
    let beta_bht1 = widen(inputs.beta_bth).swap_dims(1, 2).reshape([b, h, t, 1]);
    let kind = (&v_bhtp.device(), v_bhtp.dtype());
    let mut state = state_bhkp.unwrap_or_else(|| Tensor::zeros([b, h, k, sizes.p], kind));
    let ids_b1t1 = inputs.document_ids.map(|ids| ids.reshape([b, 1, t, 1]));
    let chunk_size = if sizes.e == 1 { options.chunk_size } else { options.chunk_size.min(CHANNEL_CHUNK) };
    let mut outputs = Vec::new();
    for start in (0..t).step_by(chunk_size) {
        let l = chunk_size.min(t - start);
        let part = |x: &Tensor<4>| x.clone().narrow(2, start, l);
        let [q, key, v, decay, beta] = [&q_bhtk, &k_bhtk, &v_bhtp, &decay_bhte, &beta_bht1].map(part);
        let decays = Decays::new(decay, ids_b1t1.as_ref(), start);
        let own = key.clone() * beta.clone();
        // Each token removes from its value what the state has for its key: a triangular system.
        let system = decays.scores(own.clone(), key.clone(), -1);
        let fresh = v * beta - (own * decays.since.clone()).matmul(state.clone());
        let written = inverse(system).matmul(fresh);
        let within = decays.scores(q.clone(), key.clone(), 0).matmul(written.clone());
        outputs.push(within + (q * decays.since.clone()).matmul(state.clone()));
        let whole = decays.since.narrow(2, l - 1, 1).swap_dims(2, 3);
        state = state * whole + (key * decays.to_end).swap_dims(2, 3).matmul(written);
    }
    let y = if outputs.is_empty() { v_bhtp } else { Tensor::cat(outputs, 2) };
    (narrow(y.swap_dims(1, 2), dtype), state)
}

/// Decays of a chunk of `l` tokens.
struct Decays {
    /// Sums of the logarithms, this token's included, `[b, h, l, e]`.
    sums: Tensor<4>,
    /// True for pairs of tokens of different documents, `[b, h, l, l]`.
    others: Option<Tensor<4, Bool>>,
    /// Decay since the chunk's begin, `[b, h, l, e]`; 0 where another document has begun.
    since: Tensor<4>,
    /// Decay until the chunk's end, `[b, h, l, e]`; 0 where another document begins.
    to_end: Tensor<4>,
}

impl Decays {
    fn new(decay_bhle: Tensor<4>, ids_b1t1: Option<&Tensor<4, Int>>, start: usize) -> Self {
        let [b, h, l, e] = decay_bhle.dims();
        let kind = (&decay_bhle.device(), decay_bhle.dtype());
        let hidden = Tensor::<2, Bool>::tril_mask([l, l], 0, &decay_bhle.device());
        let ones = Tensor::<2>::ones([l, l], kind).mask_fill(hidden, 0.0);
        let sums = ones.unsqueeze::<4>().matmul(decay_bhle);
        let last = sums.clone().narrow(2, l - 1, 1);
        let [mut since, mut to_end] = [sums.clone().exp(), (last - sums.clone()).exp()];
        let others = ids_b1t1.map(|ids| {
            let own = ids.clone().narrow(2, start, l);
            let [before, end] = [start.saturating_sub(1), start + l - 1].map(|at| ids.clone().narrow(2, at, 1));
            let unlike = |at: Tensor<4, Int>| own.clone().not_equal(at.expand([b, 1, l, 1])).expand([b, h, l, e]);
            since = since.clone().mask_fill(unlike(before), 0.0);
            to_end = to_end.clone().mask_fill(unlike(end), 0.0);
            let pairs = own.clone().expand([b, 1, l, l]);
            pairs.not_equal(own.swap_dims(2, 3).expand([b, 1, l, l])).expand([b, h, l, l])
        });
        Self { sums, others, since, to_end }
    }

    /// Products of each of `rows` with each of `columns` and with the decay between the two tokens,
    /// up to diagonal `diagonal`, `[b, h, l, k]` twice -> `[b, h, l, l]`.
    fn scores(&self, rows: Tensor<4>, columns: Tensor<4>, diagonal: i64) -> Tensor<4> {
        let [b, h, l, k] = rows.dims();
        let [_, _, _, e] = self.sums.dims();
        let hidden = |diagonal| Tensor::<2, Bool>::tril_mask([l, l], diagonal, &rows.device());
        let later = hidden(0);
        let scores = if e == 1 {
            let between = self.sums.clone() - self.sums.clone().swap_dims(2, 3);
            let between = between.mask_fill(later.unsqueeze::<4>(), f32::NEG_INFINITY).exp();
            rows.clone().matmul(columns.swap_dims(2, 3)) * between
        } else {
            let later = later.reshape([1, 1, l, l, 1]).expand([b, h, l, l, k]);
            let [of_rows, of_columns] = [[b, h, l, 1, k], [b, h, 1, l, k]];
            let between = self.sums.clone().reshape(of_rows) - self.sums.clone().reshape(of_columns);
            let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
            let products = rows.clone().reshape(of_rows) * columns.reshape(of_columns) * between;
            products.sum_dim(4).reshape([b, h, l, l])
        };
        let scores = scores.mask_fill(hidden(diagonal).unsqueeze::<4>(), 0.0);
        match &self.others {
            Some(others) => scores.mask_fill(others.clone(), 0.0),
            None => scores,
        }
    }
}

/// The inverse of the identity plus a matrix below the diagonal, `[b, h, l, l]`: blocks of one row,
/// then of two, four, and so on, each from the inverses of its halves.
fn inverse(below: Tensor<4>) -> Tensor<4> {
    let [_, _, l, _] = below.dims();
    let device = below.device();
    let outside = Tensor::<2, Bool>::diag_mask([l, l], 0, &device);
    let identity = Tensor::<2>::ones([l, l], (&device, below.dtype())).mask_fill(outside, 0.0);
    let mut inverse = identity.unsqueeze::<4>();
    let mut size = 1;
    while size < l {
        let number = Tensor::<1, Int>::arange(0..l as i64, &device).div_scalar(size as i64);
        let rows = number.clone().reshape([l, 1]).expand([l, l]);
        let columns = number.reshape([1, l]).expand([l, l]);
        // The lower left quarter of each block of twice the size.
        let outside = rows.clone().not_equal(columns.add_scalar(1)).bool_or(rows.remainder_scalar(2).equal_elem(0));
        let quarter = below.clone().mask_fill(outside.unsqueeze::<4>(), 0.0);
        inverse = inverse.clone() - inverse.clone().matmul(quarter).matmul(inverse);
        size *= 2;
    }
    inverse
}
