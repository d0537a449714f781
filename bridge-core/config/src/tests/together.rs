//! Problems of reading and violated rules are reported together, and none is the echo of another.

use super::super::node::Node;
use super::super::section::Section;
use super::super::{Detail, Format, Kinds, RawConfig};
use super::{TEXT, TINY, run_toml, tiny_errors};

/// Recipes without a problem: text and overrides. Together they read as many rules as possible.
const RECIPES: &[(&str, &[&str])] = &[
    (TINY, &[]),
    (TEXT, &[]),
    (TINY, &["mixed_precision=bf16_mixed", "model.bf16=true", "ddp.grad_reduce_in_fp32=true"]),
    (TINY, &["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=65536", "optimizer.hysteresis=1"]),
    (TINY, &["mixed_precision={fp16 = true, loss_scale = 128}"]),
    (
        TINY,
        &[
            "model.num_layers=4",
            "model.fp8=hybrid",
            "model.fp8_margin=1",
            "model.fp8_amax_history_len=8",
            "model.fp8_amax_compute_algo=max",
            "model.fp8_wgrad=false",
            "model.first_last_layers_bf16=true",
            "model.num_layers_at_start_in_bf16=2",
        ],
    ),
    (
        TINY,
        &[
            "model.num_layers=4",
            "mixed_precision={bf16 = true, fp8 = 'hybrid', fp8_recipe = 'delayed', fp8_margin = 1, fp8_wgrad = false, \
             first_last_layers_bf16 = true, num_layers_at_start_in_bf16 = 1}",
        ],
    ),
    (TINY, &["model.kv_channels=16", "model.rotary_percent=0.5", "model.vocab_size=640", "tokenizer.vocab_size=600"]),
    (TINY, &["model.rope_scaling=true", "model.rope_scaling_factor=8.0", "model.rope_scaling_high_freq_factor=9.0"]),
    (
        TINY,
        &["model.num_layers=4", "model.window_size=[8, 0]", "model.window_attn_skip_freq=2", "model.no_rope_freq=4"],
    ),
    (TINY, &["model.window_size=[8, 0]", "model.no_rope_freq=[1, 0]"]),
    (TINY, &["model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=2"]),
    (TINY, &["model.recompute_granularity=selective", "model.recompute_modules=['mlp']"]),
    (TINY, &["train.global_batch_size=8", "train.rampup_batch_size=[2, 2, 8]", "train.iterations_to_skip=[3]"]),
    (TINY, &["train.global_batch_size=5", "train.decrease_batch_size_if_needed=true"]),
    (
        TINY,
        &[
            "train.train_iters=null",
            "train.train_samples=80",
            "scheduler.lr_warmup_iters=0",
            "scheduler.lr_warmup_samples=8",
        ],
    ),
    (
        TINY,
        &[
            "validation.eval_micro_batch_size=3",
            "validation.eval_global_batch_size=6",
            "validation.start_eval_at_iter=5",
        ],
    ),
    (TINY, &["validation.skip_train=true"]),
    (TINY, &["validation.full_validation=true", "validation.eval_iters=0", "validation.skip_train=true"]),
    (TINY, &["optimizer.decoupled_lr=0.1", "optimizer.decoupled_min_lr=0.01", "scheduler.lr_warmup_init=1e-5"]),
    (TINY, &["optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.5"]),
    (TINY, &["model.should_pad_vocab=true", "model.make_vocab_size_divisible_by=64"]),
    (TINY, &["checkpoint.save=x", "scheduler.use_checkpoint_opt_param_scheduler=true", "checkpoint.on_damaged=error"]),
    (TINY, &["model.qk_layernorm=true", "optimizer.apply_wd_to_qk_layernorm=true"]),
    (TINY, &["scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=5", "scheduler.lr_wsd_decay_style=cosine"]),
    (
        TINY,
        &[
            "scheduler.start_weight_decay=0.05",
            "scheduler.end_weight_decay=0.1",
            "scheduler.weight_decay_incr_style=linear",
        ],
    ),
    (
        TINY,
        &["dataset.kind=gpt", "dataset.data_path=0.3 a 0.7 b", "dataset.split=98,2,0", "dataset.eod_mask_loss=true"],
    ),
    (TINY, &["dataset.kind=gpt", "dataset.blend=[['a', 'b'], [0.3, 0.7]]", "dataset.split=98,2,0"]),
    (TINY, &["dataset.kind=gpt", "dataset.blend_per_split=[[['a']], [['b', 'c'], [0.5, 0.5]], 'null']"]),
    (
        TINY,
        &[
            "dataset.kind=gpt",
            "dataset.blend_per_split=[[['a']], [['b', 'c']], 'null']",
            "validation.multiple_validation_sets=true",
        ],
    ),
    (
        TINY,
        &[
            "dataset.kind=fim",
            "dataset.data_path=a",
            "dataset.split=98,2",
            "dataset.fim_rate=0.5",
            "dataset.fim_spm_rate=0.5",
            "dataset.fim_extra_tokens={prefix = 'a', middle = 'b', suffix = 'c', pad = 'd', eod = 'e'}",
            "dataset.fim_split_sample='x'",
            "dataset.fim_fragment_rate=0.5",
        ],
    ),
    (TINY, &["comm_overlap={overlap_grad_reduce = true, bucket_size = 100}", "ddp.overlap_grad_reduce=true"]),
    (TINY, &["dataset.dataloader_type=cyclic", "dataset.data_sharding=false"]),
    // The order of validation.
    (TINY, &["dataset.dataloader_type=single", "dataset.data_sharding=false", "validation.eval_iters=2"]),
    (TINY, &["dataset.dataloader_type=batch", "dataset.drop_last=false"]),
    (
        TINY,
        &[
            "tokenizer.tokenizer_type=HuggingFaceTokenizer",
            "tokenizer.tokenizer_model=x",
            "tokenizer.vocab_size=null",
            "tokenizer.special_tokens=['<|x|>']",
        ],
    ),
    (TEXT, &["tokenizer.bpe_vocab_size=500", "dataset.source_format=jsonl", "dataset.source_jsonl_key=body"]),
    (
        TINY,
        &[
            "checkpoint.save=x",
            "checkpoint.save_interval=5",
            "checkpoint.save_retain_interval=10",
            "checkpoint.most_recent_k=2",
            "checkpoint.async_save=true",
            "logger.log_progress=true",
        ],
    ),
    (TINY, &["checkpoint.load=x", "checkpoint.ckpt_step=3", "checkpoint.exit_on_missing_checkpoint=true"]),
    (TINY, &["checkpoint.pretrained_checkpoint=x", "checkpoint.finetune=true"]),
    (TINY, &["logger.log_throughput_to_tensorboard=true", "logger.throughput_window_size=10"]),
    (TINY, &["logger.log_runtime_to_tensorboard=true", "logger.runtime_time_unit=days"]),
    (TINY, &["logger.skip_train_metrics_log=true", "logger.log_interval=null"]),
    (TINY, &["logger.timing_log_option=all"]),
    (TINY, &["logger.timing_log_option=max", "validation.eval_iters=0", "checkpoint.save=x"]),
    (TINY, &["logger.timing_log_level=1", "logger.barrier_with_L1_time=false", "logger.timing_log_option=all"]),
    (TINY, &["logger.log_throughput_to_tensorboard=true", "logger.throughput_window_size=20"]),
    (
        TINY,
        &[
            "rerun_state_machine.error_injection_rate=5",
            "rerun_state_machine.rerun_mode=validate_results",
            "rerun_state_machine.error_injection_type=persistent_error",
        ],
    ),
    (TINY, &["rerun_state_machine.check_for_spiky_loss=true", "rerun_state_machine.spiky_loss_factor=3.0"]),
    (TINY, &["generate.prompt=x", "generate.max_tokens=5", "generate.top_k=3"]),
];

