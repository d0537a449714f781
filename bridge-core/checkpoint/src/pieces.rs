//! Checkpoints in pieces: each rank writes its shard into a folder of its own, on its own machine,
//! with copies of its peers' shards. `assembly` assembles pieces.
//!
//! ```text
//! <root>/rank-00003/iter_0000010/     metadata.json, run_config.toml, ...: the same in each piece
//!                                     model-rank00003.safetensors; that of rank 2 if it is a peer
//! ```

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bridge_data::untrusted_io;
use bridge_dist::comm::{CommError, Group};
use serde::{Deserialize, Serialize};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::exchange;
use super::fsio::{CHUNK_BYTES, FileWriter, exists, remove_all, rename_durably};
use super::names::iteration_folder_name;
use super::retention::move_to_trash;
use super::shard::WrittenShard;
use super::sharded::agree;
use super::snapshot::{RunFiles, Snapshot};
use super::store::read_entries;
use super::train_state::TrainState;
use super::writer::{CheckpointWriter, SaveOptions, SaveReport, Staging};

const BEGINNING: &str = "beginning a checkpoint in pieces";
const DESCRIPTION: &str = "the description of a checkpoint in pieces";

/// Ranks that keep copies of each other's pieces: `factor` ranks, each `jump` ranks from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replication {
    /// The distance between two peers; the number of ranks of a machine puts copies on other
    /// machines.
    pub jump: usize,
    /// Number of ranks that have each piece, its own rank included.
    pub factor: usize,
}

impl Replication {
    /// The number of the group of peers that `rank` belongs to.
    fn group_of(self, rank: usize) -> usize {
        rank / (self.jump * self.factor) * self.jump + rank % self.jump
    }
}

/// The folder of a rank's pieces.
pub(super) fn folder_of(root: &Path, rank: usize) -> PathBuf {
    root.join(format!("{RANK_PREFIX}{rank:05}"))
}

/// The beginning of the names of these folders.
pub(super) const RANK_PREFIX: &str = "rank-";

/// Writes a rank's pieces. Only the newest checkpoint is kept, and the one before until all ranks
/// have the newest.
#[derive(Debug)]
pub struct LocalCheckpointWriter {
    writer: CheckpointWriter,
    /// All ranks of the run. Used only by this writer.
    group: Group,
    /// Ranks that exchange copies of pieces with this rank.
    peers: Option<Group>,
}

/// Facts about a checkpoint that all ranks need to describe it alike.
#[derive(Serialize, Deserialize)]
struct Description {
    train_state: TrainState,
    run_config: String,
    /// Names and sizes of the other small files.
    files: Vec<(String, usize)>,
    saved_at_unix_seconds: u64,
    /// Shards of each rank.
    shards: Vec<Vec<WrittenShard>>,
}

impl LocalCheckpointWriter {
    /// Opens the folder of this rank in `root`, creating it if it is missing. All ranks of `group`
    /// call this together, and use it for nothing else.
    ///
    /// # Errors
    /// On every rank, if any cannot write its folder; errors of the group.
    pub fn open(
        root: &Path,
        options: SaveOptions,
        group: Group,
        replication: Option<Replication>,
    ) -> Result<Self, CheckpointError> {
        let opened = CheckpointWriter::open(folder_of(root, group.rank()), options);
        let writer = agree(&group, "opening the folders of pieces", opened)?;
        let peers = match replication {
            Some(replication) if group.size() > 1 => {
                group.split(Some(replication.group_of(group.rank())), group.rank(), "replication")?
            }
            Some(_) | None => None,
        };
        Ok(Self { writer, group, peers })
    }

