//! Settings that a recipe takes from the checkpoint that its run would start from.

use super::super::choice::TokenizerType;
use super::super::saved::{FindRecipe, FoundRecipe, SavedRecipe};
use super::{Format, Kinds, RawConfig, RunConfig, TINY, World};

/// The recipe of the checkpoint, over the tiny one.
const SAVED: [&str; 7] = [
    "model.num_layers=3",
    "model.ffn_hidden_size=null",
    "model.hidden_dropout=0.25",
    "model.bf16=true",
    "model.params_dtype=bfloat16",
    "model.tensor_model_parallel_size=2",
    "tokenizer.vocab_size=255",
];

fn owned(overrides: &[&str]) -> Vec<String> {
    overrides.iter().map(|text| (*text).to_owned()).collect()
}

/// Kinds that find this.
fn finding(found: FoundRecipe) -> Kinds {
    Kinds { saved: Some(FindRecipe::new(move |_| found.clone())), ..Kinds::builtin() }
}

fn saved(overrides: &[&str]) -> FoundRecipe {
    let recipe = RawConfig::from_text(TINY, Format::Toml, &owned(overrides), &Kinds::builtin()).unwrap();
    Ok(Some(SavedRecipe { text: recipe.to_toml(), path: "ckpt/iter_0000007".into(), tokenizer: None }))
}

/// The tiny recipe with overrides, before a checkpoint of the recipe `SAVED`.
fn taken(overrides: &[&str]) -> RawConfig {
    let all = [&["checkpoint.load=ckpt"], overrides].concat();
    let recipe = RawConfig::from_text(TINY, Format::Toml, &owned(&all), &finding(saved(&SAVED))).unwrap();
    recipe.with_checkpoint_args().unwrap()
}

fn finalized(overrides: &[&str], found: FoundRecipe) -> Result<RunConfig, super::ConfigErrors> {
    let recipe = RawConfig::from_text(TINY, Format::Toml, &owned(overrides), &finding(found)).unwrap();
    recipe.finalize(&World::SINGLE)
}

#[test]
fn a_recipe_takes_nothing_unless_it_asks() {
    let own = taken(&[]);
    assert_eq!((own.model.num_layers, own.model.tensor_model_parallel_size), (2, 1));
    assert_eq!(own.tokenizer.vocab_size, Some(511));
}

#[test]
fn the_architecture_is_that_of_the_checkpoint() {
    let with = taken(&["checkpoint.use_checkpoint_args=true"]);
    assert_eq!((with.model.num_layers, with.model.ffn_hidden_size), (3, None));
    // The recipe's training settings, precision and layout are kept.
    assert_eq!(with.model.hidden_dropout, 0.0);
    assert!(!with.model.bf16);
    assert_eq!(with.model.tensor_model_parallel_size, 1);
    assert_eq!(with.tokenizer.vocab_size, Some(255));
    // A taken setting is checked like one of the recipe.
    let config = finalized(&["checkpoint.load=ckpt", "checkpoint.use_checkpoint_args=true"], saved(&SAVED)).unwrap();
    assert_eq!(config.model.num_layers, 3);
    let said = config.warnings().join("\n");
    for part in ["iter_0000007", "model.num_layers = 2 (the checkpoint's is 3)", "tokenizer.vocab_size = 511"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("hidden_size = 64"), "what agrees is not said: {said}");
}

#[test]
fn settings_of_training_that_are_not_said_are_the_checkpoints() {
    let text = TINY.lines().filter(|line| !line.starts_with("hidden_dropout")).collect::<Vec<_>>().join("\n");
    assert_ne!(text, TINY.trim_end());
    let overrides = ["checkpoint.load=ckpt", "checkpoint.use_checkpoint_args=true"];
    let recipe = RawConfig::from_text(&text, Format::Toml, &owned(&overrides), &finding(saved(&SAVED))).unwrap();
    assert_eq!(recipe.with_checkpoint_args().unwrap().model.hidden_dropout, 0.25);
}

#[test]
fn changes_that_are_allowed_stay() {
    let settings = ["checkpoint.use_checkpoint_args=true", "checkpoint.allow_model_changes=['num_layers']"];
    assert_eq!(taken(&settings).model.num_layers, 2);
    assert_eq!(taken(&settings).model.ffn_hidden_size, None);
}

