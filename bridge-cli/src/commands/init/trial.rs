//! Trial of a new recipe on this machine: its memory by the plan, and its first steps.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::config::{CheckpointConfig, Format, GenerateConfig, LoggerConfig, RawConfig, World};
use bridge_core::plan::{PlanOptions, plan};
use bridge_core::train::{
    Agreement, Classified, Console, ErrorClass, LoopRequest, RunContext, RunOptions, StepReport, Subsystem,
    SubsystemError, measuring_recipe, pretrain,
};
use bridge_models::registry;

use super::recipe::Recipe;
use crate::failure::Failure;

/// Text up to this size is packed while the recipe is tried; longer text when it is trained.
const TRIED_BYTES: u64 = 32 << 20;
/// Steps that are tried: the first is slower.
const STEPS: usize = 2;

/// Result of a trial.
pub enum Outcome {
    /// The trial runs; seconds of a micro-batch.
    Runs(f64),
    /// A split has too little data for a sample.
    TooShort(String),
}

pub(super) fn parse(recipe: &Recipe) -> Result<RawConfig, Failure> {
    Ok(RawConfig::from_text(&recipe.to_text(), Format::Toml, &[], &registry().kinds())?)
}

/// Bytes that a rank needs, as the plan counts them. Fails if the recipe is not valid, or the plan
/// cannot count it.
pub fn memory(recipe: &Recipe, vocab_size: usize) -> Result<u64, Failure> {
    let mut raw = parse(recipe)?;
    raw.model.vocab_size.get_or_insert(vocab_size);
    let config = raw.finalize_for_plan(&World::SINGLE)?;
    let plan = plan(&config, &registry().models, &PlanOptions::default()).map_err(Failure::input)?;
    Ok(plan.stages.iter().map(|stage| stage.memory.total).max().unwrap_or(0))
}

/// Trains the first steps of a recipe, of one micro-batch each, and evaluates once. Only the packed
/// text remains.
///
/// # Errors
/// Any error of the run.
pub fn first_steps(recipe: &Recipe, vocab_size: usize) -> Result<Outcome, Failure> {
    let raw = parse(recipe)?;
    // All of the recipe is checked, as training it would.
    raw.clone().finalize(&World::SINGLE)?;
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    // Examples are tokenized once, because the run reuses the trial's result.
    let is_short = recipe.text.bytes <= TRIED_BYTES || recipe.tuning.is_some();
    let short =
        if is_short { shortened(&raw, folder.path()) } else { measuring_recipe(&raw, vocab_size, None, folder.path()) };
    let seconds = Seconds::default();
    let options = RunOptions {
        console: Console::Silent,
        subsystems: vec![Box::new(seconds.clone())],
        ..RunOptions::new(registry())
    };
    match pretrain(short.finalize(&World::SINGLE)?, options) {
        Ok(_) => {
            let last = seconds.0.lock().unwrap_or_else(PoisonError::into_inner).1;
            let micro_batches = if is_short { 1 } else { recipe.global_batch_size / recipe.micro_batch_size };
            Ok(Outcome::Runs(last / micro_batches as f64))
        }
        Err(error) => match error.class() {
            ErrorClass::Config(errors)
                if ["dataset.split", "validation.eval_iters"].iter().any(|key| errors.names(key)) =>
            {
                Ok(Outcome::TooShort(errors.to_string()))
            }
            _ => Err(error.into()),
        },
    }
}

/// The recipe with two steps of one micro-batch, one evaluation, no checkpoints, and its logs
/// elsewhere.
fn shortened(raw: &RawConfig, folder: &Path) -> RawConfig {
    let mut short = raw.clone();
    (short.train.train_iters, short.train.num_epochs) = (Some(STEPS), None);
    short.train.global_batch_size = raw.train.micro_batch_size;
    short.scheduler.lr_warmup_iters = 0;
    if short.validation.eval_iters.is_some_and(|iters| iters > 0) {
        short.validation.eval_iters = Some(1);
        short.validation.eval_interval = Some(STEPS);
    }
    short.logger = LoggerConfig { log_dir: Some(folder.to_owned()), ..LoggerConfig::default() };
    let pretrained_checkpoint = raw.checkpoint.pretrained_checkpoint.clone();
    short.checkpoint = CheckpointConfig { pretrained_checkpoint, ..CheckpointConfig::default() };
    short.generate = GenerateConfig::default();
    short
}

/// Remembers how long steps took: the number of them, and the seconds of the last.
#[derive(Clone, Default)]
struct Seconds(Arc<Mutex<(usize, f64)>>);

impl Subsystem for Seconds {
    fn name(&self) -> &str {
        "trial"
    }

    fn agreement(&self) -> Agreement {
        Agreement::Symmetric
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = (seen.0 + 1, step.seconds);
        Ok(LoopRequest::default())
    }
}
