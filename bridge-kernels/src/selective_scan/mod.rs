//! The scan of a state space model with a decay rate for each number of a channel's state: the
//! first Mamba's (Gu and Dao, arXiv:2312.00752, section 3).
//!
//! Further shape letters: `i` channels, `n` numbers of the state for each channel.

mod cpu;
mod flex;

use burn::tensor::{Int, Tensor, activation::softplus};

use crate::precision::{is_narrow_on_cpu, narrow, widen};

/// The tensors of a scan; see [`selective_scan`].
#[derive(Clone, Debug)]
pub struct SelectiveInputs {
    /// Values, `[b, t, i]`.
    pub x_bti: Tensor<3>,
    /// Time steps before bias and softplus, `[b, t, i]`.
    pub dt_bti: Tensor<3>,
    /// Logarithms of the decay rates, `[i, n]`.
    pub a_log_in: Tensor<2>,
    /// Inputs of the states, `[b, t, n]`.
    pub b_btn: Tensor<3>,
    /// Outputs of the states, `[b, t, n]`.
    pub c_btn: Tensor<3>,
    /// Bias of the time steps, `[i]`.
    pub dt_bias_i: Tensor<1>,
    /// Factor on the value that is added to the output, `[i]`.
    pub d_i: Tensor<1>,
    /// Document of each token, `[b, t]`: states begin with zeros in each.
    pub document_ids: Option<Tensor<2, Int>>,
}

impl SelectiveInputs {
    /// The same tensors in float32.
    fn widened(self) -> Self {
        let Self { x_bti, dt_bti, a_log_in, b_btn, c_btn, dt_bias_i, d_i, document_ids } = self;
        let [x_bti, dt_bti, b_btn, c_btn] = [x_bti, dt_bti, b_btn, c_btn].map(widen);
        let [dt_bias_i, d_i] = [dt_bias_i, d_i].map(widen);
        Self { x_bti, dt_bti, a_log_in: widen(a_log_in), b_btn, c_btn, dt_bias_i, d_i, document_ids }
    }

    /// # Panics
    /// If the tensors do not fit each other.
    fn check(&self) {
        let ([b, t, i], [channels, n]) = (self.x_bti.dims(), self.a_log_in.dims());
        assert_eq!(self.dt_bti.dims(), [b, t, i], "selective_scan: a time step for each value");
        assert_eq!(channels, i, "selective_scan: decay rates for each channel");
        for side in [&self.b_btn, &self.c_btn] {
            assert_eq!(side.dims(), [b, t, n], "selective_scan: inputs and outputs for each number of a state");
        }
        for vector in [&self.dt_bias_i, &self.d_i] {
            assert_eq!(vector.dims(), [i], "selective_scan: one number for each channel");
        }
        if let Some(ids_bt) = &self.document_ids {
            assert_eq!(ids_bt.dims(), [b, t], "selective_scan: a document for each token");
        }
    }
}

/// For each channel, with `dt = softplus(dt + dt_bias)` and the state `S` of `n` numbers that
/// begins with zeros:
///
/// ```text
/// S[t] = exp(-exp(a_log) dt[t]) S[t - 1] + dt[t] x[t] B[t]
/// y[t] = C[t] . S[t] + d x[t]
/// ```
///
/// Computed in float32 whatever the input's dtype, and rounded once.
///
/// # Shapes
/// See [`SelectiveInputs`] -> `[b, t, i]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn selective_scan(inputs: SelectiveInputs) -> Tensor<3> {
    inputs.check();
    if is_narrow_on_cpu(&inputs.x_bti) {
        let dtype = inputs.x_bti.dtype();
        return narrow(selective_scan(inputs.widened()), dtype);
    }
    flex::selective_scan(&inputs).unwrap_or_else(|| selective_scan_reference(inputs, None).0)
}

/// [`selective_scan`] of a sequence that continues from a state, `[b, i, n]` float32. Returns the
/// state after the sequence too. Without gradients.
///
/// # Panics
/// As [`selective_scan`], or if the state is of another shape.
pub fn selective_scan_from(inputs: SelectiveInputs, state_bin: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
    inputs.check();
    let ([b, _, _], [i, n]) = (inputs.x_bti.dims(), inputs.a_log_in.dims());
    if let Some(state) = &state_bin {
        assert_eq!(state.dims(), [b, i, n], "selective_scan_from: a state for each channel of each sequence");
    }
    if is_narrow_on_cpu(&inputs.x_bti) {
        let dtype = inputs.x_bti.dtype();
        let (y, state) = selective_scan_from(inputs.widened(), state_bin);
        return (narrow(y, dtype), state);
    }
    let found = flex::selective_scan_from(&inputs, state_bin.as_ref());
    found.unwrap_or_else(|| selective_scan_reference(inputs, state_bin))
}

/// [`selective_scan_from`] in plain Burn operations, with gradients, token by token.
pub fn selective_scan_reference(inputs: SelectiveInputs, state_bin: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
    let ([b, t, i], [_, n]) = (inputs.x_bti.dims(), inputs.a_log_in.dims());
    let dtype = inputs.x_bti.dtype();
    let x_bti = widen(inputs.x_bti);
    let dt_bti = softplus(widen(inputs.dt_bti) + widen(inputs.dt_bias_i).reshape([1, 1, i]), 1.0);
    let rates_1in: Tensor<3> = widen(inputs.a_log_in).exp().neg().reshape([1, i, n]);
    let (b_btn, c_btn) = (widen(inputs.b_btn), widen(inputs.c_btn));
    let dtx_bti = dt_bti.clone() * x_bti.clone();
    let mut state = state_bin.unwrap_or_else(|| Tensor::zeros([b, i, n], (&x_bti.device(), x_bti.dtype())));
    let mut outputs = Vec::with_capacity(t);
    for token in 0..t {
        let channels = |x: &Tensor<3>| x.clone().narrow(1, token, 1).reshape([b, i, 1]);
        let numbers = |x: &Tensor<3>| x.clone().narrow(1, token, 1);
        if let Some(ids_bt) = inputs.document_ids.as_ref().filter(|_| token > 0) {
            let [own, before] = [token, token - 1].map(|at| ids_bt.clone().narrow(1, at, 1));
            let begins = own.not_equal(before).reshape([b, 1, 1]).expand([b, i, n]);
            state = state.mask_fill(begins, 0.0);
        }
        let decay_bin = (channels(&dt_bti) * rates_1in.clone()).exp();
        state = state * decay_bin + channels(&dtx_bti) * numbers(&b_btn);
        outputs.push((state.clone() * numbers(&c_btn)).sum_dim(2).reshape([b, 1, i]));
    }
    let y_bti = Tensor::cat(outputs, 1) + x_bti * widen(inputs.d_i).reshape([1, 1, i]);
    (narrow(y_bti, dtype), state)
}
