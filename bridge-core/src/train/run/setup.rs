//! From a checked configuration to a run that is ready to train.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::memory::release_unused_memory;
use burn::tensor::{Device, FloatDType};
use bytes::Bytes;

use crate::checkpoint::{CARRIED_GROUP, NamedManager, ShardTensor, TrainState};
use crate::config::{CudaGraphImpl, RunConfig};
use crate::logging::Sink;
use crate::model::{
    Adapter, BuildContext, Declaration, DeferredParameters, ModelChunk, ModelConfig, ModelRegistry, Parallel, Stage,
    Workload,
};
use crate::optim::{
    Distribution, GradientBuffer, GradientReducer, OffloadedElements, Optimizer, OverrideProvider, Sharding,
};
use crate::plan;
use crate::resilience::Heartbeat;
use crate::resilience::rerun::{RankLocation, RerunStateMachine};
use crate::schedule::{NumMicrobatchesCalculator, OptimizerParamScheduler};
use crate::timers::Timers;
use crate::train::data::data_errors::name_setting;
use crate::train::data::error::InputError;
use crate::train::data::inputs::Inputs;
use crate::train::data::registry::{Registry, WeightFormat};
use crate::train::data::run_data::RunData;
use crate::train::data::text::check_source;
use crate::train::engine::forward_step::ForwardStep;
use crate::train::engine::global_state::GlobalState;
use crate::train::engine::graphs::MicroBatchGraphs;
use crate::train::engine::region_spans::Observers;
use crate::train::engine::{offload, pipeline};
use crate::train::error::CommonError;
use crate::train::objectives::dpo;
use crate::train::ranks::agreement;
use crate::train::ranks::device::{self, DeviceError, LocalRank, select_device_of_rank};
use crate::train::ranks::rank_env::RankUnit;
use crate::train::ranks::threads::set_num_threads;
use crate::train::reporting::memory_check;
use crate::train::reporting::reporter::Reporter;
use crate::train::resume::checkpointing::{
    GradientDumps, NonPersistentSaves, Saver, Start, Strictness, find_start, named_manager, read_files,
    remark_on_foreign, restore_all,
};
use crate::train::resume::error::ResumeError;
use crate::train::resume::lineage::Lineage;
use crate::train::resume::lock::RunLock;
use crate::train::resume::teacher::{self, Teacher};
use crate::train::resume::vocabulary;
use crate::train::run::build_data::build_data;
use crate::train::run::error::TrainError;
use crate::train::run::last_layer;
use crate::train::run::outputs_check::check_outputs;
use crate::train::run::preparation::Preparation;
use crate::train::run::run_options::RunOptions;
use crate::train::settings;
use crate::train::step::outputs::Outputs;
use crate::train::step::step_flops::SequenceFlops;
use crate::train::step::training::Training;
use crate::train::step::training_run::TrainingRun;
use crate::train::stop::stop_requests::StopRequests;
use crate::train::stop::watchdog::Watchdog;
use crate::train::subsystems::contract::LoopRequest;
use crate::train::subsystems::{LossWatch, Subsystems, check_metric};

/// Messages about another program's weights that a run starts from, on rank 0.
fn remarks(config: &RunConfig, groups: &ProcessGroups, formats: &[WeightFormat], start: Option<&Start>) -> Vec<String> {
    let begins = start.is_some_and(|start| start.is_pretrained) && agreement::is_rank_zero(groups);
    begins.then(|| remark_on_foreign(config, formats)).flatten().into_iter().collect()
}

