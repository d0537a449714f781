//! Shard files: safetensors, written once, front to back, with a running checksum. Publishes
//! nothing.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::tensor::{Metadata as Header, TensorInfo};
use serde::{Deserialize, Serialize};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::fsio::FileWriter;
use super::names::{file_name_problem, shard_file_name};
use super::progress::ProgressMeter;
use super::slices::TensorSlice;
use super::snapshot::{ShardTensor, TensorGroup};
use super::tensor::DType;

/// The key that safetensors reserves.
const RESERVED_KEY: &str = "__metadata__";

/// A shard file as one rank wrote it. Ranks send these records to the rank that publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenShard {
    /// Name in the folder.
    pub file: String,
    /// Size in bytes.
    pub size: u64,
    /// Checksum of the bytes.
    pub checksum: Checksum,
    /// The group its tensors belong to.
    pub group: String,
    /// Tensors of the shard.
    pub tensors: Vec<WrittenTensor>,
}

/// A tensor, or a slice of one, as one rank wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenTensor {
    /// The name of the tensor.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of the whole tensor.
    pub global_shape: Vec<usize>,
    /// The name inside the shard file.
    pub key: String,
    /// Position of the slice in the whole tensor.
    #[serde(flatten)]
    pub slice: TensorSlice,
}

/// One file to write.
pub(super) struct ShardPlan<'s> {
    file: String,
    group: &'s str,
    /// Tensors with their keys, in the order in which they are stored.
    tensors: Vec<(String, &'s ShardTensor)>,
}

/// Divides the tensors of each of `groups` into files of at most `max_bytes`, and `writers` of
/// about one size if there is enough; a larger tensor gets its own file. Fails if a group's name is
/// not a valid file name, or two tensors have the same key.
pub(super) fn plan_shards<'s>(
    groups: &'s [TensorGroup],
    rank: usize,
    max_bytes: u64,
    writers: NonZeroUsize,
) -> Result<Vec<ShardPlan<'s>>, CheckpointError> {
    let mut plans: Vec<ShardPlan<'s>> = Vec::new();
    for group in groups {
        let plain = !group.name.contains('/') && file_name_problem(&group.name).is_none();
        if !plain {
            return Err(CheckpointError::invalid_snapshot(&group.name, "a group's name must be a plain file name"));
        }
        let mut keyed: Vec<_> = unique_keys(&group.tensors)?.into_iter().collect();
        // Wide elements first, so that every tensor is aligned for its type; the sort is stable, so
        // names stay in order.
        keyed.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.source.dtype().size()));
        let mut parts: Vec<ShardPlan<'s>> = Vec::new();
        let mut filled = 0u64;
        let total: u64 = group.tensors.iter().map(|tensor| tensor.source.num_bytes() as u64).sum();
        let max_bytes = max_bytes.min(total.div_ceil(writers.get() as u64));
        for entry in keyed {
            let bytes = entry.1.source.num_bytes() as u64;
            match parts.last_mut() {
                Some(plan) if filled == 0 || filled.saturating_add(bytes) <= max_bytes => plan.tensors.push(entry),
                _ => {
                    let file = shard_file_name(&group.name, rank, parts.len());
                    parts.push(ShardPlan { file, group: &group.name, tensors: vec![entry] });
                    filled = 0;
                }
            }
            filled += bytes;
        }
        plans.append(&mut parts);
    }
    Ok(plans)
}

/// The tensors of a group by their key in the file: the name, and for a slice also where it begins,
/// because one rank may hold several slices of a tensor.
fn unique_keys(tensors: &[ShardTensor]) -> Result<BTreeMap<String, &ShardTensor>, CheckpointError> {
    let mut keyed = BTreeMap::new();
    for tensor in tensors {
        let key = if tensor.is_whole() {
            tensor.name.clone()
        } else {
            let offset: Vec<String> = tensor.offset.iter().map(usize::to_string).collect();
            format!("{}@{}", tensor.name, offset.join(","))
        };
        if key == RESERVED_KEY || tensor.name.is_empty() {
            return Err(CheckpointError::invalid_snapshot(key, "safetensors does not allow a tensor of this name"));
        }
        if keyed.insert(key.clone(), tensor).is_some() {
            return Err(CheckpointError::invalid_snapshot(key, "the group holds it twice"));
        }
    }
    Ok(keyed)
}

