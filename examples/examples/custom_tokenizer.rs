//! A dataset with its own tokenizer: the characters of a text, as kind `characters` with a recipe
//! field `file`. Without `file` the model learns the source of this program.
//!
//! ```text
//! cargo run --release --example custom_tokenizer
//! cargo run --release --example custom_tokenizer -- dataset.file=poems.txt train.train_iters=2000
//! ```
//!
//! The recipe has no `[tokenizer]` and no `model.vocab_size`: both follow from the data.
use std::path::Path;
use std::sync::Arc;

use bridge_core::config::{ExtraField, Format, TypeSpec, World, load_text};
use bridge_core::train::{Console, DatasetFactoryContext, RunOptions, RunReport, pretrain};
use bridge_data::tokenizer::{Tokenizer, TokenizerError};
use bridge_data::{DataError, Dataset, DatasetBuildContext, DatasetProvider, Datasets, Sample};
use bridge_models::registry;

const RECIPE: &str = r#"
name = "characters"
model = { num_layers = 2, hidden_size = 64, num_attention_heads = 4, seq_length = 64 }
train = { micro_batch_size = 16, global_batch_size = 16, train_iters = 400 }
validation = { eval_iters = 2 }
optimizer = { lr = 3e-3, min_lr = 3e-4 }
scheduler = { lr_warmup_iters = 10 }
dataset = { kind = "characters" }
logger = { log_interval = 50 }
"#;

/// The characters of a text in order; a character's position is its id.
pub struct Characters(pub Vec<char>);

impl Tokenizer for Characters {
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let unknown = |c| TokenizerError::Encode(format!("the text it was made from has no {c:?}"));
        text.chars().map(|c| Ok(self.0.binary_search(&c).map_err(|_| unknown(c))? as i64)).collect()
    }

    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError> {
        let unknown = |id| TokenizerError::UnknownId { id, vocab_size: self.0.len() };
        ids.iter().map(|id| self.0.get(*id as usize).ok_or(unknown(*id))).collect()
    }

    fn vocab_size(&self) -> usize {
        self.0.len()
    }

    fn eod(&self) -> Option<i64> {
        None
    }

    fn bos(&self) -> Option<i64> {
        None
    }

    fn pad(&self) -> Option<i64> {
        None
    }

    fn token_to_id(&self, token: &str) -> Option<i64> {
        self.encode(token).ok().filter(|ids| ids.len() == 1).map(|ids| ids[0])
    }

    fn id_to_bytes(&self, id: i64) -> Option<Vec<u8>> {
        self.decode(&[id]).ok().map(String::into_bytes)
    }

    fn unique_identifier(&self) -> serde_json::Value {
        serde_json::json!({ "class": "Characters", "characters": self.0 })
    }

    fn save_assets(&self, folder: &Path) -> Result<(), TokenizerError> {
        let path = folder.join("characters.json");
        let text = serde_json::json!(self.0).to_string();
        std::fs::write(&path, text).map_err(|source| TokenizerError::Io { action: "write", path, source })
    }
}

/// Provider and split in one: sample `i` begins at a position in the text that follows from `i`.
#[derive(Clone)]
struct Windows {
    tokenizer: Arc<Characters>,
    ids: Arc<Vec<i64>>,
    seq_length: usize,
    num_samples: usize,
}

impl DatasetProvider for Windows {
    fn build(&self, context: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let split = |num_samples| Some(Arc::new(Self { num_samples, ..self.clone() }) as Arc<dyn Dataset>);
        Ok(Datasets { train: split(context.train_samples), valid: split(context.valid_samples), ..Datasets::default() })
    }

    fn tokenizer(&self) -> Option<Arc<dyn Tokenizer>> {
        Some(self.tokenizer.clone())
    }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.num_samples
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        // Steps of a prime size visit all positions.
        let start = index * 7919 % (self.ids.len() - self.seq_length);
        let window = &self.ids[start..=start + self.seq_length];
        Ok(Sample {
            tokens: window[..self.seq_length].to_vec(),
            labels: window[1..].to_vec(),
            loss_mask: vec![1.0; self.seq_length],
            position_ids: (0..self.seq_length as i64).collect(),
            document_ids: None,
            extras: Default::default(),
        })
    }
}

fn factory(context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
    let seq_length = context.section.seq_length;
    let text = match context.section.extra.get("file").and_then(|file| file.as_str()) {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| DataError::Parameter(format!("dataset.file: {path}: {e}")))?
        }
        None => include_str!("custom_tokenizer.rs").to_owned(),
    };
    let tokenizer = Characters(text.chars().collect::<std::collections::BTreeSet<_>>().into_iter().collect());
    let ids = tokenizer.encode(&text).map_err(|error| DataError::Parameter(error.to_string()))?;
    if ids.len() <= seq_length {
        let message = format!("dataset.file: expected more than {seq_length} characters, found {}", ids.len());
        return Err(DataError::Parameter(message));
    }
    Ok(Box::new(Windows { tokenizer: Arc::new(tokenizer), ids: Arc::new(ids), seq_length, num_samples: 0 }))
}

/// Trains [`RECIPE`] with `key=value` overrides.
pub fn train(overrides: &[String], console: Console) -> anyhow::Result<RunReport> {
    let doc = "The text; this program's own source by default.".into();
    let field = ExtraField { name: "file".into(), spec: TypeSpec::String, default: None, doc };
    let mut registry = registry();
    registry.datasets.register("characters", [field], factory);
    let config = load_text(RECIPE, Format::Toml, overrides, &registry.kinds(), &World::SINGLE)?;
    Ok(pretrain(config, RunOptions { console, ..RunOptions::new(registry) })?)
}

fn main() -> anyhow::Result<()> {
    train(&std::env::args().skip(1).collect::<Vec<_>>(), Console::Human).map(drop)
}
