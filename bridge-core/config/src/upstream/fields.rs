//! Upstream's fields that need special treatment: those without a setting here, those of older
//! versions, and those that upstream derives and saves. First the data, then the functions that
//! apply it.

use super::super::catalogue::{Row, row};
use super::super::kinded::DatasetConfig;
use super::super::node::{Data, Entry, Node};
use super::super::overrides;
use super::super::section::Section;
use super::super::sections::{CommOverlapConfig, DistributedInitConfig, RecipeConfig};
use super::entries::{TARGET, fields_of, is_given, is_true, take};

/// Objects of a running program, and figures that follow from settings: not part of a recipe.
const HANDLES: &[(&str, &str)] = &[
    ("", "data_parallel_size __version__"),
    (
        "model",
        "timers finalize_model_grads_func grad_scale_func grad_sync_func no_sync_func param_sync_func generation_config \
         builder _builder_ extra_checkpoint_metadata mup_width_mult mup_embedding_mult mup_output_mult pre_wrap_hooks post_wrap_hooks",
    ),
    ("optimizer", "timers use_precision_aware_optimizer_no_fp8_or_ds_fp8"),
    ("dataset", "tokenizer split_matrix mock token_dtype_code"),
    ("peft", "params_to_save"),
    ("scheduler", "lr_warmup_steps lr_decay_steps wd_incr_steps wsd_decay_steps"),
];

/// Functions that make layers and initial values, and the modules whose functions follow the
/// settings. Other modules are user code.
const FUNCTIONS: &[(&str, &[&str])] = &[
    (
        "transformer_layer_spec",
        &[
            "megatron.bridge.models.gpt_provider.",
            "megatron.bridge.models.gpt.gpt_builder.",
            "megatron.core.models.gpt.",
            "megatron.bridge.models.mla_provider.",
            "megatron.bridge.models.gemma.",
            "megatron.bridge.models.olmoe.",
            "megatron.bridge.models.deepseek.",
            "megatron.bridge.models.gpt_oss.",
            "megatron.bridge.models.gpt_full_te_layer_autocast_spec.",
        ],
    ),
    (
        "mamba_stack_spec",
        &["megatron.bridge.models.mamba.", "megatron.core.models.mamba.", "megatron.bridge.models.hybrid."],
    ),
    (
        "hybrid_stack_spec",
        &["megatron.bridge.models.hybrid.", "megatron.core.models.hybrid.", "megatron.bridge.models.mamba."],
    ),
    ("init_method", &["torch.nn.init.normal_", "megatron.core.utils."]),
    ("output_layer_init_method", &["torch.nn.init.normal_", "megatron.core.utils."]),
    ("embedding_init_method", &["torch.nn.init.normal_", "megatron.core.utils."]),
];

