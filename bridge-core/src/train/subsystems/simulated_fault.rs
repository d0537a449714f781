//! `[ft] simulate_fault`: a rank that fails on purpose, to test the reaction. Only in the first
//! start of a run.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGKILL, SIGSTOP};
use signal_hook::low_level::raise;
use twox_hash::XxHash3_64;

use crate::config::{FaultToleranceConfig, RunConfig, SimulatedFault as Fault};
use crate::train::error::CommonError;
use crate::train::ranks::rank_env::{RankEnv, RankUnit};
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// The delay is longer than `simulated_fault_base_delay` by at most this part of it.
const LATER: f64 = 0.2;

pub(super) struct SimulatedFault {
    fault: Fault,
    unit: RankUnit,
    delay: Duration,
    started: Instant,
}

impl SimulatedFault {
    /// The one of rank `rank`, if it is the victim.
    pub fn from_config(config: &RunConfig, rank: usize, rank_env: &RankEnv) -> Option<Self> {
        let settings = config.ft.as_ref().filter(|settings| settings.simulate_fault && rank_env.faults == 0)?;
        let draw = |what: &str| XxHash3_64::oneshot(format!("{what} {}", config.rng.seed).as_bytes());
        let victim =
            settings.simulated_fault_rank.unwrap_or((draw("victim") % config.parallel.world_size as u64) as usize);
        let fault = match settings.simulated_fault_type {
            Fault::Random if draw("fault") % 2 == 0 => Fault::RankHung,
            Fault::Random => Fault::RankKilled,
            chosen => chosen,
        };
        let delay = delay(settings, draw("delay"));
        (rank == victim).then(|| Self { fault, unit: rank_env.unit, delay, started: Instant::now() })
    }
}

fn delay(settings: &FaultToleranceConfig, drawn: u64) -> Duration {
    let part = drawn as f64 / u64::MAX as f64 * LATER;
    // A century is as good as never.
    Duration::from_secs_f64((settings.simulated_fault_base_delay as f64 * (1.0 + part)).min(3e9))
}

impl Subsystem for SimulatedFault {
    fn name(&self) -> &str {
        "simulated fault"
    }

    fn after_step(&mut self, run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if self.started.elapsed() < self.delay {
            return Ok(LoopRequest::default());
        }
        run.warn(&format!("simulated fault: {:?} of rank {}", self.fault, run.groups.world().rank()));
        match (self.unit, self.fault) {
            (RankUnit::Process, Fault::RankHung) => raised(SIGSTOP),
            (RankUnit::Process, Fault::RankKilled | Fault::Random) => raised(SIGKILL),
            // A single thread cannot be stopped or killed.
            (RankUnit::Thread, Fault::RankHung) => hang(),
            (RankUnit::Thread, Fault::RankKilled | Fault::Random) => panic!("simulated fault: rank_killed"),
        }
    }
}

fn raised(signal: i32) -> Result<LoopRequest, SubsystemError> {
    raise(signal).map_err(|error| CommonError::log("a simulated fault", error))?;
    Ok(LoopRequest::default())
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}
