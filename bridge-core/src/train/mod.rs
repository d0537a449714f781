//! The training loop: set-up, steps, evaluation, checkpoints, exits.
//!
//! ```text
//! pretrain(config, options)
//!   setup            devices, logs, tokenizer and data, model, optimizer, schedules, checkpoint
//!   train            while step < train_iters:
//!     train_step       micro-batches -> forward/backward (executor) -> optimizer -> scheduler
//!     log              console, metrics.jsonl, TensorBoard
//!     evaluate         every validation.eval_interval steps
//!     subsystems       measure, after_step
//!     checkpoint_and_decide_exit
//!   evaluate         validation and test, at the end
//! ```
//!
//! The loop knows models as chunks of segments, data as micro-batches, and checkpoints as
//! snapshots; nothing in it names a model family or a backend.

mod build_data;
mod checkpointing;
mod convert;
mod data;
mod data_errors;
mod data_events;
mod data_identity;
mod data_lengths;
mod deadline;
mod device;
mod device_ranks;
mod distillation;
mod dpo;
mod dry_run;
mod error;
mod evaluate;
mod executor;
#[cfg(test)]
mod executor_tests;
mod exit;
mod exit_reason;
mod exits;
mod forward_step;
mod global_state;
mod gpt_data;
mod graphs;
mod hooks;
mod input_fingerprints;
mod inputs;
mod inputs_check;
mod last_layer;
mod launch;
mod lineage;
mod lock;
mod lr_sweep;
mod measure;
mod memory_check;
mod micro_batches;
mod model_tokenizer;
mod not_enough_memory;
mod offload;
mod outputs;
mod outputs_check;
pub mod pipeline;
mod predictions;
mod preparation;
mod pretrain;
mod preview;
mod progress;
mod rank_env;
mod ranks;
mod reference;
mod region_spans;
mod registry;
mod report;
mod reporter;
mod restart;
mod routers;
mod run;
mod run_options;
mod setup;
mod sft_data;
mod step;
mod step_flops;
mod stop_notice;
mod stream_gradients;
mod streams;
mod subsystem;
mod subsystems;
mod text;
mod threads;
mod token_bytes;
mod tokenizers;
mod train_loop;
mod training;
mod unmatched;
mod vocabulary;
mod watched_signals;

pub use crate::plan::offload::Offload;
pub use crate::plan::recompute::{Cuts, Recompute, Region, plan};
pub use checkpointing::{AdapterBase, load_adapted, load_adapter, load_parameters, open_base};
pub use data::RunData;
pub use device::{DeviceError, LocalRank, check_device_name, select_device, select_device_of_rank};
pub use device_ranks::over_devices;
pub use dry_run::{DryRun, DryRunReport};
pub use error::TrainError;
pub use evaluate::evaluate;
pub use executor::{Around, Executor, ExecutorError, InFlight, RegionHooks};
pub use exit_reason::ExitReason;
pub use exits::CancelHandle;
pub use forward_step::{ForwardStep, LM_LOSS, LanguageModelStep, Losses, Ratio};
pub use gpt_data::dataset_prefix;
pub use inputs_check::check_inputs;
pub use launch::{rank_timeout, run_on_threads, run_on_threads_with, run_on_wrapped_threads};
pub use lineage::{new_run_name, tokenizer_of};
pub use lock::CheckpointsLock;
pub use lr_sweep::{LearningRateSweep, sweeping_recipe};
pub use measure::{measure, measuring_recipe};
pub use memory_check::available_memory;
pub use not_enough_memory::NotEnoughMemory;
pub use offload::SegmentOffload;
pub use pretrain::{RunReport, pretrain};
pub use preview::{ScheduleRow, schedule_of};
pub use progress::Progress;
pub use ranks::process_groups;
pub use registry::{DatasetFactoryContext, DatasetRegistry, Registry, Weights};
pub use report::{EvaluationReport, GlobalState, StepReport, TrainEnd};
pub use reporter::Console;
pub use rank_env::{RankEnv, RankUnit};
pub use restart::{Host, Leave, run_with_restarts};
pub use routers::RouterReport;
pub use run::TrainingRun;
pub use run_options::RunOptions;
pub use setup::{build_model, setup};
pub use subsystem::{Agreement, Loaded, LoopRequest, RunContext, Subsystem, saved};
pub use subsystems::LOSSES_KEY;
pub use subsystems::check_metric;
pub use text::Bar;
pub use threads::{in_own_pool, set_num_threads, with_awake_threads};
pub use token_bytes::TokenBytes;
pub use train_loop::train;
pub use training::HeldBytes;
pub use unmatched::Unmatched;
pub use watched_signals::WatchSignals;
