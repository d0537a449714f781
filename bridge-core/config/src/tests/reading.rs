//! Reading TOML, YAML and JSON: the same tree, and messages that say where.

use std::path::Path;

use super::super::{ErrorKind, Format, Kinds, Node, RawConfig, Section, World, load};
use super::{TINY, run_toml, tiny, tiny_raw};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config").join(name)
}

#[test]
fn toml_yaml_and_json_give_the_same_configuration() {
    let kinds = Kinds::builtin();
    let toml = load(&fixture("tiny.toml"), &[], &kinds, &World::SINGLE).expect("toml");
    let yaml = load(&fixture("tiny.yaml"), &[], &kinds, &World::SINGLE).expect("yaml");
    assert_eq!(toml, yaml);
    let json = serde_json::to_string(tiny_raw().recipe()).expect("serialises");
    let mut json = RawConfig::from_text(&json, Format::Json, &[], &kinds).expect("json");
    json.name = Some("tiny".into());
    assert_eq!(toml, json.finalize(&World::SINGLE).expect("finalizes"));
}

#[test]
fn a_recipe_is_named_after_its_file() {
    let run = load(&fixture("tiny.yaml"), &[], &Kinds::builtin(), &World::SINGLE).expect("loads");
    assert_eq!(run.name, "tiny");
    assert_eq!(run.logger.log_dir, Path::new("runs/tiny"));
}

#[test]
fn every_problem_is_reported_with_its_line() {
    let text = "\
[train]
micro_batch_size = 'two'
global_batch_sise = 4
train_iters = -5

[optimiser]
lr = 1.0

[model]
num_layers = 2
hidden_size = 0
activation_func = 'silo'
";
    let errors = run_toml(text, &["logger.log_interval=often"]).expect_err("broken");
    let found: Vec<_> = errors
        .iter()
        .map(|e| {
            let line = e.location.as_ref().and_then(|l| l.line);
            (e.key.as_str(), e.kind, line)
        })
        .collect();
    for expected in [
        ("train.micro_batch_size", ErrorKind::WrongType, Some(2)),
        ("train.global_batch_sise", ErrorKind::UnknownKey, Some(3)),
        ("train.train_iters", ErrorKind::OutOfRange, Some(4)),
        ("optimiser", ErrorKind::UnknownKey, Some(6)),
        ("model.hidden_size", ErrorKind::OutOfRange, Some(11)),
        ("model.activation_func", ErrorKind::WrongType, Some(12)),
        ("logger.log_interval", ErrorKind::WrongType, None),
        ("model.num_attention_heads", ErrorKind::Missing, Some(9)),
    ] {
        assert!(found.contains(&expected), "{expected:?} not in {found:#?}");
    }
    assert!(!errors.names("train.global_batch_size"), "the misspelt one is there");
}

#[test]
fn the_nearest_name_is_offered() {
    let errors = run_toml("[train]\nmicro_batch_sizes = 2\n[modle]\n", &[]).expect_err("broken");
    let nearest = |key: &str| {
        let error = errors.iter().find(|e| e.key == key).expect("reported");
        error.nearest.clone()
    };
    assert_eq!(nearest("train.micro_batch_sizes").as_deref(), Some("micro_batch_size"));
    assert_eq!(nearest("modle").as_deref(), Some("model"));
    let errors = tiny(&["model.kind=gtp", "model.activation_func=sillu"]).expect_err("broken");
    let nearest: Vec<_> = errors.iter().filter_map(|e| e.nearest.as_deref()).collect();
    assert_eq!(nearest, ["gpt", "silu"]);
}

#[test]
fn yaml_and_json_problems_have_lines_too() {
    let kinds = Kinds::builtin();
    let yaml = "train:\n  micro_batch_size: 2\n  global_batch_size: many\n  typo: 1\n";
    let errors = RawConfig::from_text(yaml, Format::Yaml, &[], &kinds).expect_err("broken");
    let lines: Vec<_> = errors.iter().map(|e| e.location.as_ref().and_then(|l| l.line)).collect();
    assert_eq!(lines, [Some(3), Some(4)]);
    let json = "{\n \"train\": {\n  \"micro_batch_size\": true,\n  \"typo\": 1\n }\n}";
    let errors = RawConfig::from_text(json, Format::Json, &[], &kinds).expect_err("broken");
    let lines: Vec<_> = errors.iter().map(|e| e.location.as_ref().and_then(|l| l.line)).collect();
    assert_eq!(lines, [Some(3), Some(4)]);
}

