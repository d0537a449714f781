//! Between the run and the checkpoint store: what is saved, and how a run continues from it.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType as BurnDType, Device, FloatDType, Tensor, TensorData};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::run::TrainingRun;
use super::{TrainError, ranks};
use crate::checkpoint::{
    AsyncSaver, Checkpoint, CheckpointError, CheckpointStore, CheckpointWriter, DType, HostTensor, LoadRequest,
    OnDamaged, Resolution, RetentionPolicy, RunFiles, SaveOptions, SaveReport, ShardTensor, Snapshot, TensorGroup,
    TrainState,
};
use crate::config::{self, RunConfig};
use crate::logging::TimerLevel;
use crate::model::ModelChunk;
use crate::optim::OptimizerState;
use crate::schedule::OnStateMismatch;

/// Prefix of the optimizer's tensors in a checkpoint.
const OPTIMIZER_PREFIX: &str = "optimizer.";

/// Writes checkpoints on the training thread, or behind its back.
#[derive(Debug)]
pub(super) enum Saver {
    /// `checkpoint.async_save = false`.
    Sync(CheckpointWriter),
    /// `checkpoint.async_save = true`.
    Async(AsyncSaver),
}

impl Saver {
    /// The saver a configuration asks for; `None` without `checkpoint.save`.
    pub(super) fn open(config: &RunConfig) -> Result<Option<Self>, CheckpointError> {
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
        let writer = CheckpointWriter::open(root, options)?;
        Ok(Some(if settings.async_save { Self::Async(AsyncSaver::new(writer)?) } else { Self::Sync(writer) }))
    }

    fn save(&mut self, snapshot: Snapshot<'static>) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(writer) => writer.save(&snapshot).map(Some),
            Self::Async(saver) => saver.submit(snapshot),
        }
    }

    /// The report of a save that ended in the background since the last call.
    pub(super) fn poll(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.poll(),
        }
    }

    /// Waits for the save in the background.
    pub(super) fn finish(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.finish(),
        }
    }
}

/// Saves a checkpoint of the run as it is now. With `async_save` this returns once the state is copied. Rank 0 saves; the others learn
/// whether it could.
pub(super) fn save_checkpoint(run: &mut TrainingRun) -> Result<(), TrainError> {
    run.last_saved_step = Some(run.state.train_state.step);
    run.make_parameters_whole()?;
    let optimizer = if run.config.checkpoint.save_optim { Some(run.optimizer.whole_state()?) } else { None };
    let saved = if ranks::is_first(&run.groups) { save_on_this_rank(run, optimizer) } else { Ok(()) };
    run.release_parameters();
    ranks::agree(&run.groups, "saving a checkpoint", saved)
}

fn save_on_this_rank(run: &mut TrainingRun, optimizer: Option<OptimizerState>) -> Result<(), TrainError> {
    let timer = run.timers.start("save-checkpoint", TimerLevel::Iteration);
    let snapshot = snapshot(run, optimizer)?;
    let step = run.state.train_state.step;
    let Some(saver) = &mut run.saver else {
        return Ok(());
    };
    let is_async = matches!(saver, Saver::Async(_));
    let report = saver.save(snapshot)?;
    drop(timer);
    run.log_save(step, is_async, report.as_ref())?;
    let root = run.config.checkpoint.save.clone().unwrap_or_default();
    run.for_each_callback(|callback, state| callback.on_save(state, &root));
    Ok(())
}

fn snapshot(run: &TrainingRun, optimizer: Option<OptimizerState>) -> Result<Snapshot<'static>, TrainError> {
    let settings = &run.config.checkpoint;
    let mut shapes = BTreeMap::new();
    let mut model = Vec::new();
    for chunk in &run.chunks {
        shapes.extend(chunk.parameters().into_iter().map(|p| (p.name, p.shape)));
        let mut failure = None;
        chunk.visit_parameters(&mut |name, value| match host(value, &shapes[name]) {
            Ok(tensor) => model.push(ShardTensor::whole(name, tensor)),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(()), Err)?;
    }
    let mut groups = vec![TensorGroup { name: "model".into(), tensors: model }];
    let mut train_state = run.state.train_state.clone();
    if let Some(state) = optimizer {
        let mut tensors = Vec::new();
        for (name, tensor) in state.tensors {
            let parameter = name.split_once('.').map_or("", |(_, parameter)| parameter);
            tensors.push(ShardTensor::whole(format!("{OPTIMIZER_PREFIX}{name}"), host(tensor, &shapes[parameter])?));
        }
        groups.push(TensorGroup { name: "optimizer".into(), tensors });
        let extra = &mut train_state.extra;
        extra.insert("optimizer_step".into(), state.step.into());
        extra.insert("opt_param_scheduler".into(), json(&run.scheduler.state())?);
        extra.insert("loss_scaler".into(), json(&run.loss_scaler.state())?);
    }
    if settings.save_rng {
        train_state.extra.insert("rng".into(), serde_json::json!({ "seed": run.seed }));
    }
    train_state.extra.insert("loss_checks".into(), json(&run.loss_checks)?);
    if let Some(rerun) = run.rerun.checkpoint() {
        train_state.extra.insert("rerun_state_machine".into(), json(&rerun)?);
    }
    let files = if settings.save_tokenizer_assets { run.tokenizer_files.clone() } else { BTreeMap::new() };
    Ok(Snapshot { run: RunFiles { train_state, run_config: run.config.to_toml(), files }, groups })
}

