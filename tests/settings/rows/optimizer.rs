//! `[optimizer]` and `[mixed_precision]`.

use super::super::contexts::{on, tiny, tiny_with};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::{Program, Run};

pub fn rows() -> Vec<Row> {
    [rates(), rules(), parameters(), matrices(), precision(), states(), sharding(), offload()].concat()
}

fn rates() -> Vec<Row> {
    let longer = tiny_with(&["train.train_iters=5"]);
    vec![
        row("optimizer.lr", &tiny(), &[AS_IT_IS, "2e-3"]).moves("learning_rate params").holds(
            1,
            "learning_rate",
            "0.0 0.001 0.002",
        ),
        row("optimizer.min_lr", &longer, &[AS_IT_IS, "5e-4"]).moves("learning_rate params"),
        row("optimizer.decoupled_lr", &tiny(), &[AS_IT_IS, "2e-3"]).moves("decoupled_learning_rate events keys params"),
        row("optimizer.decoupled_min_lr", &longer.with(&["optimizer.decoupled_lr=2e-3"]), &["1e-4", "5e-4"])
            .moves("decoupled_learning_rate params"),
        row("optimizer.weight_decay", &tiny(), &[AS_IT_IS, "0.5"]).moves("params weight_decay"),
        switch("optimizer.apply_wd_to_qk_layernorm", &tiny_with(&["model.qk_layernorm=true"])).moves("params"),
        row("scheduler.no_weight_decay_cond_type", &tiny_with(&["model.qk_layernorm=true"]), &[AS_IT_IS, "qwen3_next"])
            .moves("params"),
        row("optimizer.clip_grad", &tiny(), &["0", "0.3", "0.6"]).moves("params"),
        row("optimizer.ema_decay", &tiny(), &[AS_IT_IS, "0.5", "0.9"])
            .moves("moments shapes slices test.loss valid.loss"),
        row("optimizer.grad_norm_skip_threshold", &tiny(), &[AS_IT_IS, "1e-3"])
            .moves("files learning_rate params shapes skipped slices"),
        switch("optimizer.log_num_zeros_in_grad", &tiny()).moves("console events keys num_zeros"),
    ]
}

fn rules() -> Vec<Row> {
    let lion = tiny_with(&["optimizer.optimizer=lion", "optimizer.adam_beta2=null"]);
    let ademamix = tiny_with(&["optimizer.optimizer=ademamix"]);
    let adafactor = tiny_with(&["optimizer.optimizer=adafactor", "optimizer.adam_beta2=null"]);
    let constant =
        tiny_with(&["scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0", "optimizer.min_lr=null"]);
    let schedule_free = constant.with(&["optimizer.optimizer=schedule_free_adamw"]);
    vec![
        row(
            "optimizer.optimizer",
            &tiny_with(&["optimizer.adam_beta2=null"]),
            &[
                "adam",
                "sgd",
                "lion",
                "muon",
                "adaptive_muon",
                "soap",
                "ademamix",
                "adamw_8bit",
                "adamw_4bit",
                "adafactor",
            ],
        )
        .moves("params shapes slices"),
        row("optimizer.adam_beta1", &tiny(), &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.adam_beta2", &tiny(), &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.adam_eps", &tiny(), &[AS_IT_IS, "1e-3"]).moves("params"),
        row("optimizer.decoupled_weight_decay", &tiny(), &[AS_IT_IS, "false"]).moves("params"),
        row(
            "optimizer.sgd_momentum",
            &tiny_with(&["optimizer.optimizer=sgd", "optimizer.adam_beta2=null"]),
            &[AS_IT_IS, "0.5"],
        )
        .moves("params"),
        row("optimizer.lion_beta1", &lion, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.lion_beta2", &lion, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.ademamix_beta3", &ademamix, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.ademamix_alpha", &ademamix, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.ademamix_alpha_warmup", &ademamix, &[AS_IT_IS, "9"]).moves("params"),
        row("optimizer.ademamix_beta3_warmup", &ademamix, &[AS_IT_IS, "9"]).moves("params"),
        row("optimizer.optimizer", &constant, &["adam", "schedule_free_adamw"])
            .moves("params shapes slices state test.loss valid.loss"),
        row("optimizer.schedule_free_warmup_steps", &schedule_free, &[AS_IT_IS, "9"])
            .moves("params test.loss valid.loss"),
        row("optimizer.adafactor_decay_rate", &adafactor, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.adafactor_clip_threshold", &adafactor, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.adafactor_eps", &adafactor, &[AS_IT_IS, "1e-2"]).moves("params"),
        switch("optimizer.adafactor_scale_parameter", &adafactor).moves("params"),
    ]
}

