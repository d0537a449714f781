//! States of the optimizer in checkpoints: elements in the dtype in which they are kept (codes of 8
//! bits as `U8`), with the scale of the tensor where there is one. Masters and states by blocks are
//! saved in float32, so that other layouts and optimizers can read them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bridge_kernels::optim::{Remainders, Stored, halves};
use burn::tensor::{Device, Tensor};

use super::{OPTIMIZER_PREFIX, device_tensor, host};
use crate::checkpoint::{
    Checkpoint, CheckpointError, Content, DType, HostTensor, LocalShard, Piece, ShardTensor, TensorStream,
};
use crate::optim::{Distribution, OptimizerState};

/// Suffix of a state's kind for a tensor of scales.
const SCALE: &str = "_scale";

/// The elements of a saved tensor that are made float32 at once.
const BLOCK: usize = 1 << 14;

/// Optimizer state that this rank saves. `shards` has the slices of its parts of parameters,
/// `parameters` the values of those whose masters are remainders.
pub(super) fn saved_states(
    state: OptimizerState,
    distribution: &Distribution,
    shards: &BTreeMap<String, LocalShard>,
    parameters: &BTreeMap<String, Tensor<1>>,
) -> Result<Vec<ShardTensor>, CheckpointError> {
    let mut tensors = Vec::new();
    let place = |key: &str| {
        let (kind, parameter) = key.split_once('.').unwrap_or_default();
        if let Some(shape) = state.whole.get(key) {
            let shard = LocalShard::whole(shape.clone());
            let range = 0..shard.num_elements();
            let (kind, parameter, saved) = (kind.to_owned(), parameter.to_owned(), range.clone());
            let is_saved = distribution.saves_whole(&parameter);
            return is_saved.then_some(Place { kind, parameter, shard: Cow::Owned(shard), range, saved });
        }
        let saved = distribution.saved_state(parameter)?;
        let shard = Cow::Borrowed(&shards[parameter]);
        let range = state.ranges.get(key).cloned().unwrap_or(0..shard.num_elements());
        Some(Place { kind: kind.to_owned(), parameter: parameter.to_owned(), shard, range, saved })
    };
    for (key, stored) in &state.tensors {
        if let Some(place) = place(key) {
            tensors.extend(place.stored(stored)?);
        }
    }
    for (key, remainders) in &state.remainders {
        if let Some(place) = place(key) {
            tensors.extend(place.master(remainders, &parameters[&place.parameter]));
        }
    }
    Ok(tensors)
}

/// Position of a state: `range` of a rank's part of a parameter exists, and `saved` of it is saved.
struct Place<'a> {
    kind: String,
    parameter: String,
    shard: Cow<'a, LocalShard>,
    range: Range<usize>,
    saved: Range<usize>,
}

impl Place<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{OPTIMIZER_PREFIX}{}{suffix}.{}", self.kind, self.parameter)
    }

    fn stored(&self, stored: &Stored) -> Result<Vec<ShardTensor>, CheckpointError> {
        if let Stored::Blocks(blocks) = stored {
            let blocks = blocks.clone();
            return Ok(self.streamed(Arc::new(move |range| blocks.widen(range))));
        }
        let held = self.saved.start - self.range.start..self.saved.end - self.range.start;
        let part = stored.part(&held);
        let elements = match &part {
            Stored::Plain(values) | Stored::Scaled { values, .. } => host(values.clone())?,
            Stored::Codes { codes, .. } => HostTensor::from_owner(DType::U8, [codes.len()], Codes(Arc::clone(codes)))?,
            Stored::Blocks(_) => unreachable!("they are streamed"),
        };
        let mut tensors = ShardTensor::of_local(&self.name(""), &self.shard, self.saved.clone(), &elements)?;
        // The scale belongs to the whole parameter. The rank that saves the first element saves the
        // scale.
        let is_first = |slice: &ShardTensor| slice.offset.iter().all(|offset| *offset == 0);
        if let Some(scale) = part.scale()
            && tensors.iter().any(is_first)
        {
            tensors.push(ShardTensor::whole(self.name(SCALE), HostTensor::from_vec([1], vec![scale])?));
        }
        Ok(tensors)
    }

    fn master(&self, remainders: &Remainders, parameter: &Tensor<1>) -> Vec<ShardTensor> {
        let (high, remainders) = (halves(parameter.clone()), remainders.clone());
        self.streamed(Arc::new(move |range| remainders.join(&high, range)))
    }

    /// Float32 values that are made while they are written, from `values` of ranges of this rank's
    /// elements.
    fn streamed(&self, values: Arc<Values>) -> Vec<ShardTensor> {
        let tensor = |piece: Piece| {
            let runs = self.shard.runs(&piece).map(|run| {
                let start = run.source - self.range.start;
                start..start + run.len
            });
            let (values, shape) = (Arc::clone(&values), piece.global.extent);
            let source = Content::Stream(Arc::new(Streamed { shape, runs: runs.collect(), values }));
            let global_shape = self.shard.global_shape();
            ShardTensor { name: self.name(""), global_shape, offset: piece.global.offset, source }
        };
        self.shard.pieces(&self.saved).into_iter().map(tensor).collect()
    }
}

