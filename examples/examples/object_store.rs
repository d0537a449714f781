//! Checkpoints in an object store: each save is stored there too, and a run whose folder is lost
//! resumes from there.
//!
//! ```text
//! export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... AWS_REGION=eu-central-1
//! cargo run --release --example object_store -- s3://BUCKET/PREFIX
//! cargo run --release --example object_store -- gs://BUCKET/PREFIX train.train_iters=200
//! ```
//!
//! `AWS_ENDPOINT_URL=http://127.0.0.1:9000` is a server of one's own, such as MinIO's. Run it,
//! delete the folder `runs/object_store`, and run it again with more iterations: it fetches the
//! newest checkpoint and goes on.
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use bridge_core::checkpoint::CheckpointManager;
use bridge_core::config::{Format, World, load_text};
use bridge_core::train::{Console, RunOptions, RunReport, pretrain};
use bridge_models::registry;
use bridge_objects::{ObjectStoreManager, StoreSettings};

const RECIPE: &str = r#"
name = "object_store"
model = { num_layers = 2, hidden_size = 64, num_attention_heads = 4, seq_length = 64, vocab_size = 512 }
train = { micro_batch_size = 4, global_batch_size = 4, train_iters = 100 }
validation = { eval_iters = 0 }
optimizer = { lr = 1e-3, min_lr = 1e-4 }
scheduler = { lr_warmup_iters = 10 }
dataset = { kind = "mock" }
tokenizer = { tokenizer_type = "NullTokenizer", vocab_size = 511 }
checkpoint = { save = "runs/object_store/saved", save_interval = 20, most_recent_k = 3, custom_manager_class = "objects" }
logger = { log_interval = 20 }
"#;

/// Trains with checkpoints in a store. `managers` has the classes that a recipe may name in
/// `checkpoint.custom_manager_class`.
pub fn train(store: &StoreSettings, overrides: &[String], console: Console) -> Result<RunReport, Box<dyn Error>> {
    let manager = ObjectStoreManager::open(store).map_err(|error| error.to_string())?.on_transfer(|transfer| {
        if transfer.done == transfer.total {
            let way = if transfer.is_upload { "stored" } else { "fetched" };
            println!("{way} {} of iteration {}: {} bytes", transfer.file, transfer.iteration, transfer.total);
        }
    });
    let manager: Arc<dyn CheckpointManager> = Arc::new(manager);
    let managers = BTreeMap::from([("objects".to_owned(), manager)]);
    let config = load_text(RECIPE, Format::Toml, overrides, &registry().kinds(), &World::SINGLE)?;
    Ok(pretrain(config, RunOptions { managers, console, ..RunOptions::new(registry()) })?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, overrides @ ..] = &arguments[..] else {
        return Err("usage: object_store s3://BUCKET/PREFIX [SETTING=VALUE ...]".into());
    };
    train(&StoreSettings::new(url), overrides, Console::Human).map(drop)
}
