//! Verifying a checkpoint folder against its own metadata. Never panics on damage, never repairs,
//! never chooses another checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bridge_data::untrusted_io;
use safetensors::tensor::Metadata as Header;
use serde::Deserialize;

use super::checksum::{SealError, unseal};
use super::error::{CheckpointError, Damage};
use super::fsio::{FileId, checksum_file};
use super::metadata::{FORMAT_VERSION, FileRecord, Metadata};
use super::names::{METADATA_FILE, RootName, SHARD_EXTENSION, parse_root_name};
use super::reader::{Checkpoint, StoredSlice};

/// Thoroughness of the verification of a checkpoint before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// Every byte of every file is checked against its checksum.
    #[default]
    Contents,
    /// The metadata is checked against its checksum, all other files for presence and size, and
    /// shards also for their header. For ranks that open a checkpoint that the first rank has
    /// verified.
    Sizes,
}

/// Files kept open, so that a checkpoint deleted while it is in use can still be read. Further
/// files are opened when they are read, because processes may usually have only 1024 files open.
const MAX_OPEN_FILES: usize = 256;
/// More threads than this do not read faster from a disk.
const MAX_THREADS: usize = 8;
/// Far above any real shard header; prevents huge allocations for damaged files.
const MAX_HEADER_BYTES: u64 = 1 << 30;

/// A verified file; a different file that later has its name is detected.
#[derive(Debug)]
pub(super) struct VerifiedFile {
    path: PathBuf,
    id: FileId,
    size: u64,
    open: Option<File>,
}

impl VerifiedFile {
    /// Fills `buffer` from `offset` on.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), CheckpointError> {
        let mut read =
            |file: &File| file.read_exact_at(buffer, offset).map_err(CheckpointError::io("read", &self.path));
        if let Some(file) = &self.open {
            return read(file);
        }
        let opened =
            untrusted_io::open(&self.path).and_then(|(file, _)| Ok((FileId::from_metadata(&file.metadata()?), file)));
        match opened.map_err(CheckpointError::io("open", &self.path))? {
            (id, file) if id == self.id => read(&file),
            _ => {
                let changed = io::Error::other("it was replaced after it was verified");
                Err(CheckpointError::io("read", &self.path)(changed))
            }
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// The files of a checkpoint that one of several ranks reads completely. The rank checks all other
/// files only for presence and size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) rank: usize,
    pub(super) ranks: usize,
}

impl Share {
    /// All files.
    pub(super) const ALL: Self = Self { rank: 0, ranks: 1 };

    /// The names of these files. The largest files are assigned first, each to the rank with the
    /// fewest bytes so far, so that all ranks finish at about the same time. All ranks compute the
    /// same assignment.
    fn files(self, records: &BTreeMap<String, FileRecord>) -> BTreeSet<&str> {
        let mut files: Vec<(&String, &FileRecord)> = records.iter().collect();
        files.sort_by_key(|(name, record)| (std::cmp::Reverse(record.size), *name));
        let mut bytes = vec![0_u64; self.ranks];
        let mut mine = BTreeSet::new();
        for (name, record) in files {
            let rank = (0..self.ranks).min_by_key(|rank| bytes[*rank]).unwrap_or(0);
            bytes[rank] = bytes[rank].saturating_add(record.size);
            if rank == self.rank {
                mine.insert(name.as_str());
            }
        }
        mine
    }
}

/// Opens the checkpoint in `folder`.
///
/// # Errors
/// All damage that was found, at least one.
pub(super) fn verify_folder(folder: &Path, verification: Verification) -> Result<Checkpoint, Vec<Damage>> {
    verify_share(folder, verification, Share::ALL)
}

/// As [`verify_folder`], but only the files of `share` are read whole, if whole files are to be
/// read.
///
/// # Errors
/// All damage that was found, at least one.
pub(super) fn verify_share(folder: &Path, verification: Verification, share: Share) -> Result<Checkpoint, Vec<Damage>> {
    let metadata = read_metadata(folder).map_err(|damage| vec![damage])?;
    let named = match folder.file_name().and_then(|name| name.to_str()).map(parse_root_name) {
        Some(RootName::Checkpoint(iteration) | RootName::Displaced(iteration)) => Some(iteration),
        Some(RootName::Leftover | RootName::Other) | None => None,
    };
    if let Some(iteration) = named.filter(|&iteration| iteration != metadata.iteration) {
        return Err(vec![Damage::WrongIteration { folder: iteration, metadata: metadata.iteration }]);
    }
    let mine = share.files(&metadata.files);
    let how = |name: &str| if mine.contains(name) { verification } else { Verification::Sizes };
    let files = verify_files(folder, &metadata.files, &how)?;
    let headers = read_headers(&files)?;
    let slices = locate_slices(&metadata, &headers).map_err(|damage| vec![damage])?;
    Ok(Checkpoint::new(folder.to_owned(), metadata, files, slices))
}

fn read_metadata(folder: &Path) -> Result<Metadata, Damage> {
    let file = || METADATA_FILE.to_owned();
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Damage::NotAFolder),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Damage::FolderMissing),
        Err(e) => return Err(unreadable(METADATA_FILE, &e)),
    }
    let path = folder.join(METADATA_FILE);
    let bytes = untrusted_io::read(&path, untrusted_io::RECORDS_BYTES).map_err(|e| unreadable(METADATA_FILE, &e))?;

    /// Read first: other versions may have a different form.
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    let damage = |error| match error {
        SealError::Malformed(reason) => Damage::Malformed { file: file(), reason },
        SealError::Mismatch { expected, found } => Damage::ChecksumMismatch { file: file(), expected, found },
    };
    let (Version { format_version }, _) = unseal(&bytes).map_err(damage)?;
    if format_version > FORMAT_VERSION {
        return Err(Damage::UnsupportedVersion { file: file(), found: format_version, supported: FORMAT_VERSION });
    }
    let (metadata, _) = unseal::<Metadata>(&bytes).map_err(damage)?;
    match metadata.problem() {
        Some(reason) => Err(Damage::Malformed { file: file(), reason }),
        None => Ok(metadata),
    }
}

