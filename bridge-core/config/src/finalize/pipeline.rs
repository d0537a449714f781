//! Pipeline stages, and batches that the schedule supports.

use bridge_dist::schedule::{PipelineShape, check_shape};

use super::super::choice::DType;
use super::super::pipeline::{pipeline_placement, pipeline_schedule};
use super::super::run_config::{FinalTraining, ParallelSizes};
use super::Draft;

/// Checks the placement of the layers, of which there are `num_layers` over all stacks, on stages,
/// and sets the number of chunks per rank, which a layout may determine.
pub(super) fn resolve(draft: &mut Draft<'_>, parallel: &mut ParallelSizes, num_layers: usize) {
    let model = draft.recipe.model.clone();
    let layout = "model.pipeline_model_parallel_layout";
    let others = [
        ("model.num_layers_in_first_pipeline_stage", model.num_layers_in_first_pipeline_stage.is_some()),
        ("model.num_layers_in_last_pipeline_stage", model.num_layers_in_last_pipeline_stage.is_some()),
        ("model.account_for_embedding_in_pipeline_split", model.account_for_embedding_in_pipeline_split),
        ("model.account_for_loss_in_pipeline_split", model.account_for_loss_in_pipeline_split),
    ];
    let is_wide = model.fp32_residual_connection;
    let sends_less = is_wide && model.pipeline_dtype.is_some_and(|dtype| dtype != DType::Float32);
    draft.forbid(
        sends_less,
        "model.pipeline_dtype",
        "must be float32 with model.fp32_residual_connection: what stages send is the residual stream",
    );
    let is_other = !is_wide && model.pipeline_dtype.is_some_and(|dtype| dtype != model.params_dtype);
    draft.forbid(
        is_other && parallel.pipeline == 1,
        "model.pipeline_dtype",
        "differs from model.params_dtype, but a single stage sends nothing: needs model.pipeline_model_parallel_size above 1",
    );
    let is_bytes = model.pipeline_dtype == Some(DType::UInt8);
    draft.forbid(is_bytes, "model.pipeline_dtype", "activations are sent as float32, float16 or bfloat16");
    if num_layers == 0 {
        // Reported as missing.
        return;
    }
    match pipeline_placement(&model, num_layers) {
        Ok(placement) => {
            parallel.virtual_pipeline = placement.chunks.first().map_or(1, Vec::len);
            let key = "model.microbatch_group_size_per_vp_stage";
            let is_grouped = model.microbatch_group_size_per_vp_stage.is_some();
            let message = "has no effect without virtual stages (model.virtual_pipeline_model_parallel_size)";
            draft.idle_unless(!is_grouped || parallel.virtual_pipeline > 1, key, message);
            let is_apart = placement.chunks.iter().flatten().any(|stage| stage.num_mtp_layers > 0 && !stage.loss);
            draft.require(!is_apart, layout, "must have m in the stage of L, whose output layer these layers share");
        }
        Err(error) => {
            let key = if model.pipeline_model_parallel_layout.is_some() {
                layout
            } else if let Some((key, _)) = others.iter().find(|(_, is_set)| *is_set) {
                key
            } else if parallel.virtual_pipeline > 1 {
                "model.virtual_pipeline_model_parallel_size"
            } else {
                "model.pipeline_model_parallel_size"
            };
            draft.conflict(key, error.to_string());
        }
    }
}

/// Checks that the schedule can run the micro-batches of every step.
pub(super) fn check_schedule(draft: &mut Draft<'_>, parallel: &ParallelSizes, train: &FinalTraining) {
    let model = draft.recipe.model.clone();
    let kind = pipeline_schedule(&model, parallel.virtual_pipeline);
    let unit = train.micro_batch_size.saturating_mul(parallel.data).max(1);
    let mut sizes = vec![train.global_batch_size];
    if let Some([start, increment, _]) = train.rampup_batch_size {
        // Checking more stages would take too long; the first ones suffice.
        sizes.extend((start..train.global_batch_size).step_by(increment.max(1)).take(100_000));
    }
    for size in sizes {
        let num_microbatches = (size / unit).max(1);
        let shape =
            PipelineShape { num_stages: parallel.pipeline, num_chunks: parallel.virtual_pipeline, num_microbatches };
        if let Err(error) = check_shape(kind, shape) {
            let key = match (model.pipeline_schedule, model.microbatch_group_size_per_vp_stage) {
                (_, Some(_)) => "model.microbatch_group_size_per_vp_stage",
                (Some(_), None) => "model.pipeline_schedule",
                (None, None) => "train.global_batch_size",
            };
            draft.conflict(key, format!("{num_microbatches} micro-batches per step: {error}"));
            return;
        }
    }
}
