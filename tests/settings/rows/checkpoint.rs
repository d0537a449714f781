//! `[checkpoint]`.

use super::super::contexts::{on, text, tiny, tiny_with};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Run;

pub fn rows() -> Vec<Row> {
    [saves(), loads(), taken(), temporary()].concat()
}

/// Run that resumes from step 2 to step 4, with the checkpoint that it needs.
fn resumed(overrides: &[&str]) -> Run {
    tiny_with(&["train.train_iters=4"]).after(&["train.exit_interval=2"]).with(overrides)
}

fn saves() -> Vec<Row> {
    let often = tiny_with(&["checkpoint.save_interval=1", "train.train_iters=4"]);
    vec![
        row("checkpoint.save", &tiny(), &[AS_IT_IS, "null"]).moves("iteration"),
        row("checkpoint.save_interval", &tiny(), &[AS_IT_IS, "2"]).moves("console files"),
        row("checkpoint.save_wgrads_interval", &often, &[AS_IT_IS, "2"]).moves("console files"),
        row("checkpoint.save_dgrads_interval", &often, &[AS_IT_IS, "2"]).moves("console files"),
        row("checkpoint.most_recent_k", &often, &[AS_IT_IS, "1", "2"]).moves("console files"),
        switch("checkpoint.keep_best", &tiny_with(&["validation.eval_interval=1"])).moves("console files state"),
        row("checkpoint.save_retain_interval", &often.with(&["checkpoint.most_recent_k=1"]), &[AS_IT_IS, "2"])
            .moves("console files"),
        row("checkpoint.save_optim", &tiny(), &[AS_IT_IS, "false"]).moves("files moments shapes slices state"),
        row("checkpoint.save_rng", &tiny(), &[AS_IT_IS, "false"]).moves("state"),
        row("checkpoint.save_tokenizer_assets", &text(), &[AS_IT_IS, "false"]).moves("files"),
        row("checkpoint.storage_writers_per_rank", &tiny(), &[AS_IT_IS, "3"]).moves("files slices"),
        row("checkpoint.custom_manager_class", &tiny(), &[AS_IT_IS, "elsewhere"]).moves("exit"),
        switch("checkpoint.async_save", &tiny_with(&["logger.log_progress=true"])).moves("progress"),
    ]
}

/// Settings that come from the checkpoint.
fn taken() -> Vec<Row> {
    let other = resumed(&["model.layernorm_epsilon=1e-3"]);
    let of_text = text().with(&["train.train_iters=4"]).after(&["train.exit_interval=2"]);
    let other_tokenizer = ["checkpoint.use_checkpoint_args=true", "tokenizer.special_tokens=['<x>']"];
    let divided = on(2, &["train.train_iters=4"]);
    let divided = divided.after(&["train.exit_interval=2", "model.tensor_model_parallel_size=2"]);
    vec![
        switch("checkpoint.use_checkpoint_args", &other).moves("exit"),
        switch("checkpoint.use_mp_args_from_checkpoint_args", &divided).moves("console files keys params slices"),
        row(
            "checkpoint.use_tokenizer_model_from_checkpoint_args",
            &of_text.with(&other_tokenizer),
            &[AS_IT_IS, "false"],
        )
        .moves("exit"),
    ]
}

/// Runs that end with an error, so that their temporary saves stay.
fn temporary() -> Vec<Row> {
    let broken = [
        "train.train_iters=40",
        "optimizer.lr=1000",
        "optimizer.min_lr=1000",
        "optimizer.clip_grad=0.0",
        "scheduler.lr_warmup_iters=null",
        "checkpoint.non_persistent_save_interval=1",
    ];
    let global = tiny_with(&broken).with(&["checkpoint.non_persistent_ckpt_type=global"]);
    let local = ["checkpoint.non_persistent_ckpt_type=local", "checkpoint.non_persistent_local_ckpt_dir=local"];
    let alone = tiny_with(&broken).with(&local);
    let four = on(4, &broken).with(&local);
    let copied = four.with(&["checkpoint.replication=true", "checkpoint.replication_jump=1"]);
    vec![
        row("checkpoint.non_persistent_save_interval", &global, &["1", "100"]).moves("console files"),
        row(
            "checkpoint.non_persistent_ckpt_type",
            &tiny_with(&["checkpoint.non_persistent_save_interval=1"]),
            &["global", "local & checkpoint.non_persistent_local_ckpt_dir=local", "in_memory"],
        )
        .moves("console"),
        row("checkpoint.non_persistent_global_ckpt_dir", &global, &[AS_IT_IS, "elsewhere"]).moves("console files"),
        row("checkpoint.non_persistent_local_ckpt_dir", &alone, &["local", "elsewhere"]).moves("console files"),
        row("checkpoint.replication", &four, &[AS_IT_IS, "true & checkpoint.replication_jump=1"])
            .moves("console files"),
        row("checkpoint.replication_jump", &copied, &["1", "2"]).moves("files"),
        row("checkpoint.replication_factor", &copied, &["2", "4"]).moves("console files"),
    ]
}

fn loads() -> Vec<Row> {
    let in_16_bits =
        tiny_with(&["train.train_iters=4", "mixed_precision=bf16_mixed"]).after(&["train.exit_interval=2"]);
    let twice = tiny_with(&["train.train_iters=4"]).after(&["train.exit_interval=2", "checkpoint.save_interval=1"]);
    let deeper = tiny_with(&["train.train_iters=4", "checkpoint.load_optim=false", "model.num_layers=3"])
        .with(&["checkpoint.allow_model_changes=['num_layers']"])
        .after(&["train.exit_interval=2", "model.num_layers=2"]);
    let flatter = tiny_with(&["train.train_iters=4", "checkpoint.load_optim=false", "model.num_layers=1"])
        .with(&["checkpoint.allow_model_changes=['num_layers']"])
        .after(&["train.exit_interval=2", "model.num_layers=2"]);
    vec![
        row("checkpoint.dist_ckpt_strictness", &deeper, &["assume_ok_unexpected", "log_unexpected"]).moves("exit"),
        row("checkpoint.dist_ckpt_strictness", &flatter, &["raise_unexpected", "raise_all"]).moves("exit"),
        row("checkpoint.dist_ckpt_strictness", &flatter, &["log_unexpected", "log_all"]).moves("console"),
        row("checkpoint.load", &resumed(&["checkpoint.save=new"]), &[AS_IT_IS, "ckpt"])
            .moves("loss_1 batch_size console consumed_samples events learning_rate loss_scale skipped weight_decay"),
        row("checkpoint.load_optim", &resumed(&[]), &[AS_IT_IS, "false"]).moves("params learning_rate console"),
        switch("checkpoint.load_main_params_from_ckpt", &in_16_bits.with(&["checkpoint.load_optim=false"]))
            .moves("params moments"),
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
