//! Monitor of a supervised run (`[ft]`): receives the heartbeats of its ranks over a Unix socket,
//! and finds ranks that are late. A process that is stopped as a whole sends none; it is late when
//! its last section has taken too long.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bridge_core::logging::health::RankSign;
use bridge_core::resilience::{HeartbeatMessage, SectionLimits};

use crate::failure::Failure;

/// Environment variable with the path of the socket.
pub const MONITOR_VARIABLE: &str = "BRIDGE_MONITOR";

/// The last heartbeat of each rank, and when it came.
type Heard = Arc<Mutex<BTreeMap<usize, (Instant, HeartbeatMessage)>>>;

/// The socket of one run's ranks.
pub struct Monitor {
    /// With the socket; it is deleted with the monitor.
    folder: tempfile::TempDir,
    heard: Heard,
    started: Instant,
    limits: SectionLimits,
}

/// A rank that is late.
pub struct Late {
    /// Reason.
    pub why: String,
    /// The process of the rank, if it is known.
    pub process: Option<u32>,
}

impl Monitor {
    /// Opens the socket for a run that begins now and saves to `root`. Fails if there can be none,
    /// or the limits that were learned cannot be read.
    pub fn open(root: &Path) -> Result<Self, Failure> {
        let limits = SectionLimits::read(root)
            .map_err(|(path, reason)| Failure::input(format!("{}: {reason}", path.display())))?;
        let folder = tempfile::Builder::new().prefix("bridge-monitor-").tempdir().map_err(Failure::run)?;
        let listener = UnixListener::bind(path_in(&folder)).map_err(Failure::run)?;
        let heard = Heard::default();
        let listening = {
            let heard = Arc::clone(&heard);
            move || {
                for stream in listener.incoming().flatten() {
                    let heard = Arc::clone(&heard);
                    // A rank whose heartbeats cannot be received is not watched: its run does not
                    // end for that.
                    let _ = std::thread::Builder::new().spawn(move || listen(stream, &heard));
                }
            }
        };
        // Ends with the process; a supervisor opens one for each start.
        std::thread::Builder::new().name("monitor".to_owned()).spawn(listening).map_err(Failure::run)?;
        Ok(Self { folder, heard, started: Instant::now(), limits })
    }

    /// The path of the socket.
    pub fn path(&self) -> PathBuf {
        path_in(&self.folder)
    }

    /// The last heartbeat of each rank.
    pub fn ranks(&self) -> Vec<RankSign> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: &Instant| unix_time().saturating_sub(at.elapsed().as_secs());
        let sign = |(at, of): &(Instant, HeartbeatMessage)| RankSign {
            rank: of.rank,
            process: of.process,
            section: of.section.name().to_owned(),
            seconds: of.seconds,
            limit: of.limit,
            heard: since(at),
        };
        heard.values().map(sign).collect()
    }

    /// A rank that has been in a section for longer than it may.
    pub fn late(&self) -> Option<Late> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_empty() {
            let limit = self.limits.setup;
            let is_late = self.started.elapsed() > seconds(limit);
            let why = || format!("no rank was set up after {limit} s (section setup)");
            return is_late.then(|| Late { why: why(), process: None });
        }
        let late = heard.values().find(|(at, of)| {
            let limit = of.limit.map(seconds);
            limit.is_some_and(|limit| at.elapsed() + seconds(of.seconds) > limit)
        });
        late.map(|(_, HeartbeatMessage { rank, process, section, limit, .. })| Late {
            why: format!("rank {rank} was in section {} for more than {} s", section.name(), limit.unwrap_or(0.0)),
            process: Some(*process),
        })
    }
}

/// Receives the heartbeats of one rank.
fn listen(stream: UnixStream, heard: &Mutex<BTreeMap<usize, (Instant, HeartbeatMessage)>>) {
    let lock = || heard.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rank = None;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Ok(heartbeat) = serde_json::from_str::<HeartbeatMessage>(&line) {
            rank = Some(heartbeat.rank);
            lock().insert(heartbeat.rank, (Instant::now(), heartbeat));
        }
    }
    // The rank's process has ended, and its process ID may be reused, so the limit is removed.
    let mut heard = lock();
    if let Some((_, last)) = rank.and_then(|rank| heard.get_mut(&rank)) {
        last.limit = None;
    }
}

fn path_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("socket")
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
