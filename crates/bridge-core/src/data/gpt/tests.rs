//! The sample order against Megatron's own samples and the reference's vectors, the cache, and what goes wrong.
//!
//! Fixtures: `samples.json` (made by Megatron-LM, one seed), `cases.json` (blends, options and mock data, likewise).

use std::collections::BTreeSet;
use std::sync::Mutex;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::data::dataset::{DataParallel, DatasetBuildContext, DatasetProvider, Datasets};
use crate::data::indexed::{BinAccess, IndexedDataset, IndexedDatasetBuilder, TokenDtype};
use crate::tokenizer::{NullTokenizer, Tokenizer, TokenizerError};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/megatron-data");

/// End of document 4999, padding 4998, as the fixtures' tokenizer.
pub(super) struct FixtureTokenizer;

impl Tokenizer for FixtureTokenizer {
    /// One character an id from U+4E00 on; an id divisible by 10 swallows one before it that ends in 1.
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let mut ids: Vec<i64> = Vec::new();
        for id in text.chars().map(|c| c as i64 - 0x4e00) {
            match ids.last_mut() {
                Some(last) if id % 10 == 0 && *last % 10 == 1 => *last = id,
                _ => ids.push(id),
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError> {
        let unknown = |id| TokenizerError::UnknownId { id, vocab_size: 5000 };
        let c = |&id: &i64| char::from_u32(0x4e00 + id as u32).ok_or(unknown(id));
        ids.iter().map(c).collect()
    }

    fn vocab_size(&self) -> usize {
        5000
    }

    fn eod(&self) -> Option<i64> {
        Some(4999)
    }

    fn bos(&self) -> Option<i64> {
        None
    }

    fn pad(&self) -> Option<i64> {
        Some(4998)
    }

    fn token_to_id(&self, token: &str) -> Option<i64> {
        token.parse().ok()
    }

    fn id_to_bytes(&self, _id: i64) -> Option<Vec<u8>> {
        None
    }

    fn unique_identifier(&self) -> serde_json::Value {
        serde_json::json!({ "class": "T" })
    }

    fn save_assets(&self, _folder: &Path) -> Result<(), TokenizerError> {
        Ok(())
    }
}

/// Remembers what it is told.
#[derive(Default)]
struct Recorder(Mutex<Vec<BuildEvent>>);

impl BuildObserver for Recorder {
    fn on_event(&self, event: &BuildEvent) {
        self.0.lock().expect("not poisoned").push(event.clone());
    }
}

impl Recorder {
    /// Whether each index came from the cache, and how many caches were rejected; forgets it all.
    fn take(&self) -> (Vec<bool>, Vec<String>) {
        let mut ready = Vec::new();
        let mut rejected = Vec::new();
        for event in self.0.lock().expect("not poisoned").drain(..) {
            match event {
                BuildEvent::Ready { from_cache, .. } => ready.push(from_cache),
                BuildEvent::CacheRejected { reason, .. } => rejected.push(reason),
                _ => {}
            }
        }
        (ready, rejected)
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

pub(super) fn context(sizes: [usize; 3]) -> DatasetBuildContext {
    DatasetBuildContext {
        train_samples: sizes[0],
        valid_samples: sizes[1],
        test_samples: sizes[2],
        tokenizer: Some(Arc::new(FixtureTokenizer)),
        data_parallel: DataParallel::SINGLE,
        progress: Arc::new(Recorder::default()),
    }
}

pub(super) fn params(names: &[&str], weights: Option<Vec<f64>>, split: &str) -> GptDatasetParams {
    let blend = Blend { paths: names.iter().map(|name| fixture(name)).collect(), weights };
    GptDatasetParams {
        source: GptSource::Blend { blend, split: split.to_owned() },
        cache: IndexCache::Off,
        ..GptDatasetParams::mock(16, 1234)
    }
}

fn build(params: GptDatasetParams, sizes: [usize; 3]) -> Datasets {
    GptDatasetProvider::new(params).and_then(|provider| provider.build(&context(sizes))).expect("buildable")
}

fn build_error(params: GptDatasetParams, sizes: [usize; 3]) -> String {
    let built = GptDatasetProvider::new(params).and_then(|provider| provider.build(&context(sizes)));
    built.err().expect("an error").to_string()
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<GoldenCase>,
}

#[derive(Deserialize)]
struct GoldenCase {
    blend: (Vec<String>, Option<Vec<f64>>),
    split: String,
    seq_length: usize,
    sizes: [usize; 3],
    seed: i64,
    datasets: std::collections::BTreeMap<String, Option<GoldenSplit>>,
}

#[derive(Deserialize)]
struct GoldenSplit {
    len: usize,
    samples: Vec<Vec<i64>>,
}

#[test]
fn samples_are_megatrons() {
    let text = std::fs::read_to_string(fixture("samples.json")).expect("fixture");
    let golden: Golden = serde_json::from_str(&text).expect("fixture format");
    assert_eq!(golden.cases.len(), 6);
    for (case, access) in golden.cases.iter().zip([BinAccess::Mmap, BinAccess::Pread].into_iter().cycle()) {
        let names: Vec<&str> = case.blend.0.iter().map(String::as_str).collect();
        let params = GptDatasetParams {
            sequence_length: case.seq_length,
            random_seed: case.seed,
            bin_access: access,
            num_dataset_builder_threads: 2,
            ..params(&names, case.blend.1.clone(), &case.split)
        };
        let built = build(params, case.sizes);
        for (name, dataset) in [("train", built.train), ("valid", built.valid), ("test", built.test)] {
            match (&case.datasets[name], dataset) {
                (None, None) => {}
                (Some(expected), Some(dataset)) => {
                    assert_eq!(dataset.len(), expected.len, "{names:?} {name}");
                    for (i, tokens) in expected.samples.iter().enumerate() {
                        let sample = dataset.get(i).expect("in range");
                        let mut found = sample.tokens;
                        found.extend(sample.labels.last());
                        assert_eq!(found, *tokens, "{names:?} {name} sample {i}");
                    }
                }
                (expected, found) => {
                    panic!("{names:?} {name}: expected {}, found {}", expected.is_some(), found.is_some())
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct OptionCase {
    name: String,
    sizes: [Option<usize>; 3],
    datasets: std::collections::BTreeMap<String, Option<OptionSplit>>,
}

#[derive(Deserialize)]
struct OptionSplit {
    len: usize,
    index: Vec<usize>,
    samples: Vec<OptionSample>,
}

#[derive(Deserialize)]
struct OptionSample {
    tokens: Vec<i64>,
    labels: Vec<i64>,
    loss_mask: Vec<f32>,
    position_ids: Vec<i64>,
}

/// The parameters that the generator used for each case, as far as they differ from the default.
fn option_params(name: &str) -> GptDatasetParams {
    let blend = |names: &[&str], weights| Blend { paths: names.iter().map(|name| fixture(name)).collect(), weights };
    let base = |names| params(names, None, "80,15,5");
    let sample = SampleOptions::default();
    match name {
        "exhaustive" | "unweighted" => base(&["a", "b", "c"]),
        "single weighted" => params(&["a"], Some(vec![2.0]), "80,15,5"),
        "per split" => GptDatasetParams {
            source: GptSource::PerSplit(SplitBlends {
                train: Some(blend(&["a", "b"], Some(vec![1.0, 3.0]))),
                valid: Some(blend(&["c"], None)),
                test: Some(blend(&["b", "c"], None)),
            }),
            ..base(&["a"])
        },
        "keep partial" => GptDatasetParams {
            sample: SampleOptions { drop_last_partial_validation_sequence: false, ..sample },
            ..base(&["a"])
        },
        "no extra token" => {
            GptDatasetParams { sample: SampleOptions { add_extra_token_to_sequence: false, ..sample }, ..base(&["c"]) }
        }
        "resets" => GptDatasetParams {
            sample: SampleOptions {
                reset_position_ids: true,
                reset_attention_mask: true,
                eod_mask_loss: true,
                ..sample
            },
            ..base(&["c"])
        },
        "mock" => GptDatasetParams::mock(64, 1234),
        other => panic!("unknown case {other}"),
    }
}

/// The exhaustive case has no sizes; it is built by the internal entry that takes none.
fn build_option_case(case: &OptionCase) -> Datasets {
    match case.sizes {
        [Some(train), Some(valid), Some(test)] => build(option_params(&case.name), [train, valid, test]),
        _ => {
            let provider = GptDatasetProvider::new(option_params(&case.name)).expect("valid parameters");
            provider.build_sized(&context([0; 3]), [None; 3]).expect("buildable")
        }
    }
}

#[test]
fn options_blends_and_mock_data_are_megatrons() {
    let text = std::fs::read_to_string(fixture("cases.json")).expect("fixture");
    let cases: Vec<OptionCase> = serde_json::from_str(&text).expect("fixture format");
    assert_eq!(cases.len(), 8);
    for case in &cases {
        let built = build_option_case(case);
        for (name, dataset) in [("train", built.train), ("valid", built.valid), ("test", built.test)] {
            let expected = case.datasets[name].as_ref().expect("every split has a share");
            let dataset = dataset.expect("every split has a share");
            assert_eq!(dataset.len(), expected.len, "{} {name}", case.name);
            for (&i, wanted) in expected.index.iter().zip(&expected.samples) {
                let sample = dataset.get(i).expect("in range");
                let place = format!("{} {name} sample {i}", case.name);
                assert_eq!(sample.tokens, wanted.tokens, "{place}");
                assert_eq!(sample.labels, wanted.labels, "{place}");
                assert_eq!(sample.loss_mask, wanted.loss_mask, "{place}");
                assert_eq!(sample.position_ids, wanted.position_ids, "{place}");
                assert_eq!(sample.document_ids.is_some(), case.name == "resets", "{place}");
            }
        }
    }
}

const LENGTHS: [u32; 10] = [5, 7, 3, 9, 4, 6, 8, 2, 10, 6];

fn request(num_samples: Option<u64>, partial: PartialSample) -> IndexRequest<'static> {
    IndexRequest {
        path: "test",
        split: Split::Valid,
        lengths: &LENGTHS,
        first_sequence: 0,
        sequence_length: 8,
        extra: 1,
        num_samples,
        partial,
        seed: 1234,
    }
}

struct Arrays {
    document: Vec<i32>,
    sample: Vec<(usize, usize)>,
    shuffle: Vec<usize>,
}

fn arrays(request: &IndexRequest<'_>) -> Arrays {
    let indices = request.build(request.plan().expect("enough tokens")).expect("buildable");
    Arrays {
        document: indices.document.as_slice().to_vec(),
        sample: (0..indices.sample.len()).map(|i| indices.sample.pair(i)).collect(),
        shuffle: (0..indices.shuffle.len()).map(|i| indices.shuffle.at(i)).collect(),
    }
}

#[test]
fn vector_with_a_separate_last_epoch() {
    let arrays = arrays(&request(Some(16), PartialSample::Drop));
    assert_eq!(arrays.document[..20], [3, 3, 2, 6, 4, 5, 4, 0, 8, 8, 7, 1, 0, 9, 7, 1, 9, 2, 6, 5]);
    assert_eq!(arrays.document[20..], [8, 1, 7, 6, 9, 5, 4, 3, 0, 2]);
    let sample = [
        (0, 0),
        (0, 8),
        (1, 7),
        (3, 3),
        (4, 3),
        (6, 1),
        (8, 0),
        (8, 8),
        (9, 6),
        (11, 2),
        (12, 3),
        (14, 0),
        (15, 6),
        (17, 1),
        (18, 6),
        (20, 0),
        (20, 8),
        (21, 6),
        (23, 5),
        (24, 5),
        (26, 1),
        (27, 5),
        (28, 4),
    ];
    assert_eq!(arrays.sample, sample);
    let shuffle = [10, 5, 13, 6, 1, 4, 8, 2, 3, 12, 9, 0, 11, 7, 15, 14, 19, 21, 16, 18, 17, 20];
    assert_eq!(arrays.shuffle, shuffle);
}

#[test]
fn vector_with_epochs_shuffled_together() {
    let arrays = arrays(&request(Some(21), PartialSample::Drop));
    let document = [7, 0, 4, 1, 8, 8, 3, 3, 4, 3, 2, 4, 0, 2, 7, 6, 8, 5, 6, 5, 1, 9, 7, 9, 0, 2, 1, 6, 9, 5];
    assert_eq!(arrays.document, document);
    let shuffle = [9, 21, 6, 13, 16, 5, 8, 0, 4, 20, 14, 15, 7, 3, 18, 10, 17, 11, 1, 12, 19, 2];
    assert_eq!(arrays.shuffle, shuffle);
    assert_eq!(arrays.sample[20..], [(27, 0), (28, 0), (29, 2)]);
}

#[test]
fn vectors_of_one_epoch() {
    let dropped = arrays(&request(None, PartialSample::Drop));
    assert_eq!(dropped.document, [7, 2, 9, 1, 0, 8, 4, 5, 6, 3]);
    assert_eq!(dropped.sample, [(0, 0), (2, 3), (3, 5), (5, 1), (5, 9), (7, 3), (8, 5), (9, 5)]);
    assert_eq!(dropped.shuffle, [6, 4, 0, 5, 3, 2, 1]);
    let kept = arrays(&request(None, PartialSample::Keep));
    assert_eq!(kept.sample[7..], [(9, 5), (9, 8)]);
    assert_eq!(kept.shuffle, [7, 5, 6, 0, 4, 3, 2, 1]);
}

#[test]
fn mock_index_vector() {
    let params = GptDatasetParams::mock(1024, 1234);
    let provider = GptDatasetProvider::new(params).expect("valid parameters");
    let ctx = DatasetBuildContext { tokenizer: Some(Arc::new(NullTokenizer::new(511))), ..context([100, 1, 1]) };
    let train = provider.build(&ctx).expect("buildable").train.expect("has a share");
    assert_eq!(train.len(), 66592);
    let sample = train.get(0).expect("in range");
    assert!(sample.tokens.iter().all(|token| (0..512).contains(token)));
}

#[test]
fn descriptions_are_megatrons() {
    let spec_identity = |matrix: &SplitMatrix| {
        identity_of(&GptDatasetSpec {
            class: "GPTDataset",
            store: Arc::new(MockStore::new(10, 0)),
            split: Split::Train,
            matrix,
            num_samples: Some(500),
            sequence_length: 24,
            random_seed: 7,
            options: SampleOptions::default(),
            special: SpecialTokens::new(None, None, &SampleOptions::default()),
            tokenizer_identity: Some(serde_json::json!({ "class": "T" })),
            cache: &IndexCache::Off,
            observer: &Recorder::default(),
        })
        .dump()
    };
    let matrix = SplitMatrix::parse("70,20,10").expect("valid split");
    let expected = "{\n    \"class\": \"GPTDataset\",\n    \"dataset_path\": null,\n    \"num_samples\": 500,\n    \
                    \"index_split\": \"train\",\n    \"random_seed\": 7,\n    \"sequence_length\": 24,\n    \"split\": \
                    \"70,20,10\",\n    \"split_matrix\": [\n        [\n            0,\n            0.7\n        ],\n        \
                    [\n            0.7,\n            0.8999999999999999\n        ],\n        [\n            \
                    0.8999999999999999,\n            0.9999999999999999\n        ]\n    ],\n    \"tokenizer\": {\n        \
                    \"class\": \"T\"\n    }\n}";
    assert_eq!(spec_identity(&matrix), expected);
}

fn cached_params(folder: &Path) -> GptDatasetParams {
    GptDatasetParams {
        cache: IndexCache::Folder(folder.to_owned()),
        ..params(&["a", "b"], Some(vec![0.5, 0.5]), "70,20,10")
    }
}

fn all_samples(datasets: &Datasets) -> Vec<Sample> {
    let splits = [&datasets.train, &datasets.valid, &datasets.test];
    splits
        .into_iter()
        .flatten()
        .flat_map(|dataset| (0..dataset.len()).map(|i| dataset.get(i).expect("in range")))
        .collect()
}

/// The files of a cache folder with their content.
fn cache_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).expect("file"))).collect()
}

#[test]
fn caches_are_used_checked_and_repaired() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let recorder = Arc::new(Recorder::default());
    let ctx = DatasetBuildContext { progress: recorder.clone(), ..context([60, 8, 4]) };
    let provider = GptDatasetProvider::new(cached_params(folder.path())).expect("valid parameters");
    let build = || all_samples(&provider.build(&ctx).expect("buildable"));
    let fresh = build();
    assert_eq!(recorder.take(), (vec![false; 6], vec![]));
    let files = cache_files(folder.path());
    // Six datasets with three arrays, three blends with two, a description and a fingerprint each.
    assert_eq!(files.len(), 6 * 5 + 3 * 4);
    assert_eq!(build(), fresh);
    assert_eq!(recorder.take(), (vec![true; 6], vec![]));

    for (path, content) in files.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "npy")) {
        for damage in ["cut", "flip"] {
            let mut damaged = content.clone();
            match damage {
                "cut" => damaged.truncate(content.len() - 3),
                _ => damaged[content.len() - 4] ^= 1,
            }
            std::fs::write(path, damaged).expect("damaged");
            assert_eq!(build(), fresh, "{damage} {}", path.display());
            assert_eq!(recorder.take().1.len(), 1, "{damage} {}", path.display());
            assert_eq!(std::fs::read(path).expect("repaired"), *content);
        }
    }
}

#[test]
fn caches_without_a_fingerprint_are_checked_in_full() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let recorder = Arc::new(Recorder::default());
    let ctx = DatasetBuildContext { progress: recorder.clone(), ..context([60, 8, 4]) };
    let provider = GptDatasetProvider::new(cached_params(folder.path())).expect("valid parameters");
    let fresh = all_samples(&provider.build(&ctx).expect("buildable"));
    let strip = || {
        for (path, _) in cache_files(folder.path()) {
            if path.to_string_lossy().ends_with("fingerprint.json") {
                std::fs::remove_file(path).expect("removed");
            }
        }
    };
    strip();
    recorder.take();
    assert_eq!(all_samples(&provider.build(&ctx).expect("buildable")), fresh);
    assert_eq!(recorder.take(), (vec![true; 6], vec![]));
    for name in ["document_index.npy", "-sample_index.npy", "shuffle_index.npy"] {
        let files = cache_files(folder.path());
        let found = files.iter().find(|(path, _)| path.to_string_lossy().ends_with(name));
        let (path, content) = found.expect("cached");
        let mut damaged = content.clone();
        let last = damaged.len() - 2;
        damaged[last] ^= 0x40;
        std::fs::write(path, damaged).expect("damaged");
        assert_eq!(all_samples(&provider.build(&ctx).expect("buildable")), fresh);
        assert_eq!(recorder.take().1.len(), 1, "{name}");
        strip();
    }
}

