//! Loading: each rank reads its shards of the checkpoint that the run starts from, which may have
//! any layout.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use bridge_dist::comm::ReduceOp;
use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::optim::Stored;
use burn::tensor::{FloatDType, Tensor};
use serde_json::{Map, Value};

use super::other_schedule::{in_words_of_recipes, iteration_samples};
use super::sources::Sources;
use super::start::Start;
use super::states::{kind_of, load_stored};
use super::strictness::Strictness;
use super::{OPTIMIZER_PREFIX, device_tensor, local_shards};
use crate::checkpoint::{Checkpoint, CheckpointError, DType, LocalShard, TrainState};
use crate::config::RunConfig;
use crate::model::{Adapter, Declaration, ModelChunk, Replacement};
use crate::optim::{MASTER, Sharding, StatePart};
use crate::schedule::{OnStateMismatch, SchedulerState};
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;
use crate::train::settings;
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::contract::Loaded;

/// Restores a run from `start`. All ranks call this together; each reads only its shards.
pub(in crate::train) fn restore(run: &mut TrainingRun, start: &Start) -> Result<(), ResumeError> {
    let groups = run.groups.clone();
    let mut sources = Sources::new(&run.state.config, start, &groups)?;
    let strictness = Strictness::from_config(&run.state.config);
    let mut unmatched = strictness.compare(&run.training.chunks, &sources, &start.checkpoint, &groups)?;
    sources.leave(&unmatched.absent);
    let restored = restore_rank(run, start, &sources);
    let (known, state) = agreement::agree(&groups, "loading a checkpoint", restored)?;
    let foreign = foreign_state(&groups, &start.checkpoint, known)?;
    match foreign.first() {
        Some(name) if !strictness.allows_unused_state() => {
            return Err(ResumeError::ForeignOptimizerState {
                path: start.checkpoint.path().to_owned(),
                name: name.strip_prefix(OPTIMIZER_PREFIX).unwrap_or(name).to_owned(),
                count: foreign.len(),
                settings: Vec::new(),
            });
        }
        _ => unmatched.unused.extend(foreign),
    }
    if agreement::is_rank_zero(&groups) {
        unmatched.warnings(start.checkpoint.path()).iter().for_each(|warning| run.outputs.reporter.warn(warning));
    }
    run.unmatched = unmatched;
    let (subsystems, mut context) = run.subsystems();
    Ok(subsystems.on_load(&mut context, &Loaded { folder: start.checkpoint.path(), state: state.as_ref() })?)
}

/// State that a checkpoint brought to a rank: for each optimizer tensor true if it is known, and
/// the state of subsystems.
type Restored = (Vec<u8>, Option<Map<String, Value>>);

/// Restores the shards of this rank. Returns for each optimizer tensor of the checkpoint whether it
/// belongs to a parameter of this rank (empty if no optimizer was loaded), and the state of
/// subsystems, unless only weights are loaded.
fn restore_rank(run: &mut TrainingRun, start: &Start, sources: &Sources<'_>) -> Result<Restored, ResumeError> {
    let checkpoint = &start.checkpoint;
    let settings = run.state.config.checkpoint.clone();
    run.training.base = sources.adapter_base();
    if run.training.optimizer.distribution().sharding() == Sharding::Full {
        load_shards(run, sources)?;
    } else {
        for chunk in &mut run.training.chunks {
            load_from(chunk.as_mut(), &|declaration| sources.checkpoint_for(declaration))?;
            if let (Some(base), Some(adapter)) = (sources.beginning(), &run.training.adapter) {
                begin(chunk.as_mut(), adapter.as_ref(), base)?;
            }
        }
    }
    if settings.load_main_params_from_ckpt {
        load_masters(run, sources)?;
    }
    if start.weights_only {
        return Ok((Vec::new(), None));
    }
    let mut train_state = checkpoint.train_state()?;
    let extra = std::mem::take(&mut train_state.extra);
    let loaded = Loaded { folder: checkpoint.path(), state: Some(&extra) };
    let mut known = Vec::new();
    // fp16 runs may not have made a step yet: no moments, but a loss scale that has moved.
    let has_optimizer = extra.contains_key("optimizer_step") || checkpoint.names_in("optimizer").next().is_some();
    if settings.load_optim {
        restore_schedule(run, checkpoint, &loaded, &train_state)?;
        if has_optimizer {
            let step = loaded.field::<u64>("optimizer_step")?.unwrap_or(train_state.step);
            known = load_optimizer(run, checkpoint, step)?;
        } else {
            run.outputs.reporter.note("the checkpoint has no optimizer state: moments start at zero");
        }
    }
    if settings.load_rng
        && let Some(rng) = loaded.field::<BTreeMap<String, u64>>("rng")?
        && let Some(seed) = rng.get("seed")
    {
        if *seed != run.training.seed {
            let given = run.training.seed;
            run.outputs.reporter.note(&format!(
                "random numbers go on from the checkpoint's seed {seed}, not from rng.seed = {given}; \
                 checkpoint.load_rng = false would take that"
            ));
        }
        run.training.seed = *seed;
    }
    run.outputs.from_non_persistent = start.is_non_persistent;
    run.outputs.last_saved_step = (settings.save.as_deref() == checkpoint.path().parent()).then_some(train_state.step);
    run.state.train_state = train_state;
    Ok((known, Some(extra)))
}

