//! `[logger]`: names, defaults, ranges.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::choice::{Progress, TimeUnit, TimingLogOption};
use super::super::limits::Limits;
use super::super::refusal::no_counterpart;
use super::super::rule::idle_unless;
use super::super::section::section;

/// Condition: lines and figures of training steps are written.
const LOGGED: &str = "logger.skip_train_metrics_log != true: steps are not logged";
/// Condition: memory is reported.
const MEMORY: &str = "logger.log_memory_to_tensorboard | logger.log_memory_interval";

section! {
    /// Console and metric sinks.
    pub struct LoggerConfig {
        /// Steps between console lines.
        log_interval: usize = 100, Limits::POSITIVE, idle_unless(LOGGED);
        /// Log nothing about training steps except the progress bar.
        skip_train_metrics_log: bool = false;
        /// Compute the parameter norm.
        log_params_norm: bool = false, idle_unless(LOGGED);
        /// Model TFLOP/s per device on the console.
        log_throughput: bool = false, idle_unless(LOGGED);
        /// Rolling throughput metrics.
        log_throughput_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Window of the above, in steps.
        throughput_window_size: usize = 100, Limits::between(2.0, 1e9),
            idle_unless("logger.log_throughput_to_tensorboard"), idle_unless(LOGGED);
        /// Write progress.txt into `checkpoint.save`.
        log_progress: bool = false, idle_unless("checkpoint.save");
        /// Timer detail; -1 disables.
        timing_log_level: i64 = 0, Limits::between(-1.0, 2.0), idle_unless(LOGGED);
        /// Aggregation over ranks.
        timing_log_option: TimingLogOption = TimingLogOption::MinMax, idle_unless(LOGGED),
            idle_unless("logger.timing_log_level != -1: nothing is timed");
        /// Folder of event files; null is `tensorboard` in `log_dir`.
        tensorboard_dir: Option<PathBuf> = None;
        /// Steps between metric writes.
        tensorboard_log_interval: usize = 1, Limits::POSITIVE, idle_unless(LOGGED);
        /// Writer queue.
        tensorboard_queue_size: usize = 1000, Limits::POSITIVE;
        /// Timers as metrics.
        log_timers_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Loss scale as metric.
        log_loss_scale_to_tensorboard: bool = true, idle_unless(LOGGED);
        /// Perplexity as metric.
        log_validation_ppl_to_tensorboard: bool = false,
            idle_unless("validation.eval_iters | validation.full_validation: nothing is evaluated");
        /// Memory as metrics.
        log_memory_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Memory statistics to report, with their names: statistics by PyTorch's names, each with
        /// its own; null reports the process's and the device's.
        memory_keys: Option<BTreeMap<String, String>> = None, idle_unless(LOGGED), idle_unless(MEMORY);
        /// Steps between console lines about the memory of the process; null prints none.
        log_memory_interval: Option<usize> = None, Limits::POSITIVE, idle_unless(LOGGED);
        /// Also report the memory in use on the whole device, by all processes: by the driver of a
        /// GPU, of the machine on a CPU.
        log_device_memory_used: bool = false, idle_unless(LOGGED), idle_unless(MEMORY);
        /// Gradient norm of each parameter.
        log_l2_norm_grad_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Number of zero gradient entries.
        log_num_zeros_in_grad: bool = false, idle_unless(LOGGED);
        /// Largest attention score of each step, of the model and of each layer.
        log_max_attention_logit: bool = false, idle_unless(LOGGED);
        /// Runtime estimates.
        log_runtime_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Unit of the run times.
        runtime_time_unit: TimeUnit = TimeUnit::Hours, idle_unless("logger.log_runtime_to_tensorboard"),
            idle_unless(LOGGED);
        /// Barrier for level-1 timers; no effect on one rank.
        barrier_with_L1_time: bool = true, idle_unless(LOGGED),
            idle_unless("logger.timing_log_level > 0: the phases of a step are not timed");
        /// World size as metric.
        log_world_size_to_tensorboard: bool = false, idle_unless(LOGGED);
        /// Energy of a step and power, for each rank, by the counters of processors and memory.
        log_energy: bool = false, idle_unless(LOGGED);
        /// W&B project: what `wandb sync` sends is written to a folder.
        @execution wandb_project: Option<String> = None;
        /// W&B run; the recipe's name by default.
        @execution wandb_exp_name: Option<String> = None, idle_unless("logger.wandb_project");
        /// W&B folder, in which runs are below `wandb`; null is `log_dir`.
        @execution wandb_save_dir: Option<PathBuf> = None, idle_unless("logger.wandb_project");
        /// W&B entity; who sends the run by default.
        @execution wandb_entity: Option<String> = None, idle_unless("logger.wandb_project");
        /// MLflow experiment.
        @execution mlflow_experiment: Option<String> = None;
        /// MLflow run.
        @execution mlflow_run_name: Option<String> = None, idle_unless("logger.mlflow_experiment");
        /// MLflow server; `MLFLOW_TRACKING_URI` by default.
        @execution mlflow_tracking_uri: Option<String> = None, idle_unless("logger.mlflow_experiment");
        /// MLflow tags.
        @execution mlflow_tags: Option<BTreeMap<String, String>> = None, idle_unless("logger.mlflow_experiment");
        /// Comet project: what `comet upload` sends is written to an archive.
        @execution comet_project: Option<String> = None;
        /// Comet experiment.
        @execution comet_experiment_name: Option<String> = None, idle_unless("logger.comet_project");
        /// Comet workspace; the default one of who sends the run by default.
        @execution comet_workspace: Option<String> = None, idle_unless("logger.comet_project");
        refused comet_api_key = None::<String>, "Comet key."
            => no_counterpart("the key to Comet; Bridge writes an archive, and `comet upload` takes the key from COMET_API_KEY");
        /// Comet tags.
        @execution comet_tags: Option<Vec<String>> = None, idle_unless("logger.comet_project");
        /// Log level: 10 debug, 20 info, 30 warning, 40 error, 50 critical.
        logging_level: usize = 20, Limits::between(0.0, 50.0);
        refused filter_warnings = true,
            "Drops Python's warnings, of which Bridge has none; its own warnings follow `logging_level`."
            => no_counterpart("Python's warnings, of which there are none; Bridge's own follow logging_level").inert(&["false"]);
        refused modules_to_filter = None::<Vec<String>>, "Muted prefixes of Python's loggers."
            => no_counterpart("Python's loggers by name; Bridge has one, which follows logging_level").inert(&["[]"]);
        refused set_level_for_all_loggers = false, "Apply the level to every one of Python's loggers."
            => no_counterpart("Python's other loggers; Bridge has one, which follows logging_level").inert(&["true"]);
        /// File for the resolved configuration.
        save_config_filepath: Option<PathBuf> = None;
        /// Folder of logs and plots (ours); null is `runs/<name>`.
        log_dir: Option<PathBuf> = None;
        /// Address, such as `127.0.0.1:9090`, of an HTTP endpoint where Prometheus finds every
        /// figure under `/metrics` (ours).
        prometheus_addr: Option<String> = None;
        /// Address of an OpenTelemetry collector, such as `http://127.0.0.1:4318`, that is sent
        /// every figure and a span for each step (ours).
        @execution otlp_endpoint: Option<String> = None;
        /// Write metrics.jsonl (ours).
        metrics_jsonl: bool = true;
        /// Draw plots from `metrics.jsonl`, if it is written (ours).
        plot: bool = true;
        /// Display of progress on the terminal (ours).
        progress: Progress = Progress::Auto;
    }
}
