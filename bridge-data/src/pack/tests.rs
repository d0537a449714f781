//! Packing and training on temporary files: order, reuse, interruption, locks.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::Silent;
use crate::indexed::{BinAccess, IndexedDataset, with_suffix};
use crate::source::SourceParams;
use crate::tokenizer::{BpeTrainParams, HuggingFaceTokenizer, NullTokenizer};

fn source(folder: &Path, pattern: &str) -> TextSource {
    let inputs = vec![format!("{}/{pattern}", folder.display())];
    TextSource::resolve(&SourceParams { inputs, ..SourceParams::default() }).expect("resolvable")
}

fn pack_params<'a>(source: &'a TextSource, tokenizer: &'a dyn Tokenizer, output: &'a Path) -> PackParams<'a> {
    PackParams {
        source,
        tokenizer,
        output_prefix: output,
        overwrite: Overwrite::Own,
        document_end: DocumentEnd::EndOfDocument,
        num_threads: Some(2),
        progress: &Silent,
    }
}

fn documents(prefix: &Path) -> Vec<Vec<i64>> {
    let dataset = IndexedDataset::open(prefix, BinAccess::Mmap).expect("packed");
    dataset.slice(0..dataset.len()).expect("readable")
}

/// English-like text that is the same on every run.
fn prose(words: usize, seed: usize) -> String {
    let vocabulary = ["the ", "model ", "learns", " to ", "pack\n", "d\u{e9}j\u{e0} vu ", "it's ", "42 ", "?! ", "  "];
    (0..words).map(|i| vocabulary[(i * 7 + i * i * 3 + seed * 11) % 10]).collect()
}

fn trained(folder: &Path) -> HuggingFaceTokenizer {
    std::fs::write(folder.join("corpus.train"), prose(3000, 1)).expect("written");
    let params = BpeTrainParams { vocab_size: 300, ..BpeTrainParams::default() };
    train_tokenizer(&source(folder, "*.train"), &params, &folder.join("tokenizer"), Overwrite::Own, &Silent)
        .expect("trained")
        .tokenizer
}

#[test]
fn documents_keep_their_order_and_end() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let lines: String = (0..500).map(|i| format!("{{\"text\": \"{i} {} 3\"}}\n", i + 1)).collect();
    std::fs::write(folder.path().join("a.jsonl"), lines + "\n{\"text\": \"\"}\n").expect("written");
    std::fs::write(folder.path().join("b.txt"), "7 8").expect("written");
    std::fs::write(folder.path().join("c.txt"), b"\xff").expect("written");
    let source = source(folder.path(), "*.*");
    let output = folder.path().join("out/packed");
    let tokenizer = NullTokenizer::new(1000);
    let report = pack(&pack_params(&source, &tokenizer, &output)).expect("packed");
    assert_eq!((report.documents, report.tokens), (501, 500 * 4 + 3));
    assert_eq!((report.empty_documents, report.invalid_documents), (2, 1));
    assert!(report.invalid_names[0].ends_with("c.txt (not UTF-8)"));
    assert!(report.to_string().contains("1 documents that are no text skipped"));
    let packed = documents(&output);
    for (i, document) in packed[..500].iter().enumerate() {
        assert_eq!(*document, [i as i64, i as i64 + 1, 3, 1000]);
    }
    assert_eq!(packed[500], [7, 8, 1000]);
    let bare = PackParams { document_end: DocumentEnd::Nothing, ..pack_params(&source, &tokenizer, &output) };
    pack(&bare).expect("packed");
    assert_eq!(documents(&output)[500], [7, 8]);
}

#[test]
fn long_documents_are_cut_without_changing_tokens() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let tokenizer = trained(folder.path());
    let text = prose(300_000, 5);
    assert!(text.len() > 4 * PIECE_BYTES);
    std::fs::write(folder.path().join("long.txt"), &text).expect("written");
    let source = source(folder.path(), "long.txt");
    let output = folder.path().join("long");
    pack(&pack_params(&source, &tokenizer, &output)).expect("packed");
    let mut expected = tokenizer.encode_reference(&text).expect("encodable");
    expected.extend(tokenizer.eod());
    assert!(documents(&output)[0] == expected);
    assert_eq!(IndexedDataset::open(&output, BinAccess::Mmap).expect("packed").dtype(), TokenDtype::U16);
}

