//! Kinds of model that list the settings of `[model]` that they support.

use super::super::spec::Group;
use super::super::{
    ConfigErrors, Data, ErrorKind, FieldSpec, Format, Kind, Kinds, RunConfig, Section, TransformerConfig, World, diff,
    json_schema, load_text,
};

/// Settings that all kinds need, and no more.
const PLAIN: &str = r#"
name = "plain"
model = { kind = "latent", num_layers = 2, hidden_size = 8, seq_length = 16, vocab_size = 32 }
train = { micro_batch_size = 1, global_batch_size = 2, train_iters = 3 }
optimizer = { lr = 1e-2, min_lr = 1e-3 }
dataset = { kind = "mock" }
tokenizer = { tokenizer_type = "NullTokenizer", vocab_size = 31 }
"#;

/// `latent` has a setting that `gpt` refuses, one whole and one in part.
fn load(overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let mut kinds = Kinds::builtin();
    kinds.model.register("latent", Kind::supporting(["fp16_lm_cross_entropy", "position_embedding_type"]));
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    load_text(PLAIN, Format::Toml, &overrides, &kinds, &World::SINGLE)
}

#[test]
fn a_kind_lifts_the_refusals_of_what_it_lists() {
    let run =
        load(&["model.fp16_lm_cross_entropy=true", "model.position_embedding_type=mrope"]).expect("it lists them");
    assert_eq!(run.model.value("fp16_lm_cross_entropy"), Some(Data::Bool(true).into()));
    let gpt = load(&["model.kind=gpt", "model.num_attention_heads=2", "model.fp16_lm_cross_entropy=true"]);
    let errors = gpt.expect_err("gpt does not build it");
    let error = errors.iter().next().expect("an error");
    assert_eq!((error.key.as_str(), error.kind), ("model.fp16_lm_cross_entropy", ErrorKind::NotImplemented));
    assert!(error.message.contains("a loss in 16 bits"), "{error}");
}

#[test]
fn what_a_kind_does_not_list_is_refused_with_its_name_and_the_place() {
    for (setting, found, expected) in [
        ("window_size", "[8, 0]", "null"),
        ("num_attention_heads", "4", "0"),
        ("tensor_model_parallel_size", "2", "1"),
        ("moe_router_dtype", "\"fp32\"", "null"),
        ("fp4", "\"e2m1\"", "null"),
    ] {
        let errors = load(&[&format!("model.{setting}={found}")]).expect_err(setting);
        let error = errors.iter().next().expect("an error");
        assert_eq!(error.key, format!("model.{setting}"));
        assert_eq!(error.message, "model.kind = \"latent\" does not have this setting");
        assert_eq!((error.found.as_deref(), error.expected.as_deref()), (Some(found), Some(expected)), "{setting}");
        let place = error.location.as_ref().expect("a place").to_string();
        assert!(place.contains(setting), "{place}");
    }
}

#[test]
fn values_that_ask_for_nothing_and_settings_of_every_kind_are_accepted() {
    load(&["model.overlap_p2p_comm=true", "model.attention_backend=local"]).expect("they say what Bridge does");
    let run = load(&["mixed_precision=bf16_mixed", "model.recompute_granularity=full"]);
    assert!(!run.expect_err("a method is missing").names("model.recompute_granularity"));
    let of_every_kind = |field: &FieldSpec| field.groups.contains(&Group::EveryKind);
    let fields: Vec<_> = TransformerConfig::fields().into_iter().filter(of_every_kind).collect();
    assert_eq!(fields.len(), 32);
    for field in fields {
        assert!(field.refusal.as_ref().is_none_or(|refusal| !refusal.is_whole()), "{}", field.name);
    }
}

#[test]
fn what_is_saved_reads_back() {
    let mut kinds = Kinds::builtin();
    kinds.model.register("latent", Kind::supporting(["fp16_lm_cross_entropy"]));
    for overrides in [vec![], vec!["mixed_precision=bf16_mixed", "model.make_vocab_size_divisible_by=64"]] {
        let padded = [&overrides[..], &["model.vocab_size=null"]].concat();
        let run = load(&padded).expect("accepted");
        let back = load_text(&run.to_toml(), Format::Toml, &[], &kinds, &World::SINGLE).expect("accepted");
        assert!(diff(run.recipe(), back.recipe()).is_empty());
    }
}

#[test]
fn the_schema_says_what_a_kind_supports() {
    let mut kinds = Kinds::builtin();
    assert!(json_schema(&kinds)["properties"]["model"].get("x-settings-of-kinds").is_none());
    kinds.model.register("latent", Kind::supporting(["fp16_lm_cross_entropy"]));
    let schema = json_schema(&kinds);
    assert_eq!(schema["properties"]["model"]["x-settings-of-kinds"]["latent"][0], "fp16_lm_cross_entropy");
}
