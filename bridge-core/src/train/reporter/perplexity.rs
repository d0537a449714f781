//! Which losses have a perplexity. How it is written down does not belong here.

use crate::config::RunConfig;
use crate::train::distillation::CE_LOSS;
use crate::train::forward_step::LM_LOSS;

/// Whether a loss is the mean cross-entropy of tokens, whose exponential is a perplexity. That of preferences is none, nor are rewards and
/// differences from a teacher.
pub(super) fn has_perplexity(config: &RunConfig, name: &str) -> bool {
    config.dpo.is_none() && (config.distillation.is_none() || matches!(name, LM_LOSS | CE_LOSS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, Kinds, World, load_text};

    #[test]
    fn only_losses_of_tokens_have_a_perplexity() {
        const TINY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/tiny.toml"));
        let has = |overrides: &[&str], name: &str| {
            let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
            let config =
                load_text((TINY, Format::Toml), &overrides, &Kinds::builtin(), &World::SINGLE).expect("accepted");
            has_perplexity(&config, name)
        };
        assert!(has(&[], LM_LOSS) && has(&[], "a loss of one's own"));
        let dpo = [
            "dpo.beta=0.2",
            "dataset.kind=finetuning",
            "dataset.dataset_root=x",
            "dataset.data_sharding=true",
            "checkpoint.pretrained_checkpoint=y",
        ];
        assert!(!has(&dpo, LM_LOSS) && !has(&dpo, "rewards/chosen"));
        let teacher = ["distillation.teacher=x"];
        assert!(has(&teacher, LM_LOSS) && has(&teacher, CE_LOSS) && !has(&teacher, "kd loss"));
    }
}
