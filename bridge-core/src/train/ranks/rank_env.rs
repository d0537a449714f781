//! Environment of a rank: the unit that it runs in, and the monitors that watch it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::resilience::Heartbeat;
use crate::train::ranks::device::LocalRank;

/// Unit that a rank runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankUnit {
    /// A thread among others of the process.
    #[default]
    Thread,
    /// A process.
    Process,
}

/// Environment of a rank in one start of a run.
#[derive(Clone, Debug, Default)]
pub struct RankEnv {
    /// Unit that the rank runs in.
    pub unit: RankUnit,
    /// Heartbeat of the rank.
    pub heartbeat: Arc<Heartbeat>,
    /// Place on its machine among all ranks that were started, which gives its device; `None` to
    /// compute it from the ranks of the run.
    pub place: Option<LocalRank>,
    /// Faults of the run before this start.
    pub faults: u32,
    /// The socket of the monitor that watches the run (`[ft]`).
    pub monitor: Option<PathBuf>,
    /// Name of the run, if this is one of several starts of it: logs of an earlier start are the
    /// run's own, even if no checkpoint names the run.
    pub run: Option<String>,
}
