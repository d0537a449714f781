//! The training loop: set-up, steps, evaluation, checkpoints, exits.
//!
//! ```text
//! pretrain(config, options)
//!   setup            devices, logs, tokenizer and data, model, optimizer, schedules, checkpoint
//!   train            while step < train_iters:
//!     train_step       micro-batches -> forward/backward (executor) -> optimizer -> scheduler
//!     measure          subsystems add figures
//!     report           console, metrics.jsonl, TensorBoard
//!     after_step       subsystems judge the step
//!     evaluate         every validation.eval_interval steps
//!     checkpoint_and_decide_exit
//!   evaluate         validation and test, at the end
//! ```
//!
//! The loop knows models as chunks of segments, data as micro-batches, and checkpoints as
//! snapshots. It names no model family, and only `ranks::device` selects devices.

mod data;
mod engine;
mod error;
mod exit_reason;
mod not_enough_memory;
mod objectives;
mod ranks;
mod reporting;
mod resume;
mod run;
mod settings;
mod step;
mod stop;
mod subsystems;
mod tools;
mod unmatched;

pub use crate::plan::offload::Offload;
pub use crate::plan::recompute::{GraphCuts, Recompute, Region, split_into_regions};
pub use data::error::InputError;
pub use data::gpt_data::dataset_prefix;
pub use data::registry::{DatasetFactoryContext, DatasetRegistry, Registry, WeightFormat};
pub use data::run_data::RunData;
pub use data::text::Bar;
pub use data::token_bytes::TokenBytes;
pub use engine::error::EngineError;
pub use engine::executor::{Executor, ExecutorError, RegionContext, RegionHooks, SavedForBackward};
pub use engine::forward_step::{ForwardStep, LM_LOSS, LanguageModelStep, Losses, Ratio};
pub use engine::global_state::GlobalState;
pub use engine::offload::SegmentOffload;
pub use engine::pipeline;
pub use error::{Classified, CommonError, ErrorClass};
pub use exit_reason::ExitReason;
pub use not_enough_memory::NotEnoughMemory;
pub use ranks::agreement::process_groups;
pub use ranks::device::{DeviceError, LocalRank, check_device_name, select_device, select_device_of_rank};
pub use ranks::device_ranks::over_devices;
pub use ranks::error::RanksError;
pub use ranks::rank_env::{RankEnv, RankUnit};
pub use ranks::threads::{in_own_pool, set_num_threads, with_awake_threads};
pub use reporting::memory_check::available_memory;
pub use reporting::report::{EvaluationReport, StepReport, TrainEnd};
pub use reporting::reporter::Console;
pub use reporting::routers::RouterReport;
pub use resume::checkpointing::{AdapterBase, load_adapted, load_adapter, load_parameters, open_base};
pub use resume::error::ResumeError;
pub use resume::lineage::{LINEAGE_KEY, new_run_name, tokenizer_of};
pub use resume::lock::CheckpointsLock;
pub use resume::progress::Progress;
pub use run::error::TrainError;
pub use run::evaluate::evaluate;
pub use run::launch::{rank_timeout, run_on_threads, run_on_threads_with, run_on_wrapped_threads};
pub use run::pretrain::{RunReport, pretrain};
pub use run::restart::{Host, Leave, run_with_restarts};
pub use run::run_options::RunOptions;
pub use run::setup::{build_model, setup};
pub use run::train_loop::train;
pub use step::error::StepError;
pub use step::training::HeldBytes;
pub use step::training_run::TrainingRun;
pub use stop::stop_requests::{CancelHandle, WatchSignals};
pub use subsystems::contract::{Agreement, Loaded, LoopRequest, RunContext, Subsystem, saved};
pub use subsystems::error::SubsystemError;
pub use subsystems::{LOSSES_KEY, check_metric};
pub use tools::dry_run::{DryRun, DryRunReport};
pub use tools::inputs_check::{check_inputs, parameter_rules};
pub use tools::lr_sweep::{LearningRateSweep, sweeping_recipe};
pub use tools::measure::{measure, measuring_recipe};
pub use tools::preview::{ScheduleRow, schedule_of};
pub use unmatched::Unmatched;
