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
