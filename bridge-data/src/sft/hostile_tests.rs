//! Mutated lines, templates and tables: an example or an error, soon and without a panic.
//! `BRIDGE_HOSTILE_RUNS` says how many of each.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::example::ExampleBuilder;
use super::files::Records;
use super::params::{ExampleOptions, RecordKind, TRUNCATED_FIELD, TruncationMethod};
use crate::chat::{ChatTemplate, computed};
use crate::tokenizer::{HuggingFaceTokenizer, Tokenizer};

/// Numbers that look drawn.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count.max(1)
    }
}

fn fixtures(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn runs() -> usize {
    std::env::var("BRIDGE_HOSTILE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(300)
}

/// A few bytes changed, doubled, taken out, or parts of the text put elsewhere.
fn mutated(bytes: &[u8], draw: &mut Draw, words: &[&str]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=draw.below(4) {
        let (at, other) = (draw.below(bytes.len()), draw.below(bytes.len()));
        let length = draw.below(20).min(bytes.len() - at.min(bytes.len()));
        match draw.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << draw.below(8),
            1 => drop(bytes.drain(at..at + length)),
            2 => {
                let part = bytes[at..at + length].to_vec();
                bytes.splice(other..other, part);
            }
            3 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, words[draw.below(words.len())].bytes())),
        }
    }
    bytes
}

fn builder(template: ChatTemplate) -> ExampleBuilder {
    let tokenizer = HuggingFaceTokenizer::load(fixtures("chat/turns")).expect("a tokenizer");
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(tokenizer);
    let options = ExampleOptions {
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
    };
    ExampleBuilder::new(tokenizer, Some(template), options).expect("a builder")
}

/// All conversations of the fixtures, and other records.
fn lines() -> Vec<String> {
    let mut lines = vec![
        r#"{"input": "a question", "output": "an answer", "weight": 0.5}"#.to_owned(),
        r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y", "train": false}], "tools": "[]"}"#.to_owned(),
        r#"{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}"#.to_owned(),
    ];
    for name in ["turns", "headers", "inst", "thinks"] {
        let cases = std::fs::read_to_string(fixtures("chat").join(name).join("cases.jsonl")).expect("cases");
        lines.extend(cases.lines().map(str::to_owned));
    }
    lines
}

/// Time that one input may compute.
const MOST: Duration = Duration::from_secs(10);

const OF_LINES: [&str; 10] =
    ["null", "[]", "{}", "\"role\"", "\"messages\": 3,", "1e999", "\\ud800", "\u{fdd0}", "[[[[[[[[", "\"weight\": -1,"];
const OF_TEMPLATES: [&str; 14] = [
    "{% for a in messages %}",
    "{% endfor %}",
    "{{ messages }}",
    "{% set messages = messages + messages %}",
    "{{ 'x' * 99999999 }}",
    "{% generation %}",
    "{% endgeneration %}",
    "| join(messages)",
    " ~ messages",
    "{{ range(99999) | list }}",
    "{% if",
    "%}",
    "{{",
    "| tojson(indent=9)",
];

#[test]
fn mutated_lines_and_templates_are_examples_or_errors() {
    let (lines, mut draw) = (lines(), Draw(20_251_123));
    let names = ["turns", "turns_unmarked", "headers", "inst", "thinks"];
    let plain: Vec<ExampleBuilder> = names
        .iter()
        .map(|name| builder(ChatTemplate::load(&fixtures("chat").join(name)).expect("readable").expect("a template")))
        .collect();
    let (mut made, mut refused, mut slowest) = (0, 0, Duration::ZERO);
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..runs() {
        let started = computed();
        let line = mutated(lines[draw.below(lines.len())].as_bytes(), &mut draw, &OF_LINES);
        let of_line = |builder: &ExampleBuilder, line: &[u8]| {
            let value = serde_json::from_slice::<Value>(line).map_err(|error| error.to_string())?;
            builder.read(&value).map(|read| read.examples)
        };
        let example = of_line(&plain[draw.below(plain.len())], &line);
        for example in example.iter().flatten() {
            assert!(example.ids.len() == example.weights.len() && example.ids.len() <= 64);
            assert!(example.weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0));
        }
        let source = std::fs::read(fixtures("chat").join(names[draw.below(names.len())]).join("chat_template.jinja"));
        let source = mutated(&source.expect("a template"), &mut draw, &OF_TEMPLATES);
        std::fs::write(folder.path().join("chat_template.jinja"), &source).expect("written");
        let template = ChatTemplate::load(folder.path()).ok().flatten();
        let of_template =
            template.map(|template| of_line(&builder(template), lines[draw.below(lines.len())].as_bytes()));
        for result in [Some(example), of_template].into_iter().flatten() {
            if result.is_ok() { made += 1 } else { refused += 1 }
        }
        let took = computed() - started;
        assert!(took < MOST, "{took:?}: {}", String::from_utf8_lossy(&source));
        slowest = slowest.max(took);
    }
    assert!(made > 0 && refused > 0, "{made} examples, {refused} errors");
    println!("{made} examples, {refused} errors, the slowest took {slowest:?}");
}

#[test]
fn mutated_tables_are_rows_or_errors() {
    let tables = [
        "snappy.parquet",
        "zstd.parquet",
        "stream.arrow",
        "file.arrow",
        "lz4.feather",
        "types.arrow",
        "types_file.arrow",
    ];
    let mut draw = Draw(7);
    let folder = tempfile::tempdir().expect("a folder");
    for run in 0..runs() {
        let table = tables[run % tables.len()];
        let path = folder.path().join(table);
        let whole = std::fs::read(fixtures("sft").join(table)).expect("a table");
        let pieces = ["PAR1", "ARROW1", "\0\0\0\0", "\u{7f}\u{7f}\u{7f}\u{7f}"];
        std::fs::write(&path, mutated(&whole, &mut draw, &pieces)).expect("written");
        let started = computed();
        let files = [path.clone()];
        let rows = Records::new(&files).take(100_000).filter(Result::is_ok).count();
        let took = computed() - started;
        assert!(rows <= 100_000 && took < MOST, "{rows} rows in {took:?}");
    }
}
