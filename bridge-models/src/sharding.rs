//! Putting whole parameters of a model that is spread over ranks together again.

use std::collections::HashMap;

use bridge_core::model::{Declaration, ModelChunk, ReplicaGroup, Segment};
use bridge_dist::comm::{CommError, ReduceOp};
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Tensor;

use crate::decoder::DecoderConfig;

/// Takes a whole parameter: name, shape, values.
pub type OnParameter<'a> = dyn FnMut(&str, &[usize], Vec<f32>) + 'a;

/// Puts the parameters of a model that is spread over ranks together, one after the other, and
/// hands each to `f` on every rank: name, shape and values, row-major. There is one whole parameter
/// in memory at a time.
///
/// All ranks of the world call this, each with its own chunks. Parameters come in the order of
/// [`DecoderConfig::declarations`].
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
    let whole_model = config.declarations();
    let mut held = held_by_name(chunks);
    for declaration in whole_model.parameters() {
        let (name, shape) = (&declaration.name, &declaration.shape);
        let first_use = whole_model.segments()[declaration.segments[0]];
        let mut whole = vec![0.0_f32; declaration.num_elements()];
        // Only one of several copies is used. A tied table is in the last stage too: the copy in
        // the segment that uses it first is taken.
        let owned = held.remove(name.as_str()).filter(|held| held.first_use == first_use && is_owner(held, groups));
        if let Some(Held { declaration, value, .. }) = owned {
            assert_eq!(&declaration.global_shape(), shape, "the whole shape of {name}");
            let part: Vec<f32> = value.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now");
            let mut rest = &part[declaration.counted_elements()];
            for run in declaration.placement.held_runs(shape) {
                // Elements that other ranks count come last.
                let (now, later) = rest.split_at(run.len().min(rest.len()));
                whole[run.start..run.start + now.len()].copy_from_slice(now);
                rest = later;
            }
        }
        // Every element is held by one owner and zero elsewhere, so that the sum is the value
        // itself.
        groups.world().all_reduce((&mut whole).into(), ReduceOp::Sum)?;
        f(name, shape, whole);
    }
    Ok(())
}

/// A parameter of a chunk.
struct Held<'a> {
    declaration: &'a Declaration,
    first_use: Segment,
    value: Tensor<1>,
}

/// The parameters of a rank's chunks; of a tied table in two of them, that of the first chunk.
fn held_by_name<'a>(chunks: &[&'a dyn ModelChunk]) -> HashMap<&'a str, Held<'a>> {
    let mut held = HashMap::new();
    for chunk in chunks {
        let segments = chunk.segments();
        let mut declarations = chunk.parameters().iter();
        chunk.visit_parameters(&mut |_, value| {
            let declaration = declarations.next().expect("parameters are visited in the order they are listed in");
            let first_use = segments[declaration.segments[0]];
            held.entry(declaration.name.as_str()).or_insert(Held { declaration, first_use, value });
        });
    }
    held
}

/// True if this rank's copy of a parameter, or of its slice, is the one that counts.
fn is_owner(held: &Held, groups: &ProcessGroups) -> bool {
    let place = groups.coordinates();
    let placement = &held.declaration.placement;
    let is_sharded = placement.shard.is_some();
    match placement.replicas {
        ReplicaGroup::Dense => place.dp == 0 && place.cp == 0 && (is_sharded || place.tp == 0),
        ReplicaGroup::Expert => place.expert_dp == 0 && (is_sharded || place.expert_tp == 0),
    }
}
