//! Checking a recipe calls the registered kind's own check of its model.

use super::{ModelBuildError, ModelBuilder, ModelConfig, ModelRegistry};
use crate::config::{Format, Kind, Kinds, TransformerConfig, World, load_text};

const PLAIN: &str = r#"
name = "plain"
model = { kind = "pair", num_layers = 2, hidden_size = 8, seq_length = 16, vocab_size = 32 }
train = { micro_batch_size = 1, global_batch_size = 2, train_iters = 3 }
optimizer = { lr = 1e-2, min_lr = 1e-3 }
dataset = { kind = "mock" }
tokenizer = { tokenizer_type = "NullTokenizer", vocab_size = 31 }
"#;

/// A stack of `num_layers` layers and one of four, which cannot be nine wide.
#[derive(Debug)]
struct Pair(TransformerConfig);

impl ModelConfig for Pair {
    fn kind(&self) -> &str {
        "pair"
    }

    fn transformer(&self) -> &TransformerConfig {
        &self.0
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.0.num_layers, 4]
    }

    fn check(&self) -> Result<(), ModelBuildError> {
        let message = || "expected any size but 9".to_owned();
        let wrong = (self.0.hidden_size == 9)
            .then(|| ModelBuildError::Invalid { key: "model.hidden_size".into(), message: message() });
        wrong.map_or(Ok(()), Err)
    }

    fn builder(&self) -> Box<dyn ModelBuilder> {
        panic!("a recipe is checked without building anything")
    }
}

#[test]
fn a_kind_says_how_many_layers_its_stacks_have_and_what_it_cannot_build() {
    let mut models = ModelRegistry::default();
    models.register("pair", Kind::supporting(["pipeline_model_parallel_size"]), |section| {
        Ok(Box::new(Pair(TransformerConfig::clone(section))))
    });
    let kinds = Kinds { model: models.kinds().clone(), ..Kinds::builtin() };
    let load = |overrides: &[&str], size: usize| {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        load_text(PLAIN, Format::Toml, &overrides, &kinds, &World { size })
    };
    load(&["model.num_layers=3", "model.pipeline_model_parallel_size=7"], 7).expect("a stage for each of seven layers");
    let uneven = load(&["model.num_layers=3", "model.pipeline_model_parallel_size=3"], 3);
    assert!(uneven.expect_err("seven layers on three stages").names("model.pipeline_model_parallel_size"));
    let errors = load(&["model.hidden_size=9"], 1).expect_err("the kind refuses it");
    let error = errors.iter().next().expect("an error");
    assert_eq!((error.key.as_str(), error.message.as_str()), ("model.hidden_size", "expected any size but 9"));
    assert!(error.location.is_some());
}
