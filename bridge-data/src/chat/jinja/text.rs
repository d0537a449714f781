//! Values as Python's `str` and `repr` print them, and as `json.dumps` does.

use std::fmt::Write;

use super::error::Error;
use super::limits::{DEPTH, charge};
use super::value::{Dict, Value, View};

/// Most digits of an integer that is printed, as in Python.
const DIGITS: u64 = 4300;

/// True for whitespace according to Python's `str.isspace`.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// Adds `str(value)` to `text`. Fails on values that are nested too deep; a limit that is exceeded.
pub(super) fn print(value: &Value, text: &mut String) -> Result<(), Error> {
    let before = text.len();
    match value {
        Value::Text(string) | Value::Markup(string) => text.push_str(string),
        Value::Undefined(_) => {}
        other => represent(other, text, 0)?,
    }
    charge(text.len() - before)
}

/// `str(value)`.
///
/// # Errors
/// As [`print`].
pub(super) fn printed(value: &Value) -> Result<std::sync::Arc<str>, Error> {
    if let Value::Text(text) | Value::Markup(text) = value {
        return Ok(text.clone());
    }
    let mut text = String::new();
    print(value, &mut text)?;
    Ok(text.into())
}

/// Adds `repr(value)` to `text`.
///
/// # Errors
/// As [`print`].
pub(super) fn represent(value: &Value, text: &mut String, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(Error::too_much("it prints values that are nested too deep"));
    }
    let sequence = |items: &[Value], open: char, close: char, text: &mut String| {
        text.push(open);
        for (at, item) in items.iter().enumerate() {
            text.push_str(if at > 0 { ", " } else { "" });
            represent(item, text, depth + 1)?;
        }
        if open == '(' && items.len() == 1 {
            text.push(',');
        }
        text.push(close);
        Ok::<_, Error>(())
    };
    charge(16)?;
    match value {
        Value::Text(string) => represent_text(string, text)?,
        Value::Markup(string) => {
            text.push_str("Markup(");
            represent_text(string, text)?;
            text.push(')');
        }
        Value::Undefined(_) => text.push_str("Undefined"),
        Value::None => text.push_str("None"),
        Value::Bool(value) => text.push_str(if *value { "True" } else { "False" }),
        Value::Int(number) => {
            let _ = write!(text, "{number}");
        }
        Value::Big(number) => {
            if number.bits() > DIGITS * 10 / 3 {
                return Err(Error::new("integer string conversion: more than 4300 digits"));
            }
            let _ = write!(text, "{number}");
        }
        Value::Float(number) => text.push_str(&float(*number)),
        Value::List(items) => sequence(items, '[', ']', text)?,
        Value::Tuple(items) => sequence(items, '(', ')', text)?,
        Value::Dict(dict) => represent_dict(dict, text, depth)?,
        Value::View(view, _) => {
            let name = value.type_name();
            let _ = write!(text, "{name}(");
            debug_assert!(matches!(view, View::Keys | View::Values | View::Items));
            sequence(&value.items()?, '[', ']', text)?;
            text.push(')');
        }
        Value::Range(start, stop, step) => {
            let _ = match step {
                1 => write!(text, "range({start}, {stop})"),
                _ => write!(text, "range({start}, {stop}, {step})"),
            };
        }
        Value::Namespace(dict) => {
            text.push_str("<Namespace ");
            represent_dict(&dict.borrow(), text, depth + 1)?;
            text.push('>');
        }
        Value::Loop(looped) => {
            let _ = write!(text, "<LoopContext {}/{}>", looped.at.get() + 1, looped.items.len());
        }
        Value::Macro(closure) => {
            text.push_str("<Macro ");
            represent_text(&closure.name, text)?;
            text.push('>');
        }
        other => {
            let _ = write!(text, "<{}>", other.type_name());
        }
    }
    Ok(())
}

fn represent_dict(dict: &Dict, text: &mut String, depth: usize) -> Result<(), Error> {
    text.push('{');
    for (at, (key, value)) in dict.entries().enumerate() {
        text.push_str(if at > 0 { ", " } else { "" });
        represent(key, text, depth + 1)?;
        text.push_str(": ");
        represent(value, text, depth + 1)?;
    }
    text.push('}');
    Ok(())
}

/// Quotes are single, unless the text has single quotes and no double ones.
fn represent_text(string: &str, text: &mut String) -> Result<(), Error> {
    charge(string.len())?;
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
            _ => escape(character, text),
        }
    }
    text.push(quote);
    Ok(())
}

/// Adds a character as Python's escape of its code.
pub(super) fn escape(character: char, text: &mut String) {
    let code = u32::from(character);
    let _ = match code {
        0..=0xff => write!(text, "\\x{code:02x}"),
        0x100..=0xffff => write!(text, "\\u{code:04x}"),
        _ => write!(text, "\\U{code:08x}"),
    };
}

/// `ascii(value)`.
///
/// # Errors
/// As [`print`].
pub(super) fn ascii(value: &Value) -> Result<String, Error> {
    let (mut represented, mut text) = (String::new(), String::new());
    represent(value, &mut represented, 0)?;
    for character in represented.chars() {
        if character.is_ascii() { text.push(character) } else { escape(character, &mut text) }
    }
    charge(text.len())?;
    Ok(text)
}

