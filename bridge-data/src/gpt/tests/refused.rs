//! Datasets that cannot be built or read, and splits that are read whole.

use super::*;
use crate::indexed::{BinAccess, IndexedDataset};

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
fn an_index_that_memory_cannot_hold_is_refused_before_any_of_it_is_made() {
    let single = GptDatasetParams { sequence_length: 1, ..params(&["a"], None, "1") };
    let error = build_error(single, [1 << 41, 0, 0]);
    assert!(error.contains("the train split: an index of ") && error.contains("more than memory can hold"), "{error}");
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
    // Four documents of 5 tokens make 4 samples an epoch; the weights ask the second for nearly
    // all.
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
