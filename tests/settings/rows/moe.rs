//! `[model]`: experts.

use super::super::contexts::{moe, tiny};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::{Program, Run};

pub fn rows() -> Vec<Row> {
    let spread = moe().ranks(2).with(&["model.expert_model_parallel_size=2"]).by(Program::Plan { measure: false });
    [older(&spread), router(), balance()].concat()
}

fn router() -> Vec<Row> {
    let sigmoid = moe().with(&["model.moe_router_score_function=sigmoid"]);
    let mixer = moe().with(&["model.moe_router_score_function=sparsemixer"]);
    let biased = "true & model.moe_router_bias_update_rate=0";
    let moving = sigmoid.with(&["model.moe_router_enable_expert_bias=true"]);
    let groups = moe().with(&["model.moe_router_num_groups=2", "model.moe_router_group_topk=1"]);
    let shared = moe().with(&["model.moe_shared_expert_intermediate_size=24"]);
    vec![
        row("model.moe_router_score_function", &moe(), &[AS_IT_IS, "sigmoid", "sqrtsoftplus", "sparsemixer"])
            .moves("loss_1"),
        row("model.moe_num_hash_layers", &moe(), &[AS_IT_IS, "1"]).moves("loss_1 shapes slices"),
        row("model.moe_router_sparsemixer_jitter", &mixer, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        switch("model.moe_router_raw_scores", &sigmoid).moves("loss_1"),
        row("model.moe_router_sum_epsilon", &sigmoid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.moe_router_num_groups", &moe(), &[AS_IT_IS, "2 & model.moe_router_group_topk=1"]).moves("loss_1"),
        row("model.moe_router_group_topk", &groups, &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.moe_router_group_score_topk", &groups, &[AS_IT_IS, "1"]).moves("loss_1"),
        row("model.moe_router_enable_expert_bias", &sigmoid, &[AS_IT_IS, biased]).moves("params shapes slices"),
        row("model.moe_router_enable_expert_bias", &moe(), &[AS_IT_IS, biased]).moves("params shapes slices"),
        row("model.moe_router_bias_update_rate", &moving, &["0", "0.001", "0.05"]).moves("params"),
        switch("model.moe_shared_expert_gate", &shared).moves("loss_1 shapes slices"),
        row("model.moe_activation_func_clamp_value", &moe().with(&["model.activation_func=silu"]), &[AS_IT_IS, "0.02"])
            .moves("loss_1"),
        row("model.moe_glu_output_limits", &moe().with(&["model.activation_func=silu"]), &[AS_IT_IS, "[0.02, 0.02]"])
            .moves("loss_1"),
        row("model.moe_output_multiplier", &shared, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.moe_linear_bias", &moe(), &["false", "true"]).moves("grad_norm_1 shapes slices"),
        switch("model.moe_dense_beside", &moe()).moves("loss_1 flops shapes slices"),
        switch("model.moe_router_scales", &moe()).moves("loss_1 shapes slices"),
        switch("model.moe_apply_probs_on_input", &moe()).moves("loss_1"),
        switch("model.moe_router_bias", &moe()).moves("loss_1 shapes slices"),
        switch("model.freeze_moe_router", &moe()).moves("grad_norm_1 flops shapes slices"),
    ]
}

fn balance() -> Vec<Row> {
    let balanced = moe().with(&["model.moe_aux_loss_coeff=0.5"]);
    let bf16 = moe().with(&["mixed_precision=bf16_mixed"]);
    let tight = moe().with(&["model.moe_expert_capacity_factor=0.75"]);
    let none = "none & model.moe_aux_loss_coeff=0";
    let two = "['aux_loss', 'seq_aux_loss'] & model.moe_aux_loss_coeff=[0.5, 0.5]";
    let kinds = [AS_IT_IS, "seq_aux_loss", "global_aux_loss", two];
    let sinkhorn = "sinkhorn & model.moe_aux_loss_coeff=0";
    vec![
        row("model.moe_router_load_balancing_type", &moe(), &[AS_IT_IS, none]).moves("grad_norm_1"),
        row("model.moe_router_load_balancing_type", &moe(), &[none, sinkhorn]).moves("loss_1"),
        row("model.moe_router_load_balancing_type", &balanced, &kinds).moves("grad_norm_1 console events"),
        row("model.moe_aux_loss_coeff", &moe(), &[AS_IT_IS, "0.5"]).moves("grad_norm_1"),
        row("model.moe_z_loss_coeff", &moe(), &[AS_IT_IS, "0.5"]).moves("grad_norm_1"),
        row("model.moe_router_dtype", &bf16, &[AS_IT_IS, "fp32"]).moves("loss_1").nearly("loss_1"),
        row("model.moe_router_dtype", &moe(), &["fp32", "fp64"]).moves("params"),
        row("model.moe_input_jitter_eps", &moe(), &[AS_IT_IS, "0.3"]).moves("grad_norm_1"),
        switch("model.moe_router_force_load_balancing", &moe()).moves("loss_1"),
        row("model.moe_expert_capacity_factor", &moe(), &[AS_IT_IS, "1.0", "0.5"]).moves("loss_1"),
        row("model.moe_token_drop_policy", &tight, &[AS_IT_IS, "position"]).moves("loss_1"),
    ]
}

fn older(spread: &Run) -> Vec<Row> {
    vec![
        row("model.num_moe_experts", &moe(), &[AS_IT_IS, "8"]).moves("loss_1 shapes slices"),
        row("model.num_moe_experts", &tiny(), &[AS_IT_IS, "4"]).moves("loss_1 keys console events flops shapes slices"),
        row("model.moe_num_identity_experts", &moe(), &[AS_IT_IS, "2"]).moves("loss_1 flops shapes slices"),
        switch("model.moe_identity_expert_weights", &moe().with(&["model.moe_num_identity_experts=2"]))
            .moves("flops params shapes slices"),
        switch("model.moe_shortcut", &moe().with(&["model.moe_layer_freq=2"])).moves("loss_1 flops shapes slices"),
        row("model.moe_layer_freq", &moe(), &[AS_IT_IS, "2", "[0, 1]"]).moves("loss_1 shapes slices"),
        row("model.moe_ffn_hidden_size", &moe(), &[AS_IT_IS, "40"]).moves("loss_1 flops shapes slices"),
        row("model.moe_latent_size", &moe(), &[AS_IT_IS, "16"]).moves("loss_1 flops shapes slices"),
        row("model.moe_router_topk", &moe(), &[AS_IT_IS, "3"]).moves("loss_1 flops"),
        switch("model.moe_per_layer_logging", &moe()).moves("events keys scalars tokens_per_expert"),
        switch("model.moe_grouped_gemm", spread).moves("plan.memory"),
        row("model.moe_token_dispatcher_type", spread, &["allgather", "alltoall"]).moves("plan.traffic"),
        switch("model.moe_router_pre_softmax", &moe()).moves("loss_1"),
        row("model.moe_router_topk_scaling_factor", &moe(), &[AS_IT_IS, "2.5"]).moves("loss_1"),
        row("model.moe_shared_expert_intermediate_size", &moe(), &[AS_IT_IS, "24"]).moves("loss_1 flops shapes slices"),
    ]
}
