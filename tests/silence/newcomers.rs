//! Mistakes of newcomers that train something else than they think, or nothing.

use std::path::Path;

use crate::{Case, as_it_is, bridge, check, other_text, other_tokenizer, run_on_text, said};

/// Token files of the run's text by a tokenizer of the same size that was trained on other text.
fn packed_by_another(folder: &Path) {
    other_tokenizer(folder);
    let output = bridge(folder, &["data", "build", "notes/*.txt", "--tokenizer", "own", "--output", "packed"]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Arguments of a separate run in the folder.
const ANEW: [&str; 4] = ["train", "notes.toml", "checkpoint.save=new", "name=new"];

#[test]
fn what_learns_nothing_or_the_same_again_is_said() {
    check(
        run_on_text(),
        &[
            Case {
                does: "trains at no rate",
                before: as_it_is,
                arguments: &[ANEW[0], ANEW[1], ANEW[2], ANEW[3], "optimizer.lr=0"],
                code: 0,
                says: &["warning: optimizer.lr = 0: the run learns nothing"],
            },
            Case {
                does: "ends the decay long before the run",
                before: as_it_is,
                arguments: &[ANEW[0], ANEW[1], ANEW[2], ANEW[3], "scheduler.lr_decay_iters=2"],
                code: 0,
                says: &[
                    "for the last 75 % of the run the learning rate is optimizer.min_lr = 0, and nothing is learned",
                ],
            },
            Case {
                does: "reads little text often",
                before: as_it_is,
                arguments: &[ANEW[0], ANEW[1], ANEW[2], ANEW[3], "train.train_iters=300"],
                code: 0,
                says: &["the train split has about 197 samples and is read 7 times"],
            },
            Case {
                does: "evaluates more than there is",
                before: as_it_is,
                arguments: &[
                    ANEW[0],
                    ANEW[1],
                    ANEW[2],
                    ANEW[3],
                    "dataset.split=\"80,20,0\"",
                    "validation.eval_iters=100",
                ],
                code: 0,
                says: &["and each evaluation reads 400", "validation.full_validation = true reads each once"],
            },
            Case {
                does: "asks for more tokens than the text has",
                before: as_it_is,
                arguments: &[ANEW[0], ANEW[1], ANEW[2], ANEW[3], "tokenizer.bpe_vocab_size=50000"],
                code: 0,
                says: &["tokens; 50000 were asked for, no further pair of tokens occurs twice in "],
            },
            Case {
                does: "saves nothing",
                before: as_it_is,
                arguments: &[ANEW[0], ANEW[1], "checkpoint.save=null", "checkpoint.save_interval=null", ANEW[3]],
                code: 0,
                says: &["no checkpoints: checkpoint.save is not set"],
            },
        ],
    );
}

#[test]
fn ids_of_another_tokenizer_are_said_or_refused() {
    check(
        run_on_text(),
        &[
            Case {
                does: "reads token files that another tokenizer made",
                before: packed_by_another,
                arguments: &[
                    ANEW[0],
                    ANEW[1],
                    ANEW[2],
                    ANEW[3],
                    "dataset.source=null",
                    "dataset.data_path=[\"packed\"]",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=data/notes",
                    "tokenizer.bpe_vocab_size=null",
                ],
                code: 0,
                says: &["warning: dataset.data_path: packed was packed with another tokenizer than the run's"],
            },
            Case {
                does: "evaluates with a recipe of another tokenizer",
                before: other_tokenizer,
                arguments: &[
                    "eval",
                    "ckpt",
                    "--split",
                    "train",
                    "tokenizer.tokenizer_type=HuggingFaceTokenizer",
                    "tokenizer.tokenizer_model=own",
                    "tokenizer.bpe_vocab_size=null",
                ],
                code: 2,
                says: &[
                    "tokenizer.tokenizer_model",
                    "is another tokenizer than the model's",
                    "300 tokens of the model",
                ],
            },
        ],
    );
}

/// The text of a run may grow: its model is still evaluated with the model's tokenizer, not with
/// one trained on the new text.
#[test]
fn an_evaluation_reads_new_text_with_the_tokenizer_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    bridge_tests::copy(run_on_text(), folder.path());
    other_text(folder.path());
    let loss = |arguments: &[&str]| {
        let output = bridge(folder.path(), arguments);
        assert!(output.status.success(), "{}", said(&output));
        assert!(!said(&output).contains("training tokenizer"), "{}", said(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["loss"].as_f64().unwrap()
    };
    let of_recipe = loss(&["eval", "ckpt", "--split", "train", "--json"]);
    let of_tokenizer = [
        "eval",
        "ckpt",
        "--split",
        "train",
        "--json",
        "tokenizer.tokenizer_type=HuggingFaceTokenizer",
        "tokenizer.tokenizer_model=ckpt/iter_0000004",
        "tokenizer.bpe_vocab_size=null",
    ];
    assert_eq!(of_recipe.to_bits(), loss(&of_tokenizer).to_bits());
}

/// Records of a run that was stopped, damaged before it goes on: the input is at fault.
#[test]
fn damaged_records_are_named_and_the_input_is_at_fault() {
    fn damaged(folder: &Path) {
        let path = folder.join("runs/notes/metrics.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replacen('{', "", 1)).unwrap();
    }
    fn folder_instead(folder: &Path) {
        std::fs::remove_file(folder.join("runs/notes/metrics.jsonl")).unwrap();
        std::fs::create_dir(folder.join("runs/notes/metrics.jsonl")).unwrap();
    }
    fn damaged_events(folder: &Path) {
        let events = std::fs::read_dir(folder.join("runs/notes/tensorboard")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&events).unwrap();
        bytes[30] ^= 1;
        std::fs::write(events, bytes).unwrap();
    }
    let resumed = |does, before, says| Case { does, before, arguments: &["train", "notes.toml"], code: 2, says };
    check(
        run_on_text(),
        &[
            resumed(
                "resumes with damaged metrics",
                damaged,
                &["runs/notes/metrics.jsonl, line 1", "move the file away"],
            ),
            resumed("resumes with a folder for metrics", folder_instead, &["runs/notes/metrics.jsonl", "a folder"]),
            resumed("resumes with damaged events", damaged_events, &["runs/notes/tensorboard/", "move the file away"]),
        ],
    );
}
