//! `[model]`: experts.

use super::super::contexts::{moe, tiny};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Program;

pub fn rows() -> Vec<Row> {
    let spread = moe().ranks(2).with(&["model.expert_model_parallel_size=2"]).by(Program::Plan { measure: false });
    vec![
        row("model.num_moe_experts", &moe(), &[AS_IT_IS, "8"]).moves("loss_1 shapes slices"),
        row("model.num_moe_experts", &tiny(), &[AS_IT_IS, "4"]).moves("loss_1 keys console events flops shapes slices"),
        row("model.moe_layer_freq", &moe(), &[AS_IT_IS, "2", "[0, 1]"]).moves("loss_1 shapes slices"),
        row("model.moe_ffn_hidden_size", &moe(), &[AS_IT_IS, "40"]).moves("loss_1 flops shapes slices"),
        row("model.moe_router_topk", &moe(), &[AS_IT_IS, "3"]).moves("loss_1 flops"),
        row("model.moe_aux_loss_coeff", &moe(), &[AS_IT_IS, "0.5"]).moves("grad_norm_1"),
        row("model.moe_z_loss_coeff", &moe(), &[AS_IT_IS, "0.5"]).moves("grad_norm_1"),
        row("model.moe_router_load_balancing_type", &moe(), &[AS_IT_IS, "none & model.moe_aux_loss_coeff=0"])
            .moves("grad_norm_1"),
        switch("model.moe_per_layer_logging", &moe()).moves("events keys scalars tokens_per_expert"),
        row("model.moe_router_dtype", &moe().with(&["mixed_precision=bf16_mixed"]), &[AS_IT_IS, "fp32"])
            .moves("loss_1")
            .nearly("loss_1"),
        row("model.moe_token_dispatcher_type", &spread, &["allgather", "alltoall"]).moves("plan.traffic"),
        switch("model.moe_router_pre_softmax", &moe()).moves("loss_1"),
        row("model.moe_router_topk_scaling_factor", &moe(), &[AS_IT_IS, "2.5"]).moves("loss_1"),
        row("model.moe_shared_expert_intermediate_size", &moe(), &[AS_IT_IS, "24"]).moves("loss_1 flops shapes slices"),
    ]
}
