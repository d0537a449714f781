//! Settings of `[model]` that every kind of model has.

/// Settings of the loop and of the pipeline rather than of a kind of model: every kind has them.
pub const OF_EVERY_KIND: [&str; 23] = [
    "num_layers",
    "hidden_size",
    "seq_length",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "should_pad_vocab",
    "calculate_per_token_loss",
    "freeze_parameters",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
    "pipeline_schedule",
    "pipeline_dtype",
    "microbatch_group_size_per_vp_stage",
    "fp16",
    "bf16",
    "params_dtype",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
];
