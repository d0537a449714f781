//! Damaged and random recipes: never a panic, and every problem names something.

use proptest::prelude::*;

use super::super::{ErrorKind, Format, Kinds, World, load_text};
use super::{TEXT, TINY};

const FORMATS: [Format; 3] = [Format::Toml, Format::Yaml, Format::Json];

/// Loads text that may be anything; problems must have a key, a location or a message.
fn survive(text: &str, format: Format, overrides: &[String]) {
    let result = load_text(text, format, overrides, &Kinds::builtin(), &World::SINGLE);
    if let Err(errors) = result {
        assert!(!errors.is_empty());
        for error in &errors {
            let has_place = !error.key.is_empty() || error.location.is_some();
            assert!(has_place && !error.message.is_empty(), "{error:?}");
        }
        assert!(!errors.to_string().is_empty());
    }
}

#[test]
fn hostile_inputs_are_survived() {
    let deep = 20_000;
    let inputs = [
        String::new(),
        "\u{feff}".into(),
        "\0\0\0".into(),
        "[".repeat(deep),
        "{".repeat(deep),
        format!("a = {}", "[".repeat(deep)),
        format!("a = {}{}", "[".repeat(deep), "]".repeat(deep)),
        format!("a{} = 1", ".a".repeat(deep)),
        format!("[{}a]", "a.".repeat(deep)),
        "- ".repeat(deep),
        "a: &a [*a]".into(),
        "a: &a [1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n".into(),
        "{\"a\": ".repeat(deep),
        format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100)),
        "[train]\ntrain_iters = 0x8000000000000000".into(),
        "[train]\ntrain_iters = 1979-05-27T07:32:00Z".into(),
        "[[train]]\n[[train]]\n".into(),
        "train = 5".into(),
        "null".into(),
        "--- a\n--- b\n".into(),
        "? [a, b]\n: c\n".into(),
    ];
    for input in &inputs {
        for format in FORMATS {
            survive(input, format, &[]);
        }
    }
}

fn mutate(text: &str, at: usize, with: &str, drop: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = at % (characters.len() + 1);
    let end = (at + drop).min(characters.len());
    let before: String = characters[..at].iter().collect();
    let after: String = characters[end..].iter().collect();
    before + with + &after
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_recipes_never_panic(
        at in 0_usize..2000,
        drop in 0_usize..12,
        with in prop::sample::select(vec!["", "-", "0", "nan", "1e999", "\"", "[", "]", "{", "}", "=", "\n", "#", "'", "99999999999999999999", "true", "null", "\u{0}", "é", ".", "inf", "[a]", " "]),
        is_text in any::<bool>(),
    ) {
        let text = if is_text { TEXT } else { TINY };
        survive(&mutate(text, at, with, drop), Format::Toml, &[]);
        let raw = super::tiny_raw();
        for format in [Format::Yaml, Format::Json] {
            let text = raw.recipe().to_text(format, super::super::Detail::NonDefault);
            survive(&mutate(&text, at, with, drop), format, &[]);
        }
    }

    #[test]
    fn random_text_never_panics(text in "\\PC{0,80}", argument in "\\PC{0,40}") {
        for format in FORMATS {
            survive(&text, format, std::slice::from_ref(&argument));
        }
    }

    #[test]
    fn random_values_anywhere_never_panic(
        key in prop::sample::select(vec!["model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.num_query_groups", "model.kv_channels", "model.seq_length", "model.vocab_size", "train.micro_batch_size", "train.global_batch_size", "train.train_iters", "validation.eval_interval", "validation.eval_iters", "model.window_attn_skip_freq", "model.no_rope_freq", "scheduler.lr_warmup_iters", "scheduler.lr_decay_iters"]),
        value in prop_oneof![Just(0_i64), Just(1), Just(i64::MAX), Just(i64::MIN), 1_i64..100, any::<i64>()],
    ) {
        let argument = format!("{key}={value}");
        let result = super::tiny(&[&argument]);
        if value < 0 {
            prop_assert!(result.expect_err("negative").names(key));
        } else if let Err(errors) = result {
            prop_assert!(errors.iter().all(|e| e.kind != ErrorKind::Syntax));
        }
    }
}
