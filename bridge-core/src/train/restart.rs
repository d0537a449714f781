//! What a run that is started again needs to be told: to go on from what it saved itself, whatever it began from.

use crate::config::CheckpointConfig;

/// Overrides with which a run that has saved goes on where it was: it may have begun from another run's checkpoint, or without some of the state of one.
pub fn overrides_of_restart(settings: &CheckpointConfig) -> Vec<String> {
    let began_elsewhere = settings.load.is_some() && settings.load != settings.save;
    let overrides = [
        (began_elsewhere || settings.ckpt_step.is_some(), "checkpoint.load=null"),
        (settings.ckpt_step.is_some(), "checkpoint.ckpt_step=null"),
        (settings.finetune, "checkpoint.finetune=false"),
        (settings.exit_on_missing_checkpoint, "checkpoint.exit_on_missing_checkpoint=false"),
        (!settings.load_optim && settings.save_optim, "checkpoint.load_optim=true"),
        (!settings.load_rng && settings.save_rng, "checkpoint.load_rng=true"),
    ];
    overrides.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, text)| text.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_begin_again_is_overridden() {
        let save = Some("b".into());
        let plain = CheckpointConfig { save: save.clone(), ..CheckpointConfig::default() };
        assert!(overrides_of_restart(&plain).is_empty());
        let same = CheckpointConfig { load: save.clone(), ..plain.clone() };
        assert!(overrides_of_restart(&same).is_empty());
        let tuned = CheckpointConfig { load: Some("a".into()), finetune: true, load_rng: false, ..plain };
        let expected = ["checkpoint.load=null", "checkpoint.finetune=false", "checkpoint.load_rng=true"];
        assert_eq!(overrides_of_restart(&tuned), expected);
    }
}
