//! `[train]` and `[validation]`.

use super::super::contexts::{examples, on, text, tiny, tiny_with, watched};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Meddling;

pub fn rows() -> Vec<Row> {
    [batches(), length(), exits(), evaluations()].concat()
}

fn batches() -> Vec<Row> {
    vec![
        row("train.micro_batch_size", &tiny(), &[AS_IT_IS, "1"]).moves("params").nearly("loss grad_norm"),
        row("train.global_batch_size", &tiny(), &[AS_IT_IS, "8"])
            .moves("loss_1 batch_size consumed_samples counts events flops")
            .moves("test.consumed_samples test.num_samples valid.consumed_samples valid.num_samples")
            .holds(1, "batch_size", "8 8 8"),
        row("train.rampup_batch_size", &tiny(), &[AS_IT_IS, "[2, 2, 4]"])
            .moves("loss_1 batch_size consumed_samples counts events flops console files")
            .moves("test.consumed_samples valid.consumed_samples")
            .holds(1, "batch_size", "2 2 4"),
        switch("train.decrease_batch_size_if_needed", &on(3, &["train.global_batch_size=7"])).moves("exit").holds(
            1,
            "batch_size",
            "6 6 6",
        ),
        row("train.iterations_to_skip", &tiny(), &[AS_IT_IS, "[2]"])
            .moves("params moments batch_size console consumed_samples counts events flops learning_rate loss_scale")
            .moves("skipped weight_decay"),
        row("train.train_sync_interval", &tiny(), &[AS_IT_IS, "1"]).moves("console").holds(
            1,
            "console",
            "computes synchronously",
        ),
        row("train.check_memory", &tiny(), &[AS_IT_IS, "false"]).moves("console").holds(1, "console", "not checked"),
        row("train.num_threads", &watched(&tiny()), &[AS_IT_IS, "3"]).moves("threads").holds(1, "threads", "compute-2"),
    ]
}

fn length() -> Vec<Row> {
    let by_samples = tiny_with(&["train.train_iters=null", "scheduler.lr_warmup_iters=null"]);
    vec![
        row("train.train_iters", &tiny(), &[AS_IT_IS, "4"]).moves("iteration").holds(1, "iteration", "4"),
        row("train.num_epochs", &examples().with(&["train.train_iters=null"]), &["1", "4"]).moves("iteration"),
        row("train.train_samples", &by_samples, &["12", "16"]).moves("iteration").holds(0, "iteration", "3").holds(
            1,
            "iteration",
            "4",
        ),
    ]
}

fn exits() -> Vec<Row> {
    let diverging = tiny_with(&[
        "train.train_iters=16",
        "optimizer.optimizer=sgd",
        "optimizer.adam_beta2=null",
        "optimizer.lr=900",
        "optimizer.min_lr=900",
        "optimizer.clip_grad=0",
        "rerun_state_machine.check_for_nan_in_loss=false",
    ]);
    let long = tiny_with(&["train.train_iters=3000"]);
    let slow =
        long.with(&["train.micro_batch_size=500", "train.global_batch_size=500", "checkpoint.save_interval=1000"]);
    // No later evaluation is that much better than the first.
    let evaluated = tiny_with(&["validation.eval_interval=1", "train.train_iters=6"]);
    let demanding = evaluated.with(&["train.early_stopping_min_delta=100"]);
    vec![
        row("train.early_stopping_patience", &demanding, &["2", "3"])
            .moves("iteration")
            .holds(0, "iteration", "3")
            .holds(1, "iteration", "4"),
        row(
            "train.early_stopping_min_delta",
            &evaluated.with(&["train.early_stopping_patience=2"]),
            &[AS_IT_IS, "100"],
        )
        .moves("iteration")
        .holds(1, "iteration", "3"),
        row("train.max_consecutive_skipped_iterations", &diverging, &[AS_IT_IS, "2"])
            .moves("exit")
            .holds(1, "exit", "1"),
        row("train.exit_interval", &tiny(), &[AS_IT_IS, "2"]).moves("iteration").holds(1, "iteration", "2"),
        row("train.exit_duration_in_mins", &tiny(), &[AS_IT_IS, "1e-7"]).moves("iteration").holds(1, "iteration", "1"),
        row("train.exit_signal", &long.while_(Meddling::Signal("USR1")), &[AS_IT_IS, "SIGUSR1"])
            .moves("exit")
            .holds(1, "exit", "138"),
        row("train.exit_signal", &long.while_(Meddling::Signal("USR2")), &[AS_IT_IS, "SIGUSR2"])
            .moves("exit")
            .holds(1, "exit", "140"),
        // A micro-batch that takes seconds cannot be interrupted, so there is no time to save.
        row("train.exit_signal_deadline_s", &slow.while_(Meddling::Signal("TERM")), &[AS_IT_IS, "0.01"])
            .moves("exit")
            .holds(0, "exit", "143")
            .holds(1, "exit", "18")
            .holds(1, "stderr", "could not be saved in time"),
    ]
}

fn evaluations() -> Vec<Row> {
    let evaluated = tiny_with(&["validation.eval_interval=1", "checkpoint.keep_best=true"]);
    let wide = tiny_with(&["validation.eval_global_batch_size=16"]);
    let no_validation = tiny_with(&["validation={}"]);
    let several = tiny_with(&[
        "dataset.data_path=null",
        "dataset.split=null",
        "dataset.blend_per_split=[[['data/tokens']], [['data/more', 'data/tokens']], 'null']",
    ]);
    vec![
        row("train.eval_iters", &no_validation, &["1", "2"])
            .moves("valid.loss valid.num_samples test.loss test.num_samples"),
        row("train.eval_interval", &tiny(), &[AS_IT_IS, "2"])
            .moves("console counts events valid.consumed_samples valid.loss valid.num_samples"),
        row("train.skip_train", &tiny(), &["false", "true"]).moves("iteration loss_1").holds(1, "loss_1", ""),
        row("validation.eval_iters", &tiny(), &[AS_IT_IS, "2"])
            .moves("test.loss test.num_samples valid.loss valid.num_samples"),
        row("validation.eval_interval", &tiny(), &[AS_IT_IS, "2"])
            .moves("console counts events valid.consumed_samples valid.loss valid.num_samples"),
        row("validation.start_eval_at_iter", &tiny_with(&["validation.eval_interval=1"]), &[AS_IT_IS, "3"])
            .moves("console counts events valid.consumed_samples valid.loss valid.num_samples")
            .holds(1, "valid.consumed_samples", "12 12"),
        row("validation.eval_global_batch_size", &tiny(), &[AS_IT_IS, "8"])
            .moves("test.loss test.num_samples valid.loss valid.num_samples"),
        row("validation.eval_micro_batch_size", &wide, &["16", "1"]).moves("valid.loss"),
        switch("validation.skip_train", &tiny()).moves("iteration loss_1").holds(1, "loss_1", ""),
        row("validation.metric", &evaluated, &[AS_IT_IS, "\"no loss\""]).moves("exit").holds(
            1,
            "stderr",
            "expected: one of \"lm loss\"",
        ),
        switch("validation.multiple_validation_sets", &several)
            .moves("valid.loss valid.losses valid.num_samples console events keys"),
        switch("validation.full_validation", &tiny()).moves("valid.loss valid.num_samples"),
        switch("validation.full_validation", &text()).moves("valid.loss valid.num_samples"),
    ]
}