#[test]
fn changed_data_is_not_served_from_the_cache() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("data");
    let write = |documents: &[&[i64]]| {
        let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).expect("created");
        for tokens in documents {
            builder.add_document(tokens, &[tokens.len()]).expect("added");
        }
        builder.finalize().expect("written");
    };
    let params = GptDatasetParams {
        sequence_length: 4,
        cache: IndexCache::Default,
        source: GptSource::Blend { blend: Blend { paths: vec![prefix.clone()], weights: None }, split: "1".into() },
        ..params(&["a"], None, "1")
    };
    let sorted_tokens = || {
        let samples = all_samples(&build(params.clone(), [3, 0, 0]));
        samples.iter().flat_map(|sample| sample.tokens.clone()).collect::<BTreeSet<i64>>()
    };
    write(&[&[1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13]]);
    sorted_tokens();
    assert!(prefix.join("cache/GPTDataset_indices").is_dir());
    // As many documents and tokens as before, other boundaries.
    write(&[&[21, 22, 23], &[24, 25, 26, 27, 28, 29, 30, 31, 32, 33]]);
    assert!(sorted_tokens().iter().all(|&token| token > 20));
}

#[test]
fn splits_that_are_too_small_are_named() {
    let error = build_error(params(&["a"], None, "998,1,1"), [10, 5, 5]);
    assert!(error.contains("valid split") && error.contains("0 tokens") && error.contains("17"), "{error}");
    let long = GptDatasetParams { sequence_length: 5000, ..params(&["a"], None, "100") };
    let error = build_error(long, [10, 0, 0]);
    assert!(error.contains("train split") && error.contains("5001"), "{error}");
    let error = build_error(params(&["a", "c"], Some(vec![1.0, 1.0]), "998,1,1"), [10, 5, 5]);
    assert!(error.contains("/a: the valid split"), "{error}");
}

