//! Values as Python's `str` and `repr` print them.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;

/// `str(value)`.
///
/// # Errors
/// A budget that is spent; an item that cannot be read.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match (value.as_str(), value.kind()) {
        (Some(string), _) => text.push_str(string),
        (None, ValueKind::Undefined) => {}
        _ => represent(value, &mut text)?,
    }
    budget::charge(text.len() as u64)?;
    Ok(text)
}

/// A value that is text already, or its text. What Jinja marks as safe stays so.
pub(super) fn printed(value: Value) -> Result<Value, Error> {
    if value.as_str().is_some() { Ok(value) } else { text(&value).map(Value::from) }
}

/// What texts are made of, where `%d` and the like still have to find numbers: all else as text.
pub(super) fn printed_unless_number(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Number || value.is_kwargs() { Ok(value.clone()) } else { printed(value.clone()) }
}

/// `repr(value)`, at the end of `text`. Callers have limited its depth.
fn represent(value: &Value, text: &mut String) -> Result<(), Error> {
    if let Some(string) = value.as_str() {
        represent_text(string, text);
        return Ok(());
    }
    match value.kind() {
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::None => text.push_str("None"),
        ValueKind::Bool => text.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => text.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            text.push('[');
            for (at, item) in value.try_iter()?.enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                represent(&item, text)?;
            }
            text.push(']');
        }
        ValueKind::Map => {
            text.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                represent(&key, text)?;
                text.push_str(": ");
                represent(&value.get_item(&key)?, text)?;
            }
            text.push('}');
        }
        _ => {
            let _ = write!(text, "{value}");
        }
    }
    Ok(())
}

/// Quotes are single ones, unless the text has such and no double ones.
fn represent_text(string: &str, text: &mut String) {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            _ if character == quote => text.extend(['\\', quote]),
            _ if is_printable(character) => text.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(text, "\\x{code:02x}"),
                    0x100..=0xffff => write!(text, "\\u{code:04x}"),
                    _ => write!(text, "\\U{code:08x}"),
                };
            }
        }
    }
    text.push(quote);
}

/// `str.isprintable`: neither a control, nor unassigned, nor a separator other than the blank.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    // Behind another character, so that a combining one is told by its class alone.
    let pair: String = ['a', character].into_iter().collect();
    pair.escape_debug().eq(pair.chars())
}

/// `repr` of a floating-point number: the shortest digits, with an exponent below -4 and from 16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        // `inf` and `-inf` are written alike.
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // With `.0`, as Rust's debug format has it within these bounds.
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
