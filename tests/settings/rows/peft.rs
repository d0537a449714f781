//! `[peft]`, `[dpo]` and `[distillation]`: adapters, preferences and teachers, on the model of
//! another run.

use super::super::contexts::{examples, moe, tiny};
use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::Run;

const ADAPTED: [&str; 3] = ["checkpoint.save=new", "checkpoint.pretrained_checkpoint=ckpt", "peft.dim=4"];

const PREFERENCES: [&str; 6] = [
    "checkpoint.save=new",
    "checkpoint.pretrained_checkpoint=ckpt",
    "dpo.beta=0.1",
    "dataset.dataset_root=data/preferences",
    "dataset.do_validation=false",
    "dataset.do_test=false",
];

fn adapted(overrides: &[&str]) -> Run {
    tiny().after(&["train.train_iters=1"]).with(&ADAPTED).with(overrides)
}

/// Facets that the objective of preferences moves.
const REWARDS: &str = "grad_norm_1 rewards_chosen rewards_margins rewards_rejected";

/// A model that learns from one that another seed made.
fn taught(overrides: &[&str]) -> Run {
    let before = ["train.train_iters=1", "rng.seed=7"];
    tiny().after(&before).with(&["checkpoint.save=new", "distillation.teacher=ckpt"]).with(overrides)
}

fn of_teachers() -> Vec<Row> {
    let alone = tiny().after(&["train.train_iters=1", "rng.seed=7"]).with(&["checkpoint.save=new"]);
    let hidden = taught(&["distillation.hidden_weight=0.1"]);
    vec![
        row("distillation.teacher", &alone, &[AS_IT_IS, "ckpt"]).moves("loss_1 keys console events"),
        row("distillation.temperature", &taught(&[]), &[AS_IT_IS, "2"]).moves("loss_1"),
        row("distillation.alpha", &taught(&[]), &[AS_IT_IS, "0.9"]).moves("loss_1"),
        row("distillation.hidden_weight", &hidden, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("distillation.hidden_loss", &hidden, &["mse", "cosine"]).moves("loss_1"),
        row("distillation.top_k", &taught(&[]), &[AS_IT_IS, "4"]).moves("loss_1"),
        row("distillation.cache", &taught(&["distillation.top_k=4"]), &[AS_IT_IS, "store"])
            .moves("files keys kd_cached console events scalars"),
    ]
}

pub fn rows() -> Vec<Row> {
    [of_adapters(), of_teachers()].concat()
}

fn of_adapters() -> Vec<Row> {
    let preferences = examples().after(&["train.train_iters=1"]).with(&PREFERENCES);
    let experts = moe().after(&["train.train_iters=1"]).with(&ADAPTED);
    let named = "[\"q_proj\", \"linear_fc1\"]";
    vec![
        row("peft.kind", &adapted(&["peft.alpha=32", "peft.lora_B_init_method=normal"]), &["lora", "dora"])
            .moves("loss_1"),
        row("peft.target_modules", &adapted(&[]), &[AS_IT_IS, named]).moves("grad_norm_1"),
        row("peft.exclude_modules", &adapted(&["peft.target_modules=[]"]), &[AS_IT_IS, "[\"linear_fc2\"]"])
            .moves("grad_norm_1"),
        row("peft.canonical_mapping", &adapted(&[]), &[AS_IT_IS, "{linear_qkv = \"linear_q, linear_v\"}"])
            .moves("grad_norm_1"),
        row("peft.modules_to_save", &adapted(&[]), &[AS_IT_IS, "[\"embedding\", \"final_layernorm\"]"])
            .moves("grad_norm_1"),
        row("peft.dim", &adapted(&[]), &[AS_IT_IS, "8"]).moves("grad_norm_1"),
        row("peft.alpha", &adapted(&[]), &[AS_IT_IS, "8"]).moves("grad_norm_1"),
        row("peft.dropout", &adapted(&[]), &[AS_IT_IS, "0.5"]).moves("grad_norm_1"),
        row("peft.dropout_position", &adapted(&["peft.dropout=0.5"]), &["pre", "post"]).moves("grad_norm_1"),
        row(
            "peft.lora_A_init_method",
            &adapted(&["peft.lora_B_init_method=normal"]),
            &["xavier", "normal", "kaiming", "zero"],
        )
        .moves("loss_1"),
        row("peft.lora_B_init_method", &adapted(&[]), &["zero", "normal", "xavier", "kaiming"]).moves("loss_1"),
        row("peft.base_quantization", &adapted(&[]), &["none", "int8", "nf4", "int4"]).moves("loss_1"),
        row("peft.base_quantization_embedding", &adapted(&[]), &["none", "int8", "nf4", "int4"]).moves("loss_1"),
        row("peft.base_quantization_block_size", &adapted(&["peft.base_quantization=nf4"]), &[AS_IT_IS, "16"])
            .moves("loss_1"),
        row("dpo.beta", &preferences, &[AS_IT_IS, "0.3"]).moves(REWARDS),
        row("dpo.label_smoothing", &preferences, &[AS_IT_IS, "0.2"]).moves(REWARDS),
        switch("peft.normalize_moe_lora", &experts).moves("grad_norm_1"),
    ]
}
