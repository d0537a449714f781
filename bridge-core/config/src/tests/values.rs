//! Nonsense in every field, made from the field table: each must be refused under its own key.

use super::super::{Bound, FieldSpec, RecipeConfig, Section, TypeSpec};
use super::{TINY, run_toml};

/// Every field of every section that is always there, with its dotted path.
fn leaves() -> Vec<(String, FieldSpec)> {
    let sections = RecipeConfig::fields();
    let inner = sections.iter().filter_map(|section| match (section.spec)() {
        TypeSpec::Section(fields) => Some((section.name, fields())),
        _ => None,
    });
    inner
        .flat_map(|(section, fields)| fields.into_iter().map(move |field| (format!("{section}.{}", field.name), field)))
        .collect()
}

fn is_number(spec: &TypeSpec) -> bool {
    match spec {
        TypeSpec::Count | TypeSpec::Integer | TypeSpec::Float => true,
        TypeSpec::Nullable(inner) => is_number(inner),
        _ => false,
    }
}

fn is_integer(spec: &TypeSpec) -> bool {
    match spec {
        TypeSpec::Count | TypeSpec::Integer => true,
        TypeSpec::Nullable(inner) => is_integer(inner),
        _ => false,
    }
}

fn nonsense(field: &FieldSpec) -> Vec<String> {
    let spec = (field.spec)();
    // A table is the value of maps and sections only.
    let mut values = vec![];
    if !matches!(&spec, TypeSpec::Map(_) | TypeSpec::Any)
        && !spec.accepts(&super::super::Node::from_toml_value(&toml::Value::Table(toml::Table::new())))
    {
        values.push("{a = 1}".to_owned());
    }
    if is_number(&spec) {
        values.extend(["nan", "inf", "-inf", "1e308", "\"12\"", "[1]", "true"].map(String::from));
        if is_integer(&spec) {
            values.extend([format!("1{}", "0".repeat(30)), "0.5".into()]);
        }
        if !is_integer(&spec) {
            // Zero and infinity in 32 bits.
            values.extend(["1e-46", "-1e-46", "3.5e38"].map(String::from));
        }
        if let (false, Some(Bound::Exclusive(max))) = (is_integer(&spec), field.limits.max) {
            // The bound itself in 32 bits.
            values.push(format!("{}", max - 1e-12));
        }
        values.push("99999999999999999999999999999999999999999999".into());
        if let Some(Bound::Inclusive(min)) = field.limits.min {
            values.push(format!("{}", min - 1.0));
        }
        if let Some(Bound::Exclusive(min)) = field.limits.min {
            values.push(format!("{min:?}"));
        }
        if let Some(Bound::Inclusive(max)) = field.limits.max {
            values.push(format!("{}", max * 2.0 + 1.0));
        }
        if let Some(Bound::Exclusive(max)) = field.limits.max {
            values.push(format!("{max:?}"));
        }
    }
    values
}

#[test]
fn nonsense_in_any_field_is_refused_under_its_key() {
    let mut tried = 0;
    for (key, field) in leaves() {
        for value in nonsense(&field) {
            // As a file: quoting and number forms are TOML's.
            let (section, name) = key.split_once('.').expect("two parts");
            let argument = format!("{section}.{name}={value}");
            let errors = match run_toml(TINY, &[&argument]) {
                Ok(_) => panic!("{argument} was accepted"),
                Err(errors) => errors,
            };
            let names = errors.iter().any(|e| e.key == key || e.key.starts_with(&format!("{key}.")));
            assert!(names, "{argument} should name {key}:\n{errors}");
            tried += 1;
        }
    }
    assert!(tried > 1500, "only {tried} recipes were tried");
}

#[test]
fn numbers_that_32_bits_make_another_number_of_name_the_nearest() {
    for (argument, expected) in [
        ("optimizer.adam_eps=1e-46", "a number that fits a 32-bit float, at least 1.1754944e-38"),
        ("optimizer.min_lr=1e-46", "0, or a number that fits a 32-bit float, at least 1.1754944e-38"),
        ("optimizer.clip_grad=4e38", "a number that fits a 32-bit float, at most 3.4028235e38"),
        ("optimizer.adam_beta2=0.99999999999", "at most 0.99999994"),
        ("model.hidden_dropout=0.99999999999", "at most 0.99999994"),
        ("model.layernorm_epsilon=1e-50", "at least 1.1754944e-38"),
        ("model.moe_aux_loss_coeff=[0.1, 1e-50]", "at least 1.1754944e-38"),
    ] {
        let errors = super::tiny_errors(&[argument]);
        let key = argument.split_once('=').expect("a key").0;
        let error = errors.iter().find(|error| error.key == key).unwrap_or_else(|| panic!("{argument}: {errors}"));
        let found = error.expected.as_deref().unwrap_or_default();
        assert!(found.contains(expected), "{argument}: {found}");
    }
    // Rounded, but the number it says.
    for argument in ["optimizer.adam_eps=1.2e-38", "optimizer.adam_beta2=0.9999999", "optimizer.clip_grad=3.4e38"] {
        super::tiny(&[argument]).unwrap_or_else(|errors| panic!("{argument}: {errors}"));
    }
}
