//! Refusals of `[straggler]` and `[nvrx_straggler]`, and the key that each names.

use super::assert_all_refused;

const REFUSED: &[(&[&str], &str)] = &[
    (&["straggler.straggler_ctrlr_port=0"], "straggler.straggler_ctrlr_port"),
    (&["straggler.straggler_minmax_count=2"], "straggler.straggler_minmax_count"),
    (&["straggler.enable_straggler_on_startup=false"], "straggler.enable_straggler_on_startup"),
    (
        &[
            "straggler.log_straggler=true",
            "straggler.enable_straggler_on_startup=false",
            "straggler.disable_straggler_on_startup=true",
        ],
        "straggler.disable_straggler_on_startup",
    ),
    (&["straggler.log_straggler=true", "logger.skip_train_metrics_log=true"], "straggler.log_straggler"),
    (&["nvrx_straggler.stop_if_detected=true"], "nvrx_straggler.stop_if_detected"),
    (&["nvrx_straggler.report_time_interval=10"], "nvrx_straggler.report_time_interval"),
    (
        &[
            "nvrx_straggler.enabled=true",
            "nvrx_straggler.calc_relative_gpu_perf=false",
            "nvrx_straggler.calc_individual_gpu_perf=false",
        ],
        "nvrx_straggler.enabled",
    ),
    (&["nvrx_straggler.enabled=true", "nvrx_straggler.enable_logging=false"], "nvrx_straggler.enable_logging"),
    (
        &[
            "nvrx_straggler.enabled=true",
            "nvrx_straggler.calc_relative_gpu_perf=false",
            "nvrx_straggler.gpu_relative_perf_threshold=0.5",
        ],
        "nvrx_straggler.gpu_relative_perf_threshold",
    ),
    (
        &["nvrx_straggler.enabled=true", "nvrx_straggler.gpu_relative_perf_threshold=1.5"],
        "nvrx_straggler.gpu_relative_perf_threshold",
    ),
    (&["nvrx_straggler.enabled=true", "nvrx_straggler.logger_name=mine"], "nvrx_straggler.logger_name"),
];

#[test]
fn settings_of_slow_ranks_that_do_nothing_are_refused() {
    assert_all_refused(REFUSED);
}
