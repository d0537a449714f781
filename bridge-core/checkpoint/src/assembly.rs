//! Assembles a checkpoint from pieces: finds the intact files of all checkpoints on all machines,
//! chooses the newest complete checkpoint, and makes a folder of it on each machine, like any other
//! checkpoint. Files that a machine lost are copied from a machine that has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use bridge_dist::comm::Group;
use serde::{Deserialize, Serialize};

use super::checksum::{Checksum, unseal};
use super::error::CheckpointError;
use super::exchange;
use super::fsio::{FileWriter, checksum_file, remove_all};
use super::metadata::{FileRecord, Metadata};
use super::names::{METADATA_FILE, iteration_folder_name};
use super::pieces::{RANK_PREFIX, Source, chunks, receive_into};
use super::reader::Checkpoint;
use super::sharded::agree;
use super::store::{CheckpointStore, read_entries};
use super::verify::Verification;

const INVENTORY: &str = "the list of pieces";
/// Tag of the messages with files.
const TAG: u32 = 0;

/// A checkpoint that was put together.
#[derive(Debug)]
pub struct Assembled {
    /// The checkpoint, every byte of it verified.
    pub checkpoint: Checkpoint,
    /// The folder that was made of it, to be deleted when it is loaded. Ranks of a machine share
    /// it.
    pub folder: PathBuf,
    /// Files that this machine got from another one.
    pub received: usize,
}

/// Checkpoint that was found, and its files.
#[derive(Debug)]
pub struct Assembly {
    /// The newest whole checkpoint.
    pub found: Option<Assembled>,
    /// Messages about newer checkpoints that are incomplete.
    pub notes: Vec<String>,
}

/// A checkpoint, of which pieces lie on a machine.
#[derive(Clone, Serialize, Deserialize)]
struct Candidate {
    iteration: u64,
    /// Checksum of the description, by which pieces of one checkpoint are recognized.
    checksum: String,
    /// All files that it should have.
    files: BTreeMap<String, FileRecord>,
    /// Files that are intact on this machine.
    here: BTreeSet<String>,
}

/// Paths of intact files of checkpoints on this machine, by iteration and checksum of the
/// description.
type Places = BTreeMap<(u64, String), BTreeMap<String, PathBuf>>;

/// Finds the newest whole checkpoint in pieces below `root` that is newer than `above`, and makes
/// it one folder on each machine. All ranks of `group` call this together, with
/// the first rank on their machine as `leader`, which reads files for the others there.
///
/// # Errors
/// If ranks cannot communicate, or a machine cannot write the folder.
pub fn assemble(root: &Path, leader: usize, group: &Group, above: Option<u64>) -> Result<Assembly, CheckpointError> {
    let is_first = leader == group.rank();
    let scanned = if is_first { scan(root) } else { Ok((Vec::new(), Places::new())) };
    let (candidates, places) = agree(group, "looking at pieces of checkpoints", scanned)?;
    let own = (is_first, candidates);
    let inventories = if group.rank() == 0 {
        Some(exchange::collect(group, own, INVENTORY)?)
    } else {
        exchange::report(group, &own, INVENTORY)?;
        None
    };
    let inventories: Vec<(bool, Vec<Candidate>)> = exchange::share(group, inventories.as_ref(), INVENTORY)?;
    let (chosen, notes) = choose(&inventories, above);
    let Some(chosen) = chosen else { return Ok(Assembly { found: None, notes }) };
    let root = root.join(format!(".assembled-{:05}", leader));
    let folder = root.join(iteration_folder_name(chosen.iteration));
    let empty = BTreeMap::new();
    let places = places.get(&(chosen.iteration, chosen.checksum.clone())).unwrap_or(&empty);
    let made = if is_first { make_folder(&folder, &root) } else { Ok(()) };
    agree(group, "making a folder of pieces", made)?;
    let received = gather(&folder, &chosen, group, places, &inventories)?;
    let received = agree(group, "putting a checkpoint together", received)?;
    let opened =
        CheckpointStore::open(&folder).and_then(|store| store.open_iteration(chosen.iteration, Verification::Sizes));
    let checkpoint = agree(group, "opening a checkpoint in pieces", opened)?;
    Ok(Assembly { found: Some(Assembled { checkpoint, folder: root, received }), notes })
}

/// Candidates below `root` on this machine, every byte verified.
fn scan(root: &Path) -> Result<(Vec<Candidate>, Places), CheckpointError> {
    let mut folders: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(RANK_PREFIX)) {
            for (iteration, piece) in read_entries(&entry.path())? {
                folders.entry(iteration).or_default().push(piece.path);
            }
        }
    }
    let (mut candidates, mut places) = (Vec::new(), Places::new());
    for (iteration, pieces) in folders {
        // A rank that lost its description may have kept its shards.
        let mut described: BTreeMap<String, (Metadata, PathBuf)> = BTreeMap::new();
        for piece in &pieces {
            let path = piece.join(METADATA_FILE);
            if let Some((metadata, checksum)) = description(&path).filter(|(of, _)| of.iteration == iteration) {
                described.entry(checksum.to_string()).or_insert((metadata, path));
            }
        }
        for (checksum, (metadata, description)) in described {
            let mut here: BTreeMap<String, PathBuf> = [(METADATA_FILE.to_owned(), description)].into();
            for (name, record) in &metadata.files {
                let intact = pieces.iter().map(|piece| piece.join(name)).find(|path| is_intact(path, record));
                here.extend(intact.map(|path| (name.clone(), path)));
            }
            let names = here.keys().cloned().collect();
            candidates.push(Candidate { iteration, checksum: checksum.clone(), files: metadata.files, here: names });
            places.insert((iteration, checksum), here);
        }
    }
    Ok((candidates, places))
}

