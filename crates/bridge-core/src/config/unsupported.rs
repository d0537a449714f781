//! Settings that are understood but not implemented in this release, as a table. `finalize`
//! consults it: anything but the inactive value is an error, so nothing is accepted and ignored.
//! Implementing a setting means deleting its row.

use super::error::ErrorKind;
use super::finalize::{Draft, Purpose};
use super::node::Node;
use super::section::Section;
use super::sections::RecipeConfig;

/// Settings of one section that share a reason.
struct Group {
    section: &'static str,
    /// Names inside the section; `*` is every one.
    fields: &'static [&'static str],
    reason: &'static str,
}

/// Values besides the default that ask for nothing this release lacks.
const ALSO_INACTIVE: &[(&str, &[&str])] = &[
    ("model.attention_backend", &["\"local\""]),
    ("model.cp_comm_type", &["\"all_gather\""]),
    ("model.cuda_graph_scope", &["[]"]),
    ("model.mtp_num_layers", &["0"]),
    ("model.position_embedding_type", &["\"rope\"", "\"none\""]),
    ("model.moe_router_load_balancing_type", &["\"none\""]),
    ("model.moe_router_dtype", &["\"fp32\""]),
    ("model.moe_token_dispatcher_type", &["\"alltoall\""]),
    ("optimizer.optimizer", &["\"sgd\""]),
    ("dataset.dataloader_type", &["\"single\"", "\"cyclic\""]),
    ("dataset.multiple_validation_sets", &["false"]),
    ("dataset.full_validation", &["false"]),
    ("rerun_state_machine.rerun_mode", &["\"validate_results\""]),
];

/// What a plan counts although no run of this release can have it.
const PLANNED: &[(&str, &str)] = &[
    (
        "model",
        "overlap_p2p_comm batch_p2p_comm moe_router_load_balancing_type moe_router_score_function moe_router_dtype \
         moe_shared_expert_gate moe_token_dispatcher_type moe_grouped_gemm moe_per_layer_logging",
    ),
    ("ddp", "num_distributed_optimizer_instances"),
];

const MODEL: &[Group] = &[
    Group {
        section: "model",
        fields: &["hf_model_id"],
        reason: "models of the Hugging Face hub by name; import the folder and give checkpoint.pretrained_checkpoint",
    },
    Group {
        section: "model",
        fields: &[
            "multi_latent_attention",
            "qk_l2_norm",
            "position_embedding_type",
            "attention_backend",
            "transformer_impl",
            "apply_query_key_layer_scaling",
            "attention_softmax_in_fp32",
        ],
        reason: "this attention variant",
    },
    Group {
        section: "model",
        fields: &["mtp_num_layers", "mtp_loss_scaling_factor"],
        reason: "multi-token prediction",
    },
    Group {
        section: "model",
        fields: &[
            "activation_func_clamp_value",
            "glu_linear_offset",
            "fp32_residual_connection",
            "apply_residual_connection_post_layernorm",
            "fp16_lm_cross_entropy",
            "use_mup",
            "mup_base_hidden_size",
            "mup_attn_scale_power",
        ],
        reason: "this variant of the transformer layer",
    },
    Group {
        section: "model",
        fields: &[
            "hierarchical_context_parallel_sizes",
            "cp_comm_type",
            "variable_seq_lengths",
            "overlap_p2p_comm",
            "batch_p2p_comm",
            "overlap_p2p_comm_warmup_flush",
            "deallocate_pipeline_outputs",
            "defer_embedding_wgrad_compute",
            "wgrad_deferral_limit",
            "scatter_embedding_sequence_parallel",
            "tp_comm_overlap",
            "tp_comm_overlap_cfg",
            "tp_comm_bootstrap_backend",
            "parallel_output",
        ],
        reason: "this variant of model parallelism",
    },
    Group {
        section: "model",
        fields: &[
            "fp8",
            "fp8_recipe",
            "fp8_param",
            "fp8_margin",
            "fp8_amax_history_len",
            "fp8_amax_compute_algo",
            "fp8_wgrad",
            "first_last_layers_bf16",
            "num_layers_at_start_in_bf16",
            "num_layers_at_end_in_bf16",
            "fp4",
            "fp4_recipe",
            "fp4_param",
            "enable_autocast",
            "autocast_dtype",
        ],
        reason: "8-bit and 4-bit formats, and autocast",
    },
    Group {
        section: "model",
        fields: &[
            "masked_softmax_fusion",
            "cross_entropy_loss_fusion",
            "cross_entropy_fusion_impl",
            "gradient_accumulation_fusion",
            "bias_activation_fusion",
            "bias_dropout_fusion",
            "apply_rope_fusion",
            "deterministic_mode",
            "use_te_rng_tracker",
            "cuda_graph_impl",
            "cuda_graph_scope",
            "cuda_graph_warmup_steps",
            "restore_modelopt_state",
            "init_model_with_meta_device",
        ],
        reason: "a choice of CUDA kernels or graphs, which have no counterpart here",
    },
    Group {
        section: "model",
        fields: &[
            "distribute_saved_activations",
            "cpu_offloading",
            "cpu_offloading_num_layers",
            "fine_grained_activation_offloading",
            "offload_modules",
        ],
        reason: "offloading and sharding of saved activations",
    },
    Group {
        section: "model",
        fields: &[
            "moe_router_load_balancing_type",
            "moe_input_jitter_eps",
            "moe_router_score_function",
            "moe_router_dtype",
            "moe_router_num_groups",
            "moe_router_group_topk",
            "moe_router_enable_expert_bias",
            "moe_router_bias_update_rate",
            "moe_router_force_load_balancing",
            "moe_shared_expert_gate",
            "moe_shared_expert_overlap",
            "moe_token_dispatcher_type",
            "moe_flex_dispatcher_backend",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            "moe_token_drop_policy",
            "moe_grouped_gemm",
            "moe_permute_fusion",
            "moe_router_fusion",
            "moe_per_layer_logging",
            "moe_latent_size",
            "overlap_moe_expert_parallel_comm",
            "delay_wgrad_compute",
        ],
        reason: "this variant of mixture of experts",
    },
];