/// Fields without a setting here with their defaults, of all classes and versions. Fields that are
/// null, false, zero or empty by default need no row.
const DEFAULTS: &[(&str, &str)] = &[
    (
        "model",
        "activation_offload_fraction=1.0 barrier_with_L1_time=true batch_invariant_backend=te_native \
         batch_p2p_sync=true clone_scatter_output_in_embedding=true cpu_offloading_activations=true \
         cuda_graph_modules=full cuda_graph_use_single_mempool=false cuda_graph_use_single_mempool=true \
         dsa_indexer_rotate_activation=true dsa_indexer_scoring_relu=true dsa_indexer_topk_freq=1 \
         dsa_kernel_backend=none expert_gtp_weight_remat_size=1 fp8_interval=1 gdp_num_chunk_states_to_recompute=2 \
         gdp_num_householder=3 gtp_weight_remat_size=1 inference_grouped_gemm_backend=vllm \
         inference_moe_token_dispatcher_type=nvls inference_sampling_seed=42 kitchen_attention_backend=sdpa \
         min_offloaded_tensor_size=1048576 mlp_chunks_for_prefill=1 \
         mlp_chunks_for_training=1 moe_combine_bwd_dtype=bf16 moe_deepep_num_sms=20 moe_dispatch_fwd_dtype=bf16 \
         moe_hybridep_num_sms=16 moe_hybridep_num_sms_preprocessing=108 \
         moe_paged_stash_buffer_size_factor_cuda=1.1 moe_paged_stash_page_size=64 persist_layer_norm=true \
         persist_layer_norm=false qk_clip_alpha=0.5 qk_clip_threshold=100 softmax_type=vanilla \
         tp_comm_bulk_dgrad=true tp_comm_bulk_wgrad=true tp_comm_overlap_ag=true tp_comm_overlap_rs=true \
         tp_comm_split_ag=true tp_comm_split_rs=true use_mamba_mem_eff_path=true",
    ),
    ("logger", "mlflow_log_artifacts=true"),
    (
        "tokenizer",
        "make_vocab_size_divisible_by=1 null_tokenizer_pad_id=-1 pad_vocab_size=true pad_vocab_size=false \
         tensor_model_parallel_size=1 tokenizer_sentencepiece_ignore_extra_whitespaces=true",
    ),
    (
        "checkpoint",
        "ckpt_load_validate_sharding_integrity=true dist_ckpt_workers=1 hf_save_every_n_ranks=1 stream_ckpt_dequant=true",
    ),
    ("ddp", "megatron_fsdp_version=1 preserve_fp32_weights=true"),
];

/// Fields without a setting here that only ask for speed or memory, by section; `*` ends a prefix.
const EXECUTION: &[(&str, &str)] = &[
    (
        "model",
        "async_tensor_model_parallel_allreduce barrier_with_L1_time batch_p2p_sync batch_invariant_* cuda_graph_* enable_cuda_graph \
         external_cuda_graph clone_scatter_output_in_embedding config_logger_dir cpu_offloading_* activation_offload_* \
         disable_bf16_reduced_precision_matmul disable_parameter_transpose_cache ep_overlap_* \
         fine_grained_* fused_single_qkv_rope fused_residual_* inference_* use_inference_optimized_layers \
         kitchen_attention_backend memory_efficient_layer_norm min_offloaded_tensor_size mlp_chunks_* \
         moe_deepep_* moe_enable_deepep moe_flex_dispatcher_num_sms moe_hybridep_* moe_layer_recompute moe_paged_stash* moe_use_* moe_permute_* \
         moe_router_padding_for_fp8 moe_router_padding_for_quantization \
         num_microbatches_with_partial_activation_checkpoints persist_layer_norm pipeline_model_parallel_comm_backend \
         symmetric_ar_type tp_comm_* tp_only_amax_red use_fused_weighted_squared_relu use_mamba_mem_eff_path \
         use_ring_exchange_p2p use_te_activation_func use_transformer_engine_* log_max_attention_logit \
         hf_model_revision nccl_* gtp_* megatron_fsdp_* overlap_* delay_* use_nccl_* min_hybrid_context_parallel_* \
         max_seqlen_per_dp_cp_rank is_hybrid_model mtp_standalone mtp_enabled \
         hetereogenous_dist_checkpoint offload_* high_priority_*",
    ),
    (
        "ddp",
        "nccl_ub fsdp_* megatron_fsdp_* keep_fp8_transpose_cache disable_symmetric_registration outer_dp_sharding_strategy \
         preserve_fp32_weights suggested_communication_unit_size gradient_reduce_div_fusion pad_buckets_* bucket_*",
    ),
    ("optimizer", "overlap_* optimizer_offload_* pin_cpu_* use_torch_optimizer_for_cpu_offload store_param_remainders"),
    (
        "dist",
        "use_tp_pp_dp_mapping use_gloo_* nccl_* use_sharp sharp_* high_priority_* external_gpu_device_mapping enable_*",
    ),
    (
        "logger",
        "wandb_* mlflow_* comet_* log_* memory_* runtime_* straggler_* tensorboard_* timing_* save_config_filepath",
    ),
    ("checkpoint", "async_* ckpt_* hf_* dist_ckpt_* fully_parallel_* storage_* use_persistent_* save_tokenizer_assets"),
    // The permission to run code of a tokenizer; such code is never run.
    ("tokenizer", "trust_remote_code"),
    ("profiling", "*"),
    ("dataset", "pin_memory persistent_workers memmap_workers defer_* fast_*"),
    ("mixed_precision", "fp8_param_gather reuse_grad_buf_*"),
];

