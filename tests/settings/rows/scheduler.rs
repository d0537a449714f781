//! `[scheduler]`.

use super::super::contexts::{tiny, tiny_with};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Program;

pub fn rows() -> Vec<Row> {
    [rates(), decay(), resumed()].concat()
}

fn rates() -> Vec<Row> {
    let schedule = tiny_with(&["train.train_iters=8"]).by(Program::Schedule);
    let wsd = schedule.with(&["scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=4"]);
    let by_samples =
        schedule.with(&["train.train_iters=null", "train.train_samples=32", "scheduler.lr_warmup_iters=null"]);
    let wsd_samples = by_samples.with(&["scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_samples=16"]);
    let no_warmup = schedule.with(&["scheduler.lr_warmup_iters=null"]);
    vec![
        row(
            "scheduler.lr_decay_style",
            &wsd.with(&["scheduler.lr_wsd_decay_iters=null", "scheduler.lr_decay_style=null"]),
            &[
                "constant & optimizer.min_lr=null",
                "linear",
                "cosine",
                "inverse-square-root",
                "WSD & scheduler.lr_wsd_decay_iters=4",
            ],
        )
        .moves("output"),
        row(
            "scheduler.lr_decay_style",
            &tiny_with(&["train.train_iters=4"]),
            &[AS_IT_IS, "constant & optimizer.min_lr=null"],
        )
        .moves("learning_rate params")
        .holds(1, "learning_rate", "0.0 0.0005 0.001 0.001"),
        row("scheduler.lr_wsd_decay_style", &wsd, &["exponential", "linear", "cosine", "minus_sqrt"]).moves("output"),
        row("scheduler.lr_decay_iters", &schedule, &[AS_IT_IS, "5"]).moves("output"),
        row("scheduler.lr_decay_samples", &by_samples, &[AS_IT_IS, "20"]).moves("output"),
        row("scheduler.lr_wsd_decay_iters", &wsd, &[AS_IT_IS, "3"]).moves("output"),
        row("scheduler.lr_wsd_decay_samples", &wsd_samples, &[AS_IT_IS, "8"]).moves("output"),
        row("scheduler.lr_warmup_fraction", &no_warmup, &[AS_IT_IS, "0.5"]).moves("output"),
        row("scheduler.lr_warmup_iters", &schedule, &[AS_IT_IS, "5"]).moves("output").holds(
            1,
            "output",
            "{\"iteration\":2,\"learning_rate\":0.0002,",
        ),
        row("scheduler.lr_warmup_iters", &tiny(), &[AS_IT_IS, "1"]).moves("learning_rate params").holds(
            1,
            "learning_rate",
            "0.0 0.001",
        ),
        row("scheduler.lr_warmup_samples", &by_samples, &[AS_IT_IS, "12"]).moves("output"),
        row("scheduler.lr_warmup_init", &schedule, &[AS_IT_IS, "1e-4"]).moves("output").holds(
            1,
            "output",
            "{\"iteration\":1,\"learning_rate\":0.0001,",
        ),
    ]
}

fn decay() -> Vec<Row> {
    let growing = tiny_with(&["scheduler.weight_decay_incr_style=linear", "scheduler.end_weight_decay=0.2"]);
    vec![
        row("scheduler.start_weight_decay", &growing, &[AS_IT_IS, "0.01 & optimizer.weight_decay=null"])
            .moves("params weight_decay")
            .holds(1, "weight_decay", "0.01 "),
        row("scheduler.end_weight_decay", &growing, &[AS_IT_IS, "0.3"]).moves("params weight_decay"),
        row(
            "scheduler.weight_decay_incr_style",
            &tiny_with(&["scheduler.start_weight_decay=0.1", "scheduler.end_weight_decay=0.3"]),
            &["linear", "cosine"],
        )
        .moves("params weight_decay"),
        row("scheduler.weight_decay_incr_style", &growing, &["constant & scheduler.end_weight_decay=null", AS_IT_IS])
            .moves("params weight_decay"),
    ]
}

fn resumed() -> Vec<Row> {
    let resumed = tiny_with(&["train.train_iters=5", "optimizer.lr=2e-3"]).after(&[
        "train.train_iters=5",
        "train.exit_interval=2",
        "optimizer.lr=1e-3",
    ]);
    vec![
        switch("scheduler.override_opt_param_scheduler", &resumed).moves("exit").holds(1, "learning_rate", "0.002 "),
        switch("scheduler.use_checkpoint_opt_param_scheduler", &resumed).moves("exit").holds(
            1,
            "learning_rate",
            "0.001 ",
        ),
    ]
}
