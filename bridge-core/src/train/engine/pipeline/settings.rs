//! From a run's configuration to the stages and the executor of one pipeline rank.

use bridge_dist::schedule::ScheduleKind;
use burn::tensor::Device;

use super::{Pipeline, PipelineSettings};
use crate::config::{RunConfig, TransformerConfig, pipeline_placement, pipeline_schedule};
use crate::model::{BuildContext, ModelChunk, ModelConfig, Parallel, Stage, check_blocks};
use crate::plan;
use crate::plan::recompute::{GraphCuts, Recompute};
use crate::train::engine::error::EngineError;
use crate::train::engine::offload::SegmentOffload;
use crate::train::error::CommonError;
use crate::train::settings;

/// Builds the chunks of a model that this pipeline rank holds. Fails if the layers cannot be spread
/// as configured (`finalize` has checked that they can), or the model cannot be built.
pub(in crate::train) fn build_chunks(
    model: &TransformerConfig,
    model_config: &dyn ModelConfig,
    context: &BuildContext,
) -> Result<Vec<Box<dyn ModelChunk>>, EngineError> {
    let stacks = model_config.stacks();
    let mut placement = pipeline_placement(model, stacks.iter().sum())
        .map_err(|error| CommonError::Internal(format!("pipeline stages: {error}")))?;
    let contents = placement.chunks.swap_remove(context.parallel.groups.pipeline().rank());
    let stages: Vec<Stage> = contents.iter().map(|content| Stage::from_content(&stacks, content)).collect();
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
    let (recompute, cuts) = (plan::settings::recompute(config), plan::settings::cuts(config));
    let offload = SegmentOffload::from_run(config);
    let settings = PipelineSettings {
        schedule,
        recompute,
        cuts,
        offload,
        wire_dtype: config.model.pipeline_dtype.map(settings::float_dtype),
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
        cuts: GraphCuts::default(),
        offload: None,
        wire_dtype: config.model.pipeline_dtype.map(settings::float_dtype),
    };
    Pipeline::new(parallel.groups.pipeline().clone(), chunks, device, &settings)
}