#[test]
fn splits_nobody_reads_may_be_too_small() {
    let built = build(params(&["a"], None, "998,1,1"), [10, 0, 0]);
    assert!(built.train.is_some() && built.valid.is_none() && built.test.is_none());
    let built = build(params(&["a", "c"], None, "998,1,1"), [10, 0, 0]);
    assert!(built.train.is_some() && built.valid.is_none());
}

#[test]
fn unusable_parameters_are_errors() {
    let base = || params(&["a", "b"], Some(vec![1.0, 1.0]), "1,1,1");
    let blend = |weights: Vec<f64>| params(&["a", "b"], Some(weights), "1,1,1");
    let cases = [
        (GptDatasetParams { sequence_length: 0, ..base() }, "sequence_length"),
        (GptDatasetParams { random_seed: -1, ..base() }, "random_seed"),
        (GptDatasetParams { mid_level_dataset_surplus: -0.1, ..base() }, "surplus"),
        (GptDatasetParams { validation: ValidationSize::WholeSplit, ..base() }, "full_validation"),
        (blend(vec![1.0]), "2 paths but 1 weights"),
        (blend(vec![1.0, 0.0]), "/b in the blend is 0"),
        (params(&["a", "missing"], None, "1,1,1"), "missing.idx"),
        (params(&["a"], None, "x"), "split = \"x\""),
        (GptDatasetParams { source: GptSource::PerSplit(SplitBlends::default()), ..base() }, "blend_per_split"),
    ];
    for (params, text) in cases {
        let error = build_error(params, [10, 10, 10]);
        assert!(error.contains(text), "{text}: {error}");
    }
    let no_tokenizer = DatasetBuildContext { tokenizer: None, ..context([1, 1, 1]) };
    let mock = GptDatasetProvider::new(GptDatasetParams::mock(8, 1)).expect("valid parameters");
    assert!(matches!(mock.build(&no_tokenizer), Err(DataError::NoTokenizer(_))));
}

