//! Saving: every rank what it alone has, the first one what exists once.

use std::collections::BTreeMap;
use std::ops::Range;

use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Tensor;
use serde_json::Value;

use super::rank_state::{self, RankState};
use super::{OPTIMIZER_PREFIX, host, layouts};
use crate::checkpoint::{
    AsyncSaver, CheckpointError, LocalLayout, RetentionPolicy, RunFiles, SaveOptions, SaveReport, ShardTensor,
    ShardedWriter, Snapshot, TensorGroup, TrainState, iteration_folder_name,
};
use crate::config::RunConfig;
use crate::logging::{SaveStage, TimerLevel};
use crate::resilience::Stall;
use crate::train::run::TrainingRun;
use crate::train::{TrainError, ranks, vocabulary};

/// Writes checkpoints with all ranks, on the training thread or behind its back.
#[derive(Debug)]
pub(in crate::train) enum Saver {
    /// `checkpoint.async_save = false`.
    Sync(ShardedWriter),
    /// `checkpoint.async_save = true`.
    Async(AsyncSaver<ShardedWriter>),
}

impl Saver {
    /// The saver a configuration asks for; `None` without `checkpoint.save`. All ranks call this together.
    pub(in crate::train) fn open(config: &RunConfig, groups: &ProcessGroups) -> Result<Option<Self>, TrainError> {
        let settings = &config.checkpoint;
        let Some(root) = &settings.save else {
            return Ok(None);
        };
        let retain = settings.save_retain_interval.map(|n| n as u64);
        let options = SaveOptions {
            retention: RetentionPolicy::new(settings.most_recent_k.unwrap_or(-1), retain)?,
            producer: concat!("bridge ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..SaveOptions::default()
        };
        // A group of its own: a save in the background communicates while training does.
        let world = groups.world();
        let group = world.split(Some(0), world.rank(), "checkpoint")?.unwrap_or_else(|| world.clone());
        let writer = ShardedWriter::open(root, options, group)?;
        Ok(Some(if settings.async_save { Self::Async(AsyncSaver::new(writer)?) } else { Self::Sync(writer) }))
    }

    fn save(&mut self, snapshot: Snapshot<'static>) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(writer) => writer.save(&snapshot).map(Some),
            Self::Async(saver) => saver.submit(snapshot),
        }
    }

    /// The report of a save that ended in the background since the last call.
    pub(in crate::train) fn poll(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.poll(),
        }
    }

    /// Waits for the save in the background.
    pub(in crate::train) fn finish(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.finish(),
        }
    }
}

/// Saves a checkpoint of the run as it is now; all ranks call this together. With `async_save` this returns once the state is copied.
pub(in crate::train) fn save_checkpoint(run: &mut TrainingRun) -> Result<(), TrainError> {
    let step = run.state.train_state.step;
    run.settle_parameters()?;
    let states = rank_state::gather(run)?;
    let snapshot = ranks::agree(&run.groups, "preparing a checkpoint", snapshot(run, states))?;
    let Some(saver) = &mut run.saver else {
        return Ok(());
    };
    let timer = run.timers.start("save-checkpoint", TimerLevel::Iteration);
    let report = saver.save(snapshot)?;
    // What comes back from the background is the report of another save.
    let (stage, report) = match saver {
        Saver::Sync(_) => (SaveStage::Saved, report),
        Saver::Async(_) => (SaveStage::Begun, None),
    };
    drop(timer);
    run.last_saved_step = Some(step);
    if let Some(root) = &run.config.checkpoint.save {
        run.stall.saved(root.join(iteration_folder_name(step)));
    }
    if ranks::is_first(&run.groups) {
        run.log_save(step, stage, report.as_ref());
        let root = run.config.checkpoint.save.clone().unwrap_or_default();
        run.for_each_callback(|callback, state| callback.on_save(state, &root));
    }
    Ok(())
}

