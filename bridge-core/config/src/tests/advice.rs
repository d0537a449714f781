//! Offers for names and values of other programs: the right setting, and never a refused one.

use std::collections::BTreeSet;

use super::super::advice::ALIASES;
use super::super::catalogue::{Row, SETTINGS, row};
use super::super::{ConfigErrors, ErrorKind, Kinds, Node, advice_for};
use super::{TINY, run_toml, tiny};

const WRONG: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/wrong_recipes.txt"));

fn is_refused(setting: &Row) -> bool {
    setting.refused(&Kinds::builtin(), &Node::null()).is_some()
}

/// Message besides the key and the place.
fn said(errors: &ConfigErrors) -> String {
    let of_error = |error: &super::super::ConfigError| {
        let value = error.to_json();
        format!("{} {} {}", value["hint"], value["expected"], value["message"])
    };
    errors.iter().map(of_error).collect::<Vec<_>>().join("\n").replace("\\\"", "\"")
}

#[test]
fn what_users_of_other_programs_write_is_answered_with_the_setting() {
    let mut missed = Vec::new();
    let cases: Vec<_> = WRONG.lines().filter(|line| !line.starts_with('#')).collect();
    for case in &cases {
        let parts: Vec<_> = case.split(" | ").collect();
        let [_, argument, names] = parts.as_slice() else { panic!("{case}: three parts") };
        match tiny(&[argument]) {
            Ok(_) => missed.push(format!("{case}: accepted")),
            Err(errors) => {
                let said = said(&errors);
                if !names.split(" or ").any(|name| said.contains(name)) {
                    missed.push(format!("{case}: {said}"));
                }
            }
        }
    }
    assert!(cases.len() >= 850, "{}", cases.len());
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), cases.len(), missed.join("\n"));
}

#[test]
fn a_switch_says_nothing_by_itself_and_a_section_that_is_written_wins() {
    for (argument, not_said) in [
        ("compile.enable=true", "straggler"),
        ("fault_tolerance.enable=true", "straggler"),
        ("flops_profiler.enabled=true", "straggler"),
        ("ft.enabled=true", "straggler"),
        ("fancy.enabled=true", "write `"),
        ("distillation.topk=64", "generate."),
        ("distillation.T=2.0", "top_k"),
        ("distillation.cache_dir=x", "dataset."),
        ("tensor_inspect.output_dir=x", "checkpoint."),
        ("stage=sft", "straggler"),
        ("peft.bias=none", "add_bias_linear"),
        ("peft.task_type=CAUSAL_LM", "lora_dtype"),
        ("finetuning_type=freeze", "peft.kind"),
        ("no_such_thing_at_all=true", "write `"),
        ("ffn_config.oddity=1", "fp8"),
        ("training_args.oddity=1", "did you mean"),
        ("chat_template=chatml", "= \"chatml\""),
        ("template=qwen", "= \"qwen\""),
        ("peft.target_modules=all-linear", "[\"all-linear\"]"),
        ("do_train=true", "write `"),
        ("fp16=false", "write `"),
        ("flash_attention=false", "write `"),
        ("disable_gradient_checkpointing=true", "full"),
        ("logger.wandb_project=true", "\"true\""),
        ("profiling.profiler_active=1", "profile_ranks"),
    ] {
        let errors = tiny(&[argument]).expect_err(argument);
        let key = argument.split_once('=').expect("an assignment").0;
        let is_of =
            |error: &&super::super::ConfigError| error.key == key || key.starts_with(&format!("{}.", error.key));
        let error = errors.iter().find(is_of).unwrap_or_else(|| panic!("{argument}: {errors}"));
        assert!(!error.to_string().replace(argument, "").contains(not_said), "{error}");
    }
    let errors = tiny(&["tensor_inspect.enable=true"]).expect_err("a misspelt switch");
    assert!(errors.to_string().contains("tensor_inspect.enabled"), "{errors}");
}

/// The dotted names in a sentence that begin with a section.
fn keys_in(text: &str) -> Vec<String> {
    let sections: BTreeSet<String> = SETTINGS.iter().map(|setting| setting.section().to_owned()).collect();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    let words = words.map(|word| word.trim_matches('.')).filter(|word| word.contains('.') && !word.ends_with(".json"));
    words.filter(|word| sections.contains(word.rsplit_once('.').unwrap().0)).map(str::to_owned).collect()
}

#[test]
fn nothing_that_is_refused_is_offered() {
    let setting = row;
    for row in ALIASES.names.iter().chain(&ALIASES.values) {
        let refused = |key: &str| is_refused(setting(key).unwrap_or_else(|| panic!("{key} of {}", row.of)));
        for (key, value) in row.targets() {
            assert!(!refused(key) || value.is_none(), "{key} of {}", row.of);
            // Other errors of the recipe do not matter here, only those of the name and the value.
            let Some(value) = value.filter(|_| key != "dataset.kind" || value != Some("sft")) else { continue };
            if let Err(errors) = tiny(&[&format!("{key}={value}")]) {
                let is_refused = |error: &super::super::ConfigError| {
                    let kinds = [ErrorKind::UnknownKey, ErrorKind::WrongType, ErrorKind::NotImplemented];
                    error.key == key && kinds.contains(&error.kind)
                };
                assert!(!errors.iter().any(is_refused), "{key}={value}: {errors}");
            }
        }
        for key in [&row.note, &row.off].into_iter().flat_map(|text| keys_in(text)) {
            assert!(!refused(&key), "{key} in the note of {}", row.of);
        }
    }
    for target in ALIASES.sections.values() {
        assert!(setting(target).is_some_and(|setting| !is_refused(setting)), "{target}");
    }
}

