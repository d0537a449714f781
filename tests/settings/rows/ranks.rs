//! `[ddp]` and `[dist]`.

use super::super::contexts::{on, tiny};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::{Meddling, Program, Run};

pub fn rows() -> Vec<Row> {
    [replicas(), overlaps(), sharded(), world(), recorder()].concat()
}

/// Ranks whose traffic is counted.
fn counted(ranks: usize, overrides: &[&str]) -> Run {
    on(ranks, overrides).by(Program::Plan { measure: true })
}

fn replicas() -> Vec<Row> {
    let half = on(2, &["mixed_precision=fp16_mixed"]);
    // Each parameter has a bucket, so that a few steps give the hundred norms of the normal range.
    let growing = on(
        2,
        &[
            "ddp.overlap_grad_reduce=true",
            "ddp.bucket_size=1",
            "optimizer.optimizer=sgd",
            "optimizer.adam_beta2=null",
            "optimizer.lr=60",
            "optimizer.min_lr=60",
            "optimizer.clip_grad=0",
            "scheduler.lr_warmup_iters=6",
            "train.train_iters=10",
        ],
    );
    vec![
        switch("ddp.grad_reduce_in_fp32", &on(2, &["model.fp16=true", "optimizer.initial_loss_scale=16"]))
            .moves("grad_norm_1"),
        switch("ddp.overlap_grad_reduce", &counted(2, &[])).moves("measured.traffic plan.memory plan.traffic"),
        row("ddp.bucket_size", &counted(2, &["ddp.overlap_grad_reduce=true"]), &[AS_IT_IS, "1000"])
            .moves("measured.traffic plan.traffic"),
        switch("ddp.average_in_collective", &on(3, &["train.global_batch_size=9"])).moves("params"),
        switch("ddp.check_for_nan_in_grad", &half).moves("exit"),
        switch("ddp.check_for_large_grads", &growing).moves("console"),
        row("train.check_weight_hash_across_dp_replicas_interval", &on(2, &[]), &[AS_IT_IS, "2"])
            .moves("console")
            .holds(1, "console", "Weight hashes match"),
    ]
}

/// Work of ranks during computation, and its preset.
fn overlaps() -> Vec<Row> {
    let distributed = counted(2, &["ddp.use_distributed_optimizer=true", "comm_overlap.bucket_size=1000"]);
    let stages = on(4, &["model.pipeline_model_parallel_size=2", "model.num_layers=8", "ddp.overlap_grad_reduce=true"]);
    let linked = stages.by(Program::Linked).with(&[
        "model.hidden_size=192",
        "model.num_attention_heads=8",
        "model.num_query_groups=4",
        "model.ffn_hidden_size=512",
        "model.seq_length=128",
    ]);
    vec![
        row("comm_overlap.overlap_grad_reduce", &counted(2, &[]), &["false", "true"])
            .moves("measured.traffic plan.memory plan.traffic"),
        row("comm_overlap.overlap_param_gather", &counted(2, &[]), &["false", "true"]).moves("exit").holds(
            1,
            "errors",
            "needs ddp.use_distributed_optimizer",
        ),
        row("comm_overlap.bucket_size", &distributed, &[AS_IT_IS, "5000"]).moves("measured.traffic plan.traffic"),
        row("comm_overlap.data_parallel_size", &on(2, &[]), &["2", "3"]).moves("exit").holds(0, "exit", "0"),
        row("dist.align_grad_reduce", &linked, &["true", "false"]).lowers("exposed"),
    ]
}