/// Environment variables of libraries that only CUDA programs use, by the beginning of their names.
const LIBRARIES: [&str; 11] = [
    "CUBLAS_",
    "CUDA_",
    "CUDNN",
    "NCCL_",
    "NUM_OF_HYBRID_EP_",
    "NUM_OF_TOKENS_PER_CHUNK_",
    "NVLINK_",
    "NVTE_",
    "PYTORCH_",
    "TORCH_NCCL_",
    "USE_MNNVL",
];

/// The rope scaling of Llama 3.1 in older versions, which had it whenever these fields were there.
const OLD_ROPE_SCALING: &[(&str, &str)] = &[
    ("scale_factor", "rope_scaling_factor"),
    ("low_freq_factor", "rope_scaling_low_freq_factor"),
    ("high_freq_factor", "rope_scaling_high_freq_factor"),
    ("old_context_len", "rope_scaling_original_max_position_embeddings"),
];

/// Settings that upstream, like Bridge, fills in from others if they are not set: the same value is
/// redundant.
const DERIVED: &[(&str, &str)] = &[
    ("model.expert_tensor_parallel_size", "model.tensor_model_parallel_size"),
    ("model.microbatch_group_size_per_vp_stage", "model.pipeline_model_parallel_size"),
    ("model.moe_ffn_hidden_size", "model.ffn_hidden_size"),
    ("model.embedding_init_method_std", "model.init_method_std"),
    ("validation.eval_global_batch_size", "train.global_batch_size"),
    ("validation.eval_micro_batch_size", "train.micro_batch_size"),
    ("train.eval_iters", "validation.eval_iters"),
    ("train.eval_interval", "validation.eval_interval"),
    ("train.skip_train", "validation.skip_train"),
];

/// Settings that have no effect if another one is given, upstream as well: (setting, the other).
const REPLACED: &[(&str, &str)] = &[
    ("train.train_iters", "train.train_samples"),
    ("dataset.data_path", "dataset.blend"),
    // Recipes set both; the schedule determines the decay.
    ("optimizer.weight_decay", "scheduler.start_weight_decay"),
];

