//! Options of an attention layer.

use burn::tensor::{Int, Tensor};

use super::choice::KeyChoice;
use super::max_logit::MaxLogitProbe;
use crate::dropout::DropoutKey;

/// Options of an attention layer.
#[derive(Clone, Debug)]
pub struct AttentionOptions {
    /// Factor on the scores; usually `1 / sqrt(d)`.
    pub scale: f64,
    /// Sliding window: at most this many keys to the left of a query are visible to it (its own key
    /// not counted). `None` is unlimited.
    pub window: Option<usize>,
    /// Soft cap `cap * tanh(score / cap)` on the scores (Gemma 2, arXiv:2408.00118).
    pub softcap: Option<f64>,
    /// Dropout on the attention probabilities.
    pub dropout: Option<(f64, DropoutKey)>,
    /// Document of each token, `[b, t]`: attention stays inside a document. Needs as many keys as
    /// queries.
    pub document_ids: Option<Tensor<2, Int>>,
    /// Keys of each query, `[b, n, t, s]` with `n` 1 or `g`: in place of the causal mask, the
    /// window and the documents. A query without keys has an output of zeros on CPUs.
    pub choice: Option<KeyChoice>,
    /// Attention sinks, `[h]`: the softmax of every query of a head includes one more score, the
    /// head's sink, which has no value (Xiao et al., arXiv:2309.17453, section 3.3). Sinks have
    /// gradients.
    pub sinks_h: Option<Tensor<1>>,
    /// Destination of the max logit, if it is recorded. Sinks do not count.
    pub probe: Option<MaxLogitProbe>,
}

impl AttentionOptions {
    /// Plain causal attention with the usual scale for head size `head_size`.
    pub fn causal(head_size: usize) -> Self {
        Self {
            scale: 1.0 / (head_size as f64).sqrt(),
            window: None,
            softcap: None,
            dropout: None,
            document_ids: None,
            choice: None,
            sinks_h: None,
            probe: None,
        }
    }

    /// Fails on options that do not fit a batch of `b` sequences of `t` queries of `h` heads, and
    /// `s` keys of `g` heads.
    pub(crate) fn check(&self, [b, t, s]: [usize; 3], [h, g]: [usize; 2]) {
        if let Some(choice) = &self.choice {
            let [_, n, ..] = choice.shape();
            let fits = choice.shape() == [b, n, t, s] && (n == 1 || n == g);
            assert!(fits, "attention: {:?} do not choose of [{b}, 1 or {g}, {t}, {s}]", choice.shape());
        }
        if let Some(sinks_h) = &self.sinks_h {
            assert_eq!(sinks_h.dims(), [h], "attention: one sink a query head is needed");
        }
        if let Some(probe) = &self.probe {
            assert!(probe.first_query < t, "attention: of {t} queries none is watched from {} on", probe.first_query);
        }
        if let Some((rate, _)) = self.dropout {
            assert!((0.0..1.0).contains(&rate), "attention: a dropout rate lies in [0, 1), got {rate}");
        }
        if let Some(ids_bt) = &self.document_ids {
            assert!(s == t, "attention: document boundaries need as many keys as queries, got {s} and {t}");
            assert_eq!(ids_bt.dims(), [b, t], "attention: one document id a token is needed");
        }
    }
}