#[test]
fn a_length_of_samples_goes_with_the_datas() {
    let found = || saved(&["model.seq_length=96", "dataset.seq_length=null"]);
    let settings = ["checkpoint.load=ckpt", "checkpoint.use_checkpoint_args=true", "model.seq_length=null"];
    let config = finalized(&settings, found()).unwrap();
    assert_eq!((config.model.seq_length, config.dataset.seq_length), (96, 96));
    let errors = finalized(&[&settings[..], &["dataset.seq_length=48"]].concat(), found()).unwrap_err();
    assert!(errors.names("dataset.seq_length") && errors.to_string().contains("96"), "{errors}");
}

#[test]
fn the_tokenizer_is_taken_with_the_architecture_unless_it_is_not_wanted() {
    let own = "checkpoint.use_tokenizer_model_from_checkpoint_args=false";
    let with = taken(&["checkpoint.use_checkpoint_args=true", own]);
    assert_eq!((with.tokenizer.vocab_size, with.model.num_layers), (Some(511), 3));
    let run = finalized(&["checkpoint.load=ckpt", own], Ok(None)).unwrap();
    let errors = run.strict().unwrap_err();
    assert!(errors.names("checkpoint.use_tokenizer_model_from_checkpoint_args"), "{errors}");
    // Files that are gone, or not named, are those of the checkpoint.
    for named in [
        &["tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=gone"][..],
        &["tokenizer.tokenizer_type=null"],
    ] {
        let mut found = saved(&[named, &["tokenizer.vocab_size=null"]].concat()).unwrap().unwrap();
        found.tokenizer = Some("ckpt/iter_0000007".into());
        let overrides = ["checkpoint.load=ckpt", "checkpoint.use_checkpoint_args=true"];
        let recipe = RawConfig::from_text(TINY, Format::Toml, &owned(&overrides), &finding(Ok(Some(found)))).unwrap();
        let tokenizer = &recipe.with_checkpoint_args().unwrap().tokenizer;
        assert_eq!(tokenizer.tokenizer_model.as_deref(), Some("ckpt/iter_0000007".as_ref()));
        assert_eq!(tokenizer.tokenizer_type, Some(TokenizerType::HuggingFace));
        assert_eq!(tokenizer.vocab_size, None);
    }
}

#[test]
fn parallel_sizes_are_taken_alone() {
    let with = taken(&["checkpoint.use_mp_args_from_checkpoint_args=true"]);
    assert_eq!((with.model.tensor_model_parallel_size, with.model.num_layers), (2, 2));
    let world = World { size: 2 };
    let config = with.finalize(&world).unwrap();
    assert_eq!(config.parallel.tensor, 2);
    // A world that they do not fit names the checkpoint.
    let errors = with.finalize(&World { size: 3 }).unwrap_err().to_string();
    assert!(errors.contains("run_config.toml"), "{errors}");
    // Later changes are kept, because settings are taken only once.
    let mut with = with;
    with.model.tensor_model_parallel_size = 1;
    assert_eq!(with.finalize(&world).unwrap().parallel.tensor, 1);
    assert_eq!(with.for_one_rank().finalize(&World::SINGLE).unwrap().parallel.tensor, 1);
}

#[test]
fn a_checkpoint_that_is_not_there_or_cannot_be_read() {
    let asks = ["checkpoint.load=ckpt", "checkpoint.use_checkpoint_args=true"];
    let config = finalized(&asks, Ok(None)).unwrap();
    assert_eq!(config.model.num_layers, 2);
    let said = config.warnings().join("\n");
    assert!(said.contains("no checkpoint in ckpt"), "{said}");
    let errors = finalized(&asks, Err(("checkpoint.load", "it is torn".into()))).unwrap_err();
    assert!(errors.names("checkpoint.load") && errors.to_string().contains("it is torn"), "{errors}");
    let text = "[model]\nnum_layer = 3".into();
    let found = SavedRecipe { text, path: "ckpt/iter_0000007".into(), tokenizer: None };
    let errors = finalized(&asks, Ok(Some(found))).unwrap_err().to_string();
    assert!(errors.contains("iter_0000007") && errors.contains("num_layer"), "{errors}");
    // Kinds that cannot look.
    super::assert_refused(&asks, "checkpoint.use_checkpoint_args");
    // Nowhere to look.
    super::assert_refused(&["checkpoint.use_checkpoint_args=true"], "checkpoint.use_checkpoint_args");
    let sizes = "checkpoint.use_mp_args_from_checkpoint_args";
    super::assert_refused(&["checkpoint.use_mp_args_from_checkpoint_args=true"], sizes);
}
