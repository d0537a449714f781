//! `[checkpoint]`.

use super::super::contexts::{text, tiny, tiny_with};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Run;

pub fn rows() -> Vec<Row> {
    [saves(), loads()].concat()
}

/// A run that goes on from step 2 to step 4, where it has what it needs.
fn resumed(overrides: &[&str]) -> Run {
    tiny_with(&["train.train_iters=4"]).after(&["train.exit_interval=2"]).with(overrides)
}

fn saves() -> Vec<Row> {
    let often = tiny_with(&["checkpoint.save_interval=1", "train.train_iters=4"]);
    vec![
        row("checkpoint.save", &tiny(), &[AS_IT_IS, "null"]).moves("iteration"),
        row("checkpoint.save_interval", &tiny(), &[AS_IT_IS, "2"]).moves("console files"),
        row("checkpoint.most_recent_k", &often, &[AS_IT_IS, "1", "2"]).moves("console files"),
        switch("checkpoint.keep_best", &tiny_with(&["validation.eval_interval=1"])).moves("console files state"),
        row("checkpoint.save_retain_interval", &often.with(&["checkpoint.most_recent_k=1"]), &[AS_IT_IS, "2"])
            .moves("console files"),
        row("checkpoint.save_optim", &tiny(), &[AS_IT_IS, "false"]).moves("files moments shapes slices state"),
        row("checkpoint.save_rng", &tiny(), &[AS_IT_IS, "false"]).moves("state"),
        row("checkpoint.save_tokenizer_assets", &text(), &[AS_IT_IS, "false"]).moves("files"),
        switch("checkpoint.async_save", &tiny_with(&["logger.log_progress=true"])).moves("progress"),
    ]
}

fn loads() -> Vec<Row> {
    let twice = tiny_with(&["train.train_iters=4"]).after(&["train.exit_interval=2", "checkpoint.save_interval=1"]);
    vec![
        row("checkpoint.load", &resumed(&["checkpoint.save=new"]), &[AS_IT_IS, "ckpt"])
            .moves("loss_1 batch_size console consumed_samples events learning_rate loss_scale skipped weight_decay"),
        row("checkpoint.load_optim", &resumed(&[]), &[AS_IT_IS, "false"]).moves("params learning_rate console"),
        row("checkpoint.load_rng", &resumed(&["rng.seed=99", "model.hidden_dropout=0.1"]), &[AS_IT_IS, "false"])
            .moves("loss_1 console"),
        switch("checkpoint.finetune", &resumed(&["checkpoint.save=new", "checkpoint.load=ckpt"]))
            .moves("loss_1 batch_size console consumed_samples events learning_rate loss_scale skipped weight_decay"),
        row("checkpoint.pretrained_checkpoint", &resumed(&["checkpoint.save=new"]), &[AS_IT_IS, "ckpt"])
            .moves("loss_1 console"),
        row(
            "checkpoint.allow_model_changes",
            &resumed(&["model.layernorm_epsilon=1e-3"]),
            &[AS_IT_IS, "[\"layernorm_epsilon\"]"],
        )
        .moves("exit"),
        row("checkpoint.ckpt_step", &twice.with(&["checkpoint.load=ckpt", "checkpoint.save=new"]), &[AS_IT_IS, "1"])
            .moves("loss_1 batch_size console consumed_samples events learning_rate loss_scale skipped weight_decay"),
        switch("checkpoint.exit_on_missing_checkpoint", &tiny_with(&["checkpoint.load=nothing"])).moves("exit"),
        row(
            "checkpoint.on_damaged",
            &twice.with_damaged("ckpt/iter_0000002/model-rank00000.safetensors"),
            &["fallback", "error"],
        )
        .moves("exit"),
    ]
}