/// Restores the position in the schedule and the loss scale. Both belong to the run, and are
/// restored even if optimizer state is not.
fn restore_schedule(
    run: &mut TrainingRun,
    checkpoint: &Checkpoint,
    loaded: &Loaded,
    train_state: &TrainState,
) -> Result<(), ResumeError> {
    match loaded.field::<SchedulerState>("opt_param_scheduler")? {
        Some(state) => {
            let [from, to] = iteration_samples(&run.state.config, checkpoint);
            let state = state.rescaled(from, to);
            let loaded = run.training.scheduler.load_state(&state, on_mismatch(&run.state.config));
            loaded.map_err(|error| in_words_of_recipes(&run.state.config, checkpoint, error))?;
        }
        // Earlier releases saved none where they saved no optimizer.
        None => {
            let samples = match run.state.config.train.train_samples {
                Some(_) => train_state.consumed_train_samples.saturating_sub(train_state.skipped_train_samples),
                None => train_state.step * run.state.config.schedule_steps(0),
            };
            run.training.scheduler.step(samples);
            run.outputs.reporter.note(&format!(
                "the checkpoint does not say where its schedule stood: it goes on after {samples} samples"
            ));
        }
    }
    match loaded.field("loss_scaler")? {
        Some(state) => run.training.loss_scaler.load_state(state)?,
        None if run.training.loss_scaler.is_dynamic() => {
            let scale = run.training.loss_scaler.scale();
            run.outputs.reporter.note(&format!("the checkpoint has no loss scale: it starts at {scale}"));
        }
        None => {}
    }
    Ok(())
}

/// Reads the optimizer state that this rank owns. Returns for each optimizer tensor of the
/// checkpoint whether it is of a parameter of this rank, and of a kind that its optimizer has.
fn load_optimizer(run: &mut TrainingRun, checkpoint: &Checkpoint, step: u64) -> Result<Vec<u8>, ResumeError> {
    let plain = run.training.device.clone().without_autodiff();
    let local_shards: BTreeMap<_, _> =
        run.training.chunks.iter().flat_map(|chunk| local_shards(chunk.as_ref())).collect();
    let parameters = run.training.optimizer.updated(&run.training.chunks);
    run.training.optimizer.begin_loading(step);
    let names: Vec<&str> = checkpoint.names_in("optimizer").collect();
    let mut loaded: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (kind, parameter, _) in names.iter().map(|name| kind_of(name)).filter(|(.., is_scale)| !is_scale) {
        let optimizer = &mut run.training.optimizer;
        let Some((shard, part)) = local_shards.get(parameter).zip(optimizer.state_part(kind, parameter)) else {
            continue;
        };
        let (shard, range) = match part {
            StatePart::Range(range) => (Cow::Borrowed(shard), range),
            StatePart::Whole(shape) => {
                let shard = LocalShard::whole(shape);
                let all = 0..shard.num_elements();
                (Cow::Owned(shard), all)
            }
        };
        if let Some(dtype) = optimizer.required_dtype(kind, parameter) {
            let name = format!("{OPTIMIZER_PREFIX}{kind}.{parameter}");
            checkpoint.expect(&name, saved_dtype(dtype), &shard.global_shape())?;
        }
        let device = optimizer.state_device(parameter, &plain);
        let stored = load_stored(checkpoint, kind, parameter, &shard, range, &device)?;
        if optimizer.load_tensor(&format!("{kind}.{parameter}"), stored, parameters.get(parameter)) {
            loaded.insert((kind, parameter));
        }
    }
    let is_known = |name: &&str| {
        let (kind, parameter, _) = kind_of(name);
        u8::from(loaded.contains(&(kind, parameter)))
    };
    Ok(names.iter().map(is_known).collect())
}

