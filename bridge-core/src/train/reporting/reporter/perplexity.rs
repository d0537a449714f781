//! Losses that have a perplexity. How it is written down does not belong here.

use crate::train::engine::forward_step::LM_LOSS;
use crate::train::objectives::distillation::CE_LOSS;

/// True if a loss is the mean cross-entropy of tokens, whose exponential is a perplexity. Losses of
/// a program's own, of preferences and of differences from a teacher are not, nor are rewards;
/// `objective` names the loss that is minimised.
pub(super) fn has_perplexity(objective: &str, name: &str) -> bool {
    objective == LM_LOSS || name == CE_LOSS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_of_tokens_have_a_perplexity() {
        assert!(has_perplexity(LM_LOSS, LM_LOSS) && has_perplexity(LM_LOSS, "lm loss of a set"));
        assert!(has_perplexity("distillation loss", CE_LOSS) && !has_perplexity("distillation loss", "kd loss"));
        assert!(!has_perplexity("dpo loss", "dpo loss") && !has_perplexity("dpo loss", "rewards/chosen"));
        assert!(!has_perplexity("custom loss", "custom loss"));
    }
}
