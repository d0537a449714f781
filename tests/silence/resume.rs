//! Changes between a run and the one that resumes from its checkpoint.

use super::*;

fn without_logs(folder: &Path) {
    std::fs::remove_dir_all(folder.join("runs/notes")).unwrap();
}

#[test]
fn a_resumed_run_keeps_its_tokenizer_and_says_what_changed_in_its_text() {
    const CHANGED: &str = "the data has changed since the checkpoint of iteration 4: 12 documents, ";
    check(
        run_on_text(),
        &[
            Case {
                does: "resumes after adding files",
                before: other_text,
                arguments: &["train", "notes.toml"],
                code: 0,
                says: &[
                    "the tokenizer is that of the checkpoint (300 tokens)",
                    CHANGED,
                    "52 documents, ",
                    "goes on with sample 16",
                ],
            },
            Case {
                does: "resumes on two ranks after adding files",
                before: other_text,
                arguments: &["train", "notes.toml", "--ranks", "2"],
                code: 0,
                says: &["the tokenizer is that of the checkpoint (300 tokens)", CHANGED, "data-parallel ranks 1 -> 2"],
            },
            Case {
                does: "names weights to begin from when it has begun",
                before: as_it_is,
                arguments: &["train", "notes.toml", "checkpoint.pretrained_checkpoint=ckpt"],
                code: 0,
                says: &[
                    "warning: checkpoint.pretrained_checkpoint = \"ckpt\" is not read: the run goes on from its own",
                ],
            },
            Case {
                does: "asks for another size of vocabulary",
                before: as_it_is,
                arguments: &["train", "notes.toml", "tokenizer.bpe_vocab_size=320"],
                code: 2,
                says: &["tokenizer.bpe_vocab_size", "found:    320", "expected: 300", "ckpt/iter_0000004"],
            },
            Case {
                does: "names another tokenizer",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                ],
                code: 2,
                says: &[
                    "tokenizer.tokenizer_model",
                    "300 tokens in ckpt/iter_0000004, 300 here; token 25",
                    "there, ",
                    "found:    own",
                ],
            },
            Case {
                does: "lets another tokenizer pass",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                    "checkpoint.allow_model_changes=[\"tokenizer\"]",
                ],
                code: 0,
                says: &["warning: checkpoint.allow_model_changes: another tokenizer: 300 tokens in"],
            },
        ],
    );
}

#[test]
fn what_is_missing_or_given_twice_is_said() {
    check(
        run_on_text(),
        &[
            Case {
                does: "resumes after the logs were deleted",
                before: without_logs,
                arguments: &["train", "notes.toml"],
                code: 0,
                says: &["warning: runs/notes/metrics.jsonl has no record of the 4 iterations before the checkpoint"],
            },
            Case {
                does: "gives a setting twice",
                before: as_it_is,
                arguments: &["train", "notes.toml", "logger.log_interval=3", "logger.log_interval=4"],
                code: 0,
                says: &["warning: logger.log_interval is given several times, and the last counts: 4, not 3"],
            },
        ],
    );
}

#[test]
fn a_fine_tuned_model_keeps_its_tokenizer() {
    check(
        run_on_text(),
        &[
            Case {
                does: "fine-tunes with another tokenizer",
                before: other_tokenizer,
                arguments: &[
                    "train",
                    "notes.toml",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                    "checkpoint.pretrained_checkpoint=ckpt",
                    "checkpoint.save=new",
                ],
                code: 2,
                says: &["tokenizer.tokenizer_model", "token 25", "there, "],
            },
            Case {
                does: "fine-tunes on other text with a tokenizer to train",
                before: other_text,
                arguments: &["train", "notes.toml", "checkpoint.pretrained_checkpoint=ckpt", "checkpoint.save=new"],
                code: 0,
                says: &[
                    "the tokenizer is that of the checkpoint (300 tokens)",
                    "starting from the weights in ckpt/iter_0000004",
                ],
            },
        ],
    );
}

/// A row for a setting of the model that is another one than the checkpoint's.
fn refused(setting: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { does: "resumes with another setting of the model", before: as_it_is, arguments: setting, code: 2, says }
}

