//! The tokenizer example: ids and characters, settings derived from the tokenizer, and that a
//! recipe cannot have two of them.

#[path = "../examples/custom_tokenizer.rs"]
#[allow(dead_code, reason = "main is not called")]
mod custom_tokenizer;

use std::path::{Path, PathBuf};

use bridge_core::train::Console;
use bridge_data::tokenizer::Tokenizer;
use custom_tokenizer::{Characters, train};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn overrides(folder: &Path, more: &[&str]) -> Vec<String> {
    let log_dir = format!("logger.log_dir='{}'", folder.display());
    std::iter::once(log_dir).chain(more.iter().map(|text| (*text).to_owned())).collect()
}

#[test]
fn ids_and_characters_are_one_to_one() {
    let tokenizer = Characters("abcé".chars().collect());
    let ids = tokenizer.encode("cabé").unwrap();
    assert_eq!(ids, [2, 0, 1, 3]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "cabé");
    assert_eq!(tokenizer.id_to_bytes(3), Some("é".into()));
    assert_eq!(["b", "ab", ""].map(|token| tokenizer.token_to_id(token)), [Some(1), None, None]);
    assert!(tokenizer.encode("abcd").unwrap_err().to_string().contains("'d'"));
    assert!(tokenizer.decode(&[4]).is_err() && tokenizer.decode(&[-1]).is_err());
}

#[test]
fn model_checkpoint_and_figures_follow_from_it() {
    let folder = folder("custom_tokenizer");
    let save = format!("checkpoint.save='{}'", folder.join("saved").display());
    let overrides = overrides(&folder, &["train.train_iters=60", "generate.prompt='fn main'", &save]);
    let report = train(&overrides, Console::Silent).unwrap();
    let tokenizer = report.run.data().tokenizer().expect("the data has one");
    let vocab_size = tokenizer.vocab_size();
    assert!((60..128).contains(&vocab_size), "{vocab_size}");
    let validation = report.validation.unwrap();
    let loss = f64::from(validation.loss().unwrap());
    assert!(loss < 0.9 * (vocab_size as f64).ln(), "{loss}");
    // The source is ASCII: a token is a byte.
    let bits = validation.bits_per_byte.unwrap();
    assert!((bits - loss / std::f64::consts::LN_2).abs() < 1e-3, "{bits} {loss}");
    let assets = std::fs::read_dir(folder.join("saved/iter_0000060")).unwrap();
    let names: Vec<String> = assets.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.contains(&"characters.json".to_owned()), "{names:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |name: &str, more: &[&str]| {
        train(&overrides(&folder(name), more), Console::Silent).expect_err(name).to_string()
    };
    let error = refused("two", &["tokenizer.tokenizer_type=NullTokenizer", "tokenizer.vocab_size=9"]);
    assert!(error.contains("tokenizer.tokenizer_type") && error.contains("a tokenizer of its own"), "{error}");
    let error = refused("prompt", &["generate.prompt='\u{03bb}'"]);
    assert!(error.contains("cannot tokenize"), "{error}");
    let error = refused("small", &["model.vocab_size=9"]);
    assert!(error.contains("model.vocab_size"), "{error}");
    let error = refused("absent", &["dataset.file=nowhere/a.txt"]);
    assert!(error.contains("dataset.file: nowhere/a.txt"), "{error}");
    let error = refused("external", &["dataset.dataloader_type=external"]);
    assert!(error.contains("dataset.dataloader_type") && error.contains("no loader of its own"), "{error}");
}
