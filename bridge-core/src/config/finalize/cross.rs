//! Stage 4: rules between sections, and the sample counts that follow from several of them.

use super::super::choice::{DataloaderType, RerunMode, ShardingStrategy};
use super::super::run_config::{FinalTraining, FinalValidation, SampleCounts};
use super::{Draft, Purpose};

/// Rules that belong to no single section.
pub(super) fn check(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let ddp = draft.recipe.ddp.clone();
    draft.require(
        !(model.calculate_per_token_loss && ddp.average_in_collective),
        "ddp.average_in_collective",
        "excludes model.calculate_per_token_loss",
    );
    draft.require(
        ddp.param_name_patterns_for_fp32_local_accumulation.is_empty() || !ddp.grad_reduce_in_fp32,
        "ddp.param_name_patterns_for_fp32_local_accumulation",
        "excludes ddp.grad_reduce_in_fp32",
    );
    profiling_window(draft);
    skip_train_evaluates(draft);
    evaluation_has_data(draft);
    dependent_settings(draft);
    samples_need_a_whole_model(draft);
    let context = model.context_parallel_size.max(1);
    draft.require(
        context == 1 || model.seq_length.is_multiple_of(context.saturating_mul(2)),
        "model.seq_length",
        format!("must be divisible by 2 x model.context_parallel_size = {}", 2 * context),
    );
    draft.require(
        draft.recipe.peft.is_none() || draft.recipe.checkpoint.pretrained_checkpoint.is_some(),
        "checkpoint.pretrained_checkpoint",
        "must be given with [peft]",
    );
    let has_rate = draft.recipe.rerun_state_machine.error_injection_rate > 0;
    let is_type_set = draft.recipe_differs("rerun_state_machine.error_injection_type");
    draft.require(
        has_rate || !is_type_set,
        "rerun_state_machine.error_injection_type",
        "has no effect without rerun_state_machine.error_injection_rate",
    );
    let is_validating = draft.recipe.rerun_state_machine.rerun_mode == RerunMode::ValidateResults;
    draft.require(
        !has_rate || is_validating,
        "rerun_state_machine.error_injection_rate",
        "has no effect without rerun_state_machine.rerun_mode = \"validate_results\"",
    );
    let rerun = &draft.recipe.rerun_state_machine;
    let validates = rerun.check_for_nan_in_loss || rerun.check_for_spiky_loss;
    draft.require(
        !is_validating || validates,
        "rerun_state_machine.rerun_mode",
        "has nothing to validate without rerun_state_machine.check_for_nan_in_loss or \
         rerun_state_machine.check_for_spiky_loss",
    );
    let dataset = draft.recipe.dataset.config.clone();
    let validation = &draft.recipe.validation;
    let trains_shuffled = dataset.dataloader_type == Some(DataloaderType::Cyclic) && !validation.skip_train;
    let validates_shuffled = validation.eval_iters.unwrap_or(0) > 0 && !validation.full_validation;
    draft.require(
        dataset.data_sharding || trains_shuffled || validates_shuffled,
        "dataset.data_sharding",
        "has no effect, for nothing is shuffled: training is without dataset.dataloader_type = \"cyclic\", and validation without \
         validation.eval_iters batches (all of a split is read in order)",
    );
    draft.require(
        dataset.dataloader_type != Some(DataloaderType::Cyclic) || dataset.drop_last,
        "dataset.drop_last",
        "cannot be false with dataset.dataloader_type = \"cyclic\", which has no incomplete batches",
    );
}

/// The sample at the end is made by the first rank alone.
fn samples_need_a_whole_model(draft: &mut Draft<'_>) {
    let (model, ddp) = (&draft.recipe.model, &draft.recipe.ddp);
    let sizes = [
        ("model.tensor_model_parallel_size", model.tensor_model_parallel_size),
        ("model.pipeline_model_parallel_size", model.pipeline_model_parallel_size),
        ("model.expert_model_parallel_size", model.expert_model_parallel_size),
        ("model.expert_tensor_parallel_size", model.expert_tensor_parallel_size.unwrap_or(1)),
    ];
    let size = sizes.into_iter().find(|(_, size)| *size > 1).map(|(key, size)| format!("{key} = {size}"));
    let is_sharded = ddp.data_parallel_sharding_strategy == ShardingStrategy::OptimGradsParams;
    let sharding = "ddp.data_parallel_sharding_strategy = \"optim_grads_params\"";
    let Some(spread) = size.or_else(|| is_sharded.then(|| sharding.to_owned())) else {
        return;
    };
    // A plan has no end at which something would be sampled.
    let is_asked = draft.recipe.generate.prompt.is_some() && draft.purpose == Purpose::Train;
    let message =
        format!("no rank has the whole model with {spread}: sample from the checkpoint with `bridge generate` instead");
    draft.forbid(is_asked, "generate.prompt", message);
}

