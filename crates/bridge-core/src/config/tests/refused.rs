//! What each rule of `finalize` refuses, as a table, and the key it names.

use super::assert_refused;

/// One row per rule: overrides of the tiny recipe, and the key that must be named.
const REFUSED: &[(&[&str], &str)] = &[
    (&["train.micro_batch_size=null"], "train.micro_batch_size"),
    (&["train.global_batch_size=null"], "train.global_batch_size"),
    (&["train.global_batch_size=5"], "train.global_batch_size"),
    (&["train.train_iters=null"], "train.train_iters"),
    (&["train.train_samples=80"], "train.train_samples"),
    (
        &["train.train_iters=null", "train.train_samples=3"],
        "train.train_samples",
    ),
    (
        &["train.rampup_batch_size=[0, 2, 10]"],
        "train.rampup_batch_size",
    ),
    (
        &["train.rampup_batch_size=[2, 0, 10]"],
        "train.rampup_batch_size",
    ),
    (
        &["train.rampup_batch_size=[8, 2, 10]"],
        "train.rampup_batch_size",
    ),
    (
        &["train.rampup_batch_size=[1, 1, 10]"],
        "train.rampup_batch_size",
    ),
    (
        &["train.rampup_batch_size=[2, 2, 0]"],
        "train.rampup_batch_size",
    ),
    (
        &["train.rampup_batch_size=[2, 2]"],
        "train.rampup_batch_size",
    ),
    (
        &[
            "train.train_iters=null",
            "train.train_samples=80",
            "train.rampup_batch_size=[2, 2, 8]",
        ],
        "train.rampup_batch_size",
    ),
    (
        &["train.iterations_to_skip=[0]"],
        "train.iterations_to_skip",
    ),
    (&["train.exit_signal=SIGKILL"], "train.exit_signal"),
    (&["train.manual_gc=true"], "train.manual_gc"),
    (&["train.eval_iters=7"], "train.eval_iters"),
    (
        &["train.train_iters=9000000000000000000"],
        "train.train_iters",
    ),
    (&["validation.eval_interval=0"], "validation.eval_interval"),
    (
        &["validation.eval_micro_batch_size=3"],
        "validation.eval_micro_batch_size",
    ),
    (
        &["validation.eval_global_batch_size=3"],
        "validation.eval_global_batch_size",
    ),
    (
        &["validation.skip_train=true", "validation.eval_iters=0"],
        "validation.skip_train",
    ),
    (
        &[
            "validation.start_eval_at_iter=3",
            "validation.eval_interval=null",
        ],
        "validation.start_eval_at_iter",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.data_path=0.3 a 0.7 b",
            "dataset.split=1,1",
            "validation.full_validation=true",
        ],
        "validation.full_validation",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.blend_per_split=[[['a']], [['b', 'c'], [1.0, 2.0]], 'null']",
            "validation.full_validation=true",
        ],
        "validation.full_validation",
    ),
    (&["validation.test_mode=true"], "validation.test_mode"),
    (
        &["validation.multiple_validation_sets=true"],
        "validation.multiple_validation_sets",
    ),
    (&["optimizer.lr=null"], "optimizer.lr"),
    (&["optimizer.min_lr=1.0"], "optimizer.min_lr"),
    (
        &["optimizer.decoupled_min_lr=0.1"],
        "optimizer.decoupled_min_lr",
    ),
    (
        &[
            "optimizer.decoupled_lr=0.1",
            "optimizer.decoupled_min_lr=0.2",
        ],
        "optimizer.decoupled_min_lr",
    ),
    (
        &["optimizer.initial_loss_scale=0.5"],
        "optimizer.initial_loss_scale",
    ),
    (&["optimizer.loss_scale=2"], "optimizer.loss_scale"),
    (&["optimizer.hysteresis=3"], "optimizer.hysteresis"),
    (
        &[
            "mixed_precision=fp16_mixed",
            "optimizer.loss_scale=8",
            "optimizer.loss_scale_window=50",
        ],
        "optimizer.loss_scale_window",
    ),
    (
        &["optimizer.apply_wd_to_qk_layernorm=true"],
        "optimizer.apply_wd_to_qk_layernorm",
    ),
    (
        &[
            "optimizer.optimizer=sgd",
            "optimizer.decoupled_weight_decay=false",
        ],
        "optimizer.decoupled_weight_decay",
    ),
    (&["optimizer.optimizer=muon"], "optimizer.optimizer"),
    (
        &["optimizer.optimizer=sgd", "optimizer.adam_beta1=0.5"],
        "optimizer.adam_beta1",
    ),
    (&["optimizer.sgd_momentum=0.5"], "optimizer.sgd_momentum"),
    (
        &["optimizer.use_distributed_optimizer=true"],
        "optimizer.use_distributed_optimizer",
    ),
    (
        &["scheduler.lr_decay_style=WSD"],
        "scheduler.lr_wsd_decay_iters",
    ),
    (
        &["scheduler.lr_wsd_decay_iters=3"],
        "scheduler.lr_wsd_decay_iters",
    ),
    (
        &[
            "scheduler.lr_decay_style=WSD",
            "scheduler.lr_wsd_decay_iters=21",
        ],
        "scheduler.lr_wsd_decay_iters",
    ),
    (
        &["scheduler.lr_wsd_decay_style=cosine"],
        "scheduler.lr_wsd_decay_style",
    ),
    (
        &["scheduler.lr_decay_samples=3"],
        "scheduler.lr_decay_samples",
    ),
    (
        &["scheduler.lr_warmup_samples=3"],
        "scheduler.lr_warmup_samples",
    ),
    (
        &["scheduler.lr_warmup_fraction=0.1"],
        "scheduler.lr_warmup_fraction",
    ),
    (
        &["scheduler.lr_warmup_init=0.5"],
        "scheduler.lr_warmup_init",
    ),
    (
        &["scheduler.start_weight_decay=0.5"],
        "scheduler.start_weight_decay",
    ),
    (
        &[
            "scheduler.end_weight_decay=0.05",
            "scheduler.weight_decay_incr_style=cosine",
        ],
        "scheduler.end_weight_decay",
    ),
    (
        &[
            "scheduler.override_opt_param_scheduler=true",
            "scheduler.use_checkpoint_opt_param_scheduler=true",
        ],
        "scheduler.use_checkpoint_opt_param_scheduler",
    ),
    (&["model.kind=mamba"], "model.kind"),
    (&["model.hidden_size=0"], "model.hidden_size"),
    (&["model.num_layers=null"], "model.num_layers"),
    (
        &["model.num_attention_heads=7", "model.num_query_groups=7"],
        "model.num_attention_heads",
    ),
    (
        &[
            "model.num_attention_heads=128",
            "model.num_query_groups=null",
            "model.hidden_size=64",
        ],
        "model.num_attention_heads",
    ),
    (&["model.num_query_groups=3"], "model.num_query_groups"),
    (&["model.kv_channels=7"], "model.kv_channels"),
    (&["model.rotary_percent=0.4"], "model.rotary_percent"),
    (
        &["model.rope_scaling_factor=8.0"],
        "model.rope_scaling_factor",
    ),
    (
        &[
            "model.rope_scaling=true",
            "model.rope_scaling_high_freq_factor=0.5",
        ],
        "model.rope_scaling_high_freq_factor",
    ),
    (
        &[
            "model.position_embedding_type=learned_absolute",
            "model.rope_scaling=true",
        ],
        "model.rope_scaling",
    ),
    (
        &["model.position_embedding_type=yarn"],
        "model.position_embedding_type",
    ),
    (&["model.no_rope_freq=3"], "model.no_rope_freq"),
    (&["model.no_rope_freq=[1]"], "model.no_rope_freq"),
    (&["model.no_rope_freq=[1, 2]"], "model.no_rope_freq"),
    (
        &["model.window_attn_skip_freq=2"],
        "model.window_attn_skip_freq",
    ),
    (
        &["model.window_size=[8, 0]", "model.window_attn_skip_freq=0"],
        "model.window_attn_skip_freq",
    ),
    (&["model.window_size=[-2, 0]"], "model.window_size"),
    (&["model.window_size=[8, 4]"], "model.window_size"),
    (
        &[
            "model.rope_scaling=true",
            "model.seq_len_interpolation_factor=2.0",
        ],
        "model.seq_len_interpolation_factor",
    ),
    (
        &["model.recompute_granularity=full"],
        "model.recompute_method",
    ),
    (
        &["model.recompute_num_layers=1"],
        "model.recompute_num_layers",
    ),
    (
        &[
            "model.recompute_granularity=selective",
            "model.recompute_method=block",
        ],
        "model.recompute_method",
    ),
    (
        &["model.recompute_modules=[\"mlp\"]"],
        "model.recompute_modules",
    ),
    (
        &[
            "model.recompute_granularity=selective",
            "model.recompute_modules=[\"moe\"]",
        ],
        "model.recompute_modules",
    ),
    (
        &[
            "model.recompute_granularity=selective",
            "model.recompute_modules=[\"attn\"]",
        ],
        "model.recompute_modules",
    ),
    (
        &[
            "model.recompute_granularity=full",
            "model.recompute_method=block",
            "model.recompute_num_layers=3",
        ],
        "model.recompute_num_layers",
    ),
    (
        &["model.attention_backend=flash"],
        "model.attention_backend",
    ),
    (&["model.num_moe_experts=4"], "model.num_moe_experts"),
    (&["model.sequence_parallel=true"], "model.sequence_parallel"),
    (
        &["model.pipeline_model_parallel_size=2"],
        "model.pipeline_model_parallel_size",
    ),
    (&["model.vocab_size=100"], "model.vocab_size"),
    (
        &[
            "model.hidden_size=16777216",
            "model.ffn_hidden_size=67108864",
        ],
        "model.ffn_hidden_size",
    ),
    (&["dataset.kind=sft"], "dataset.kind"),
    (&["dataset.kind=gpt"], "dataset.data_path"),
    (
        &["dataset.kind=gpt", "dataset.data_path=a"],
        "dataset.split",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.data_path=a",
            "dataset.blend=[['b']]",
        ],
        "dataset.blend",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.source=a",
            "dataset.data_path=b",
        ],
        "dataset.data_path",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.blend=[['b'], [1.0, 2.0]]",
            "dataset.split=1,1",
        ],
        "dataset.blend",
    ),
    (
        &["dataset.kind=gpt", "dataset.blend_per_split=[[['b']]]"],
        "dataset.blend_per_split",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.blend_per_split=[[['b']], 'null', 'null']",
            "dataset.split=1,1",
        ],
        "dataset.split",
    ),
    (&["dataset.data_path=a"], "dataset.data_path"),
    (
        &[
            "dataset.kind=gpt",
            "dataset.blend=[['a', 'b'], [1.0, 0.0]]",
            "dataset.split=1,1",
        ],
        "dataset.blend",
    ),
    (
        &[
            "dataset.kind=gpt",
            "dataset.data_path=0 a 1 b",
            "dataset.split=1,1",
        ],
        "dataset.data_path",
    ),
    (&["dataset.split=969,30,1"], "dataset.split"),
    (&["dataset.split=0,0,0"], "dataset.split"),
    (&["dataset.split=1,2,3,4"], "dataset.split"),
    (&["dataset.split=1,-2"], "dataset.split"),
    (&["dataset.split=lots"], "dataset.split"),
    (&["dataset.seq_length=32"], "dataset.seq_length"),
    (&["dataset.fim_rate=0.5"], "dataset.fim_rate"),
    (
        &["dataset.kind=fim", "dataset.source=a"],
        "dataset.fim_rate",
    ),
    (
        &["dataset.source_max_bytes=64XB"],
        "dataset.source_max_bytes",
    ),
    (&["dataset.source_format=jsonl"], "dataset.source_format"),
    (
        &[
            "dataset.kind=gpt",
            "dataset.source=a",
            "dataset.split=1,1",
            "dataset.source_format=text",
            "dataset.source_jsonl_key=body",
        ],
        "dataset.source_jsonl_key",
    ),
    (
        &["dataset.kind=fim", "dataset.fim_fragment_rate=0.5"],
        "dataset.fim_fragment_rate",
    ),
    (
        &["dataset.dataloader_type=cyclic", "dataset.drop_last=false"],
        "dataset.drop_last",
    ),
    (
        &[
            "dataset.dataloader_type=single",
            "dataset.data_sharding=false",
        ],
        "dataset.data_sharding",
    ),
    (&["dataset.full_validation=true"], "dataset.full_validation"),
    (
        &["dataset.dataloader_type=external"],
        "dataset.dataloader_type",
    ),
    (
        &[
            "tokenizer.tokenizer_type=null",
            "tokenizer.vocab_size=null",
            "model.vocab_size=null",
        ],
        "model.vocab_size",
    ),
    (
        &["tokenizer.tokenizer_type=null", "tokenizer.vocab_size=null"],
        "tokenizer.tokenizer_type",
    ),
    (
        &[
            "tokenizer.tokenizer_type=null",
            "tokenizer.vocab_size=null",
            "dataset.kind=gpt",
            "dataset.data_path=a",
            "dataset.split=1,1",
            "dataset.eod_mask_loss=true",
        ],
        "tokenizer.tokenizer_type",
    ),
    (
        &["tokenizer.special_tokens=['<|pad|>']"],
        "tokenizer.special_tokens",
    ),
    (&["tokenizer.vocab_size=null"], "tokenizer.vocab_size"),
    (
        &["tokenizer.tokenizer_type=HuggingFaceTokenizer"],
        "tokenizer.tokenizer_model",
    ),
    (
        &[
            "tokenizer.tokenizer_type=HuggingFaceTokenizer",
            "tokenizer.tokenizer_model=x",
        ],
        "tokenizer.vocab_size",
    ),
    (
        &["tokenizer.tokenizer_type=ByteLevelBPE"],
        "tokenizer.tokenizer_type",
    ),
    (
        &["tokenizer.tokenizer_type=TikTokenizer"],
        "tokenizer.tokenizer_type",
    ),
    (
        &["tokenizer.bpe_vocab_size=300"],
        "tokenizer.bpe_vocab_size",
    ),
    (&["checkpoint.save_interval=5"], "checkpoint.save_interval"),
    (
        &["checkpoint.save=x", "checkpoint.most_recent_k=0"],
        "checkpoint.most_recent_k",
    ),
    (&["checkpoint.most_recent_k=2"], "checkpoint.most_recent_k"),
    (
        &[
            "checkpoint.save=x",
            "checkpoint.save_interval=2",
            "checkpoint.save_retain_interval=3",
        ],
        "checkpoint.save_retain_interval",
    ),
    (&["checkpoint.async_save=true"], "checkpoint.async_save"),
    (&["checkpoint.save_optim=false"], "checkpoint.save_optim"),
    (&["checkpoint.save_rng=false"], "checkpoint.save_rng"),
    (
        &["checkpoint.save_tokenizer_assets=false"],
        "checkpoint.save_tokenizer_assets",
    ),
    (&["checkpoint.ckpt_step=3"], "checkpoint.ckpt_step"),
    (
        &["checkpoint.ckpt_format=torch_dist"],
        "checkpoint.ckpt_format",
    ),
    (&["checkpoint.finetune=true"], "checkpoint.finetune"),
    (
        &[
            "ddp.average_in_collective=true",
            "model.calculate_per_token_loss=true",
        ],
        "ddp.average_in_collective",
    ),
    (
        &["rerun_state_machine.rerun_mode=report_determinism_stats"],
        "rerun_state_machine.rerun_mode",
    ),
    (
        &["rerun_state_machine.error_injection_type=persistent_error"],
        "rerun_state_machine.error_injection_type",
    ),
    (
        &["profiling.use_pytorch_profiler=true"],
        "profiling.use_pytorch_profiler",
    ),
    (
        &["profiling.profile_step_end=3"],
        "profiling.profile_step_end",
    ),
    (&["peft={kind = 'lora'}"], "peft"),
    (&["ft.enable_ft_package=true"], "ft.enable_ft_package"),
    (
        &["rerun_state_machine.spiky_loss_factor=3.0"],
        "rerun_state_machine.spiky_loss_factor",
    ),
    (&["logger.wandb_project=x"], "logger.wandb_project"),
    (
        &["logger.log_device_memory_used=true"],
        "logger.log_device_memory_used",
    ),
    (&["logger.filter_warnings=false"], "logger.filter_warnings"),
    (
        &["logger.set_level_for_all_loggers=true"],
        "logger.set_level_for_all_loggers",
    ),
    (&["logger.log_progress=true"], "logger.log_progress"),
    (
        &["logger.throughput_window_size=5"],
        "logger.throughput_window_size",
    ),
    (
        &["logger.runtime_time_unit=days"],
        "logger.runtime_time_unit",
    ),
    (&["generate.max_tokens=5"], "generate.max_tokens"),
    (&["name=a/b"], "name"),
    (&["name=''"], "name"),
    (&["device=quantum"], "device"),
    (&["device=cuda:x"], "device"),
    (&["generate.top_p=0"], "generate.top_p"),
    (&["rng.seed=0"], "rng.seed"),
];

#[test]
fn each_rule_refuses_and_names_its_key() {
    for (overrides, key) in REFUSED {
        assert_refused(overrides, key);
    }
}