#[test]
fn a_blend_that_asks_for_too_much_says_so() {
    // Four documents of 5 tokens make 4 samples an epoch; the weights ask the second for nearly all.
    let params = GptDatasetParams { mid_level_dataset_surplus: 0.0, ..params(&["a", "b"], Some(vec![0.5, 0.5]), "1") };
    let built = build(params, [64, 0, 0]);
    assert_eq!(built.train.expect("has a share").len(), 64);
}

#[test]
fn samples_out_of_range_are_errors() {
    let dataset = build(params(&["a"], None, "1"), [10, 0, 0]).train.expect("has a share");
    let error = dataset.get(dataset.len()).expect_err("beyond the end").to_string();
    assert!(error.contains("train sample") && error.contains("out of range"), "{error}");
    let padding = dataset.padding().expect("one sample");
    assert!(padding.loss_mask.iter().all(|&mask| mask == 0.0));
}

#[test]
fn whole_validation_reads_everything_once() {
    let params = GptDatasetParams { validation: ValidationSize::WholeSplit, ..params(&["a"], None, "50,50") };
    let valid = build(params, [1, 1, 1]).valid.expect("has a share");
    let tokens: u32 = IndexedDataset::open(fixture("a"), BinAccess::Mmap).expect("fixture").lengths_in(28..57).sum();
    assert!((valid.len() as u32).abs_diff((tokens - 1) / 16) <= 1);
}