const TRAINING: &[Group] = &[
    Group {
        section: "train",
        fields: &["manual_gc", "manual_gc_interval", "manual_gc_eval"],
        reason: "Rust has no garbage collector to control",
    },
    Group {
        section: "train",
        fields: &[
            "check_weight_hash_across_dp_replicas_interval",
            "exit_signal_handler_for_dataloader",
            "empty_unused_memory_level",
        ],
        reason: "several ranks, loader processes, or an allocator cache",
    },
    Group {
        section: "validation",
        fields: &["test_mode", "multiple_validation_sets"],
        reason: "this way of evaluating",
    },
    Group { section: "scheduler", fields: &["no_weight_decay_cond_type"], reason: "conditional weight decay" },
    Group {
        section: "optimizer",
        fields: &[
            "optimizer",
            "muon_momentum",
            "muon_split_qkv",
            "muon_nesterov",
            "muon_scale_mode",
            "muon_fp32_matmul_prec",
            "muon_coefficient_type",
            "muon_num_ns_steps",
            "muon_tp_mode",
            "muon_extra_scale_factor",
            "muon_scalar_optimizer",
            "lion_beta1",
            "lion_beta2",
            "soap_shampoo_beta",
            "soap_precondition_frequency",
            "soap_use_kl_shampoo",
            "adaptive_muon_moment2_method",
            "adaptive_muon_beta2",
            "adaptive_muon_eps",
        ],
        reason: "optimizers other than adam and sgd",
    },
    Group {
        section: "optimizer",
        fields: &[
            "fp8_recipe",
            "reuse_grad_buf_for_mxfp8_param_ag",
            "use_precision_aware_optimizer",
            "store_param_remainders",
            "main_grads_dtype",
            "main_params_dtype",
            "exp_avg_dtype",
            "exp_avg_sq_dtype",
            "use_layer_wise_distributed_optimizer",
            "overlap_param_gather_with_optimizer_step",
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
            "use_torch_optimizer_for_cpu_offload",
            "overlap_cpu_optimizer_d2h_h2d",
            "pin_cpu_grads",
            "pin_cpu_params",
            "barrier_with_L1_time",
            "config_logger_dir",
            "optimizer_cuda_graph",
        ],
        reason: "sharded, offloaded or reduced optimizer state",
    },
];