/// Initializes the masters of 16-bit parameters with the exact values of the checkpoint, if it has
/// any: its own masters, or parameters in float32. Parameters in float32 have no masters.
fn load_masters(run: &mut TrainingRun, sources: &Sources<'_>) -> Result<(), ResumeError> {
    if settings::params_dtype(&run.state.config) == FloatDType::F32 {
        return Ok(());
    }
    let plain = run.training.device.clone().without_autodiff();
    let parameters = run.training.optimizer.updated(&run.training.chunks);
    run.training.optimizer.begin_loading(0);
    for chunk in &run.training.chunks {
        let shards = local_shards(chunk.as_ref());
        for declaration in chunk.parameters().iter().filter(|declaration| declaration.trainable) {
            let name = declaration.name.as_str();
            let Some(range) = run.training.optimizer.distribution().state_range(name) else { continue };
            let Some(checkpoint) = sources.checkpoint_for(declaration) else { continue };
            let master = format!("{OPTIMIZER_PREFIX}{MASTER}.{name}");
            let device = run.training.optimizer.state_device(name, &plain);
            let stored = if checkpoint.names_in("optimizer").any(|name| name == master) {
                load_stored(checkpoint, MASTER, name, &shards[name], range, &device)?
            } else if checkpoint.tensor(name)?.dtype == DType::F32 {
                Stored::Plain(device_tensor(checkpoint, name, &shards[name], range, &device)?)
            } else {
                continue;
            };
            let key = format!("{MASTER}.{name}");
            let is_known = run.training.optimizer.load_tensor(&key, stored, parameters.get(name));
            debug_assert!(is_known, "the master of a parameter that is not trained: {name}");
        }
    }
    Ok(())
}

/// Dtype in which a checkpoint stores a state.
fn saved_dtype(dtype: FloatDType) -> DType {
    match dtype {
        FloatDType::F64 => DType::F64,
        FloatDType::F32 | FloatDType::Flex32 => DType::F32,
        FloatDType::F16 => DType::F16,
        FloatDType::BF16 => DType::BF16,
    }
}

/// The optimizer tensors of a checkpoint that no rank has a use for: they are another optimizer's
/// or another model's.
fn foreign_state(
    groups: &ProcessGroups,
    checkpoint: &Checkpoint,
    mut known: Vec<u8>,
) -> Result<Vec<String>, ResumeError> {
    if groups.world().size() > 1 && !known.is_empty() {
        groups.world().all_reduce((&mut known).into(), ReduceOp::Max)?;
    }
    let names = checkpoint.names_in("optimizer").zip(&known);
    Ok(names.filter(|(_, known)| **known == 0).map(|(name, _)| name.to_owned()).collect())
}

fn on_mismatch(config: &RunConfig) -> OnStateMismatch {
    if config.scheduler.override_opt_param_scheduler {
        OnStateMismatch::KeepRun
    } else if config.scheduler.use_checkpoint_opt_param_scheduler {
        OnStateMismatch::TakeCheckpoint
    } else {
        OnStateMismatch::Refuse
    }
}

/// Reads this rank's shard of each parameter.
fn load_shards(run: &mut TrainingRun, sources: &Sources<'_>) -> Result<(), ResumeError> {
    let device = run.training.device.clone().without_autodiff();
    let dtype = settings::params_dtype(&run.state.config);
    let mut owned = BTreeMap::new();
    let declarations = run.training.chunks.iter().flat_map(|chunk| chunk.parameters());
    let declarations: BTreeMap<&str, &Declaration> = declarations.map(|info| (info.name.as_str(), info)).collect();
    for (name, shard) in run.training.chunks.iter().flat_map(|chunk| local_shards(chunk.as_ref())) {
        let declaration = declarations[name.as_str()];
        let Some(checkpoint) = sources.checkpoint_for(declaration) else {
            // A parameter that is whole on each rank keeps its initial value.
            if declaration.is_float32() {
                continue;
            }
            let begun = beginning(declaration, run.training.adapter.as_deref(), sources.beginning())?;
            let range = run.training.optimizer.distribution().shard_range(&name).expect("all parameters are sharded");
            let drawn = || run.training.optimizer.shards()[&name].clone();
            let begun = begun.map(|values| Tensor::<1>::from_data(&values[range], &device).cast(dtype));
            let value = begun.unwrap_or_else(drawn);
            owned.insert(name, value);
            continue;
        };
        let found = checkpoint.tensor(&name)?;
        checkpoint.expect(&name, found.dtype, &shard.global_shape())?;
        let whole = 0..shard.num_elements();
        let range = run.training.optimizer.distribution().shard_range(&name).unwrap_or(whole);
        let value = device_tensor(checkpoint, &name, &shard, range, &device)?;
        owned.insert(name, value.cast(if declaration.is_float32() { FloatDType::F32 } else { dtype }));
    }
    Ok(run.training.optimizer.parameters().set_owned(&mut run.training.chunks, owned)?)
}

