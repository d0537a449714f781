//! The dataset example: its samples, its recipe field, and that a model learns from it.

#[path = "../examples/custom_dataset.rs"]
#[allow(dead_code, reason = "main is not called")]
mod custom_dataset;

use std::path::Path;

use bridge_core::train::Console;
use bridge_data::Dataset;
use bridge_kernels::Philox;
use custom_dataset::{Sums, train};

fn sums() -> Sums {
    Sums { stream: Philox::new(1), num_samples: 50, seq_length: 40, max_operand: 99 }
}

fn overrides(folder: &str, more: &[&str]) -> Vec<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = std::fs::remove_dir_all(&folder);
    let log_dir = format!("logger.log_dir='{}'", folder.display());
    std::iter::once(log_dir).chain(more.iter().map(|text| (*text).to_owned())).collect()
}

#[test]
fn sums_are_right() {
    let sums = sums();
    let mut checked = 0;
    for index in 0..sums.len() {
        let text = sums.text(index);
        assert_eq!(text.len(), 41);
        // The last one may be cut off.
        for sum in text.rsplit(';').skip(1) {
            let (question, answer) = sum.split_once('=').unwrap();
            let (a, b) = question.split_once('+').unwrap();
            let number = |text: &str| text.parse::<u32>().unwrap();
            assert_eq!(number(a) + number(b), number(answer), "{text}");
            assert!(number(a) <= 99 && number(b) <= 99);
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked}");
    assert_eq!(sums.text(7), sums.text(7));
    assert_ne!(sums.text(7), sums.text(8));
}

#[test]
fn answers_and_nothing_else_count() {
    let (sums, index) = (sums(), 3);
    let (sample, text) = (sums.get(index).unwrap(), sums.text(index));
    assert_eq!(sample.tokens[1..], sample.labels[..39]);
    assert_eq!([sample.tokens.len(), sample.labels.len(), sample.loss_mask.len(), sample.position_ids.len()], [40; 4]);
    for (i, counted) in sample.loss_mask.iter().enumerate() {
        // The label is character i + 1: it belongs to an answer if `=` is nearer to its left than
        // `;`.
        let before = &text[..=i];
        let expected = before.rfind('=').is_some_and(|equals| before.rfind(';').is_none_or(|end| equals > end));
        assert_eq!(*counted == 1.0, expected, "{i} in {text}");
    }
    assert!(sums.get(50).is_err());
}

#[test]
fn a_model_learns_from_it() {
    let overrides = overrides("custom_dataset", &["train.train_iters=80", "dataset.max_operand=4"]);
    let report = train(&overrides, Console::Silent).unwrap();
    assert_eq!(report.train_state.step, 80);
    assert_eq!(report.train_state.consumed_train_samples, 80 * 16);
    // ln 16 = 2.77 for a guess among all tokens. Ends of answers alone, learned at once, halve it.
    let loss = report.validation.unwrap().loss().unwrap();
    assert!(loss < 1.4, "{loss}");
}

#[test]
fn its_field_is_checked() {
    let error = train(&overrides("wrong_type", &["dataset.max_operand=-1"]), Console::Silent).unwrap_err();
    assert!(error.to_string().contains("dataset.max_operand"), "{error}");
    let error = train(&overrides("too_large", &["dataset.max_operand=5000000000"]), Console::Silent).unwrap_err();
    assert!(error.to_string().contains("max_operand"), "{error}");
    let error = train(&overrides("misspelt", &["dataset.max_operant=9"]), Console::Silent).unwrap_err();
    assert!(error.to_string().contains("did you mean `max_operand`"), "{error}");
}