fn unreadable(file: &str, error: &io::Error) -> Damage {
    let file = file.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => Damage::FileMissing { file },
        _ => Damage::Unreadable { file, reason: error.to_string() },
    }
}

/// Verifies all files, several at a time and the largest first, so that the threads finish
/// together.
fn verify_files(
    folder: &Path,
    records: &BTreeMap<String, FileRecord>,
    how: &(dyn Fn(&str) -> Verification + Sync),
) -> Result<BTreeMap<String, VerifiedFile>, Vec<Damage>> {
    let mut queue: Vec<(&String, &FileRecord)> = records.iter().collect();
    queue.sort_by_key(|(_, record)| std::cmp::Reverse(record.size));
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(queue.len()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, record)) = queue.get(index) else { break };
            let outcome = verify_file(folder, name, record, how(name)).map(|mut file| {
                file.open = file.open.take_if(|_| index < MAX_OPEN_FILES);
                file
            });
            outcomes.lock().unwrap_or_else(|e| e.into_inner()).push(((*name).clone(), outcome));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(queue.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread the work takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let (mut files, mut damages) = (BTreeMap::new(), BTreeMap::new());
    for (name, outcome) in outcomes.into_inner().unwrap_or_else(|e| e.into_inner()) {
        match outcome {
            Ok(file) => drop(files.insert(name, file)),
            Err(damage) => drop(damages.insert(name, damage)),
        }
    }
    if damages.is_empty() { Ok(files) } else { Err(damages.into_values().collect()) }
}

fn verify_file(
    folder: &Path,
    name: &str,
    record: &FileRecord,
    verification: Verification,
) -> Result<VerifiedFile, Damage> {
    let path = folder.join(name);
    let failed = |e: io::Error| unreadable(name, &e);
    let (file, size) = untrusted_io::open(&path).map_err(failed)?;
    let size_mismatch = |found| Damage::SizeMismatch { file: name.to_owned(), expected: record.size, found };
    if size != record.size {
        return Err(size_mismatch(size));
    }
    let id = FileId::from_metadata(&file.metadata().map_err(failed)?);
    if verification == Verification::Contents {
        let (size, checksum) = checksum_file(&file).map_err(failed)?;
        if size != record.size {
            return Err(size_mismatch(size));
        }
        if checksum != record.checksum {
            let (expected, found) = (record.checksum, checksum);
            return Err(Damage::ChecksumMismatch { file: name.to_owned(), expected, found });
        }
    }
    Ok(VerifiedFile { path, id, size, open: Some(file) })
}

