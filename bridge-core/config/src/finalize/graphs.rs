//! `model.cuda_graph_impl`: forward and backward of a micro-batch recorded as a graph, and what
//! cannot be in one.

use super::super::choice::{CudaGraphImpl, ShardingStrategy};
use super::super::error::ErrorKind;
use super::super::field::OneOrMany;
use super::super::run_config::ParallelSizes;
use super::Draft;
use super::data_parallel::computes_on_cpu;

const IMPL: &str = "model.cuda_graph_impl";
const SCOPE: &str = "model.cuda_graph_scope";

/// The scope that is built: forward and backward of a micro-batch, without the optimizer.
const WHOLE: &str = "full_iteration";

const WITHOUT_GRAPHS: &str = "has no effect without model.cuda_graph_impl = \"local\"";

/// Checks the settings of graphs.
pub(super) fn check(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    let model = draft.recipe.model.config.clone();
    let scopes = match &model.cuda_graph_scope {
        OneOrMany::One(scopes) => scopes.split(',').map(|scope| scope.trim().to_owned()).collect(),
        OneOrMany::Many(scopes) => scopes.clone(),
    };
    if model.cuda_graph_impl == CudaGraphImpl::None {
        let is_default = scopes.is_empty() || scopes == ["full"];
        draft.idle_unless(is_default, SCOPE, WITHOUT_GRAPHS);
        return;
    }
    if draft.errors.names(IMPL) {
        return;
    }
    if scopes != [WHOLE] {
        let message = "not implemented yet: graphs of layers, or of their parts, each by itself";
        draft.error(ErrorKind::NotImplemented, SCOPE, format!("{message}; expected \"{WHOLE}\""));
    }
    let checks_losses = draft.recipe.rerun_state_machine.check_for_nan_in_loss;
    let message = "with model.cuda_graph_scope = \"full_iteration\" excludes rerun_state_machine.check_for_nan_in_loss, which is true \
                   unless it is set to false: upstream's rule";
    draft.forbid(checks_losses, IMPL, message);
    let device = draft.recipe.device.clone();
    let message = format!("needs a GPU, whose kernels are recorded: device = \"{device}\" has none");
    draft.require(!computes_on_cpu(&device), IMPL, message);
    for what in conflicts(draft, parallel) {
        draft.conflict(IMPL, format!("excludes {what}"));
    }
}

/// The settings of a recipe that a graph cannot be recorded with, each with why.
fn conflicts(draft: &Draft<'_>, parallel: &ParallelSizes) -> Vec<String> {
    let recipe = &draft.recipe;
    let model = &recipe.model.config;
    let mut found = Vec::new();
    for (size, axis) in [
        (parallel.tensor, "model.tensor_model_parallel_size"),
        (parallel.pipeline, "model.pipeline_model_parallel_size"),
        (parallel.context, "model.context_parallel_size"),
        (parallel.expert, "model.expert_model_parallel_size"),
    ] {
        if size > 1 {
            found.push(format!("{axis} = {size}: what ranks exchange within a micro-batch is not recorded"));
        }
    }
    let dropouts = [
        (model.hidden_dropout, "model.hidden_dropout"),
        (model.attention_dropout, "model.attention_dropout"),
        (recipe.peft.as_ref().map_or(0.0, |peft| peft.dropout), "peft.dropout"),
    ];
    for (rate, key) in dropouts {
        if rate > 0.0 {
            found.push(format!(
                "{key} = {rate}: kernels are recorded with the seeds of their masks, so each replay would drop the same"
            ));
        }
    }
    let is_spread = parallel.data > 1;
    let ddp = &recipe.ddp;
    let divides_gradients = matches!(
        ddp.data_parallel_sharding_strategy,
        ShardingStrategy::OptimGrads | ShardingStrategy::OptimGradsParams
    );
    let streams = recipe.checkpoint.save_dgrads_interval.is_some();
    let rules = [
        (
            divides_gradients,
            "ddp.data_parallel_sharding_strategy = \"optim_grads\" and \"optim_grads_params\": what ranks exchange within a micro-batch is not recorded",
        ),
        (
            is_spread && ddp.overlap_grad_reduce,
            "ddp.overlap_grad_reduce: gradients are reduced behind the graph, which ends with backward",
        ),
        (
            model.num_moe_experts.is_some(),
            "model.num_moe_experts: how many tokens an expert has is read from the device for each micro-batch",
        ),
        (model.mtp_num_layers.unwrap_or(0) > 0, "model.mtp_num_layers, whose losses are read beside that of the model"),
        (model.fp8.is_some(), "model.fp8: products in 8 bits are not recorded yet"),
        (
            model.cpu_offloading || model.fine_grained_activation_offloading,
            "activations on the host (model.cpu_offloading, model.fine_grained_activation_offloading): a graph moves nothing there",
        ),
        (
            recipe.logger.log_max_attention_logit,
            "logger.log_max_attention_logit, which layers report beside their output",
        ),
        (recipe.tensor_inspect.is_some(), "[tensor_inspect]: a graph hands no tensor out"),
        (streams, "checkpoint.save_dgrads_interval: a graph hands no tensor out"),
        (recipe.dpo.is_some(), "[dpo], whose loss the host prepares for each micro-batch"),
        (recipe.distillation.is_some(), "[distillation], whose loss the host prepares for each micro-batch"),
    ];
    found.extend(rules.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, what)| what.to_owned()));
    found
}
