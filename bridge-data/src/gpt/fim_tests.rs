//! Fill-in-the-middle against samples made by Megatron Bridge's own dataset (`fim.json`), which
//! read `a.bin` with every id but end-of-document taken modulo 50 and fetched the samples in order.

use std::path::Path;

use serde::Deserialize;

use super::*;
use crate::dataset::DatasetProvider;
use crate::gpt::tests::{context, params};
use crate::gpt::{Blend, GptDatasetParams, GptDatasetProvider, GptSource, SampleChange};
use crate::indexed::{BinAccess, IndexedDataset, IndexedDatasetBuilder, TokenDtype};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/megatron-data");
const TOKENS: FimTokens = FimTokens { prefix: 5001, middle: 5002, suffix: 5003, pad: 5004, eod: 4999 };

#[derive(Deserialize)]
struct Case {
    rate: f64,
    spm_rate: f64,
    split_sample: Option<i64>,
    fragment_rate: f64,
    no_prefix: Option<String>,
    seed: i64,
    sequence_length: usize,
    samples: Vec<Vec<i64>>,
}

fn dataset(folder: &Path, case: &Case) -> Arc<dyn Dataset> {
    let prefix = folder.join("a");
    let source = IndexedDataset::open(Path::new(FIXTURES).join("a"), BinAccess::Mmap).expect("fixture");
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).expect("created");
    for i in 0..source.len() {
        let tokens: Vec<i64> =
            source.sequence(i).expect("readable").into_iter().map(|id| if id == 4999 { id } else { id % 50 }).collect();
        builder.add_document(&tokens, &[tokens.len()]).expect("added");
    }
    builder.finalize().expect("written");
    let fim = FimParams {
        rate: case.rate,
        spm_rate: case.spm_rate,
        tokens: TOKENS,
        split_sample: case.split_sample,
        fragment_rate: case.fragment_rate,
        no_prefix: case.no_prefix.clone(),
    };
    let params = GptDatasetParams {
        sequence_length: case.sequence_length,
        random_seed: case.seed,
        source: GptSource::Blend { blend: Blend { paths: vec![prefix], weights: None }, split: "100,0,0".into() },
        change: Some(SampleChange::Fim(fim)),
        ..params(&["a"], None, "1")
    };
    let provider = GptDatasetProvider::new(params).expect("valid parameters");
    provider.build(&context([20, 0, 0])).expect("buildable").train.expect("has a share")
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(Path::new(FIXTURES).join("fim.json")).expect("fixture");
    serde_json::from_str(&text).expect("fixture format")
}

#[test]
fn samples_are_megatron_bridges() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for case in cases() {
        let dataset = dataset(folder.path(), &case);
        assert_eq!(dataset.fetch_order(), FetchOrder::Matters);
        for (i, expected) in case.samples.iter().enumerate() {
            let sample = dataset.get(i).expect("in range");
            let mut tokens = sample.tokens;
            tokens.extend(sample.labels.last());
            assert_eq!(tokens, *expected, "seed {} sample {i}", case.seed);
        }
    }
}

#[test]
fn a_restarted_stream_draws_the_same() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let dataset = dataset(folder.path(), &cases()[0]);
    let fetch = |count: usize| (0..count).map(|i| dataset.get(i).expect("in range").tokens).collect::<Vec<_>>();
    let first = fetch(7);
    assert_ne!(fetch(7), first, "the stream has moved on");
    dataset.restart();
    assert_eq!(fetch(7), first);
}

#[test]
fn rates_must_be_probabilities() {
    let case = Case { rate: 1.5, ..cases().remove(0) };
    let fim = FimParams {
        rate: case.rate,
        spm_rate: 0.5,
        tokens: TOKENS,
        split_sample: None,
        fragment_rate: 0.0,
        no_prefix: None,
    };
    assert!(fim.check().expect_err("too large").to_string().contains("fim_rate = 1.5"));
}

#[test]
fn token_names_are_looked_up() {
    let tokenizer = crate::gpt::tests::FixtureTokenizer;
    let all = |key: &str| ["prefix", "middle", "suffix", "pad", "eod"].iter().position(|&k| k == key);
    let names = ["1", "2", "3", "4", "5"];
    let tokens = FimTokens::lookup(&tokenizer, |key| all(key).map(|i| names[i])).expect("all there");
    assert_eq!(tokens, FimTokens { prefix: 1, middle: 2, suffix: 3, pad: 4, eod: 5 });
    let missing = FimTokens::lookup(&tokenizer, |key| (key != "pad").then_some("1"));
    assert!(missing.expect_err("no pad").to_string().contains("fim_extra_tokens.pad"));
    let unknown = FimTokens::lookup(&tokenizer, |_| Some("<none>"));
    assert!(unknown.expect_err("unknown").to_string().contains("<none>"));
}
