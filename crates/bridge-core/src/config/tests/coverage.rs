//! Every setting is either implemented or in the table of those that are not; nothing slips by.

use std::collections::BTreeSet;

use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::super::unsupported;

/// What this release implements, apart from the settings whose only inactive value is the default
/// and that are therefore in the table. A new field fails the test below until it is put somewhere.
const IMPLEMENTED: &[(&str, &str)] = &[
    ("", "name device mixed_precision comm_overlap ft straggler nvrx_straggler inprocess_restart tensor_inspect"),
    (
        "model",
        "kind num_layers hidden_size num_attention_heads num_query_groups ffn_hidden_size kv_channels seq_length vocab_size make_vocab_size_divisible_by should_pad_vocab share_embeddings_and_output_weights rotary_base rotary_percent rotary_interleaved rope_scaling rope_scaling_factor rope_scaling_low_freq_factor rope_scaling_high_freq_factor rope_scaling_original_max_position_embeddings seq_len_interpolation_factor normalization layernorm_epsilon layernorm_zero_centered_gamma qk_layernorm add_bias_linear add_qkv_bias gated_linear_unit activation_func hidden_dropout attention_dropout softmax_scale window_size window_attn_skip_freq no_rope_freq calculate_per_token_loss pipeline_model_parallel_size virtual_pipeline_model_parallel_size num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split pipeline_model_parallel_layout microbatch_group_size_per_vp_stage pipeline_schedule pipeline_dtype fp16 bf16 params_dtype recompute_granularity recompute_method recompute_num_layers recompute_modules init_method_std embedding_init_method_std perform_initialization use_cpu_initialization num_moe_experts moe_layer_freq moe_ffn_hidden_size moe_router_topk moe_aux_loss_coeff moe_z_loss_coeff moe_router_pre_softmax moe_router_topk_scaling_factor moe_shared_expert_intermediate_size tensor_model_parallel_size context_parallel_size expert_model_parallel_size expert_tensor_parallel_size sequence_parallel",
    ),
    (
        "train",
        "micro_batch_size global_batch_size rampup_batch_size decrease_batch_size_if_needed train_sync_interval train_iters train_samples exit_interval exit_duration_in_mins exit_signal_handler exit_signal exit_signal_handler_for_training iterations_to_skip check_optimizer_step_success skip_sync_grad_norm_across_mp eval_iters eval_interval skip_train num_threads",
    ),
    (
        "validation",
        "eval_iters eval_interval start_eval_at_iter eval_global_batch_size eval_micro_batch_size skip_train full_validation",
    ),
    (
        "optimizer",
        "lr min_lr decoupled_lr decoupled_min_lr weight_decay apply_wd_to_qk_layernorm fp16 bf16 params_dtype loss_scale initial_loss_scale min_loss_scale loss_scale_window hysteresis adam_beta1 adam_beta2 adam_eps decoupled_weight_decay sgd_momentum clip_grad log_num_zeros_in_grad use_distributed_optimizer overlap_param_gather",
    ),
    (
        "scheduler",
        "lr_decay_style lr_wsd_decay_style lr_decay_iters lr_decay_samples lr_wsd_decay_iters lr_wsd_decay_samples lr_warmup_fraction lr_warmup_iters lr_warmup_samples lr_warmup_init override_opt_param_scheduler use_checkpoint_opt_param_scheduler start_weight_decay end_weight_decay weight_decay_incr_style",
    ),
    (
        "dataset",
        "kind dataloader_type num_workers data_sharding drop_last seq_length random_seed data_path blend blend_per_split split num_dataset_builder_threads path_to_cache mmap_bin_files mid_level_dataset_surplus allow_ambiguous_pad_tokens add_extra_token_to_sequence reset_position_ids reset_attention_mask eod_mask_loss drop_last_partial_validation_sequence fim_rate fim_spm_rate fim_extra_tokens fim_split_sample fim_fragment_rate fim_no_prefix source source_format source_jsonl_key source_exclude source_max_bytes source_shuffle_seed source_cache_dir append_eod",
    ),
    ("tokenizer", "tokenizer_type tokenizer_model vocab_size special_tokens bpe_vocab_size bpe_train_max_bytes"),
    (
        "logger",
        "log_interval skip_train_metrics_log log_params_norm log_throughput log_throughput_to_tensorboard throughput_window_size log_progress timing_log_level timing_log_option tensorboard_dir tensorboard_log_interval tensorboard_queue_size log_timers_to_tensorboard log_loss_scale_to_tensorboard log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_memory_interval log_l2_norm_grad_to_tensorboard log_num_zeros_in_grad log_runtime_to_tensorboard runtime_time_unit barrier_with_L1_time log_world_size_to_tensorboard logging_level save_config_filepath log_dir metrics_jsonl plot progress",
    ),
    (
        "checkpoint",
        "save load save_interval save_retain_interval most_recent_k save_optim save_rng load_optim load_rng finetune pretrained_checkpoint ckpt_step exit_on_missing_checkpoint async_save save_tokenizer_assets on_damaged",
    ),
    (
        "ddp",
        "grad_reduce_in_fp32 overlap_grad_reduce overlap_param_gather use_distributed_optimizer num_distributed_optimizer_instances use_megatron_fsdp use_custom_fsdp data_parallel_sharding_strategy check_for_nan_in_grad bucket_size pad_buckets_for_high_nccl_busbw reduce_scatter_with_fp32_accumulation average_in_collective gradient_reduce_div_fusion",
    ),
    (
        "dist",
        "distributed_timeout_minutes distributed_timeout_seconds_after_init external_gpu_device_mapping use_megatron_fsdp use_tp_pp_dp_mapping",
    ),
    ("rng", "seed"),
    (
        "rerun_state_machine",
        "error_injection_rate error_injection_type check_for_nan_in_loss check_for_spiky_loss spiky_loss_factor",
    ),
    ("generate", "prompt max_tokens temperature top_k top_p seed"),
];

