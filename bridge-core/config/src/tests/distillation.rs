//! `[distillation]`: settings that contradict each other, or have no effect.

use super::super::{DType, Format, Kinds, RawConfig};
use super::{TINY, assert_all_refused, tiny};

const REFUSED: &[(&[&str], &str)] = &[
    (&["distillation.alpha=0.2"], "distillation.teacher"),
    (&["distillation.teacher=x", "dpo.beta=0.2"], "dpo"),
    (&["distillation.teacher=x", "distillation.alpha=0"], "distillation.alpha"),
    (
        &[
            "distillation.teacher=x",
            "distillation.alpha=0",
            "distillation.hidden_weight=1",
            "distillation.temperature=2",
        ],
        "distillation.temperature",
    ),
    (
        &["distillation.teacher=x", "distillation.alpha=0", "distillation.hidden_weight=1", "distillation.top_k=2"],
        "distillation.top_k",
    ),
    (&["distillation.teacher=x", "distillation.alpha=1.5"], "distillation.alpha"),
    (&["distillation.teacher=x", "distillation.temperature=0"], "distillation.temperature"),
    (&["distillation.teacher=x", "distillation.hidden_loss=cosine"], "distillation.hidden_loss"),
    (&["distillation.teacher=x", "distillation.cache=y"], "distillation.cache"),
    (
        &["distillation.teacher=x", "distillation.cache=y", "distillation.top_k=2", "distillation.hidden_weight=1"],
        "distillation.hidden_weight",
    ),
    (&["distillation.teacher=x", "model.mtp_num_layers=1"], "model.mtp_num_layers"),
    (&["distillation.teacher=x", "model.kind=t5"], "model.kind"),
    (
        &["distillation.teacher=x", "distillation.cache=y", "distillation.top_k=2", "model.context_parallel_size=2"],
        "model.context_parallel_size",
    ),
];

#[test]
fn what_has_no_effect_or_no_teacher_is_refused() {
    assert_all_refused(REFUSED);
}

fn saved(overrides: &[&str]) -> RawConfig {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    RawConfig::from_text(TINY, Format::Toml, &overrides, &Kinds::builtin()).expect("it reads")
}

#[test]
fn a_teacher_has_its_own_shape_and_the_layout_of_the_run() {
    let config = tiny(&["model.seq_length=48", "model.bf16=true", "model.params_dtype=bf16"]).expect("accepted");
    let of_teacher = saved(&[
        "model.num_layers=6",
        "model.hidden_size=96",
        "model.num_attention_heads=12",
        "model.num_query_groups=4",
        "model.tensor_model_parallel_size=4",
        "model.pipeline_model_parallel_size=2",
        "model.recompute_granularity=full",
        "model.recompute_method=uniform",
        "model.recompute_num_layers=1",
        "model.seq_length=4096",
    ]);
    let model = config.teacher_model(&of_teacher).expect("it fits");
    assert_eq!((model.num_layers, model.hidden_size, model.num_attention_heads), (6, 96, 12));
    assert_eq!((model.tensor_model_parallel_size, model.pipeline_model_parallel_size, model.seq_length), (1, 1, 48));
    assert_eq!((model.params_dtype, model.bf16, model.recompute_granularity), (DType::BFloat16, true, None));
}

#[test]
fn teachers_of_other_sorts_are_refused_with_the_reason() {
    let config = tiny(&[]).expect("accepted");
    for (overrides, reason) in [
        (&["model.kind=mamba"][..], "kind \"mamba\""),
        (&["model.num_moe_experts=4"], "has experts"),
        (&["peft.dim=4"], "adapter alone"),
        (&["model.num_attention_heads=5"], "model.num_attention_heads"),
    ] {
        let errors = config.teacher_model(&saved(overrides)).expect_err("it does not fit");
        assert!(errors.names("distillation.teacher"), "{errors}");
        assert!(errors.to_string().contains(reason), "{overrides:?}: {errors}");
    }
}
