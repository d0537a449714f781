//! Saving: every rank saves its own shards, and the first rank the state that exists once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::Tensor;
use serde_json::{Map, Value};

use super::states::saved_states;
use super::{host, local_shards};
use crate::checkpoint::{
    CARRIED_GROUP, CheckpointError, EVALUATED_WEIGHTS, LocalShard, RunFiles, ShardTensor, Snapshot, TensorGroup,
    TrainState, iteration_folder_name, parse_iteration,
};
use crate::optim::{AVERAGE, rules};
use crate::resilience::Section;
use crate::timers::TimerLevel;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;
use crate::train::resume::{lineage, vocabulary};
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::best_of;
use crate::train::subsystems::contract::saved;

/// Saves a checkpoint of the run as it is now; all ranks call this together. With `async_save` this
/// returns once the state is copied.
pub(in crate::train) fn save_checkpoint(run: &mut TrainingRun) -> Result<(), ResumeError> {
    let step = run.state.train_state.step;
    let snapshot = prepare(run)?;
    let timer = run.timers.start("save-checkpoint", TimerLevel::Iteration);
    // One save at a time; the outcome of the one before is reported first.
    run.outputs.await_save(&run.state, &run.groups)?;
    let (Some(saver), Some(root)) = (&mut run.outputs.saver, &run.state.config.checkpoint.save) else { return Ok(()) };
    let folder = root.join(iteration_folder_name(step));
    let (stage, report) = saver.save(snapshot)?;
    if report.is_some() {
        run.heartbeat.checkpoint_saved(step);
    }
    drop(timer);
    run.outputs.last_saved_step = Some(step);
    if agreement::is_rank_zero(&run.groups) {
        run.outputs.reporter.save(&run.state, stage, step, report.as_ref());
    }
    run.heartbeat.enter(Section::OutOfSection);
    let (subsystems, mut context) = run.subsystems();
    Ok(subsystems.after_save(&mut context, &folder)?)
}

/// Makes a temporary save of the current run; all ranks call this together. A failed write is
/// reported, and the run continues: the save before still exists.
pub(in crate::train) fn save_non_persistent(run: &mut TrainingRun) -> Result<(), ResumeError> {
    let step = run.state.train_state.step;
    let snapshot = prepare(run)?;
    let Some(temporary) = &run.outputs.non_persistent else { return Ok(()) };
    let timer = run.timers.start("save-checkpoint-non-persistent", TimerLevel::Iteration);
    let saved = temporary.save(&snapshot);
    drop(timer);
    run.heartbeat.enter(Section::OutOfSection);
    match saved {
        Ok(report) => {
            run.outputs.reporter.save_non_persistent(step);
            let copies = match temporary.peers().as_slice() {
                [] => String::new(),
                peers => format!(", with copies at ranks {peers:?}"),
            };
            let (place, size, seconds) = (temporary.told(), report.bytes as f64 / 1e6, report.seconds);
            run.note(&format!(
                "temporary save of iteration {step} in {place} ({size:.1} MB in {seconds:.2} s){copies}"
            ));
        }
        Err(CheckpointError::Comm(error)) => return Err(error.into()),
        Err(error) => run.outputs.reporter.warn(&format!("iteration {step} has no temporary save: {error}")),
    }
    Ok(())
}

/// State that this rank saves of the current run.
fn prepare(run: &mut TrainingRun) -> Result<Snapshot, ResumeError> {
    run.heartbeat.enter(Section::Checkpointing);
    run.training.wait_for_parameters()?;
    let mut state = Map::new();
    let (subsystems, mut context) = run.subsystems();
    subsystems.on_save(&mut context, &mut state)?;
    agreement::agree(&run.groups, "preparing a checkpoint", snapshot(run, state))
}