/// Sets a run up: logs, tokenizer and data, model, optimizer, schedules, and the checkpoint to
/// continue from.
///
/// All ranks call this together, each with options of its own.
///
/// # Errors
/// Anything that keeps the run from starting, on any rank. Nothing but logs, caches and the
/// checkpoint folder has been written then.
pub fn setup(config: RunConfig, options: RunOptions) -> Result<TrainingRun, TrainError> {
    let config = Arc::new(config);
    let (registry, groups) = (&options.registry, &options.groups);
    let local_rank = options.rank_env.place.unwrap_or(agreement::local_rank(groups.world())?);
    let heartbeat = Arc::clone(&options.rank_env.heartbeat);
    // Validate before writing any file.
    let checked = check(&config, &options, local_rank)?;
    let manager = agreement::agree(groups, "checking the run", named_manager(&config, &options.managers))?;
    let checkpoint_start = find_start(&config, &registry.weights, groups, manager.as_ref())?;
    let teacher = teacher::find(&config, registry, groups)?;
    let initial_state = checkpoint_start.as_ref().map_or_else(|| Ok(TrainState::default()), Start::train_state)?;
    let config =
        config.continued_after(initial_state.step, initial_state.consumed_train_samples).map_or(config, Arc::new);
    let lineage =
        Lineage::from_run(&config, &registry.kinds(), checkpoint_start.as_ref(), options.rank_env.run.clone());
    let lineage = agreement::agree(groups, "comparing the run with its checkpoint", lineage)?;
    let mut reporter = Reporter::new(&config, options.console, options.verbosity, groups.world().rank());
    let mut signals = options.signals.install(&config, options.rank_env.unit)?;
    let (rank_env, progress) = (&options.rank_env, reporter.progress());
    let watchdog = Watchdog::start(&config, groups, options.signals, rank_env, &mut signals, progress);
    let watchdog = agreement::agree(groups, "watching signals", watchdog)?;
    let stop_requests =
        StopRequests::new(groups, signals, watchdog, options.cancel, options.program_start, Arc::clone(&heartbeat))?;
    let preparation = Preparation {
        config: &config,
        groups,
        local_rank,
        base: lineage.tokenizer(),
        stop_requests: &stop_requests,
        reporter: &reporter,
    };
    let (config, data, report) = build_data(&preparation, registry, &lineage, &initial_state)?;
    let report = report.with(remarks(&config, groups, &registry.weights, checkpoint_start.as_ref()));
    let padded_vocab_size = vocabulary::rows(&config, &data, checkpoint_start.as_ref(), &reporter)?;
    let teacher = check_teacher_and_memory(teacher, &preparation, &data, padded_vocab_size, &registry.models)?;
    reporter.count_epochs(data.epoch_samples());
    let lock = open_logs(
        &mut reporter,
        groups,
        &config,
        checkpoint_start.as_ref(),
        &initial_state,
        &lineage,
        rank_env.faults,
        &report.warnings,
        options.sinks,
    );
    let lock = agreement::agree(groups, "opening logs", lock)?;
    let outputs = open_outputs(reporter, groups, &config, &initial_state, &heartbeat, lock, manager)?;
    let timers = Arc::new(timers(&config, &checked.device.clone().without_autodiff()));
    let parts = Parts {
        checked,
        forward_step: dpo::step_of(&config, options.forward_step),
        provider: options.overrides,
        padded_vocab_size,
        may_be_absent: checkpoint_start.is_none() || Strictness::from_config(&config).allows_absent(),
    };
    let training = build_training(&config, groups, parts, &timers)?;
    let location = device::rank_location(&config, groups.world().rank(), local_rank, options.node);
    let losses = loss_watch(&config, location.clone());
    let mut run = TrainingRun {
        subsystems: Subsystems::new(&config, groups, losses, location, &options.rank_env, options.subsystems)?,
        inputs: Inputs {
            tokenizer_files: tokenizer_files(&data, checkpoint_start.as_ref())?,
            carried: carried(&options.groups, checkpoint_start.as_ref())?,
            data,
            lineage: report.record,
            padded_vocab_size,
        },
        outputs,
        state: GlobalState { config, train_state: TrainState::default() },
        groups: options.groups,
        last_validation: None,
        unmatched: crate::train::unmatched::Unmatched::default(),
        evaluation_request: LoopRequest::default(),
        training,
        stop_requests,
        timers,
        heartbeat,
    };
    restore(&mut run, checkpoint_start.as_ref(), &lineage, teacher)?;
    announce_start(&mut run).map(|()| run)
}

/// Loss checks, for the rank of `location`.
fn loss_watch(config: &RunConfig, location: RankLocation) -> LossWatch {
    LossWatch::new(RerunStateMachine::new(settings::rerun(config, location)), settings::loss_checks(config))
}

