//! Graphs of micro-batches: required settings, and incompatible ones.

use super::{Format, Kinds, RunConfig, TINY, World, assert_all_refused, load_text};
use crate::ConfigErrors;

const LOCAL: &str = "model.cuda_graph_impl=local";
const WHOLE: &str = "model.cuda_graph_scope=full_iteration";
const GPU: &str = "device=cuda";
const UNCHECKED: &str = "rerun_state_machine.check_for_nan_in_loss=false";
/// Settings of every recipe with graphs.
const GRAPHS: [&str; 4] = [LOCAL, WHOLE, GPU, UNCHECKED];

const IMPL: &str = "model.cuda_graph_impl";
const SCOPE: &str = "model.cuda_graph_scope";

/// Overrides, and the setting that is named.
const REFUSED: [(&[&str], &str); 11] = [
    (&[LOCAL, GPU, UNCHECKED], SCOPE),
    (&[LOCAL, "model.cuda_graph_scope=full", GPU, UNCHECKED], SCOPE),
    (&[LOCAL, "model.cuda_graph_scope=['attn', 'mlp']", GPU, UNCHECKED], SCOPE),
    (&[LOCAL, "model.cuda_graph_scope=['full_iteration', 'attn']", GPU, UNCHECKED], SCOPE),
    (&[WHOLE], SCOPE),
    (&["model.cuda_graph_scope=attn"], SCOPE),
    (&["model.cuda_graph_warmup_steps=4"], "model.cuda_graph_warmup_steps"),
    (&["model.cuda_graph_impl=transformer_engine", WHOLE, GPU, UNCHECKED], IMPL),
    (&[LOCAL, WHOLE, UNCHECKED], IMPL),
    (&[LOCAL, WHOLE, GPU], IMPL),
    (&["optimizer.optimizer_cuda_graph=true"], "optimizer.optimizer_cuda_graph"),
];

#[test]
fn each_rule_refuses_and_names_its_key() {
    assert_all_refused(&REFUSED);
}

/// Settings that exclude a graph, on a number of ranks, and the names in the error.
const EXCLUDED: [(usize, &[&str], &str); 18] = [
    (2, &["model.tensor_model_parallel_size=2"], "model.tensor_model_parallel_size = 2"),
    (2, &["model.pipeline_model_parallel_size=2"], "model.pipeline_model_parallel_size = 2"),
    (2, &["model.context_parallel_size=2"], "model.context_parallel_size = 2"),
    (1, &["model.hidden_dropout=0.1"], "model.hidden_dropout = 0.1"),
    (1, &["model.attention_dropout=0.2"], "model.attention_dropout = 0.2"),
    (
        2,
        &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"],
        "ddp.data_parallel_sharding_strategy",
    ),
    (2, &["ddp.overlap_grad_reduce=true"], "ddp.overlap_grad_reduce"),
    (
        1,
        &["model.num_moe_experts=4", "model.moe_ffn_hidden_size=32", "model.moe_router_topk=2"],
        "model.num_moe_experts",
    ),
    (1, &["model.mtp_num_layers=1"], "model.mtp_num_layers"),
    (1, &["model.fp8=hybrid", "model.fp8_recipe=tensorwise"], "model.fp8"),
    (1, &["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1"], "model.cpu_offloading"),
    (1, &["logger.log_max_attention_logit=true"], "logger.log_max_attention_logit"),
    (1, &["checkpoint.save=ckpt", "checkpoint.save_dgrads_interval=2"], "checkpoint.save_dgrads_interval"),
    (
        2,
        &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads"],
        "ddp.data_parallel_sharding_strategy",
    ),
    (1, &["peft.kind=lora", "peft.dropout=0.1", "checkpoint.pretrained_checkpoint=x"], "peft.dropout = 0.1"),
    (1, &["tensor_inspect.enabled=true"], "[tensor_inspect]"),
    (1, &["dpo.beta=0.2"], "[dpo]"),
    (1, &["distillation.teacher=x"], "[distillation]"),
];

/// Tiny recipe on `size` ranks.
fn tiny_on(size: usize, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World { size })
}

#[test]
fn what_cannot_be_recorded_is_named_with_the_graph() {
    for (size, overrides, named) in EXCLUDED {
        let overrides = [&GRAPHS[..], overrides].concat();
        let errors = tiny_on(size, &overrides).unwrap_err();
        let found = errors.iter().any(|error| error.key == IMPL && error.message.contains(named));
        assert!(found, "{overrides:?}: {errors}");
    }
}

#[test]
fn graphs_of_whole_micro_batches_are_accepted() {
    for scope in [WHOLE, "model.cuda_graph_scope=['full_iteration']"] {
        // Ranks that are replicas, too.
        for size in [1, 2] {
            let overrides = [LOCAL, scope, GPU, UNCHECKED, "model.cuda_graph_warmup_steps=1"];
            let config = tiny_on(size, &overrides).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(config.model.cuda_graph_warmup_steps, 1);
            // The model section alone, as `bridge generate` reads it, is accepted without a device
            // that records.
            config.recipe().model.finalize().unwrap_or_else(|errors| panic!("{errors}"));
        }
    }
    // Upstream writes an empty scope for runs without graphs.
    tiny_on(1, &["model.cuda_graph_scope=[]"]).unwrap_or_else(|errors| panic!("{errors}"));
}
