//! `[model]`: how a model is spread over ranks.

use super::super::contexts::{moe, on, tiny, watched};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::{Program, Run};

pub fn rows() -> Vec<Row> {
    [sizes(), stages(), schedules()].concat()
}

/// A pipeline of two stages.
fn two_stages(overrides: &[&str]) -> Run {
    on(2, &["model.num_layers=4", "model.pipeline_model_parallel_size=2"]).with(overrides)
}

fn sizes() -> Vec<Row> {
    let experts = moe().ranks(2).with(&["train.global_batch_size=8", "train.micro_batch_size=1"]);
    let tensor = on(2, &["model.tensor_model_parallel_size=2"]);
    let experts_in_four = moe().ranks(4).with(&["train.global_batch_size=8", "train.micro_batch_size=1"]);
    let cut_experts = experts_in_four.with(&["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]);
    vec![
        row("model.tensor_model_parallel_size", &on(2, &[]), &[AS_IT_IS, "2"])
            .moves("params files keys slices")
            .nearly("loss_1"),
        row("model.pipeline_model_parallel_size", &on(2, &[]), &[AS_IT_IS, "2"])
            .moves("params files keys slices")
            .nearly("loss_1"),
        row("model.context_parallel_size", &on(2, &[]), &[AS_IT_IS, "2"]).moves("params").nearly("loss"),
        row("model.expert_model_parallel_size", &experts, &[AS_IT_IS, "2"])
            .moves("params files slices")
            .nearly("loss_1"),
        row("model.expert_tensor_parallel_size", &cut_experts, &[AS_IT_IS, "1"])
            .moves("params slices")
            .nearly("loss_1"),
        switch("model.sequence_parallel", &tensor.by(Program::Plan { measure: true }))
            .moves("measured.traffic plan.memory plan.traffic"),
    ]
}

fn stages() -> Vec<Row> {
    let one = tiny().ranks(2).with(&["model.num_layers=4", "train.global_batch_size=8", "train.micro_batch_size=1"]);
    let three_layers = two_stages(&["model.num_layers=3"]);
    vec![
        row(
            "model.virtual_pipeline_model_parallel_size",
            &two_stages(&[]).by(Program::Plan { measure: true }),
            &[AS_IT_IS, "2"],
        )
        .moves("measured.traffic plan.memory plan.pipeline plan.traffic"),
        row("model.num_layers_in_first_pipeline_stage", &two_stages(&[]), &[AS_IT_IS, "1"]).moves("slices"),
        row("model.num_layers_in_last_pipeline_stage", &two_stages(&[]), &[AS_IT_IS, "1"]).moves("slices"),
        switch("model.account_for_embedding_in_pipeline_split", &three_layers).moves("exit").holds(
            1,
            "slices",
            "decoder.layers.1.input_layernorm.weight model-rank00001",
        ),
        switch("model.account_for_loss_in_pipeline_split", &three_layers).moves("exit").holds(
            1,
            "slices",
            "decoder.layers.1.input_layernorm.weight model-rank00000",
        ),
        row("model.pipeline_model_parallel_layout", &two_stages(&[]), &[AS_IT_IS, "Et|tttL"]).moves("slices"),
        row("model.pipeline_dtype", &two_stages(&[]), &["float32", "bfloat16", "float16"]).moves("loss_1"),
        row("model.pipeline_dtype", &two_stages(&[]), &["float32", "uint8"]).moves("exit").holds(
            1,
            "stderr",
            "activations are sent as",
        ),
        row("model.num_layers", &one, &[AS_IT_IS, "2"]).moves("loss_1 flops shapes slices"),
    ]
}

/// The order of work changes no bit of a result; it decides how many micro-batches a rank holds at
/// once.
fn schedules() -> Vec<Row> {
    let wide = two_stages(&[
        "model.num_layers=8",
        "model.seq_length=512",
        "model.hidden_size=64",
        "model.ffn_hidden_size=512",
    ]);
    let wide =
        watched(&wide.with(&["train.micro_batch_size=2", "train.global_batch_size=16", "validation.eval_iters=0"]));
    let wide = wide.with(&["train.train_iters=1", "scheduler.lr_warmup_iters=0"]);
    let virtual_stages = wide.with(&["model.virtual_pipeline_model_parallel_size=2"]);
    vec![
        row("model.pipeline_schedule", &wide, &["gpipe", "1f1b"]).lowers("peak"),
        row("model.pipeline_schedule", &wide, &["zb_h1", "1f1b"]).lowers("peak"),
        row("model.microbatch_group_size_per_vp_stage", &virtual_stages, &["8", "2"]).lowers("peak"),
    ]
}