/// Loads the checkpoint that the run begins with, and builds its teacher. All ranks call this
/// together.
fn restore(
    run: &mut TrainingRun,
    start: Option<&Start>,
    lineage: &Lineage,
    teacher: Option<Teacher>,
) -> Result<(), TrainError> {
    let reference = restore_all(run, start).map_err(|error| lineage.explain(error))?;
    let models = [("teacher", teacher.as_ref().map(Teacher::identity)), ("reference", reference)];
    lineage.note_models(models, &mut run.inputs.lineage)?.iter().for_each(|text| run.outputs.reporter.warn(text));
    let step = run.state.train_state.step;
    run.heartbeat.step_done(step);
    run.heartbeat.checkpoint_saved(step);
    run.training.distillation = teacher.map(|teacher| teacher.build(run)).transpose()?;
    // Free the buffers that loading the weights used.
    release_unused_memory();
    Ok(())
}

/// The teacher, if model and data go with it and there is memory for the run.
fn check_teacher_and_memory(
    teacher: Option<Teacher>,
    &Preparation { config, groups, reporter, .. }: &Preparation<'_>,
    data: &RunData,
    rows: usize,
    models: &ModelRegistry,
) -> Result<Option<Teacher>, TrainError> {
    // Free the buffers that reading the data used.
    release_unused_memory();
    let teacher = teacher.map(|teacher| teacher.check(config, data, rows)).transpose();
    let teacher = agreement::agree(groups, "comparing the model with its teacher", teacher)?;
    let of_teacher = teacher.as_ref().map_or(0, |teacher| teacher.bytes(config));
    let refused = memory_check::check(config, models, groups, rows, of_teacher, reporter)?;
    let fits = refused.map_or(Ok(()), |refused| Err(TrainError::NotEnoughMemory(refused.into())));
    agreement::agree(groups, "checking the memory", fits)?;
    if let Some(why) = offload::nothing_moves(config) {
        reporter.note(&why);
    }
    Ok(teacher)
}

/// Records which splits the run uses, and logs the start.
fn announce_start(run: &mut TrainingRun) -> Result<(), TrainError> {
    // Which splits there are follows from this run's data, not from the checkpoint.
    let (state, data) = (&mut run.state.train_state, &run.inputs.data);
    state.do_train = !run.state.config.validation.skip_train && data.has_train();
    state.do_valid = data.has_valid() && evaluates(&run.state.config);
    state.do_test = data.has_test() && run.state.config.validation.eval_iters > 0;
    let size = run.training.optimizer.distribution().model_size()?;
    if let Some(text) = offload_note(&run.state.config, run.training.optimizer.offloaded()) {
        run.outputs.reporter.note(&text);
    }
    for line in run.training.optimizer.override_lines() {
        run.outputs.reporter.note(line);
    }
    Ok(run.outputs.reporter.run_starts(&run.state, size)?)
}

/// Message about the effect of `optimizer.optimizer_cpu_offload` in this run.
fn offload_note(config: &RunConfig, elements: OffloadedElements) -> Option<String> {
    const SWITCH: &str = "optimizer.optimizer_cpu_offload";
    let OffloadedElements { moved, trained } = elements;
    if !config.optimizer.optimizer_cpu_offload {
        return None;
    }
    Some(match config.computes_on_cpu() {
        true => format!("{SWITCH} changes nothing on device = {}: all states are in host memory", config.device),
        false => format!("{SWITCH}: states of {moved} of the {trained} elements that a rank trains are in host memory"),
    })
}

/// Components of the training state.
struct Parts {
    checked: Checked,
    forward_step: Box<dyn ForwardStep>,
    provider: Option<Box<dyn OverrideProvider>>,
    padded_vocab_size: usize,
    /// True if the checkpoint may lack parameters, or the run starts without one.
    may_be_absent: bool,
}

