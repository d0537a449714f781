//! JSON as Python writes it: with `Infinity`, `-Infinity` and `NaN` as numbers, bare or as
//! transformers 5 wraps them. Readers interpret the keys.

use serde_json::{Map, Value};

/// Prefix of the name that encodes a number which JSON does not have. No file has such a text,
/// because the prefix is a control character.
const MARK: &str = "\u{1}";
/// The key under which transformers 5 wraps such a number.
const WRAPPER: &str = "__float__";
/// The numbers that JSON does not have.
const NUMBERS: [(&str, f64); 3] = [("-Infinity", f64::NEG_INFINITY), ("Infinity", f64::INFINITY), ("NaN", f64::NAN)];

/// The value of a text.
///
/// # Errors
/// A fault of the text, and where.
pub fn parse(text: &str) -> Result<Value, serde_json::Error> {
    Ok(unwrapped(serde_json::from_str(&marked(text))?))
}

/// The table of a text.
///
/// # Errors
/// A fault of the text with its position; a value that is not a table.
pub fn parse_table(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_value(parse(text)?)
}

/// A value as indented text that Python reads.
///
/// # Errors
/// No error is known.
pub fn to_text(value: &Value) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(value)?;
    for (name, _) in NUMBERS {
        text = text.replace(&format!("\"\\u0001{name}\""), name);
    }
    Ok(text)
}

/// A table as indented text that Python reads.
///
/// # Errors
/// No error is known.
pub fn table_to_text(table: &Map<String, Value>) -> Result<String, serde_json::Error> {
    to_text(&Value::Object(table.clone()))
}

/// A number, one that JSON does not have included.
pub fn number(value: &Value) -> Option<f64> {
    let special = || {
        let name = value.as_str()?.strip_prefix(MARK)?;
        NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    };
    value.as_f64().or_else(special)
}

/// The value of a number, one that JSON does not have included.
pub fn from_number(number: f64) -> Value {
    let is_same = |known: f64| known == number || (known.is_nan() && number.is_nan());
    match NUMBERS.iter().find(|(_, known)| is_same(*known)) {
        Some((name, _)) => Value::String(format!("{MARK}{name}")),
        None => Value::from(number),
    }
}

/// The text with its bare numbers that JSON does not have as marked strings.
fn marked(text: &str) -> String {
    if !NUMBERS.iter().any(|(name, _)| text.contains(name)) {
        return text.to_owned();
    }
    let mut marked = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(next) = rest.chars().next() {
        let bare = NUMBERS.iter().find(|(name, _)| !in_string && rest.starts_with(name));
        if let Some((name, _)) = bare {
            marked.extend(["\"\\u0001", name, "\""]);
            rest = &rest[name.len()..];
            continue;
        }
        let mut length = next.len_utf8();
        match next {
            '"' => in_string = !in_string,
            // An escaped quote does not end the string.
            '\\' if in_string => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        marked.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    marked
}

/// The value with its wrapped numbers as marked strings.
fn unwrapped(value: Value) -> Value {
    match value {
        Value::Object(table) => match wrapped(&table) {
            Some(number) => number,
            None => Value::Object(table.into_iter().map(|(key, value)| (key, unwrapped(value))).collect()),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(unwrapped).collect()),
        other => other,
    }
}

fn wrapped(table: &Map<String, Value>) -> Option<Value> {
    let value = table.get(WRAPPER).filter(|_| table.len() == 1)?;
    let name = value.as_str()?;
    let known = NUMBERS.iter().find(|(known, _)| *known == name.trim_start_matches(MARK));
    known.map(|(_, number)| from_number(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_are_read_and_written() {
        let text =
            r#"{"a": [0.0, Infinity, -Infinity], "b": {"__float__": "Infinity"}, "c": "Infinity \" NaN", "d": NaN}"#;
        let table = parse_table(text).unwrap();
        let numbers: Vec<f64> = table["a"].as_array().unwrap().iter().map(|value| number(value).unwrap()).collect();
        assert_eq!(numbers, [0.0, f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!((number(&table["b"]), number(&table["c"])), (Some(f64::INFINITY), None));
        assert!(number(&table["d"]).unwrap().is_nan());
        let written = to_text(&Value::Object(table.clone())).unwrap();
        assert!(written.contains("\"b\": Infinity") && written.contains("\"Infinity \\\" NaN\""), "{written}");
        assert_eq!(parse_table(&written).unwrap(), table);
        assert_eq!((from_number(f64::INFINITY), from_number(0.5)), (table["b"].clone(), Value::from(0.5)));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["", "{", "[1]", "{\"a\": Infinit}", "{\"a\": InfinityNaN}", "{\"a\": \"\\"] {
            assert!(parse_table(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
