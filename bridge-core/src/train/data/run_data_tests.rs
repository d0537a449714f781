//! Loaders of data that depends on the order of fetches: a reopened loader yields the same data.

use bridge_data::Sample;

use super::*;
use crate::config::{Format, Kinds, World, load_text};

const TINY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/tests/fixtures/config/tiny.toml"));

/// Samples that say how many were fetched before.
#[derive(Default)]
struct Counting(Mutex<i64>);

impl Dataset for Counting {
    fn len(&self) -> usize {
        30
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let mut fetched = self.0.lock().unwrap();
        *fetched += 1;
        let tokens = vec![index as i64, *fetched];
        let labels = tokens.clone();
        let extras = BTreeMap::default();
        Ok(Sample { tokens, labels, loss_mask: vec![1.0; 2], position_ids: vec![0, 1], document_ids: None, extras })
    }

    fn fetch_order(&self) -> FetchOrder {
        FetchOrder::Matters
    }

    fn restart(&self) {
        *self.0.lock().unwrap() = 0;
    }
}

fn config(overrides: &[&str]) -> RunConfig {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World::SINGLE).expect("accepted")
}

fn tokens(loader: DataLoader, count: usize) -> Vec<Vec<i64>> {
    loader.take(count).map(|batch| batch.unwrap().tokens).collect()
}

const ALONE: DataParallel = DataParallel { rank: 0, size: 1 };

#[test]
fn a_step_that_runs_again_reads_the_same() {
    for workers in 0..2 {
        let config = config(&["train.micro_batch_size=2", &format!("dataset.num_workers={workers}")]);
        let dataset: Arc<dyn Dataset> = Arc::new(Counting::default());
        let open = |consumed| train_loader(&config, Arc::clone(&dataset), consumed, ALONE).unwrap();
        let all = tokens(open(0), 6);
        for step in [0, 3, 2, 3] {
            assert_eq!(tokens(open(2 * step as u64), 2), all[step..step + 2], "step {step}, {workers} workers");
        }
    }
}

#[test]
fn evaluations_of_a_whole_split_read_the_same() {
    let config = config(&["validation.full_validation=true"]);
    let dataset: Arc<dyn Dataset> = Arc::new(Counting::default());
    for split in [Split::Valid, Split::Test] {
        let evaluate = |consumed| {
            let params = evaluation_params(&config, split, dataset.len(), consumed, ALONE);
            tokens(loader(&config, Arc::clone(&dataset), params).unwrap(), usize::MAX)
        };
        let first = evaluate(0);
        assert!(!first.is_empty());
        assert_eq!(evaluate(30), first);
    }
}
