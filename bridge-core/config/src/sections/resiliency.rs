//! `[rng]`, `[rerun_state_machine]`, `[ft]`, `[straggler]`, `[nvrx_straggler]`,
//! `[inprocess_restart]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{ErrorInjectionType, RerunMode, RestartGranularity, SimulatedFault};
use super::super::limits::Limits;
use super::super::refusal::no_counterpart;
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;

section! {
    /// Random seeds.
    pub struct RngConfig {
        /// Base seed.
        seed: u64 = 1234, Limits::between(1.0, 4_294_967_295.0);
        refused te_rng_tracker = false, "Transformer Engine's tracker."
            => no_counterpart("Transformer Engine's random states; random numbers are functions of seed and position");
        refused inference_rng_tracker = false, "Tracker of inference."
            => no_counterpart("random states of inference; random numbers are functions of seed and position");
        refused data_parallel_random_init = false, "Different initial weights per data-parallel rank, then broadcast."
            => no_counterpart("different initial weights per replica, followed by a broadcast; all replicas draw the same");
    }
}

section! {
    /// Result validation and fault injection.
    pub struct RerunStateMachineConfig {
        /// Inject one fault per this many validations; 0 means never.
        error_injection_rate: usize = 0, Limits::SIZE_OR_ZERO,
            idle_unless("rerun_state_machine.rerun_mode = validate_results");
        /// Kind of injected fault.
        error_injection_type: ErrorInjectionType = ErrorInjectionType::TransientError,
            idle_unless("rerun_state_machine.error_injection_rate");
        /// Operating mode.
        rerun_mode: RerunMode = RerunMode::Disabled,
            needs("rerun_state_machine.check_for_nan_in_loss | rerun_state_machine.check_for_spiky_loss | ddp.check_for_nan_in_grad | ddp.check_for_large_grads: there are no results to look at otherwise");
        /// Reject NaN and infinite losses.
        check_for_nan_in_loss: bool = true;
        /// Reject unusually large losses.
        check_for_spiky_loss: bool = false;
        /// Multiple of the largest loss seen that counts as unusual.
        spiky_loss_factor: f64 = 10.0, Limits::ABOVE_ZERO, idle_unless("rerun_state_machine.check_for_spiky_loss");
    }
}

section! {
    /// Section-timeout fault tolerance.
    pub struct FaultToleranceConfig {
        /// Let the supervisor of `bridge train --max-restarts` end a run of which a rank is too
        /// long in a section, and start it again.
        enable_ft_package: bool = false, needs("checkpoint.save: it keeps learned timeouts");
        /// Learn how long sections may take from how long they took.
        calc_ft_timeouts: bool = false, idle_unless("ft.enable_ft_package");
        /// Let a rank fail on purpose, in the first start of a run, to see what follows.
        simulate_fault: bool = false;
        /// Kind of the simulated fault.
        simulated_fault_type: SimulatedFault = SimulatedFault::Random, idle_unless("ft.simulate_fault");
        /// Rank with the simulated fault; null is random.
        simulated_fault_rank: Option<usize> = None, idle_unless("ft.simulate_fault");
        /// Seconds before it, plus up to a fifth.
        simulated_fault_base_delay: usize = 0, idle_unless("ft.simulate_fault");
    }
}

section! {
    /// Times of ranks, told each log interval.
    pub struct StragglerDetectionConfig {
        /// Tell which ranks need least and most time for a step by themselves.
        log_straggler: bool = false,
            excludes("logger.skip_train_metrics_log: times are reported each logger.log_interval");
        /// Measure from the start.
        enable_straggler_on_startup: bool = true, idle_unless("straggler.log_straggler");
        /// Measure only once the port was asked for it.
        disable_straggler_on_startup: bool = false, idle_unless("straggler.log_straggler"),
            idle_unless("straggler.enable_straggler_on_startup != false: it says the same");
        /// Port of rank 0's machine at which a request switches it on and off; 0 takes a free one.
        straggler_ctrlr_port: usize = 65_535, Limits::between(0.0, 65_535.0), idle_unless("straggler.log_straggler");
        /// Address of rank 0's machine on which that port listens; `0.0.0.0` is every address of
        /// the machine (ours).
        @execution straggler_ctrlr_host: String = "127.0.0.1".into(), idle_unless("straggler.log_straggler");
        /// Ranks told at each end.
        straggler_minmax_count: usize = 1, Limits::POSITIVE, idle_unless("straggler.log_straggler");
    }
}

