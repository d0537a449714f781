//! From a run's configuration to the stages and the executor of one pipeline rank.

use bridge_dist::schedule::ScheduleKind;
use burn::tensor::{Device, FloatDType};

use super::{Pipeline, PipelineSettings};
use crate::config::{self, RunConfig, TransformerConfig, pipeline_placement, pipeline_schedule};
use crate::model::{ModelChunk, Parallel, Stage};
use crate::plan;
use crate::plan::recompute::{Cuts, Recompute};
use crate::train::TrainError;

/// What the chunks of pipeline rank `rank` hold of a model whose stacks have so many layers.
///
/// # Errors
/// If the layers cannot be spread as configured; `finalize` has checked that they can.
pub(in crate::train) fn stages(config: &RunConfig, stacks: &[usize], rank: usize) -> Result<Vec<Stage>, TrainError> {
    stages_of(&config.model, stacks, rank)
}

/// As [`stages`], of another model on the ranks of a run.
///
/// # Errors
/// If the layers cannot be spread as configured.
pub(in crate::train) fn stages_of(
    model: &TransformerConfig,
    stacks: &[usize],
    rank: usize,
) -> Result<Vec<Stage>, TrainError> {
    let mut placement = pipeline_placement(model, stacks.iter().sum())
        .map_err(|error| TrainError::Internal(format!("pipeline stages: {error}")))?;
    let contents = placement.chunks.swap_remove(rank);
    Ok(contents.iter().map(|content| Stage::of_content(stacks, content)).collect())
}

/// The executor of this rank's `chunks`.
pub(in crate::train) fn pipeline(
    config: &RunConfig,
    parallel: &Parallel,
    chunks: &[Box<dyn ModelChunk>],
    device: &Device,
) -> Pipeline {
    let settings = PipelineSettings {
        schedule: pipeline_schedule(&config.model, chunks.len()),
        recompute: plan::settings::recompute(config),
        cuts: plan::settings::cuts(config),
        wire_dtype: wire_dtype(config),
    };
    Pipeline::new(parallel.groups.pipeline().clone(), chunks, device, &settings)
}

/// The executor of chunks that only run forward, one a rank.
pub(in crate::train) fn forward_pipeline(
    config: &RunConfig,
    parallel: &Parallel,
    chunks: &[Box<dyn ModelChunk>],
    device: &Device,
) -> Pipeline {
    let settings = PipelineSettings {
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::Off,
        cuts: Cuts::default(),
        wire_dtype: wire_dtype(config),
    };
    Pipeline::new(parallel.groups.pipeline().clone(), chunks, device, &settings)
}

fn wire_dtype(config: &RunConfig) -> Option<FloatDType> {
    config.model.pipeline_dtype.map(|dtype| match dtype {
        config::DType::Float16 => FloatDType::F16,
        config::DType::BFloat16 => FloatDType::BF16,
        _ => FloatDType::F32,
    })
}
