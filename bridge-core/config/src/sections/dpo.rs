//! `[dpo]`: names, defaults, ranges.

use super::super::limits::Limits;
use super::super::section::section;

section! {
    /// Direct preference optimization (ours): the data are pairs of answers, the reference is
    /// `checkpoint.pretrained_checkpoint`.
    pub struct DpoConfig {
        /// Weight of the difference from the reference.
        beta: f64 = 0.1, Limits::between(1e-6, 1e6);
        /// Share of pairs that are taken to be the wrong way round.
        label_smoothing: f64 = 0.0, Limits::between(0.0, 0.499);
    }
}
