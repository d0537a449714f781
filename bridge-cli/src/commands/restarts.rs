//! Restarts inside the process: the host of a run that starts its ranks again
//! (`[inprocess_restart]`).

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use bridge_core::config::RunConfig;
use bridge_core::logging::terminal::complain;
use bridge_core::resilience::SignalWatcher;
use bridge_core::train::{Host, Leave, RankEnv, RunReport, TrainError, new_run_name, run_with_restarts};
use bridge_dist::mesh::ProcessGroups;

use super::monitor::MONITOR_VARIABLE;
use super::train::Arguments;
use crate::failure::Failure;
use crate::output::for_child;
use crate::speech::Speech;

/// Environment variable with the number of times that a supervisor has started the run again.
pub const RESTARTS_VARIABLE: &str = "BRIDGE_RESTARTS";
/// Environment variable with the number of faults of the run before this process was started.
const FAULTS_VARIABLE: &str = "BRIDGE_FAULTS_IN_PROCESS";
/// Environment variable with the name of a run that may be started several times.
pub const RUN_VARIABLE: &str = "BRIDGE_RUN";

/// Environment of the ranks of this process, from the supervisor if there is one.
pub fn rank_env() -> RankEnv {
    let monitor = std::env::var_os(MONITOR_VARIABLE).map(Into::into);
    RankEnv { faults: number(RESTARTS_VARIABLE), monitor, run: std::env::var(RUN_VARIABLE).ok(), ..RankEnv::default() }
}

fn number(name: &str) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The process of a run that starts its ranks again.
pub struct RestartHost<'a> {
    pub arguments: &'a Arguments,
    pub speech: &'a Speech,
}

impl RestartHost<'_> {
    /// Runs `start` on the ranks of `config`, and again after faults; returns the report of rank 0.
    /// Fails with errors of [`run_with_restarts`].
    pub fn run(
        &self,
        config: RunConfig,
        start: impl Fn(&RunConfig, ProcessGroups, RankEnv) -> Result<RunReport, TrainError> + Sync,
    ) -> Result<RunReport, TrainError> {
        let signals = SignalWatcher::install_all()?;
        let name = self::rank_env().run.unwrap_or_else(new_run_name);
        let host = Host {
            recipe: &|overrides| Ok(self.arguments.read_with(overrides)?),
            ranks: self.arguments.ranks(),
            faults: number(FAULTS_VARIABLE),
            tell: &|text| complain(text),
            is_stopped: &|| signals.received().is_some(),
            leave: &|leave| self.leave(leave, &name),
        };
        let program = |config: &RunConfig, groups: ProcessGroups, mut rank_env: RankEnv| {
            let RankEnv { faults, monitor, .. } = self::rank_env();
            (rank_env.faults, rank_env.monitor, rank_env.run) = (rank_env.faults + faults, monitor, Some(name.clone()));
            start(config, groups, rank_env)
        };
        Ok(run_with_restarts(config, &host, program)?.swap_remove(0))
    }

    /// A thread hangs, so the process ends here: it becomes a new one under its own number, or
    /// fails.
    fn leave(&self, leave: Leave, run: &str) -> Infallible {
        let why = match leave {
            Leave::Fail(why) => why,
            Leave::BeginAnew(faults, overrides) => match std::env::current_exe() {
                Err(error) => error.to_string(),
                Ok(program) => {
                    let mut anew = Command::new(program);
                    anew.args(std::env::args_os().skip(1)).args(overrides).stdout(for_child());
                    anew.env(FAULTS_VARIABLE, faults.to_string()).env(RUN_VARIABLE, run);
                    format!("the process cannot begin anew: {}", anew.exec())
                }
            },
        };
        Failure::run(why).print(self.speech.error_form());
        std::process::exit(1)
    }
}
