//! Preparing a run's text for all of its ranks: one rank does the work, which `text` defines; other
//! ranks wait for it and then read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bridge_data::tokenizer::HuggingFaceTokenizer;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::train::data::data_errors::name_setting;
use crate::train::data::error::InputError;
use crate::train::data::text::{PreparedText, TextWatch, is_read_by_one, prepare_text, prepared_text};
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::device::LocalRank;
use crate::train::ranks::threads::in_own_pool;
use crate::train::reporting::reporter::Reporter;
use crate::train::run::error::TrainError;
use crate::train::stop::stop_requests::StopRequests;

/// Activity of all ranks here, for messages.
const DOING: &str = "preparing text";

/// Longest time between two polls of other ranks and of stop requests.
const INTERVAL: Duration = Duration::from_millis(100);

/// Inputs of the preparation of text for a run.
pub(in crate::train) struct Preparation<'a> {
    pub config: &'a Arc<RunConfig>,
    pub groups: &'a ProcessGroups,
    /// This rank among those of its machine.
    pub local_rank: LocalRank,
    /// Tokenizer of the checkpoint that the run resumes from.
    pub base: Option<&'a Arc<HuggingFaceTokenizer>>,
    pub stop_requests: &'a StopRequests,
    pub reporter: &'a Reporter,
}

/// Makes the tokenizer and packs the text: on rank 0, then on one rank of each other machine, which
/// may have other files, and which finds its work done if it has the same. All other ranks load the
/// prepared text. All ranks call this together; they may have to wait for hours, so they keep in
/// touch all the time. Fails on text that cannot be prepared; [`TrainError::Stopped`] on every rank
/// as soon as a signal or the cancel handle asks one of them to stop.
pub(in crate::train) fn prepare_text_of_ranks(preparation: &Preparation) -> Result<PreparedText, TrainError> {
    let Preparation { config, groups, local_rank, base, .. } = *preparation;
    let named = |error| name_setting(config, error);
    let is_first = agreement::is_rank_zero(groups);
    let mut text = None;
    if config.dataset.source.is_some() {
        text = preparation.in_turn(is_first)?;
        if local_rank.size < groups.world().size() && !is_read_by_one(config) {
            text = text.or(preparation.in_turn(!is_first && local_rank.rank == 0)?);
        }
    }
    Ok(agreement::agree(groups, DOING, text.map_or_else(|| prepared_text(config, base).map_err(named), Ok))?)
}

impl Preparation<'_> {
    /// Prepares the text on the ranks whose turn it is, in a thread beside the one that keeps in
    /// touch with the others.
    fn in_turn(&self, is_mine: bool) -> Result<Option<PreparedText>, TrainError> {
        let is_stopping = AtomicBool::new(false);
        let threads = rayon::current_num_threads();
        let progress = self.reporter.progress();
        let (notes, to_print) = channel();
        let work = || {
            in_own_pool(Some(threads), || {
                // The receiver outlives this thread.
                let note = |text: &str| drop(notes.send(text.to_owned()));
                let cancelled = || is_stopping.load(Ordering::Relaxed);
                let watch = TextWatch { progress: &progress, note: &note, cancelled: &cancelled };
                prepare_text(self.config, self.base, &watch)
            })
            .map_err(InputError::from)
        };
        let (asked, done) = std::thread::scope(|scope| {
            let worker = is_mine.then(|| scope.spawn(work));
            let is_working = || worker.as_ref().is_some_and(|worker| !worker.is_finished());
            let asked = self.keep_in_touch(&is_working, &is_stopping, &to_print);
            if asked.is_err() {
                is_stopping.store(true, Ordering::Relaxed);
            }
            let done = worker.map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (asked, done)
        });
        to_print.try_iter().for_each(|text| self.reporter.note(&text));
        if let Some(reason) = asked? {
            return Err(TrainError::Stopped(reason));
        }
        let done = done.map(|done| done.flatten().map_err(|error| name_setting(self.config, error))).transpose();
        Ok(agreement::agree(self.groups, DOING, done)?)
    }

    /// Waits until no rank works any more. If a stop is requested on any rank, this stops the work
    /// and returns the reason.
    fn keep_in_touch(
        &self,
        is_working: &dyn Fn() -> bool,
        is_stopping: &AtomicBool,
        to_print: &Receiver<String>,
    ) -> Result<Option<ExitReason>, TrainError> {
        let mut asked = None;
        // Prepared text is found at once, so the first pause is short.
        let mut pause = Duration::from_millis(1);
        loop {
            let works = is_working();
            if works {
                std::thread::sleep(pause);
                pause = (2 * pause).min(INTERVAL);
            }
            let (reason, num_working) = self.stop_requests.poll_signals(self.groups, f64::from(u8::from(works)))?;
            asked = reason.or(asked);
            is_stopping.store(asked.is_some(), Ordering::Relaxed);
            to_print.try_iter().for_each(|text| self.reporter.note(&text));
            if num_working == 0.0 {
                return Ok(asked);
            }
        }
    }
}