/// Builds the model of this rank, its optimizer and schedules, and shards the parameters.
fn build_training(
    config: &RunConfig,
    groups: &ProcessGroups,
    parts: Parts,
    timers: &Arc<Timers>,
) -> Result<Training, TrainError> {
    let Parts { checked, forward_step, provider, padded_vocab_size, may_be_absent } = parts;
    let Checked { device, model_config, adapter } = checked;
    let seed = config.rng.seed;
    let context = BuildContext {
        device: device.clone(),
        seed,
        params_dtype: settings::params_dtype(config),
        padded_vocab_size,
        parallel: Parallel { groups: groups.clone(), sequence_parallel: config.model.sequence_parallel },
        deferred: may_defer_initialization(config, model_config.as_ref()).then(DeferredParameters::default),
        adapter: adapter.clone(),
    };
    let built = pipeline::build_chunks(&config.model, model_config.as_ref(), &context);
    let chunks = agreement::agree(groups, "building the model", built)?;
    let work = Workload::sequence(config.model.seq_length, padded_vocab_size);
    let outline = model_config.builder().outline(&work, &Stage::whole(model_config.stacks()), adapter.clone())?;
    adapter.iter().try_for_each(|adapter| adapter.check_met())?;
    last_layer::check(config, adapter.as_deref(), &outline.declarations)?;
    let provider: Box<dyn OverrideProvider> = match provider {
        Some(mut provider) => {
            let other_names = |name: &str| model_config.other_names(name);
            provider.prepare(&plan::settings::override_context(config, &outline.declarations, &other_names))?;
            provider
        }
        None => Box::new(plan::settings::overrides(config, model_config.as_ref(), &outline.declarations)?),
    };
    let flops = SequenceFlops::new(
        model_config,
        adapter.clone(),
        padded_vocab_size,
        config.dpo.is_some(),
        config.model.seq_length,
        &outline,
    );

    let distribution = Arc::new(Distribution::new(&chunks, groups.clone(), plan::settings::distribution(config))?);
    let settings = settings::optimizer_settings(config);
    let optimizer = Optimizer::new(settings, &chunks, provider.as_ref(), Arc::clone(&distribution))?;
    let plain = device.clone().without_autodiff();
    let scheduler = OptimizerParamScheduler::new(config.scheduler.schedule.clone())?;
    for group in optimizer.groups() {
        scheduler.check_group(group)?;
    }
    let observers = Observers { timers: Arc::clone(timers), ..Observers::none() };
    let mut training = Training {
        pipeline: pipeline::pipeline(config, &context.parallel, &chunks, &device).with_observers(&observers),
        inspector: observers.inspector,
        residual_gradients: observers.gradients,
        optimizer: optimizer.with_timers(timers),
        gradients: GradientBuffer::new(settings::accumulation_dtype(config)),
        reducer: GradientReducer::new(distribution, settings::reduce_dtype(config), plain)
            .with_timers(timers)
            .with_local_norms(config.ddp.check_for_nan_in_grad || config.ddp.check_for_large_grads),
        scheduler,
        num_microbatches: NumMicrobatchesCalculator::new(settings::batch_size(config))?,
        loss_scaler: settings::loss_scaler(config)?,
        flops,
        graphs: MicroBatchGraphs::from_run(config, forward_step.as_ref(), &device)?,
        forward_step,
        chunks,
        device,
        seed,
        adapter,
        base: None,
        reference: None,
        distillation: None,
        custom_loss_figures: BTreeSet::new(),
    };
    shard(&mut training, context.deferred, may_be_absent)?;
    Ok(training)
}

/// True if a model has parameters that weights may lack, and that are then drawn: an adapter's, or
/// a new last layer's.
fn adds_parameters(chunks: &[Box<dyn ModelChunk>]) -> bool {
    chunks.iter().any(|chunk| chunk.parameters().iter().any(Declaration::is_added))
}

/// Reduces each parameter to this rank's shard, or without sharding makes the parameters that the
/// base lacks. If no parameter may be absent from the checkpoint and the model adds none, no
/// initial values are drawn.
fn shard(
    training: &mut Training,
    deferred: Option<DeferredParameters>,
    may_be_absent: bool,
) -> Result<(), CommonError> {
    let draws = may_be_absent || adds_parameters(&training.chunks);
    let deferred = deferred.filter(|_| draws).unwrap_or_default();
    if training.optimizer.distribution().sharding() != Sharding::Full {
        for chunk in &mut training.chunks {
            let added = chunk.parameters().iter().filter(|parameter| parameter.is_added());
            let made = added.filter_map(|parameter| Some((parameter.name.clone(), deferred.take(&parameter.name)?())));
            let made: BTreeMap<String, _> = made.collect();
            chunk.replace_parameters(made.iter().map(|(name, value)| (name.as_str(), value.clone().into())).collect());
        }
        return Ok(());
    }
    training.optimizer.parameters().shard(&mut training.chunks, &deferred);
    match deferred.first() {
        None => Ok(()),
        Some(name) => {
            Err(CommonError::Internal(format!("the builder left `{name}` for later, and no parameter is called so")))
        }
    }
}

