//! The fastest layouts of a model that fit on a number of devices.
//!
//! 1. Every tensor-, context- and expert-parallel size with every kind of recompute and sharding is
//!    planned on one pipeline stage.
//! 2. From that follow estimates of time and memory for all pipelines, chunks and micro-batches:
//!    layers divide over stages, the bubble has a formula. Layouts that need far more memory are
//!    dropped; the rest is sorted by the estimated time.
//! 3. In this order layouts are planned in full, until enough fit and those to come are estimated
//!    slower. Of layouts with the same parallel sizes the fastest is kept.
//!
//! If no layout fits, the search reports why: sizes that do not divide the model, layouts that a
//! run refuses, and the memory of the smallest layout.

mod sizes;

use std::collections::{BTreeMap, BTreeSet};

use bridge_dist::schedule::{PipelineShape, check_shape};
use rayon::prelude::*;
use serde::Serialize;

use super::pipeline::bubble;
use super::{Plan, PlanOptions, Rates, plan, usable_bytes};
use crate::config::{RawConfig, World, pipeline_schedule};
use crate::model::ModelRegistry;

pub use sizes::{Divided, Recomputed, Sizes};

/// Layouts planned in full, at most, and at once.
const MOST_PLANS: usize = 256;
const AT_ONCE: usize = 8;
/// Factor by which an estimate of memory may exceed the truth.
const MEMORY_SLACK: f64 = 1.1;
/// Factor by which an estimate of time may exceed the truth.
const TIME_SLACK: f64 = 1.1;

/// Options of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchOptions {
    /// Ranks.
    pub world_size: usize,
    /// Rates of devices and links.
    pub rates: Rates,
    /// Memory of a device.
    pub memory_bytes: u64,
    /// As [`PlanOptions::has_tensor_cores`].
    pub has_tensor_cores: bool,
    /// Number of layouts to find.
    pub count: usize,
}

/// A layout that fits.
#[derive(Clone, Debug)]
pub struct PlannedLayout {
    /// Sizes of the layout.
    pub sizes: Sizes,
    /// Plan of the layout, with an estimate of the time.
    pub plan: Plan,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Layouts that fit, the fastest first.
    pub found: Vec<PlannedLayout>,
    /// Counts of layouts.
    pub counts: SearchCounts,
    /// Numbers of replicas that the sizes leave ranks for; the global batch size has to be a
    /// multiple of one of them.
    pub replicas: Vec<usize>,
    /// Why a run refuses layouts, with the number of layouts, the most frequent reason first.
    pub refusals: Vec<(String, usize)>,
    /// If nothing was found, the layout that needs the least memory of those that a run accepts.
    pub smallest: Option<PlannedLayout>,
}

/// Counts of the layouts that were examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SearchCounts {
    /// All of them.
    pub layouts: usize,
    /// Left out because the estimate of their memory is far too large.
    pub too_large: usize,
    /// Planned in full.
    pub planned: usize,
    /// Number of these that do not fit.
    pub without_room: usize,
    /// Number of these that a run would refuse.
    pub refused: usize,
}

/// The layout of `plan`, a plan of `recipe`, with the least recompute with which it fits; `None` if
/// it does not fit with any.
pub fn with_room(
    plan: &Plan,
    recipe: &RawConfig,
    models: &ModelRegistry,
    options: &SearchOptions,
) -> Option<PlannedLayout> {
    let usable = usable_bytes(options.memory_bytes);
    let modes = [Recomputed::Nothing, Recomputed::FeedForward, Recomputed::Layers];
    let mut found = modes
        .into_iter()
        .filter_map(|recomputed| planned(Sizes { recomputed, ..Sizes::from_plan(plan) }, recipe, models, options).ok());
    found.find(|found| found.plan.most_memory() <= usable)
}