#[test]
fn unchanged_input_is_packed_once() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let input = folder.path().join("a.txt");
    std::fs::write(&input, "1 2 3").expect("written");
    let output = folder.path().join("packed");
    let tokenizer = NullTokenizer::new(100);
    let run = |tokenizer: &NullTokenizer| {
        let source = source(folder.path(), "a.txt");
        pack(&pack_params(&source, tokenizer, &output)).expect("packed")
    };
    assert!(!run(&tokenizer).reused);
    let second = run(&tokenizer);
    assert!(second.reused && second.to_string().contains("reusing"));
    assert_eq!(second.tokens, 4);
    // Another tokenizer, other text, a damaged output: each is packed again.
    let other = NullTokenizer::new(200);
    assert!(!run(&other).reused);
    assert!(run(&other).reused);
    std::fs::write(&input, "1 2 3 4").expect("written");
    assert!(!run(&other).reused);
    std::fs::write(bin_path(&output), "x").expect("damaged");
    assert!(!run(&other).reused);
    assert_eq!(documents(&output), [[1, 2, 3, 4, 200]]);
}

/// Stops after a number of updates.
struct StopAfter {
    updates: AtomicUsize,
    limit: usize,
}

impl WorkProgress for StopAfter {
    fn update(&self, counts: &WorkCounts) {
        assert!(counts.bytes_total.is_some_and(|total| counts.bytes_done <= total));
        self.updates.fetch_add(1, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.updates.load(Ordering::Relaxed) >= self.limit
    }
}

#[test]
fn what_another_has_made_is_replaced_only_on_request() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), "1 2 3").expect("written");
    let (source, tokenizer) = (source(folder.path(), "a.txt"), NullTokenizer::new(100));
    let output = folder.path().join("packed");
    std::fs::write(idx_path(&output), "mine").expect("written");
    let own = pack_params(&source, &tokenizer, &output);
    let error = pack(&own).expect_err("it is another's");
    assert!(matches!(&error, DataError::NotMade { path } if *path == idx_path(&output)), "{error}");
    assert_eq!(std::fs::read_to_string(idx_path(&output)).expect("kept"), "mine");
    let any = PackParams { overwrite: Overwrite::Any, ..pack_params(&source, &tokenizer, &output) };
    assert_eq!(pack(&any).expect("packed").documents, 1);
    std::fs::write(folder.path().join("a.txt"), "1 2 3 4").expect("written");
    let again = self::source(folder.path(), "a.txt");
    assert_eq!(pack(&PackParams { source: &again, ..own }).expect("its own").tokens, 5);
}

#[test]
fn an_interrupted_run_leaves_nothing_and_can_be_repeated() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let tokenizer = NullTokenizer::new(100);
    let lines: String = (0..400).map(|_| format!("{{\"text\": \"{}\"}}\n", "1 2 ".repeat(10_000))).collect();
    std::fs::write(folder.path().join("a.jsonl"), lines).expect("written");
    let source = source(folder.path(), "a.jsonl");
    let output = folder.path().join("out/packed");
    let stale = folder.path().join("out/packed.bin.partial-1-1");
    std::fs::create_dir_all(folder.path().join("out")).expect("folder");
    std::fs::write(&stale, "left behind").expect("written");
    let progress = StopAfter { updates: AtomicUsize::new(0), limit: 1 };
    let stopped = PackParams { progress: &progress, ..pack_params(&source, &tokenizer, &output) };
    assert!(matches!(pack(&stopped), Err(DataError::Interrupted)));
    let left = || std::fs::read_dir(folder.path().join("out")).expect("folder").count();
    assert_eq!(left(), 0, "nothing is left behind");
    let progress = StopAfter { updates: AtomicUsize::new(0), limit: usize::MAX };
    let whole = PackParams { progress: &progress, ..pack_params(&source, &tokenizer, &output) };
    assert_eq!(pack(&whole).expect("packed").documents, 400);
    assert!(progress.updates.load(Ordering::Relaxed) >= 2);
    assert_eq!(left(), 3, "tokens, index, and what they were made from");
}

#[test]
fn a_lock_that_comes_and_goes_has_one_holder_at_a_time() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let output = folder.path().join("packed");
    let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    match OutputLock::acquire(&output) {
                        Ok(lock) => {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                            held.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                        Err(DataError::Locked { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert!(held.into_inner() > 0);
    assert!(!with_suffix(&output, ".lock").exists());
}

#[test]
fn two_writers_are_kept_apart() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), "1").expect("written");
    let source = source(folder.path(), "a.txt");
    let output = folder.path().join("packed");
    let tokenizer = NullTokenizer::new(10);
    let lock = OutputLock::acquire(&output).expect("free");
    assert!(matches!(pack(&pack_params(&source, &tokenizer, &output)), Err(DataError::Locked { .. })));
    drop(lock);
    pack(&pack_params(&source, &tokenizer, &output)).expect("free again");
}