fn json<T: serde::Serialize>(value: &T) -> Result<Value, TrainError> {
    serde_json::to_value(value).map_err(|error| TrainError::Internal(format!("state that cannot be saved: {error}")))
}

/// A tensor's memory with the shape it is saved under.
fn host(tensor: Tensor<1>, shape: &[usize]) -> Result<HostTensor, CheckpointError> {
    struct Owner(TensorData);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let dtype = match tensor.dtype() {
        BurnDType::F32 => DType::F32,
        BurnDType::BF16 => DType::BF16,
        BurnDType::F16 => DType::F16,
        BurnDType::F64 => DType::F64,
        other => panic!("parameters are floating-point numbers, not {other:?}"),
    };
    HostTensor::from_owner(dtype, shape, Owner(tensor.into_data()))
}

/// Which checkpoint a run starts from.
pub(super) struct Start {
    /// The checkpoint, verified.
    pub(super) checkpoint: Checkpoint,
    /// Whether only the weights are taken and the run starts at step 0.
    pub(super) weights_only: bool,
    /// What to tell the user.
    pub(super) message: String,
}

impl Start {
    /// The counters the run starts from.
    pub(super) fn train_state(&self) -> Result<TrainState, CheckpointError> {
        if self.weights_only { Ok(TrainState::default()) } else { self.checkpoint.train_state() }
    }
}

/// Finds what `checkpoint.load` (by default `checkpoint.save`), `ckpt_step` and `pretrained_checkpoint` ask for.
pub(super) fn find_start(config: &RunConfig) -> Result<Option<Start>, TrainError> {
    let settings = &config.checkpoint;
    let on_damaged = match settings.on_damaged {
        config::OnDamaged::Error => OnDamaged::Error,
        config::OnDamaged::Fallback => OnDamaged::Fallback,
    };
    let request =
        LoadRequest { ckpt_step: settings.ckpt_step.map(|step| step as u64), on_damaged, ..LoadRequest::default() };
    let load = settings.load.as_ref().or(settings.save.as_ref());
    if let Some(load) = load
        && let Resolution::Found(found) = CheckpointStore::open(load)?.resolve(&request)?
    {
        let mut message = String::new();
        if !found.report.is_empty() {
            message = format!("{}\n", found.report);
        }
        message += &format!(
            "{} from {} (iteration {})",
            if settings.finetune { "fine-tuning" } else { "resuming" },
            found.checkpoint.path().display(),
            found.checkpoint.iteration()
        );
        return Ok(Some(Start { checkpoint: found.checkpoint, weights_only: settings.finetune, message }));
    }
    if let Some(pretrained) = &settings.pretrained_checkpoint {
        let request = LoadRequest { on_damaged, ..LoadRequest::default() };
        return match CheckpointStore::open(pretrained)?.resolve(&request)? {
            Resolution::Found(found) => {
                let message = format!("starting from the weights in {}", found.checkpoint.path().display());
                Ok(Some(Start { checkpoint: found.checkpoint, weights_only: true, message }))
            }
            Resolution::NothingFound { searched } => {
                Err(TrainError::NoCheckpoint { key: "checkpoint.pretrained_checkpoint", path: searched })
            }
        };
    }
    match (&settings.load, load) {
        (_, Some(path)) if settings.exit_on_missing_checkpoint => {
            Err(TrainError::NoCheckpoint { key: "checkpoint.load", path: path.clone() })
        }
        (Some(path), _) if settings.ckpt_step.is_some() => {
            Err(TrainError::NoCheckpoint { key: "checkpoint.load", path: path.clone() })
        }
        _ => Ok(None),
    }
}

