//! The flight recorder (`dist.flight_recorder_dump_path`): the last calls of each rank on its
//! groups, written when a run ends with an error, a panic or a signal, to show which rank was in
//! which operation, and which rank did not join.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bridge_dist::comm::CommError;
use bridge_dist::comm::call_log::{CallLog, CallRecord, CallState, Stacks};

use crate::config::RunConfig;
use crate::logging::flight::{Entry, FlightRecord, GroupCalls, State};
use crate::train::exit_reason::ExitReason;
use crate::train::reporting::report::TrainEnd;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct FlightRecorder {
    /// File of this rank: the recipe's prefix and the rank.
    path: PathBuf,
    calls: Arc<CallLog>,
    rank: usize,
    world_size: usize,
    node: String,
    on_timeout: bool,
    on_errors: bool,
    only_active: bool,
}

impl FlightRecorder {
    /// The recorder of a rank on the machine `node`, which begins now, if the recipe asks for one.
    pub fn new(config: &RunConfig, groups: &bridge_dist::mesh::ProcessGroups, node: &str) -> Option<Self> {
        let settings = &config.dist;
        let (rank, world_size) = (groups.world().rank(), groups.world().size());
        let mut path = settings.flight_recorder_dump_path.as_ref()?.clone().into_os_string();
        path.push(rank.to_string());
        let calls = Arc::clone(groups.call_log());
        let stacks = if settings.flight_recorder_include_stack_trace { Stacks::Taken } else { Stacks::Left };
        calls.keep_last(settings.flight_recorder_trace_buffer_size, stacks);
        Some(Self {
            path: path.into(),
            calls,
            rank,
            world_size,
            node: node.to_owned(),
            on_timeout: settings.flight_recorder_dump_on_timeout,
            on_errors: settings.flight_recorder_extra_dump_on_exec,
            only_active: settings.flight_recorder_include_only_active,
        })
    }

    /// Writes the records. Returns a message if this fails.
    fn dump(&self, why: String, missing: Vec<usize>) -> Option<String> {
        let now = Instant::now();
        let is_wanted = |call: &&CallRecord| !self.only_active || call.state != CallState::Done;
        let calls = self.calls.calls();
        let groups = self.calls.groups().into_iter();
        let record = FlightRecord {
            rank: self.rank,
            world_size: self.world_size,
            node: self.node.clone(),
            why,
            missing,
            groups: groups.map(|(name, ranks, calls)| GroupCalls { name, ranks: ranks.to_vec(), calls }).collect(),
            entries: calls.iter().filter(is_wanted).map(|call| entry(call, now)).collect(),
        };
        record.write(&self.path).err().map(|error| format!("{}: {error}", self.path.display()))
    }
}

fn entry(call: &CallRecord, now: Instant) -> Entry {
    Entry {
        id: call.id,
        group: call.group.clone(),
        ranks: call.ranks.to_vec(),
        sequence: call.sequence,
        operation: call.operation.name().to_owned(),
        dtype: call.dtype.to_string(),
        elements: call.elements as u64,
        bytes: call.bytes as u64,
        state: match call.state {
            CallState::Active => State::Active,
            CallState::Done => State::Done,
            CallState::Failed => State::Failed,
        },
        is_background: call.is_background,
        seconds_ago: now.saturating_duration_since(call.started).as_secs_f64(),
        seconds: call.ended.map(|ended| ended.saturating_duration_since(call.started).as_secs_f64()),
        stack: call.stack.clone(),
    }
}

impl Subsystem for FlightRecorder {
    fn name(&self) -> &str {
        "flight recorder"
    }

    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        let (is_wanted, why, missing) = match end {
            Ok(reason @ ExitReason::Signal(_)) => (self.on_errors, reason.to_string(), Vec::new()),
            Ok(_) => return Ok(()),
            Err(error) => {
                let cause = error.source().and_then(|source| source.downcast_ref::<CommError>());
                match cause.and_then(|cause| cause.root_cause().missing_ranks()) {
                    Some(missing) => (self.on_timeout, error.to_string(), missing),
                    None => (self.on_errors, error.to_string(), Vec::new()),
                }
            }
        };
        if is_wanted {
            match self.dump(why, missing) {
                Some(problem) => run.warn(&format!("the flight recorder cannot write {problem}")),
                None => run.note(&format!("calls of ranks: {}", self.path.display())),
            }
        }
        Ok(())
    }
}

impl Drop for FlightRecorder {
    fn drop(&mut self) {
        self.calls.keep_last(0, Stacks::Left);
        if std::thread::panicking() && self.on_errors {
            // Ignore errors, so that only the panic is reported.
            let _ = self.dump("the rank panicked".into(), Vec::new());
        }
    }
}
