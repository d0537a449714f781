//! TensorBoard events: every figure that has a tag, every `logger.tensorboard_log_interval` steps.

use crate::logging::record::{Record, RunEnd, SaveRecord};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use crate::logging::tensorboard::{EventWriter, ResumePoint, SAMPLES_SUFFIX};

const NAME: &str = "TensorBoard events";

struct TensorBoard {
    writer: EventWriter,
    /// Steps between points.
    interval: u64,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let logger = &context.config.logger;
    let folder = logger.tensorboard_dir.clone().unwrap_or_else(|| logger.log_dir.join("tensorboard"));
    let resume =
        ResumePoint { iteration: context.iteration, consumed_samples: context.consumed_samples, again: context.again };
    let writer = EventWriter::open(&folder, context.run, resume, logger.tensorboard_queue_size);
    let writer = writer.map_err(|error| OpenError::file(NAME, error))?;
    Ok(Some(Box::new(TensorBoard { writer, interval: logger.tensorboard_log_interval as u64 })))
}

impl Sink for TensorBoard {
    fn name(&self) -> &str {
        NAME
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        for figure in record.due(self.interval) {
            let (Some(tag), Some(value)) = (&figure.board, figure.value.number()) else { continue };
            self.writer.scalar(tag, value, record.iteration)?;
            if figure.has_twin {
                let name = format!("{tag}{SAMPLES_SUFFIX}");
                self.writer.scalar(&name, value, record.consumed_samples)?;
            }
        }
        Ok(())
    }

    fn on_save(&mut self, _save: &SaveRecord) -> Result<(), SinkError> {
        // A killed run resumes from here, and does not write the points before again.
        Ok(self.writer.flush()?)
    }

    fn on_temporary_save(&mut self) -> Result<(), SinkError> {
        Ok(self.writer.flush()?)
    }

    fn on_run_end(&mut self, _end: &mut RunEnd) -> Result<(), SinkError> {
        Ok(self.writer.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::record::{Ending, Figure, RecordKind, SaveStage};
    use crate::logging::tensorboard::{EventKind, read_events};

    fn record(iteration: u64, figures: Vec<Figure>) -> Record {
        let consumed_samples = 8 * iteration;
        Record { kind: RecordKind::Train, iteration, consumed_samples, ends_interval: true, figures }
    }

    #[test]
    fn figures_with_tags_become_points_when_they_are_due() {
        let folder = tempfile::tempdir().unwrap();
        let writer = EventWriter::open(folder.path(), "a", ResumePoint::default(), 10).unwrap();
        let path = writer.path.clone();
        let mut sink = TensorBoard { writer, interval: 2 };
        for iteration in 1..=2 {
            let figures = vec![
                Figure::new("grad_norm", "", "Norm", 1.5).board("grad-norm"),
                Figure::new("skipped_samples", "samples", "Skipped", 3_u64).board_of_steps("skipped"),
                Figure::new("seconds", "seconds", "Time", 1.0).file(),
                Figure::new("iteration_time", "seconds", "Time", 1.0).of_interval().board("time"),
            ];
            sink.on_record(&record(iteration, figures)).unwrap();
        }
        sink.on_run_end(&mut RunEnd { ending: Ending::Finished, iteration: 2, missing: None, warnings: Vec::new() })
            .unwrap();
        let points: Vec<(String, i64)> = read_events(&path)
            .unwrap()
            .into_iter()
            .filter_map(|event| match event.kind {
                EventKind::Scalar { tag, .. } => Some((tag, event.step)),
                _ => None,
            })
            .collect();
        let expected = [
            ("time", 1),
            ("time vs samples", 8),
            ("grad-norm", 2),
            ("grad-norm vs samples", 16),
            ("skipped", 2),
            ("time", 2),
            ("time vs samples", 16),
        ];
        assert_eq!(points, expected.map(|(tag, step)| (tag.to_owned(), step)));
    }

    #[test]
    fn what_a_save_is_of_is_on_disk_before_a_run_can_be_killed() {
        let folder = tempfile::tempdir().unwrap();
        let writer = EventWriter::open(folder.path(), "a", ResumePoint::default(), 1000).unwrap();
        let path = writer.path.clone();
        let mut sink = TensorBoard { writer, interval: 1 };
        let last = || read_events(&path).unwrap().last().unwrap().step;
        let save = SaveRecord { iteration: 3, stage: SaveStage::Begun, flops: 0.0, tokens: 0 };
        for iteration in 1..=5 {
            let figure = Figure::new("grad_norm", "", "Norm", 1.5).board_of_steps("grad-norm");
            sink.on_record(&record(iteration, vec![figure])).unwrap();
            match iteration {
                3 => sink.on_save(&save).unwrap(),
                4 => sink.on_temporary_save().unwrap(),
                _ => {}
            }
            assert_eq!(last(), [0, 0, 3, 4, 4][iteration as usize - 1], "after iteration {iteration}");
        }
    }
}
