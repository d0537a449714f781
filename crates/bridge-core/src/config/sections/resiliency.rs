//! `[rng]`, `[rerun_state_machine]`, `[ft]`, `[straggler]`, `[nvrx_straggler]`,
//! `[inprocess_restart]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{ErrorInjectionType, RerunMode, RestartGranularity, SimulatedFault};
use super::super::limits::Limits;
use super::super::section::section;

section! {
    /// Random seeds.
    pub struct RngConfig {
        /// Base seed.
        seed: u64 = 1234, Limits::between(1.0, 4_294_967_295.0);
        /// Transformer Engine's tracker.
        te_rng_tracker: bool = false;
        /// Tracker of inference.
        inference_rng_tracker: bool = false;
        /// Different initial weights per data-parallel rank, then broadcast.
        data_parallel_random_init: bool = false;
    }
}

section! {
    /// Result validation and fault injection.
    pub struct RerunStateMachineConfig {
        /// Inject one fault per so many validations; 0 never.
        error_injection_rate: usize = 0, Limits::SIZE_OR_ZERO;
        /// Kind of injected fault.
        error_injection_type: ErrorInjectionType = ErrorInjectionType::TransientError;
        /// Operating mode.
        rerun_mode: RerunMode = RerunMode::Disabled;
        /// Reject NaN and infinite losses.
        check_for_nan_in_loss: bool = true;
        /// Reject unusually large losses.
        check_for_spiky_loss: bool = false;
        /// Multiple of the largest loss seen that counts as unusual.
        spiky_loss_factor: f64 = 10.0, Limits::ABOVE_ZERO;
    }
}

section! {
    /// Section-timeout fault tolerance.
    pub struct FaultToleranceConfig {
        /// Use section timeouts.
        enable_ft_package: bool = false;
        /// Learn timeouts from durations.
        calc_ft_timeouts: bool = false;
        /// Inject a process fault.
        simulate_fault: bool = false;
        /// Kind of process fault.
        simulated_fault_type: SimulatedFault = SimulatedFault::Random;
        /// Its victim; null is random.
        simulated_fault_rank: Option<usize> = None;
        /// Seconds before it.
        simulated_fault_base_delay: usize = 0;
    }
}

section! {
    /// Built-in straggler timer.
    pub struct StragglerDetectionConfig {
        /// Switch it on.
        log_straggler: bool = false;
        /// Start collecting at once.
        enable_straggler_on_startup: bool = true;
        /// Start switched off.
        disable_straggler_on_startup: bool = false;
        /// Port that toggles it.
        straggler_ctrlr_port: usize = 65_535, Limits::between(0.0, 65_535.0);
        /// Ranks listed at each end.
        straggler_minmax_count: usize = 1;
    }
}

section! {
    /// External straggler detector.
    pub struct NvrxStragglerDetectionConfig {
        /// Switch it on.
        enabled: bool = false;
        /// Seconds between checks.
        report_time_interval: f64 = 300.0, Limits::ABOVE_ZERO;
        /// Scores relative to other ranks.
        calc_relative_gpu_perf: bool = true;
        /// Scores relative to the past.
        calc_individual_gpu_perf: bool = true;
        /// Best and worst printed.
        num_gpu_perf_scores_to_print: usize = 5;
        /// Below is a straggler, relatively.
        gpu_relative_perf_threshold: f64 = 0.7, Limits::FRACTION;
        /// Below is a straggler, individually.
        gpu_individual_perf_threshold: f64 = 0.7, Limits::FRACTION;
        /// Exit after saving.
        stop_if_detected: bool = false;
        /// Log scores.
        enable_logging: bool = true;
        /// Sampling interval.
        profiling_interval: usize = 1, Limits::POSITIVE;
        /// Name of its logger.
        logger_name: String = "megatron.bridge.NVRxStragglerDetection".into();
    }
}

section! {
    /// In-process restart.
    pub struct InProcessRestartConfig {
        /// Switch it on.
        enabled: bool = false;
        /// Restarts at most.
        max_iterations: Option<usize> = None, Limits::POSITIVE;
        /// Faults of a rank at most.
        max_rank_faults: Option<usize> = None, Limits::POSITIVE;
        /// Polling, in seconds.
        monitor_thread_interval: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Polling, in seconds.
        monitor_process_interval: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Polling, in seconds.
        progress_watchdog_interval: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Seconds between signs of life.
        heartbeat_interval: f64 = 30.0, Limits::ABOVE_ZERO;
        /// Seconds without a sign of life.
        heartbeat_timeout: f64 = 60.0, Limits::ABOVE_ZERO;
        /// Seconds without progress before a warning.
        soft_timeout: f64 = 60.0, Limits::ABOVE_ZERO;
        /// Seconds without progress before termination.
        hard_timeout: f64 = 90.0, Limits::ABOVE_ZERO;
        /// Seconds of internal barriers.
        barrier_timeout: f64 = 120.0, Limits::ABOVE_ZERO;
        /// Seconds of completion.
        completion_timeout: f64 = 120.0, Limits::ABOVE_ZERO;
        /// Seconds to collect faults.
        last_call_wait: f64 = 1.0, Limits::NON_NEGATIVE;
        /// Seconds between termination and killing.
        termination_grace_time: f64 = 1.0, Limits::NON_NEGATIVE;
        /// Unit of restart.
        granularity: RestartGranularity = RestartGranularity::Node;
        /// Working ranks; the rest are spare.
        active_world_size: Option<usize> = None, Limits::POSITIVE;
        /// Free caches on restart.
        empty_cuda_cache: bool = true;
        /// Monitor logs.
        monitor_process_logdir: Option<PathBuf> = None;
    }
}
