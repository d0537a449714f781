//! Arguments of the forms of the gated delta rule.

use burn::tensor::{Int, Tensor};

use crate::precision::widen;

/// Factors and sizes of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaOptions {
    /// Factor on the queries.
    pub scale: f32,
    /// If set, queries and keys are divided by `sqrt(sum of squares + epsilon)` of their head.
    pub norm_epsilon: Option<f32>,
    /// Tokens that are worked on at once: the result is the same but for rounding.
    pub chunk_size: usize,
}

impl DeltaOptions {
    /// Queries and keys of unit length and `key_size` channels, and chunks of 64 tokens.
    pub fn new(key_size: usize) -> Self {
        Self { scale: (key_size as f32).sqrt().recip(), norm_epsilon: Some(1e-6), chunk_size: 64 }
    }
}

/// The tensors of the gated delta rule; see [`gated_delta_rule`](super::gated_delta_rule).
#[derive(Clone, Debug)]
pub struct DeltaInputs {
    /// Queries, `[b, t, g, k]`.
    pub q_btgk: Tensor<4>,
    /// Keys, `[b, t, g, k]`.
    pub k_btgk: Tensor<4>,
    /// Values, `[b, t, h, p]`.
    pub v_bthp: Tensor<4>,
    /// Logarithms of the decays, at most 0, `[b, t, h, e]`. `e` is 1 (a decay for each head) or `k`
    /// (a decay for each key channel, as in Kimi delta attention).
    pub decay_bthe: Tensor<4>,
    /// Step sizes, `[b, t, h]`.
    pub beta_bth: Tensor<3>,
    /// Document of each token, `[b, t]`: the state begins with zeros in each.
    pub document_ids: Option<Tensor<2, Int>>,
}

/// Sizes of the tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Sequences.
    pub b: usize,
    /// Tokens of a sequence.
    pub t: usize,
    /// Key heads.
    pub g: usize,
    /// Value heads.
    pub h: usize,
    /// Channels of a key.
    pub k: usize,
    /// Channels of a value.
    pub p: usize,
    /// Decays of a head.
    pub e: usize,
}

impl DeltaInputs {
    /// The same tensors in float32.
    pub(super) fn widened(self) -> Self {
        let Self { q_btgk, k_btgk, v_bthp, decay_bthe, beta_bth, document_ids } = self;
        let [q_btgk, k_btgk, v_bthp, decay_bthe] = [q_btgk, k_btgk, v_bthp, decay_bthe].map(widen);
        Self { q_btgk, k_btgk, v_bthp, decay_bthe, beta_bth: widen(beta_bth), document_ids }
    }

    /// # Panics
    /// If the tensors do not fit each other.
    pub(super) fn check(&self, options: &DeltaOptions) -> Sizes {
        let ([b, t, g, k], [_, _, h, p]) = (self.q_btgk.dims(), self.v_bthp.dims());
        let [_, _, _, e] = self.decay_bthe.dims();
        assert_eq!(self.k_btgk.dims(), [b, t, g, k], "gated_delta_rule: a key for each query");
        assert_eq!(self.v_bthp.dims(), [b, t, h, p], "gated_delta_rule: values for each key");
        assert!(g > 0 && h.is_multiple_of(g), "gated_delta_rule: {h} value heads with {g} key heads");
        assert_eq!(self.decay_bthe.dims(), [b, t, h, e], "gated_delta_rule: a decay for each value head");
        assert!(e == 1 || e == k, "gated_delta_rule: {e} decays of a head with keys of {k} channels");
        assert_eq!(self.beta_bth.dims(), [b, t, h], "gated_delta_rule: a step size for each value head");
        assert!(options.chunk_size > 0, "gated_delta_rule: chunks without tokens");
        if let Some(ids_bt) = &self.document_ids {
            assert_eq!(ids_bt.dims(), [b, t], "gated_delta_rule: a document for each token");
        }
        Sizes { b, t, g, h, k, p, e }
    }
}