#[test]
fn a_name_is_in_the_table_once_and_is_no_setting() {
    let mut seen = BTreeSet::new();
    let keys: BTreeSet<String> = SETTINGS.iter().map(|setting| setting.key.clone()).collect();
    for name in ALIASES.names.iter().flat_map(|row| row.names()) {
        assert!(seen.insert(name), "{name} stands there twice");
        assert!(!keys.contains(name), "{name} is a setting");
        assert_eq!(name, name.to_lowercase(), "names are compared in lower case");
    }
    assert!(seen.len() > 2000, "{}", seen.len());
}

#[test]
fn every_refused_setting_is_answered_with_its_reason() {
    for setting in SETTINGS.iter().filter(|setting| is_refused(setting) && !setting.is_section) {
        if let Some(text) = advice_for(&setting.key, &Kinds::builtin()) {
            assert!(!text.contains(&format!("`{}`", setting.key)), "{}: {text}", setting.key);
        }
    }
}

#[test]
fn values_that_are_right_but_for_their_form_are_written_out() {
    for (argument, expected) in [
        ("train.train_iters='100'", "write `train.train_iters = 100`"),
        ("train.train_iters=1e2", "write `train.train_iters = 100`"),
        ("train.train_iters='2k'", "write `train.train_iters = 2000`"),
        ("optimizer.lr='3e-4'", "write `optimizer.lr = 0.0003`"),
        ("model.gated_linear_unit='on'", "write `model.gated_linear_unit = true`"),
        ("model.gated_linear_unit=1", "write `model.gated_linear_unit = true`"),
        ("checkpoint.save_interval=None", "write `checkpoint.save_interval = \"null\"`"),
        ("train.iterations_to_skip=3", "write `train.iterations_to_skip = [3]`"),
        ("optimizer=adamw", "`optimizer.optimizer = \"adam\"`"),
        ("model.activation_func=swiglu", "`model.gated_linear_unit = true`"),
        ("mixed_precision=bfloat16", "`mixed_precision = \"bf16_mixed\"`"),
        ("train.rampup_batch_size='16 16 1000'", "write `train.rampup_batch_size = [16, 16, 1000]`"),
        ("logger.logging_level=WARNING", "write `logger.logging_level = 30`"),
    ] {
        let errors = tiny(&[argument]).expect_err(argument);
        let hint = errors.iter().find_map(|error| error.hint.clone()).unwrap_or_default();
        assert!(hint.contains(expected), "{argument}: {errors}");
    }
}

#[test]
fn names_that_say_the_opposite_are_answered_with_the_opposite_value() {
    for (argument, expected) in [
        ("no-save-rng=true", "write `checkpoint.save_rng = false`"),
        ("disable_progress_bar=true", "write `logger.progress = \"none\"`"),
        ("megatron_lm_config.megatron_lm_no_load_optim=true", "write `checkpoint.load_optim = false`"),
        ("untie_embeddings_and_output_weights=true", "write `model.share_embeddings_and_output_weights = false`"),
        ("training_args.save_only_model=false", "write `checkpoint.save_optim = true`"),
    ] {
        let errors = tiny(&[argument]).expect_err(argument);
        let hint = errors.iter().find_map(|error| error.hint.clone()).unwrap_or_default();
        assert!(hint.contains(expected), "{argument}: {errors}");
    }
}

#[test]
fn a_part_of_a_name_is_enough_for_a_value() {
    for (argument, nearest) in [("train.exit_signal=USR1", "SIGUSR1"), ("scheduler.lr_decay_style=my_cosine", "cosine")]
    {
        let errors = tiny(&[argument]).expect_err(argument);
        assert!(errors.iter().any(|error| error.nearest.as_deref() == Some(nearest)), "{argument}: {errors}");
    }
}

#[test]
fn a_table_of_another_program_is_answered_name_by_name() {
    let recipe = format!("{TINY}\n[training_args]\nlearning_rate = 1e-3\nnum_train_epochs = 3\noddity = 1\n");
    let errors = run_toml(&recipe, &[]).expect_err("a table that is none");
    for (key, name) in [
        ("training_args.learning_rate", "`optimizer.lr = 0.001`"),
        ("training_args.num_train_epochs", "`train.num_epochs`"),
        ("training_args.oddity", ""),
    ] {
        let error = errors.iter().find(|error| error.key == key).unwrap_or_else(|| panic!("{key}: {errors}"));
        assert!(error.hint.clone().unwrap_or_default().contains(name), "{error}");
        assert!(error.location.as_ref().is_some_and(|at| at.line.is_some()), "{error}");
    }
}