    /// Saves the snapshots of all ranks as one checkpoint in pieces. All ranks call this together,
    /// with the same step. Everything except tensors is taken from the first rank's snapshot.
    ///
    /// # Errors
    /// On every rank, if any rank cannot write or the slices of all ranks do not form whole
    /// tensors. The checkpoint before is untouched.
    pub fn save(&self, snapshot: &Snapshot) -> Result<SaveReport, CheckpointError> {
        let started = Instant::now();
        let iteration = snapshot.run.train_state.step;
        let staging = match self.writer.begin(iteration) {
            Ok(staging) => staging,
            Err(error) => return self.agree(BEGINNING, Err(error)),
        };
        let filled = self.agree(BEGINNING, Ok(())).and_then(|()| self.fill(&staging, snapshot));
        let published = filled.and_then(|bytes| {
            let published = self.publish(&staging, iteration);
            self.agree("publishing a checkpoint in pieces", published).map(|path| (bytes, path))
        });
        let (bytes, path) = published.inspect_err(|_| staging.discard())?;
        let seconds = started.elapsed().as_secs_f64();
        // All ranks have this one: those before are no longer needed.
        let (pruned, prune_error) = match self.forget(|other| other != iteration) {
            Ok(pruned) => (pruned, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        Ok(SaveReport { iteration, path, bytes, seconds, pruned, prune_error })
    }

    /// The other ranks that have copies of this rank's pieces.
    pub fn peers(&self) -> Vec<usize> {
        let ranks = self.peers.iter().flat_map(|peers| peers.world_ranks().to_vec());
        ranks.filter(|rank| *rank != self.group.rank()).collect()
    }

    /// Deletes the pieces of this rank whose iteration `is_old`; returns their iterations.
    ///
    /// # Errors
    /// If the disk reports an error.
    pub fn forget(&self, is_old: impl Fn(u64) -> bool) -> Result<Vec<u64>, CheckpointError> {
        let mut deleted = Vec::new();
        for (iteration, entry) in read_entries(self.writer.root())? {
            if is_old(iteration) {
                move_to_trash(self.writer.root(), &entry.path, iteration)?;
                deleted.push(iteration);
            }
        }
        Ok(deleted)
    }

    /// Removes the folder of this rank, with all pieces.
    ///
    /// # Errors
    /// If the disk reports an error.
    pub fn remove(&self) -> Result<(), CheckpointError> {
        remove_all(self.writer.root())
    }

    /// Writes all that belongs into this rank's piece; returns its bytes.
    fn fill(&self, staging: &Staging, snapshot: &Snapshot) -> Result<u64, CheckpointError> {
        let written = self.agree("writing its shards", staging.write_shards(self.group.rank(), &snapshot.groups))?;
        let (run, description) = self.describe(snapshot, written)?;
        let held = self.agree("copying shards of its peers", self.replicate(staging.folder(), &description)?)?;
        let shards = description.shards.concat();
        let completed = staging.complete(&run, &shards, &held, description.saved_at_unix_seconds);
        self.agree("completing a piece", completed)?;
        Ok(held.iter().map(|shard| shard.size).sum())
    }

    /// Shares the first rank's description of the run and the shards that each rank wrote with all
    /// ranks.
    fn describe(
        &self,
        snapshot: &Snapshot,
        own: Vec<WrittenShard>,
    ) -> Result<(RunFiles, Description), CheckpointError> {
        let is_first = self.group.rank() == 0;
        let mut description = None;
        if is_first {
            let RunFiles { train_state, run_config, files, .. } = snapshot.run.clone();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let files = files.iter().map(|(name, content)| (name.clone(), content.len())).collect();
            let shards = exchange::collect(&self.group, own, DESCRIPTION)?;
            description = Some(Description { train_state, run_config, files, saved_at_unix_seconds: now, shards });
        } else {
            exchange::report(&self.group, &own, DESCRIPTION)?;
        }
        let description = exchange::share(&self.group, description.as_ref(), DESCRIPTION)?;
        let mut contents = match is_first {
            true => snapshot.run.files.values().flat_map(|content| content.iter().copied()).collect(),
            false => vec![0_u8; description.files.iter().map(|(_, size)| size).sum()],
        };
        if self.group.size() > 1 && !contents.is_empty() {
            self.group.broadcast((&mut contents).into(), 0)?;
        }
        let mut contents = bytes::Bytes::from(contents);
        let files = description.files.iter().map(|(name, size)| (name.clone(), contents.split_to(*size))).collect();
        let (train_state, run_config) = (description.train_state.clone(), description.run_config.clone());
        Ok((RunFiles { train_state, run_config, files, ..RunFiles::default() }, description))
    }

    /// Exchanges shards with the peers. Returns the shards in this rank's folder, or the error of a
    /// missing one. Errors of the group are separate, since ranks are not in step after them.
    fn replicate(
        &self,
        folder: &Path,
        description: &Description,
    ) -> Result<Result<Vec<WrittenShard>, CheckpointError>, CheckpointError> {
        let mut held = description.shards[self.group.rank()].clone();
        let Some(peers) = &self.peers else { return Ok(Ok(held)) };
        let mut failure = None;
        for (place, &rank) in peers.world_ranks().iter().enumerate() {
            for shard in &description.shards[rank] {
                let copied = match place == peers.rank() {
                    true => send_copy(peers, &folder.join(&shard.file), shard.size)?,
                    false => receive_copy(peers, place, &folder.join(&shard.file), shard)?,
                };
                failure = failure.or(copied.err());
                if place != peers.rank() {
                    held.push(shard.clone());
                }
            }
        }
        Ok(failure.map_or(Ok(held), Err))
    }

    /// Gives the piece its name.
    fn publish(&self, staging: &Staging, iteration: u64) -> Result<PathBuf, CheckpointError> {
        let root = self.writer.root();
        let target = root.join(iteration_folder_name(iteration));
        if exists(&target)? {
            move_to_trash(root, &target, iteration)?;
        }
        rename_durably(staging.folder(), &target)?;
        Ok(target)
    }

    fn agree<T>(&self, doing: &'static str, result: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        agree(&self.group, doing, result)
    }
}

/// A file that is sent to other ranks. Unreadable parts are sent as zeros, since other ranks wait
/// for them; these ranks notice by the checksum.
pub(super) struct Source {
    path: PathBuf,
    file: Option<File>,
    pub(super) size: u64,
    failure: Option<CheckpointError>,
}

impl Source {
    pub(super) fn open(path: &Path) -> Self {
        let opened = untrusted_io::open(path).and_then(|(file, _)| Ok((file.metadata()?.len(), file)));
        let path = path.to_owned();
        match opened.map_err(CheckpointError::io("open", &path)) {
            Ok((size, file)) => Self { path, file: Some(file), size, failure: None },
            Err(error) => Self { path, file: None, size: 0, failure: Some(error) },
        }
    }

    /// The next `count` bytes.
    pub(super) fn next(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; count];
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.read_exact(&mut bytes)) {
            self.failure.get_or_insert_with(|| CheckpointError::io("read", &self.path)(error));
        }
        bytes
    }

