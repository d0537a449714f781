//! The scan of a state space model with one decay rate a head, in chunks: Mamba-2's (Dao and Gu,
//! arXiv:2405.21060, section 6).
//!
//! Further shape letters: `p` channels of a head, `n` numbers of the state for each channel, `q`
//! tokens of a chunk.

mod cpu;
mod cpu_backward;
#[cfg(feature = "cube")]
pub mod cube;
#[cfg(feature = "cube")]
mod cube_backward;
#[cfg(feature = "cube")]
mod cube_step_gradients;
#[cfg(feature = "cube")]
mod cube_steps;
mod flex;
mod shape;

use burn::tensor::{Bool, Int, Tensor, activation::softplus};

pub use shape::{ScanInputs, ScanOptions};

use crate::precision::{is_narrow_on_cpu, narrow, widen};

/// For each head, with `dt = clamp(softplus(dt + dt_bias))` and the state `S` of `[n, p]` that
/// begins with zeros:
///
/// ```text
/// S[t] = exp(-exp(a_log) dt[t]) S[t - 1] + dt[t] B[t] x[t]^T
/// y[t] = C[t] S[t] + d x[t]
/// ```
///
/// `x` are the first `h p` columns of `xbc`, then come `B` and `C` of each group. Inside a chunk
/// this is a product of matrices, as in attention; the state goes from chunk to chunk. Computed in
/// float32 whatever the input's dtype, and rounded once.
///
/// # Shapes
/// See [`ScanInputs`] -> `[b, t, h p]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn ssd_scan(inputs: ScanInputs, options: &ScanOptions) -> Tensor<3> {
    inputs.check(options);
    #[cfg(feature = "cube")]
    if let Some(y) = cube::ssd_scan(&inputs, options) {
        return y;
    }
    if is_narrow_on_cpu(&inputs.xbc_btf) {
        let dtype = inputs.xbc_btf.dtype();
        return narrow(ssd_scan(inputs.widened(), options), dtype);
    }
    flex::ssd_scan(&inputs, options).unwrap_or_else(|| ssd_scan_reference(inputs, None, options).0)
}

/// [`ssd_scan`] of a sequence that continues from a state, `[b, h, n, p]` float32. Returns the
/// state after the sequence too. Without gradients.
///
/// # Panics
/// As [`ssd_scan`], or if the state is of another shape.
pub fn ssd_scan_from(
    inputs: ScanInputs,
    state_bhnp: Option<Tensor<4>>,
    options: &ScanOptions,
) -> (Tensor<3>, Tensor<4>) {
    inputs.check(options);
    let ([b, _, _], [h]) = (inputs.xbc_btf.dims(), inputs.a_log_h.dims());
    if let Some(state) = &state_bhnp {
        let expected = [b, h, options.state_size, options.head_size];
        assert_eq!(state.dims(), expected, "ssd_scan_from: a state for each head of each sequence");
    }
    #[cfg(feature = "cube")]
    if let Some(found) = cube::ssd_scan_from(&inputs, state_bhnp.as_ref(), options) {
        return found;
    }
    if is_narrow_on_cpu(&inputs.xbc_btf) {
        let dtype = inputs.xbc_btf.dtype();
        let (y, state) = ssd_scan_from(inputs.widened(), state_bhnp, options);
        return (narrow(y, dtype), state);
    }
    let found = flex::ssd_scan_from(&inputs, state_bhnp.as_ref(), options);
    found.unwrap_or_else(|| ssd_scan_reference(inputs, state_bhnp, options))
}