/// Restores a run from `start`.
pub(super) fn restore(run: &mut TrainingRun, start: &Start) -> Result<(), TrainError> {
    let checkpoint = &start.checkpoint;
    let settings = run.config.checkpoint.clone();
    for chunk in &mut run.chunks {
        load_parameters(chunk.as_mut(), checkpoint)?;
    }
    if start.weights_only {
        return Ok(());
    }
    let mut train_state = checkpoint.train_state()?;
    let extra = std::mem::take(&mut train_state.extra);
    let plain = run.device.clone().without_autodiff();
    // fp16 runs may not have made a step yet: no moments, but a loss scale that has moved.
    let has_optimizer = extra.contains_key("optimizer_step") || checkpoint.names_in("optimizer").next().is_some();
    if settings.load_optim && has_optimizer {
        let mut tensors = BTreeMap::new();
        for name in checkpoint.names_in("optimizer") {
            let short = name.strip_prefix(OPTIMIZER_PREFIX).unwrap_or(name);
            tensors.insert(short.to_owned(), device_tensor(checkpoint, name, &plain)?);
        }
        let step = field::<u64>(&extra, "optimizer_step", checkpoint)?.unwrap_or(train_state.step);
        let unknown = run.optimizer.load_state(OptimizerState { tensors, step, ..OptimizerState::default() });
        if let Some(name) = unknown.first() {
            return Err(TrainError::ForeignOptimizerState {
                path: checkpoint.path().to_owned(),
                name: name.clone(),
                count: unknown.len(),
            });
        }
        if let Some(state) = field(&extra, "opt_param_scheduler", checkpoint)? {
            run.scheduler.load_state(&state, on_mismatch(&run.config))?;
        }
        if let Some(state) = field(&extra, "loss_scaler", checkpoint)? {
            run.loss_scaler.load_state(state)?;
        }
    } else if settings.load_optim {
        run.reporter.note("the checkpoint has no optimizer state: moments start at zero");
    }
    if settings.load_rng
        && let Some(rng) = field::<BTreeMap<String, u64>>(&extra, "rng", checkpoint)?
        && let Some(seed) = rng.get("seed")
    {
        run.seed = *seed;
    }
    if let Some(state) = field::<crate::resilience::LossChecks>(&extra, "loss_checks", checkpoint)? {
        // What was seen is state; whether to look is configuration.
        if let (Some(mine), Some(saved)) = (&mut run.loss_checks.spiky_loss, state.spiky_loss) {
            *mine = saved;
        }
    }
    if let Some(state) = field(&extra, "rerun_state_machine", checkpoint)? {
        run.rerun.load_checkpoint(state)?;
    }
    run.last_saved_step = (settings.save.as_deref() == checkpoint.path().parent()).then_some(train_state.step);
    run.state.train_state = train_state;
    Ok(())
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

fn field<T: DeserializeOwned>(
    extra: &serde_json::Map<String, Value>,
    name: &str,
    checkpoint: &Checkpoint,
) -> Result<Option<T>, TrainError> {
    let Some(value) = extra.get(name) else {
        return Ok(None);
    };
    serde_json::from_value(value.clone()).map(Some).map_err(|error| TrainError::BadState {
        path: checkpoint.path().to_owned(),
        field: name.to_owned(),
        message: error.to_string(),
    })
}

/// Replaces all parameters of `chunk` by those of a checkpoint, cast to the chunk's dtype.
///
/// # Errors
/// If a parameter is missing, or has another shape; the chunk may then be half loaded and must not be used.
pub fn load_parameters(chunk: &mut dyn ModelChunk, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    for parameter in chunk.parameters() {
        let found = checkpoint.tensor(&parameter.name)?;
        checkpoint.expect(&parameter.name, found.dtype, &parameter.shape)?;
    }
    let mut failure = None;
    chunk.update_parameters(&mut |name, old| match device_tensor(checkpoint, name, &old.device()) {
        Ok(value) if value.dtype() == old.dtype() => value,
        Ok(value) => value.cast(FloatDType::from(old.dtype())),
        Err(error) => {
            failure = Some(error);
            old
        }
    });
    failure.map_or(Ok(()), Err)
}

fn device_tensor(checkpoint: &Checkpoint, name: &str, device: &Device) -> Result<Tensor<1>, CheckpointError> {
    let tensor = checkpoint.load_tensor(name)?;
    let dtype = match tensor.dtype() {
        DType::F32 => BurnDType::F32,
        DType::BF16 => BurnDType::BF16,
        DType::F16 => BurnDType::F16,
        DType::F64 => BurnDType::F64,
        other => {
            return Err(CheckpointError::InvalidTensor {
                reason: format!("`{name}`: expected a floating-point dtype, found {other}"),
            });
        }
    };
    let count: usize = tensor.shape().iter().product();
    let data = TensorData::from_bytes_vec(tensor.into_bytes().to_vec(), [count], dtype);
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// The files of a tokenizer folder, to be saved with a checkpoint.
pub(super) fn read_files(folder: &Path) -> std::io::Result<BTreeMap<String, Bytes>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.insert(entry.file_name().to_string_lossy().into_owned(), Bytes::from(std::fs::read(entry.path())?));
        }
    }
    Ok(files)
}
