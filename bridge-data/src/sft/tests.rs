//! Fine-tuning data from files to samples.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::dataset::{DataParallel, Silent};
use crate::tokenizer::{BpeTrainParams, HuggingFaceTokenizer, Tokenizer, train_byte_level_bpe};
use crate::{DataError, DatasetBuildContext, DatasetProvider, Datasets, Sample};

pub(super) fn params(root: &Path) -> SftParams {
    SftParams {
        root: root.to_owned(),
        cache: None,
        example: ExampleOptions {
            seq_length: 64,
            kind: RecordKind::AsWritten,
            prompt_template: None,
            label_key: "output".to_owned(),
            truncation_field: TRUNCATED_FIELD.to_owned(),
            truncation_method: TruncationMethod::Right,
            add_bos: None,
            add_eos: true,
            add_sep: false,
            answer_only_loss: true,
            tokens_to_generate: 0,
        },
        bad_line: BadLine::Error,
        max_train_samples: None,
        packing: Packing::Off,
        pad_multiple: 16,
        pad_to_max_length: false,
        seed: 7,
        order: EpochOrder::Shuffled,
        splits: [true; 3],
        validates_files: false,
        num_threads: Some(2),
    }
}

/// Bytes are tokens, with a template that has turns.
pub(super) fn tokenizer() -> Arc<dyn Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let special_tokens = vec!["<u>".to_owned(), "<a>".to_owned()];
    let params = BpeTrainParams { vocab_size: 259, special_tokens, ..BpeTrainParams::default() };
    let trained = train_byte_level_bpe(&params, ["ab".to_owned()].into_iter()).unwrap();
    trained.save_assets(folder.path()).unwrap();
    let template = "{% for m in messages %}{{ '<u>' if m.role == 'user' else '<a>' }}{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<a>{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Arc::new(HuggingFaceTokenizer::load(folder.path()).unwrap())
}

pub(super) fn context(train_samples: usize) -> DatasetBuildContext {
    DatasetBuildContext {
        train_samples,
        valid_samples: 0,
        test_samples: 0,
        once: None,
        tokenizer: Some(tokenizer()),
        data_parallel: DataParallel::SINGLE,
        progress: Arc::new(Silent),
    }
}

pub(super) fn lines(folder: &Path, name: &str, records: &[Value]) {
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(folder.join(name), text).unwrap();
}

pub(super) fn built(params: SftParams, samples: usize) -> Result<Datasets, DataError> {
    SftProvider::new(params)?.build(&context(samples))
}

/// The text of the tokens of a sample that count for the loss, and the text of all tokens.
fn texts(sample: &Sample) -> (String, String) {
    let tokenizer = tokenizer();
    let counted = sample.labels.iter().zip(&sample.loss_mask).filter(|(_, weight)| **weight > 0.0);
    let counted: Vec<i64> = counted.map(|(label, _)| *label).collect();
    (tokenizer.decode(&counted).unwrap(), tokenizer.decode(&sample.tokens).unwrap())
}

/// Text that counts in each sample of a file of these records.
fn counted(records: &[Value], change: impl Fn(&mut SftParams)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    lines(folder.path(), "training.jsonl", records);
    let mut params = params(folder.path());
    params.order = EpochOrder::AsStored;
    change(&mut params);
    let train = built(params, 0).unwrap().train.unwrap();
    (0..train.len()).map(|at| texts(&train.get(at).unwrap()).0).collect()
}