/// Rules of single parameters.
fn parameters() -> Vec<Row> {
    let rules = |rule: &str| format!("[{{{rule}}}]");
    let (lion, slow) = (rules("match=\"*.linear_fc1.*\",optimizer=\"lion\""), rules("layers=[1],lr_mult=0.5"));
    vec![
        row("optimizer_config_override_provider.rules", &tiny(), &[AS_IT_IS, &lion])
            .moves("params shapes slices console"),
        row("optimizer_config_override_provider.rules", &tiny(), &[AS_IT_IS, &slow]).moves("params console"),
    ]
}

fn matrices() -> Vec<Row> {
    let muon = tiny_with(&["optimizer.optimizer=muon"]);
    let adaptive = tiny_with(&["optimizer.optimizer=adaptive_muon"]);
    let soap = tiny_with(&["optimizer.optimizer=soap"]);
    let long = muon.with(&["optimizer.muon_num_ns_steps=6"]);
    vec![
        row("optimizer.muon_momentum", &muon, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.muon_split_qkv", &muon, &[AS_IT_IS, "false"]).moves("params"),
        switch("optimizer.muon_nesterov", &muon).moves("params"),
        row("optimizer.muon_scale_mode", &muon, &["spectral", "shape_scaling", "unit_rms_norm"]).moves("params"),
        // A warning says that products are float32 on the CPU.
        row("optimizer.muon_fp32_matmul_prec", &muon, &["medium", "highest"]).moves("console"),
        row("optimizer.muon_fp32_matmul_prec", &muon, &["medium", "high"]).moves("console"),
        row(
            "optimizer.muon_coefficient_type",
            &long,
            &["simple", "quintic", "polar_express", "cans", "aol", "cubic5 & optimizer.muon_num_ns_steps=5"],
        )
        .moves("params"),
        row(
            "optimizer.muon_coefficient_type",
            &muon.with(&["optimizer.muon_num_ns_steps=9"]),
            &["simple", "deepseekv4"],
        )
        .moves("params"),
        row("optimizer.muon_num_ns_steps", &muon, &[AS_IT_IS, "4"]).moves("params"),
        row("optimizer.muon_extra_scale_factor", &muon, &[AS_IT_IS, "0.2"]).moves("params"),
        row("optimizer.muon_scalar_optimizer", &muon.with(&["optimizer.adam_beta2=null"]), &["adam", "lion"])
            .moves("params shapes slices"),
        row("optimizer.adaptive_muon_moment2_method", &adaptive, &["adamuon", "normuon", "namo"])
            .moves("params shapes slices"),
        row("optimizer.adaptive_muon_beta2", &adaptive, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.adaptive_muon_eps", &adaptive, &[AS_IT_IS, "1e-2"]).moves("params"),
        row("optimizer.soap_shampoo_beta", &soap, &[AS_IT_IS, "0.5"]).moves("params"),
        row("optimizer.soap_precondition_frequency", &soap, &[AS_IT_IS, "2"]).moves("params"),
        row("optimizer.soap_use_kl_shampoo", &soap, &[AS_IT_IS, "false"]).moves("params"),
    ]
}

fn precision() -> Vec<Row> {
    let fp16 = tiny_with(&["mixed_precision=fp16_mixed"]);
    let table = tiny_with(&["mixed_precision.fp16=true"]);
    let growing =
        |run: &Run, section: &str| run.with(&[&format!("{section}.initial_loss_scale=1024"), "train.train_iters=6"]);
    vec![
        row(
            "mixed_precision",
            &tiny(),
            &["null", "bf16_mixed", "fp16_mixed", "bf16_with_fp8_subchannel_scaling_mixed"],
        )
        .moves("loss_1 console files learning_rate loss_scale shapes skipped slices"),
        row("mixed_precision.fp32", &tiny_with(&["mixed_precision.bf16=true"]), &["false", "true"]).moves("exit"),
        row("mixed_precision.fp16", &tiny(), &["false", "true"])
            .moves("loss_1 console files learning_rate loss_scale shapes skipped slices"),
        row("mixed_precision.bf16", &tiny(), &["false", "true"]).moves("loss_1 shapes slices"),
        row(
            "mixed_precision.params_dtype",
            &tiny(),
            &["bfloat16 & mixed_precision.bf16=true", "float16 & mixed_precision.fp16=true", "float32"],
        )
        .moves("loss_1 console files learning_rate loss_scale shapes skipped slices"),
        row(
            "mixed_precision.pipeline_dtype",
            &on(2, &["model.pipeline_model_parallel_size=2"]),
            &["float32", "float16", "bfloat16"],
        )
        .moves("loss_1")
        .nearly("loss_1 loss"),
        row("mixed_precision.grad_reduce_in_fp32", &on(2, &["mixed_precision.bf16=true"]), &[AS_IT_IS, "false"])
            .moves("grad_norm_1"),
        row("mixed_precision.loss_scale", &table, &["8", "64"]).moves("grad_norm_1 loss_scale"),
        row("mixed_precision.initial_loss_scale", &table, &["8", "64"]).moves("grad_norm_1 loss_scale"),
        row(
            "mixed_precision.min_loss_scale",
            &table.with(&["mixed_precision.initial_loss_scale=1e30"]),
            &[AS_IT_IS, "1e30"],
        )
        .moves("loss_scale state exit"),
        row("mixed_precision.loss_scale_window", &growing(&table, "mixed_precision"), &[AS_IT_IS, "2"])
            .moves("params loss_scale"),
        row("mixed_precision.hysteresis", &table.with(&["mixed_precision.initial_loss_scale=1e30"]), &[AS_IT_IS, "1"])
            .moves("loss_scale"),
        row("optimizer.loss_scale", &fp16, &["8", "64"]).moves("grad_norm_1 loss_scale"),
        row("optimizer.initial_loss_scale", &fp16, &["8", "64"]).moves("grad_norm_1 loss_scale"),
        row("optimizer.min_loss_scale", &fp16.with(&["optimizer.initial_loss_scale=1e30"]), &[AS_IT_IS, "1e30"])
            .moves("loss_scale state exit"),
        row("optimizer.loss_scale_window", &growing(&fp16, "optimizer"), &[AS_IT_IS, "2"]).moves("params loss_scale"),
        row("optimizer.hysteresis", &fp16.with(&["optimizer.initial_loss_scale=1e30"]), &[AS_IT_IS, "1"])
            .moves("loss_scale"),
        switch("optimizer.fp16", &tiny()).moves("exit"),
        switch("optimizer.bf16", &tiny()).moves("exit"),
        row("mixed_precision.params_dtype", &tiny(), &["float32", "uint8"]).moves("exit").holds(1, "exit", "2"),
        row("mixed_precision.pipeline_dtype", &on(2, &["model.pipeline_model_parallel_size=2"]), &["float32", "uint8"])
            .moves("exit")
            .holds(1, "stderr", "activations are sent as"),
        row("optimizer.params_dtype", &tiny(), &["float32", "float16", "bfloat16", "uint8"]).moves("exit"),
    ]
}

/// States, masters and gradients in less than 32 bits.
fn states() -> Vec<Row> {
    let aware = tiny_with(&["optimizer.use_precision_aware_optimizer=true"]);
    let half = aware.with(&["mixed_precision.bf16=true"]);
    let planned = half.by(Program::Plan { measure: true });
    let planned_wide = tiny().by(Program::Plan { measure: true });
    vec![
        switch(
            "optimizer.use_precision_aware_optimizer",
            &tiny_with(&["mixed_precision.bf16=true"]).by(Program::Plan { measure: true }),
        )
        .moves("measured.optimizer plan.memory"),
        row(
            "optimizer.use_precision_aware_optimizer",
            &tiny_with(&["optimizer.exp_avg_dtype=bfloat16"]),
            &["true", "false"],
        )
        .moves("exit")
        .holds(1, "exit", "2"),
        row("optimizer.optimizer", &planned_wide, &["adam", "adamw_8bit", "adamw_4bit"])
            .moves("measured.optimizer plan.memory"),
        row("optimizer.optimizer", &planned_wide.with(&["optimizer.adam_beta2=null"]), &["muon", "soap", "adafactor"])
            .moves("measured.optimizer plan.memory"),
        row("optimizer.store_param_remainders", &planned, &[AS_IT_IS, "false"]).moves("measured.optimizer plan.memory"),
        row("optimizer.main_grads_dtype", &half, &["float32", "bfloat16 & mixed_precision.grad_reduce_in_fp32=false"])
            .moves("grad_norm_1"),
        row("optimizer.main_params_dtype", &half, &["float32", "float16"]).moves("params shapes slices"),
        row("optimizer.exp_avg_dtype", &aware, &["float32", "float16", "bfloat16", "uint8"])
            .moves("params shapes slices"),
        row("optimizer.exp_avg_sq_dtype", &aware, &["float32", "float16", "bfloat16", "uint8"])
            .moves("params shapes slices"),
    ]
}

fn sharding() -> Vec<Row> {
    vec![
        switch("optimizer.use_distributed_optimizer", &on(2, &[])).moves("files slices"),
        switch(
            "optimizer.overlap_param_gather",
            &on(2, &["optimizer.use_distributed_optimizer=true"]).by(Program::Plan { measure: true }),
        )
        .moves("plan.traffic plan.memory measured.traffic"),
    ]
}

/// States in host memory. The suite `device` tests them with a GPU; here plans for a GPU show them.
fn offload() -> Vec<Row> {
    const ALL: &str = "optimizer.optimizer_offload_fraction=1.0";
    let planned = tiny().by(Program::OnGpu("h100-80gb"));
    let moved = planned.with(&["optimizer.optimizer_cpu_offload=true", ALL]);
    vec![
        row("optimizer.optimizer_cpu_offload", &planned, &["false", "true & optimizer.optimizer_offload_fraction=1.0"])
            .moves("plan.memory plan.estimate"),
        // All states are in host memory: a line reports it, and no bit of the results changes.
        row("optimizer.optimizer_cpu_offload", &tiny(), &["false", "true & optimizer.optimizer_offload_fraction=1.0"])
            .moves("console")
            .holds(1, "console", "changes nothing on device = flex"),
        row("optimizer.optimizer_offload_fraction", &moved, &["0.3", "1.0"]).moves("plan.memory plan.estimate"),
        row(
            "optimizer.optimizer_offload_fraction",
            &tiny_with(&["optimizer.optimizer_cpu_offload=true"]),
            &["1.0", "0.0"],
        )
        .moves("exit")
        .holds(1, "exit", "2"),
        switch("optimizer.overlap_cpu_optimizer_d2h_h2d", &moved).moves("plan.estimate"),
    ]
}