/// State that this rank saves. Among the ranks that hold the same slice of a parameter, one saves
/// it; each rank saves its ranges of sharded state.
fn snapshot(run: &TrainingRun, state: Map<String, Value>) -> Result<Snapshot, ResumeError> {
    let (distribution, shards) = (run.training.optimizer.distribution(), run.training.optimizer.shards());
    let mut model = Vec::new();
    let mut all_shards = BTreeMap::new();
    for chunk in &run.training.chunks {
        let local_shards = local_shards(chunk.as_ref());
        let mut failure = None;
        // Frozen parameters belong to the checkpoint of the base.
        let of_base: BTreeSet<&str> = match run.training.base {
            Some(_) => {
                chunk.parameters().iter().filter(|info| !info.trainable).map(|info| info.name.as_str()).collect()
            }
            None => BTreeSet::new(),
        };
        chunk.visit_wanted(&|name| !of_base.contains(name), &mut |name, value| {
            let shard = &local_shards[name];
            let owned = shards.get(name).zip(distribution.shard_range(name));
            let (saved, (held, range)) = match owned {
                Some((owned, range)) => (distribution.saved_state(name), (owned.clone(), range)),
                None => (distribution.saved_elements(name), (value, 0..shard.num_elements())),
            };
            if let Some(saved) = saved {
                match slices(name, shard, held, range, saved) {
                    Ok(slices) => model.extend(slices),
                    Err(error) => failure = Some(error),
                }
            }
        });
        failure.map_or(Ok(()), Err)?;
        all_shards.extend(local_shards);
    }
    let mut groups = vec![TensorGroup { name: "model".into(), tensors: model }];
    if run.state.config.checkpoint.save_optim {
        let state = run.training.optimizer.state();
        let parameters = run.training.optimizer.updated(&run.training.chunks);
        let tensors = saved_states(state, distribution, &all_shards, &parameters)?;
        groups.push(TensorGroup { name: "optimizer".into(), tensors });
    }
    let carried = &run.inputs.carried;
    // The checkpoint of an adapter's base has them already.
    if run.training.base.is_none() && run.state.config.checkpoint.save_tokenizer_assets && !carried.is_empty() {
        groups.push(TensorGroup { name: CARRIED_GROUP.into(), tensors: carried.clone() });
    }
    let run = if agreement::is_rank_zero(&run.groups) {
        run_files(run, state)?
    } else {
        step_only(run.state.train_state.step)
    };
    Ok(Snapshot { run, groups })
}

/// Slices of the whole tensor for the elements `saved` of this rank's part. `held` has the elements
/// `range` of that part.
fn slices(
    name: &str,
    shard: &LocalShard,
    held: Tensor<1>,
    range: Range<usize>,
    saved: Range<usize>,
) -> Result<Vec<ShardTensor>, CheckpointError> {
    let value = if saved == range { held } else { held.slice(saved.start - range.start..saved.end - range.start) };
    ShardTensor::of_local(name, shard, saved, &host(value)?)
}

/// Files of every rank but the first: none. The step identifies the checkpoint.
fn step_only(step: u64) -> RunFiles {
    RunFiles { train_state: TrainState { step, ..TrainState::default() }, ..RunFiles::default() }
}

/// Files that exist once in a run.
fn run_files(run: &TrainingRun, state: Map<String, Value>) -> Result<RunFiles, ResumeError> {
    let settings = &run.state.config.checkpoint;
    let mut train_state = run.state.train_state.clone();
    let extra = &mut train_state.extra;
    if settings.save_optim {
        extra.insert("optimizer_step".into(), run.training.optimizer.steps().into());
        let mut states = rules::find(run.state.config.optimizer.optimizer).states.iter();
        if states.any(|state| state.name == AVERAGE) {
            extra.insert(EVALUATED_WEIGHTS.into(), format!("optimizer.{AVERAGE}.").into());
        }
    }
    // These belong to the run: without them a resumed run would begin its schedule again.
    extra.insert("opt_param_scheduler".into(), saved(&run.training.scheduler.state())?);
    extra.insert("loss_scaler".into(), saved(&run.training.loss_scaler.state())?);
    if settings.save_rng {
        extra.insert("rng".into(), serde_json::json!({ "seed": run.training.seed }));
    }
    if let Some(base) = &run.training.base {
        base.put(extra);
    }
    let best = best_of(&state);
    lineage::put(&run.inputs.lineage, extra);
    vocabulary::put(&run.state.config, &run.inputs.data, run.inputs.padded_vocab_size, extra);
    extra.extend(state);
    let files = if settings.save_tokenizer_assets { run.inputs.tokenizer_files.clone() } else { BTreeMap::new() };
    let protected = run.subsystems.protected_checkpoint().filter(|folder| folder.parent() == settings.save.as_deref());
    let protected = protected.and_then(|folder| parse_iteration(folder.file_name()?.to_str()?));
    Ok(RunFiles { train_state, best, run_config: run.state.config.to_toml(), protected, files })
}