/// What this rank saves. Of the ranks that hold the same slice of a parameter one saves it; of what is sharded each its ranges.
fn snapshot(run: &TrainingRun, states: Vec<RankState>) -> Result<Snapshot<'static>, TrainError> {
    let (distribution, shards) = (run.optimizer.distribution(), run.optimizer.shards());
    let mut model = Vec::new();
    let mut all_layouts = BTreeMap::new();
    for chunk in &run.chunks {
        let layouts = layouts(chunk.as_ref());
        let mut failure = None;
        chunk.visit_parameters(&mut |name, value| {
            let layout = &layouts[name];
            let owned = shards.get(name).zip(distribution.state_range(name));
            let (saved, held) = match owned {
                Some((owned, range)) => (distribution.saved_state(name), (owned.clone(), range)),
                None => (distribution.saved_elements(name), (value, 0..layout.num_elements())),
            };
            if let Some(saved) = saved {
                match slices(name, layout, held, saved) {
                    Ok(slices) => model.extend(slices),
                    Err(error) => failure = Some(error),
                }
            }
        });
        failure.map_or(Ok(()), Err)?;
        all_layouts.extend(layouts);
    }
    let mut groups = vec![TensorGroup { name: "model".into(), tensors: model }];
    if run.config.checkpoint.save_optim {
        let state = run.optimizer.state();
        let mut tensors = Vec::new();
        for (key, tensor) in state.tensors {
            let parameter = key.split_once('.').map_or("", |(_, parameter)| parameter);
            if let Some(saved) = distribution.saved_state(parameter) {
                let layout = &all_layouts[parameter];
                let range = state.ranges.get(&key).cloned().unwrap_or(0..layout.num_elements());
                tensors.extend(slices(&format!("{OPTIMIZER_PREFIX}{key}"), layout, (tensor, range), saved)?);
            }
        }
        groups.push(TensorGroup { name: "optimizer".into(), tensors });
    }
    let run =
        if ranks::is_first(&run.groups) { run_files(run, states)? } else { step_only(run.state.train_state.step) };
    Ok(Snapshot { run, groups })
}

/// The elements `saved` of a rank's part of a tensor, of which `held` are at hand, as slices of the whole.
fn slices(
    name: &str,
    layout: &LocalLayout,
    (held, range): (Tensor<1>, Range<usize>),
    saved: Range<usize>,
) -> Result<Vec<ShardTensor<'static>>, CheckpointError> {
    let value = if saved == range { held } else { held.slice(saved.start - range.start..saved.end - range.start) };
    ShardTensor::of_local(name, layout, saved, &host(value)?)
}

/// What every rank but the first saves besides tensors: nothing. The step says which checkpoint it is.
fn step_only(step: u64) -> RunFiles {
    RunFiles { train_state: TrainState { step, ..TrainState::default() }, ..RunFiles::default() }
}

/// What exists once in a run.
fn run_files(run: &TrainingRun, states: Vec<RankState>) -> Result<RunFiles, TrainError> {
    let settings = &run.config.checkpoint;
    let mut train_state = run.state.train_state.clone();
    let extra = &mut train_state.extra;
    if settings.save_optim {
        extra.insert("optimizer_step".into(), run.optimizer.steps().into());
    }
    // These belong to the run: without them a resumed run would begin its schedule again.
    extra.insert("opt_param_scheduler".into(), json(&run.scheduler.state())?);
    extra.insert("loss_scaler".into(), json(&run.loss_scaler.state())?);
    if settings.save_rng {
        extra.insert("rng".into(), serde_json::json!({ "seed": run.seed }));
    }
    rank_state::put(run, states, extra)?;
    vocabulary::put(&run.config, &run.data, run.padded_vocab_size, extra);
    if run.stall.is_standing_still() {
        extra.insert(Stall::NAME.into(), json(&run.stall)?);
    }
    let files = if settings.save_tokenizer_assets { run.tokenizer_files.clone() } else { BTreeMap::new() };
    Ok(RunFiles { train_state, run_config: run.config.to_toml(), files })
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<Value, TrainError> {
    serde_json::to_value(value).map_err(|error| TrainError::Internal(format!("state that cannot be saved: {error}")))
}