/// Settings that turn on sharding by `ddp.data_parallel_sharding_strategy`.
const FSDP: [&str; 3] = ["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "ddp.use_custom_fsdp"];

/// Settings that gather parameters as codes of 8 bits.
const GATHERS_CODES: [(&str, &str); 2] = [("ddp", "fp8_param_gather"), ("mixed_precision", "fp8_param_gather")];

/// The targets of `[comm_overlap]` settings; upstream copies each onto the sections that have it.
const OVERLAP_TARGETS: [&str; 3] = ["model", "ddp", "optimizer"];

/// Treatment of a field that is not a setting.
pub(super) enum Fate {
    /// The field belongs to a running program, or follows from settings.
    Handle,
    /// The value has no effect.
    Default,
    /// The field changes only speed or memory.
    Execution,
    /// The value has an effect; holds the values without one.
    Asks(Option<String>),
}

/// Treatment of a field of `section` that is not a setting.
pub(super) fn fate(section: &str, entry: &Entry) -> Fate {
    let (key, node) = (entry.key.as_str(), &entry.node);
    if of_section(HANDLES, section).any(|name| name == key) {
        return Fate::Handle;
    }
    let rows = of_section(DEFAULTS, section).filter_map(|row| row.split_once('='));
    let defaults = rows.filter(|(name, _)| *name == key).map(|(_, text)| overrides::value_of(text));
    let defaults: Vec<_> = defaults.collect();
    let function = FUNCTIONS.iter().find(|(name, _)| *name == key && section == "model");
    if let (Some((_, modules)), Some(target)) = (function, node.get(TARGET).and_then(Node::text)) {
        let is_known = modules.iter().any(|module| target.starts_with(module));
        return if is_known {
            Fate::Handle
        } else {
            Fate::Asks(Some(format!("a function of {}", modules.join(" or "))))
        };
    }
    let is_default = defaults.iter().any(|default| is_same(node, default));
    if is_default || node.is_null() || (defaults.is_empty() && (node.asks_for_nothing() || node.text() == Some(""))) {
        return Fate::Default;
    }
    if is_execution(section, key) || section.is_empty() && key == "env_vars" && is_of_libraries(node) {
        return Fate::Execution;
    }
    Fate::Asks(defaults.first().map(Node::to_inline))
}

/// The words of a table about a section.
fn of_section(table: &'static [(&str, &str)], section: &str) -> impl Iterator<Item = &'static str> {
    table.iter().filter(move |(of, _)| *of == section).flat_map(|(_, words)| words.split_whitespace())
}

/// True if every variable in a table belongs to a library that only CUDA programs use.
fn is_of_libraries(variables: &Node) -> bool {
    let is_known = |name: &str| LIBRARIES.iter().any(|library| name.starts_with(library));
    variables.entries().is_some_and(|entries| entries.iter().all(|entry| is_known(&entry.key)))
}

/// True if no value of the field changes a result.
fn is_execution(section: &str, key: &str) -> bool {
    of_section(EXECUTION, section).any(|name| match name.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == name,
    })
}

/// True if two values are equal; Python writes whole floats as integers, and dtypes with the name
/// of their library.
pub(super) fn is_same(left: &Node, right: &Node) -> bool {
    let text = |text: &str| text.strip_prefix("torch.").unwrap_or(text).to_owned();
    left == right
        || (left.is_null() && right.is_null())
        || left.number().is_some_and(|value| Some(value) == right.number())
        || left.text().is_some_and(|value| Some(text(value)) == right.text().map(text))
}

/// Row of the setting that a field of a section means.
pub(super) fn row_of(section: &str, key: &str) -> Option<&'static Row> {
    let name = match section {
        "dataset" => DatasetConfig::canonical(key),
        "dist" => DistributedInitConfig::canonical(key),
        _ => key,
    };
    row(&format!("{section}.{name}"))
}

/// Renames fields of older versions to their newer names, and leaves out a limit that is infinite.
pub(super) fn rename(section: &str, entries: &mut Vec<Entry>) {
    let is_no_limit =
        |entry: &Entry| entry.key == "grad_norm_skip_threshold" && entry.node.number().is_some_and(f64::is_infinite);
    entries.retain(|entry| section != "optimizer" || !is_no_limit(entry));
    let has = |name: &str| entries.iter().any(|entry| entry.key == name);
    if section != "model" || has("rope_scaling") || !has("old_context_len") {
        return;
    }
    for entry in entries.iter_mut() {
        if let Some((_, new)) = OLD_ROPE_SCALING.iter().find(|(old, _)| *old == entry.key) {
            entry.key = (*new).to_owned();
        }
    }
    entries.push(Entry::new("rope_scaling", Data::Bool(true).into()));
}

/// Moves the settings of `[comm_overlap]` to the sections that upstream copies them onto. In a
/// saved file this has already happened: its values in those sections are the result.
pub(super) fn move_overlap(sections: &mut Vec<Entry>) {
    let names = CommOverlapConfig::names();
    let Some(index) = sections.iter().position(|entry| entry.key == "comm_overlap" && !is_given(&entry.node)) else {
        return;
    };
    let Data::Table(entries) = &mut sections[index].node.data else { return };
    let moved: Vec<Entry> = entries.extract_if(.., |e| names.contains(&e.key.as_str()) && !is_given(&e.node)).collect();
    if entries.is_empty() {
        sections.remove(index);
    }
    for entry in moved.into_iter().filter(|entry| !entry.node.is_null()) {
        let has = |section: &&&str| row(&format!("{section}.{}", entry.key)).is_some();
        let Some(target) = OVERLAP_TARGETS.iter().find(has) else { continue };
        let at = sections.iter().position(|section| section.key == *target).unwrap_or_else(|| {
            sections.push(Entry::new(*target, Data::Table(Vec::new()).into()));
            sections.len() - 1
        });
        if let Data::Table(fields) = &mut sections[at].node.data
            && fields.iter().all(|field| field.key != entry.key)
        {
            fields.push(entry);
        }
    }
}

