//! Parts of whole tensors that ranks hold: which elements, and putting whole parameters together again.

use std::collections::HashMap;
use std::ops::Range;

use bridge_core::model::{ModelChunk, ParameterInfo, Placement, ReplicaGroup};
use bridge_dist::comm::{CommError, ReduceOp};
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Tensor;

use crate::decoder::DecoderConfig;

/// Runs of elements of a whole row-major tensor of shape `global_shape` that a rank holds, in local order.
pub(crate) fn held_runs(placement: &Placement, global_shape: &[usize]) -> Vec<Range<usize>> {
    let Some(shard) = &placement.shard else {
        return std::iter::once(0..global_shape.iter().product()).collect();
    };
    let outer: usize = global_shape[..shard.dim].iter().product();
    let inner: usize = global_shape[shard.dim + 1..].iter().product();
    (0..outer)
        .flat_map(|row| {
            let start = row * shard.size;
            shard.parts.iter().map(move |part| (start + part.start) * inner..(start + part.end) * inner)
        })
        .collect()
}

/// The part of a whole tensor that a rank holds.
pub(crate) fn local_part(whole: Vec<f32>, placement: &Placement, global_shape: &[usize]) -> Vec<f32> {
    if placement.shard.is_none() {
        return whole;
    }
    held_runs(placement, global_shape).into_iter().flat_map(|run| &whole[run]).copied().collect()
}

/// Takes a whole parameter: name, shape, values.
pub type OnParameter<'a> = dyn FnMut(&str, &[usize], Vec<f32>) + 'a;

/// Puts the parameters of a model that is spread over ranks together, one after the other, and hands each to `f` on every rank: name,
/// shape and values, row-major. There is one whole parameter in memory at a time.
///
/// All ranks of the world call this, each with its own chunks. Parameters come in the order of [`DecoderConfig::parameter_shapes`].
///
/// # Errors
/// If ranks fail or disagree.
///
/// # Panics
/// If a chunk was not built for `config` and `groups`.
pub fn gather_parameters(
    config: &DecoderConfig,
    chunks: &[&dyn ModelChunk],
    groups: &ProcessGroups,
    f: &mut OnParameter<'_>,
) -> Result<(), CommError> {
    // Of copies one counts: that of the first chunk with the name, because a tied table is in the last stage too.
    let mut owned: HashMap<String, (ParameterInfo, Tensor<1>)> = HashMap::new();
    for chunk in chunks {
        let infos = chunk.parameters().into_iter().filter(|info| is_owner(info, groups));
        let mut infos: HashMap<String, ParameterInfo> = infos.map(|info| (info.name.clone(), info)).collect();
        chunk.visit_parameters(&mut |name, value| {
            if let Some(info) = infos.remove(name) {
                owned.entry(info.name.clone()).or_insert((info, value));
            }
        });
    }
    for (name, shape) in config.parameter_shapes() {
        let mut whole = vec![0.0_f32; shape.iter().product()];
        if let Some((info, value)) = owned.remove(&name) {
            assert_eq!(info.global_shape(), shape, "the whole shape of {name}");
            let part: Vec<f32> = value.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now");
            let mut rest = &part[info.counted_elements()];
            for run in held_runs(&info.placement, &shape) {
                // What others count comes last.
                let (now, later) = rest.split_at(run.len().min(rest.len()));
                whole[run.start..run.start + now.len()].copy_from_slice(now);
                rest = later;
            }
        }
        // Every element is held by one owner and zero elsewhere, so that the sum is the value itself.
        groups.world().all_reduce((&mut whole).into(), ReduceOp::Sum)?;
        f(&name, &shape, whole);
    }
    Ok(())
}

/// Whether this rank's copy of a parameter, or of its slice, is the one that counts.
fn is_owner(info: &ParameterInfo, groups: &ProcessGroups) -> bool {
    let place = groups.coordinates();
    let is_sharded = info.placement.shard.is_some();
    let is_first_replica = match info.placement.replicas {
        ReplicaGroup::Dense => place.dp == 0 && place.cp == 0 && (is_sharded || place.tp == 0),
        ReplicaGroup::Expert => place.expert_dp == 0 && (is_sharded || place.expert_tp == 0),
    };
    let is_second_copy = info.name.starts_with("embedding.") && place.pp != 0;
    is_first_replica && !is_second_copy
}
