//! The loss curve as a picture: training (raw and smoothed) and validation, as `loss.svg` and
//! `loss.png`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::metrics_jsonl::each_record;
use crate::logging::chart::{CAN_DRAW, PlotError};
use crate::logging::losses::CollectedLosses;
use crate::logging::record::{Record, RunEnd};
use crate::logging::sink::{Opened, Sink, SinkContext, SinkError};

/// Draws the values of `metrics.jsonl`, now and then while the run trains, and at its end.
struct Pictures {
    title: String,
    folder: PathBuf,
    /// When the next picture may be drawn.
    due: Instant,
}

/// The least time between two pictures of a run that trains.
const PAUSE: Duration = Duration::from_secs(10);
/// Largest share of a run's time that drawing may take, as a divisor.
const SHARE: u32 = 100;

pub(super) fn open(context: &SinkContext) -> Opened {
    let (name, logger) = (&context.config.name, &context.config.logger);
    if !(logger.plot && logger.metrics_jsonl && CAN_DRAW) {
        return Ok(None);
    }
    Ok(Some(Box::new(Pictures { title: name.clone(), folder: logger.log_dir.clone(), due: Instant::now() + PAUSE })))
}

impl Pictures {
    fn draw(&self) -> Result<(), SinkError> {
        let mut losses = CollectedLosses::default();
        each_record(&self.folder.join("metrics.jsonl"), |record| {
            losses.add(&record);
            Ok(())
        })?;
        Ok(losses.finish().chart(&self.title).write(&self.folder.join("loss"))?)
    }
}

/// Pause after a picture that took `cost`.
fn pause_after(cost: Duration) -> Duration {
    PAUSE.max(cost * SHARE)
}

impl Sink for Pictures {
    fn name(&self) -> &str {
        "the plot of the loss"
    }

    fn on_record(&mut self, _record: &Record) -> Result<(), SinkError> {
        let begun = Instant::now();
        if begun < self.due {
            return Ok(());
        }
        let drawn = self.draw();
        self.due = Instant::now() + pause_after(begun.elapsed());
        match drawn {
            // The end of the run says that there was nothing to draw, if there still is not.
            Err(error) if error.downcast_ref().is_some_and(|e| matches!(e, PlotError::NoPoints { .. })) => Ok(()),
            drawn => drawn,
        }
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        if let Err(error) = self.draw() {
            end.warnings.push(format!("no plot of the loss: {error}"));
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "plots"))]
mod tests {
    use super::super::metrics_jsonl::MetricsFile;
    use super::super::metrics_jsonl::tests::fields;
    use super::*;
    use crate::logging::record::RecordKind;

    #[test]
    fn pictures_are_drawn_while_a_run_trains_and_cost_a_hundredth_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = MetricsFile::open(&folder.path().join("metrics.jsonl"), "a", 0).unwrap();
        let mut pictures = Pictures { title: "t".into(), folder: folder.path().to_owned(), due: Instant::now() };
        let record = Record {
            kind: RecordKind::Train,
            iteration: 1,
            consumed_samples: 1,
            ends_interval: false,
            figures: Vec::new(),
        };
        pictures.on_record(&record).unwrap();
        assert!(!folder.path().join("loss.svg").exists(), "there is nothing to draw yet, and that is no error");
        writer.write(&fields("train", 1, [("loss", 5.5_f32.into())])).unwrap();
        pictures.on_record(&record).unwrap();
        assert!(!folder.path().join("loss.svg").exists(), "it is not due yet");
        let before = Instant::now();
        pictures.due = before;
        pictures.on_record(&record).unwrap();
        assert!(folder.path().join("loss.svg").exists() && folder.path().join("loss.png").exists());
        assert!(pictures.due >= before + Duration::from_secs(10));
        assert_eq!(pause_after(Duration::from_secs(3)), Duration::from_secs(300));
    }
}