    pub(super) fn end(self) -> Result<(), CheckpointError> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// Sends a file of `size` bytes to all of `group`.
fn send_copy(group: &Group, path: &Path, size: u64) -> Result<Result<(), CheckpointError>, CheckpointError> {
    let mut source = Source::open(path);
    for chunk in chunks(size) {
        group.broadcast((&mut source.next(chunk)).into(), group.rank())?;
    }
    Ok(source.end())
}

/// Writes the file that rank `from` of `group` sends.
fn receive_copy(
    group: &Group,
    from: usize,
    path: &Path,
    shard: &WrittenShard,
) -> Result<Result<(), CheckpointError>, CheckpointError> {
    let next = |bytes: &mut Vec<u8>| group.broadcast(bytes.into(), from);
    let found = receive_into(FileWriter::create(path), shard.size, next)?;
    Ok(found.and_then(|found| match found == (shard.size, shard.checksum) {
        true => Ok(()),
        false => Err(CheckpointError::invalid_snapshot(&shard.file, "what a peer sent is not what it wrote")),
    }))
}

/// Writes `size` bytes that arrive in [`chunks`], each of which `next` fills. If the file cannot be
/// written, the chunks are received all the same, since the sender waits. Returns the size and the
/// checksum of the written bytes.
pub(super) fn receive_into(
    mut file: Result<FileWriter, CheckpointError>,
    size: u64,
    next: impl Fn(&mut Vec<u8>) -> Result<(), CommError>,
) -> Result<Result<(u64, Checksum), CheckpointError>, CheckpointError> {
    for chunk in chunks(size) {
        let mut bytes = vec![0_u8; chunk];
        next(&mut bytes)?;
        if let Ok(writer) = &mut file
            && let Err(error) = writer.write(&bytes)
        {
            file = Err(error);
        }
    }
    Ok(file.and_then(FileWriter::finish))
}

/// The sizes of the messages that a file of `size` bytes is sent in.
pub(super) fn chunks(size: u64) -> impl Iterator<Item = usize> {
    let whole = CHUNK_BYTES as u64;
    (0..size.div_ceil(whole)).map(move |place| (size - place * whole).min(whole) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_jump_apart() {
        let groups = |jump, factor| (0..8).map(|rank| Replication { jump, factor }.group_of(rank)).collect::<Vec<_>>();
        assert_eq!(groups(1, 2), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(groups(4, 2), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(groups(2, 2), [0, 1, 0, 1, 2, 3, 2, 3]);
        assert_eq!(groups(2, 4), [0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn messages_make_the_whole() {
        let sum = |size| chunks(size).map(|chunk| chunk as u64).sum::<u64>();
        for size in [0, 1, CHUNK_BYTES as u64 - 1, CHUNK_BYTES as u64, CHUNK_BYTES as u64 * 3 + 5] {
            assert_eq!(sum(size), size);
        }
    }
}
