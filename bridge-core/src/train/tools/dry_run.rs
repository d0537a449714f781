//! A run of two steps on mock data that measures the needs of the real run: memory, time for a
//! step, total time. The first step is not timed, because allocators and thread pools fill in it.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::{RawConfig, RunConfig, World};
use crate::logging::RankMemory;
use crate::model::ModelRegistry;
use crate::plan::{self, PlanOptions};
use crate::train::data::text::{check_source, tokenizer_rows};
use crate::train::ranks::agreement;
use crate::train::reporting::memory_check::needed_by_rank;
use crate::train::reporting::rank_memory::rank_memory;
use crate::train::reporting::report::StepReport;
use crate::train::run::error::TrainError;
use crate::train::subsystems::contract::{Agreement, LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;
use crate::train::tools::measure::measuring_recipe;

/// Steps of a dry run.
const STEPS: usize = 2;
/// Memory of a process without a run.
const OF_A_PROCESS: u64 = 64 << 20;

/// Result of a dry run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DryRunReport {
    /// Ranks.
    pub world_size: usize,
    /// Processes that they are in.
    pub processes: usize,
    /// Time of a step, in seconds.
    pub step_seconds: f64,
    /// Tokens of all ranks in a second.
    pub tokens_per_second: f64,
    /// Steps of the real run; `None` where it counts epochs, whose length is known when the data
    /// has been read.
    pub train_iters: Option<usize>,
    /// Time of all of them, in seconds; without evaluations and checkpoints.
    pub total_seconds: Option<f64>,
    /// The highest resident memory of all processes together, in bytes; `None` on systems that do
    /// not say.
    pub peak_bytes: Option<u64>,
    /// Planned bytes; `None` for kinds of model without costs.
    pub planned_bytes: Option<u64>,
}

/// A dry run of a recipe.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// Configuration of the short run: the recipe's model, layout and batch on mock data. Its logs
    /// go to [`folder`](Self::folder).
    pub config: RunConfig,
    /// Folder for output of the short run. The caller removes it.
    pub folder: PathBuf,
    train_iters: Option<usize>,
}

impl DryRun {
    /// The dry run of `recipe` in a world of this size. The recipe itself is checked as for a run,
    /// its data is not read. On all ranks `folder` has the same name.
    ///
    /// # Errors
    /// A fault of the recipe, its paths or its tokenizer.
    pub fn new(recipe: &RawConfig, world: &World, folder: &Path) -> Result<Self, TrainError> {
        let recipe = &recipe.with_checkpoint_args()?;
        let real = recipe.finalize(world)?;
        real.check_paths()?;
        check_source(&real)?;
        let rows = real.model.padded_vocab_size(tokenizer_rows(&real)?)?;
        let mut short = measuring_recipe(recipe, rows, None, folder);
        short.train.train_iters = Some(STEPS);
        short.train.check_memory = recipe.train.check_memory;
        let config = short.finalize(world)?;
        let train_iters = (!real.counts_epochs()).then_some(real.train.train_iters);
        Ok(Self { config, folder: folder.to_owned(), train_iters })
    }

    /// Subsystem that watches the run on each rank, and passes the report to `tell` on rank 0.
    pub fn watch(&self, models: ModelRegistry, tell: impl FnOnce(DryRunReport) + Send + 'static) -> Box<dyn Subsystem> {
        Box::new(Watch { train_iters: self.train_iters, models, tell: Some(Box::new(tell)) })
    }
}

struct Watch {
    train_iters: Option<usize>,
    models: ModelRegistry,
    tell: Option<Box<dyn FnOnce(DryRunReport) + Send>>,
}

impl Subsystem for Watch {
    fn name(&self) -> &str {
        "dry run"
    }

    fn agreement(&self) -> Agreement {
        Agreement::Symmetric
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if step.iteration < STEPS as u64 {
            return Ok(LoopRequest::default());
        }
        let mine = rank_memory(run.groups, run.device());
        let all = agreement::gather(run.groups.world(), &mine)?;
        let config = &run.state.config;
        let peaks = peaks(&all);
        if let Some(tell) = self.tell.take().filter(|_| agreement::is_rank_zero(run.groups)) {
            tell(DryRunReport {
                world_size: all.len(),
                processes: peaks.len(),
                step_seconds: step.seconds,
                tokens_per_second: step.num_tokens as f64 / step.seconds,
                train_iters: self.train_iters,
                total_seconds: self.train_iters.map(|iterations| step.seconds * iterations as f64),
                peak_bytes: peaks.iter().copied().sum(),
                planned_bytes: self.planned(config).map(|bytes| bytes + peaks.len() as u64 * OF_A_PROCESS),
            });
        }
        Ok(LoopRequest::default())
    }
}

impl Watch {
    /// Planned memory of all ranks, if there is a plan.
    fn planned(&self, config: &RunConfig) -> Option<u64> {
        let plan = plan::plan(config, &self.models, &PlanOptions::default()).ok()?;
        let of_stages: u64 = plan.stages.iter().map(|stage| needed_by_rank(config, stage)).sum();
        Some(of_stages * (plan.layout.world_size / plan.stages.len()) as u64)
    }
}

/// The peak of each process.
fn peaks(ranks: &[RankMemory]) -> Vec<Option<u64>> {
    let mut processes: Vec<&RankMemory> = Vec::new();
    for rank in ranks {
        if processes.iter().all(|other| other.process != rank.process) {
            processes.push(rank);
        }
    }
    processes.into_iter().map(|rank| rank.host.map(|host| host.peak_resident_bytes)).collect()
}
