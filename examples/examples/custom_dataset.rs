//! A custom dataset: sums such as `12+7=19;`, generated on demand, as kind `arithmetic` with a
//! recipe field `max_operand`, for the built-in `gpt` model. Only the characters of an answer count
//! in the loss.
//!
//! ```text
//! cargo run --release --example custom_dataset
//! cargo run --release --example custom_dataset -- dataset.max_operand=9 train.train_iters=2000
//! ```
//!
//! A provider builds the splits of a run, and a factory makes the provider from the recipe's
//! `[dataset]` section. Both are registered, so that recipes may name the kind and runs can build
//! it.
use std::fmt::Write as _;
use std::sync::Arc;

use bridge_core::config::{ExtraField, Format, TypeSpec, World, load_text};
use bridge_core::train::{Console, DatasetFactoryContext, RunOptions, RunReport, pretrain};
use bridge_data::{DataError, Dataset, DatasetBuildContext, DatasetProvider, Datasets, Sample};
use bridge_kernels::Philox;
use bridge_models::registry;

/// The vocabulary; a character's position is its token id. `model.vocab_size` below has room for
/// it.
const ALPHABET: &str = "0123456789+=;";

const RECIPE: &str = r#"
name = "arithmetic"
model = { num_layers = 2, hidden_size = 64, num_attention_heads = 4, seq_length = 32, vocab_size = 16 }
train = { micro_batch_size = 16, global_batch_size = 16, train_iters = 500 }
validation = { eval_interval = 100, eval_iters = 4 }
optimizer = { lr = 3e-3, min_lr = 3e-4 }
scheduler = { lr_warmup_iters = 10 }
dataset = { kind = "arithmetic", max_operand = 20 }
logger = { log_interval = 50 }
"#;

/// Builds the splits. Each split has its own random stream.
struct Arithmetic {
    seed: u64,
    seq_length: usize,
    max_operand: u32,
}

impl DatasetProvider for Arithmetic {
    fn build(&self, context: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let split = |name: &str, num_samples: usize| -> Option<Arc<dyn Dataset>> {
            let stream = Philox::new(self.seed).derive_name(name);
            let Self { seq_length, max_operand, .. } = *self;
            (num_samples > 0).then(|| Arc::new(Sums { stream, num_samples, seq_length, max_operand }) as _)
        };
        Ok(Datasets {
            train: split("train", context.train_samples),
            valid: split("valid", context.valid_samples),
            test: split("test", context.test_samples),
            ..Datasets::default()
        })
    }
}

/// One split.
pub struct Sums {
    /// Seed of the operands.
    pub stream: Philox,
    /// Length of the split.
    pub num_samples: usize,
    /// Tokens of a sample.
    pub seq_length: usize,
    /// Largest operand.
    pub max_operand: u32,
}

impl Sums {
    /// Sums that fill `seq_length` + 1 characters, with the last one cut off. A function of `index`
    /// alone.
    pub fn text(&self, index: usize) -> String {
        let stream = self.stream.derive(index as u64);
        let mut text = String::new();
        for block in 0.. {
            let [a, b, ..] = stream.block(block).map(|word| u64::from(word) % (u64::from(self.max_operand) + 1));
            let _ = write!(text, "{a}+{b}={};", a + b);
            if text.len() > self.seq_length {
                break;
            }
        }
        text.truncate(self.seq_length + 1);
        text
    }
}

impl Dataset for Sums {
    fn len(&self) -> usize {
        self.num_samples
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        if index >= self.num_samples {
            return Err(DataError::OutOfRange { what: "arithmetic".into(), index, len: self.num_samples });
        }
        let text = self.text(index);
        let ids: Vec<i64> = text.chars().filter_map(|c| ALPHABET.find(c)).map(|id| id as i64).collect();
        // The characters after `=`, up to and including `;`, can be computed; all other characters
        // can only be guessed.
        let in_answer = text.chars().scan(false, |inside, c| {
            let counts = *inside;
            *inside = c == '=' || (*inside && c != ';');
            Some(if counts { 1.0 } else { 0.0 })
        });
        Ok(Sample {
            loss_mask: in_answer.skip(1).collect(),
            labels: ids[1..].to_vec(),
            tokens: ids[..self.seq_length].to_vec(),
            position_ids: (0..self.seq_length as i64).collect(),
            document_ids: None,
            extras: Default::default(),
        })
    }
}

/// The fields of this kind.
#[derive(serde::Deserialize)]
struct Fields {
    max_operand: u32,
}

fn factory(context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
    let section = context.section;
    let fields = section.extra.clone().try_into();
    let Fields { max_operand } = fields.map_err(|error| DataError::Parameter(format!("dataset: {error}")))?;
    Ok(Box::new(Arithmetic { seed: section.random_seed, seq_length: section.seq_length, max_operand }))
}

/// Trains [`RECIPE`] with `key=value` overrides.
pub fn train(overrides: &[String], console: Console) -> anyhow::Result<RunReport> {
    let doc = "Largest number that is added.".into();
    let field = ExtraField { name: "max_operand".into(), spec: TypeSpec::Count, default: Some(99_i64.into()), doc };
    let mut registry = registry();
    registry.datasets.register("arithmetic", [field], factory);
    let config = load_text(RECIPE, Format::Toml, overrides, &registry.kinds(), &World::SINGLE)?;
    Ok(pretrain(config, RunOptions { console, ..RunOptions::new(registry) })?)
}

fn main() -> anyhow::Result<()> {
    train(&std::env::args().skip(1).collect::<Vec<_>>(), Console::Human).map(drop)
}
