//! JSON to the value tree. `serde_json` checks the syntax; `jsonc-parser`, configured to be as
//! strict, gives the positions.

use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::super::error::ConfigErrors;
use super::super::node::{Data, Entry, Node};
use super::lines::Lines;

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, ConfigErrors> {
    // Besides the message, this bounds the nesting before the recursive conversion below.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        let location = lines.at(error.line().max(1), error.column().max(1));
        let message = match not_a_json_number(text, &error) {
            Some(word) => {
                format!("{word} is no number in JSON, whose numbers are finite; null is the value that is not set")
            }
            None => message.to_owned(),
        };
        return Err(lines.syntax_error(message, location).into());
    }
    let options = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        ..ParseOptions::default()
    };
    match parse_to_ast(text, &CollectOptions::default(), &options) {
        Ok(parsed) => Ok(parsed.value.map_or_else(Node::null, |value| convert(&value, lines))),
        Err(error) => {
            let location = lines.at_byte(error.range().start);
            Err(lines.syntax_error(error.kind().to_string(), location).into())
        }
    }
}

/// The word at an error, if other programs write it for a number that is not finite.
fn not_a_json_number(text: &str, error: &serde_json::Error) -> Option<&'static str> {
    let line = text.lines().nth(error.line().checked_sub(1)?)?;
    // The error stands at the first letter that cannot be, or after it.
    let start: String = line.chars().skip(error.column().saturating_sub(2)).take(10).collect();
    let words = ["-Infinity", "Infinity", "NaN"];
    words.into_iter().find(|word| start.contains(word) || start.get(1..).is_some_and(|rest| rest.starts_with(word)))
}

fn convert(value: &Value<'_>, lines: &Lines) -> Node {
    let data = match value {
        Value::StringLit(text) => Data::String(text.value.to_string()),
        Value::NumberLit(number) => match number.value.parse::<i128>() {
            Ok(integer) => Data::Int(integer),
            Err(_) => Data::Float(number.value.parse().unwrap_or(f64::NAN)),
        },
        Value::BooleanLit(boolean) => Data::Bool(boolean.value),
        Value::NullKeyword(_) => Data::Null,
        Value::Array(array) => {
            let items = array.elements.iter().map(|item| convert(item, lines));
            Data::List(items.collect())
        }
        Value::Object(object) => Data::Table(
            object
                .properties
                .iter()
                .map(|property| Entry {
                    key: property_name(&property.name),
                    key_location: Some(lines.at_byte(property.range.start)),
                    node: convert(&property.value, lines),
                })
                .collect(),
        ),
    };
    Node { data, location: Some(lines.at_byte(value.range().start)) }
}

fn property_name(name: &ObjectPropName<'_>) -> String {
    match name {
        ObjectPropName::String(text) => text.value.to_string(),
        ObjectPropName::Word(word) => word.value.to_owned(),
    }
}