/// Writes all files of `plans` into `folder`, `num_writers` at a time.
///
/// # Errors
/// The first error of any file; other files may be incomplete.
pub(super) fn write_shards(
    folder: &Path,
    plans: &[ShardPlan<'_>],
    num_writers: usize,
    meter: &ProgressMeter,
) -> Result<Vec<WrittenShard>, CheckpointError> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(plans.len()));
    let work = || {
        while let Some((index, plan)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            plans.get(index).map(|plan| (index, plan))
        } {
            let result = write_shard(folder, plan, meter);
            if result.is_err() {
                // The save has failed; the rest need not be written.
                next.store(plans.len(), Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(|e| e.into_inner()).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..num_writers.min(plans.len()) {
            // Without another thread the work takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn write_shard(folder: &Path, plan: &ShardPlan<'_>, meter: &ProgressMeter) -> Result<WrittenShard, CheckpointError> {
    let mut file = FileWriter::create(&folder.join(&plan.file))?;
    file.write(&header(plan)?)?;
    for (_, tensor) in &plan.tensors {
        tensor.source.write(&mut |bytes| {
            file.write(bytes)?;
            meter.add(bytes.len() as u64);
            Ok(())
        })?;
    }
    let (size, checksum) = file.finish()?;
    let tensors = plan
        .tensors
        .iter()
        .map(|(key, tensor)| WrittenTensor {
            name: tensor.name.clone(),
            dtype: tensor.source.dtype(),
            global_shape: tensor.global_shape.clone(),
            key: key.clone(),
            slice: TensorSlice { offset: tensor.offset.clone(), extent: tensor.source.shape().to_vec() },
        })
        .collect();
    Ok(WrittenShard { file: plan.file.clone(), size, checksum, group: plan.group.to_owned(), tensors })
}

/// The header of a safetensors file: the length of the JSON that follows, eight bytes
/// little-endian, then the JSON, padded with spaces so that the data begins at a multiple of eight.
fn header(plan: &ShardPlan<'_>) -> Result<Vec<u8>, CheckpointError> {
    let mut end = 0;
    let infos = plan.tensors.iter().map(|(key, tensor)| {
        let start = end;
        end += tensor.source.num_bytes();
        let shape = tensor.source.shape().to_vec();
        (key.clone(), TensorInfo { dtype: tensor.source.dtype().into(), shape, data_offsets: (start, end) })
    });
    let invalid = |reason: String| CheckpointError::invalid_snapshot(&plan.file, reason);
    let header = Header::new(None, infos.collect()).map_err(|e| invalid(e.to_string()))?;
    let mut json = serde_json::to_vec(&header).map_err(|e| invalid(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tensor::HostTensor;
    use super::*;

    fn group(tensors: Vec<ShardTensor>) -> [TensorGroup; 1] {
        [TensorGroup { name: "model".into(), tensors }]
    }

    fn bytes(name: &str, len: usize) -> ShardTensor {
        ShardTensor::whole(name, HostTensor::from_vec([len], vec![0u8; len]).unwrap())
    }

    fn writers(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    fn files(groups: &[TensorGroup], max_bytes: u64) -> Vec<(String, usize)> {
        let plans = plan_shards(groups, 3, max_bytes, writers(1)).unwrap();
        plans.into_iter().map(|plan| (plan.file, plan.tensors.len())).collect()
    }

    #[test]
    fn files_are_split_at_the_limit() {
        let groups = group(vec![bytes("a", 4), bytes("b", 4), bytes("c", 9), bytes("d", 1)]);
        let expected = [
            ("model-rank00003.safetensors", 2),
            ("model-rank00003-part00001.safetensors", 1),
            ("model-rank00003-part00002.safetensors", 1),
        ];
        assert_eq!(files(&groups, 8), expected.map(|(f, n)| (f.to_owned(), n)));
        assert_eq!(files(&groups, u64::MAX), [("model-rank00003.safetensors".to_owned(), 4)]);
        assert_eq!(files(&group(vec![]), 8), []);
    }

    #[test]
    fn every_writer_has_a_file_if_there_are_tensors_enough() {
        let groups = group((0..12).map(|number| bytes(&format!("{number:02}"), 4)).collect());
        for count in [1, 2, 3, 5, 12] {
            let plans = plan_shards(&groups, 3, u64::MAX, writers(count)).unwrap();
            assert!((count..count + 2).contains(&plans.len()), "{count}: {} files", plans.len());
            assert_eq!(plans.iter().map(|plan| plan.tensors.len()).sum::<usize>(), 12);
        }
        assert_eq!(plan_shards(&groups, 3, u64::MAX, writers(100)).unwrap().len(), 12);
        assert_eq!(plan_shards(&groups, 3, u64::MAX, writers(5)).unwrap().len(), 6, "files of two tensors each");
    }

    #[test]
    fn unusable_names_are_errors() {
        let plan = |groups: &[TensorGroup]| plan_shards(groups, 0, 8, writers(1)).map(|_| ()).unwrap_err().to_string();
        assert!(plan(&group(vec![bytes("a", 1), bytes("a", 1)])).contains("`a`: the group holds it twice"));
        assert!(plan(&group(vec![bytes(RESERVED_KEY, 1)])).contains(RESERVED_KEY));
        assert!(plan(&group(vec![bytes("", 1)])).contains("safetensors"));
        let outside = [TensorGroup { name: "../model".into(), tensors: vec![] }];
        assert!(plan(&outside).contains("../model"));
    }

    #[test]
    fn several_slices_of_one_tensor_fit_into_one_file() {
        let slice =
            |offset| ShardTensor::slice("w", [4, 2], [offset, 0], HostTensor::from_vec([1, 2], vec![0f32; 2]).unwrap());
        let tensors = [slice(0), slice(3)];
        let keys: Vec<String> = unique_keys(&tensors).unwrap().into_keys().collect();
        assert_eq!(keys, ["w@0,0", "w@3,0"]);
    }
}
