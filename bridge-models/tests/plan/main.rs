//! The plan of decoders against cases worked out by hand, and against models that are built.

mod built;
mod memory;
mod offload;
mod pipeline;
mod sizes;
mod traffic;

use bridge_core::config::{ConfigErrors, Format, RawConfig, RunConfig, World};
use bridge_core::model::ModelRegistry;
use bridge_core::plan::{Plan, PlanError, PlanOptions};
use bridge_models::registry;

/// Two layers: hidden 64, 8 heads of 8, 4 key/value heads, feed-forward 192 gated, vocabulary 512,
/// 64 tokens; 2 sequences of 4.
const TINY: &str = include_str!("../../../recipes/tiny.toml");
const LLAMA_405B: &str = include_str!("../../../recipes/llama3-405b.toml");

/// Experts in every layer, 4 of them, 2 a token.
const MOE: [&str; 3] = ["model.num_moe_experts=4", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=96"];

fn try_config(text: &str, size: usize, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|item| (*item).to_owned()).collect();
    RawConfig::from_text(text, Format::Toml, &overrides, &registry().kinds())?.finalize_for_plan(&World { size })
}

fn config(text: &str, size: usize, overrides: &[&str]) -> RunConfig {
    try_config(text, size, overrides).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The plan with the built-in kinds of models.
fn plan(config: &RunConfig, options: &PlanOptions) -> Result<Plan, PlanError> {
    let mut models = ModelRegistry::default();
    bridge_models::register_builtin(&mut models);
    bridge_core::plan::plan(config, &models, options)
}

fn tiny(size: usize, overrides: &[&str]) -> Plan {
    plan(&config(TINY, size, overrides), &PlanOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}
