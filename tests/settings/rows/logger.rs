//! `[logger]`, `[profiling]` and `[tensor_inspect]`.

use super::super::contexts::{on, tiny, tiny_with, watched};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Meddling;

pub fn rows() -> Vec<Row> {
    [console(), timers(), curves(), places(), traces(), tensors(), trackers(), vec![energy()]].concat()
}

fn console() -> Vec<Row> {
    let on_terminal = tiny().while_(Meddling::Terminal);
    vec![
        row("logger.log_interval", &tiny(), &[AS_IT_IS, "2"]).moves("console"),
        switch("logger.skip_train_metrics_log", &tiny_with(&["logger.log_interval=null"])).moves(
            "loss_1 batch_size console consumed_samples events keys learning_rate loss_scale skipped weight_decay",
        ),
        switch("logger.log_params_norm", &tiny()).moves("console events keys params_norm"),
        switch("logger.log_throughput", &tiny()).moves("console keys"),
        switch("logger.log_progress", &tiny()).moves("files progress"),
        row("logger.log_memory_interval", &tiny(), &[AS_IT_IS, "2"]).moves("console"),
        switch("logger.log_num_zeros_in_grad", &tiny()).moves("console events keys num_zeros"),
        row("logger.logging_level", &tiny(), &[AS_IT_IS, "40"]).moves("console"),
        row("logger.progress", &on_terminal, &["auto", "plain", "none"]).moves("console"),
        row("logger.progress", &on_terminal, &["bar", "none"]).moves("console"),
        row("logger.progress", &tiny(), &["auto", "bar"]).moves("stderr"),
    ]
}

fn timers() -> Vec<Row> {
    let saving = tiny_with(&["checkpoint.save_interval=1"]);
    let timed = tiny_with(&["logger.timing_log_level=1"]);
    let ranks = on(2, &["logger.timing_log_level=1"]);
    vec![
        row("logger.timing_log_level", &saving, &[AS_IT_IS, "-1", "1", "2"]).moves("console"),
        row("logger.timing_log_option", &ranks, &["minmax", "max", "all"]).moves("console"),
        switch("logger.log_timers_to_tensorboard", &timed).moves("events"),
        // The effect of the setting is only timing; its use shows in a warning if no phases are
        // timed.
        row("logger.barrier_with_L1_time", &tiny(), &[AS_IT_IS, "false"]).moves("console").holds(
            1,
            "console",
            "are not timed",
        ),
    ]
}

fn curves() -> Vec<Row> {
    // Five steps do not fill the buffer, and take long enough to be watched.
    let slow = watched(&tiny_with(&["model.seq_length=256", "model.num_layers=8"])).with(&["train.train_iters=5"]);
    let throughput = tiny_with(&["logger.log_throughput_to_tensorboard=true", "logger.throughput_window_size=2"]);
    let remembered = tiny_with(&["logger.log_memory_to_tensorboard=true"]);
    let runtime = tiny_with(&["logger.log_runtime_to_tensorboard=true"]);
    vec![
        switch("logger.log_throughput_to_tensorboard", &tiny_with(&["train.train_iters=101"]))
            .moves("events keys throughput/global_batch_size throughput/micro_batch_size"),
        row("logger.throughput_window_size", &throughput, &[AS_IT_IS, "3"])
            .moves("events throughput/global_batch_size throughput/micro_batch_size"),
        row("logger.tensorboard_log_interval", &tiny(), &[AS_IT_IS, "2"]).moves("events"),
        row("logger.tensorboard_queue_size", &slow, &[AS_IT_IS, "1"]).moves("early"),
        row("logger.log_loss_scale_to_tensorboard", &tiny(), &[AS_IT_IS, "false"]).moves("events"),
        switch("logger.log_validation_ppl_to_tensorboard", &tiny()).moves("events"),
        switch("logger.log_memory_to_tensorboard", &tiny()).moves("events"),
        row("logger.memory_keys", &remembered, &[AS_IT_IS, "{'allocated_bytes.all.peak'='mem-bytes'}"])
            .moves("console events"),
        switch("logger.log_device_memory_used", &remembered).moves("events"),
        switch("logger.log_max_attention_logit", &tiny())
            .moves("console events keys max_attention_logit max_attention_logits scalars"),
        switch("logger.log_l2_norm_grad_to_tensorboard", &tiny()).moves("events scalars"),
        switch("logger.log_runtime_to_tensorboard", &tiny()).moves("events"),
        row("logger.runtime_time_unit", &runtime, &["seconds", "minutes"]).lowers("time_total"),
        row("logger.runtime_time_unit", &runtime, &["minutes", "hours"]).lowers("time_total"),
        row("logger.runtime_time_unit", &runtime, &["hours", "days"]).lowers("time_total"),
        switch("logger.log_world_size_to_tensorboard", &tiny()).moves("events scalars"),
    ]
}

fn places() -> Vec<Row> {
    vec![
        row("logger.tensorboard_dir", &tiny(), &[AS_IT_IS, "curves"]).moves("files"),
        row("logger.log_dir", &tiny(), &[AS_IT_IS, "elsewhere"]).moves("loss_1 batch_size console consumed_samples files keys learning_rate loss_scale skipped test.consumed_samples test.num_samples valid.consumed_samples valid.num_samples weight_decay"),
        row("logger.save_config_filepath", &tiny(), &[AS_IT_IS, "saved.toml"]).moves("files"),
        row("logger.metrics_jsonl", &tiny(), &[AS_IT_IS, "false"]).moves("loss_1 batch_size consumed_samples files keys learning_rate loss_scale skipped test.consumed_samples test.num_samples valid.consumed_samples valid.num_samples weight_decay"),
        // `tests/ranks/subsystems.rs` checks the served text.
        row("logger.prometheus_addr", &tiny(), &[AS_IT_IS, "nowhere"]).moves("exit").holds(1, "stderr", "is not an address"),
        row("logger.plot", &tiny(), &[AS_IT_IS, "true"]).moves("files svg"),
    ]
}