/// `str.isprintable`: neither a control, nor unassigned, nor a separator other than the blank.
pub(super) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    // After another character, so that a combining one is classified by its class alone.
    let pair: String = ['a', character].into_iter().collect();
    pair.escape_debug().eq(pair.chars())
}

/// `repr` of a floating-point number: the shortest digits, with an exponent below -4 and from 16
/// on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        // `inf` and `-inf` are written alike.
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Style of `json.dumps`.
pub(super) struct Json {
    pub(super) indent: Option<String>,
    pub(super) sort_keys: bool,
    pub(super) ensure_ascii: bool,
    pub(super) separators: [String; 2],
}

impl Json {
    /// Adds a value to `text`. Fails on values that JSON cannot represent; nesting that is too
    /// deep; a limit that is exceeded.
    pub(super) fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::too_much("it serializes values that are nested too deep"));
        }
        charge(16)?;
        match value {
            Value::None => text.push_str("null"),
            Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            Value::Float(number) if number.is_nan() => text.push_str("NaN"),
            Value::Float(number) if number.is_infinite() => {
                text.push_str(if *number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Value::Int(_) | Value::Big(_) | Value::Float(_) => represent(value, text, depth)?,
            Value::Text(string) | Value::Markup(string) => self.string(string, text)?,
            Value::List(items) | Value::Tuple(items) => {
                text.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.begin_item(at, depth, text)?;
                    self.write(item, depth + 1, text)?;
                }
                self.end(items.is_empty(), depth, text);
                text.push(']');
            }
            Value::Dict(dict) => self.dict(dict, depth, text)?,
            other => {
                let name = other.type_name();
                return Err(Error::new(format!("object of type {name} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn dict(&self, dict: &Dict, depth: usize, text: &mut String) -> Result<(), Error> {
        let mut entries: Vec<&(Value, Value)> = dict.entries().collect();
        if self.sort_keys {
            let mut failure = None;
            entries.sort_by(|a, b| {
                super::value::compare(&a.0, &b.0, "<")
                    .unwrap_or_else(|error| {
                        failure = Some(error);
                        None
                    })
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
            failure.map_or(Ok(()), Err)?;
        }
        text.push('{');
        for (at, (key, value)) in entries.into_iter().enumerate() {
            self.begin_item(at, depth, text)?;
            match key {
                Value::Text(key) | Value::Markup(key) => self.string(key, text)?,
                Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => {
                    text.push('"');
                    self.write(key, depth + 1, text)?;
                    text.push('"');
                }
                other => {
                    let name = other.type_name();
                    return Err(Error::new(format!("keys must be str, int, float, bool or None, not {name}")));
                }
            }
            text.push_str(&self.separators[1]);
            self.write(value, depth + 1, text)?;
        }
        self.end(dict.entries().len() == 0, depth, text);
        text.push('}');
        Ok(())
    }

    fn begin_item(&self, at: usize, depth: usize, text: &mut String) -> Result<(), Error> {
        if at > 0 {
            text.push_str(&self.separators[0]);
        }
        if let Some(indent) = &self.indent {
            charge(indent.len() * (depth + 1))?;
            text.push('\n');
            (0..=depth).for_each(|_| text.push_str(indent));
        }
        Ok(())
    }

    fn end(&self, is_empty: bool, depth: usize, text: &mut String) {
        if let Some(indent) = self.indent.as_ref().filter(|_| !is_empty) {
            text.push('\n');
            (0..depth).for_each(|_| text.push_str(indent));
        }
    }

    fn string(&self, string: &str, text: &mut String) -> Result<(), Error> {
        charge(string.len())?;
        text.push('"');
        let mut from = 0;
        for (at, character) in string.char_indices() {
            let escape: &str = match character {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                '\0'..='\u{1f}' => "",
                other if self.ensure_ascii && !matches!(other, ' '..='~') => "",
                _ => continue,
            };
            text.push_str(&string[from..at]);
            text.push_str(escape);
            if escape.is_empty() {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
            from = at + character.len_utf8();
        }
        text.push_str(&string[from..]);
        text.push('"');
        Ok(())
    }
}

/// Text with the characters that HTML reserves as entities.
pub(super) fn escaped(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => made.push_str("&amp;"),
            '<' => made.push_str("&lt;"),
            '>' => made.push_str("&gt;"),
            '"' => made.push_str("&#34;"),
            '\'' => made.push_str("&#39;"),
            other => made.push(other),
        }
    }
    made
}

/// Size of a file in words, as Jinja2 writes it.
pub(super) fn file_size(bytes: f64, binary: bool) -> String {
    let (base, end): (f64, _) = if binary { (1024.0, "iB") } else { (1000.0, "B") };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{} Bytes", bytes.trunc());
    }
    let first = if binary { "K" } else { "k" };
    let mut unit = base;
    let mut made = String::new();
    for prefix in [first, "M", "G", "T", "P", "E", "Z", "Y"] {
        unit *= base;
        made = format!("{:.1} {prefix}{end}", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    made
}

/// Text without tags and comments of HTML.
pub(super) fn stripped_tags(string: &str) -> String {
    let mut text = string.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut made = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some((before, behind)) = rest.split_once(open) {
            let Some((_, behind)) = behind.split_once(close) else { break };
            made.push_str(before);
            rest = behind;
        }
        made.push_str(rest);
        text = made;
    }
    let joined = text.split(is_space).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    joined.replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", "\"").replace("&#39;", "'").replace("&amp;", "&")
}