/// True if upstream's FSDP is used, which alone reads the sharding strategy.
fn has_fsdp(whole: &Node) -> bool {
    FSDP.iter().any(|key| whole.get_path(key).is_some_and(|node| node.data == Data::Bool(true)))
}

/// Leaves out the gathering of 8-bit codes if ranks have whole parameters; returns `key = value` of
/// what was left out. Weights of 8-bit layers are then gathered in 16 bits and rounded afterwards.
pub(super) fn drop_code_gathers(sections: &mut [Entry]) -> Vec<String> {
    let whole: Node = Data::Table(sections.to_vec()).into();
    let strategy = whole.get_path("ddp.data_parallel_sharding_strategy").and_then(Node::text);
    if has_fsdp(&whole) && strategy == Some("optim_grads_params") {
        return Vec::new();
    }
    let mut dropped = Vec::new();
    for (section, key) in GATHERS_CODES {
        if let Some(entries) = fields_of(sections, section)
            && is_true(entries, key)
            && take(entries, key).is_some()
        {
            dropped.push(format!("{section}.{key} = true"));
        }
    }
    dropped
}

/// Leaves out values that upstream derived from the rest of the file.
pub(super) fn drop_derived(sections: &mut [Entry]) {
    let whole: Node = Data::Table(sections.to_vec()).into();
    let defaults = RecipeConfig::default().to_node();
    let given = |key: &str| whole.get_path(key).filter(|node| !node.is_null());
    let mut dropped = Vec::new();
    for (key, source) in DERIVED {
        if let (Some(value), Some(source)) = (given(key), given(source).or_else(|| defaults.get_path(source)))
            && is_same(value, source)
        {
            dropped.push(*key);
        }
    }
    dropped.extend(REPLACED.iter().filter(|(_, other)| given(other).is_some()).map(|(key, _)| *key));
    if given("model.recompute_granularity").is_none_or(|node| *node != Node::string("selective")) {
        dropped.push("model.recompute_modules");
    }
    if !has_fsdp(&whole) {
        dropped.push("ddp.data_parallel_sharding_strategy");
    }
    // Zero is never, which is null here.
    let is_zero = |key: &&str| given(key).and_then(Node::number) == Some(0.0);
    dropped.extend(["validation.eval_interval", "train.eval_interval"].iter().filter(|key| is_zero(key)));
    // Without padding, upstream does not read the divisor.
    let pads = given("model.should_pad_vocab").is_some_and(|node| node.data == Data::Bool(true));
    if given("model.vocab_size").is_some() && !pads {
        dropped.push("model.make_vocab_size_divisible_by");
    }
    for section in sections.iter_mut() {
        let name = section.key.clone();
        if let Data::Table(entries) = &mut section.node.data {
            entries
                .retain(|entry| is_given(&entry.node) || !dropped.contains(&format!("{name}.{}", entry.key).as_str()));
        }
        let has_data = ["data_path", "blend", "blend_per_split", "source"].iter().any(|key| {
            let has = |node: &Node| !matches!(&node.data, Data::List(items) if items.iter().all(Node::is_null));
            given(&format!("dataset.{key}")).is_some_and(has)
        });
        if name == "dataset" && !has_data {
            mock(&mut section.node);
        }
    }
}

/// Without data, upstream uses mock data.
fn mock(dataset: &mut Node) {
    let Data::Table(entries) = &mut dataset.data else { return };
    let is_gpt = |entry: &Entry| entry.key == "kind" && entry.node == Node::string("gpt") && !is_given(&entry.node);
    for entry in entries.iter_mut().filter(|entry| is_gpt(entry)) {
        entry.node.data = Data::String("mock".into());
    }
}
