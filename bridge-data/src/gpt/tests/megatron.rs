//! The sample order against Megatron's own: `samples.json` (made by Megatron-LM, one seed),
//! `cases.json` (blends, options and mock data, likewise), and descriptions of caches.

use serde::Deserialize;

use super::*;
use crate::indexed::BinAccess;
use crate::tokenizer::NullTokenizer;

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

/// Parameters that the generator used for each case, where they differ from the default.
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

/// The exhaustive case has no sizes, and is built by the internal function without sizes.
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
