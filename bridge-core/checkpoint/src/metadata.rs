//! The content of `metadata.json`: the files of a checkpoint, and which file holds which slice of
//! which tensor. Opens no shard.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::names::{METADATA_FILE, file_name_problem};
use super::shard::WrittenShard;
use super::slices::{TensorSlice, tiling_problem};
use super::tensor::DType;

/// The format version that is written, and the newest that can be read.
pub const FORMAT_VERSION: u32 = 1;

/// The content of `metadata.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// The format's version: [`FORMAT_VERSION`] when written.
    pub format_version: u32,
    /// The program and version that wrote it.
    pub producer: String,
    /// The step that was saved.
    pub iteration: u64,
    /// Time of the save, in seconds since 1970-01-01 UTC.
    pub saved_at_unix_seconds: u64,
    /// Every other file of the folder, by its path inside.
    pub files: BTreeMap<String, FileRecord>,
    /// Every tensor, by name.
    pub tensors: BTreeMap<String, TensorRecord>,
}

/// A file as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Size in bytes.
    pub size: u64,
    /// Checksum of the bytes.
    pub checksum: Checksum,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// The group it was saved in: `model`, `optimizer`.
    pub group: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The slices that tile it, without overlaps or gaps.
    pub slices: Vec<SliceRecord>,
}

/// The location of a slice of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// The shard file.
    pub file: String,
    /// The name inside the shard file.
    pub key: String,
    /// Position of the slice in the whole tensor.
    #[serde(flatten)]
    pub slice: TensorSlice,
}

/// Adds the files of `shards` to `files` and returns the tensors that their slices form. Fails if
/// two ranks wrote the same file, disagree about a tensor, or wrote slices that do not tile it.
pub(super) fn merge_shards(
    shards: &[WrittenShard],
    files: &mut BTreeMap<String, FileRecord>,
) -> Result<BTreeMap<String, TensorRecord>, CheckpointError> {
    let mut tensors: BTreeMap<String, TensorRecord> = BTreeMap::new();
    for shard in shards {
        let record = FileRecord { size: shard.size, checksum: shard.checksum };
        if files.insert(shard.file.clone(), record).is_some() {
            return Err(CheckpointError::invalid_snapshot(&shard.file, "two ranks or groups wrote it"));
        }
        for written in &shard.tensors {
            let slice =
                SliceRecord { file: shard.file.clone(), key: written.key.clone(), slice: written.slice.clone() };
            let (group, dtype, shape) = (shard.group.clone(), written.dtype, written.global_shape.clone());
            match tensors.entry(written.name.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(TensorRecord { group, dtype, shape, slices: vec![slice] });
                }
                Entry::Occupied(mut entry) => {
                    let known = entry.get_mut();
                    if (&known.group, known.dtype, &known.shape) != (&group, dtype, &shape) {
                        let reason = format!(
                            "{} has it as {} {:?} in group {}, {} as {dtype} {shape:?} in group {group}",
                            known.slices[0].file, known.dtype, known.shape, known.group, shard.file
                        );
                        return Err(CheckpointError::invalid_snapshot(entry.key(), reason));
                    }
                    known.slices.push(slice);
                }
            }
        }
    }
    match tensors.iter().find_map(|(name, record)| Some((name, record.problem()?))) {
        Some((name, reason)) => Err(CheckpointError::invalid_snapshot(name, reason)),
        None => Ok(tensors),
    }
}

impl TensorRecord {
    /// Why this record is invalid, if it is.
    fn problem(&self) -> Option<String> {
        if self.dtype.byte_len(&self.shape).is_none() {
            return Some(format!("{:?} has more bytes than can be addressed", self.shape));
        }
        let slices: Vec<_> = self.slices.iter().map(|record| &record.slice).collect();
        tiling_problem(&self.shape, &slices)
    }
}

impl Metadata {
    /// Why this metadata is invalid, if it is: another program may have written it, with a correct
    /// checksum.
    pub(super) fn problem(&self) -> Option<String> {
        let bad_name = |name: &String| {
            if name == METADATA_FILE {
                Some(format!("lists `{name}` itself"))
            } else {
                file_name_problem(name).map(|problem| format!("lists a file `{name}` whose name {problem}"))
            }
        };
        let bad_tensor = |(name, record): (&String, &TensorRecord)| {
            let unlisted = record.slices.iter().find(|slice| !self.files.contains_key(&slice.file));
            unlisted
                .map(|slice| format!("tensor `{name}` is in `{}`, which is not listed", slice.file))
                .or_else(|| record.problem().map(|problem| format!("tensor `{name}`: {problem}")))
        };
        self.files.keys().find_map(bad_name).or_else(|| self.tensors.iter().find_map(bad_tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::super::shard::WrittenTensor;
    use super::*;

    fn shard(rank: usize, offset: usize, rows: usize) -> WrittenShard {
        let tensor = WrittenTensor {
            name: "w".into(),
            dtype: DType::F32,
            global_shape: vec![4, 3],
            key: "w".into(),
            slice: TensorSlice { offset: vec![offset, 0], extent: vec![rows, 3] },
        };
        let file = format!("model-rank0000{rank}.safetensors");
        WrittenShard { file, size: 1, checksum: Checksum::compute(b"x"), group: "model".into(), tensors: vec![tensor] }
    }

    fn merge(shards: &[WrittenShard]) -> Result<BTreeMap<String, TensorRecord>, CheckpointError> {
        merge_shards(shards, &mut BTreeMap::new())
    }

    #[test]
    fn slices_of_ranks_become_one_tensor() {
        let tensors = merge(&[shard(0, 0, 1), shard(1, 1, 3)]).unwrap();
        assert_eq!(tensors["w"].shape, [4, 3]);
        assert_eq!(tensors["w"].slices.len(), 2);
    }

    #[test]
    fn ranks_that_do_not_fit_together_are_errors() {
        let error = |shards: &[WrittenShard]| merge(shards).unwrap_err().to_string();
        assert!(error(&[shard(0, 0, 1), shard(1, 1, 2)]).contains("9 of 12"));
        assert!(error(&[shard(0, 0, 4), shard(1, 0, 4)]).contains("overlap"));
        assert!(error(&[shard(0, 0, 2), shard(0, 2, 2)]).contains("two ranks"));
        let mut other = shard(1, 2, 2);
        other.tensors[0].dtype = DType::BF16;
        assert!(error(&[shard(0, 0, 2), other]).contains("as F32 [4, 3] in group model"));
    }

    #[test]
    fn metadata_that_points_outside_is_refused() {
        let mut files = BTreeMap::new();
        let tensors = merge_shards(&[shard(0, 0, 4)], &mut files).unwrap();
        let good = Metadata {
            format_version: FORMAT_VERSION,
            producer: "test".into(),
            iteration: 1,
            saved_at_unix_seconds: 0,
            files,
            tensors,
        };
        assert_eq!(good.problem(), None);
        for name in ["../x", "/etc/passwd", METADATA_FILE] {
            let mut bad = good.clone();
            bad.files.insert(name.into(), FileRecord { size: 0, checksum: Checksum::compute(b"") });
            assert!(bad.problem().is_some(), "{name}");
        }
        let mut bad = good.clone();
        bad.files.clear();
        assert!(bad.problem().unwrap().contains("not listed"));
        let mut bad = good;
        bad.tensors.get_mut("w").unwrap().slices.clear();
        assert!(bad.problem().unwrap().contains("0 of 12"));
    }
}