/// Settings that say nothing while another one is off, with that other one.
fn dependent_settings(draft: &mut Draft<'_>) {
    let recipe = &draft.recipe;
    let (logger, rerun) = (&recipe.logger, &recipe.rerun_state_machine);
    let throughput = (logger.log_throughput_to_tensorboard, "logger.log_throughput_to_tensorboard");
    let runtime = (logger.log_runtime_to_tensorboard, "logger.log_runtime_to_tensorboard");
    let spiky = (rerun.check_for_spiky_loss, "rerun_state_machine.check_for_spiky_loss");
    let prompt = (recipe.generate.prompt.is_some(), "generate.prompt");
    let save = (recipe.checkpoint.save.is_some(), "checkpoint.save");
    let qk_layernorm = (recipe.model.qk_layernorm, "model.qk_layernorm");
    let settings = [
        ("logger.throughput_window_size", throughput),
        ("logger.runtime_time_unit", runtime),
        ("logger.log_progress", save),
        ("rerun_state_machine.spiky_loss_factor", spiky),
        ("optimizer.apply_wd_to_qk_layernorm", qk_layernorm),
        ("generate.max_tokens", prompt),
        ("generate.temperature", prompt),
        ("generate.top_k", prompt),
        ("generate.top_p", prompt),
        ("generate.seed", prompt),
    ];
    let is_random = recipe.generate.temperature != 0.0;
    for key in ["generate.top_k", "generate.top_p", "generate.seed"] {
        let is_changed = draft.recipe_differs(key);
        let message = "has no effect with generate.temperature = 0, which takes the most likely token";
        draft.require(is_random || !is_changed, key, message);
    }
    for (key, (is_on, other)) in settings {
        let is_changed = draft.recipe_differs(key);
        let message = format!("has no effect without {other}");
        draft.require(is_on || !is_changed, key, message);
    }
}

fn profiling_window(draft: &mut Draft<'_>) {
    let profiling = draft.recipe.profiling.clone();
    draft.require(
        !(profiling.use_nsys_profiler && profiling.use_pytorch_profiler),
        "profiling.use_pytorch_profiler",
        "excludes profiling.use_nsys_profiler",
    );
    draft.require(
        profiling.profile_step_end >= profiling.profile_step_start,
        "profiling.profile_step_end",
        "is before profiling.profile_step_start",
    );
}

fn skip_train_evaluates(draft: &mut Draft<'_>) {
    let validation = draft.recipe.validation.clone();
    let evaluates = validation.full_validation || validation.eval_iters.unwrap_or(0) > 0;
    draft.require(
        !validation.skip_train || evaluates,
        "validation.skip_train",
        "leaves nothing to do, for neither validation.eval_iters nor validation.full_validation evaluates anything",
    );
    draft.require(
        validation.start_eval_at_iter.is_none() || validation.eval_interval.is_some(),
        "validation.start_eval_at_iter",
        "needs validation.eval_interval",
    );
}

/// An evaluation that was asked for and has no data is legal, and says so.
fn evaluation_has_data(draft: &mut Draft<'_>) {
    let validation = &draft.recipe.validation;
    let key = if validation.full_validation { "validation.full_validation" } else { "validation.eval_iters" };
    let is_asked = validation.full_validation || validation.eval_iters.unwrap_or(0) > 0;
    let dataset = &draft.recipe.dataset;
    let has_no_data = match (&dataset.blend_per_split, &dataset.split) {
        (Some(blends), _) => blends.get(1).is_none_or(Option::is_none).then_some("dataset.blend_per_split"),
        (None, Some(split)) => {
            let shares = super::dataset::parse_split(split);
            shares.is_some_and(|shares| shares[1] == 0.0).then_some("dataset.split")
        }
        (None, None) => None,
    };
    if let Some(source) = has_no_data.filter(|_| is_asked && draft.is_explicit(key)) {
        draft.warnings.push(format!("{source} leaves nothing to the validation split: {key} will evaluate nothing"));
    }
}

/// How many samples each split is asked for.
pub(super) fn sample_counts(
    draft: &mut Draft<'_>,
    train: &FinalTraining,
    validation: &FinalValidation,
) -> SampleCounts {
    let iters = train.train_iters as u64;
    let batch = train.global_batch_size as u64;
    let train_samples = train.train_samples.map_or_else(|| iters.checked_mul(batch), |samples| Some(samples as u64));
    let per_evaluation = (validation.eval_iters as u64).checked_mul(validation.eval_global_batch_size as u64);
    // One evaluation comes after the last step, whether or not there are others on the way.
    let evaluations =
        validation.eval_interval.filter(|interval| *interval > 0).map_or(1, |interval| iters / interval as u64 + 1);
    let valid = per_evaluation.and_then(|samples| samples.checked_mul(evaluations));
    let fits = |samples: &Option<u64>| samples.is_some_and(|n| i64::try_from(n).is_ok());
    draft.require(
        fits(&train_samples),
        "train.train_iters",
        "times train.global_batch_size is more samples than can be counted",
    );
    draft.require(
        fits(&per_evaluation) && fits(&valid),
        "validation.eval_iters",
        "asks for more samples than can be counted",
    );
    SampleCounts { train: train_samples.unwrap_or(0), valid: valid.unwrap_or(0), test: per_evaluation.unwrap_or(0) }
}