/// The header of a shard, and the offset of the data after it.
struct ShardHeader {
    header: Header,
    data_start: u64,
}

fn read_headers(files: &BTreeMap<String, VerifiedFile>) -> Result<BTreeMap<&str, ShardHeader>, Vec<Damage>> {
    let shards = files.iter().filter(|(name, _)| name.ends_with(SHARD_EXTENSION));
    shards
        .map(|(name, file)| match read_header(file) {
            Ok(header) => Ok((name.as_str(), header)),
            Err(reason) => Err(vec![Damage::Malformed { file: name.clone(), reason }]),
        })
        .collect()
}

fn read_header(file: &VerifiedFile) -> Result<ShardHeader, String> {
    let mut length = [0; 8];
    let too_short = || "it is not a safetensors file: too short for its header".to_owned();
    file.read_exact_at(&mut length, 0).map_err(|_| too_short())?;
    let length = u64::from_le_bytes(length);
    let data_start = length.checked_add(8).filter(|&end| end <= file.size() && length <= MAX_HEADER_BYTES);
    let data_start = data_start.ok_or_else(too_short)?;
    let mut json = vec![0; usize::try_from(length).map_err(|e| e.to_string())?];
    file.read_exact_at(&mut json, 8).map_err(|e| e.to_string())?;
    let header: Header = serde_json::from_slice(&json).map_err(|e| format!("its safetensors header: {e}"))?;
    let expected = data_start.checked_add(header.data_len() as u64);
    if expected != Some(file.size()) {
        let expected = expected.map_or("too many".to_owned(), |expected| expected.to_string());
        return Err(format!("its safetensors header describes {expected} bytes, it has {}", file.size()));
    }
    Ok(ShardHeader { header, data_start })
}

/// Finds the bytes of every slice, in the order of the metadata.
fn locate_slices(
    metadata: &Metadata,
    headers: &BTreeMap<&str, ShardHeader>,
) -> Result<BTreeMap<String, Vec<StoredSlice>>, Damage> {
    let mut located = BTreeMap::new();
    for (name, record) in &metadata.tensors {
        let mut slices = Vec::with_capacity(record.slices.len());
        for slice in &record.slices {
            let malformed = |reason| Damage::Malformed { file: slice.file.clone(), reason };
            let shard = headers.get(slice.file.as_str()).ok_or_else(|| {
                malformed(format!("{METADATA_FILE} lists tensor `{name}` in it, but it is not a safetensors file"))
            })?;
            let info = shard
                .header
                .info(&slice.key)
                .ok_or_else(|| malformed(format!("it lacks `{}`, which {METADATA_FILE} lists in it", slice.key)))?;
            if info.dtype != record.dtype.into() || info.shape != slice.slice.extent {
                return Err(malformed(format!(
                    "`{}` is {} {:?}, {METADATA_FILE} has it as {} {:?}",
                    slice.key, info.dtype, info.shape, record.dtype, slice.slice.extent
                )));
            }
            slices.push(StoredSlice { start: shard.data_start + info.data_offsets.0 as u64 });
        }
        located.insert(name.clone(), slices);
    }
    Ok(located)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;

    fn records(sizes: &[u64]) -> BTreeMap<String, FileRecord> {
        let record = |size| FileRecord { size, checksum: Checksum::compute(b"") };
        sizes.iter().enumerate().map(|(index, size)| (format!("file {index}"), record(*size))).collect()
    }

    #[test]
    fn files_are_divided_among_ranks_by_size() {
        let sizes = [45, 5, 40, 30, 0, 31, 2, 27];
        let records = records(&sizes);
        for ranks in [1, 2, 3, 7, 12] {
            let shares: Vec<BTreeSet<&str>> = (0..ranks).map(|rank| Share { rank, ranks }.files(&records)).collect();
            let all: BTreeSet<&str> = shares.iter().flatten().copied().collect();
            assert_eq!((all.len(), shares.iter().map(BTreeSet::len).sum::<usize>()), (sizes.len(), sizes.len()));
            let bytes = |share: &BTreeSet<&str>| share.iter().map(|name| records[*name].size).sum::<u64>();
            let most = shares.iter().map(bytes).max().unwrap();
            assert!(most <= 180_u64.div_ceil(ranks as u64) + 30, "{ranks} ranks: {most}");
        }
    }
}