#[test]
fn broken_syntax_is_reported_with_its_line() {
    let kinds = Kinds::builtin();
    for (text, format, line) in [
        ("[train]\nmicro_batch_size = = 2\n", Format::Toml, 2),
        ("[train]\na = 1\na = 2\n", Format::Toml, 3),
        ("train:\n  a: [1, 2\nb: }\n", Format::Yaml, 3),
        ("{\n \"train\": {,}\n}", Format::Json, 2),
    ] {
        let errors = RawConfig::from_text(text, format, &[], &kinds).expect_err("broken");
        let error = errors.iter().next().expect("one");
        assert_eq!(error.kind, ErrorKind::Syntax, "{error}");
        let found = error.location.as_ref().and_then(|l| l.line);
        assert_eq!(found, Some(line), "{error}");
    }
}

#[test]
fn repeated_keys_are_an_error_in_every_format() {
    let kinds = Kinds::builtin();
    for (text, format) in [
        ("train:\n  train_iters: 1\n  train_iters: 2\n", Format::Yaml),
        ("{\"train\": {\"train_iters\": 1, \"train_iters\": 2}}", Format::Json),
        ("[dataset]\nseq_length = 1\nsequence_length = 1\n", Format::Toml),
    ] {
        let errors = RawConfig::from_text(text, format, &[], &kinds).expect_err("broken");
        assert_eq!(errors.iter().next().map(|e| e.kind), Some(ErrorKind::Conflict));
    }
}

#[test]
fn unreadable_files_are_errors() {
    let kinds = Kinds::builtin();
    for name in ["no-such.toml", "no-extension", "recipe.txt"] {
        let errors = RawConfig::from_file(Path::new(name), &[], &kinds).expect_err("unreadable");
        assert_eq!(errors.iter().next().map(|e| e.kind), Some(ErrorKind::Unreadable));
    }
}

#[test]
fn yaml_aliases_and_scalars_follow_the_core_schema() {
    let yaml = "\
train: &t
  micro_batch_size: 0x2
  global_batch_size: 4
  train_iters: 20
  exit_signal: 'SIGINT'
optimizer: {lr: 1e-3, weight_decay: .5, loss_scale: ~}
model: {hf_model_id: !!str 12, num_layers: 2}
";
    let raw = RawConfig::from_text(yaml, Format::Yaml, &[], &Kinds::builtin()).expect("reads");
    assert_eq!(raw.train.micro_batch_size, Some(2));
    assert_eq!(raw.optimizer.lr, Some(1e-3));
    assert_eq!(raw.optimizer.weight_decay, 0.5);
    assert_eq!(raw.model.value("hf_model_id"), Some(Node::string("12")));
}

#[test]
fn dotted_and_inline_tables_are_tables() {
    let text = "train.micro_batch_size = 2\noptimizer = {lr = 1e-3, adam_beta2 = 0.95}\n";
    let raw = RawConfig::from_text(text, Format::Toml, &[], &Kinds::builtin()).expect("reads");
    assert_eq!(raw.train.micro_batch_size, Some(2));
    assert_eq!(raw.optimizer.adam_beta2, 0.95);
}

#[test]
fn code_sets_fields_in_any_order_and_finalizes_repeatedly() {
    let mut raw = tiny_raw();
    let before = raw.clone();
    let first = raw.finalize(&World::SINGLE).expect("finalizes");
    let second = raw.finalize(&World::SINGLE).expect("finalizes again");
    assert_eq!(first, second);
    assert_eq!(raw, before, "nothing is written back");
    raw.train.train_iters = None;
    raw.train.train_samples = Some(80);
    for _ in 0..2 {
        let run = raw.finalize(&World::SINGLE).expect_err("iterations of warm-up, samples of training");
        assert!(run.names("scheduler.lr_warmup_iters"));
    }
    raw.scheduler.lr_warmup_iters = 0;
    raw.train.global_batch_size = Some(8);
    for _ in 0..2 {
        assert_eq!(raw.finalize(&World::SINGLE).expect("finalizes").train.train_iters, 10);
    }
}

#[test]
fn serde_reads_and_writes_raw_configurations_and_sections() {
    let raw = tiny_raw();
    let json = serde_json::to_string(&raw).expect("serialises");
    let back: RawConfig = serde_json::from_str(&json).expect("deserialises");
    assert_eq!(raw, back);
    let error = serde_json::from_str::<RawConfig>("{\"trian\": {}}").expect_err("unknown");
    assert!(error.to_string().contains("did you mean `train`?"), "{error}");
    assert!(TINY.contains("[train]"));
}
