//! Options of the loss.

/// Options of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropyOptions {
    /// Soft cap `cap * tanh(logit / cap)` on the logits.
    pub softcap: Option<f64>,
    /// Weight of the z-loss, `weight * log(sum exp logits)^2` a token (PaLM, arXiv:2204.02311).
    pub z_loss: Option<f64>,
}
