//! Folders of earlier jobs of a run, from which the steps that the run repeats are cut.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::datastore::Records;
use super::records::{StepOf, step_of};
use crate::logging::files::entries;

/// Progress of earlier jobs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::logging) struct Earlier {
    /// Number of earlier jobs.
    pub jobs: usize,
    /// Seconds that they took.
    pub runtime: f64,
    /// The last step that was sent already, if that is one which the run does again.
    pub sent: Option<u64>,
}

/// Reads the folders of the run `id` in `place`, and truncates records of steps after `iteration`,
/// unless they were sent.
pub(in crate::logging) fn look_at_earlier(place: &Path, id: &str, iteration: u64) -> io::Result<Earlier> {
    let mut found = Earlier::default();
    for path in logs(place, id)? {
        let is_sent = path.with_extension("wandb.synced").exists();
        let Some(mut records) = Records::open(&path)? else { continue };
        let (mut last, mut end) = (StepOf::default(), records.end);
        while let Some(record) = records.next()? {
            if let Some(of) = step_of(&record) {
                if of.step > iteration && !is_sent {
                    break;
                }
                last = of;
            }
            end = records.end;
        }
        if !is_sent && end < fs::metadata(&path)?.len() {
            OpenOptions::new().write(true).open(&path)?.set_len(end)?;
        }
        found.jobs += 1;
        found.runtime = found.runtime.max(last.runtime);
        if last.step > iteration {
            found.sent = found.sent.max(Some(last.step));
        }
    }
    Ok(found)
}

/// The logs of a run, oldest first.
pub(super) fn logs(place: &Path, id: &str) -> io::Result<Vec<PathBuf>> {
    let suffix = format!("-{id}");
    let folders = entries(place, |name| name.starts_with("offline-run-") && name.ends_with(&suffix))?;
    let logs = folders.into_iter().map(|folder| folder.join(format!("run-{id}.wandb")));
    Ok(logs.filter(|log| log.is_file()).collect())
}
