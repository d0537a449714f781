//! Everything that can end a run early.

use std::path::PathBuf;

use bridge_data::DataError;
use bridge_data::tokenizer::TokenizerError;
use bridge_dist::comm::CommError;
use bridge_dist::mesh::MeshSetupError;
use bridge_dist::schedule::ScheduleError;
use bridge_kernels::graph::GraphError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigErrors;
use crate::logging::OpenError;
use crate::model::{BoundaryError, ModelBuildError};
use crate::optim::CutParameter;
use crate::resilience::SignalError;
use crate::resilience::rerun::{RerunCheckpointError, UnexpectedResult};
use crate::schedule::{BatchSizeError, LossScaleError, SchedulerError, SchedulerStateError};
use crate::train::engine::pipeline::PipelineError;
use crate::train::exit_reason::ExitReason;
use crate::train::not_enough_memory::NotEnoughMemory;
use crate::train::ranks::device::DeviceError;
use crate::train::unmatched::Unmatched;

/// Why a run could not start or go on.
#[derive(thiserror::Error)]
pub enum TrainError {
    /// The configuration, all its problems.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The device.
    #[error(transparent)]
    SelectDevice(#[from] DeviceError),
    /// The machine has too little memory.
    #[error(transparent)]
    NotEnoughMemory(Box<NotEnoughMemory>),
    /// The optimizer's rule does not go with the ranks.
    #[error(transparent)]
    CutParameter(#[from] CutParameter),
    /// Ranks on CUDA devices cannot exchange data by NCCL.
    #[error(
        "dist.distributed_backend = nccl: {message}; or set dist.distributed_backend = gloo to exchange through host memory"
    )]
    Nccl {
        /// Why.
        message: String,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// Forward and backward of a micro-batch cannot be recorded as a graph, or replayed.
    #[error("model.cuda_graph_impl = \"local\": recording or replaying a micro-batch failed: {0}")]
    Graph(#[from] GraphError),
    /// Ranks that are threads cannot record side by side.
    #[error(
        "model.cuda_graph_impl = \"local\": the ranks of this run are threads of one process, and the CUDA driver does not let one record \
         while others use it: start them as processes (`--launcher mpi`)"
    )]
    GraphsOfThreads,
    /// The forward step of the run does not go with graphs.
    #[error(
        "model.cuda_graph_impl = \"local\": the forward step of this run cannot be recorded: expected one whose \
         `ForwardStep::is_recordable` is true"
    )]
    NotRecordable,
    /// The data of the run do not go with graphs.
    #[error(
        "model.cuda_graph_impl = \"local\": micro-batches have the extra tensors {found}: expected tokens, labels, masks, positions and \
         documents alone"
    )]
    ExtraTensors {
        /// Names that were found.
        found: String,
    },
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data holds a token that the model does not know.
    #[error(
        "the data holds token id {id}, and the model knows ids below {vocab_size} (model.vocab_size); was it packed with another tokenizer?"
    )]
    UnknownToken {
        /// The id.
        id: i64,
        /// Size of the model's vocabulary, padding included.
        vocab_size: usize,
    },
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A checkpoint was requested and none exists.
    #[error("{key}: there is no checkpoint in {}", path.display())]
    NoCheckpoint {
        /// The setting that asks.
        key: &'static str,
        /// Folder that was searched.
        path: PathBuf,
    },
    /// Weights of another program cannot be started from.
    #[error("checkpoint.pretrained_checkpoint: {0}")]
    ForeignWeights(Box<dyn std::error::Error + Send + Sync>),
    /// A checkpoint of an adapter, and a base that it does not belong to.
    #[error(
        "checkpoint.pretrained_checkpoint: {}: expected the base of the adapter in {} ({expected}), found another ({found})",
        base.display(), checkpoint.display()
    )]
    AnotherBase {
        /// The checkpoint of the adapter.
        checkpoint: PathBuf,
        /// The base.
        base: PathBuf,
        /// The checksum that the checkpoint names.
        expected: String,
        /// Base that was found.
        found: String,
    },
    /// A field of `train_state.json` cannot be understood.
    #[error("{}: train_state.json: `{field}`: {message}", path.display())]
    BadState {
        /// The checkpoint.
        path: PathBuf,
        /// The field.
        field: String,
        /// Description of the fault.
        message: String,
    },
    /// The parameters of a checkpoint are not those of the model.
    #[error("{source}; {}", match settings.as_slice() {
        [] => "no setting of [model] differs from the checkpoint's: is it of another kind of model?".to_owned(),
        settings => format!(
            "of what shapes depend on, the recipe says something else than the checkpoint's run_config.toml: {}; set it as it is there",
            settings.join(", ")
        ),
    })]
    AnotherModel {
        /// The first parameter that does not fit.
        source: Box<CheckpointError>,
        /// Settings that differ, with both values.
        settings: Vec<String>,
    },
    /// The names of parameters differ from those of a checkpoint.
    #[error(
        "{} does not match the model: {unmatched} (checkpoint.dist_ckpt_strictness = log_all would go on, and say so)",
        path.display()
    )]
    Unmatched {
        /// The checkpoint.
        path: PathBuf,
        /// In what they differ.
        unmatched: Unmatched,
    },
    /// The optimizer state in a checkpoint is another optimizer's or another model's.
    #[error(
        "{}: {count} optimizer tensors do not belong to this run's optimizer, `{name}` among them \
         (checkpoint.load_optim = false starts with fresh moments){}",
        path.display(),
        if settings.is_empty() { String::new() } else { format!("; changed since then: {}", settings.join(", ")) }
    )]
    ForeignOptimizerState {
        /// The checkpoint.
        path: PathBuf,
        /// Name of one of them.
        name: String,
        /// Number of them.
        count: usize,
        /// Settings of the optimizer that differ from the checkpoint's, with both values.
        settings: Vec<String>,
    },
    /// The schedule.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// The schedule of a checkpoint.
    #[error(transparent)]
    SchedulerState(#[from] SchedulerStateError),
    /// Batch sizes.
    #[error(transparent)]
    BatchSize(#[from] BatchSizeError),
    /// The loss scale.
    #[error(transparent)]
    LossScale(#[from] LossScaleError),
    /// A loss did not pass validation.
    #[error("{result} ({setting} = false goes on instead)")]
    UnexpectedResult {
        /// Found result, and its place.
        result: Box<UnexpectedResult>,
        /// The setting that asked to look.
        setting: &'static str,
    },
    /// The rerun state of a checkpoint.
    #[error(transparent)]
    RerunState(#[from] RerunCheckpointError),
    /// `ddp.check_for_nan_in_grad` found something.
    #[error("iteration {iteration}: the gradient norm is {norm} (ddp.check_for_nan_in_grad = false skips such steps)")]
    GradientNotFinite {
        /// The step.
        iteration: u64,
        /// The norm.
        norm: f64,
    },
    /// Data-parallel replicas have other parameters
    /// (`train.check_weight_hash_across_dp_replicas_interval`).
    #[error("iteration {iteration}: replicas of the model do not have the same parameters; {since}; {found}")]
    ReplicasDiffer {
        /// The last iteration before they were compared.
        iteration: u64,
        /// Ranks with other parameters than most, their hosts and devices, and what differs.
        found: String,
        /// When they were equal.
        since: String,
    },
    /// `train.max_consecutive_skipped_iterations` iterations in a row had gradients or losses that
    /// are not finite.
    #[error(
        "iteration {iteration}: the last {count} iterations taught the model nothing, their gradients or losses were not finite \
         (train.max_consecutive_skipped_iterations); {}",
        match last_good {
            Some(folder) => format!("the last good checkpoint is {}", folder.display()),
            None => "no checkpoint from before them is left".to_owned(),
        }
    )]
    NothingLearned {
        /// The last of them.
        iteration: u64,
        /// Number of iterations.
        count: u64,
        /// The checkpoint saved last before the first of them.
        last_good: Option<PathBuf>,
    },
    /// A subsystem of the program failed.
    #[error("{name}: {source}")]
    Subsystem {
        /// Name of the subsystem.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Signals cannot be watched.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// A log file cannot be written.
    #[error("{what}: {message}")]
    Log {
        /// Name of the input.
        what: String,
        /// Why.
        message: String,
    },
    /// The records that a run would go on with are damaged, or no files.
    #[error("{what}: {message}")]
    DamagedLog {
        /// Name of the input.
        what: String,
        /// Why.
        message: String,
    },
    /// A setting of a log cannot be followed.
    #[error("{key}: {message}")]
    Sink {
        /// The setting.
        key: &'static str,
        /// Description of the fault.
        message: String,
    },
    /// A folder cannot be written to.
    #[error("{key}: cannot use {}: {message}", path.display())]
    Folder {
        /// The setting that names it.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// The disk of a folder is full, or a quota is used up: another start may find room.
    #[error("{key}: the disk of {} is full: {message}", path.display())]
    DiskFull {
        /// The setting that names the folder.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// Message of the system.
        message: String,
    },
    /// Another run writes to a folder of this one.
    #[error("{key}: another run (process {holder}) is writing to {}; wait for it, or choose another folder", path.display())]
    InUse {
        /// The setting that names the folder.
        key: &'static str,
        /// The folder.
        path: PathBuf,
        /// The other process's number.
        holder: String,
    },
    /// The ranks cannot be laid out, or could not make their groups.
    #[error(transparent)]
    Mesh(#[from] MeshSetupError),
    /// An operation between ranks.
    #[error("{0}")]
    Communication(#[source] CommError),
    /// The pipeline's schedule cannot run the micro-batches of a step.
    #[error("pipeline schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// Ranks were started with different recipes.
    #[error(
        "the ranks were given different recipes: {} of {size} {} than the others (this is rank {rank}); start all ranks with the same \
         recipe and overrides",
        ranks(others),
        if others.len() == 1 { "has another" } else { "have others" }
    )]
    RecipesDiffer {
        /// The rank that reports it.
        rank: usize,
        /// The ranks whose recipe is not that of most ranks.
        others: Vec<usize>,
        /// Number of ranks.
        size: usize,
    },
    /// Another rank could not go on, and said why.
    #[error("stopped because rank {rank} failed while {doing}; its own message says why")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Activity of all ranks.
        doing: String,
        /// True if the input is at fault.
        is_bad_input: bool,
        /// The same as a communication error.
        source: CommError,
    },
    /// The run was asked to stop before it had begun to train. That is no failure; there is nothing
    /// to save.
    #[error("{0}; training had not begun")]
    Stopped(ExitReason),
    /// A rank panicked.
    #[error("rank {rank} panicked: {message} (last operation: {operation})")]
    RankPanicked {
        /// The rank.
        rank: usize,
        /// Message of the panic.
        message: String,
        /// Last known operation with other ranks.
        operation: String,
    },
    /// Section timeouts are asked for, and nobody looks at them.
    #[error(
        "ft.enable_ft_package: nobody watches this run; `bridge train RECIPE --max-restarts N` does (a program names a monitor's socket in \
         `RunOptions.rank_env`)"
    )]
    NoMonitor,
    /// A rank could not be started.
    #[error("rank {rank} could not be started: {message}")]
    RankNotStarted {
        /// The rank.
        rank: usize,
        /// Why.
        message: String,
    },
    /// A segment of the model got or returned other tensors than the model declares.
    #[error(transparent)]
    Boundary(BoundaryError),
    /// The model's head does not compute custom losses.
    #[error(transparent)]
    Outputs(PipelineError),
    /// The program has replaced the output projection, and the forward step brings no loss.
    #[error(
        "the model has a layer of the program's in place of its output projection, and so no loss of its own: expected a custom loss \
         (`ForwardStep::custom_loss`) for each micro-batch"
    )]
    NoLoss,
    /// A broken invariant of Bridge itself.
    #[error("internal error: {0}")]
    Internal(String),
}

fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

impl From<CommError> for TrainError {
    fn from(error: CommError) -> Self {
        Self::Communication(error)
    }
}

impl From<PipelineError> for TrainError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Schedule(error) => Self::Schedule(error),
            PipelineError::Comm(error) => Self::Communication(error),
            PipelineError::Boundary(error) => Self::Boundary(error),
            error @ PipelineError::NoOutputs => Self::Outputs(error),
        }
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

impl From<OpenError> for TrainError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Damaged { what, source } => Self::DamagedLog { what, message: source.to_string() },
            OpenError::Log { what, source } => Self::log(what, source),
            OpenError::Setting { key, message } => Self::Sink { key, message },
        }
    }
}

impl TrainError {
    /// A log file that cannot be written.
    pub(in crate::train) fn log(what: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self::Log { what: what.into(), message: error.to_string() }
    }

    /// True if the user's input is at fault (exit code 2) rather than the run (exit code 1).
    pub fn is_bad_input(&self) -> bool {
        if let Self::Checkpoint(error) = self {
            return error.is_bad_input();
        }
        matches!(
            self,
            Self::Config(_)
                | Self::SelectDevice(_)
                | Self::CutParameter(_)
                | Self::NotEnoughMemory(_)
                | Self::GraphsOfThreads
                | Self::NotRecordable
                | Self::ExtraTensors { .. }
                | Self::Nccl { .. }
                | Self::Data(_)
                | Self::UnknownToken { .. }
                | Self::Tokenizer(_)
                | Self::Model(_)
                | Self::NoCheckpoint { .. }
                | Self::ForeignWeights(_)
                | Self::AnotherBase { .. }
                | Self::AnotherModel { .. }
                | Self::Unmatched { .. }
                | Self::Folder { .. }
                | Self::NoMonitor
                | Self::Sink { .. }
                | Self::DamagedLog { .. }
                | Self::InUse { .. }
                | Self::ForeignOptimizerState { .. }
                | Self::SchedulerState(_)
                | Self::Scheduler(_)
                | Self::BatchSize(_)
                | Self::LossScale(_)
                | Self::Schedule(_)
                | Self::RecipesDiffer { .. }
                | Self::Mesh(MeshSetupError::Mesh(_) | MeshSetupError::WorldSize { .. })
                | Self::OtherRank { is_bad_input: true, .. }
        )
    }
}