#[test]
fn every_setting_is_implemented_or_in_the_table() {
    let implemented: BTreeSet<String> = IMPLEMENTED
        .iter()
        .flat_map(|(section, names)| {
            names.split_whitespace().map(move |name| match *section {
                "" => name.to_owned(),
                section => format!("{section}.{name}"),
            })
        })
        .collect();
    let not: BTreeSet<String> = unsupported::table().into_iter().map(|(key, _)| key).collect();
    let both: Vec<_> = implemented.intersection(&not).collect();
    assert!(both.is_empty(), "in both lists: {both:?}");
    let root = RecipeConfig::default().to_node();
    for section in root.entries().expect("a table") {
        let fields = section.node.entries().unwrap_or_default();
        let keys: Vec<_> = match section.node.entries() {
            None => vec![section.key.clone()],
            Some(_) => fields.iter().map(|f| format!("{}.{}", section.key, f.key)).collect(),
        };
        for key in keys {
            assert!(implemented.contains(&key) || not.contains(&key), "{key} is in no list");
        }
    }
    for key in &implemented {
        assert!(root.get_path(key).is_some(), "{key} does not exist");
    }
}

#[test]
fn every_row_of_the_table_exists_and_is_inactive_by_default() {
    let keys: Vec<_> = unsupported::table().into_iter().map(|(key, _)| key).collect();
    let unique: BTreeSet<_> = keys.iter().collect();
    assert_eq!(unique.len(), keys.len(), "a setting is listed twice");
    super::tiny(&[
        "comm_overlap={}",
        "ft={}",
        "straggler={}",
        "nvrx_straggler={}",
        "inprocess_restart={}",
        "tensor_inspect={}",
        "mixed_precision={}",
    ])
    .expect("defaults are inactive");
    let root = RecipeConfig::default().to_node();
    for key in keys {
        let (section, _) = key.split_once('.').unwrap_or((&key, ""));
        assert!(root.get(section).is_some(), "{key}");
        let is_optional = root.get(section).is_some_and(super::super::Node::is_null);
        assert!(is_optional || root.get_path(&key).is_some(), "{key} does not exist");
    }
}