/// [`ssd_scan_from`] in plain Burn operations, with gradients.
pub fn ssd_scan_reference(
    inputs: ScanInputs,
    state_bhnp: Option<Tensor<4>>,
    options: &ScanOptions,
) -> (Tensor<3>, Tensor<4>) {
    let ([batch, t, _], [_, _, h]) = (inputs.xbc_btf.dims(), inputs.dt_bth.dims());
    let ScanOptions { head_size: p, groups: g, state_size: n, chunk_size, time_steps: [least, largest] } = *options;
    let dtype = inputs.xbc_btf.dtype();
    let xbc = widen(inputs.xbc_btf);
    let columns = |start, count| xbc.clone().narrow(2, start, count);
    let by_head = |start: usize| {
        let of_groups = columns(start, g * n).reshape([batch, t, g, 1, n]);
        of_groups.expand([batch, t, g, h / g, n]).reshape([batch, t, h, n]).swap_dims(1, 2)
    };
    let x_bhtp = columns(0, h * p).reshape([batch, t, h, p]).swap_dims(1, 2);
    let (b_bhtn, c_bhtn) = (by_head(h * p), by_head(h * p + g * n));
    let raw = softplus(widen(inputs.dt_bth) + widen(inputs.dt_bias_h).reshape([1, 1, h]), 1.0);
    let dt_bht1 = raw.clamp(least, largest).swap_dims(1, 2).reshape([batch, h, t, 1]);
    let decay_bht1 = dt_bht1.clone() * widen(inputs.a_log_h).exp().neg().reshape([1, h, 1, 1]);
    let dtx_bhtp = x_bhtp.clone() * dt_bht1;
    let mut state = state_bhnp.unwrap_or_else(|| Tensor::zeros([batch, h, n, p], (&xbc.device(), xbc.dtype())));
    let mut outputs = Vec::new();
    let ids_bt = inputs.document_ids.map(|ids| ids.reshape([batch, 1, t, 1]));
    for start in (0..t).step_by(chunk_size) {
        let q = chunk_size.min(t - start);
        let part = |x: &Tensor<4>| x.clone().narrow(2, start, q);
        let [x, b, c, decay] = [&dtx_bhtp, &b_bhtn, &c_bhtn, &decay_bht1].map(part);
        let hidden = Tensor::<2, Bool>::tril_mask([q, q], 0, &xbc.device());
        let sums = Tensor::<2>::ones([q, q], (&xbc.device(), xbc.dtype())).mask_fill(hidden.clone(), 0.0);
        let sum_bhq1 = sums.unsqueeze::<4>().matmul(decay);
        let between = sum_bhq1.clone() - sum_bhq1.clone().swap_dims(2, 3);
        let between = between.mask_fill(hidden.unsqueeze::<4>(), f32::NEG_INFINITY).exp();
        let last = sum_bhq1.clone().narrow(2, q - 1, 1);
        let [mut between, mut since, mut to_end] = [between, sum_bhq1.clone().exp(), (last - sum_bhq1).exp()];
        if let Some(ids) = &ids_bt {
            let own = ids.clone().narrow(2, start, q);
            let [before, end] = [start.saturating_sub(1), start + q - 1].map(|at| ids.clone().narrow(2, at, 1));
            let others =
                own.clone().expand([batch, 1, q, q]).not_equal(own.clone().swap_dims(2, 3).expand([batch, 1, q, q]));
            between = between.mask_fill(others.expand([batch, h, q, q]), 0.0);
            let unlike =
                |at: Tensor<4, Int>| own.clone().not_equal(at.expand([batch, 1, q, 1])).expand([batch, h, q, 1]);
            since = since.mask_fill(unlike(before), 0.0);
            to_end = to_end.mask_fill(unlike(end), 0.0);
        }
        let within = (c.clone().matmul(b.clone().swap_dims(2, 3)) * between).matmul(x.clone());
        outputs.push(within + (c * since.clone()).matmul(state.clone()));
        let added = (b * to_end).swap_dims(2, 3).matmul(x);
        state = state * since.narrow(2, q - 1, 1) + added;
    }
    let y_bhtp = Tensor::cat(outputs, 2) + x_bhtp * widen(inputs.d_h).reshape([1, h, 1, 1]);
    (narrow(y_bhtp.swap_dims(1, 2).reshape([batch, t, h * p]), dtype), state)
}
