//! Runs of `recipes/tiny.toml` on many ranks: losses, loaders, steps, texts, ends, failures. Shared
//! code is here and in the library of this package.

mod adapters;
mod attention_scores;
mod custom_loss;
mod device_memory;
mod distillation;
mod dpo;
mod elsewhere;
mod ends;
mod extras;
mod failures;
mod figures;
mod findings;
mod freezing;
mod gradients;
mod last_layer;
mod loaders;
mod logs;
mod losses;
mod managers;
mod objectives;
mod peft;
#[cfg(feature = "mpi")]
mod processes;
mod quantized;
mod reruns;
mod resumes;
mod routers;
mod steps;
mod stragglers;
mod strictness;
mod subsystems;
mod texts;
mod times;
mod vocabulary;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bridge_core::config::{RunConfig, World, load};
use bridge_core::train::{Console, RunOptions};
use bridge_data::indexed::{IndexedDatasetBuilder, TokenDtype};
use bridge_dist::mesh::ProcessGroups;
use bridge_models::registry;
use bridge_tests::recipe;

/// The tiny recipe for `ranks` ranks, with logs and checkpoints in `folder`.
fn config(folder: &Path, ranks: usize, overrides: &[&str]) -> RunConfig {
    let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
    let common = [log_dir.as_str(), "train.num_threads=1", "train.global_batch_size=8", "train.micro_batch_size=1"];
    let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    load(&recipe(), &overrides, &registry().kinds(), &World { size: ranks }).expect("the recipe is right")
}

/// Options of one rank.
fn options(groups: ProcessGroups) -> RunOptions {
    RunOptions { groups, console: Console::Silent, ..RunOptions::new(registry()) }
}

/// Console lines of a run.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A `.bin`/`.idx` pair of forty documents; returns its prefix.
fn token_files(folder: &Path, name: &str) -> PathBuf {
    let prefix = folder.join(name);
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).unwrap();
    for document in 0..40_i64 {
        let tokens: Vec<i64> = (0..70 + document).map(|i| (i * i + 13 * document) % 509).collect();
        builder.add_item(&tokens).unwrap();
        builder.end_document();
    }
    builder.finalize().unwrap();
    prefix
}
