//! Cost of a run on any number of ranks, without running it: parameters, FLOPs, memory, traffic,
//! pipeline bubble, and an estimate of the time. Pure arithmetic over a [`RunConfig`]: no tensors,
//! no files, no ranks.
//!
//! Every number is for one training step. All ranks of a pipeline stage do the same, so numbers
//! "per rank" are given by stage.
//!
//! # What is counted
//! - Parameters, gradients and optimizer state: exactly, from the model's declarations
//!   ([`crate::model::ModelBuilder::outline`]).
//! - Activations: the bytes that the model's blocks declare for backward, with segments grouped by
//!   the recompute setting. FLOPs come from the blocks, too.
//! - Traffic: the *payload* that a rank passes to the communicator, as
//!   [`bridge_dist::comm::counting`] counts it, and next to it the bytes on the wire with ring
//!   algorithms. Expert traffic assumes that the router spreads tokens evenly.
//!   [`crate::train::measure`] runs a few steps with communicators that count, and
//!   [`Plan::compare`] compares.
//! - Time: every byte and FLOP at the rates given, the slowest stage setting the pace. A lower
//!   bound to compare layouts with, not a promise.
//!
//! Shape legend: `b` micro-batch, `t` sequence, `c` hidden, `h` heads, `g` key/value heads, `d`
//! head size, `f` feed-forward, `v` vocabulary, `n` tokens of a micro-batch on a context-parallel
//! rank (`b * t / cp`).

mod estimate;
mod flops;
mod gpus;
mod measured;
mod memory;
pub(crate) mod offload;
mod parameters;
mod pipeline;
pub(crate) mod recompute;
mod search;
mod segments;
pub(crate) mod settings;
mod setup;
mod stage;
mod traffic;

use serde::Serialize;

use crate::config::RunConfig;
use crate::model::ModelRegistry;

pub(crate) use estimate::bytes_per_second;
pub use estimate::{Estimate, Rates};
pub use flops::Flops;
pub use gpus::{GPUS, Gpu, usable_bytes};
pub use measured::{
    Amount, Comparison, GradientOverlap, MemoryComparison, RankMeasurement, StageComparison, TrafficComparison,
};
pub use memory::Memory;
pub use parameters::ParameterCounts;
pub use pipeline::{BubbleSource, Pipeline};
pub use search::{Divided, PlannedLayout, Recomputed, Search, SearchCounts, SearchOptions, Sizes, search, with_room};
pub use setup::{Batch, Layout, PlanError};
pub use stage::StagePlan;
pub use traffic::{Traffic, TrafficGroup};

use setup::Setup;

/// Inputs of a plan besides the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanOptions {
    /// Rates of links and devices, for an estimate of the time.
    pub rates: Option<Rates>,
    /// Rows of the embedding, where they are known already; `None` takes them from the
    /// configuration, which may not say.
    pub padded_vocab_size: Option<usize>,
    /// True if the device is known to have tensor cores that attention in 16 bits runs on.
    /// Otherwise memory is counted for the form that needs most.
    pub has_tensor_cores: bool,
}

/// Cost of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Layout of the ranks.
    pub layout: Layout,
    /// Sequences and tokens of a step.
    pub batch: Batch,
    /// Parameters of the whole model, each counted once.
    pub parameters: ParameterCounts,
    /// Parameters a token meets: all but the experts it does not visit.
    pub active_parameters: u64,
    /// Floating-point operations.
    pub flops: Flops,
    /// The pipeline's schedule and bubble.
    pub pipeline: Pipeline,
    /// A rank of each pipeline stage, in order.
    pub stages: Vec<StagePlan>,
    /// The time a step takes, where rates were given.
    pub estimate: Option<Estimate>,
}

impl Plan {
    /// The stage whose ranks need most memory.
    ///
    /// # Panics
    /// Never: a plan has a stage.
    pub fn largest_stage(&self) -> &StagePlan {
        self.stages.iter().max_by_key(|stage| stage.memory.total).expect("a plan has a stage")
    }

    /// Bytes that a rank of that stage needs.
    pub fn most_memory(&self) -> u64 {
        self.largest_stage().memory.total
    }

    /// Estimated seconds of a step; infinite without an estimate.
    pub fn step_seconds(&self) -> f64 {
        self.estimate.map_or(f64::INFINITY, |estimate| estimate.step_seconds)
    }
}

/// Computes the cost of `config` from the declarations of its kind of model.
///
/// # Errors
/// If the sizes fit no mesh, pipeline or vocabulary, or the model has parts that the plan cannot
/// count.
pub fn plan(config: &RunConfig, models: &ModelRegistry, options: &PlanOptions) -> Result<Plan, PlanError> {
    let setup = Setup::new(config, models, options.padded_vocab_size, options.has_tensor_cores)?;
    let pipeline = pipeline::plan(&setup)?;
    let peaks = pipeline::activation_peaks(&setup, |activations| activations)?;
    let on_host = |activations: segments::ChunkActivations| segments::ChunkActivations {
        kept: activations.moved,
        deferred: 0,
        ..activations
    };
    let host_peaks = pipeline::activation_peaks(&setup, on_host)?;
    let stages = (0..setup.stages.len())
        .map(|stage: usize| {
            let contents = &setup.stages[stage];
            StagePlan {
                stage,
                num_layers: contents.iter().map(|chunk| chunk.content.layers.len()).sum(),
                embedding: contents.iter().any(|chunk| chunk.content.embedding),
                head: contents.iter().any(|chunk| chunk.content.loss),
                parameters: parameters::of_stage(&setup, stage),
                flops: segments::stage_flops(&setup, stage),
                kept_activations: peaks[stage],
                recomputed_activations: segments::recomputed(&setup, stage),
                host_activations: host_peaks[stage],
                memory: memory::of_stage(&setup, stage, peaks[stage]),
                traffic: traffic::of_stage(&setup, stage),
            }
        })
        .collect::<Vec<_>>();
    let flops = flops::flops(&setup, &stages);
    let estimate = options.rates.map(|rates| estimate::estimate(&setup, &rates, &stages, &pipeline, &flops));
    let parameters = parameters::of_model(&setup);
    Ok(Plan {
        layout: setup.layout,
        batch: setup.batch(),
        active_parameters: parameters::active(&setup, &parameters),
        parameters,
        flops,
        pipeline,
        stages,
        estimate,
    })
}
