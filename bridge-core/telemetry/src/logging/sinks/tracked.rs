//! Content that all trackers share: figures with their names, and files at the end; and the
//! creation of their files.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::logging::MetricValue;
use crate::logging::record::{Figure, Record, RecordKind, SaveRecord, SaveStage};
use crate::logging::sink::SinkError;
use bridge_config::{RunConfig, TokenizerType};

/// Pause before another attempt to make a file.
const PAUSE: Duration = Duration::from_secs(10);

/// A file that is made when it is needed, and tried again now and then where that fails: the file,
/// or why it could not be made and when it is tried again.
pub(super) struct Lazily<T>(Result<T, Option<(String, Instant)>>);

impl<T> Default for Lazily<T> {
    fn default() -> Self {
        Self(Err(None))
    }
}

impl<T> Lazily<T> {
    /// Returns the value that `make` creates in the folder `place`, or why it cannot be made.
    pub fn get(&mut self, place: &Path, make: impl FnOnce() -> io::Result<T>) -> Result<&mut T, SinkError> {
        let is_due =
            |trouble: &Option<(String, Instant)>| trouble.as_ref().is_none_or(|(_, due)| Instant::now() >= *due);
        if self.0.as_ref().is_err_and(is_due) {
            self.0 = make().map_err(|error| Some((format!("{}: {error}", place.display()), Instant::now() + PAUSE)));
        }
        self.0.as_mut().map_err(|trouble| trouble.as_ref().map(|(why, _)| why.clone()).unwrap_or_default().into())
    }
}

/// Milliseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Name and value that a tracker gets about a checkpoint in the folder `saved`; `None` for a save
/// that only begins.
pub(super) fn last_checkpoint(saved: Option<&Path>, save: &SaveRecord) -> Option<(&'static str, String)> {
    let folder = saved.filter(|_| save.stage != SaveStage::Begun)?;
    Some(("last_checkpoint", format!("{} (iteration {})", folder.display(), save.iteration)))
}

/// Figures with the names that they have in TensorBoard, where they are due: each `interval` steps.
pub(super) fn values(record: &Record, interval: u64) -> Vec<(String, MetricValue)> {
    let value = |figure: &Figure| {
        let name = figure.board.clone()?;
        let in_file = figure.file.clone().filter(|value| value.number().is_some());
        // Others are float32, as in TensorBoard.
        let value = in_file.or_else(|| match &figure.value {
            MetricValue::F64(value) => Some(MetricValue::F32(*value as f32)),
            value => value.number().map(|_| value.clone()),
        })?;
        Some((name, value))
    };
    let mut values: Vec<_> = record.due(interval).filter_map(value).collect();
    if record.kind == RecordKind::Train && record.iteration.is_multiple_of(interval) {
        values.push(("samples vs steps".into(), record.consumed_samples.into()));
    }
    values
}

/// Upstream's names of evaluations at MLflow and Comet: `val/lm loss`, `val/lm loss ppl`.
pub(super) fn of_validation(kind: RecordKind, tag: &str) -> String {
    let RecordKind::Evaluation(split, _) = kind else { return tag.to_owned() };
    let part = if kind.name() == "valid" { "val" } else { kind.name() };
    format!("{part}/{}", tag.replacen(&format!(" {}", split.name()), "", 1))
}

/// The loss curve and the tokenizer's file, also of one that the run trains, which are sent at the
/// end where they are there: names there and here.
pub(super) fn files(config: &RunConfig) -> Vec<(String, PathBuf)> {
    let curves = ["loss.png", "loss.svg"].map(|name| (name.to_owned(), config.logger.log_dir.join(name)));
    let (section, pretrained) = (&config.tokenizer, &config.checkpoint.pretrained_checkpoint);
    // A run that begins with another model keeps the tokenizer of that.
    let is_trained = section.tokenizer_type == Some(TokenizerType::ByteLevelBpe) && pretrained.is_none();
    let given = section.tokenizer_model.clone().map(|path| match path.is_dir() {
        true => path.join("tokenizer.json"),
        false => path,
    });
    let tokenizer = given.or_else(|| is_trained.then(|| config.text_folder().join("tokenizer.json")));
    let name = |path: &PathBuf| path.file_name().map(|name| format!("tokenizer/{}", name.to_string_lossy()));
    let tokenizer = tokenizer.and_then(|path| Some((name(&path)?, path)));
    curves.into_iter().chain(tokenizer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::record::{Occasion, Split};
    use bridge_config::{Format, Kinds, World, load_text};

    #[test]
    fn figures_have_the_values_of_the_metrics_file() {
        let figures = vec![
            Figure::new("losses", "", "", 1.0 / 3.0).board("lm loss"),
            Figure::new("grad_norm", "", "", 0.1).file_as(0.1_f32).board("grad-norm"),
            Figure::new("learning_rate", "", "", 9e-4).file().board("learning-rate"),
            Figure::new("mean", "", "", 7_u64).of_interval().board("mean"),
            Figure::new("hidden", "", "", 1.0).file(),
            Figure::new("text", "", "", "no number").board("text"),
        ];
        let record = |iteration| Record {
            kind: RecordKind::Train,
            iteration,
            consumed_samples: 24,
            ends_interval: true,
            figures: figures.clone(),
        };
        let of = |name: &str, value: MetricValue| (name.to_owned(), value);
        let due = [
            of("lm loss", (1.0_f32 / 3.0).into()),
            of("grad-norm", 0.1_f32.into()),
            of("learning-rate", 9e-4.into()),
            of("mean", 7_u64.into()),
            of("samples vs steps", 24_u64.into()),
        ];
        assert_eq!(values(&record(4), 2), due);
        assert_eq!(values(&record(3), 2), [due[3].clone()], "what is of the interval shows when it is there");
    }

    #[test]
    fn trackers_get_the_tokenizer_that_a_run_trains() {
        const TINY: &str =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/tests/fixtures/config/tiny.toml"));
        let files = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
            let config =
                load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World::SINGLE).expect("accepted");
            files(&config)
        };
        let trained = [
            "tokenizer.tokenizer_type=ByteLevelBPE",
            "tokenizer.vocab_size=null",
            "tokenizer.bpe_vocab_size=300",
            "dataset.kind=gpt",
            "dataset.source=book.txt",
            "dataset.source_cache_dir=made",
            "dataset.split=9,1,0",
        ];
        let found = files(&trained);
        assert_eq!(found.last(), Some(&("tokenizer/tokenizer.json".into(), "made/tokenizer.json".into())), "{found:?}");
        assert_eq!(files(&[]).len(), 2, "the Null tokenizer has no file");
    }

    #[test]
    fn evaluations_have_upstreams_names() {
        let valid = RecordKind::Evaluation(Split::Valid, Occasion::DuringTraining);
        assert_eq!(of_validation(valid, "lm loss validation"), "val/lm loss");
        assert_eq!(of_validation(valid, "lm loss validation ppl"), "val/lm loss ppl");
        let test = RecordKind::Evaluation(Split::Test, Occasion::AfterTraining);
        assert_eq!(of_validation(test, "lm loss test"), "test/lm loss");
        assert_eq!(of_validation(RecordKind::Train, "lm loss"), "lm loss");
    }
}
