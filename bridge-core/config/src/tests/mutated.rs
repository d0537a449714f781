//! Hundreds of damaged copies of a recipe: every problem names its key, or its line if the key is
//! not known yet.

use super::super::node::{Data, Node};
use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::super::spec::FieldSpec;
use super::super::{ConfigErrors, ErrorKind, TypeSpec};
use super::{TINY, run_toml};

/// Every setting of every section that is a table by default, with its section.
fn settings() -> Vec<(&'static str, FieldSpec)> {
    let sections = RecipeConfig::fields().into_iter();
    sections
        .filter_map(|section| match (section.spec)() {
            TypeSpec::Section(fields) => Some((section.name, fields())),
            _ => None,
        })
        .flat_map(|(section, fields)| fields.into_iter().map(move |field| (section, field)))
        .collect()
}

/// A copy of the recipe in which `section.field` is `value`; the number of its line, from 1.
fn with_setting(section: &str, field: &str, value: &str) -> (String, usize) {
    let header = format!("[{section}]");
    let mut lines = Vec::new();
    let mut current = "";
    for line in TINY.lines() {
        current = if line.starts_with('[') { line } else { current };
        let is_old = current == header && line.split('=').next().map(str::trim) == Some(field);
        lines.extend((!is_old).then(|| line.to_owned()));
    }
    if !lines.contains(&header) {
        lines.push(header.clone());
    }
    let at = lines.iter().position(|line| *line == header).expect("is there") + 1;
    lines.insert(at, format!("{field} = {value}"));
    (lines.join("\n"), at + 1)
}

/// The problems of a copy, of which one must name `key` and point at `line`.
fn assert_named(text: &str, key: &str, line: usize) -> ConfigErrors {
    let errors = run_toml(text, &[]).expect_err(key);
    let of_key: Vec<_> = errors.iter().filter(|error| error.key == key).collect();
    assert!(!of_key.is_empty(), "{key} is not named:\n{errors}");
    for error in of_key {
        let found = error.location.as_ref().and_then(|location| location.line);
        assert_eq!(found, Some(line), "{error:?}");
    }
    errors
}

#[test]
fn unknown_keys_are_named_with_their_neighbour() {
    let mut count = 0;
    for (section, field) in settings() {
        let wrong = format!("{}_x", field.name);
        let (text, line) = with_setting(section, &wrong, "1");
        let key = format!("{section}.{wrong}");
        let errors = assert_named(&text, &key, line);
        let error = errors.iter().find(|error| error.key == key).expect("named");
        assert_eq!(error.kind, ErrorKind::UnknownKey);
        // Refused settings are not offered; the message gives the reason.
        match field.refusal.filter(super::super::Refusal::is_whole) {
            None => assert_eq!(error.nearest.as_deref(), Some(field.name), "{error:?}"),
            Some(refusal) => assert!(error.to_string().contains(refusal.reason), "{error:?}"),
        }
        count += 1;
    }
    assert!(count > 300, "{count} copies");
}

#[test]
fn wrong_types_are_named() {
    let empty_table = Node::from(Data::Table(Vec::new()));
    let nested = Node::from(Data::List(vec![Node::from(Data::List(vec![empty_table]))]));
    let mut count = 0;
    for (section, field) in settings() {
        if (field.spec)().accepts(&nested) {
            continue;
        }
        let (text, line) = with_setting(section, field.name, "[[{}]]");
        let errors = run_toml(&text, &[]).expect_err(field.name);
        let key = format!("{section}.{}", field.name);
        // Inside a list the item is named: `dataset.blend.0`.
        let error = errors.iter().find(|error| error.key.starts_with(&key));
        let error = error.unwrap_or_else(|| panic!("{key} is not named:\n{errors}"));
        assert_eq!(error.location.as_ref().and_then(|at| at.line), Some(line), "{error:?}");
        count += 1;
    }
    assert!(count > 300, "{count} copies");
}

#[test]
fn numbers_out_of_range_are_named() {
    let mut count = 0;
    for (section, field) in settings() {
        let spec = match (field.spec)() {
            TypeSpec::Nullable(inner) => *inner,
            spec => spec,
        };
        let values: &[(i64, &str)] = match spec {
            TypeSpec::Count | TypeSpec::Integer => &[(-7, "-7"), (0, "0"), (i64::MAX, "9223372036854775807")],
            TypeSpec::Float => &[(-7, "-7.0"), (0, "0.0"), (i64::MAX, "9223372036854775807.0")],
            _ => continue,
        };
        for (number, text) in values {
            let is_negative_count = matches!(spec, TypeSpec::Count) && *number < 0;
            let violates = field.limits.violation(&Node::from(Data::Int((*number).into()))).is_some();
            if !violates && !is_negative_count {
                continue;
            }
            let (text, line) = with_setting(section, field.name, text);
            let errors = assert_named(&text, &format!("{section}.{}", field.name), line);
            assert!(errors.iter().all(|error| error.kind != ErrorKind::Syntax));
            count += 1;
        }
    }
    assert!(count > 100, "{count} copies");
}

#[test]
fn broken_toml_points_at_the_line() {
    let lines: Vec<&str> = TINY.lines().collect();
    let mut count = 0;
    for (index, line) in lines.iter().enumerate() {
        let broken = if line.starts_with('[') {
            line.replace(']', "")
        } else if line.contains('=') {
            line.replacen('=', "", 1)
        } else {
            continue;
        };
        let mut copy = lines.clone();
        copy[index] = &broken;
        let errors = run_toml(&copy.join("\n"), &[]).expect_err(line);
        let error = errors.iter().next().expect("one at least");
        assert_eq!(error.kind, ErrorKind::Syntax);
        let found = error.location.as_ref().and_then(|location| location.line);
        assert_eq!(found, Some(index + 1), "{broken}\n{errors}");
        count += 1;
    }
    assert!(count > 30, "{count} copies");
}

#[test]
fn a_key_given_twice_is_named() {
    let text = TINY.replace("train_iters = 20", "train_iters = 20\ntrain_iters = 30");
    let errors = run_toml(&text, &[]).expect_err("twice");
    assert!(errors.to_string().contains("duplicate key `train_iters`"), "{errors}");
}

#[test]
fn several_mistakes_are_reported_together() {
    let (text, _) = with_setting("model", "hidden_size", "'wide'");
    let text = text.replace("train_iters = 20", "train_iters = -1").replace("[scheduler]", "[schedular]");
    let errors = run_toml(&text, &[]).expect_err("three mistakes");
    for key in ["model.hidden_size", "train.train_iters", "schedular"] {
        assert!(errors.names(key), "{key} is not named:\n{errors}");
    }
}