const DATA: &[Group] = &[
    Group {
        section: "dataset",
        fields: &[
            "dataloader_type",
            "pin_memory",
            "persistent_workers",
            "trust_remote_code",
            "multiple_validation_sets",
            "full_validation",
            "fast_cache_load",
            "defer_npy_index_mmap",
            "sequences_per_dataset",
            "create_attention_mask",
            "object_storage_cache_path",
            "data_parallel_size",
            "sequence_parallel_size",
            "hybrid_context_parallel",
            "context_parallel_size",
            "skip_getting_attention_mask_from_dataset",
        ],
        reason: "this way of building or loading samples",
    },
    Group {
        section: "tokenizer",
        fields: &[
            "metadata_path",
            "vocab_file",
            "merge_file",
            "vocab_extra_ids",
            "chat_template",
            "tiktoken_pattern",
            "tiktoken_num_special_tokens",
            "tiktoken_special_tokens",
            "tokenizer_prompt_format",
            "image_tag_type",
            "force_system_message",
            "hf_tokenizer_kwargs",
            "sp_tokenizer_kwargs",
        ],
        reason: "tokenizers other than HuggingFaceTokenizer, ByteLevelBPE and NullTokenizer",
    },
];

const RUNTIME: &[Group] = &[
    Group {
        section: "logger",
        fields: &[
            "memory_keys",
            "log_max_attention_logit",
            "log_energy",
            "wandb_project",
            "wandb_exp_name",
            "wandb_save_dir",
            "wandb_entity",
            "mlflow_experiment",
            "mlflow_run_name",
            "mlflow_tracking_uri",
            "mlflow_tags",
            "comet_project",
            "comet_experiment_name",
            "comet_workspace",
            "comet_api_key",
            "comet_tags",
            "log_device_memory_used",
        ],
        reason: "this metric or tracking service",
    },
    Group {
        section: "logger",
        fields: &["filter_warnings", "modules_to_filter", "set_level_for_all_loggers"],
        reason: "Python's loggers and warnings have no counterpart here",
    },
    Group {
        section: "checkpoint",
        fields: &[
            "save_wgrads_interval",
            "save_dgrads_interval",
            "load_main_params_from_ckpt",
            "non_persistent_save_interval",
            "non_persistent_ckpt_type",
            "non_persistent_global_ckpt_dir",
            "non_persistent_local_ckpt_dir",
            "non_persistent_local_ckpt_algo",
            "use_checkpoint_args",
            "use_mp_args_from_checkpoint_args",
            "use_tokenizer_model_from_checkpoint_args",
            "ckpt_format",
            "auto_detect_ckpt_format",
            "ckpt_convert_format",
            "ckpt_convert_save",
            "ckpt_convert_update_legacy_dist_opt_format",
            "fully_parallel_save",
            "fully_parallel_load",
            "ckpt_fully_parallel_load_exchange_algo",
            "ckpt_fully_parallel_save_process_group",
            "ckpt_fully_parallel_load_process_group",
            "async_strategy",
            "use_persistent_ckpt_worker",
            "async_ckpt_cpu_priority",
            "async_ckpt_io_priority",
            "async_write_results_mp_mode",
            "storage_writers_per_rank",
            "ckpt_assume_constant_structure",
            "strict_fsdp_dtensor_load",
            "dist_ckpt_strictness",
            "dist_ckpt_save_pre_mcore_014",
            "dist_ckpt_optim_fully_reshardable",
            "distrib_optim_fully_reshardable_mem_efficient",
            "replication",
            "replication_jump",
            "replication_factor",
            "custom_manager_class",
        ],
        reason: "this way of saving or loading; checkpoints are safetensors of one rank",
    },
    Group {
        section: "rng",
        fields: &["te_rng_tracker", "inference_rng_tracker", "data_parallel_random_init"],
        reason: "random streams of several ranks or kernels",
    },
    Group { section: "rerun_state_machine", fields: &["rerun_mode"], reason: "statistics of determinism" },
    Group {
        section: "ddp",
        fields: &[
            "align_param_gather",
            "num_distributed_optimizer_instances",
            "check_for_large_grads",
            "param_name_patterns_for_fp32_local_accumulation",
            "fp8_param_gather",
            "reuse_grad_buf_for_mxfp8_param_ag",
            "outer_dp_sharding_strategy",
            "suggested_communication_unit_size",
            "keep_fp8_transpose_cache",
            "nccl_ub",
            "disable_symmetric_registration",
            "fsdp_manual_registration",
            "fsdp_double_buffer",
            "fsdp_db_use_persist_buf_on_alloc_fail",
            "fsdp_all_gather_in_start_param_sync",
            "delay_wgrad_compute",
            "megatron_fsdp_main_params_dtype",
            "megatron_fsdp_main_grads_dtype",
            "megatron_fsdp_grad_comm_dtype",
            "megatron_fsdp_use_decoupled_grad",
        ],
        reason: "sharded data parallelism",
    },
    Group {
        section: "mixed_precision",
        fields: &[
            "autocast_dtype",
            "autocast_enabled",
            "fp8",
            "fp8_recipe",
            "first_last_layers_bf16",
            "num_layers_at_start_in_bf16",
            "num_layers_at_end_in_bf16",
            "fp8_margin",
            "fp8_amax_history_len",
            "fp8_amax_compute_algo",
            "fp8_wgrad",
            "fp8_dot_product_attention",
            "fp8_multi_head_attention",
            "fp8_param",
            "fp8_param_gather",
            "fp4",
            "fp4_recipe",
            "reuse_grad_buf_for_mxfp8_param_ag",
        ],
        reason: "8-bit and 4-bit formats, and autocast",
    },
    Group { section: "", fields: &["peft"], reason: "adapters" },
    Group {
        section: "dist",
        fields: &[
            "distributed_backend",
            "distributed_timeout_seconds_after_init",
            "local_rank",
            "lazy_mpu_init",
            "use_torch_fsdp2",
            "nccl_communicator_config_path",
            "use_gloo_process_groups",
            "use_sharp",
            "sharp_enabled_group",
            "high_priority_stream_groups",
            "disable_jit_fuser",
            "external_gpu_device_mapping",
            "enable_megatron_core_experimental",
            "use_decentralized_pg",
        ],
        reason: "this way of starting or connecting ranks",
    },
    Group {
        section: "dist",
        fields: &[
            "align_grad_reduce",
            "flight_recorder_dump_path",
            "flight_recorder_trace_buffer_size",
            "flight_recorder_dump_on_timeout",
            "flight_recorder_include_stack_trace",
            "flight_recorder_include_only_active",
            "flight_recorder_extra_dump_on_exec",
        ],
        reason: "traces of collectives, and stages that reduce at different times",
    },
    Group { section: "comm_overlap", fields: &["*"], reason: "this way to overlap communication" },
    Group { section: "profiling", fields: &["*"], reason: "profiling" },
    Group { section: "ft", fields: &["*"], reason: "section timeouts" },
    Group { section: "straggler", fields: &["*"], reason: "straggler detection" },
    Group { section: "nvrx_straggler", fields: &["*"], reason: "straggler detection" },
    Group { section: "inprocess_restart", fields: &["*"], reason: "in-process restart" },
    Group { section: "tensor_inspect", fields: &["*"], reason: "tensor statistics" },
];

