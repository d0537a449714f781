//! `[ft] enable_ft_package`: sends heartbeats of each rank to the monitor of the run, and learns
//! how long sections may take. The monitor ends ranks that are late.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::config::RunConfig;
use crate::resilience::{Heartbeat, HeartbeatMessage, Section, SectionLimits};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::RankEnv;
use crate::train::reporting::report::{StepReport, TrainEnd};
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Interval of heartbeats.
const INTERVAL: Duration = Duration::from_millis(500);
/// Steps that are seen before limits are learned.
const STEPS: u64 = 16;

/// State that the heartbeat thread reads.
struct Sign {
    heartbeat: Arc<Heartbeat>,
    limits: Mutex<SectionLimits>,
}

pub(super) struct Heartbeats {
    sign: Arc<Sign>,
    monitor: PathBuf,
    root: PathBuf,
    learns: bool,
    steps: u64,
}

impl Heartbeats {
    /// Heartbeats of a configuration, if it asks for them.
    pub fn new(config: &RunConfig, rank_env: &RankEnv) -> Result<Option<Self>, SubsystemError> {
        let Some(settings) = config.ft.as_ref().filter(|settings| settings.enable_ft_package) else { return Ok(None) };
        let monitor = rank_env.monitor.clone().ok_or(SubsystemError::NoMonitor)?;
        let root = config.checkpoint.save.clone().unwrap_or_default();
        let limits = SectionLimits::read(&root).map_err(|(path, message)| bad_limits(path, message))?;
        let sign = Arc::new(Sign { heartbeat: Arc::clone(&rank_env.heartbeat), limits: Mutex::new(limits) });
        Ok(Some(Self { sign, monitor, root, learns: settings.calc_ft_timeouts, steps: 0 }))
    }
}

fn bad_limits(path: PathBuf, message: String) -> CommonError {
    CommonError::setting("ft.enable_ft_package", format!("cannot use {}: {message}", path.display()))
}

impl Subsystem for Heartbeats {
    fn name(&self) -> &str {
        "heartbeats"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let stream = UnixStream::connect(&self.monitor);
        let stream = stream.map_err(|error| bad_limits(self.monitor.clone(), error.to_string()));
        let mut stream = agreement::agree(run.groups, "connecting to the monitor", stream)?;
        let (rank, sign) = (run.groups.world().rank(), Arc::downgrade(&self.sign));
        let sending = move || {
            // The loop ends when the monitor is gone.
            while let Some(line) = message(rank, &sign) {
                if stream.write_all(line.as_bytes()).is_err() {
                    return;
                }
                std::thread::sleep(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name(format!("heartbeats-{rank}")).spawn(sending);
        Ok(thread.map(drop).map_err(|error| CommonError::log("heartbeats", error))?)
    }

    fn measure(&mut self, _run: &mut RunContext, _step: &mut StepReport) -> Result<(), SubsystemError> {
        self.steps += 1;
        Ok(())
    }

    /// A save that has ended is the moment at which every section was seen.
    fn after_save(&mut self, run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        if !self.learns || self.steps < STEPS {
            return Ok(());
        }
        let mut longest = self.sign.heartbeat.longest().map(|time| time.as_secs_f64());
        agreement::max(run.groups.world(), &mut longest)?;
        let mut limits = self.sign.limits.lock().unwrap_or_else(PoisonError::into_inner);
        *limits = limits.learned(longest);
        if agreement::is_rank_zero(run.groups)
            && let Err(error) = limits.write(&self.root)
        {
            run.warn(&format!("limits of sections were not kept: {error}"));
        }
        Ok(())
    }

    fn on_run_end(&mut self, _run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        self.sign.heartbeat.enter(Section::Ended);
        Ok(())
    }
}

/// The next line for the monitor; `None` when the run is over.
fn message(rank: usize, sign: &Weak<Sign>) -> Option<String> {
    let sign = sign.upgrade()?;
    let section = sign.heartbeat.section();
    let limit = sign.limits.lock().unwrap_or_else(PoisonError::into_inner).seconds(section);
    let (process, seconds) = (std::process::id(), sign.heartbeat.in_section().as_secs_f64());
    let line = serde_json::to_string(&HeartbeatMessage { rank, process, section, seconds, limit });
    line.ok().map(|line| line + "\n")
}
