//! `dataset.dataloader_type`: whole global batches, and data that loads itself; data that is too
//! short; shuffling.

use std::path::Path;

use bridge_core::config::{World, load};
use bridge_core::train::{Classified, Registry, RunOptions, TrainError, pretrain, rank_timeout, run_on_threads};
use bridge_data::{
    DataError, DatasetBuildContext, DatasetProvider, Datasets, LoaderRequest, MicroBatch, MicroBatches, Sample,
};
use bridge_models::registry;

use super::{config, options, token_files};
use bridge_tests::{assert_close, losses_of, recipe, records_in, run, run_in};

#[test]
fn whole_global_batches_are_dealt_out_to_ranks_and_resumed() {
    let batch = ["dataset.dataloader_type=batch", "train.micro_batch_size=2"];
    let losses = |ranks: &str| {
        let folder = tempfile::tempdir().unwrap();
        run_in(folder.path(), &[&batch[..], &["--ranks", ranks]].concat());
        losses_of(folder.path(), "train")
    };
    let whole = losses("1");
    assert_close(&losses("2"), &whole, "2 ranks");
    let folder = tempfile::tempdir().unwrap();
    let save = [&batch[..], &["checkpoint.save=saved"]].concat();
    run_in(folder.path(), &[&save[..], &["train.exit_interval=7"]].concat());
    run_in(folder.path(), &save);
    assert_eq!(losses_of(folder.path(), "train"), whole, "resumed");
}

/// Samples that are made up, micro-batch by micro-batch.
struct Stream {
    seq_length: usize,
}

impl Stream {
    fn sample(&self, index: u64) -> Sample {
        let tokens: Vec<i64> = (0..=self.seq_length as u64).map(|i| ((i * i + 31 * index) % 509) as i64).collect();
        Sample {
            labels: tokens[1..].to_vec(),
            loss_mask: vec![1.0; self.seq_length],
            position_ids: (0..self.seq_length as i64).collect(),
            tokens: tokens[..self.seq_length].to_vec(),
            document_ids: None,
            extras: Default::default(),
        }
    }
}

impl DatasetProvider for Stream {
    fn build(&self, _context: &DatasetBuildContext) -> Result<Datasets, DataError> {
        Ok(Datasets::default())
    }

    fn external_loader(
        &self,
        context: &DatasetBuildContext,
        request: LoaderRequest,
    ) -> Result<Option<MicroBatches>, DataError> {
        let (place, size) = (context.data_parallel, request.micro_batch_size as u64);
        let this = Self { ..*self };
        let first = request.consumed_samples + place.rank as u64 * size;
        let starts = (0..).map(move |batch| first + batch * size * place.size as u64);
        Ok(Some(Box::new(starts.map(move |start| MicroBatch::stack((start..start + size).map(|i| this.sample(i)))))))
    }
}

fn registry_with_streams() -> Registry {
    let mut registry = registry();
    registry.datasets.register("stream", [], |context| Ok(Box::new(Stream { seq_length: context.section.seq_length })));
    // Yields samples of another length than the recipe says.
    registry
        .datasets
        .register("short", [], |context| Ok(Box::new(Stream { seq_length: context.section.seq_length - 1 })));
    registry
}

/// Trains in `folder` on data that loads itself.
fn train_external(folder: &Path, ranks: usize, overrides: &[&str]) -> Result<(), TrainError> {
    let log_dir = format!("logger.log_dir={:?}", folder.join("logs"));
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let common =
        [&log_dir, &save, "train.global_batch_size=8", "train.num_threads=1", "dataset.dataloader_type=external"];
    let overrides: Vec<String> = common.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    let registry = registry_with_streams();
    let config = load(&recipe(), &overrides, &registry.kinds(), &World { size: ranks })?;
    let program = |groups| {
        let options = RunOptions { registry: registry.clone(), ..options(groups) };
        pretrain(config.clone(), options).map(drop)
    };
    run_on_threads(&config, rank_timeout(&config), program).map(drop)
}

#[test]
fn data_that_loads_itself_is_trained_on_and_resumed() {
    let losses = |folder: &Path| records_in(&folder.join("logs"), "train");
    let stream = "dataset.kind=stream";
    let whole = tempfile::tempdir().unwrap();
    train_external(whole.path(), 1, &[stream]).unwrap();
    let whole = losses(whole.path());
    assert_eq!(whole.len(), 20);
    let ranks = tempfile::tempdir().unwrap();
    train_external(ranks.path(), 2, &[stream]).unwrap();
    assert_close(&losses(ranks.path()), &whole, "2 ranks");
    let resumed = tempfile::tempdir().unwrap();
    train_external(resumed.path(), 1, &[stream, "train.exit_interval=9"]).unwrap();
    train_external(resumed.path(), 1, &[stream]).unwrap();
    assert_eq!(losses(resumed.path()), whole, "resumed");
}

