//! Runs on text of their own: the text is prepared once for all ranks and shared with other
//! programs, preparation stops on request, and documents stay separate on any number of ranks.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bridge_core::train::{CancelHandle, ExitReason, RunOptions, TrainError, pretrain, rank_timeout, run_on_threads};

use super::{config, options};
use bridge_tests::{assert_close, losses, losses_in, recipe, run_in};

/// Text of words, on which a tokenizer is trained.
const WORDS: [&str; 10] = [
    "dataset.kind=gpt",
    "dataset.split=80,10,10",
    "tokenizer.tokenizer_type=ByteLevelBPE",
    "tokenizer.vocab_size=null",
    "tokenizer.bpe_vocab_size=300",
    "tokenizer.bpe_train_max_bytes=1000",
    "model.vocab_size=null",
    "train.train_iters=3",
    "train.global_batch_size=24",
    "validation.eval_iters=1",
];

const SMALL: &str = "dataset.source=small.jsonl";

/// Writes documents of words, one a line.
fn write_words(path: &Path, documents: usize) {
    let mut text = String::new();
    let mut state = 1_u32;
    for _ in 0..documents {
        text.push_str("{\"text\": \"");
        for _ in 0..80 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = state >> 20;
            write!(text, "{}{} ", ["ba", "ke", "mo", "ti"][word as usize % 4], word % 97).unwrap();
        }
        text.push_str("\"}\n");
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn one_rank_prepares_what_all_read() {
    let folder = tempfile::tempdir().unwrap();
    write_words(&folder.path().join("small.jsonl"), 300);
    let train = |arguments: &[&str], more: &[&str]| {
        run_in(folder.path(), &[&WORDS[..], &[SMALL], arguments, more].concat());
        losses(folder.path())
    };
    let single = train(&[], &[]);
    assert_eq!(single.len(), 3 + 1 + 1);
    for ranks in ["3", "8"] {
        // The first time it has to be prepared, the second time it is there.
        let cache = format!("dataset.source_cache_dir=cache-{ranks}");
        for time in ["first", "second"] {
            assert_close(&train(&["--ranks", ranks], &[&cache]), &single, &format!("{ranks} ranks, {time} time"));
        }
    }
}

/// `bridge train` in the background.
fn start(folder: &Path, name: &str, arguments: &[&str]) -> Child {
    let file = |end: &str| std::fs::File::create(folder.join(format!("{name}.{end}"))).map(Stdio::from).unwrap();
    Command::new(bridge_tests::program())
        .arg("train")
        .arg(recipe())
        .args(["train.micro_batch_size=1", "train.num_threads=1", "logger.progress=none"])
        .args(WORDS)
        .args(arguments)
        .arg(format!("logger.log_dir={name}"))
        .current_dir(folder)
        .stdout(file("out"))
        .stderr(file("err"))
        .spawn()
        .expect("bridge starts")
}

#[test]
fn programs_that_need_the_same_text_share_it() {
    let folder = tempfile::tempdir().unwrap();
    write_words(&folder.path().join("small.jsonl"), 300);
    let names = ["a", "b", "c"];
    let running: Vec<Child> = names.iter().map(|name| start(folder.path(), name, &["--ranks", "3", SMALL])).collect();
    for (name, mut program) in names.iter().zip(running) {
        let code = program.wait().unwrap().code();
        assert_eq!(code, Some(0), "{}", std::fs::read_to_string(folder.path().join(format!("{name}.err"))).unwrap());
    }
    let [first, others @ ..] = names.map(|name| losses_in(&folder.path().join(name)));
    assert_eq!(first.len(), 5);
    assert_eq!(others, [first.clone(), first]);
}

/// Sends SIGTERM while `lock` is held, and returns the remaining prepared files.
fn stop_while(lock: &str, arguments: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    write_words(&folder.path().join("small.jsonl"), 100);
    // Seconds of work.
    write_words(&folder.path().join("big.jsonl"), 30_000);
    let prepared = folder.path().join("data/tiny");
    let mut program = start(folder.path(), "logs", arguments);
    let started = Instant::now();
    while !prepared.join(lock).exists() {
        assert!(started.elapsed() < Duration::from_secs(120) && program.try_wait().unwrap().is_none(), "{lock}");
        sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-TERM", &program.id().to_string()]).status().unwrap().success());
    let (asked, code) = (Instant::now(), program.wait().unwrap().code());
    let said = std::fs::read_to_string(folder.path().join("logs.err")).unwrap();
    assert_eq!(code, Some(128 + 15), "{said}");
    assert!(said.contains("SIGTERM; training had not begun") && !said.contains("error"), "{said}");
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    let mut left: Vec<String> =
        std::fs::read_dir(prepared).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    // The next run finds nothing in its way.
    assert_eq!(start(folder.path(), "next", &[SMALL]).wait().unwrap().code(), Some(0));
    left
}

#[test]
fn a_signal_stops_the_preparation_of_text() {
    let trained = ["tokenizer.fingerprint.json", "tokenizer.json", "tokenizer_config.json"];
    let packing = ["--ranks", "3", "dataset.source=['small.jsonl', 'big.jsonl']"];
    assert_eq!(stop_while("text.lock", &packing), trained);
    let training = ["dataset.source=['big.jsonl', 'small.jsonl']", "tokenizer.bpe_train_max_bytes=100000000"];
    assert_eq!(stop_while("tokenizer.lock", &training), [""; 0]);
}

#[test]
fn any_rank_can_cancel_the_preparation_of_text() {
    let folder = tempfile::tempdir().unwrap();
    write_words(&folder.path().join("small.jsonl"), 100);
    let source = format!("dataset.source={:?}", folder.path().join("small.jsonl"));
    let cache = format!("dataset.source_cache_dir={:?}", folder.path().join("cache"));
    let config = config(folder.path(), 3, &[&WORDS[..], &[&source, &cache]].concat());
    let ended = run_on_threads(&config, rank_timeout(&config), |groups| {
        let cancel = CancelHandle::default();
        if groups.world().rank() == 1 {
            cancel.cancel();
        }
        match pretrain(config.clone(), RunOptions { cancel, ..options(groups) }) {
            Err(TrainError::Stopped(reason)) => Ok(reason),
            other => panic!("{:?}", other.map(|report| report.reason)),
        }
    });
    assert_eq!(ended.unwrap(), [ExitReason::Cancelled, ExitReason::Cancelled, ExitReason::Cancelled]);
}

/// Documents of token ids that end where chunks of context-parallel ranks do, so that positions of
/// some parts count up from 0.
fn write_documents(path: &Path) {
    let mut text = String::new();
    for document in 0..120_u32 {
        text.push_str("{\"text\": \"");
        (0..47).for_each(|place| write!(text, "{} ", (document * 7 + place * place + document * place) % 509).unwrap());
        text.push_str("\"}\n");
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn documents_stay_apart_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    write_documents(&folder.path().join("documents.jsonl"));
    let common = [
        "dataset.kind=gpt",
        "dataset.source=documents.jsonl",
        "dataset.split=80,10,10",
        "dataset.reset_position_ids=true",
        "dataset.reset_attention_mask=true",
        "dataset.eod_mask_loss=true",
        "model.seq_length=96",
        "train.train_iters=3",
        "train.global_batch_size=6",
        "validation.eval_iters=1",
    ];
    let train = |arguments: &[&str]| {
        run_in(folder.path(), &[&common[..], arguments].concat());
        losses(folder.path())
    };
    let single = train(&[]);
    let plain = train(&["dataset.reset_position_ids=false", "dataset.reset_attention_mask=false"]);
    assert!(single != plain, "the masks matter");
    let (context, tensor) = ("model.context_parallel_size=2", "model.tensor_model_parallel_size=2");
    let layouts: &[&[&str]] = &[
        &["--ranks", "3"],
        &["--ranks", "2", context],
        &["--ranks", "3", "model.context_parallel_size=3"],
        &["--ranks", "4", "model.context_parallel_size=4"],
        &["--ranks", "4", context, tensor, "model.sequence_parallel=true"],
        &["--ranks", "4", context, "model.pipeline_model_parallel_size=2"],
        &["--ranks", "6", context],
    ];
    for layout in layouts {
        assert_close(&train(layout), &single, &layout.join(" "));
    }
}
