//! Dotted overrides from the command line.

use super::super::ErrorKind;
use super::{TEXT, run_toml, tiny, tiny_errors};

#[test]
fn values_are_toml_and_bare_words_are_strings() {
    let run = run_toml(
        TEXT,
        &[
            "train.micro_batch_size=8",
            "optimizer.lr=3e-4",
            "train.exit_signal=SIGINT",
            "dataset.source=[\"a.txt\", \"b.txt\"]",
            "checkpoint.save=out/my run",
            "model.add_bias_linear=false",
        ],
    )
    .expect("accepted");
    assert_eq!(run.train.micro_batch_size, 8);
    assert_eq!(run.optimizer.lr, 3e-4);
    assert_eq!(run.train.exit_signal.number(), 2);
    let source = run.dataset.source.as_ref().expect("set");
    assert_eq!(source.as_slice(), ["a.txt", "b.txt"]);
    assert_eq!(run.checkpoint.save.as_deref(), Some("out/my run".as_ref()));
    assert!(!run.model.add_bias_linear);
}

#[test]
fn null_unsets() {
    let run = tiny(&["validation.eval_iters=null", "model.ffn_hidden_size=null"]).expect("accepted");
    assert_eq!(run.validation.eval_iters, 0);
    assert_eq!(run.model.ffn_hidden_size, 256);
    // A setting that cannot be null returns to its default, and so does a whole section.
    let run = tiny(&["logger.log_interval=null", "scheduler=null"]).expect("accepted");
    assert_eq!(run.logger.log_interval, 100);
    assert_eq!(run.scheduler.schedule.lr_warmup_steps, 0.0);
}

#[test]
fn the_last_override_wins() {
    let run = tiny(&["optimizer.lr=1.0", "optimizer.lr=0.5"]).expect("accepted");
    assert_eq!(run.optimizer.lr, 0.5);
    assert_eq!(run.warnings(), ["optimizer.lr is given several times, and the last counts: 0.5, not 1.0"]);
    let run = tiny(&["optimizer.lr=0.5", "train.train_iters=3", "optimizer.lr=0.5"]).expect("accepted");
    assert!(run.warnings().is_empty(), "the same value twice: {:?}", run.warnings());
}

#[test]
fn problems_are_collected_and_say_which_argument() {
    let errors = tiny_errors(&[
        "train.micro_batch_size=lots",
        "trian.global_batch_size=8",
        "no-equals-sign",
        "train..x=1",
        "train.train_iters.x=1",
        "dataset.data_path=[\"a\"",
        "optimizer.lr=0.1",
    ]);
    let sources: Vec<_> = errors.iter().map(|e| e.location.as_ref().map_or("", |l| &*l.source)).collect();
    for argument in [
        "train.micro_batch_size=lots",
        "trian.global_batch_size=8",
        "no-equals-sign",
        "train..x=1",
        "train.train_iters.x=1",
        "dataset.data_path=[\"a\"",
    ] {
        let source = format!("command line: {argument}");
        assert!(sources.contains(&source.as_str()), "{argument} not in\n{errors}");
    }
    assert!(!errors.names("optimizer.lr"));
}

#[test]
fn an_override_needs_no_section_in_the_file() {
    let run = tiny(&["rng.seed=7", "generate.prompt=x", "generate.top_k=3"]).expect("accepted");
    assert_eq!((run.rng.seed, run.generate.top_k), (7, Some(3)));
    assert_eq!(run.dataset.random_seed, 7);
}

#[test]
fn unknown_names_below_null_are_still_unknown() {
    let errors = tiny_errors(&["trian.x=null"]);
    assert_eq!(errors.iter().next().map(|e| e.kind), Some(ErrorKind::UnknownKey));
}
