//! Split of a chunk's segments into regions, of which some are recomputed in the backward pass.

use std::ops::Range;

use crate::model::{Segment, SegmentRole};

/// Activation recompute: Megatron's `recompute_granularity` and `recompute_method`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Keep all activations.
    Off,
    /// Groups of `layers` consecutive layers; only the input of each group is kept.
    Uniform {
        /// Layers a group.
        layers: usize,
    },
    /// The first `layers` layers, one by one.
    Block {
        /// Number of layers.
        layers: usize,
    },
    /// These parts of every layer.
    Selective(Vec<SegmentRole>),
}

/// Consecutive segments between two cuts of the autodiff graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Indices of its segments.
    pub segments: Range<usize>,
    /// True if the graph is dropped after forward and built again in backward.
    pub recomputed: bool,
}

/// Cuts of the graph besides those of recompute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphCuts {
    /// No further cuts.
    #[default]
    AsNeeded,
    /// Between all segments, so that the gradients of one are complete while others still run
    /// backward.
    EachSegment,
    /// Between all layers, and each (and the embedding) is recomputed, so that its parameters need
    /// not stay.
    EachLayerRecomputed,
}

/// Splits `segments` into regions.
pub fn split_into_regions(segments: &[Segment], recompute: &Recompute, cuts: GraphCuts) -> Vec<Region> {
    let first_layer = segments.iter().find_map(|segment| segment.layer).unwrap_or(0);
    // Segments with equal keys, next to each other, share a region.
    let recomputed = |segment: &Segment| -> Option<usize> {
        let layer = segment.layer? - first_layer;
        match recompute {
            Recompute::Off => None,
            Recompute::Uniform { layers } => Some(layer / (*layers).max(1)),
            Recompute::Block { layers } => (layer < *layers).then_some(layer),
            Recompute::Selective(roles) => {
                let is_named = roles.contains(&segment.role) || segment.role == SegmentRole::Layer;
                is_named.then_some(2 * layer + usize::from(matches!(segment.role, SegmentRole::Mlp | SegmentRole::Moe)))
            }
        }
    };
    let key = |index: usize, segment: &Segment| -> Key {
        match (recomputed(segment), cuts) {
            (Some(group), _) => Key::Recomputed(group),
            (None, GraphCuts::AsNeeded) => Key::Kept(None),
            (None, GraphCuts::EachSegment) => Key::Kept(Some(index)),
            (None, GraphCuts::EachLayerRecomputed) => Key::RecomputedLayer(segment.layer),
        }
    };
    let mut regions: Vec<(Key, Region)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let key = key(index, segment);
        match regions.last_mut() {
            Some((last, region)) if *last == key => region.segments.end = index + 1,
            _ => {
                let recomputed = !matches!(key, Key::Kept(_));
                regions.push((key, Region { segments: index..index + 1, recomputed }));
            }
        }
    }
    regions.into_iter().map(|(_, region)| region).collect()
}

/// Property that the segments of one region share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Regions with a kept graph; the segment, if each segment is cut off.
    Kept(Option<usize>),
    /// Segments that are recomputed together.
    Recomputed(usize),
    /// Segments that are recomputed because their parameters are released.
    RecomputedLayer(Option<usize>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(layers: Range<usize>) -> Vec<Segment> {
        let of = |role, layer| Segment { role, layer };
        let mut segments = vec![of(SegmentRole::Embedding, None)];
        for layer in layers {
            segments.push(of(SegmentRole::Attention, Some(layer)));
            segments.push(of(SegmentRole::Mlp, Some(layer)));
        }
        segments.push(of(SegmentRole::Head, None));
        segments
    }

    fn cuts(recompute: Recompute) -> Vec<(Range<usize>, bool)> {
        split_into_regions(&decoder(4..7), &recompute, GraphCuts::AsNeeded)
            .into_iter()
            .map(|r| (r.segments, r.recomputed))
            .collect()
    }

    #[test]
    fn regions_follow_the_setting() {
        assert_eq!(cuts(Recompute::Off), [(0..8, false)]);
        assert_eq!(cuts(Recompute::Uniform { layers: 2 }), [(0..1, false), (1..5, true), (5..7, true), (7..8, false)]);
        assert_eq!(cuts(Recompute::Block { layers: 1 }), [(0..1, false), (1..3, true), (3..8, false)]);
        assert_eq!(
            cuts(Recompute::Selective(vec![SegmentRole::Mlp])),
            [(0..2, false), (2..3, true), (3..4, false), (4..5, true), (5..6, false), (6..7, true), (7..8, false)]
        );
        assert_eq!(cuts(Recompute::Selective(vec![SegmentRole::Attention, SegmentRole::Mlp])).len(), 8);
    }

    #[test]
    fn dense_and_expert_blocks_are_modules_of_their_own() {
        let mut segments = decoder(0..2);
        segments[4].role = SegmentRole::Moe;
        let recomputed = |role| -> Vec<usize> {
            let regions =
                split_into_regions(&segments, &Recompute::Selective(vec![role]), GraphCuts::AsNeeded).into_iter();
            regions.filter(|region| region.recomputed).flat_map(|region| region.segments).collect()
        };
        assert_eq!(recomputed(SegmentRole::Mlp), [2]);
        assert_eq!(recomputed(SegmentRole::Moe), [4]);
    }

    #[test]
    fn segments_and_layers_are_cut_for_ranks() {
        let segments = |cuts| -> Vec<(Range<usize>, bool)> {
            let regions = split_into_regions(&decoder(4..6), &Recompute::Off, cuts);
            regions.into_iter().map(|region| (region.segments, region.recomputed)).collect()
        };
        assert_eq!(segments(GraphCuts::EachSegment), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6].map(|one| (one, false)));
        assert_eq!(segments(GraphCuts::EachLayerRecomputed), [(0..1, true), (1..3, true), (3..5, true), (5..6, true)]);
        let mixed =
            split_into_regions(&decoder(4..6), &Recompute::Selective(vec![SegmentRole::Mlp]), GraphCuts::EachSegment);
        let recomputed: Vec<bool> = mixed.into_iter().map(|region| region.recomputed).collect();
        assert_eq!(recomputed, [false, false, true, false, true, false]);
    }
}
