//! JSON text exactly as Python's `json.dumps(value, indent=4)` writes it, whose md5 names cache
//! files. Not a general JSON library: parsing does not belong here.

use std::fmt::Write;

/// A value whose object keys keep their order.
#[derive(Debug, Clone)]
pub(crate) enum Json {
    Null,
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
    Foreign(serde_json::Value),
}

impl Json {
    pub(crate) fn text(value: impl Into<String>) -> Self {
        Self::Text(value.into())
    }

    pub(crate) fn optional<T>(value: Option<T>, convert: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Null, convert)
    }

    /// The text.
    pub(crate) fn dump(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut String, depth: usize) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Integer(value) => out.push_str(&value.to_string()),
            Self::Float(value) => out.push_str(&python_float(*value)),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Text(text) => write_text(out, text),
            Self::List(items) => {
                write_block(out, depth, ['[', ']'], items, |out, item, depth| item.write(out, depth));
            }
            Self::Object(fields) => write_block(out, depth, ['{', '}'], fields, |out, (key, value), depth| {
                write_text(out, key);
                out.push_str(": ");
                value.write(out, depth);
            }),
            Self::Foreign(value) => write_foreign(out, value, depth),
        }
    }
}

fn write_foreign(out: &mut String, value: &serde_json::Value, depth: usize) {
    use serde_json::Value;
    match value {
        Value::Null => Json::Null.write(out, depth),
        Value::Bool(value) => Json::Bool(*value).write(out, depth),
        Value::String(text) => write_text(out, text),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), ..) => Json::Integer(value.into()).write(out, depth),
            (_, Some(value), _) => Json::Integer(value.into()).write(out, depth),
            (.., value) => Json::Float(value.unwrap_or(0.0)).write(out, depth),
        },
        Value::Array(items) => {
            write_block(out, depth, ['[', ']'], items, write_foreign);
        }
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().collect();
            write_block(out, depth, ['{', '}'], &fields, |out, (key, value), depth| {
                write_text(out, key);
                out.push_str(": ");
                write_foreign(out, value, depth);
            });
        }
    }
}

fn write_block<T>(
    out: &mut String,
    depth: usize,
    [open, close]: [char; 2],
    items: &[T],
    write_item: impl Fn(&mut String, &T, usize),
) {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { ",\n" });
        out.push_str(&" ".repeat(4 * (depth + 1)));
        write_item(out, item, depth + 1);
    }
    if !items.is_empty() {
        out.push('\n');
        out.push_str(&" ".repeat(4 * depth));
    }
    out.push(close);
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// `repr(float)`: the shortest digits, positional between 1e-4 and 1e16.
fn python_float(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "NaN" } else { "Infinity" };
        return if value < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_does() {
        let cases: [(f64, &str); 9] = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.000_1, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(value), text);
        }
    }

    #[test]
    fn layout_is_pythons() {
        let value = Json::Object(vec![
            ("a", Json::List(vec![Json::Integer(1), Json::Null])),
            ("b", Json::List(vec![])),
            ("c", Json::text("\u{e9}\u{1f600}\"\n")),
            ("d", Json::Foreign(serde_json::json!({"x": [1.5, true]}))),
        ]);
        let expected = "{\n    \"a\": [\n        1,\n        null\n    ],\n    \"b\": [],\n    \"c\": \
                        \"\\u00e9\\ud83d\\ude00\\\"\\n\",\n    \"d\": {\n        \"x\": [\n            1.5,\n            \
                        true\n        ]\n    }\n}";
        assert_eq!(value.dump(), expected);
    }
}