/// Searches the layouts of `recipe`, whose own parallel sizes, micro-batch, recompute and sharding
/// do not matter.
pub fn search(recipe: &RawConfig, models: &ModelRegistry, options: &SearchOptions) -> Search {
    let usable = usable_bytes(options.memory_bytes) as f64;
    let bases = sizes::of_one_stage(recipe, options);
    let layers = recipe.model.num_layers;
    let replicas: BTreeSet<usize> = bases
        .iter()
        .flat_map(|one| sizes::pipelines(*one, layers, options))
        .filter(|(stages, _)| sizes::divides_layers(layers, *stages))
        .map(|(_, replicas)| replicas)
        .collect();
    let mut planner = Planner::new(recipe, models, options);
    let mut layouts = planner.estimate_all(bases);
    planner.counts.layouts = layouts.len();

    let none_should_fit = layouts.iter().all(|layout| layout.memory > usable);
    let mut by_memory: Vec<&Estimated> = layouts.iter().collect();
    by_memory.sort_by(|a, b| a.memory.total_cmp(&b.memory));
    let least_memory: Vec<Sizes> = by_memory.into_iter().take(AT_ONCE).map(|layout| layout.sizes).collect();

    layouts.retain(|layout| layout.memory <= usable * MEMORY_SLACK);
    planner.counts.too_large = planner.counts.layouts - layouts.len();
    layouts.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let found = planner.find_fastest(layouts);

    let counts = planner.counts;
    if found.is_empty() && none_should_fit {
        for layout in planner.plan_all(least_memory) {
            planner.keep_smallest(layout);
        }
    }
    let smallest = planner.smallest.filter(|_| found.is_empty());
    let mut refusals: Vec<(String, usize)> = planner.refusals.into_iter().collect();
    refusals.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Search { found, counts, replicas: replicas.into_iter().collect(), refusals, smallest }
}

/// Plans layouts, and counts those that are refused or do not fit.
struct Planner<'a> {
    recipe: &'a RawConfig,
    models: &'a ModelRegistry,
    options: &'a SearchOptions,
    counts: SearchCounts,
    refusals: BTreeMap<String, usize>,
    /// The layout that needs the least memory of those that do not fit.
    smallest: Option<PlannedLayout>,
}

impl<'a> Planner<'a> {
    fn new(recipe: &'a RawConfig, models: &'a ModelRegistry, options: &'a SearchOptions) -> Self {
        let (counts, refusals) = (SearchCounts::default(), BTreeMap::new());
        Self { recipe, models, options, counts, refusals, smallest: None }
    }

    /// Estimates of all layouts with these sizes of one stage.
    fn estimate_all(&mut self, bases: Vec<Sizes>) -> Vec<Estimated> {
        let Self { recipe, models, options, .. } = *self;
        let estimated: Vec<_> = bases.into_par_iter().map(|one| estimates(one, recipe, models, options)).collect();
        estimated.into_iter().flat_map(|estimated| self.accepted(estimated).unwrap_or_default()).collect()
    }

    /// Plans layouts in this order until enough fit and the next are estimated slower.
    fn find_fastest(&mut self, layouts: Vec<Estimated>) -> Vec<PlannedLayout> {
        let mut found: Vec<PlannedLayout> = Vec::new();
        let mut rest = layouts.into_iter().peekable();
        while self.counts.planned < MOST_PLANS && rest.peek().is_some() {
            let slowest = found.get(self.options.count.saturating_sub(1)).map(|layout| layout.plan.step_seconds());
            if slowest.zip(rest.peek()).is_some_and(|(slowest, next)| next.seconds > TIME_SLACK * slowest) {
                break;
            }
            // A layout with the same parallel sizes that fits was estimated faster.
            let is_new = |layout: &Estimated| found.iter().all(|found| !found.sizes.same_parallel_sizes(&layout.sizes));
            let batch: Vec<Sizes> = rest.by_ref().filter(is_new).take(AT_ONCE).map(|layout| layout.sizes).collect();
            self.counts.planned += batch.len();
            found.extend(self.plan_all(batch));
            found.sort_by(|a, b| a.plan.step_seconds().total_cmp(&b.plan.step_seconds()));
            let mut kept: Vec<PlannedLayout> = Vec::with_capacity(found.len());
            for layout in found {
                if kept.iter().all(|faster| !faster.sizes.same_parallel_sizes(&layout.sizes)) {
                    kept.push(layout);
                }
            }
            found = kept;
        }
        found.truncate(self.options.count);
        found
    }