/// Computes the values of a range of elements.
type Values = dyn Fn(Range<usize>) -> Vec<f32> + Send + Sync;

struct Codes(Arc<Vec<u8>>);

impl AsRef<[u8]> for Codes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A rectangle of float32 values.
struct Streamed {
    shape: Vec<usize>,
    /// Ranges of elements of the rank's shard, in order.
    runs: Vec<Range<usize>>,
    values: Arc<Values>,
}

impl TensorStream for Streamed {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        for run in &self.runs {
            for start in run.clone().step_by(BLOCK) {
                let values = (self.values)(start..run.end.min(start + BLOCK));
                write(bytemuck::cast_slice(&values))?;
            }
        }
        Ok(())
    }
}

/// The kind of a saved tensor of the optimizer and its parameter, and whether it is the scale of
/// that.
pub(super) fn kind_of(name: &str) -> (&str, &str, bool) {
    let key = name.strip_prefix(OPTIMIZER_PREFIX).unwrap_or(name);
    let (kind, parameter) = key.split_once('.').unwrap_or((key, ""));
    match kind.strip_suffix(SCALE) {
        Some(kind) => (kind, parameter, true),
        None => (kind, parameter, false),
    }
}

/// Reads elements `flat` of a rank's part of a saved state, in the format that it has.
pub(super) fn load_stored(
    checkpoint: &Checkpoint,
    kind: &str,
    parameter: &str,
    shard: &LocalShard,
    flat: Range<usize>,
    device: &Device,
) -> Result<Stored, CheckpointError> {
    let name = format!("{OPTIMIZER_PREFIX}{kind}.{parameter}");
    let scale_name = format!("{OPTIMIZER_PREFIX}{kind}{SCALE}.{parameter}");
    let dtype = checkpoint.tensor(&name)?.dtype;
    // An unknown format of a state is reported as the expected one.
    let is_state = matches!(dtype, DType::F32 | DType::BF16 | DType::F16 | DType::U8);
    checkpoint.expect(&name, if is_state { dtype } else { DType::F32 }, &shard.global_shape())?;
    let has_scale = checkpoint.names_in("optimizer").any(|name| name == scale_name);
    let scale = match dtype {
        DType::U8 => Some(read_scale(checkpoint, &scale_name)?),
        DType::F16 if has_scale => Some(read_scale(checkpoint, &scale_name)?),
        _ => None,
    };
    if dtype != DType::U8 {
        let values = device_tensor(checkpoint, &name, shard, flat, device)?;
        return Ok(scale.map_or(Stored::Plain(values.clone()), |scale| Stored::Scaled { values, scale }));
    }
    let codes = checkpoint.load_local(&name, shard, flat)?.to_vec::<u8>()?;
    if codes.iter().any(|code| code & 0x7f == 0x7f) {
        return Err(CheckpointError::NotFinite { path: checkpoint.path().to_owned(), name, value: f64::NAN });
    }
    Ok(Stored::Codes { codes: Arc::new(codes), scale: scale.expect("codes have one") })
}

fn read_scale(checkpoint: &Checkpoint, name: &str) -> Result<f32, CheckpointError> {
    checkpoint.expect(name, DType::F32, &[1])?;
    let scale = checkpoint.load_tensor(name)?.to_vec::<f32>()?[0];
    let is_scale = scale.is_finite() && scale > 0.0;
    let reason = || format!("`{name}`: expected a scale above 0, found {scale}");
    if is_scale { Ok(scale) } else { Err(CheckpointError::InvalidTensor { reason: reason() }) }
}
