//! Contexts in which settings are tried: small runs that rows share.

use super::run::{Meddling, Program, Run};

/// Three steps of a model of few thousand parameters on token files, with a checkpoint at the end.
const SMALL: [&str; 16] = [
    "model.seq_length=32",
    "model.hidden_size=32",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "model.ffn_hidden_size=48",
    "train.train_iters=3",
    "train.num_threads=1",
    "validation.eval_iters=1",
    "validation.eval_interval=null",
    "logger.log_interval=1",
    "logger.log_dir=logs",
    "logger.plot=false",
    "dataset.kind=gpt",
    "dataset.data_path=data/tokens",
    "dataset.split=\"8,1,1\"",
    "checkpoint.save=ckpt",
];

/// A dense model.
pub fn tiny() -> Run {
    Run::new(Program::Train, "tiny.toml", &SMALL)
}

/// The tiny run with overrides.
pub fn tiny_with(overrides: &[&str]) -> Run {
    tiny().with(overrides)
}

/// A model with experts.
pub fn moe() -> Run {
    Run::new(Program::Train, "tiny-moe.toml", &SMALL).with(&["model.moe_ffn_hidden_size=24"])
}

/// A dense model on several ranks.
pub fn on(ranks: usize, overrides: &[&str]) -> Run {
    tiny().ranks(ranks).with(&["train.global_batch_size=8", "train.micro_batch_size=1"]).with(overrides)
}

/// A dense model on text, with a tokenizer of its own.
pub fn text() -> Run {
    let overrides = [
        "dataset.data_path=null",
        "dataset.source=data/docs/*.txt",
        "dataset.source_cache_dir=cache",
        "tokenizer.tokenizer_type=ByteLevelBPE",
        "tokenizer.vocab_size=null",
        "model.vocab_size=300",
    ];
    tiny().with(&overrides)
}

/// A dense model on files of examples, with a tokenizer that has a chat template.
pub fn examples() -> Run {
    let overrides = [
        "dataset.data_path=null",
        "dataset.split=null",
        "dataset.kind=finetuning",
        "dataset.dataset_root=data/examples",
        "tokenizer.tokenizer_type=HuggingFaceTokenizer",
        "tokenizer.tokenizer_model=data/chat_tokenizer",
        "tokenizer.vocab_size=null",
        "model.vocab_size=310",
    ];
    tiny().with(&overrides)
}

/// A dense model that trains long enough to be watched, on a busy machine, too.
pub fn watched(run: &Run) -> Run {
    run.with(&["train.train_iters=600"]).while_(Meddling::Watch)
}
