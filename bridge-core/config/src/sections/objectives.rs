//! `[dpo]` and `[distillation]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::HiddenLoss;
use super::super::limits::Limits;
use super::super::rule::{excludes, idle_unless, needs};
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

section! {
    /// Knowledge distillation (ours): a frozen teacher says which tokens it expects, and the model
    /// learns that beside the text.
    pub struct DistillationConfig {
        /// The teacher: a folder of checkpoints, or weights that checkpoint.pretrained_checkpoint
        /// could name.
        @training teacher: Option<PathBuf> = None;
        /// Temperature that divides the logits of model and teacher.
        @training temperature: f64 = 1.0, Limits::between(0.01, 1000.0), idle_unless("distillation.alpha != 0.0");
        /// Weight of the divergence from the teacher; the rest is that of the cross-entropy.
        @training alpha: f64 = 0.5, Limits::FRACTION;
        /// Weight of the difference from the teacher's hidden states behind the last norm.
        @training hidden_weight: f64 = 0.0, Limits::between(0.0, 1e6),
            excludes("distillation.cache: its files have no hidden states");
        /// Comparison of hidden states.
        @training hidden_loss: HiddenLoss = HiddenLoss::Mse, idle_unless("distillation.hidden_weight");
        /// Number of the teacher's best tokens that are compared one by one; null is all.
        @training top_k: Option<usize> = None, Limits::between(1.0, 65_536.0), idle_unless("distillation.alpha != 0.0");
        /// Folder where the teacher's best tokens of each sample are kept, for later epochs and
        /// runs.
        @execution cache: Option<PathBuf> = None,
            needs("distillation.top_k: the logits of a whole vocabulary are too many to keep");
    }
}
