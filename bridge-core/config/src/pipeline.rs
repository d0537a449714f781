//! The layers of each pipeline stage, and the pipeline schedule, according to the settings of
//! `[model]`.

use bridge_dist::schedule::ScheduleKind;
use bridge_dist::schedule::placement::{Accounting, PipelineLayout, Placement, PlacementError, PlacementSpec, Split};

use super::choice::PipelineSchedule;
use super::run_config::RunConfig;
use super::sections::TransformerConfig;
use crate::schedule::MicroBatchWindows;

/// The layers of each chunk of each pipeline rank, for a model whose stacks have `num_layers`
/// layers together.
///
/// # Errors
/// If the layout cannot be parsed, or the layers cannot be placed according to the settings.
pub fn pipeline_placement(model: &TransformerConfig, num_layers: usize) -> Result<Placement, PlacementError> {
    let accounting = |counts| if counts { Accounting::AsLayer } else { Accounting::Free };
    let (first, last) = (model.num_layers_in_first_pipeline_stage, model.num_layers_in_last_pipeline_stage);
    let split = if let Some(layout) = &model.pipeline_model_parallel_layout {
        Split::Layout(layout.as_slice().join("|").parse::<PipelineLayout>()?)
    } else if first.is_some() || last.is_some() {
        Split::Uneven { first, last }
    } else {
        Split::Even {
            embedding: accounting(model.account_for_embedding_in_pipeline_split),
            loss: accounting(model.account_for_loss_in_pipeline_split),
        }
    };
    let spec = PlacementSpec {
        num_layers,
        pipeline_model_parallel_size: model.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size: model.virtual_pipeline_model_parallel_size,
        mtp_num_layers: model.mtp_num_layers.unwrap_or(0),
        split,
    };
    spec.place()
}

/// The pipeline schedule in training, with `num_chunks` chunks on each rank.
pub fn pipeline_schedule(model: &TransformerConfig, num_chunks: usize) -> ScheduleKind {
    match model.pipeline_schedule {
        Some(PipelineSchedule::GPipe) => ScheduleKind::GPipe,
        Some(PipelineSchedule::ZeroBubbleH1) => ScheduleKind::ZeroBubbleH1,
        None | Some(PipelineSchedule::OneForwardOneBackward) if num_chunks == 1 => ScheduleKind::OneForwardOneBackward,
        None | Some(PipelineSchedule::OneForwardOneBackward) => ScheduleKind::Interleaved {
            microbatch_group_size: model
                .microbatch_group_size_per_vp_stage
                .unwrap_or(model.pipeline_model_parallel_size),
        },
    }
}

/// The windows of a pass that trains. Where a teacher's logits of a whole vocabulary are kept for
/// the model, a window is as short as schedules allow.
pub fn train_windows(config: &RunConfig) -> MicroBatchWindows {
    let size = config.train.micro_batch_size;
    if config.distillation.as_ref().is_none_or(|settings| settings.top_k.is_some()) {
        return micro_batch_windows(config, size);
    }
    windows_of(config, usize::MAX)
}

/// The windows of a pass whose micro-batches have `micro_batch_size` samples.
pub fn micro_batch_windows(config: &RunConfig, micro_batch_size: usize) -> MicroBatchWindows {
    windows_of(config, micro_batch_size * config.model.seq_length / config.parallel.context)
}

/// Windows for micro-batches of `tokens` tokens on each rank.
fn windows_of(config: &RunConfig, tokens: usize) -> MicroBatchWindows {
    let model = &config.model;
    let stages = model.pipeline_model_parallel_size;
    let group = model.microbatch_group_size_per_vp_stage.unwrap_or(stages);
    MicroBatchWindows::new(tokens, (stages > 1).then_some(group))
}
