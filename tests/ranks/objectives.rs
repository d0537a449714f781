//! Model of the tests of `[dpo]` and `[distillation]`: that of their fixtures, ten steps of AdamW.

use std::path::{Path, PathBuf};

use bridge_core::train::{pretrain, rank_timeout, run_on_threads};
use bridge_tests::root;

use super::{config, options};

const COMMON: [&str; 22] = [
    "dataset.kind=finetuning",
    "dataset.data_sharding=true",
    "dataset.do_validation=false",
    "dataset.do_test=false",
    "model.num_layers=3",
    "model.hidden_size=24",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "model.ffn_hidden_size=36",
    "model.seq_length=40",
    "model.vocab_size=62",
    "tokenizer.vocab_size=61",
    "train.train_iters=10",
    "train.global_batch_size=6",
    "train.micro_batch_size=1",
    "validation.eval_iters=0",
    "optimizer.lr=1e-3",
    "optimizer.min_lr=null",
    "optimizer.clip_grad=0.0",
    "scheduler.lr_decay_style=constant",
    "scheduler.lr_warmup_iters=0",
    "logger.log_interval=1",
];

pub(super) fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/objectives").join(name)
}

/// Runs the model of the fixture on the examples in `data`, with logs and checkpoints in `folder`.
pub(super) fn train(folder: &Path, ranks: usize, data: &str, overrides: &[&str]) -> Result<(), String> {
    let places = [
        format!("checkpoint.pretrained_checkpoint={:?}", fixture("model")),
        format!("checkpoint.save={:?}", folder.join("saved")),
        format!("dataset.dataset_root={:?}", fixture(data)),
        format!("dataset.path_to_cache={:?}", folder.join("cache")),
    ];
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let config = config(folder, ranks, &[&places[..], &COMMON, overrides].concat());
    run_on_threads(&config, rank_timeout(&config), |groups| pretrain(config.clone(), options(groups)).map(drop))
        .map(drop)
        .map_err(|error| error.to_string())
}
