//! Settings of experts on a model that has none, from the field table; and those that do not fit
//! each other.

use super::super::{DType, Section, TransformerConfig, TypeSpec};
use super::{assert_refused, tiny, tiny_errors};

/// Values of a type, at least one of which is not the default.
fn values(spec: &TypeSpec) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match spec {
        TypeSpec::Bool => words(&["true", "false"]),
        TypeSpec::Integer | TypeSpec::Count => words(&["1", "2"]),
        TypeSpec::Float => words(&["0.25", "0.75"]),
        TypeSpec::String => words(&["none", "aux_loss"]),
        TypeSpec::Choice(names) => words(names),
        TypeSpec::Nullable(inner) => values(inner),
        TypeSpec::OneOf(options) => values(&options[0]),
        TypeSpec::List(item) => values(item).iter().map(|value| format!("[{value}]")).collect(),
        other => panic!("no value of {other}"),
    }
}

#[test]
fn no_setting_of_experts_is_accepted_without_them() {
    let mut refused = 0;
    for field in TransformerConfig::fields() {
        if !(field.name.starts_with("moe_") || field.name.starts_with("expert_")) {
            continue;
        }
        let key = format!("model.{}", field.name);
        for value in values(&(field.spec)()) {
            let argument = format!("{key}={value}");
            match tiny(&[&argument]) {
                // The value is the default, or 1 for a setting whose null means 1.
                Ok(run) => assert_eq!(run.recipe().model.value(field.name), Some(field.default.clone()), "{argument}"),
                Err(errors) => {
                    let says_why = errors.iter().filter(|error| error.key == key).any(|error| {
                        ["needs model.num_moe_experts", "not implemented", "no counterpart"]
                            .iter()
                            .any(|why| error.message.contains(why))
                    });
                    assert!(says_why, "{argument} should name {key} and say why:\n{errors}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 30, "{refused}");
    for argument in ["moe_layer_freq=2", "moe_router_topk=1", "moe_router_dtype=fp32", "expert_tensor_parallel_size=1"]
    {
        let errors = tiny_errors(&[&format!("model.{argument}")]).to_string();
        assert!(errors.contains("needs model.num_moe_experts"), "{errors}");
    }
}

/// Settings of a mixture that do not fit each other, and the key that the error names.
const REFUSED: &[(&[&str], &str)] = &[
    (&["model.moe_router_load_balancing_type=['aux_loss', 'seq_aux_loss']"], "model.moe_aux_loss_coeff"),
    (
        &["model.moe_router_load_balancing_type=['aux_loss', 'aux_loss']", "model.moe_aux_loss_coeff=[0.1, 0.1]"],
        "model.moe_router_load_balancing_type",
    ),
    (
        &["model.moe_router_load_balancing_type=['aux_loss', 'sinkhorn']", "model.moe_aux_loss_coeff=[0.1, 0.1]"],
        "model.moe_router_load_balancing_type",
    ),
    (
        &[
            "model.moe_router_load_balancing_type=['aux_loss', 'seq_aux_loss']",
            "model.moe_aux_loss_coeff=[0.1, 0.1, 0.1]",
        ],
        "model.moe_aux_loss_coeff",
    ),
    (&["model.moe_router_load_balancing_type=sinkhorn", "model.moe_aux_loss_coeff=0.1"], "model.moe_aux_loss_coeff"),
    (
        &["model.moe_router_load_balancing_type=sinkhorn", "model.moe_router_pre_softmax=true"],
        "model.moe_router_pre_softmax",
    ),
    (&["model.moe_router_force_load_balancing=true", "model.moe_input_jitter_eps=0.1"], "model.moe_input_jitter_eps"),
    (&["model.moe_token_drop_policy=position"], "model.moe_token_drop_policy"),
    (
        &["model.moe_router_load_balancing_type=sinkhorn", "model.moe_expert_capacity_factor=1.0"],
        "model.moe_expert_capacity_factor",
    ),
    (&["model.moe_router_bias_update_rate=0.01"], "model.moe_router_bias_update_rate"),
    (
        &[
            "model.moe_router_score_function=sigmoid",
            "model.moe_router_enable_expert_bias=true",
            "model.freeze_moe_router=true",
        ],
        "model.moe_router_bias_update_rate",
    ),
];

#[test]
fn each_rule_of_experts_refuses_and_names_its_key() {
    for (overrides, key) in REFUSED {
        assert_refused(&[&["model.num_moe_experts=4"], *overrides].concat(), key);
    }
}

#[test]
fn recompute_of_what_no_layer_has_is_refused() {
    let selective = "model.recompute_granularity=selective";
    let key = "model.recompute_modules";
    let of = |module: &str| format!("{key}=[\"{module}\"]");
    for module in ["moe_act", "shared_experts", "mla_up_proj"] {
        assert_refused(&[selective, &of(module)], key);
    }
    assert_refused(&["model.num_moe_experts=4", selective, &of("shared_experts")], key);
    let shared = ["model.num_moe_experts=4", "model.moe_shared_expert_intermediate_size=24", selective];
    for module in ["moe_act", "shared_experts"] {
        let run = tiny(&[&shared[..], &[&of(module)]].concat()).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(run.model.recompute_modules, [module]);
    }
    let latent = ["model.multi_latent_attention=true", "model.num_query_groups=8", selective, &of("mla_up_proj")];
    let run = tiny(&latent).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.model.recompute_modules, ["mla_up_proj"]);
}

#[test]
fn a_float32_stream_is_what_stages_send() {
    let (wide, stages) = ("model.fp32_residual_connection=true", "model.pipeline_model_parallel_size=2");
    assert_refused(&[wide], "model.fp32_residual_connection");
    let half = "mixed_precision=bf16_mixed";
    assert_refused(&[half, wide, stages, "model.pipeline_dtype=bfloat16"], "model.pipeline_dtype");
    for precision in [half, "mixed_precision=fp16_mixed", "model.bf16=true"] {
        for more in [&[][..], &["model.pipeline_dtype=float32"]] {
            let run = tiny(&[&[precision, wide], more].concat()).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(run.model.pipeline_dtype, Some(DType::Float32), "{precision} {more:?}");
            assert_ne!(run.model.params_dtype, DType::Float32);
        }
    }
}
