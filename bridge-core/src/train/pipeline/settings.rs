//! From a run's configuration to the stages and the executor of one pipeline rank.

use burn::tensor::{Device, FloatDType};

use super::{Pipeline, PipelineSettings};
use crate::config::{self, RunConfig, pipeline_placement, pipeline_schedule};
use crate::model::{ModelChunk, Parallel, Stage};
use crate::train::{TrainError, convert};

/// What the chunks of pipeline rank `rank` hold.
///
/// # Errors
/// If the layers cannot be spread as configured; `finalize` has checked that they can.
pub(in crate::train) fn stages(config: &RunConfig, rank: usize) -> Result<Vec<Stage>, TrainError> {
    let mut placement =
        pipeline_placement(&config.model).map_err(|error| TrainError::Internal(format!("pipeline stages: {error}")))?;
    let contents = placement.chunks.swap_remove(rank).into_iter();
    Ok(contents
        .map(|content| Stage { layers: content.layers, embedding: content.embedding, head: content.loss })
        .collect())
}

/// The executor of this rank's `chunks`.
pub(in crate::train) fn pipeline(
    config: &RunConfig,
    parallel: &Parallel,
    chunks: &[Box<dyn ModelChunk>],
    device: &Device,
) -> Pipeline {
    let activation_dtype = convert::params_dtype(config);
    let settings = PipelineSettings {
        schedule: pipeline_schedule(&config.model, chunks.len()),
        recompute: convert::recompute(config),
        cuts: convert::cuts(config),
        activation_dtype,
        wire_dtype: match config.model.pipeline_dtype {
            None => activation_dtype,
            Some(config::DType::Float16) => FloatDType::F16,
            Some(config::DType::BFloat16) => FloatDType::BF16,
            Some(_) => FloatDType::F32,
        },
    };
    Pipeline::new(parallel.groups.pipeline().clone(), chunks, device, &settings)
}

/// Shape of the activations between stages for a micro-batch whose tokens on this rank are `[b, t]`.
pub(in crate::train) fn boundary(config: &RunConfig, tokens: [usize; 2]) -> [usize; 3] {
    let [b, t] = tokens;
    let parts = if config.model.sequence_parallel { config.parallel.tensor } else { 1 };
    [b, t / parts, config.model.hidden_size]
}
