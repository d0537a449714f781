//! Between the run and the checkpoint store: the shards that each rank saves, and resuming from a
//! checkpoint of any layout.

mod base;
mod foreign;
mod gradient_dumps;
mod gradients;
mod other_schedule;
mod reference;
mod restore;
mod save;
mod saver;
mod sources;
mod start;
mod states;
mod strictness;
mod temporary;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bridge_data::untrusted_io;
use burn::tensor::{DType as BurnDType, Device, Tensor, TensorData};
use bytes::Bytes;

use crate::checkpoint::{Checkpoint, CheckpointError, DType, HostTensor, LocalShard};
use crate::model::{Declaration, ModelChunk};

pub use base::{AdapterBase, open_base};
pub(in crate::train) use foreign::{check_foreign, remark_on_foreign};
pub(in crate::train) use gradient_dumps::{GRADIENTS, GradientDumps};
pub(in crate::train) use gradients::save_gradients;
pub(in crate::train) use reference::{find_teacher, restore_all};
pub use restore::load_parameters;
pub(in crate::train) use save::{save_checkpoint, save_non_persistent};
pub(in crate::train) use saver::{Saver, named_manager};
pub use sources::{load_adapted, load_adapter};
pub(in crate::train) use start::{Start, find_start};
pub(in crate::train) use strictness::Strictness;
pub(in crate::train) use temporary::{NonPersistentSaves, newest_save};

/// Prefix of the optimizer's tensors in a checkpoint.
const OPTIMIZER_PREFIX: &str = "optimizer.";

/// Slices of this rank's part of a chunk's parameters in the whole parameters, by name.
fn local_shards(chunk: &dyn ModelChunk) -> BTreeMap<String, LocalShard> {
    let local = |parameter: &Declaration| {
        let shard = parameter.placement.shard.clone();
        (parameter.name.clone(), LocalShard { shape: parameter.shape.clone(), shard })
    };
    chunk.parameters().iter().map(local).collect()
}

/// A tensor's memory, flat.
fn host(tensor: Tensor<1>) -> Result<HostTensor, CheckpointError> {
    struct Owner(TensorData);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let dtype = match tensor.dtype() {
        BurnDType::F32 => DType::F32,
        BurnDType::BF16 => DType::BF16,
        BurnDType::F16 => DType::F16,
        BurnDType::F64 => DType::F64,
        other => panic!("parameters are floating-point numbers, not {other:?}"),
    };
    let shape = tensor.dims();
    HostTensor::from_owner(dtype, shape, Owner(tensor.into_data()))
}

/// Elements `flat` of a rank's shard of a saved tensor.
fn device_tensor(
    checkpoint: &Checkpoint,
    name: &str,
    shard: &LocalShard,
    flat: Range<usize>,
    device: &Device,
) -> Result<Tensor<1>, CheckpointError> {
    let tensor = checkpoint.load_local(name, shard, flat)?;
    CheckpointError::unless_finite(checkpoint.path(), name, &tensor)?;
    let dtype = match tensor.dtype() {
        DType::F32 => BurnDType::F32,
        DType::BF16 => BurnDType::BF16,
        DType::F16 => BurnDType::F16,
        DType::F64 => BurnDType::F64,
        other => {
            return Err(CheckpointError::InvalidTensor {
                reason: format!("`{name}`: expected a floating-point dtype, found {other}"),
            });
        }
    };
    let shape = [tensor.shape()[0]];
    let data = TensorData::from_bytes_vec(tensor.into_bytes().into(), shape, dtype);
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// The files of a tokenizer folder, to be saved with a checkpoint.
pub(in crate::train) fn read_files(folder: &Path) -> std::io::Result<BTreeMap<String, Bytes>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.insert(
                entry.file_name().to_string_lossy().into_owned(),
                Bytes::from(untrusted_io::read(&entry.path(), untrusted_io::TABLE_BYTES)?),
            );
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::tests::toy;

    #[test]
    fn tensors_keep_their_bits_on_the_way_to_a_checkpoint() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let values = Tensor::<1>::from_data([1.5_f32, -0.0, 3.0e-5], &Device::flex()).cast(dtype);
            let saved = host(values.clone()).unwrap();
            assert_eq!(saved.shape(), [3]);
            assert_eq!(&saved.bytes()[..], values.into_data().as_bytes());
        }
    }

    #[test]
    fn a_parameter_without_a_shard_is_the_whole() {
        let chunk = toy(2, FloatDType::F32);
        let local_shards = local_shards(chunk.as_ref());
        assert_eq!(local_shards.len(), chunk.parameters().len());
        assert_eq!(local_shards["layers.1.up"], LocalShard::whole([11, 7]));
    }
}
