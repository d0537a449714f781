//! Files of the flight recorder: the last communicator calls of a rank when a run failed, and the
//! comparison of several ranks' files. A subsystem of the run records them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};

use super::files;

/// The file of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// Rank in the world.
    pub rank: usize,
    /// Ranks of the run.
    pub world_size: usize,
    /// The machine.
    pub node: String,
    /// Why it was written.
    pub why: String,
    /// Ranks of the world that this one, or the first that failed, waited for.
    pub missing: Vec<usize>,
    /// Calls of each group so far.
    pub groups: Vec<GroupCalls>,
    /// The last calls, the oldest first.
    pub entries: Vec<Entry>,
}

/// Progress of a rank in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCalls {
    /// Name of the group.
    pub name: String,
    /// Ranks of the group in the world.
    pub ranks: Vec<usize>,
    /// Calls that were begun.
    pub calls: u64,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the call among the calls of the rank.
    pub id: u64,
    /// Name of the group.
    pub group: String,
    /// Ranks of the group in the world.
    pub ranks: Vec<usize>,
    /// Number of the call among those of the group, from 0.
    pub sequence: u64,
    /// The operation.
    pub operation: String,
    /// Element type.
    pub dtype: String,
    /// Elements of the input, or of the only buffer.
    pub elements: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Progress of the call.
    pub state: State,
    /// True if the rank continues during the call.
    pub is_background: bool,
    /// Seconds from its beginning to this record.
    pub seconds_ago: f64,
    /// Seconds that it took, where it is over.
    pub seconds: Option<f64>,
    /// Backtrace of the start of the call, if backtraces are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
}

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The rank is in it, or has started it and not seen its end.
    Active,
    /// The call has completed.
    Done,
    /// The call ended with an error.
    Failed,
}

impl FlightRecord {
    /// Writes it, in a folder that is made if need be.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, &serde_json::to_vec_pretty(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is not there, or no such record.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let bytes = untrusted_io::read(path, untrusted_io::RECORDS_BYTES).map_err(|error| failed(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| failed(&format!("no record of calls: {error}")))
    }

    /// The last call that is not done.
    pub fn last_open(&self) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| entry.state != State::Done)
    }
}

/// Ranks of a group that did not come to a call of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Name of the group.
    pub group: String,
    /// The operation in which other ranks wait.
    pub operation: String,
    /// Number of the call among those of the group.
    pub sequence: u64,
    /// The ranks that are in it.
    pub waiting: Vec<usize>,
    /// Ranks that did not arrive, or arrived after other ranks had given up; a rank without a
    /// record counts only if another rank waited for it.
    pub missing: Vec<usize>,
}

/// Ranks that did not arrive at calls in which other ranks wait. Messages are not compared, because
/// each rank numbers its own.
pub fn missing(records: &[FlightRecord]) -> Vec<Missing> {
    let mut found: BTreeMap<(&str, &[usize], u64), Missing> = BTreeMap::new();
    for record in records {
        let open = record.entries.iter().filter(|entry| entry.state != State::Done);
        for entry in open.filter(|entry| !["send", "recv"].contains(&entry.operation.as_str())) {
            let of_rank = |rank: usize| {
                let record = records.iter().find(|record| record.rank == rank)?;
                let same = |group: &&GroupCalls| group.name == entry.group && group.ranks == entry.ranks;
                Some(record.groups.iter().find(same).map_or(0, |group| group.calls))
            };
            // A rank that comes too late calls as well, and fails at once.
            let did_not_come = |rank: &&usize| {
                record.missing.contains(rank) || of_rank(**rank).is_some_and(|calls| calls <= entry.sequence)
            };
            let missing: Vec<usize> = entry.ranks.iter().filter(did_not_come).copied().collect();
            if missing.is_empty() || missing.contains(&record.rank) {
                continue;
            }
            let key = (entry.group.as_str(), entry.ranks.as_slice(), entry.sequence);
            let (group, operation) = (entry.group.clone(), entry.operation.clone());
            let (sequence, waiting) = (entry.sequence, Vec::new());
            let of_call = || Missing { group, operation, sequence, waiting, missing };
            found.entry(key).or_insert_with(of_call).waiting.push(record.rank);
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rank: usize, calls: u64, open: Option<u64>, missing: Vec<usize>) -> FlightRecord {
        let entry = |sequence| Entry {
            id: sequence,
            group: "dp".into(),
            ranks: vec![0, 1, 2],
            sequence,
            operation: "all_reduce".into(),
            dtype: "f32".into(),
            elements: 3,
            bytes: 12,
            state: if Some(sequence) == open { State::Failed } else { State::Done },
            is_background: false,
            seconds_ago: 1.0,
            seconds: None,
            stack: None,
        };
        let groups = vec![GroupCalls { name: "dp".into(), ranks: vec![0, 1, 2], calls }];
        let (node, why) = ("here".into(), "because".into());
        FlightRecord { rank, world_size: 3, node, why, missing, groups, entries: (0..calls).map(entry).collect() }
    }

    #[test]
    fn the_rank_that_is_behind_is_named() {
        let records = [record(0, 5, Some(4), vec![]), record(1, 4, None, vec![]), record(2, 5, Some(4), vec![])];
        let found = missing(&records);
        let expected = (vec![0, 2], vec![1], 4);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].waiting.clone(), found[0].missing.clone(), found[0].sequence), expected);
        assert_eq!(records[0].last_open().map(|entry| entry.sequence), Some(4));
        // A killed rank leaves no record: it is found from the records of the ranks that waited for
        // it.
        let found = missing(&[record(0, 5, Some(4), vec![1]), record(2, 5, Some(4), vec![1])]);
        assert_eq!((found[0].waiting.clone(), found[0].missing.clone()), (vec![0, 2], vec![1]));
        assert!(
            missing(&[record(0, 5, None, vec![]), record(1, 5, None, vec![]), record(2, 5, None, vec![])]).is_empty()
        );
    }
}