/// Dotted keys of a recipe's settings, with the values as TOML.
fn settings(text: &str, overrides: &[&str]) -> Vec<(String, String)> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let raw = RawConfig::from_text(text, Format::Toml, &overrides, &Kinds::builtin()).expect("reads");
    let written = raw.recipe().to_text(Format::Toml, Detail::NonDefault);
    let root = Node::from_toml_value(&toml::Value::Table(written.parse().expect("TOML")));
    let sections = raw.recipe().to_node();
    let mut found = Vec::new();
    for section in root.entries().expect("a table") {
        let is_section = sections.get(&section.key).and_then(Node::entries).is_some();
        match section.node.entries().filter(|_| is_section) {
            None => found.push((section.key.clone(), section.node.to_inline())),
            Some(fields) => found
                .extend(fields.iter().map(|field| (format!("{}.{}", section.key, field.key), field.node.to_inline()))),
        }
    }
    found
}

/// Asserts that all problems are about `key`, for some value of it would make the recipe valid.
fn assert_no_echo(text: &str, overrides: &[&str], mistake: &[String], key: &str) {
    let all: Vec<&str> = overrides.iter().copied().chain(mistake.iter().map(String::as_str)).collect();
    let errors = run_toml(text, &all).expect_err(key);
    let echo = errors.iter().find(|error| !error.key.starts_with(key));
    assert!(echo.is_none(), "{all:?}: follows from {key} alone:\n{}", echo.expect("there"));
}

