//! Health of the ranks of a run, in files of its log folder that other programs read while it runs:
//! heartbeats and restarts from the supervisor, and the scores of slow ranks.

use std::io;
use std::path::Path;

use bridge_data::untrusted_io;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::files::replace_json;

/// Names in the log folder.
const SUPERVISION: &str = "supervision.json";
const SCORES: &str = "rank_scores.json";

/// Starts that are kept.
const KEPT: usize = 100;

/// State of a run as its supervisor knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Supervision {
    /// Seconds since 1970 when this was written.
    pub written: u64,
    /// Largest number of restarts.
    pub max_restarts: u32,
    /// The last restarts.
    pub restarts: Vec<Restart>,
    /// The last heartbeat of each rank, if ranks send heartbeats.
    pub ranks: Vec<RankSign>,
}

/// A start after a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Number of the restart, from 1.
    pub number: u32,
    /// Seconds since 1970.
    pub at: u64,
    /// Reason for the end of the previous run.
    pub why: String,
    /// Checkpoint that the restart resumes from.
    pub from: String,
}

/// A rank's last heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankSign {
    /// The rank.
    pub rank: usize,
    /// Process of the rank.
    pub process: u32,
    /// Section that the rank is in.
    pub section: String,
    /// Seconds in the section at the time of the heartbeat.
    pub seconds: f64,
    /// Time limit of the section in seconds, if there is one.
    pub limit: Option<f64>,
    /// Arrival of the heartbeat in seconds since 1970.
    pub heard: u64,
}

impl Supervision {
    /// Notes a start.
    pub fn restarted(&mut self, restart: Restart) {
        self.restarts.push(restart);
        self.restarts.drain(..self.restarts.len().saturating_sub(KEPT));
    }

    /// Writes it in one step, because others may read it.
    pub fn write(&self, log_dir: &Path) -> io::Result<()> {
        replace_json(&log_dir.join(SUPERVISION), self)
    }

    /// Reads the state of the run whose logs are in `log_dir`; `None` without a readable file.
    pub fn read(log_dir: &Path) -> Option<Self> {
        read(&log_dir.join(SUPERVISION))
    }
}

/// The scores of ranks in one window of steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankScores {
    /// The last step of it.
    pub iteration: u64,
    /// In rank order.
    pub ranks: Vec<RankScore>,
}

/// Speed of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankScore {
    /// The rank.
    pub rank: usize,
    /// Machine of the rank.
    pub node: String,
    /// Score from 0 to 1, relative to the other ranks of its stage.
    pub relative: Option<f64>,
    /// Score from 0 to 1, relative to the rank's earlier times.
    pub individual: Option<f64>,
    /// Seconds of a step that the rank computes, waits for data and spends in collectives.
    pub times: [f64; 3],
    /// True if the rank is slower than the thresholds allow.
    pub is_slow: bool,
}

impl RankScores {
    /// Writes them in one step, because others may read them.
    pub fn write(&self, log_dir: &Path) -> io::Result<()> {
        replace_json(&log_dir.join(SCORES), self)
    }

    /// Reads the scores of the run whose logs are in `log_dir`; `None` without a readable file.
    pub fn read(log_dir: &Path) -> Option<Self> {
        read(&log_dir.join(SCORES))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_str(&untrusted_io::read_text(path, untrusted_io::SETTINGS_BYTES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_were_written_and_damage_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        assert_eq!(Supervision::read(&logs), None);
        let mut supervision = Supervision { written: 7, max_restarts: 200, ..Supervision::default() };
        for number in 1..=150 {
            supervision.restarted(Restart { number, at: 5, why: "was killed".into(), from: "iteration 3".into() });
        }
        supervision.ranks.push(RankSign {
            rank: 1,
            process: 9,
            section: "step".into(),
            seconds: 0.25,
            limit: None,
            heard: 6,
        });
        supervision.write(&logs).unwrap();
        let found = Supervision::read(&logs).unwrap();
        assert_eq!(found, supervision);
        assert_eq!((found.restarts.len(), found.restarts[0].number), (100, 51));
        let score = RankScore {
            rank: 0,
            node: "a".into(),
            relative: Some(0.5),
            individual: None,
            times: [0.1, 0.0, 0.2],
            is_slow: true,
        };
        let scores = RankScores { iteration: 64, ranks: vec![score] };
        scores.write(&logs).unwrap();
        assert_eq!(RankScores::read(&logs), Some(scores));
        std::fs::write(logs.join(SCORES), "{\"iteration\": 3").unwrap();
        assert_eq!(RankScores::read(&logs), None);
    }
}