#[test]
fn readers_share_what_a_writer_has_left() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), "1 2").expect("written");
    std::fs::write(folder.path().join("b.txt"), "3").expect("written");
    let (first, second) = (source(folder.path(), "a.txt"), source(folder.path(), "b.txt"));
    let output = folder.path().join("packed");
    let tokenizer = NullTokenizer::new(10);
    let (report, writer) = pack_locked(&pack_params(&first, &tokenizer, &output)).expect("free");
    assert!(!report.reused);
    let other = || pack(&pack_params(&second, &tokenizer, &output));
    assert!(matches!(other(), Err(DataError::Locked { .. })), "being written");
    drop(writer);
    let readers = [0; 2].map(|_| pack_locked(&pack_params(&first, &tokenizer, &output)).expect("there already"));
    assert!(readers.iter().all(|(report, _)| report.reused));
    assert!(matches!(other(), Err(DataError::Locked { .. })), "being opened");
    let [last, other_reader] = readers;
    drop(other_reader);
    assert!(matches!(other(), Err(DataError::Locked { .. })), "one reader is left");
    drop(last);
    assert!(!other().expect("free").reused);
    assert!(!with_suffix(&output, ".lock").exists());
}

/// A reader that leaves holds the lock exclusively for a moment, to delete its file: readers that
/// arrive wait for it.
#[test]
fn readers_that_leave_lock_out_none_that_arrive() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), "1 2").expect("written");
    let source = source(folder.path(), "a.txt");
    let (output, tokenizer) = (folder.path().join("packed"), NullTokenizer::new(10));
    pack(&pack_params(&source, &tokenizer, &output)).expect("free");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert!(pack(&pack_params(&source, &tokenizer, &output)).expect("shared").reused);
                }
            });
        }
    });
    assert!(!with_suffix(&output, ".lock").exists());
}

#[test]
fn the_search_for_merges_can_be_given_up() {
    let text = (0..4).map(|seed| prose(5000, seed));
    let params = BpeTrainParams::default();
    let error = crate::tokenizer::train_byte_level_bpe_until(&params, text, &|| true).expect_err("given up");
    assert!(matches!(error, crate::tokenizer::TokenizerError::Interrupted), "{error}");
}

#[test]
fn bad_lines_and_missing_text_stop_the_work() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.jsonl"), "{\"text\": \"1\"}\n{\"text\"}\n").expect("written");
    std::fs::write(folder.path().join("empty.txt"), "").expect("written");
    let output = folder.path().join("packed");
    let tokenizer = NullTokenizer::new(10);
    let error = |pattern| {
        let source = source(folder.path(), pattern);
        pack(&pack_params(&source, &tokenizer, &output)).expect_err("no output").to_string()
    };
    assert!(error("a.jsonl").contains("line 2"));
    assert!(error("empty.txt").contains("no text"));
    assert!(!bin_path(&output).exists());
}

#[test]
fn tokenizers_are_trained_once_and_load_again() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), prose(20_000, 3)).expect("written");
    let params = BpeTrainParams { vocab_size: 262, min_frequency: 2, special_tokens: vec!["<pad>".into()] };
    let output = folder.path().join("tokenizer");
    let train = |params| {
        train_tokenizer(&source(folder.path(), "a.txt"), params, &output, Overwrite::Own, &Silent).expect("trained")
    };
    let first = train(&params);
    assert!(!first.reused);
    let second = train(&params);
    assert!(second.reused);
    assert_eq!(first.tokenizer.unique_identifier(), second.tokenizer.unique_identifier());
    assert_eq!((second.tokenizer.vocab_size(), second.tokenizer.eod()), (262, Some(0)));
    assert_eq!(second.tokenizer.token_to_id("<pad>"), Some(1));
    assert!(!train(&BpeTrainParams { vocab_size: 260, ..params.clone() }).reused);
    let error = train_tokenizer(
        &source(folder.path(), "a.txt"),
        &BpeTrainParams { vocab_size: 100, ..params },
        &folder.path().join("other"),
        Overwrite::Own,
        &Silent,
    );
    assert!(error.expect_err("too small").to_string().contains("vocab_size = 100"));
    std::fs::write(folder.path().join("empty.txt"), "").expect("written");
    let nothing = train_tokenizer(
        &source(folder.path(), "empty.txt"),
        &BpeTrainParams::default(),
        &output,
        Overwrite::Own,
        &Silent,
    );
    assert!(nothing.expect_err("no text").to_string().contains("no text"));
}

#[test]
fn text_in_another_encoding_is_called_that() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("a.txt"), b"caf\xe9").expect("written");
    std::fs::write(folder.path().join("b.txt"), "").expect("written");
    let failure = |pattern: &str| {
        let trained = train_tokenizer(
            &source(folder.path(), pattern),
            &BpeTrainParams::default(),
            &folder.path().join("tokenizer"),
            Overwrite::Own,
            &Silent,
        );
        trained.expect_err("no text").to_string()
    };
    let said = failure("*.txt");
    assert!(said.contains("1 documents are not UTF-8 text"), "{said}");
    assert!(!failure("b.txt").contains("UTF-8"));
}