/// Every setting that is not implemented, with the reason, wildcards expanded.
pub(super) fn table() -> Vec<(String, &'static str)> {
    let defaults = defaults();
    let groups = [MODEL, TRAINING, DATA, RUNTIME].into_iter().flatten();
    groups
        .flat_map(|group| {
            let names: Vec<String> = match group.fields {
                ["*"] => {
                    let section = defaults.get(group.section);
                    let entries = section.and_then(Node::entries).unwrap_or_default();
                    entries.iter().map(|entry| entry.key.clone()).collect()
                }
                fields => fields.iter().map(|field| (*field).to_owned()).collect(),
            };
            names.into_iter().map(|name| match group.section {
                "" => (name, group.reason),
                section => (format!("{section}.{name}"), group.reason),
            })
        })
        .collect()
}

/// All defaults. Absent sections are there to be compared, except adapters, which are not
/// implemented in any form.
fn defaults() -> Node {
    RecipeConfig { peft: None, ..RecipeConfig::with_every_section() }.to_node()
}

/// Reports every setting under `prefix` that asks for something this release does not implement.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let defaults = defaults();
    let values = draft.recipe.to_node();
    for (key, reason) in table() {
        // A value already out of range is wrong in any release.
        let is_reported = draft.errors.names(&key);
        let Some(value) = values.get_path(&key).filter(|_| key.starts_with(prefix)) else {
            continue;
        };
        if is_reported || defaults.get_path(&key) == Some(value) || is_inactive(&key, value) {
            continue;
        }
        if draft.purpose == Purpose::Plan && is_planned(&key) {
            continue;
        }
        let message = format!("not implemented yet: {reason}");
        draft.error(ErrorKind::NotImplemented, &key, message);
    }
}

fn is_planned(key: &str) -> bool {
    let Some((section, field)) = key.split_once('.') else {
        return false;
    };
    PLANNED.iter().any(|(name, fields)| *name == section && fields.split_whitespace().any(|planned| planned == field))
}

fn is_inactive(key: &str, value: &Node) -> bool {
    let text = value.to_inline();
    ALSO_INACTIVE.iter().any(|(name, values)| *name == key && values.contains(&text.as_str()))
}
