//! Command-line overrides: `a.b=value`, laid over the value tree of a recipe before it is read.

use super::error::{ConfigError, ErrorKind};
use super::node::{Data, Entry, Location, Node};
use super::secrets::redacted_argument;
use super::source::{MAX_DEPTH, parse_toml_value};

/// Lays `key=value` arguments over `root`, in order; the last one about a key wins.
///
/// Values are TOML; text that is not a TOML value is a string; `null` unsets.
pub(super) fn apply(root: &mut Node, arguments: &[String]) -> Vec<ConfigError> {
    let laid = arguments.iter().map(|argument| apply_one(root, argument));
    laid.filter_map(Result::err).map(|error| *error).collect()
}

/// Warnings about a key that several overrides set: the last one counts.
pub(super) fn repeated(arguments: &[String]) -> Vec<String> {
    let arguments: Vec<_> = arguments.iter().map(|argument| redacted_argument(argument)).collect();
    let pairs: Vec<(&str, &str)> = arguments.iter().filter_map(|argument| argument.split_once('=')).collect();
    let remark = |(index, (key, value)): (usize, &(&str, &str))| {
        let values =
            pairs[..index].iter().filter(|(other, _)| other.trim() == key.trim()).map(|(_, value)| value.trim());
        let before: Vec<&str> = values.filter(|other| *other != value.trim()).collect();
        let is_last = pairs[index + 1..].iter().all(|(other, _)| other.trim() != key.trim());
        (is_last && !before.is_empty()).then(|| {
            format!(
                "{} is given several times, and the last counts: {}, not {}",
                key.trim(),
                value.trim(),
                before.join(", ")
            )
        })
    };
    pairs.iter().enumerate().filter_map(remark).collect()
}

fn apply_one(root: &mut Node, argument: &str) -> Result<(), Box<ConfigError>> {
    let location = Location::of_argument(argument);
    let syntax = |key: &str, message: String| {
        let error = ConfigError::new(ErrorKind::Syntax, key, message)
            .with_expected("key=value, such as train.global_batch_size=512")
            .with_location(Some(location.clone()));
        Box::new(error)
    };
    let Some((key, text)) = argument.split_once('=') else {
        return Err(syntax("", format!("{:?} has no \"=\"", redacted_argument(argument))));
    };
    let key = key.trim();
    let path: Vec<&str> = key.split('.').map(str::trim).collect();
    if path.len() > MAX_DEPTH {
        let start: String = key.chars().take(40).collect();
        return Err(syntax(
            &start,
            format!("a key of {} parts: nothing is nested more than {MAX_DEPTH} deep", path.len()),
        ));
    }
    if path.iter().any(|part| part.is_empty()) {
        return Err(syntax(key, format!("{key:?} is not a dotted key")));
    }
    let mut value = parse_value(text.trim()).map_err(|message| syntax(key, message))?;
    locate(&mut value, &location);
    insert(root, &path, value, &location).map_err(|found| {
        let error = ConfigError::new(ErrorKind::WrongType, key, "is below a value that is not a table")
            .with_found(found)
            .with_expected("a table")
            .with_location(Some(location.clone()));
        Box::new(error)
    })
}

/// The value of a text in this program's tables: as in an override, but with null as a value.
pub(super) fn value_of(text: &str) -> Node {
    let node = parse_value(text).unwrap_or_else(|_| Node::string(text));
    if matches!(node.data, Data::Unset) { Node::null() } else { node }
}

fn parse_value(text: &str) -> Result<Node, String> {
    if text == "null" {
        return Ok(Data::Unset.into());
    }
    parse_toml_value(text).or_else(|message| {
        // A quote or bracket announces TOML; anything else is a bare word, like a path.
        if text.starts_with(['"', '\'', '[', '{']) {
            Err(format!("the value is not valid TOML: {message}"))
        } else {
            Ok(Node::string(text))
        }
    })
}

fn locate(node: &mut Node, location: &Location) {
    node.location = Some(location.clone());
    match &mut node.data {
        Data::List(items) => items.iter_mut().for_each(|item| locate(item, location)),
        Data::Table(entries) => {
            for entry in entries {
                entry.key_location = Some(location.clone());
                locate(&mut entry.node, location);
            }
        }
        _ => {}
    }
}

/// Puts `value` at `path`; returns the value that is in the way if it is not a table.
fn insert(root: &mut Node, path: &[&str], value: Node, location: &Location) -> Result<(), String> {
    let Some((key, rest)) = path.split_first() else {
        *root = value;
        return Ok(());
    };
    if root.is_null() {
        root.data = Data::Table(Vec::new());
    }
    let found = root.describe();
    let Data::Table(entries) = &mut root.data else { return Err(found) };
    let index = entries.iter().position(|entry| entry.key == *key);
    let index = index.unwrap_or_else(|| {
        entries.push(Entry {
            key: (*key).to_owned(),
            key_location: Some(location.clone()),
            node: Node { data: Data::Unset, location: Some(location.clone()) },
        });
        entries.len() - 1
    });
    insert(&mut entries[index].node, rest, value, location)
}
