//! Settings of experts on a model that has none, from the field table.

use super::super::{Section, TransformerConfig, TypeSpec};
use super::{tiny, tiny_errors};

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
                // Its default, or 1 where null takes 1.
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
