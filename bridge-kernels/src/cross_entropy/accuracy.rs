//! Tokens that a model gets right, counted where the loss is computed.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of tokens that count in the loss, and of those among them whose label has the largest
/// logit. Only the kernel of the CPU counts: it finds the largest logit anyway, and knows it when
/// it has the label's.
#[derive(Debug, Default)]
pub struct TokenAccuracy {
    right: AtomicU64,
    counted: AtomicU64,
}

impl TokenAccuracy {
    /// Adds a token.
    pub(crate) fn add(&self, is_right: bool) {
        self.counted.fetch_add(1, Ordering::Relaxed);
        self.right.fetch_add(u64::from(is_right), Ordering::Relaxed);
    }

    /// Right tokens and all of them; `None` if nothing was counted.
    pub fn counts(&self) -> Option<(u64, u64)> {
        let counted = self.counted.load(Ordering::Relaxed);
        (counted > 0).then(|| (self.right.load(Ordering::Relaxed), counted))
    }
}
