//! Settings that were given but could not be read, and the later problems that only follow from
//! them.
//!
//! `finalize` sees the default of such a setting. A rule that reads it, or a setting filled in from
//! it, would check a value that the user did not choose. Rules name every setting that they read,
//! as their key or in their messages, so such follow-up problems can be recognized and left out.

use std::collections::BTreeSet;

use super::catalogue::row;
use super::error::{ConfigError, ErrorKind};
use super::finalize::COPIES;
use super::raw::RawConfig;

/// The name of the data-parallel size in messages.
const DATA_PARALLEL_SIZE: &str = "data-parallel size";

/// Settings, and the settings that `finalize` derives from them where these are not set.
const FILLS_IN: &[(&str, &[&str])] = &[
    ("model.hidden_size", &["model.ffn_hidden_size", "model.kv_channels"]),
    ("model.num_attention_heads", &["model.kv_channels", "model.num_query_groups"]),
    ("model.vocab_size", &["tokenizer.bpe_vocab_size"]),
    ("model.seq_length", &["dataset.seq_length"]),
    ("model.init_method_std", &["model.embedding_init_method_std"]),
    ("model.tensor_model_parallel_size", &["model.expert_tensor_parallel_size", DATA_PARALLEL_SIZE]),
    ("model.pipeline_model_parallel_size", &[DATA_PARALLEL_SIZE]),
    ("model.context_parallel_size", &[DATA_PARALLEL_SIZE]),
    ("model.fp16", &["model.params_dtype", "optimizer.fp16", "optimizer.params_dtype"]),
    (
        "model.bf16",
        &[
            "model.params_dtype",
            "optimizer.bf16",
            "optimizer.params_dtype",
            "ddp.grad_reduce_in_fp32",
            "optimizer.main_grads_dtype",
        ],
    ),
    ("ddp.grad_reduce_in_fp32", &["optimizer.main_grads_dtype"]),
    ("model.fp32_residual_connection", &["model.pipeline_dtype"]),
    ("mixed_precision", &["model.enable_autocast", "optimizer.main_grads_dtype"]),
    ("comm_overlap", &["optimizer.overlap_param_gather"]),
    ("train.micro_batch_size", &["validation.eval_micro_batch_size"]),
    ("train.global_batch_size", &["validation.eval_global_batch_size"]),
    ("train.eval_iters", &["validation.eval_iters"]),
    ("train.eval_interval", &["validation.eval_interval"]),
    ("train.skip_train", &["validation.skip_train"]),
    ("optimizer.weight_decay", &["scheduler.start_weight_decay", "scheduler.end_weight_decay"]),
    ("checkpoint.save", &["checkpoint.load"]),
    ("rng.seed", &["dataset.random_seed"]),
];

/// The settings, tables and derived figures whose values are unknown.
pub(super) struct Unread {
    keys: BTreeSet<String>,
}

impl Unread {
    /// The settings that are unknown because of problems in reading `raw`.
    pub(super) fn new<'e>(errors: impl IntoIterator<Item = &'e ConfigError>, raw: &RawConfig) -> Self {
        let mut keys = BTreeSet::new();
        for error in errors {
            // A misspelt name is not a setting, and leaves the intended one unknown.
            if error.kind == ErrorKind::UnknownKey {
                keys.extend(error.meant.iter().cloned());
                continue;
            }
            // Inside a list the error names the item, but the unread setting is the list.
            let mut key = error.key.as_str();
            while row(key).is_none() && key.matches('.').count() > 1 {
                key = key.rsplit_once('.').map_or(key, |(setting, _)| setting);
            }
            keys.insert(key.to_owned());
        }
        keys.remove("");
        let mut unread = Self { keys };
        unread.follow(raw);
        unread
    }

    /// Adds the settings that would have been filled in, repeatedly until nothing is added.
    fn follow(&mut self, raw: &RawConfig) {
        loop {
            let filled = FILLS_IN.iter().filter(|(source, _)| self.is_unknown(source));
            let filled = filled.flat_map(|(_, filled)| *filled).map(|key| (*key).to_owned());
            let copied = COPIES.iter().filter(|(_, table, _)| self.is_unknown(table));
            let copied =
                copied.flat_map(|(section, _, names)| names.iter().map(move |name| format!("{section}.{name}")));
            let added: Vec<String> =
                filled.chain(copied).filter(|key| !raw.is_explicit(key) && !self.keys.contains(key)).collect();
            if added.is_empty() {
                return;
            }
            self.keys.extend(added);
        }
    }

    /// True if the value of `key` is unknown: the value itself, the table around it, or a value in
    /// it.
    fn is_unknown(&self, key: &str) -> bool {
        self.keys.iter().any(|unread| is_inside(key, unread) || is_inside(unread, key))
    }

    /// True if a problem is about an unknown value, or from a rule that read one.
    pub(super) fn concerns(&self, error: &ConfigError) -> bool {
        self.is_unknown(&error.key)
            || keys_in(&error.message).any(|key| self.is_unknown(key))
            || (self.keys.contains(DATA_PARALLEL_SIZE) && error.message.contains(DATA_PARALLEL_SIZE))
    }
}

/// True if `key` is `table` or below it.
fn is_inside(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The words of a message that can be keys: dotted names, or names of settings outside all
/// sections.
fn keys_in(message: &str) -> impl Iterator<Item = &str> {
    words_in(message).filter(|word| word.contains('.') || *word == "mixed_precision")
}

/// The words of a message, with the dots inside them.
pub(super) fn words_in(message: &str) -> impl Iterator<Item = &str> {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    message.split(move |c| !is_of_key(c)).map(|word| word.trim_matches('.'))
}
