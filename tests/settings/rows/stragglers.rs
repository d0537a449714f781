//! `[straggler]` and `[nvrx_straggler]`.

use super::super::contexts::on;
use super::super::row::{AS_IT_IS, Row, row, switch, switch_off};

pub fn rows() -> Vec<Row> {
    [times(), scores()].concat()
}

fn times() -> Vec<Row> {
    let told = on(2, &["straggler.log_straggler=true", "straggler.straggler_ctrlr_port=0"]);
    let line = "time of ranks' own in a step";
    vec![
        row("straggler.log_straggler", &on(2, &[]), &["false", "true & straggler.straggler_ctrlr_port=0"])
            .moves("console")
            .holds(1, "console", line),
        switch_off("straggler.enable_straggler_on_startup", &told).moves("console").holds(0, "console", line),
        switch("straggler.disable_straggler_on_startup", &told).moves("console").holds(0, "console", line),
        // `tests/ranks/stragglers.rs` tests the effect of a request.
        row("straggler.straggler_ctrlr_port", &told, &["0", "65531"]).moves("console").holds(
            0,
            "console",
            "a free port",
        ),
        // An address for documents (RFC 5737), which no machine has.
        row("straggler.straggler_ctrlr_host", &told, &[AS_IT_IS, "192.0.2.1"]).moves("console").holds(
            1,
            "console",
            "cannot listen",
        ),
        row("straggler.straggler_ctrlr_host", &told, &[AS_IT_IS, "here"]).moves("exit").holds(
            1,
            "stderr",
            "is not an IP address",
        ),
        row("straggler.straggler_minmax_count", &told, &[AS_IT_IS, "2"]).moves("console"),
    ]
}

fn scores() -> Vec<Row> {
    // Reports after 17 steps and 33; the first step is not counted.
    let trained = on(2, &["train.train_iters=40", "logger.log_interval=40"]);
    let scored = trained.with(&["nvrx_straggler.enabled=true", "nvrx_straggler.report_time_interval=0.001"]);
    // No two ranks are as fast as each other.
    let stopping =
        scored.with(&["nvrx_straggler.gpu_relative_perf_threshold=1.0", "nvrx_straggler.stop_if_detected=true"]);
    let (relative, individual) = ("relative to other ranks: best", "relative to their past: best");
    vec![
        row("nvrx_straggler.enabled", &trained, &["false", "true & nvrx_straggler.report_time_interval=0.001"])
            .moves("console files")
            .holds(1, "console", relative),
        row("nvrx_straggler.report_time_interval", &scored, &[AS_IT_IS, "300"])
            .moves("console")
            .holds(0, "console", individual),
        switch_off("nvrx_straggler.calc_relative_gpu_perf", &scored).moves("console").holds(0, "console", relative),
        switch_off("nvrx_straggler.calc_individual_gpu_perf", &scored).moves("console").holds(0, "console", individual),
        row("nvrx_straggler.num_gpu_perf_scores_to_print", &scored, &[AS_IT_IS, "0"])
            .moves("console")
            .holds(0, "console", relative),
        row("nvrx_straggler.gpu_relative_perf_threshold", &scored, &["0.0", "1.0"]).moves("console").holds(
            1,
            "console",
            "relative to other ranks is below",
        ),
        // In some of eight windows one of the ranks is slower than before.
        row("nvrx_straggler.gpu_individual_perf_threshold", &scored.with(&["train.train_iters=140"]), &["0.0", "1.0"])
            .moves("console")
            .holds(1, "console", "relative to their past is below"),
        row("nvrx_straggler.stop_if_detected", &stopping, &["false", AS_IT_IS])
            .moves("iteration")
            .holds(0, "iteration", "40")
            .holds(1, "iteration", "17"),
        switch_off("nvrx_straggler.enable_logging", &stopping).moves("console").holds(0, "console", relative),
        row("nvrx_straggler.profiling_interval", &scored, &[AS_IT_IS, "2"]).moves("console"),
    ]
}
