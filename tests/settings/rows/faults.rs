//! `[ft]` and `[inprocess_restart]`.

use super::super::contexts::on;
use super::super::row::{AS_IT_IS, Row, row};
use super::super::run::Run;

const FAULT: [&str; 3] = ["ft.simulate_fault=true", "ft.simulated_fault_type=rank_killed", "ft.simulated_fault_rank=1"];
const RESTARTS: [&str; 2] = ["inprocess_restart.enabled=true", "inprocess_restart.progress_watchdog_interval=0.5"];
const HUNG: [&str; 3] =
    ["ft.simulated_fault_type=rank_hung", "inprocess_restart.soft_timeout=2", "inprocess_restart.hard_timeout=4"];

pub fn rows() -> Vec<Row> {
    [faults(), restarts()].concat()
}

/// Two ranks, one of which fails once, and a run that goes on.
fn restarted() -> Run {
    on(2, &FAULT).with(&RESTARTS)
}

fn faults() -> Vec<Row> {
    let supervised =
        ["--max-restarts=1", "ft.enable_ft_package=true", "train.train_iters=20", "checkpoint.save_interval=18"];
    vec![
        row("ft.enable_ft_package", &on(1, &[]), &["false", "true"]).moves("exit"),
        row("ft.calc_ft_timeouts", &on(2, &supervised), &["false", "true"]).moves("files"),
        row("ft.simulate_fault", &on(2, &[]), &["false", "true & ft.simulated_fault_type=rank_killed"]).moves("exit"),
        row("ft.simulated_fault_type", &restarted().with(&HUNG[1..]), &["rank_killed", "rank_hung"]).moves("stderr"),
        // The seed decides.
        row("ft.simulated_fault_type", &restarted().with(&HUNG[1..]), &["random", "rank_hung"]).moves("stderr"),
        row("ft.simulated_fault_rank", &on(2, &FAULT), &["1", "2"]).moves("exit"),
        row("ft.simulated_fault_base_delay", &on(2, &FAULT), &[AS_IT_IS, "1000"]).moves("exit"),
    ]
}

fn restarts() -> Vec<Row> {
    // Each start of it fails, at the same step.
    let broken =
        ["optimizer.lr=1000", "optimizer.min_lr=1000", "optimizer.clip_grad=0.0", "scheduler.lr_warmup_iters=null"];
    let broken = on(2, &broken).with(&["train.train_iters=40"]).with(&RESTARTS);
    let spare = restarted().ranks(4).with(&["inprocess_restart.active_world_size=2"]);
    let hung = restarted().with(&HUNG);
    vec![
        row("inprocess_restart.enabled", &on(2, &FAULT), &["false", "true"]).moves("exit"),
        row("inprocess_restart.max_iterations", &restarted(), &[AS_IT_IS, "1"]).moves("exit"),
        row("inprocess_restart.max_rank_faults", &broken, &[AS_IT_IS, "1"]).moves("console stderr"),
        // Seen late, the rank that waits for the one that hangs has ended.
        row(
            "inprocess_restart.progress_watchdog_interval",
            &hung.with(&["inprocess_restart.hard_timeout=0.3"]),
            &["0.5", "4"],
        )
        .moves("stderr"),
        // If the time limit of ranks exceeds the lifetime of the process, all ranks hang.
        row("inprocess_restart.soft_timeout", &hung, &["1", "100"]).moves("stderr"),
        row("inprocess_restart.hard_timeout", &hung, &["0.3", "4"]).moves("stderr"),
        row("inprocess_restart.granularity", &spare, &["node", "rank"]).moves("stderr"),
        row("inprocess_restart.active_world_size", &on(4, &[]).with(&RESTARTS), &[AS_IT_IS, "2"])
            .moves("moments params valid.loss"),
    ]
}
