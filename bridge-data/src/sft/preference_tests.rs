//! Preferences: lines to samples whose tokens are those of two answers in turn.

use serde_json::json;

use super::tests::{built, lines, params, tokenizer};
use super::{ExampleOptions, RecordKind, SftParams};

fn preferences(root: &std::path::Path) -> SftParams {
    let params = params(root);
    SftParams {
        example: ExampleOptions { kind: RecordKind::Preference, ..params.example.clone() },
        splits: [true, false, false],
        pad_multiple: 1,
        ..params
    }
}

#[test]
fn answers_stand_in_turn_and_are_filled_up_behind_their_ends() {
    let folder = tempfile::tempdir().unwrap();
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let records = [
        json!({ "prompt": "ab", "chosen": "xyz", "rejected": "q" }),
        json!({
            "prompt": [said("user", "ab"), said("assistant", "c"), said("user", "d")],
            "chosen": [said("assistant", "e")],
            "rejected": [said("assistant", "fgh")],
        }),
    ];
    lines(folder.path(), "training.jsonl", &records);
    let train = built(preferences(folder.path()), 2).unwrap().train.unwrap();
    let tokenizer = tokenizer();
    let (eod, ids) = (tokenizer.eod().unwrap(), |text: &str| tokenizer.encode(text).unwrap());
    let mut samples: Vec<_> = (0..train.len()).map(|index| train.get(index).unwrap()).collect();
    // The order is drawn; the text begins with the letter.
    samples.sort_by_key(|sample| sample.tokens[0] != ids("a")[0]);
    let row = |sample: &crate::Sample, answer: usize| -> (Vec<i64>, Vec<i64>, Vec<f32>) {
        let each = |values: &[i64]| values.iter().skip(answer).step_by(2).copied().collect();
        (each(&sample.tokens), each(&sample.labels), sample.loss_mask.iter().skip(answer).step_by(2).copied().collect())
    };
    let expected = |text: &str, answer: usize, length: usize| {
        let mut ids = [ids(text), vec![eod]].concat();
        let mut mask: Vec<f32> = (1..ids.len()).map(|at| f32::from(u8::from(at + answer + 1 >= ids.len()))).collect();
        let labels = [ids[1..].to_vec(), vec![eod; length + 1 - ids.len()]].concat();
        ids.pop();
        ids.resize(length, eod);
        mask.resize(length, 0.0);
        (ids, labels, mask)
    };
    assert_eq!(samples.len(), 2);
    assert_eq!(row(&samples[0], 0), expected("abxyz", 3, 5));
    assert_eq!(row(&samples[0], 1), expected("abq", 1, 5));
    // Only the last answer of a conversation counts, not earlier turns.
    let masks = [0, 1].map(|answer| row(&samples[1], answer).2.iter().filter(|weight| **weight > 0.0).count());
    assert_eq!(masks, [1, 3]);
    assert_eq!(samples[1].tokens[..2], [ids("<u>")[0]; 2]);
}

#[test]
fn lines_that_are_no_preferences_are_told() {
    let refused = |record: serde_json::Value, expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let good = json!({ "prompt": "a", "chosen": "b", "rejected": "c" });
        lines(folder.path(), "training.jsonl", &[good, record]);
        let error = built(preferences(folder.path()), 2).err().expect("an error").to_string();
        assert!(error.contains("line 2") && error.contains(expected), "{error}");
    };
    refused(json!({ "prompt": "a", "chosen": "b" }), "`prompt`, `chosen` and `rejected`");
    refused(json!({ "prompt": "a", "chosen": "b", "rejected": [] }), "all text or all lists of messages");
    refused(json!({ "prompt": "a", "chosen": "b", "rejected": "c".repeat(80) }), "more than 64 tokens");
}