#[test]
fn every_spelling_is_understood() {
    let call = json!({ "name": "f", "arguments": {} }).to_string();
    let records = [
        json!({ "input": "Q", "output": "A" }),
        json!({ "prompt": "Q", "completion": "A" }),
        json!({ "prompt": "Q", "response": "A" }),
        json!({ "instruction": "Do", "input": "Q", "output": "A" }),
        json!({ "instruction": "Do", "input": "", "output": "A" }),
        json!({ "question": "Q", "answer": "A" }),
        json!({ "messages": [{ "role": "user", "content": "Q" }, { "role": "assistant", "content": "A" }] }),
        json!({ "conversations": [{ "from": "human", "value": "Q" }, { "from": "gpt", "value": "A" }] }),
        json!({ "conversations": [{ "role": "user", "content": "Q" }, { "role": "assistant", "content": "A" }], "tools": "" }),
        json!({ "prompt": [{ "role": "user", "content": "Q" }, { "role": "assistant", "content": "no" }, { "role": "user", "content": "Q" }],
                "completion": [{ "role": "assistant", "content": "A" }] }),
        json!({ "input_ids": [1, 65, 66], "labels": [-100, -100, 66] }),
        json!({ "input_ids": [1, 65, 66], "loss_weights": [0, 0.5, 0] }),
        json!({ "messages": [{ "role": "assistant", "content": "x", "weight": 0 }, { "role": "user", "content": "Q" }, { "role": "assistant", "content": "A" }] }),
        json!({ "conversations": [{ "from": "function_call", "value": call }, { "from": "human", "value": "Q" }, { "from": "gpt", "value": "A" }] }),
    ];
    let found = counted(&records, |_| {});
    // A blank stands where upstream's template has one.
    assert_eq!(found[0], " A<|endoftext|>");
    assert_eq!(&found[1..6], ["A<|endoftext|>"; 5]);
    assert_eq!(&found[6..10], ["A"; 4]);
    assert_eq!(found[10], tokenizer().decode(&[66]).unwrap());
    assert_eq!(found[11], tokenizer().decode(&[65]).unwrap());
    // The template writes no calls, and nothing after an answer: the next role's mark ends the
    // turn.
    assert_eq!(&found[12..], ["A", "<u>A"]);
}

#[test]
fn prompts_follow_their_template_and_options() {
    let record = [json!({ "context": "ccccc", "q": "qq", "output": " aa " })];
    let template = |params: &mut SftParams| {
        params.example.prompt_template = Some("C:{context} Q: {q} {output}".to_owned());
        params.example.truncation_field = "context,q".to_owned();
        params.example.answer_only_loss = false;
    };
    assert_eq!(counted(&record, template), [":ccccc Q: qq aa<|endoftext|>"]);
    let short = |params: &mut SftParams| {
        template(params);
        params.example.seq_length = 13;
        params.pad_multiple = 1;
    };
    assert_eq!(counted(&record, short), [":ccc Q:  aa<|endoftext|>"]);
    let left = |params: &mut SftParams| {
        short(params);
        params.example.truncation_method = TruncationMethod::Left;
        params.example.add_eos = false;
        params.example.add_sep = true;
    };
    assert_eq!(counted(&record, left), [":ccc Q:q<|endoftext|> aa"]);
    let mut wrong = params(Path::new("."));
    wrong.example.prompt_template = Some("{output} {input}".to_owned());
    assert!(SftProvider::new(wrong).unwrap_err().to_string().contains("must end with {output}"));
    let mut wrong = params(Path::new("."));
    wrong.example.prompt_template = Some("{a} {output}".to_owned());
    assert!(SftProvider::new(wrong).unwrap_err().to_string().contains("truncation_field"));
}

#[test]
fn compressed_files_and_folders_of_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let line = |answer: &str| format!("{}\n", json!({ "input": "Q", "output": answer }));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(line("1").as_bytes()).unwrap();
    let parts = folder.path().join("train");
    std::fs::create_dir(&parts).unwrap();
    std::fs::write(parts.join("a.jsonl.gz"), gzip.finish().unwrap()).unwrap();
    std::fs::write(parts.join("b.jsonl.zst"), zstd::encode_all(line("2").as_bytes(), 1).unwrap()).unwrap();
    std::fs::write(parts.join("c.jsonl"), format!("\u{feff}{}\n\n{}", line("3"), line("4").trim())).unwrap();
    std::fs::write(parts.join("readme.txt"), "not read").unwrap();
    let mut params = params(folder.path());
    params.order = EpochOrder::AsStored;
    let train = built(params.clone(), 0).unwrap().train.unwrap();
    let found: Vec<String> = (0..train.len()).map(|at| texts(&train.get(at).unwrap()).0).collect();
    assert_eq!(found, [1, 2, 3, 4].map(|number| format!(" {number}<|endoftext|>")));
    std::fs::write(folder.path().join("training.jsonl"), line("5")).unwrap();
    assert!(built(params, 0).err().unwrap().to_string().contains("keep one of them"));
}