    /// Plans these layouts, and returns those that fit.
    fn plan_all(&mut self, batch: Vec<Sizes>) -> Vec<PlannedLayout> {
        let Self { recipe, models, options, .. } = *self;
        let usable = usable_bytes(options.memory_bytes);
        let planned: Vec<_> = batch.into_par_iter().map(|sizes| planned(sizes, recipe, models, options)).collect();
        let mut fitting = Vec::new();
        for planned in planned {
            match self.accepted(planned) {
                None => self.counts.refused += 1,
                Some(layout) if layout.plan.most_memory() > usable => {
                    self.counts.without_room += 1;
                    self.keep_smallest(layout);
                }
                Some(layout) => fitting.push(layout),
            }
        }
        fitting
    }

    /// The result, unless a run with it is refused, which is counted.
    fn accepted<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|refusal| *self.refusals.entry(refusal).or_default() += 1).ok()
    }

    fn keep_smallest(&mut self, layout: PlannedLayout) {
        if self.smallest.as_ref().is_none_or(|kept| layout.plan.most_memory() < kept.plan.most_memory()) {
            self.smallest = Some(layout);
        }
    }
}

/// The plan of a layout, or why a run with it is refused.
fn planned(
    sizes: Sizes,
    recipe: &RawConfig,
    models: &ModelRegistry,
    options: &SearchOptions,
) -> Result<PlannedLayout, String> {
    let config = sizes.apply(recipe).finalize_for_plan(&World { size: options.world_size });
    let config = config.map_err(|errors| errors.to_string())?;
    let SearchOptions { rates, has_tensor_cores, .. } = *options;
    let plan_options = PlanOptions { rates: Some(rates), has_tensor_cores, ..PlanOptions::default() };
    let plan = plan(&config, models, &plan_options).map_err(|error| error.to_string())?;
    Ok(PlannedLayout { sizes, plan })
}

/// A layout by its estimate.
struct Estimated {
    sizes: Sizes,
    seconds: f64,
    memory: f64,
}

/// The layouts with the sizes of `one`, estimated by its plan of one sequence on one stage, or why
/// that is refused.
fn estimates(
    one: Sizes,
    recipe: &RawConfig,
    models: &ModelRegistry,
    options: &SearchOptions,
) -> Result<Vec<Estimated>, String> {
    let layouts = sizes::with_stages(one, recipe, options);
    if layouts.is_empty() {
        return Ok(Vec::new());
    }
    // Two sequences: with the second one, there are sums of gradients at every moment.
    let mut single = recipe.clone();
    single.train.global_batch_size = Some(2 * options.world_size / one.ranks());
    single.train.rampup_batch_size = None;
    let base = planned(one.on_one_stage(), &single, models, options)?.plan;
    let time = base.estimate.ok_or("the model does not know its costs, so its time cannot be estimated")?;
    let batch = recipe.train.global_batch_size.unwrap_or(1);
    let stage = &base.stages[0];
    let memory = stage.memory;
    let mut model = recipe.model.config.clone();
    model.microbatch_group_size_per_vp_stage = None;
    let estimated = layouts.into_iter().filter_map(|sizes| {
        let num_microbatches = batch * sizes.ranks() / options.world_size / sizes.micro_batch;
        model.pipeline_model_parallel_size = sizes.pipeline;
        let kind = pipeline_schedule(&model, sizes.chunks);
        let shape = PipelineShape { num_stages: sizes.pipeline, num_chunks: sizes.chunks, num_microbatches };
        check_shape(kind, shape).ok()?;
        let (stages, sequences) = (sizes.pipeline as f64, sizes.micro_batch as f64);
        let busy = (time.compute_seconds + time.exposed_seconds) / 2.0 * num_microbatches as f64 * sequences / stages;
        let seconds = busy / (1.0 - bubble(kind, shape)) + time.update_seconds + time.replica_seconds / stages;
        // The first stage keeps a micro-batch for each stage, each of its share of the layers.
        let in_flight = stages.min(num_microbatches as f64) / stages;
        let kept = stage.kept_activations as f64 * in_flight + stage.recomputed_activations as f64;
        let states = (memory.parameters + memory.gradients) as f64 / stages + memory.optimizer as f64;
        Some(Estimated { sizes, seconds, memory: states + kept * sequences })
    });
    Ok(estimated.collect())
}
