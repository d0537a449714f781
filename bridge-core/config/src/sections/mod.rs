//! The sections of a recipe as data: names, types, defaults, ranges and documentation.
//! Rules between settings stand on their rows; those that need arithmetic are in `finalize`.

mod checkpoint;
mod dataset;
mod debug;
mod dist;
mod experts;
mod finetuning;
mod logger;
mod model;
mod mup;
mod objectives;
mod optimizer;
mod peft;
mod precision;
mod resiliency;
mod run;
mod scheduler;
mod tokenizer;
mod train;

pub use checkpoint::CheckpointConfig;
pub use dataset::{Blend, GptDatasetConfig};
pub use debug::{ProfilingConfig, TensorInspectConfig};
pub use dist::{CommOverlapConfig, DistributedDataParallelConfig, DistributedInitConfig};
pub use finetuning::{FinetuningKwargs, PackedSequenceSpecs};
pub use logger::LoggerConfig;
pub use model::TransformerConfig;
pub use objectives::{DistillationConfig, DpoConfig};
pub use optimizer::{OptimizerConfig, OptimizerConfigOverrideProvider, ParameterRule};
pub use peft::PeftConfig;
pub use precision::{MixedPrecisionConfig, Precision};
pub use resiliency::{
    FaultToleranceConfig, InProcessRestartConfig, NvrxStragglerDetectionConfig, RerunStateMachineConfig, RngConfig,
    StragglerDetectionConfig,
};
pub use run::{GenerateConfig, RecipeConfig};
pub use scheduler::SchedulerConfig;
pub use tokenizer::TokenizerConfig;
pub use train::{TrainingConfig, ValidationConfig};
