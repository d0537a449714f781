//! From a run's configuration to the stages and the executor of one pipeline rank.

use bridge_dist::schedule::ScheduleKind;
use burn::tensor::{Device, FloatDType};

use super::{Pipeline, PipelineSettings};
use crate::config::{self, RunConfig, TransformerConfig, pipeline_placement, pipeline_schedule};
use crate::model::{BuildContext, ModelChunk, ModelConfig, Parallel, Stage, check_blocks};
use crate::plan;
use crate::plan::recompute::{Cuts, Recompute};
use crate::train::TrainError;

/// Builds what this pipeline rank holds of a model.
///
/// # Errors
/// If the layers cannot be spread as configured (`finalize` has checked that they can), or the model cannot be built.
pub(in crate::train) fn build_chunks(
    model: &TransformerConfig,
    model_config: &dyn ModelConfig,
    context: &BuildContext,
) -> Result<Vec<Box<dyn ModelChunk>>, TrainError> {
    let stacks = model_config.stacks();
    let mut placement = pipeline_placement(model, stacks.iter().sum())
        .map_err(|error| TrainError::Internal(format!("pipeline stages: {error}")))?;
    let contents = placement.chunks.swap_remove(context.parallel.groups.pipeline().rank());
    let stages: Vec<Stage> = contents.iter().map(|content| Stage::of_content(&stacks, content)).collect();
    let chunks = model_config.builder().build_models(model_config, context, &stages)?;
    check_blocks(&chunks)?;
    Ok(chunks)
}

/// The executor of this rank's `chunks`.
pub(in crate::train) fn pipeline(
    config: &RunConfig,
    parallel: &Parallel,
    chunks: &[Box<dyn ModelChunk>],
    device: &Device,
) -> Pipeline {
    let schedule = pipeline_schedule(&config.model, chunks.len());
    let kept = (plan::settings::recompute(config), plan::settings::cuts(config));
    executor(config, (schedule, kept), parallel, (chunks, device))
}

/// The executor of chunks that only run forward, one a rank.
pub(in crate::train) fn forward_pipeline(
    config: &RunConfig,
    parallel: &Parallel,
    chunks: &[Box<dyn ModelChunk>],
    device: &Device,
) -> Pipeline {
    let kept = (Recompute::Off, Cuts::default());
    executor(config, (ScheduleKind::OneForwardOneBackward, kept), parallel, (chunks, device))
}

fn executor(
    config: &RunConfig,
    (schedule, (recompute, cuts)): (ScheduleKind, (Recompute, Cuts)),
    parallel: &Parallel,
    (chunks, device): (&[Box<dyn ModelChunk>], &Device),
) -> Pipeline {
    let wire_dtype = config.model.pipeline_dtype.map(|dtype| match dtype {
        config::DType::Float16 => FloatDType::F16,
        config::DType::BFloat16 => FloatDType::BF16,
        _ => FloatDType::F32,
    });
    let settings = PipelineSettings { schedule, recompute, cuts, wire_dtype };
    Pipeline::new(parallel.groups.pipeline().clone(), chunks, device, &settings)
}
