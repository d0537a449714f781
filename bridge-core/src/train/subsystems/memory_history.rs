//! The history of the process's allocator (`profiling.record_memory_history`): from the start of a
//! run each large block has an owner, the rank's activity or a parameter. In the window of steps
//! all events are kept, and written at its end.

use std::path::{Path, PathBuf};

use bridge_kernels::address_on_cpu as address;
use bridge_kernels::memory::history::{self, RankSlot};
use bridge_kernels::memory::usage;
use bridge_kernels::optim::Remainders;

use crate::config::RunConfig;
use crate::logging::trace::FOLDER;
use crate::logging::{memory_pickle, memory_table};
use crate::train::error::CommonError;
use crate::train::reporting::report::TrainEnd;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

const KEY: &str = "profiling.record_memory_history";

/// True if the history of `rank` is recorded.
fn records(config: &RunConfig, rank: usize) -> bool {
    let settings = &config.profiling;
    settings.record_memory_history && (settings.profile_ranks.is_empty() || settings.profile_ranks.contains(&rank))
}

/// File of a rank, with a suffix of the stem that distinguishes it from others.
fn file(config: &RunConfig, what: &str, extension: Option<&str>) -> PathBuf {
    let path = Path::new(&config.profiling.memory_snapshot_path);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let own = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    let name = match extension.map(str::to_owned).or(own) {
        Some(extension) => format!("{stem}_{what}.{extension}"),
        None => format!("{stem}_{what}"),
    };
    config.logger.log_dir.join(FOLDER).join(path.with_file_name(name))
}

/// Starts recording before anything is built, if this rank records. Allocations belong to `setup`
/// until the rank names another owner.
pub(in crate::train) fn begin(config: &RunConfig, rank: usize) {
    if records(config, rank) {
        history::start(Some(file(config, &format!("oom_rank-{rank}"), Some("txt"))));
        let slot = RankSlot::new();
        slot.attach_thread();
        // All threads of the pool that the rank computes in.
        rayon::broadcast(|_| slot.attach_thread());
        RankSlot::set_owner(|| "setup".to_owned());
    }
}

pub(super) struct MemoryHistory {
    /// The first and the last iteration of the window.
    window: (u64, u64),
    is_open: bool,
}

impl MemoryHistory {
    /// The subsystem, if this rank records.
    pub fn new(config: &RunConfig, rank: usize) -> Option<Self> {
        let settings = &config.profiling;
        let window = (settings.profile_step_start as u64 + 1, settings.profile_step_end as u64);
        records(config, rank).then_some(Self { window, is_open: false })
    }

    /// Tells which blocks are parameters and states of the optimizer.
    fn name_blocks(run: &RunContext) {
        let mut blocks = Vec::new();
        for chunk in run.chunks() {
            chunk.visit_parameters(&mut |name, value| {
                blocks.extend(address(&value).map(|address| (address, format!("parameter {name}"))));
            });
        }
        let state = run.training.optimizer.state();
        let of_remainders = |(name, value): (_, &Remainders)| (name, Some(value.low.as_ptr().addr()));
        let states = state.tensors.iter().map(|(name, value)| (name, value.address()));
        for (name, address) in states.chain(state.remainders.iter().map(of_remainders)) {
            blocks.extend(address.map(|address| (address, format!("optimizer state {name}"))));
        }
        RankSlot::rename(&blocks);
    }

    fn write(run: &RunContext) -> Result<(), SubsystemError> {
        let Some(window) = RankSlot::end_window() else { return Ok(()) };
        let (config, rank) = (&run.state.config, run.groups.world().rank().to_string());
        let files = [
            (file(config, &rank, None), memory_pickle(&window)),
            (file(config, &rank, Some("txt")), memory_table(&window).into_bytes()),
        ];
        for (path, bytes) in files {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)
                .and_then(|()| bridge_data::untrusted_io::replace(&path, &bytes))
                .map_err(|error| CommonError::log(path.display().to_string(), error))?;
            run.note(&format!("memory history: {}", path.display()));
        }
        Ok(())
    }
}

impl Subsystem for MemoryHistory {
    fn name(&self) -> &str {
        "memory history"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if usage().is_none() {
            let message = "this program has another allocator; expected bridge_kernels::memory::LargeBlocks as its \
                           #[global_allocator], on Linux";
            return Err(CommonError::setting(KEY, message.to_owned()).into());
        }
        Self::name_blocks(run);
        RankSlot::set_owner(|| "the loop".to_owned());
        Ok(())
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let next = run.state.train_state.step + 1;
        if !self.is_open && (self.window.0..=self.window.1).contains(&next) {
            self.is_open = true;
            Self::name_blocks(run);
            RankSlot::begin_window();
        } else if self.is_open && next > self.window.1 {
            self.is_open = false;
            Self::write(run)?;
        }
        Ok(())
    }

    fn on_run_end(&mut self, run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if std::mem::take(&mut self.is_open) { Self::write(run) } else { Ok(()) }
    }
}