#[test]
fn a_value_that_cannot_be_read_has_no_echo() {
    let mut count = 0;
    for (text, overrides) in RECIPES {
        for (key, _) in settings(text, overrides) {
            // No setting is a list of lists of tables.
            assert_no_echo(text, overrides, &[format!("{key}=[[{{}}]]")], &key);
            count += 1;
        }
    }
    assert!(count > 800, "{count} mistakes");
}

#[test]
fn a_misspelt_name_has_no_echo() {
    let mut count = 0;
    for (text, overrides) in RECIPES {
        for (key, value) in settings(text, overrides) {
            let mistake = [format!("{key}=null"), format!("{key}_x={value}")];
            assert_no_echo(text, overrides, &mistake, &key);
            count += 1;
        }
    }
    assert!(count > 800, "{count} mistakes");
}

#[test]
fn a_section_that_cannot_be_read_has_no_echo() {
    for section in ["model", "train", "optimizer", "dataset", "tokenizer", "scheduler"] {
        assert_no_echo(TINY, &[], &[format!("{section}=5")], section);
        let misspelt = TINY.replace(&format!("[{section}]"), &format!("[{section}s]"));
        let errors = run_toml(&misspelt, &[]).expect_err(section);
        assert_eq!(errors.len(), 1, "{errors}");
    }
}

#[test]
fn what_follows_from_nothing_unread_is_reported_too() {
    for (overrides, keys) in [
        (
            ["modl.x=1", "model.hidden_size=63", "train.global_batch_size=5"],
            ["modl", "model.num_attention_heads", "train.global_batch_size"],
        ),
        (
            ["optimizer.lr=abc", "model.hidden_size=63", "train.global_batch_size=5"],
            ["optimizer.lr", "model.num_attention_heads", "train.global_batch_size"],
        ),
        (
            ["nonsense", "model.num_query_groups=3", "scheduler.lr_decay_samples=8"],
            ["", "model.num_query_groups", "scheduler.lr_decay_samples"],
        ),
        (
            ["train.train_iters.x=1", "dataset.data_path=a", "checkpoint.ckpt_step=3"],
            ["train.train_iters.x", "dataset.data_path", "checkpoint.ckpt_step"],
        ),
        (
            ["model.seq_lenth=128", "model.num_query_groups=3", "optimizer.min_lr=1.0"],
            ["model.seq_lenth", "model.num_query_groups", "optimizer.min_lr"],
        ),
        (
            ["dataset.blend=[['a'], ['b']]", "model.num_query_groups=3", "optimizer.min_lr=1.0"],
            ["dataset.blend", "model.num_query_groups", "optimizer.min_lr"],
        ),
        (
            ["mixed_precision=7", "train.rampup_batch_size=[8, 2, 10]", "validation.eval_global_batch_size=3"],
            ["mixed_precision", "train.rampup_batch_size", "validation.eval_global_batch_size"],
        ),
    ] {
        let errors = tiny_errors(&overrides);
        for key in keys {
            let is_named = errors.iter().any(|error| error.key == key || error.key.starts_with(&format!("{key}.")));
            assert!(is_named, "{key} is not named:\n{errors}");
        }
        let is_expected = |found: &str| keys.iter().any(|key| found == *key || found.starts_with(&format!("{key}.")));
        assert!(errors.iter().all(|error| is_expected(&error.key)), "{errors}");
    }
}

#[test]
fn rules_are_checked_where_the_bad_key_is_in_the_file() {
    let text = TINY.replace("lr = 1e-3", "lr = 'fast'").replace("num_query_groups = 4", "num_query_groups = 3");
    let errors = run_toml(&text, &["train.global_batch_size=5"]).expect_err("three mistakes");
    let keys: Vec<&str> = errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["optimizer.lr", "model.num_query_groups", "train.global_batch_size"], "{errors}");
}
