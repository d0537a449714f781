//! Plan of one rank of a pipeline stage. The counting is elsewhere.

use serde::Serialize;

use super::{Memory, ParameterCounts, Traffic};
use crate::model::TrafficKind;

/// One rank of a pipeline stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagePlan {
    /// Rank in the pipeline.
    pub stage: usize,
    /// Layers on it, over all its chunks.
    pub num_layers: usize,
    /// True if the stage has the embedding.
    pub embedding: bool,
    /// True if the stage has the output head.
    pub head: bool,
    /// Parameters that the rank holds (its tensor- and expert-parallel slice, before any sharding
    /// over replicas).
    pub parameters: ParameterCounts,
    /// FLOPs of the rank in a step, repeated forwards included.
    pub flops: f64,
    /// Bytes of activations that all micro-batches in flight keep for their backward, at most.
    pub kept_activations: u64,
    /// Bytes of activations that recompute brings back: those of its largest region.
    pub recomputed_activations: u64,
    /// Bytes of activations that are in host memory instead, at most, where the device has memory
    /// of its own.
    pub host_activations: u64,
    /// Bytes of memory.
    pub memory: Memory,
    /// Traffic of the rank.
    pub traffic: Vec<Traffic>,
}

impl StagePlan {
    /// Payload bytes of one kind.
    pub fn traffic_bytes(&self, kind: TrafficKind) -> u64 {
        self.traffic.iter().filter(|traffic| traffic.kind == kind).map(|traffic| traffic.bytes).sum()
    }
}