/// A table of conversations, in three row groups, compressed with Snappy and with Zstandard
/// (tests/fixtures/sft, made with pyarrow).
#[test]
fn tables_are_read_row_by_row() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sft");
    for name in ["snappy.parquet", "zstd.parquet"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training.parquet");
        std::fs::copy(fixtures.join(name), &path).unwrap();
        let as_stored = SftParams { order: EpochOrder::AsStored, ..params(folder.path()) };
        let train = built(as_stored, 0).unwrap().train.unwrap();
        let found: Vec<String> = (0..train.len()).map(|at| texts(&train.get(at).unwrap()).0).collect();
        assert_eq!(found, (0..9).map(|number| format!("answer {number}")).collect::<Vec<_>>());
        // Damaged bytes give an error or samples, never a panic.
        let whole = std::fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(11) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            if let Err(error) = built(params(folder.path()), 2) {
                assert!(error.to_string().contains("training.parquet"), "{at}: {error}");
            }
        }
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(built(params(folder.path()), 2).err().unwrap().to_string().contains("not a Parquet file"));
    }
}

/// The same table as a stream, as a file and as Feather; an error names the file and the row.
#[test]
fn arrow_files_are_read_row_by_row() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sft");
    for (name, ending) in [("stream.arrow", "arrow"), ("file.arrow", "arrow"), ("lz4.feather", "feather")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("training.{ending}"));
        std::fs::copy(fixtures.join(name), &path).unwrap();
        let as_stored = SftParams { order: EpochOrder::AsStored, ..params(folder.path()) };
        let train = built(as_stored, 0).unwrap().train.unwrap();
        let found: Vec<String> = (0..train.len()).map(|at| texts(&train.get(at).unwrap()).0).collect();
        assert_eq!(found, (0..9).map(|number| format!("answer {number}")).collect::<Vec<_>>());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("training.arrow");
    std::fs::write(&path, "ARROW1").unwrap();
    let error = built(params(folder.path()), 2).err().unwrap().to_string();
    assert!(error.contains("training.arrow") && error.contains("not an Arrow file"), "{error}");
    let whole = std::fs::read(fixtures.join("stream.arrow")).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 40]).unwrap();
    let error = built(params(folder.path()), 2).err().unwrap().to_string();
    assert!(error.contains("training.arrow") && error.contains("behind row 6") && error.contains("cut off"), "{error}");
    // A text with invalid bytes, in the fifth row.
    let mut damaged = whole;
    let place = damaged.windows(10).position(|bytes| bytes == b"question 4").unwrap();
    damaged[place] = 0xff;
    std::fs::write(&path, &damaged).unwrap();
    let error = built(params(folder.path()), 2).err().unwrap().to_string();
    assert!(error.contains("row 5") && error.contains("not UTF-8"), "{error}");
}

#[test]
fn bad_lines_are_errors_with_their_place_or_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let bad = [
        "{",
        "[1]",
        "{\"text\": \"only\"}",
        "{\"messages\": [{\"role\": 3}]}",
        "{\"messages\": [{\"role\": \"user\"}]}",
        "{\"input\": \"a\", \"output\": \"b\", \"weight\": -1}",
        "{\"input_ids\": [99999]}",
        "{\"input_ids\": [1, 2], \"labels\": [1]}",
        "{\"input\": \"\u{0}\u{fffd}\", \"output\": null}",
    ];
    for line in bad {
        std::fs::write(
            folder.path().join("training.jsonl"),
            format!("{}\n{line}\n", json!({ "input": "Q", "output": "A" })),
        )
        .unwrap();
        let error = built(params(folder.path()), 4).err().expect(line).to_string();
        assert!(error.contains("training.jsonl: line 2: "), "{line}: {error}");
        let skip = SftParams { bad_line: BadLine::Skip, ..params(folder.path()) };
        assert_eq!(built(skip, 4).unwrap().train.unwrap().len(), 4);
    }
}

#[test]
fn each_epoch_has_every_example_once_in_an_order_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<Value> = (0..10).map(|number| json!({ "input": "Q", "output": number.to_string() })).collect();
    lines(folder.path(), "training.jsonl", &records);
    lines(folder.path(), "validation.jsonl", &records[..3]);
    let datasets = built(params(folder.path()), 25).unwrap();
    let train = datasets.train.unwrap();
    assert_eq!((train.len(), datasets.valid.unwrap().len(), datasets.test.is_none()), (25, 3, true));
    assert_eq!(train.epoch_len(), Some(10), "of the data, not of the run");
    let answer = |at: usize| texts(&train.get(at).unwrap()).0;
    let epochs: Vec<Vec<String>> = [0..10, 10..20].map(|range| range.map(answer).collect()).into();
    assert_ne!(epochs[0], epochs[1]);
    for mut epoch in epochs {
        epoch.sort();
        assert_eq!(epoch, (0..10).map(|number| format!(" {number}<|endoftext|>")).collect::<Vec<_>>());
    }
    // Back in the first epoch, from the store that was made before.
    let again = built(params(folder.path()), 25).unwrap().train.unwrap();
    assert_eq!(again.get(24).unwrap(), train.get(24).unwrap());
    assert_eq!(again.get(3).unwrap(), train.get(3).unwrap());
    let few = SftParams { max_train_samples: Some(4), ..params(folder.path()) };
    let few = built(few, 4).unwrap().train.unwrap();
    assert_eq!(few.epoch_len(), Some(4));
    let mut seen: Vec<String> = (0..4).map(|at| texts(&few.get(at).unwrap()).0).collect();
    seen.sort();
    assert_eq!(seen, (0..4).map(|number| format!(" {number}<|endoftext|>")).collect::<Vec<_>>());
}

