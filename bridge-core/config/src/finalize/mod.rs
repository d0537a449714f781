//! From the user's settings to the resolved configuration: the stages, in order. Each rule is a
//! small function in one of the files beside this one. Rules do not change the user's
//! configuration.

mod checkpoint;
mod cross;
mod data_parallel;
mod dataset;
mod draft;
mod finetuning;
mod fp8;
mod graphs;
mod logger;
mod model;
mod moe;
mod objectives;
mod offload;
mod optimizer;
mod parallel;
mod pipeline;
mod presets;
mod refused;
mod resiliency;
mod rules;
mod scheduler;
mod tensor_inspect;
mod tokenizer;
mod train;

pub use data_parallel::SAME_SETTINGS;
pub use offload::NAMES as OFFLOAD_MODULES;
pub(super) use presets::COPIES;

use super::error::ConfigErrors;
use super::kinded::Kinded;
use super::raw::RawConfig;
use super::run_config::{FinalModel, FinalTransformer, Resolved, RunConfig, World};
use super::sections::{RecipeConfig, TransformerConfig};
use draft::{Draft, Purpose};

/// Checks and resolves a configuration.
fn run(raw: &RawConfig, world: &World, purpose: Purpose) -> Result<RunConfig, ConfigErrors> {
    let mut draft = Draft::new(raw, &resiliency::active(raw, world), purpose);
    // 0. Every setting by itself: its range, and whether this release implements it.
    rules::check_ranges(&mut draft, "");
    refused::check(&mut draft, "");
    // 1. Presets and old names become ordinary settings, whose rows have rules.
    presets::resolve(&mut draft);
    train::deprecated_names(&mut draft);
    // Before values are filled in: a value that differs from its default is the user's.
    rules::check(&mut draft, "");
    // 2. Parallel sizes; the data-parallel size follows from all other sizes.
    let mut parallel = parallel::resolve(&mut draft);
    // Stages divide the layers that the kind of model has.
    let config = model::resolve(&mut draft);
    let (kind, extra) = (draft.recipe.model.kind.clone(), draft.recipe.model.extra.clone());
    let model = FinalModel { config, kind, extra };
    let stacks = model::stacks(&mut draft, &model);
    fp8::check(&mut draft, stacks.len());
    pipeline::resolve(&mut draft, &mut parallel, stacks.iter().sum());
    data_parallel::resolve(&mut draft, &parallel);
    fp8::check_gather(&mut draft);
    // 3. Each section.
    let name = train::name(&mut draft);
    train::device(&mut draft);
    let train = train::resolve(&mut draft, &parallel);
    let validation = train::resolve_validation(&mut draft, &parallel, &train);
    let optimizer = optimizer::resolve(&mut draft, &parallel);
    let scheduler = scheduler::resolve(&mut draft, &train, &optimizer);
    let dataset = dataset::resolve(&mut draft);
    let logger = logger::resolve(&mut draft, &name);
    let tensor_inspect = tensor_inspect::resolve(&mut draft, &logger);
    tokenizer::check(&mut draft);
    checkpoint::check(&mut draft);
    // 4. Rules between sections.
    cross::check(&mut draft);
    objectives::check(&mut draft);
    logger::check(&mut draft);
    resiliency::stragglers(&mut draft);
    graphs::check(&mut draft, &parallel);
    resiliency::check(&mut draft, world);
    pipeline::check_schedule(&mut draft, &parallel, &train);
    let samples = cross::sample_counts(&mut draft, &train, &validation);
    // 5. Freeze.
    draft.finish(|config| Resolved {
        name,
        model,
        train,
        validation,
        optimizer,
        scheduler,
        dataset,
        logger,
        tensor_inspect,
        parallel,
        samples,
        config,
    })
}

impl RawConfig {
    /// Checks everything and derives values; `self` does not change, and this can be repeated.
    ///
    /// # Errors
    /// Every violated rule.
    pub fn finalize(&self, world: &World) -> Result<RunConfig, ConfigErrors> {
        run(&self.with_checkpoint_args()?, world, Purpose::Train)
    }

    /// As [`finalize`](Self::finalize), for `bridge plan` only: data and tokenizer may be missing.
    ///
    /// # Errors
    /// Every other violated rule.
    pub fn finalize_for_plan(&self, world: &World) -> Result<RunConfig, ConfigErrors> {
        run(&self.with_checkpoint_args()?, world, Purpose::Plan)
    }
}

impl TransformerConfig {
    /// Checks and resolves a transformer outside a recipe; `self` does not change.
    ///
    /// # Errors
    /// Every violated rule of the `[model]` section; keys begin with `model.`.
    pub fn finalize(&self) -> Result<FinalTransformer, ConfigErrors> {
        let recipe =
            RecipeConfig { model: Kinded { config: self.clone(), ..Kinded::default() }, ..RecipeConfig::default() };
        let raw = RawConfig::from(recipe);
        let mut draft = Draft::new(&raw, &World::SINGLE, Purpose::Train);
        rules::check_ranges(&mut draft, "model.");
        refused::check(&mut draft, "model.");
        rules::check(&mut draft, "model.");
        let transformer = model::resolve(&mut draft);
        // There are no warnings here, so settings without effect are errors.
        draft.errors.extend(draft.idle);
        draft.errors.into_result(transformer)
    }
}
