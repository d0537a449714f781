//! One checkpoint written by all ranks of a run together: every rank writes its shards, and the
//! first rank all files that exist once. The caller determines the shards of a rank.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bridge_dist::comm::{CommError, Group};

use super::error::CheckpointError;
use super::exchange;
use super::names::iteration_folder_name;
use super::snapshot::Snapshot;
use super::writer::{CheckpointWriter, SaveOptions, SaveReport, Staging};

const BEGINNING: &str = "beginning a checkpoint";

/// The name of the ranks' reports to the first one.
const SHARDS: &str = "the list of shards";

/// Writes checkpoints together with the same writer on the other ranks. Alone it is a
/// [`CheckpointWriter`].
#[derive(Debug)]
pub struct ShardedWriter {
    root: PathBuf,
    options: SaveOptions,
    /// On the first rank, which publishes.
    writer: Option<CheckpointWriter>,
    /// Ranks that save together. Used only by this writer, because a background save communicates
    /// concurrently with training.
    group: Group,
}

impl ShardedWriter {
    /// Opens `root` on the ranks of `group`, as [`CheckpointWriter::open`] does on the first of
    /// them. All ranks call this together, and use `group` for nothing else.
    ///
    /// # Errors
    /// On every rank, if the first one cannot open `root`; errors of the group.
    pub fn open(root: impl Into<PathBuf>, options: SaveOptions, group: Group) -> Result<Self, CheckpointError> {
        let root = root.into();
        let opened = match group.rank() {
            0 => CheckpointWriter::open(&root, options.clone()).map(Some),
            _ => Ok(None),
        };
        let writer = agree(&group, "opening the folder of checkpoints", opened)?;
        Ok(Self { root, options, writer, group })
    }

    /// Saves the snapshots of all ranks as one checkpoint. All ranks call this together, with the
    /// same step. Everything except tensors is taken from the first rank's snapshot.
    ///
    /// The report is complete on the first rank; other ranks know only the bytes that they wrote.
    ///
    /// # Errors
    /// On every rank, if any rank cannot write or the slices of all ranks do not form whole
    /// tensors. Incomplete files are removed, and earlier checkpoints are untouched.
    pub fn save(&self, snapshot: &Snapshot) -> Result<SaveReport, CheckpointError> {
        let Some(writer) = &self.writer else { return self.take_part(snapshot) };
        if self.group.size() == 1 {
            return writer.save(snapshot);
        }
        let staging = match writer.begin(snapshot.run.train_state.step) {
            Ok(staging) => staging,
            Err(error) => return self.agree(BEGINNING, Err(error)),
        };
        self.agree(BEGINNING, Ok(())).inspect_err(|_| staging.discard())?;
        let written = staging.write_shards(0, &snapshot.groups);
        let shards = self
            .agree("writing its shards", written)
            .and_then(|own| Ok(exchange::collect(&self.group, own, SHARDS)?.concat()))
            .inspect_err(|_| staging.discard())?;
        let report = writer.publish(staging, &snapshot.run, &shards);
        self.agree("publishing a checkpoint", report)
    }

    /// The part of every rank except the first.
    fn take_part(&self, snapshot: &Snapshot) -> Result<SaveReport, CheckpointError> {
        let started = Instant::now();
        let iteration = snapshot.run.train_state.step;
        self.agree(BEGINNING, Ok(()))?;
        let written = Staging::join(&self.root, iteration, self.options.clone())
            .and_then(|staging| staging.write_shards(self.group.rank(), &snapshot.groups));
        let shards = self.agree("writing its shards", written)?;
        exchange::report(&self.group, &shards, SHARDS)?;
        self.agree("publishing a checkpoint", Ok(()))?;
        Ok(SaveReport {
            iteration,
            path: self.root.join(iteration_folder_name(iteration)),
            bytes: shards.iter().map(|shard| shard.size).sum(),
            seconds: started.elapsed().as_secs_f64(),
            pruned: Vec::new(),
            prune_error: None,
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn agree<T>(&self, doing: &'static str, result: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        agree(&self.group, doing, result)
    }
}

/// Exchanges the outcome of a piece of work among all ranks, so that they fail together.
pub(super) fn agree<T>(
    group: &Group,
    doing: &'static str,
    result: Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    if group.size() == 1 {
        return result;
    }
    let mut failed = vec![0_u8; group.size()];
    let shared: Result<(), CommError> = group.all_gather((&[u8::from(result.is_err())]).into(), (&mut failed).into());
    let first = failed.iter().position(|failed| *failed != 0).filter(|_| shared.is_ok());
    let own = result.as_ref().err().map(ToString::to_string);
    let why =
        first.map(|rank| Ok::<_, CommError>((rank, exchange::messages(group, own.as_deref())?.swap_remove(rank))));
    let value = result?;
    shared?;
    match why.transpose()? {
        None => Ok(value),
        Some((rank, why)) => Err(CheckpointError::OtherRank { rank, doing, why }),
    }
}