fn sharded() -> Vec<Row> {
    let distributed = ["ddp.use_distributed_optimizer=true"];
    let fsdp = on(2, &["ddp.data_parallel_sharding_strategy=optim"]);
    let sharded = on(2, &["ddp.use_megatron_fsdp=true"]);
    let half = on(2, &["mixed_precision.bf16=true", "mixed_precision.grad_reduce_in_fp32=false"]);
    let all = counted(2, &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"]);
    let eight_bits = all.with(&["model.fp8=hybrid", "model.fp8_recipe=tensorwise"]);
    let of_table = all.with(&["mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=tensorwise"]);
    vec![
        switch("ddp.fp8_param_gather", &eight_bits).moves("measured.traffic plan.traffic"),
        switch("mixed_precision.fp8_param_gather", &of_table).moves("measured.traffic plan.traffic"),
        switch("ddp.pad_buckets_for_high_nccl_busbw", &counted(3, &distributed).with(&["train.global_batch_size=9"]))
            .moves("measured.traffic plan.memory plan.traffic"),
        // Accumulation in float32 is always on; the setting is an error where nothing is summed in
        // 16 bits.
        switch("ddp.reduce_scatter_with_fp32_accumulation", &half).moves("exit").holds(1, "exit", "2"),
        switch("ddp.use_megatron_fsdp", &fsdp).moves("exit").holds(1, "exit", "0"),
        switch("ddp.use_custom_fsdp", &fsdp).moves("exit").holds(1, "exit", "0"),
        switch("dist.use_megatron_fsdp", &fsdp).moves("exit").holds(1, "exit", "0"),
        switch("ddp.use_distributed_optimizer", &on(2, &[])).moves("files slices"),
        switch("ddp.overlap_param_gather", &counted(2, &distributed))
            .moves("measured.traffic plan.memory plan.traffic"),
        row("ddp.num_distributed_optimizer_instances", &on(4, &distributed), &[AS_IT_IS, "2"])
            .moves("params files slices"),
        row(
            "ddp.data_parallel_sharding_strategy",
            &sharded.by(Program::Plan { measure: true }),
            &["optim", "optim_grads", "optim_grads_params"],
        )
        .moves("measured.parameters measured.traffic plan.flops plan.memory plan.traffic"),
        row("ddp.data_parallel_sharding_strategy", &sharded, &["optim", "no_shard"])
            .moves("exit")
            .holds(1, "exit", "2"),
    ]
}

fn world() -> Vec<Row> {
    vec![
        switch("dist.use_tp_pp_dp_mapping", &on(4, &["model.pipeline_model_parallel_size=2"])).moves("files slices"),
        switch("dist.external_gpu_device_mapping", &tiny()).moves("exit"),
    ]
}

/// Time that ranks wait for a rank that stalls. The flight recorder of two ranks whose losses
/// overflow.
fn recorder() -> Vec<Row> {
    let failing = on(
        2,
        &[
            "dataset={kind='mock'}",
            "optimizer.optimizer=sgd",
            "optimizer.adam_beta2=null",
            "optimizer.lr=1000",
            "optimizer.min_lr=1000",
            "optimizer.clip_grad=0",
            "train.train_iters=10",
        ],
    );
    let active = failing.with(&["dist.flight_recorder_dump_path=flight/calls-"]);
    let recorded = active.with(&["dist.flight_recorder_include_only_active=false"]);
    vec![
        row("dist.flight_recorder_dump_path", &failing, &[AS_IT_IS, "flight/calls-"])
            .moves("flight")
            .holds(1, "flight", "calls-1"),
        row("dist.flight_recorder_trace_buffer_size", &recorded, &[AS_IT_IS, "3"]).moves("flight").holds(
            1,
            "flight",
            "calls-0 3",
        ),
        switch("dist.flight_recorder_include_stack_trace", &recorded).moves("flight"),
        row("dist.flight_recorder_include_only_active", &active, &[AS_IT_IS, "false"]).moves("flight"),
        row("dist.flight_recorder_extra_dump_on_exec", &active, &[AS_IT_IS, "false"]).moves("flight"),
    ]
}

pub mod patience {
    use super::*;

    pub fn rows() -> Vec<Row> {
        let stands_still = |seconds| {
            let run = on(2, &["train.train_iters=3000", "validation.eval_iters=0", "logger.timing_log_level=2"]);
            run.while_(Meddling::Clog(seconds))
        };
        vec![
            row("dist.distributed_timeout_seconds_after_init", &stands_still(60), &[AS_IT_IS, "1"])
                .moves("exit")
                .holds(0, "exit", "signal: 9")
                .holds(1, "exit", "1"),
            row("dist.distributed_timeout_minutes", &stands_still(100), &[AS_IT_IS, "1"])
                .moves("exit")
                .holds(0, "exit", "signal: 9")
                .holds(1, "exit", "1"),
            row(
                "dist.flight_recorder_dump_on_timeout",
                &stands_still(60).with(&[
                    "dist.distributed_timeout_seconds_after_init=1",
                    "dist.flight_recorder_dump_path=flight/",
                    "dist.flight_recorder_extra_dump_on_exec=false",
                ]),
                &[AS_IT_IS, "false & dist.flight_recorder_extra_dump_on_exec=true"],
            )
            .moves("flight")
            .holds(0, "flight", "Failed"),
        ]
    }
}