/// The timers of a run on `device`. Work is only handed to a GPU, which does it later.
fn timers(config: &RunConfig, device: &Device) -> Timers {
    let timers = Timers::new(settings::timing_level(config));
    if *device == Device::flex() {
        return timers;
    }
    let device = device.clone();
    timers.waiting(move || {
        // An error of the device is found where its results are read.
        let _ = device.sync();
    })
}

/// Result of the checks before a run starts.
struct Checked {
    /// The device, with autodiff.
    device: Device,
    model_config: Box<dyn ModelConfig>,
    adapter: Option<Arc<dyn Adapter>>,
}

/// Checks the run before it writes any file. All ranks call this together.
fn check(config: &RunConfig, options: &RunOptions, local_rank: LocalRank) -> Result<Checked, TrainError> {
    let RunOptions { registry, groups, .. } = options;
    let checked =
        check_graphs_supported(config, options.rank_env.unit).and_then(|()| check_rank(config, registry, local_rank));
    let checked = agreement::agree(groups, "checking the run", checked)?;
    let outputs = if agreement::is_rank_zero(groups) { check_outputs(config) } else { Ok(()) };
    agreement::agree(groups, "checking the run", outputs)?;
    let metric = check_metric(config, options.forward_step.as_ref()).map_err(CommonError::from);
    agreement::agree(groups, "checking the run", metric)?;
    Ok(checked)
}

/// Checks what this rank alone can check: device, paths, model section.
fn check_rank(config: &RunConfig, registry: &Registry, local_rank: LocalRank) -> Result<Checked, TrainError> {
    config.check_paths()?;
    if let Some(threads) = config.train.num_threads {
        set_num_threads(threads)?;
    }
    let sees_only_its_own = config.dist.external_gpu_device_mapping;
    let local_rank = if sees_only_its_own { LocalRank::ALONE } else { local_rank };
    let device = select_device_of_rank(&config.device, local_rank)?.autodiff();
    let params_dtype = settings::params_dtype(config);
    if !device.supports_dtype(burn::tensor::DType::from(params_dtype)) {
        return Err(DeviceError::NoArithmetic { found: config.device.clone(), dtype: params_dtype }.into());
    }
    check_source(config).map_err(|error| name_setting(config, error))?;
    let adapter = registry.models.adapter(config.peft.as_ref(), &config.model)?;
    Ok(Checked { device, model_config: registry.models.config(&config.model)?, adapter })
}

/// Checks that the ranks of a run can record graphs: the CUDA driver refuses calls of all threads
/// of a process while one records.
fn check_graphs_supported(config: &RunConfig, unit: RankUnit) -> Result<(), TrainError> {
    let records = config.model.cuda_graph_impl != CudaGraphImpl::None && config.device.starts_with("cuda");
    let are_threads = unit == RankUnit::Thread && config.parallel.world_size > 1;
    if records && are_threads { Err(TrainError::GraphsOfThreads) } else { Ok(()) }
}

/// Opens the checkpoint folders of the run. All ranks call this together.
fn open_outputs(
    reporter: Reporter,
    groups: &ProcessGroups,
    config: &RunConfig,
    initial_state: &TrainState,
    heartbeat: &Arc<Heartbeat>,
    lock: Option<RunLock>,
    manager: Option<NamedManager>,
) -> Result<Outputs, TrainError> {
    Ok(Outputs {
        reporter,
        saver: Saver::open(config, groups, heartbeat, manager)?,
        dumps: GradientDumps::open(config, groups, heartbeat)?,
        non_persistent: NonPersistentSaves::open(config, groups, initial_state.step, heartbeat)?,
        lock,
        last_saved_step: None,
        from_non_persistent: false,
        heartbeat: Arc::clone(heartbeat),
    })
}