#[test]
fn a_partial_sample_ends_before_empty_documents() {
    let request = IndexRequest { lengths: &[4, 4, 0, 0], ..request(None, PartialSample::Keep) };
    for seed in 0..20 {
        let arrays = arrays(&IndexRequest { sequence_length: 3, seed, ..request });
        let (position, offset) = arrays.sample[arrays.sample.len() - 1];
        assert_eq!((request.lengths[arrays.document[position] as usize], offset), (4, 3));
    }
}

proptest! {
    /// In the order of the sample index, samples cover the token stream without a gap, overlapping by one token.
    #[test]
    fn samples_cover_the_token_stream(
        lengths in prop::collection::vec(0u32..40, 1..60),
        sequence_length in 1usize..50,
        num_samples in 0u64..80,
        extra in 0usize..2,
        keep in any::<bool>(),
    ) {
        let request = IndexRequest {
            path: "test",
            split: Split::Valid,
            lengths: &lengths,
            first_sequence: 100,
            sequence_length,
            extra,
            num_samples: (num_samples > 0).then_some(num_samples),
            partial: if keep { PartialSample::Keep } else { PartialSample::Drop },
            seed: 5,
        };
        let total: u64 = request.tokens_per_epoch();
        prop_assume!(total >= (sequence_length + extra) as u64);
        let plan = request.plan().expect("enough tokens");
        prop_assert!(plan.samples as u64 >= num_samples);
        let indices = request.build(plan).expect("buildable");
        let document = indices.document.as_slice();
        // Each sequence comes once an epoch.
        let mut counts = vec![0; lengths.len()];
        document.iter().for_each(|&id| counts[id as usize - 100] += 1);
        prop_assert!(counts.iter().all(|&count| count == plan.epochs));
        // Position of each boundary in the stream.
        let starts: Vec<usize> = document
            .iter()
            .scan(0, |at, &id| { let start = *at; *at += lengths[id as usize - 100] as usize; Some(start) })
            .collect();
        let at = |i: usize| { let (position, offset) = indices.sample.pair(i); starts[position] + offset };
        for i in 0..plan.samples {
            let last_partial = keep && i + 1 == plan.samples;
            let step = at(i + 1) - at(i);
            if last_partial {
                prop_assert!(step <= sequence_length);
                prop_assert_eq!(at(i + 1) + extra, plan.epochs * total as usize);
            } else {
                prop_assert_eq!(step, sequence_length);
            }
        }
        // The shuffle is a permutation.
        let mut order: Vec<usize> = (0..plan.samples).map(|i| indices.shuffle.at(i)).collect();
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..plan.samples));
    }
}
