//! The segments of chunks, the regions that recompute cuts them into, and their FLOPs.

use bridge_dist::schedule::placement::StageContent;

use super::setup::{PlanError, Setup};
use crate::model::{Segment, SegmentRole};
use crate::schedule::{AttentionFlops, FlopsShape, MoeFlops, WindowFlops, WindowedLayers};
use crate::train::{Region, configured_cuts, plan as regions};

/// A chunk's segments, as the decoder lists them.
pub(super) fn chunk_segments(setup: &Setup<'_>, chunk: &StageContent) -> Vec<Segment> {
    let of = |role, layer| Segment { role, layer };
    let mut segments = Vec::with_capacity(2 * chunk.layers.len() + 2);
    segments.extend(chunk.embedding.then(|| of(SegmentRole::Embedding, None)));
    for layer in chunk.layers.clone() {
        segments.push(of(SegmentRole::Attention, Some(layer)));
        let feed_forward = if setup.is_moe(layer) { SegmentRole::Moe } else { SegmentRole::Mlp };
        segments.push(of(feed_forward, Some(layer)));
    }
    segments.extend(chunk.loss.then(|| of(SegmentRole::Head, None)));
    segments
}

/// The segments of all chunks of a stage.
pub(super) fn stage_segments(setup: &Setup<'_>, stage: usize) -> Vec<Segment> {
    setup.stages[stage].iter().flat_map(|chunk| chunk_segments(setup, chunk)).collect()
}

/// A chunk's segments by region. Where the model ends and backward comes next, the last region's graph stays whatever is recomputed.
pub(super) fn chunk_regions(setup: &Setup<'_>, chunk: &StageContent) -> Vec<(Region, Vec<Segment>)> {
    let segments = chunk_segments(setup, chunk);
    let cut = regions(&segments, &setup.recompute, configured_cuts(setup.config));
    let kept = cut.len().checked_sub(1).filter(|_| chunk.loss && setup.schedule.backward_follows_loss());
    let numbered = cut.into_iter().enumerate();
    let regions =
        numbered.map(|(index, region)| Region { recomputed: region.recomputed && Some(index) != kept, ..region });
    regions.map(|region| (region.clone(), segments[region.segments].to_vec())).collect()
}

/// FLOPs of a rank of a stage in a step, the forwards that recompute repeats included.
pub(super) fn stage_flops(setup: &Setup<'_>, stage: usize) -> Result<f64, PlanError> {
    let mut total = 0.0;
    for chunk in &setup.stages[stage] {
        for (region, segments) in chunk_regions(setup, chunk) {
            // Backward costs twice what forward does, so a repeated forward is another third.
            let factor = if region.recomputed { 4.0 / 3.0 } else { 1.0 };
            for segment in segments {
                total += factor * segment_flops(setup, segment)?;
            }
        }
    }
    let shared_by = (setup.layout.tensor * setup.layout.context) as f64;
    Ok(total * setup.shape.num_microbatches as f64 / shared_by)
}

/// FLOPs of a segment for one micro-batch, over all ranks that share it.
fn segment_flops(setup: &Setup<'_>, segment: Segment) -> Result<f64, PlanError> {
    let whole = setup.flops_shape();
    let layer = segment.layer.unwrap_or(0);
    let nothing =
        FlopsShape { num_layers: 0, padded_vocab_size: 0, moe: None, attention: without_window(&whole), ..whole };
    let one_layer = FlopsShape { num_layers: 1, attention: attention_of_layer(setup, layer), ..nothing.clone() };
    let moe = setup.is_moe(layer).then(|| setup.flops_shape().moe).flatten();
    let shape = match segment.role {
        SegmentRole::Embedding => nothing,
        SegmentRole::Head => FlopsShape { padded_vocab_size: setup.padded_vocab, ..nothing },
        SegmentRole::Attention => FlopsShape { ffn_hidden_size: 0, ..one_layer },
        SegmentRole::Mlp | SegmentRole::Moe => FlopsShape {
            num_attention_heads: 0,
            attention: no_attention(),
            moe: moe.map(|moe| MoeFlops { moe_layers: vec![true], ..moe }),
            ..one_layer
        },
        SegmentRole::Layer => {
            FlopsShape { moe: moe.map(|moe| MoeFlops { moe_layers: vec![true], ..moe }), ..one_layer }
        }
    };
    Ok(shape.flops_per_batch(setup.config.train.micro_batch_size as u64, setup.model.seq_length as u64)?)
}

fn no_attention() -> AttentionFlops {
    let output_gate = crate::schedule::GateKind::Plain;
    AttentionFlops::Grouped { num_query_groups: 0, kv_channels: 0, output_gate, window: None }
}

fn without_window(shape: &FlopsShape) -> AttentionFlops {
    let mut attention = shape.attention.clone();
    if let AttentionFlops::Grouped { window, .. } = &mut attention {
        *window = None;
    }
    attention
}

/// The attention of one layer, windowed if that layer is.
fn attention_of_layer(setup: &Setup<'_>, layer: usize) -> AttentionFlops {
    let mut attention = setup.flops_shape().attention;
    let is_windowed = setup.model.windowed_layers.get(layer).copied().unwrap_or(false);
    if let AttentionFlops::Grouped { window, .. } = &mut attention {
        let span = window.as_ref().filter(|_| is_windowed).map(|window| window.span);
        *window = span.map(|span| WindowFlops { span, layers: WindowedLayers::All });
    }
    attention
}