#[test]
fn packed_sequences_hold_the_same_tokens_as_documents() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<Value> =
        (0..40usize).map(|n| json!({ "input": "q".repeat(n * 7 % 19), "output": n.to_string() })).collect();
    lines(folder.path(), "training.jsonl", &records);
    let packings = [
        Packing::Off,
        Packing::OnTheFly,
        Packing::Offline { size: 64, multiple: 1, algorithm: PackingAlgorithm::FirstFitDecreasing },
        Packing::Offline { size: 48, multiple: 4, algorithm: PackingAlgorithm::FirstFitShuffle },
    ];
    for packing in packings {
        let params = SftParams { packing, order: EpochOrder::AsStored, ..params(folder.path()) };
        let train = built(params.clone(), 0).unwrap().train.unwrap();
        let mut documents = Vec::new();
        for at in 0..train.len() {
            let sample = train.get(at).unwrap();
            let numbers = sample.document_ids.clone().unwrap_or_else(|| vec![0; sample.tokens.len()]);
            for number in 0..=numbers.last().copied().unwrap_or(0) {
                let of = |places: &[i64]| {
                    let chosen = places.iter().zip(&numbers).filter(|(_, document)| **document == number);
                    chosen.map(|(value, _)| *value).collect::<Vec<_>>()
                };
                let positions = of(&sample.position_ids);
                assert!(positions.iter().enumerate().all(|(at, position)| *position == at as i64), "{positions:?}");
                let weights = sample.loss_mask.iter().zip(&numbers).filter(|(_, document)| **document == number);
                let counts = weights.clone().filter(|(weight, _)| **weight > 0.0).count();
                if counts > 0 {
                    let mut tokens = of(&sample.tokens);
                    let weights: Vec<f32> = weights.map(|(weight, _)| *weight).collect();
                    let end = weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0) + 1;
                    tokens.truncate(end);
                    documents.push((tokens, of(&sample.labels)[..end].to_vec(), counts));
                }
            }
            let is_whole = sample.tokens.len() == 64 || packing == Packing::Off && sample.tokens.len() % 16 == 0;
            assert!(is_whole, "{}", sample.tokens.len());
        }
        assert!(packing == Packing::Off || train.len() < 20, "{}", train.len());
        let shuffled = |samples| {
            let params = SftParams { order: EpochOrder::Shuffled, ..params.clone() };
            built(params, samples).unwrap().train.unwrap()
        };
        let (epoch, run) = (shuffled(0), shuffled(100));
        assert_eq!((run.len(), run.epoch_len()), (100, Some(epoch.len())), "{packing:?}");
        documents.sort();
        let mut expected: Vec<_> = {
            let params = SftParams { packing: Packing::Off, pad_multiple: 1, ..params };
            let plain = built(params, 0).unwrap().train.unwrap();
            let sample = |at| plain.get(at).unwrap();
            (0..40)
                .map(sample)
                .map(|sample| {
                    let counts = sample.loss_mask.iter().filter(|weight| **weight > 0.0).count();
                    (sample.tokens, sample.labels, counts)
                })
                .collect()
        };
        expected.sort();
        assert_eq!(documents, expected, "{packing:?}");
    }
}

#[test]
fn damaged_stores_are_found() {
    let folder = tempfile::tempdir().unwrap();
    lines(folder.path(), "training.jsonl", &[json!({ "input": "Q", "output": "A" })]);
    built(params(folder.path()), 1).unwrap();
    let path = folder.path().join("bridge_cache/train.examples");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    let error = built(params(folder.path()), 1).err().unwrap().to_string();
    assert!(error.contains("train.examples"), "{error}");
}