/// Initial value of this rank's part of a parameter that is derived from the base; `None` for one
/// that is drawn.
fn beginning(
    declaration: &Declaration,
    adapter: Option<&dyn Adapter>,
    base: Option<&Checkpoint>,
) -> Result<Option<Vec<f32>>, CheckpointError> {
    let (Some(adapter), Some(base)) = (adapter, base) else { return Ok(None) };
    let mut failure = None;
    let mut weight = |name: &str| {
        let values = base.tensor(name).and_then(|tensor| base.load_float_rows(name, 0..tensor.shape[0]));
        values.map_err(|error| failure = Some(error)).ok()
    };
    let begun = adapter.begins(&declaration.name, &mut weight);
    if let Some(error) = failure {
        return Err(error);
    }
    let Some(whole) = begun else { return Ok(None) };
    let runs = declaration.placement.held_runs(&declaration.global_shape());
    Ok(Some(runs.into_iter().flat_map(|run| &whole[run]).copied().collect()))
}

/// Gives parameters of an adapter that follow from the base their values.
pub(super) fn begin(
    chunk: &mut dyn ModelChunk,
    adapter: &dyn Adapter,
    base: &Checkpoint,
) -> Result<(), CheckpointError> {
    let mut values = BTreeMap::new();
    let frozen = chunk.parameters().iter().filter(|declaration| !declaration.trainable);
    let frozen: BTreeSet<String> = frozen.map(|declaration| declaration.name.clone()).collect();
    for declaration in chunk.parameters().iter().filter(|declaration| declaration.of_adapter) {
        if let Some(begun) = beginning(declaration, Some(adapter), Some(base))? {
            values.insert(declaration.name.clone(), begun);
        }
    }
    chunk.update_parameters(&mut |name, old| match values.remove(name) {
        Some(values) => {
            let value = Tensor::<1>::from_data(values.as_slice(), &old.device());
            value.cast(FloatDType::from(old.dtype())).into()
        }
        None if frozen.contains(name) => Replacement::Kept,
        None => old.into(),
    });
    Ok(())
}

/// Replaces all parameters of `chunk`, as far as this rank holds them, by those of a checkpoint,
/// cast to the chunk's dtype.
///
/// # Errors
/// If a parameter is missing, or has another shape; the chunk may then be half loaded and must not
/// be used.
pub fn load_parameters(chunk: &mut dyn ModelChunk, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    load_from(chunk, &|_| Some(checkpoint))
}

/// [`load_parameters`] from the checkpoint that `source` names for each; a parameter without one
/// keeps its value.
pub(super) fn load_from<'a>(
    chunk: &mut dyn ModelChunk,
    source: &dyn Fn(&Declaration) -> Option<&'a Checkpoint>,
) -> Result<(), CheckpointError> {
    let sources: BTreeMap<String, &Checkpoint> =
        chunk.parameters().iter().filter_map(|info| Some((info.name.clone(), source(info)?))).collect();
    let mut local_shards = local_shards(chunk);
    local_shards.retain(|name, _| sources.contains_key(name));
    for (name, shard) in &local_shards {
        let checkpoint = sources[name];
        let found = checkpoint.tensor(name)?;
        checkpoint.expect(name, found.dtype, &shard.global_shape())?;
    }
    let mut failure = None;
    chunk.update_parameters(&mut |name, old| {
        let Some(shard) = local_shards.get(name) else { return old.into() };
        match device_tensor(sources[name], name, shard, 0..shard.num_elements(), &old.device()) {
            Ok(value) if value.dtype() == old.dtype() => value.into(),
            Ok(value) => value.cast(FloatDType::from(old.dtype())).into(),
            Err(error) => {
                failure = Some(error);
                old.into()
            }
        }
    });
    failure.map_or(Ok(()), Err)
}
