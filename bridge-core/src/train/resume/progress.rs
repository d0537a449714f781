//! Progress over the starts of a run, and the overrides of a restarted run.

use crate::config::CheckpointConfig;
use crate::train::resume::checkpointing::newest_save;

/// Starts in a row that may come to no newer save.
const FRUITLESS: u32 = 3;

/// Progress over the starts of a run, by their saves. The run knows where saves are read from.
#[derive(Clone, Debug)]
pub struct Progress {
    settings: CheckpointConfig,
    /// The newest save before the first start.
    begun: Option<u64>,
    /// The newest save now.
    newest: Option<u64>,
    /// Starts in a row, until now, that came to no newer save.
    fruitless: u32,
}

impl Progress {
    /// Progress of a run before its first start. `settings` are those of its recipe, without the
    /// [overrides](Self::overrides) of later starts.
    #[must_use]
    pub fn new(settings: CheckpointConfig) -> Self {
        let newest = newest_save(&settings);
        Self { settings, begun: newest, newest, fruitless: 0 }
    }

    /// Progress after one more start has failed.
    #[must_use]
    pub fn after_a_start(&self) -> Self {
        let newest = newest_save(&self.settings);
        let fruitless = if newest > self.newest { 0 } else { self.fruitless + 1 };
        Self { newest, fruitless, ..self.clone() }
    }

    /// Overrides with which the next start goes on where the run was: a run that has saved may have
    /// begun from another run's checkpoint, or without some of the state of one.
    #[must_use]
    pub fn overrides(&self) -> Vec<String> {
        if self.newest > self.begun { overrides_of_restart(&self.settings) } else { Vec::new() }
    }

    /// Place from which the next start resumes, in words.
    #[must_use]
    pub fn place(&self) -> String {
        self.newest.map_or_else(|| "the beginning".to_owned(), |step| format!("iteration {step}"))
    }

    /// Starts in a row, until now, that came to no newer save.
    #[must_use]
    pub fn fruitless(&self) -> u32 {
        self.fruitless
    }

    /// Checks that another start may make progress.
    ///
    /// # Errors
    /// If the last starts came no further than those before; the error text has the reason.
    pub fn check(&self) -> Result<(), String> {
        if self.fruitless < FRUITLESS {
            return Ok(());
        }
        Err(format!("{FRUITLESS} starts in a row came to no newer save"))
    }
}

fn overrides_of_restart(settings: &CheckpointConfig) -> Vec<String> {
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

    #[test]
    fn every_start_after_a_save_is_told_to_go_on_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = CheckpointConfig {
            save: Some(folder.path().to_owned()),
            load: Some("another".into()),
            ..CheckpointConfig::default()
        };
        let begun = Progress::new(settings);
        let failed = begun.after_a_start();
        assert_eq!((failed.overrides(), failed.place().as_str(), failed.fruitless()), (Vec::new(), "the beginning", 1));
        std::fs::create_dir(folder.path().join("iter_0000004")).unwrap();
        let saved = failed.after_a_start();
        assert_eq!((saved.place().as_str(), saved.fruitless()), ("iteration 4", 0));
        let failed = saved.after_a_start();
        assert_eq!(saved.overrides(), ["checkpoint.load=null"]);
        assert_eq!((failed.overrides(), failed.fruitless()), (saved.overrides(), 1));
        assert!(failed.check().is_ok() && failed.after_a_start().after_a_start().check().is_err());
    }
}