/// An intact description of a checkpoint.
fn description(path: &Path) -> Option<(Metadata, Checksum)> {
    let bytes = untrusted_io::read(path, untrusted_io::RECORDS_BYTES).ok()?;
    unseal::<Metadata>(&bytes).ok().filter(|(metadata, _)| metadata.problem().is_none())
}

fn is_intact(path: &Path, record: &FileRecord) -> bool {
    let Ok((file, _)) = untrusted_io::open(path) else { return false };
    let has_size = file.metadata().is_ok_and(|found| found.len() == record.size);
    has_size && checksum_file(&file).is_ok_and(|found| found == (record.size, record.checksum))
}

/// The newest checkpoint of which every file is intact somewhere, and notes on newer ones.
fn choose(inventories: &[(bool, Vec<Candidate>)], above: Option<u64>) -> (Option<Candidate>, Vec<String>) {
    let mut all: BTreeMap<(u64, &str), (&Candidate, BTreeSet<&str>)> = BTreeMap::new();
    for candidate in inventories.iter().flat_map(|(_, candidates)| candidates) {
        let key = (candidate.iteration, candidate.checksum.as_str());
        let (_, found) = all.entry(key).or_insert((candidate, BTreeSet::new()));
        found.extend(candidate.here.iter().map(String::as_str));
    }
    let mut notes = Vec::new();
    for ((iteration, _), (candidate, found)) in all.into_iter().rev() {
        if above.is_some_and(|above| iteration <= above) {
            break;
        }
        let lost: Vec<&str> = candidate.files.keys().map(String::as_str).filter(|name| !found.contains(name)).collect();
        if lost.is_empty() {
            return (Some(candidate.clone()), notes);
        }
        notes.push(format!(
            "the temporary save of iteration {iteration} is not whole, {} of its {} files are lost or damaged on every machine: {}",
            lost.len(),
            candidate.files.len(),
            lost.iter().take(4).copied().collect::<Vec<_>>().join(", ")
        ));
    }
    (None, notes)
}

fn make_folder(folder: &Path, root: &Path) -> Result<(), CheckpointError> {
    remove_all(root)?;
    fs::create_dir_all(folder).map_err(CheckpointError::io("create folder", folder))
}

/// Fills the folder of this machine; returns how many files came from another one. The inner error
/// is this rank's alone.
fn gather(
    folder: &Path,
    chosen: &Candidate,
    group: &Group,
    places: &BTreeMap<String, PathBuf>,
    inventories: &[(bool, Vec<Candidate>)],
) -> Result<Result<usize, CheckpointError>, CheckpointError> {
    let is_it = |of: &&Candidate| (of.iteration, &of.checksum) == (chosen.iteration, &chosen.checksum);
    let has = |rank: usize, name: &str| inventories[rank].1.iter().find(is_it).is_some_and(|of| of.here.contains(name));
    let (mut failure, mut received) = (None, 0);
    let names = std::iter::once(METADATA_FILE).chain(chosen.files.keys().map(String::as_str));
    for name in names {
        let Some(holder) = (0..inventories.len()).find(|rank| has(*rank, name)) else { continue };
        if let Some(path) = places.get(name) {
            failure = failure.or(link(path, &folder.join(name)).err());
        }
        for (rank, (is_first, _)) in inventories.iter().enumerate() {
            if !is_first || has(rank, name) {
                continue;
            }
            if group.rank() == holder {
                failure = failure.or(send(group, rank, &places[name])?.err());
            } else if group.rank() == rank {
                received += 1;
                failure = failure.or(receive(group, holder, &folder.join(name), chosen.files.get(name))?.err());
            }
        }
    }
    Ok(failure.map_or(Ok(received), Err))
}

/// Makes a file of a piece one of the folder.
fn link(path: &Path, target: &Path) -> Result<(), CheckpointError> {
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(CheckpointError::io("create folder", parent))?;
    // Not all file systems have links.
    fs::hard_link(path, target).or_else(|_| fs::copy(path, target).map(drop)).map_err(CheckpointError::io("copy", path))
}

/// Sends a file to rank `to`. Unreadable parts are sent as zeros, which that rank notices by the
/// checksum.
fn send(group: &Group, to: usize, path: &Path) -> Result<Result<(), CheckpointError>, CheckpointError> {
    let mut source = Source::open(path);
    group.send((&[source.size as i64]).into(), to, TAG)?;
    for chunk in chunks(source.size) {
        group.send((&source.next(chunk)).into(), to, TAG)?;
    }
    Ok(source.end())
}

/// Writes a file that another rank sends; `None` for the description, whose own checksum is checked
/// when it is opened.
fn receive(
    group: &Group,
    from: usize,
    path: &Path,
    record: Option<&FileRecord>,
) -> Result<Result<(), CheckpointError>, CheckpointError> {
    let mut size = [0_i64];
    group.recv((&mut size).into(), from, TAG)?;
    let parent = path.parent().unwrap_or(path);
    let made = fs::create_dir_all(parent).map_err(CheckpointError::io("create folder", parent));
    let file = made.and_then(|()| FileWriter::create(path));
    let size = u64::try_from(size[0]).unwrap_or(0);
    let found = receive_into(file, size, |bytes| group.recv(bytes.into(), from, TAG))?;
    Ok(found.and_then(|found| {
        let is_right = record.is_none_or(|record| found == (record.size, record.checksum));
        let reason = "what another machine sent is not what was saved";
        if is_right { Ok(()) } else { Err(CheckpointError::invalid_snapshot(path.display().to_string(), reason)) }
    }))
}
