//! Arguments of the forms of the scan.

use burn::tensor::{Int, Tensor};

use crate::precision::widen;

/// Sizes of a scan, and the range of its time steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScanOptions {
    /// Channels of a head.
    pub head_size: usize,
    /// Groups of heads that share inputs and outputs of the state.
    pub groups: usize,
    /// Numbers that the state has for each channel.
    pub state_size: usize,
    /// Tokens that are worked on at once: the result is the same but for rounding.
    pub chunk_size: usize,
    /// Least and largest time step.
    pub time_steps: [f32; 2],
}

/// The tensors of a scan; see [`ssd_scan`](super::ssd_scan).
#[derive(Clone, Debug)]
pub struct ScanInputs {
    /// Values, inputs and outputs of the state, side by side: `[b, t, h p + 2 g n]`.
    pub xbc_btf: Tensor<3>,
    /// Time steps before bias and softplus, `[b, t, h]`.
    pub dt_bth: Tensor<3>,
    /// Logarithm of the decay rate, `[h]`.
    pub a_log_h: Tensor<1>,
    /// Bias of the time steps, `[h]`.
    pub dt_bias_h: Tensor<1>,
    /// Factor on the value that is added to the output, `[h]`.
    pub d_h: Tensor<1>,
    /// Document of each token, `[b, t]`: the state begins with zeros in each.
    pub document_ids: Option<Tensor<2, Int>>,
}

impl ScanInputs {
    /// The same tensors in float32.
    pub(super) fn widened(self) -> Self {
        let Self { xbc_btf, dt_bth, a_log_h, dt_bias_h, d_h, document_ids } = self;
        let [a_log_h, dt_bias_h, d_h] = [a_log_h, dt_bias_h, d_h].map(widen);
        Self { xbc_btf: widen(xbc_btf), dt_bth: widen(dt_bth), a_log_h, dt_bias_h, d_h, document_ids }
    }

    /// # Panics
    /// If the tensors do not fit each other.
    pub(super) fn check(&self, options: &ScanOptions) {
        let ([b, t, f], [batch, tokens, h]) = (self.xbc_btf.dims(), self.dt_bth.dims());
        let ScanOptions { head_size: p, groups: g, state_size: n, chunk_size, .. } = *options;
        assert!(b == batch && t == tokens, "ssd_scan: values of {b} x {t} tokens, steps of {batch} x {tokens}");
        assert!(g > 0 && h.is_multiple_of(g) && chunk_size > 0, "ssd_scan: {h} heads in {g} groups");
        assert_eq!(f, h * p + 2 * g * n, "ssd_scan: {h} heads of {p} and {g} groups with states of {n}");
        if let Some(ids_bt) = &self.document_ids {
            assert_eq!(ids_bt.dims(), [b, t], "ssd_scan: a document for each token");
        }
        for vector in [&self.a_log_h, &self.dt_bias_h, &self.d_h] {
            assert_eq!(vector.dims(), [h], "ssd_scan: one number for each head");
        }
    }
}
