//! The configuration tree: reading recipes, checking them, and the resolved result.
//!
//! The data flow is one way:
//! text -> located value tree (`source`, `overrides`) -> [`RawConfig`] (`reader`, `sections`)
//! -> [`RawConfig::finalize`] (`finalize`) -> [`RunConfig`] -> text (`ops`).
//!
//! Pure data: no tensors, no files except the recipe itself, nothing global.
//!
//! ```
//! # use bridge_config::{RawConfig, World};
//! let mut raw = RawConfig::default();
//! raw.train.micro_batch_size = Some(1);
//! let errors = raw.finalize(&World::SINGLE).unwrap_err();
//! assert!(errors.names("train.global_batch_size"));
//! ```

mod advice;
mod catalogue;
mod changes;
mod checkpoint_args;
mod choice;
mod error;
mod explain;
mod field;
mod finalize;
mod kinded;
mod kinds;
mod limits;
mod loading;
mod memory_statistics;
mod node;
mod one_rank;
mod ops;
pub mod optimizer_rules;
mod overrides;
mod pipeline;
mod raw;
mod reader;
mod refusal;
mod refused_values;
mod rule;
mod run_config;
mod saved;
pub mod schedule;
mod secrets;
mod section;
mod sections;
mod source;
mod spec;
mod teacher;
mod templates;
pub mod tensor_features;
mod unread;
mod upstream;

#[cfg(test)]
mod tests;

pub use advice::advice_for;
pub use changes::{Change, MODEL, PEFT, TOKENIZER, changes};
pub use choice::*;
pub use error::{ConfigError, ConfigErrors, ErrorKind};
pub use explain::{Explanation, explain, keys};
pub use field::{AnyValue, ByteSize, Field, OneOrMany};
pub use finalize::{OFFLOAD_MODULES, SAME_SETTINGS};
pub use kinded::{DatasetConfig, Kinded, KindedConfig, ModelConfig};
pub use kinds::{AskModel, ENCODER_INPUTS, ExtraField, FINETUNING, Kind, KindRegistry, Kinds};
pub use limits::{Bound, Limits};
pub use loading::{load, load_text, load_with};
pub use memory_statistics::MEMORY_STATISTICS;
pub use node::{Data, Entry, Location, Node};
pub use ops::{Detail, Difference, diff, diff_from_defaults, json_schema};
pub use pipeline::{micro_batch_windows, pipeline_placement, pipeline_schedule, train_windows};
pub use raw::RawConfig;
pub use reader::{Origins, Reader};
pub use refusal::Refusal;
pub use refused_values::RefusedValues;
pub use run_config::{
    FinalDataset, FinalLogger, FinalModel, FinalOptimizer, FinalScheduler, FinalTensorInspect, FinalTraining,
    FinalTransformer, FinalValidation, ParallelSizes, Resolved, RunConfig, SampleCounts, World, is_due,
};
pub use saved::{FindRecipe, FoundRecipe, Places, SavedRecipe};
pub use secrets::{REDACTED, redacted, redacted_value, split_credentials, with_variables};
pub use section::Section;
pub use sections::*;
pub use source::Format;
pub use spec::{Concerns, FieldSpec, TypeSpec};
pub use templates::{NO_TEMPLATE, has_marks, names_file};

bridge_data::readable_errors!(ConfigError, ConfigErrors);
