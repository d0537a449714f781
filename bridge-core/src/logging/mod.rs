//! What a run tells the outside: console lines, metrics files, TensorBoard events, progress, plots, timers.
//! Everything is a value that is passed around; there is no global logger. Nothing here decides what training does.

mod json_value;
mod memory;
mod progress;
mod record;
mod report;
mod sink;
mod sinks;
pub mod tensorboard;
mod timers;
mod training_log;

pub use json_value::MetricValue;
pub use memory::{DeviceMemory, HostMemory, MemoryOfRanks, RankMemory};
pub use progress::{
    NoProgress, PlainProgress, ProgressHandle, ProgressMode, ProgressSink, ProgressTask, TerminalProgress,
};
pub use record::{
    Figure, FigureKind, LogLevel, Occasion, Part, Record, RecordKind, RunEnd, RunStart, SaveRecord, SaveStage, Scope,
    Split, Tag,
};
pub use report::{
    MEMORY_KEYS, RuntimeReport, ThroughputWindow, TimeUnit, UnknownTimeUnit, format_memory_report, report_l2_norm_grad,
    report_memory,
};
pub use sink::{OpenError, Opened, Sink, SinkContext, SinkError};
pub use sinks::{ConsoleSink, LogFormat, RankLog, Verbosity, open_sinks, timestamp};
pub use timers::{
    RankTimers, Stopwatch, TimerGuard, TimerLevel, TimerReport, Timers, TimingLogLevel, TimingLogOption,
    UnknownTimingLogLevel,
};
pub use training_log::{GIB, IntervalLosses, StepOutcome, TrainingLog, clock, perplexity, scientific};