#[test]
fn a_loader_must_be_there_and_yield_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let error = train_external(folder.path(), 1, &["dataset.kind=short"]).unwrap_err().to_string();
    assert!(
        error.contains("`short` yields 2 samples of 63 tokens, expected micro-batches of 2 samples of 64"),
        "{error}"
    );
    let error = train_external(folder.path(), 1, &["dataset.kind=mock"]).unwrap_err().to_string();
    assert!(error.contains("dataset.dataloader_type") && error.contains("sample by sample"), "{error}");
}

/// Blends without weights are read once, so a run can come to their end.
#[test]
fn data_that_is_too_short_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = ["a", "b"].map(|name| token_files(folder.path(), name));
    let refused = |ranks: usize, arguments: &[&str]| {
        let data = format!("dataset.data_path={prefixes:?}");
        let split = "dataset.split=80,10,10";
        let logs = format!("logger.log_dir={:?}", folder.path().join("refused"));
        let config = config(folder.path(), ranks, &[&[&data, "dataset.kind=gpt", split, &logs], arguments].concat());
        let program = |groups| pretrain(config.clone(), options(groups)).map(drop);
        let error = run_on_threads(&config, rank_timeout(&config), program).expect_err("it is too short");
        assert!(error.is_bad_input(), "{error}");
        assert!(!folder.path().join("refused").exists(), "{error}");
        error.to_string()
    };
    let no_evaluation = "validation.eval_iters=0";
    let text = refused(3, &["train.global_batch_size=6", "train.train_iters=60", no_evaluation]);
    assert!(text.contains("train.train_iters") && text.contains("are read once, and iteration"), "{text}");
    assert!(text.contains("of 60 needs 6"), "{text}");
    let grows = ["train.rampup_batch_size=[2, 2, 40]", "train.train_iters=60", no_evaluation];
    assert!(refused(1, &grows).contains("needs 8"));
    let text = refused(
        1,
        &["train.train_iters=2", "validation.eval_global_batch_size=32", "validation.eval_micro_batch_size=32"],
    );
    assert!(text.contains("the validation split is too short") && text.contains("one batch takes 32"), "{text}");
    let text = refused(1, &["train.train_iters=2", "validation.eval_iters=9"]);
    assert!(text.contains("the test split is too short") && text.contains("9 times"), "{text}");
}

/// Runs that end before their data does are not refused, nor are those that read it again.
#[test]
fn data_that_is_long_enough_is_not_refused() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = ["a", "b"].map(|name| token_files(folder.path(), name));
    let data = format!("dataset.data_path={prefixes:?}");
    let saved = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let data = [&data, "dataset.kind=gpt", "dataset.split=80,10,10", "validation.eval_iters=0"];
    let train = |arguments: &[&str]| {
        let config = config(folder.path(), 1, &[&data[..], arguments].concat());
        pretrain(config, options(bridge_dist::mesh::ProcessGroups::single())).map(|report| report.train_state.step)
    };
    assert_eq!(train(&["train.train_iters=60", "train.exit_interval=3"]).unwrap(), 3);
    assert_eq!(train(&["train.train_iters=12", "dataset.dataloader_type=cyclic"]).unwrap(), 12);
    // Samples consumed before the checkpoint count.
    assert_eq!(train(&["train.train_iters=5", &saved]).unwrap(), 5);
    let error = train(&["train.train_iters=12", &saved]).unwrap_err().to_string();
    assert!(error.contains("40 of them consumed before"), "{error}");
}

/// Shuffling a bucket for each rank gives other batches than shuffling all samples together.
#[test]
fn sharding_of_shuffled_data_is_seen() {
    let train = |arguments: &[&str]| run(&[&["--ranks", "2", "train.train_iters=3"], arguments].concat());
    let (together, buckets) = ("dataset.data_sharding=false", "dataset.data_sharding=true");
    let cyclic = "dataset.dataloader_type=cyclic";
    assert_ne!(train(&[cyclic, together])[..3], train(&[cyclic, buckets])[..3]);
    // Validation is shuffled independently of training.
    let (together, buckets) = (train(&[together]), train(&[buckets]));
    assert_eq!(together[..3], buckets[..3]);
    assert_ne!(together[3], buckets[3]);
}