/// Opens the logs of the run, and notes its start. `faults` counts faults of the run before this
/// start; `warnings` are differences from the checkpoint that the run resumes from. Only rank 0
/// locks the run.
fn open_logs(
    reporter: &mut Reporter,
    groups: &ProcessGroups,
    config: &Arc<RunConfig>,
    checkpoint_start: Option<&Start>,
    initial_state: &TrainState,
    lineage: &Lineage,
    faults: u32,
    warnings: &[String],
    sinks: Vec<Box<dyn Sink>>,
) -> Result<Option<RunLock>, TrainError> {
    reporter.set_config(config);
    let lock = if agreement::is_rank_zero(groups) { Some(RunLock::acquire(config, faults)?) } else { None };
    reporter.open_sinks(&lineage.run, initial_state, sinks)?;
    if agreement::is_rank_zero(groups) {
        for warning in config.warnings() {
            reporter.warn(warning);
        }
        reporter.configuration(&config.log_non_default_values());
    }
    if let Some(start) = checkpoint_start {
        reporter.note(&start.message);
    } else if let Some(load) = &config.checkpoint.load {
        reporter.note(&format!("no checkpoint in {}: starting from scratch", load.display()));
    }
    warnings.iter().for_each(|warning| reporter.warn(warning));
    Ok(lock)
}

/// True if the validation split is evaluated: some batches of it, or all of it.
fn evaluates(config: &RunConfig) -> bool {
    config.validation.full_validation || config.validation.eval_iters > 0
}

/// True if initial values may be drawn later, when they are sharded, or never, if they are those of
/// the base of an adapter, which is loaded. Hooks may need them earlier.
fn may_defer_initialization(config: &RunConfig, model: &dyn ModelConfig) -> bool {
    let has_hooks = !model.pre_wrap_hooks().is_empty() || !model.post_wrap_hooks().is_empty();
    let has_base = config.peft.is_some() && settings::params_dtype(config) == FloatDType::F32;
    (has_base || plan::settings::distribution(config).sharding == Sharding::Full) && !has_hooks
}

/// The tokenizer's files, as they are saved with each checkpoint. They include companion files of
/// the checkpoint that the run starts from: chat template, settings of generation, the
/// `config.json` of its import.
fn tokenizer_files(data: &RunData, start: Option<&Start>) -> Result<BTreeMap<String, Bytes>, TrainError> {
    let mut files = match start {
        Some(start) => start.checkpoint.companions().map_err(ResumeError::from)?,
        None => BTreeMap::new(),
    };
    let Some(tokenizer) = data.tokenizer() else { return Ok(files) };
    let error = |error: std::io::Error| CommonError::log("tokenizer files", error);
    let folder = tempfile::tempdir().map_err(error)?;
    tokenizer.save_assets(folder.path()).map_err(InputError::from)?;
    files.extend(read_files(folder.path()).map_err(error)?);
    Ok(files)
}

/// Tensors of the checkpoint that the run starts from that belong to no parameter. They are read
/// when a checkpoint is written, by rank 0.
fn carried(groups: &ProcessGroups, start: Option<&Start>) -> Result<Vec<ShardTensor>, TrainError> {
    let Some(start) = start.filter(|_| agreement::is_rank_zero(groups)) else { return Ok(Vec::new()) };
    let copied = start.checkpoint.names_in(CARRIED_GROUP).map(|name| ShardTensor::copied(&start.checkpoint, name));
    Ok(copied.collect::<Result<_, _>>().map_err(ResumeError::from)?)
}

/// Builds the model of a configuration without anything else of a run.
///
/// # Errors
/// If the kind is unknown or the model cannot be built.
pub fn build_model(
    config: &RunConfig,
    models: &ModelRegistry,
    device: &Device,
    tokenizer_vocab_size: usize,
) -> Result<Box<dyn ModelChunk>, TrainError> {
    let model_config = models.config(&config.model)?;
    let context = BuildContext {
        device: device.clone(),
        seed: config.rng.seed,
        params_dtype: settings::params_dtype(config),
        padded_vocab_size: config.model.padded_vocab_size(tokenizer_vocab_size)?,
        parallel: Parallel::single(),
        deferred: None,
        adapter: models.adapter(config.peft.as_ref(), &config.model)?,
    };
    let stage = Stage::whole(model_config.stacks());
    let mut chunks = model_config.builder().build_models(model_config.as_ref(), &context, &[stage])?;
    Ok(chunks.pop().ok_or_else(|| CommonError::Internal("a builder returned no chunk".into()))?)
}
