//! Marks for NVIDIA's profiler in a window of steps (`profiling.nvtx_ranges`,
//! `profiling.use_nsys_profiler`).

use std::sync::Arc;

use crate::config::RunConfig;
use crate::logging::{Nvtx, ProfilerSwitch};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::reporting::report::TrainEnd;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

const RANGES: &str = "profiling.nvtx_ranges";
const SWITCH: &str = "profiling.use_nsys_profiler";

pub(super) struct NvidiaMarks {
    /// The first and the last iteration of the window.
    window: (u64, u64),
    /// True if this rank is marked.
    is_marked: bool,
    ranges: Option<Arc<Nvtx>>,
    switch: Option<ProfilerSwitch>,
    is_open: bool,
}

impl NvidiaMarks {
    /// The subsystem, if the recipe asks for marks.
    pub fn new(config: &RunConfig, rank: usize) -> Option<Self> {
        let settings = &config.profiling;
        let window = (settings.profile_step_start as u64 + 1, settings.profile_step_end as u64);
        let is_marked = settings.profile_ranks.is_empty() || settings.profile_ranks.contains(&rank);
        let asks = settings.nvtx_ranges || settings.use_nsys_profiler;
        asks.then_some(Self { window, is_marked, ranges: None, switch: None, is_open: false })
    }

    fn load(&mut self, config: &RunConfig) -> Result<(), SubsystemError> {
        let of = |key| move |message: String| CommonError::setting(key, message);
        if config.profiling.nvtx_ranges {
            self.ranges = Some(Arc::new(Nvtx::load().map_err(of(RANGES))?));
        }
        if config.profiling.use_nsys_profiler {
            self.switch = Some(ProfilerSwitch::load().map_err(of(SWITCH))?);
        }
        Ok(())
    }

    fn set(&mut self, run: &RunContext, opens: bool) -> Result<(), SubsystemError> {
        self.is_open = opens;
        let switched = match (&self.switch, opens) {
            (None, _) => Ok(()),
            (Some(switch), true) => switch.start(),
            (Some(switch), false) => switch.stop(),
        };
        let ranges = self.ranges.clone().filter(|_| opens);
        run.timers.spans().mark_with(ranges.map(|ranges| ranges as _));
        Ok(switched.map_err(|message| CommonError::setting(SWITCH, message))?)
    }
}

impl Subsystem for NvidiaMarks {
    fn name(&self) -> &str {
        "marks for NVIDIA's profiler"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let loaded = if self.is_marked { self.load(&run.state.config) } else { Ok(()) };
        agreement::agree(run.groups, "loading NVIDIA's libraries", loaded)
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let next = run.state.train_state.step + 1;
        let is_within = self.is_marked && (self.window.0..=self.window.1).contains(&next);
        if is_within == self.is_open { Ok(()) } else { self.set(run, is_within) }
    }

    fn on_run_end(&mut self, run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if self.is_open { self.set(run, false) } else { Ok(()) }
    }
}