#[test]
fn another_model_is_refused_with_both_values() {
    check(
        run_on_text(),
        &[
            refused(&["train", "notes.toml", "model.rotary_base=5e5"], &["model.rotary_base", "500000.0", "10000.0"]),
            refused(
                &["train", "notes.toml", "model.layernorm_epsilon=1e-6"],
                &["model.layernorm_epsilon", "1e-6", "1e-5"],
            ),
            refused(
                &["train", "notes.toml", "model.activation_func=relu"],
                &["model.activation_func", "\"relu\"", "\"gelu\""],
            ),
            refused(
                &["train", "notes.toml", "model.num_layers=1"],
                &["model.num_layers", "found:    1", "expected: 2"],
            ),
            refused(
                &["train", "notes.toml", "model.num_attention_heads=8"],
                &["model.num_attention_heads", "found:    8", "expected: 4"],
            ),
            refused(&["train", "notes.toml", "model.window_size=[8, 0]"], &["model.window_size", "[8, 0]", "null"]),
            refused(&["train", "notes.toml", "model.final_logit_softcapping=30.0"], &["model.final_logit_softcapping"]),
            refused(
                &["train", "notes.toml", "model.share_embeddings_and_output_weights=false"],
                &["model.share_embeddings_and_output_weights", "found:    false", "expected: true"],
            ),
            refused(
                &[
                    "train",
                    "notes.toml",
                    "checkpoint.save=new",
                    "checkpoint.pretrained_checkpoint=ckpt",
                    "model.rotary_percent=0.5",
                ],
                &["model.rotary_percent", "found:    0.5", "expected: 1.0", "ckpt/iter_0000004"],
            ),
            refused(
                &["train", "notes.toml", "model.vocab_size=512"],
                &["expected F32 [512, 32], found F32 [384, 32]", "model.vocab_size null -> 512"],
            ),
            refused(
                &["train", "notes.toml", "model.make_vocab_size_divisible_by=500"],
                &["expected F32 [500, 32], found F32 [384, 32]", "model.make_vocab_size_divisible_by 128 -> 500"],
            ),
            refused(
                &["train", "notes.toml", "checkpoint.allow_model_changes=[\"rotary_bas\"]"],
                &["checkpoint.allow_model_changes", "did you mean `rotary_base`?"],
            ),
            Case {
                does: "lets another setting of the model pass",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "model.rotary_base=5e5",
                    "checkpoint.allow_model_changes=[\"rotary_base\"]",
                ],
                code: 0,
                says: &[
                    "warning: checkpoint.allow_model_changes: another model since iteration 4: model.rotary_base 10000.0 -> 500000.0",
                ],
            },
        ],
    );
}

#[test]
fn what_changes_the_course_of_a_resumed_run_is_said() {
    const ORDER: &str =
        "the sample order is another from iteration 5 on: the run goes on with sample 16 of the new order";
    check(
        run_on_text(),
        &[
            Case {
                does: "changes betas",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.adam_beta2=0.9", "optimizer.adam_eps=1e-6"],
                code: 0,
                says: &[
                    "changed since the checkpoint of iteration 4: optimizer.adam_beta2 0.999 -> 0.9, optimizer.adam_eps 1e-8 -> 1e-6",
                ],
            },
            Case {
                does: "changes the optimizer",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.optimizer=sgd"],
                code: 2,
                says: &[
                    "optimizer tensors do not belong to this run's optimizer",
                    "optimizer.optimizer \"adam\" -> \"sgd\"",
                ],
            },
            Case {
                does: "changes the seed of the data",
                before: as_it_is,
                arguments: &["train", "notes.toml", "dataset.random_seed=99"],
                code: 0,
                says: &["dataset.random_seed 1234 -> 99", ORDER],
            },
            Case {
                does: "changes the length of samples",
                before: as_it_is,
                arguments: &["train", "notes.toml", "model.seq_length=16"],
                code: 0,
                says: &["model.seq_length 32 -> 16", ORDER],
            },
            Case {
                does: "changes the batch",
                before: as_it_is,
                arguments: &[
                    "train",
                    "notes.toml",
                    "train.global_batch_size=8",
                    "scheduler.override_opt_param_scheduler=true",
                ],
                code: 0,
                says: &["train.global_batch_size 4 -> 8"],
            },
            Case {
                does: "changes the schedule",
                before: as_it_is,
                arguments: &["train", "notes.toml", "optimizer.lr=1e-2"],
                code: 2,
                says: &["0.001", "0.01", "scheduler.override_opt_param_scheduler"],
            },
            Case {
                does: "drops the optimizer's state",
                before: as_it_is,
                arguments: &["train", "notes.toml", "checkpoint.load_optim=false"],
                code: 0,
                says: &[
                    "checkpoint.load_optim = false: moments, learning rate schedule and weight decay schedule begin anew at iteration 5",
                ],
            },
            Case {
                does: "changes the seed of the run",
                before: as_it_is,
                arguments: &["train", "notes.toml", "rng.seed=7"],
                code: 0,
                says: &["rng.seed 1234 -> 7", "random numbers go on from the checkpoint's seed 1234"],
            },
        ],
    );
}
