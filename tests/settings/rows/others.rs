//! Settings outside of sections, `[rng]`, `[rerun_state_machine]` and `[generate]`.

use super::super::contexts::{text, tiny, tiny_with};
use super::super::row::{AS_IT_IS, Row, row, switch};

pub fn rows() -> Vec<Row> {
    [top(), results(), generation()].concat()
}

fn top() -> Vec<Row> {
    vec![
        row("name", &tiny_with(&["logger.log_dir=null"]), &[AS_IT_IS, "other"]).moves("console files"),
        row("device", &tiny(), &["flex", "vulkan"]).moves("exit"),
        row("rng.seed", &tiny(), &[AS_IT_IS, "7"]).moves("loss_1"),
    ]
}

fn results() -> Vec<Row> {
    let validating = tiny_with(&["rerun_state_machine.rerun_mode=validate_results", "train.train_iters=6"]);
    let injecting = validating.with(&["rerun_state_machine.error_injection_rate=3"]);
    let burst = tiny_with(&[
        "dataset={kind='mock'}",
        "optimizer.optimizer=sgd",
        "optimizer.adam_beta2=null",
        "optimizer.lr=30",
        "optimizer.min_lr=30",
        "optimizer.clip_grad=0",
        "train.train_iters=10",
    ]);
    // The first hundred losses give the normal range, and the loss of step 6 is outside of it.
    let rising = burst.with(&[
        "train.train_iters=6",
        "train.global_batch_size=40",
        "train.micro_batch_size=1",
        "optimizer.lr=60",
        "optimizer.min_lr=60",
        "scheduler.lr_warmup_iters=4",
    ]);
    vec![
        row("rerun_state_machine.error_injection_rate", &validating, &[AS_IT_IS, "3"]).moves("exit"),
        row("rerun_state_machine.error_injection_type", &injecting, &["transient_error", "correct_result"])
            .moves("exit"),
        // A fault of one device looks like a correct result until the run goes on on another
        // machine.
        row("rerun_state_machine.error_injection_type", &injecting, &["transient_error", "persistent_error"])
            .moves("exit")
            .holds(0, "exit", "17")
            .holds(1, "exit", "16"),
        row("rerun_state_machine.rerun_mode", &burst, &["disabled", "validate_results"]).moves("exit"),
        row("rerun_state_machine.rerun_mode", &tiny(), &["disabled", "report_determinism_stats"])
            .moves("console")
            .holds(1, "console", "differences between the two passes of each of"),
        row("rerun_state_machine.check_for_nan_in_loss", &burst, &[AS_IT_IS, "false"]).moves("exit"),
        switch("rerun_state_machine.check_for_spiky_loss", &rising).moves("console"),
        row(
            "rerun_state_machine.spiky_loss_factor",
            &rising.with(&["rerun_state_machine.check_for_spiky_loss=true"]),
            &[AS_IT_IS, "1e6"],
        )
        .moves("console"),
    ]
}

fn generation() -> Vec<Row> {
    let sampled = text().with(&["generate.prompt=the river", "generate.max_tokens=16"]);
    vec![
        row("generate.prompt", &text(), &[AS_IT_IS, "the river", "under"]).moves("console"),
        row("generate.max_tokens", &sampled, &["16", "8"]).moves("console"),
        row("generate.temperature", &sampled, &["0", "0.8", "3"]).moves("console"),
        row("generate.top_k", &sampled, &[AS_IT_IS, "2"]).moves("console"),
        row("generate.top_p", &sampled, &[AS_IT_IS, "0.1"]).moves("console"),
        row("generate.seed", &sampled, &[AS_IT_IS, "7"]).moves("console"),
    ]
}