section! {
    /// Scores of ranks, from 0 to 1, by the time that each needs for a step by itself.
    pub struct NvrxStragglerDetectionConfig {
        /// Enable it.
        enabled: bool = false,
            needs("nvrx_straggler.calc_relative_gpu_perf | nvrx_straggler.calc_individual_gpu_perf: there is no other score");
        /// Seconds between reports; a report has sixteen steps at least.
        report_time_interval: f64 = 300.0, Limits::ABOVE_ZERO, idle_unless("nvrx_straggler.enabled");
        /// Scores relative to other ranks of the same pipeline stage.
        calc_relative_gpu_perf: bool = true, idle_unless("nvrx_straggler.enabled");
        /// Scores relative to the past.
        calc_individual_gpu_perf: bool = true, idle_unless("nvrx_straggler.enabled");
        /// Best and worst scores printed; with 0 only stragglers are.
        num_gpu_perf_scores_to_print: usize = 5, idle_unless("nvrx_straggler.enabled"),
            idle_unless("nvrx_straggler.enable_logging");
        /// Below is a straggler, relatively.
        gpu_relative_perf_threshold: f64 = 0.7, Limits::FRACTION, idle_unless("nvrx_straggler.enabled"),
            idle_unless("nvrx_straggler.calc_relative_gpu_perf");
        /// Below is a straggler, individually.
        gpu_individual_perf_threshold: f64 = 0.7, Limits::FRACTION, idle_unless("nvrx_straggler.enabled"),
            idle_unless("nvrx_straggler.calc_individual_gpu_perf");
        /// Save and exit when a straggler was found.
        stop_if_detected: bool = false, idle_unless("nvrx_straggler.enabled");
        /// Print scores and stragglers.
        enable_logging: bool = true, idle_unless("nvrx_straggler.enabled");
        /// Steps between measurements.
        profiling_interval: usize = 1, Limits::POSITIVE, idle_unless("nvrx_straggler.enabled");
        refused logger_name = String::from("megatron.bridge.NVRxStragglerDetection"), "Name of its logger."
            => no_counterpart("the name of a Python logger; lines about slow ranks go where the run's other lines go");
    }
}

section! {
    /// In-process restart, of ranks that are threads.
    pub struct InProcessRestartConfig {
        /// Start the ranks again inside the process after one has failed.
        enabled: bool = false, needs("checkpoint.save: a run that saves nothing begins again");
        /// Starts at most, the first one included.
        max_iterations: Option<usize> = None, Limits::POSITIVE, idle_unless("inprocess_restart.enabled");
        /// Faults at most.
        max_rank_faults: Option<usize> = None, Limits::POSITIVE, idle_unless("inprocess_restart.enabled");
        refused monitor_thread_interval = 1.0, "Polling, in seconds.", Limits::ABOVE_ZERO
            => no_counterpart("how often a thread looks whether a rank has failed; ranks that are threads tell at once");
        refused monitor_process_interval = 1.0, "Polling, in seconds.", Limits::ABOVE_ZERO
            => no_counterpart("how often a second process looks at each rank; ranks are threads, and --max-restarts watches the process");
        /// Seconds between two looks whether ranks are alive.
        progress_watchdog_interval: f64 = 1.0, Limits::ABOVE_ZERO, idle_unless("inprocess_restart.enabled");
        refused heartbeat_interval = 30.0, "Seconds between heartbeats.", Limits::ABOVE_ZERO
            => no_counterpart("messages between the processes of ranks; ranks are threads, whose signs of life need no message");
        refused heartbeat_timeout = 60.0, "Seconds without a heartbeat.", Limits::ABOVE_ZERO
            => no_counterpart("messages between the processes of ranks; hard_timeout is the limit for signs of life");
        /// Seconds that ranks wait for one that does not come, once all is set up.
        soft_timeout: f64 = 60.0, Limits::ABOVE_ZERO, idle_unless("inprocess_restart.enabled");
        /// Seconds without a sign of life, after which the process begins anew.
        hard_timeout: f64 = 90.0, Limits::ABOVE_ZERO, idle_unless("inprocess_restart.enabled");
        refused barrier_timeout = 120.0, "Seconds of internal barriers.", Limits::ABOVE_ZERO
            => no_counterpart("barriers between processes before a restart; ranks are threads, which are waited for");
        refused completion_timeout = 120.0, "Seconds of completion.", Limits::ABOVE_ZERO
            => no_counterpart("how long processes that are done wait for others; the last thing that ranks do, they do together");
        refused last_call_wait = 1.0, "Seconds to collect faults.", Limits::NON_NEGATIVE
            => no_counterpart("how long faults are collected before a restart; all ranks have ended by then, and their faults are known");
        refused termination_grace_time = 1.0, "Seconds between termination and killing.", Limits::NON_NEGATIVE
            => no_counterpart("the time between two signals to a process; a thread that hangs is ended with its process");
        /// Unit that a spare rank replaces.
        granularity: RestartGranularity = RestartGranularity::Node, idle_unless("inprocess_restart.enabled"),
            idle_unless("inprocess_restart.active_world_size: there are no spare ranks");
        /// Working ranks; the rest are spare.
        active_world_size: Option<usize> = None, Limits::POSITIVE, idle_unless("inprocess_restart.enabled");
        refused empty_cuda_cache = true, "Free caches on restart."
            => no_counterpart("whether it empties PyTorch's cache of device memory");
        refused monitor_process_logdir = None::<PathBuf>, "Monitor logs."
            => no_counterpart("where a second process for each rank writes; there is none");
    }
}