fn traces() -> Vec<Row> {
    let window =
        ["profiling.use_pytorch_profiler=true", "profiling.profile_step_start=1", "profiling.profile_step_end=3"];
    let traced = tiny_with(&window);
    let remembered = tiny_with(&[
        "profiling.record_memory_history=true",
        "profiling.profile_step_start=1",
        "profiling.profile_step_end=3",
    ]);
    vec![
        switch("profiling.use_pytorch_profiler", &tiny_with(&["train.train_iters=12"])).moves("console files trace"),
        row("profiling.profile_step_start", &traced, &[AS_IT_IS, "0", "2"]).moves("trace"),
        row("profiling.profile_step_end", &traced, &[AS_IT_IS, "2"]).moves("trace"),
        row("profiling.profile_ranks", &on(2, &window), &[AS_IT_IS, "[0]"]).moves("files trace"),
        switch("profiling.pytorch_profiler_collect_shapes", &traced).moves("trace"),
        // Marks are reported by stand-ins of the libraries (`logging/nvidia`); without libraries
        // the run ends with an error.
        row("profiling.nvtx_ranges", &tiny_with(&["train.train_iters=12"]), &[AS_IT_IS, "true"]).moves("exit").holds(
            1,
            "stderr",
            "libnvToolsExt.so.# cannot be loaded",
        ),
        row("profiling.use_nsys_profiler", &tiny_with(&["train.train_iters=12"]), &[AS_IT_IS, "true"])
            .moves("exit")
            .holds(1, "stderr", "profiling.use_nsys_profiler"),
        switch("profiling.record_memory_history", &tiny_with(&["train.train_iters=12"])).moves("console files"),
        row("profiling.memory_snapshot_path", &remembered, &[AS_IT_IS, "held.pickle"]).moves("console files"),
    ]
}

fn tensors() -> Vec<Row> {
    let inspected = tiny_with(&["tensor_inspect.enabled=true"]);
    let weights = "{a={LogTensorStats={tensors='weight',stats='max'}}}";
    let third = "tensor_inspect.features={a={LogTensorStats={tensors='weight',stats='max',freq=3}}}";
    vec![
        row("tensor_inspect.enabled", &tiny(), &["false", "true"]).moves("events files scalars"),
        row("tensor_inspect.features", &inspected, &[AS_IT_IS, weights]).moves("events scalars"),
        row("tensor_inspect.log_dir", &inspected, &[AS_IT_IS, "elsewhere"]).moves("files"),
        row("tensor_inspect.init_training_step", &inspected.with(&[third]), &[AS_IT_IS, "1"]).moves("events scalars"),
    ]
}

fn trackers() -> Vec<Row> {
    // No server listens there, so the spool shows the items that would be sent.
    let tracked = tiny_with(&[
        "logger.mlflow_experiment=experiment",
        "logger.mlflow_run_name=name",
        "logger.mlflow_tracking_uri=http://127.0.0.1:9",
    ]);
    let at_wandb = tiny_with(&["logger.wandb_project=p"]);
    let at_comet = tiny_with(&["logger.comet_project=p", "logger.comet_experiment_name=e"]);
    let names = ["logger.mlflow_run_name=name", "logger.mlflow_tracking_uri=http://127.0.0.1:9"];
    vec![
        row("logger.mlflow_experiment", &tiny(), &[AS_IT_IS, &format!("e & {} & {}", names[0], names[1])])
            .moves("console files"),
        row("logger.mlflow_run_name", &tracked, &[AS_IT_IS, "null"]).moves("exit"),
        row("logger.mlflow_tracking_uri", &tracked, &[AS_IT_IS, "ftp://there"]).moves("exit"),
        row("logger.mlflow_tags", &tiny(), &[AS_IT_IS, "{a='b'}"]).moves("console"),
        row("logger.otlp_endpoint", &tiny(), &[AS_IT_IS, "http://127.0.0.1:9"]).moves("console files"),
        row("logger.otlp_endpoint", &tiny(), &[AS_IT_IS, "there"]).moves("exit").holds(1, "stderr", "is no collector"),
        row("logger.wandb_project", &tiny(), &[AS_IT_IS, "p"]).moves("files tracked"),
        row("logger.wandb_exp_name", &at_wandb, &[AS_IT_IS, "name"]).moves("tracked"),
        row("logger.wandb_save_dir", &at_wandb, &[AS_IT_IS, "there"]).moves("files"),
        row("logger.wandb_entity", &at_wandb, &[AS_IT_IS, "owner"]).moves("tracked"),
        row("logger.comet_project", &tiny(), &[AS_IT_IS, "p & logger.comet_experiment_name=e"]).moves("files tracked"),
        row("logger.comet_project", &at_comet, &[AS_IT_IS, "q"]).moves("tracked"),
        row("logger.comet_experiment_name", &at_comet, &[AS_IT_IS, "f"]).moves("tracked"),
        row("logger.comet_workspace", &at_comet, &[AS_IT_IS, "w"]).moves("tracked"),
        row("logger.comet_tags", &at_comet, &[AS_IT_IS, "['a', 'b']"]).moves("tracked"),
    ]
}

fn energy() -> Row {
    let is_counted = std::fs::read_to_string("/sys/class/powercap/intel-rapl:0/energy_uj").is_ok();
    switch("logger.log_energy", &tiny()).moves(if is_counted { "console events" } else { "exit" })
}
