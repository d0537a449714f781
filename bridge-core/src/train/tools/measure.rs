//! Measurement of the ranks' communication in a step and of their memory: a short run on threads,
//! with communicators that count. The counterpart of [`crate::plan`].

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bridge_dist::comm::Group;
use bridge_dist::comm::counting::{CountingCommunicator, Counts, Ledger};
use bridge_dist::comm::throttled::ThrottledCommunicator;
use bridge_dist::mesh::ProcessGroups;

use crate::config::{
    CheckpointConfig, DatasetConfig, GenerateConfig, GptDatasetConfig, LoggerConfig, MixedPrecisionConfig,
    OptimizerConfig, Precision, ProfilingConfig, RawConfig, RerunMode, RunConfig, SchedulerConfig, TokenizerConfig,
    TokenizerType, TrainingConfig, TransformerConfig, ValidationConfig,
};
use crate::optim::ReductionTimes;
use crate::plan::{RankMeasurement, bytes_per_second};
use crate::schedule::LrDecayStyle;
use crate::train::reporting::report::StepReport;
use crate::train::run::error::TrainError;
use crate::train::run::launch::{rank_timeout, run_on_wrapped_threads};
use crate::train::run::pretrain::pretrain;
use crate::train::run::run_options::RunOptions;
use crate::train::step::training::HeldBytes;
use crate::train::subsystems::contract::{Agreement, LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Steps of a measuring run: the first differs (groups are made, nothing was gathered ahead), of
/// the last, operations are counted.
const STEPS: usize = 3;
/// Steps where times are measured too.
const TIMED_STEPS: usize = 11;

/// The recipe of a short run with the model, layout and batch of `recipe`, and nothing else that
/// costs time or leaves traces: mock data, no evaluation, no checkpoints, logs in `folder`.
///
/// `padded_vocab_size` is that of the plan, which may know it without a tokenizer. With a link,
/// [`measure`] takes times, of more steps.
pub fn measuring_recipe(
    recipe: &RawConfig,
    padded_vocab_size: usize,
    link_gbps: Option<f64>,
    folder: &Path,
) -> RawConfig {
    let mut short = recipe.clone();
    let train = &recipe.train;
    short.train = TrainingConfig {
        micro_batch_size: train.micro_batch_size,
        global_batch_size: train.global_batch_size,
        decrease_batch_size_if_needed: train.decrease_batch_size_if_needed,
        num_threads: train.num_threads,
        train_iters: Some(if link_gbps.is_some() { TIMED_STEPS } else { STEPS }),
        ..TrainingConfig::default()
    };
    // The base is drawn, as a model without [peft] is: `ModelRegistry::adapt_as`.
    short.peft = None;
    // Objectives read data of their own, and another model.
    (short.dpo, short.distillation) = (None, None);
    short.validation = ValidationConfig { eval_iters: Some(0), ..ValidationConfig::default() };
    // A curve may need lengths, and some optimizers need a constant rate.
    short.scheduler = SchedulerConfig::default();
    if recipe.scheduler.lr_decay_style == LrDecayStyle::Constant {
        short.scheduler.lr_decay_style = LrDecayStyle::Constant;
    }
    let masks = GptDatasetConfig {
        reset_attention_mask: recipe.dataset.reset_attention_mask,
        reset_position_ids: recipe.dataset.reset_position_ids,
        ..GptDatasetConfig::default()
    };
    short.dataset = DatasetConfig { kind: "mock".into(), config: masks, ..DatasetConfig::default() };
    // The null tokenizer adds its end-of-document token.
    short.tokenizer = TokenizerConfig {
        tokenizer_type: Some(TokenizerType::Null),
        vocab_size: Some(padded_vocab_size.saturating_sub(1)),
        ..TokenizerConfig::default()
    };
    // The rows are there already, so nothing is padded. Plans count the ranks with most rows, and
    // measure where all have as many.
    short.model.vocab_size = Some(padded_vocab_size);
    short.model.should_pad_vocab = false;
    short.model.make_vocab_size_divisible_by = TransformerConfig::default().make_vocab_size_divisible_by;
    scale_losses_by_one(&mut short);
    short.logger = LoggerConfig {
        log_dir: Some(folder.to_owned()),
        log_num_zeros_in_grad: recipe.logger.log_num_zeros_in_grad,
        ..LoggerConfig::default()
    };
    short.checkpoint = CheckpointConfig::default();
    // These subsystems would add communication between ranks.
    (short.straggler, short.nvrx_straggler) = (None, None);
    // A plan is of steps that run once.
    if short.rerun_state_machine.rerun_mode == RerunMode::ReportDeterminismStats {
        short.rerun_state_machine.rerun_mode = RerunMode::Disabled;
    }
    short.generate = GenerateConfig::default();
    short.profiling = ProfilingConfig::default();
    short
}

/// A dynamic loss scale begins so high that the first steps are skipped, and skipped steps cannot
/// be measured.
fn scale_losses_by_one(recipe: &mut RawConfig) {
    let is_float16 = match &recipe.mixed_precision {
        Some(Precision::Named(name)) => name.starts_with("fp16"),
        Some(Precision::Custom(precision)) => precision.fp16,
        None => recipe.model.fp16,
    };
    if !is_float16 {
        return;
    }
    // Settings of the dynamic scale exclude a constant one.
    let usual = OptimizerConfig::default();
    let optimizer = &mut recipe.optimizer;
    optimizer.loss_scale = Some(1.0);
    optimizer.initial_loss_scale = usual.initial_loss_scale;
    optimizer.min_loss_scale = usual.min_loss_scale;
    optimizer.loss_scale_window = usual.loss_scale_window;
    optimizer.hysteresis = usual.hysteresis;
    if let Some(Precision::Custom(precision)) = &mut recipe.mixed_precision {
        let usual = MixedPrecisionConfig::default();
        precision.loss_scale = usual.loss_scale;
        precision.initial_loss_scale = usual.initial_loss_scale;
        precision.min_loss_scale = usual.min_loss_scale;
        precision.loss_scale_window = usual.loss_scale_window;
        precision.hysteresis = usual.hysteresis;
    }
}

/// Trains a [`measuring_recipe`] on ranks that are threads, and returns for each rank its
/// communication in the last step, its memory, and its wait for gradients. With `link_gbps`, each
/// rank can send that many gigabits a second and no more ([`ThrottledCommunicator`]). `options`
/// makes the options of one rank.
///
/// # Errors
/// As [`pretrain`].
pub fn measure(
    config: &RunConfig,
    link_gbps: Option<f64>,
    options: impl Fn(ProcessGroups) -> RunOptions + Sync,
) -> Result<Vec<RankMeasurement>, TrainError> {
    let ledgers: Vec<Ledger> = (0..config.parallel.world_size).map(|_| Ledger::default()).collect();
    let wrap = |world: Group| -> Group {
        let ledger = ledgers[world.rank()].clone();
        let link: Group = match link_gbps {
            Some(gbps) => Arc::new(ThrottledCommunicator::new(world, bytes_per_second(gbps))),
            None => world,
        };
        Arc::new(CountingCommunicator::new(link, ledger))
    };
    run_on_wrapped_threads(config, rank_timeout(config), wrap, |groups| {
        let (rank, stage) = (groups.world().rank(), groups.pipeline().rank());
        let first_replica = groups.data_context().world_ranks()[0];
        let steps = Steps { ledger: ledgers[rank].clone(), seen: Arc::default() };
        let mut options = options(groups);
        options.subsystems.push(Box::new(steps.clone()));
        let report = pretrain(config.clone(), options)?;
        let HeldBytes { parameters, optimizer, host_optimizer } = report.run.held_bytes();
        let Seen { traffic, reductions } = steps.seen();
        Ok(RankMeasurement {
            rank,
            stage,
            traffic,
            parameter_bytes: parameters,
            optimizer_bytes: optimizer,
            host_optimizer_bytes: host_optimizer,
            first_replica,
            reductions: reductions.into_iter().skip(1).collect(),
        })
    })
}

/// Recorder of the counts between the ends of the last two steps, and of the times of all steps.
#[derive(Clone)]
struct Steps {
    ledger: Ledger,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Clone, Default)]
struct Seen {
    traffic: Counts,
    reductions: Vec<ReductionTimes>,
}

impl Steps {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> Seen {
        self.lock().clone()
    }
}

impl Subsystem for Steps {
    fn name(&self) -> &str {
        "measurement"
    }

    /// No comparison: communication between subsystems would be counted.
    fn agreement(&self) -> Agreement {
        Agreement::Symmetric
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let mut seen = self.lock();
        seen.traffic = self.ledger.take();
        seen.reductions.push(step.grads_reduction);
        Ok(LoopRequest::default())
    }
}
