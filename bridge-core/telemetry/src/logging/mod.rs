//! Output of a run: console lines, metrics files, TensorBoard events, progress, plots. Everything
//! is a value that is passed around; there is no global logger. This crate does not control
//! training.

mod bars;
pub mod chart;
mod comet;
pub mod curves;
mod energy;
mod files;
pub mod flight;
pub mod health;
mod host;
mod json_value;
pub mod losses;
mod memory;
mod memory_snapshot;
pub mod numbers;
pub mod nvidia;
mod progress;
mod protobuf;
mod rank_timers;
mod record;
mod report;
pub mod runs;
mod sink;
mod sinks;
pub mod tensorboard;
pub mod terminal;
pub mod trace;
#[cfg(feature = "trackers")]
pub mod tracker;
mod training_log;
mod wandb;

pub use energy::EnergyCounters;
pub use files::FileError;
pub use host::host_name;
pub use json_value::MetricValue;
pub use memory::{AllocatorMemory, DeviceMemory, HostMemory, MemoryOfRanks, RankMemory, used_on_machine};
pub use memory_snapshot::{pickle as memory_pickle, table as memory_table};
pub use nvidia::{Gpu, Nvtx, ProfilerSwitch};
pub use progress::{NoProgress, PlainProgress, ProgressHandle, ProgressSink, ProgressTask, progress_sink};
pub use rank_timers::RankTimers;
pub use record::{
    Ending, Figure, LogLevel, Occasion, Record, RecordKind, RunEnd, RunStart, SaveRecord, SaveStage, Split,
};
pub use report::{RuntimeReport, ThroughputWindow, format_memory_report, report_l2_norm_grad};
pub use sink::{Deferred, MadeAgain, OpenError, Opened, Sink, SinkContext, SinkError};
pub use sinks::{ConsoleSink, LogEvent, LogFormat, RankLog, Verbosity, open_sinks, timestamp};
pub use training_log::{GIB, IntervalLosses, StepOutcome, TrainingLog, perplexity, scientific};
