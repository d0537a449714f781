//! What a run tells the outside: console lines, metrics files, TensorBoard events, progress, plots, timers.
//! Everything is a value that is passed around; there is no global logger. Nothing here decides what training does.

mod console;
mod json_value;
mod memory;
mod metrics;
mod metrics_jsonl;
mod plot;
mod progress;
mod progress_log;
mod report;
pub mod tensorboard;
mod timers;
mod training_log;
mod validation_log;

pub use console::{Console, LogFormat, LogLevel, LogRecord, timestamp};
pub use json_value::MetricValue;
pub use memory::{DeviceMemory, HostMemory, MemoryOfRanks, RankMemory};
pub use metrics::{IntervalMetrics, IterationMetrics, MetricConditions, MetricsLogger, MetricsSink, Twin};
pub use metrics_jsonl::{MetricsFileError, MetricsRecord, MetricsWriter, read_metrics};
pub use plot::{LossPlot, PlotError};
pub use progress::{
    NoProgress, PlainProgress, ProgressHandle, ProgressMode, ProgressSink, ProgressTask, TerminalProgress,
};
pub use progress_log::{CheckpointProgress, JobStart, ProgressLog, ProgressLogError, SaveKind, read_job_start};
pub use report::{
    MEMORY_KEYS, RuntimeReport, ThroughputWindow, TimeUnit, UnknownTimeUnit, format_memory_report, report_l2_norm_grad,
    report_memory,
};
pub use timers::{
    RankTimers, Stopwatch, TimerGuard, TimerLevel, TimerReport, Timers, TimingLogLevel, TimingLogOption,
    UnknownTimingLogLevel,
};
pub use training_log::{Energy, IntervalLosses, StepOutcome, TrainingLog, TrainingLogLine, scientific};
pub use validation_log::{EvaluatedSplit, Occasion, ValidationLogLine, perplexity};
