//! The core of Bridge: configuration, optimizer, training loop, checkpoints and logs. Data and
//! tokenizers are the crate `bridge-data`.
//!
//! | module | content |
//! | --- | --- |
//! | [`config`] | the recipe: reading, checking, resolving |
//! | [`model`] | the contract with model families |
//! | [`optim`], [`schedule`] | the optimizer; learning rate, weight decay, batch size, loss scale |
//! | [`train`] | the loop |
//! | [`plan`] | estimate of memory, time and traffic on any number of ranks |
//! | [`checkpoint`] | state on disk |
//! | [`logging`] | records and sinks |
//! | [`inspect`] | statistics of tensors |
//! | [`resilience`] | rerun state machine, loss checks, signals |
//!
//! A run from code takes a recipe, a registry of kinds and a few options:
//!
//! ```no_run
//! use bridge_core::config::{RawConfig, World};
//! use bridge_core::train::{RunOptions, pretrain};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # mod bridge_models {
//! #     pub fn registry() -> bridge_core::train::Registry {
//! #         bridge_core::train::Registry::new(bridge_core::model::ModelRegistry::default())
//! #     }
//! # }
//! let registry = bridge_models::registry();
//! let recipe = std::path::Path::new("recipes/tiny.toml");
//! let mut raw = RawConfig::from_file(recipe, &[], &registry.kinds())?;
//! raw.train.train_iters = Some(100);
//! let report = pretrain(raw.finalize(&World::SINGLE)?, RunOptions::new(registry))?;
//! println!("{} after {} steps", report.reason, report.train_state.step);
//! # Ok(())
//! # }
//! ```

pub mod model;
pub mod optim;
pub mod plan;
pub mod resilience;
pub mod testing;
#[cfg(test)]
mod tests;
pub mod train;

pub use bridge_checkpoint as checkpoint;
pub use bridge_config as config;
pub use bridge_config::schedule;
pub use bridge_telemetry::{inspect, logging, timers};

/// Burn as Bridge uses it: programs that take it from here have the same version and features, and
/// compile it once.
pub use burn;

bridge_data::readable_errors!(model::ModelBuildError, plan::PlanError);
