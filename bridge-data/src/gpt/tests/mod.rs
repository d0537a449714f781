//! Code that the tests of the GPT datasets share: a tokenizer, an observer, builders over the
//! fixtures.

mod cache;
mod index;
mod megatron;
mod refused;

use std::sync::Mutex;

use super::*;
use crate::dataset::{DataParallel, DatasetBuildContext, DatasetProvider, Datasets};
use crate::tokenizer::{Tokenizer, TokenizerError};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/megatron-data");

/// End of document 4999, padding 4998, as the fixtures' tokenizer.
pub(in crate::gpt) struct FixtureTokenizer;

impl Tokenizer for FixtureTokenizer {
    /// One character an id from U+4E00 on; an id divisible by 10 swallows one before it that ends
    /// in 1.
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let mut ids: Vec<i64> = Vec::new();
        for id in text.chars().map(|c| c as i64 - 0x4e00) {
            match ids.last_mut() {
                Some(last) if id % 10 == 0 && *last % 10 == 1 => *last = id,
                _ => ids.push(id),
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError> {
        let unknown = |id| TokenizerError::UnknownId { id, vocab_size: 5000 };
        let c = |&id: &i64| char::from_u32(0x4e00 + id as u32).ok_or(unknown(id));
        ids.iter().map(c).collect()
    }

    fn vocab_size(&self) -> usize {
        5000
    }

    fn eod(&self) -> Option<i64> {
        Some(4999)
    }

    fn bos(&self) -> Option<i64> {
        None
    }

    fn pad(&self) -> Option<i64> {
        Some(4998)
    }

    fn token_to_id(&self, token: &str) -> Option<i64> {
        token.parse().ok()
    }

    fn id_to_bytes(&self, _id: i64) -> Option<Vec<u8>> {
        None
    }

    fn unique_identifier(&self) -> serde_json::Value {
        serde_json::json!({ "class": "T" })
    }

    fn save_assets(&self, _folder: &Path) -> Result<(), TokenizerError> {
        Ok(())
    }
}

/// Records events.
#[derive(Default)]
struct Recorder(Mutex<Vec<BuildEvent>>);

impl BuildObserver for Recorder {
    fn on_event(&self, event: &BuildEvent) {
        self.0.lock().expect("not poisoned").push(event.clone());
    }
}

impl Recorder {
    /// For each index, true if it came from the cache; and the caches that were rejected. Clears
    /// the record.
    fn take(&self) -> (Vec<bool>, Vec<String>) {
        let mut ready = Vec::new();
        let mut rejected = Vec::new();
        for event in self.0.lock().expect("not poisoned").drain(..) {
            match event {
                BuildEvent::Ready { from_cache, .. } => ready.push(from_cache),
                BuildEvent::CacheRejected { reason, .. } => rejected.push(reason),
                _ => {}
            }
        }
        (ready, rejected)
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

pub(in crate::gpt) fn context(sizes: [usize; 3]) -> DatasetBuildContext {
    DatasetBuildContext {
        train_samples: sizes[0],
        valid_samples: sizes[1],
        test_samples: sizes[2],
        once: None,
        tokenizer: Some(Arc::new(FixtureTokenizer)),
        data_parallel: DataParallel::SINGLE,
        progress: Arc::new(Recorder::default()),
    }
}

pub(in crate::gpt) fn params(names: &[&str], weights: Option<Vec<f64>>, split: &str) -> GptDatasetParams {
    let blend = Blend { paths: names.iter().map(|name| fixture(name)).collect(), weights };
    GptDatasetParams {
        source: GptSource::Blend { blend, split: split.to_owned() },
        cache: IndexCache::Off,
        ..GptDatasetParams::mock(16, 1234)
    }
}

fn build(params: GptDatasetParams, sizes: [usize; 3]) -> Datasets {
    GptDatasetProvider::new(params).and_then(|provider| provider.build(&context(sizes))).expect("buildable")
}

fn build_error(params: GptDatasetParams, sizes: [usize; 3]) -> String {
    let built = GptDatasetProvider::new(params).and_then(|provider| provider.build(&context(sizes)));
    built.err().expect("an error").to_string()
}
