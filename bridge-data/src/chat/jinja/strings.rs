//! Methods of Python's `str`.

use super::error::Error;
use super::format::format;
use super::given::{CallArguments, bounds, integer, text};
use super::limits::charge;
use super::text::{escaped, is_printable, is_space, printed};
use super::unicode::{casefold, decimal, is_cased as is_cased_letter, is_digit, is_letter, is_numeric, titlecase};
use super::value::Value;

/// Byte place of a character.
fn byte_of(string: &str, character: usize) -> usize {
    if string.is_ascii() {
        return character.min(string.len());
    }
    string.char_indices().nth(character).map_or(string.len(), |(at, _)| at)
}

fn characters(string: &str) -> usize {
    if string.is_ascii() { string.len() } else { string.chars().count() }
}

/// The part of a string between two bounds in characters, and the characters before it. `None`: the
/// start is after the end.
fn within<'s>(string: &'s str, start: Option<&Value>, stop: Option<&Value>) -> Result<Option<(&'s str, usize)>, Error> {
    if start.is_none() && stop.is_none() {
        return Ok(Some((string, 0)));
    }
    let length = characters(string);
    let (start, stop) = bounds(length, start, stop)?;
    if start > length || start > stop {
        return Ok(None);
    }
    Ok(Some((&string[byte_of(string, start)..byte_of(string, stop)], start)))
}

pub(super) fn text_method(string: &str, name: &str, given: &CallArguments) -> Result<Value, Error> {
    charge(string.len() / 4)?;
    let argument = |at: usize| text(name, &given.positional[at]);
    match name {
        "format" => format(string, given),
        "format_map" => {
            takes(name, given, 1, 1)?;
            let Value::Dict(dict) = &given.positional[0] else { return Err(Error::new("format_map: expected a dict")) };
            let named = dict.entries().filter_map(|(key, value)| Some((key.as_text()?.into(), value.clone())));
            format(string, &CallArguments { positional: Vec::new(), named: named.collect() })
        }
        "join" => {
            takes(name, given, 1, 1)?;
            let items = given.positional[0].items()?;
            let mut text = String::new();
            for (at, item) in items.iter().enumerate() {
                let Some(item_text) = item.as_text() else {
                    let found = item.type_name();
                    return Err(Error::new(format!("sequence item {at}: expected str instance, {found} found")));
                };
                text.push_str(if at > 0 { string } else { "" });
                text.push_str(item_text);
                charge(string.len() + item_text.len())?;
            }
            Ok(text.into())
        }
        "split" | "rsplit" => {
            let [separator, most] = given.bind(name, ["sep", "maxsplit"])?;
            let most = most.map_or(Ok(-1), |most| integer(name, &most))?;
            split(string, separator.filter(|value| !matches!(value, Value::None)), most, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"])?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            charge(string.len())?;
            Ok(Value::list(lines(string, keep).into_iter().map(Value::from).collect()))
        }
        "strip" | "lstrip" | "rstrip" => {
            takes(name, given, 0, 1)?;
            let stripped = match given.positional.first().filter(|value| !matches!(value, Value::None)) {
                None => stripped(string, name, is_space),
                Some(value) => {
                    let set: Vec<char> = text(name, value)?.chars().collect();
                    stripped(string, name, |character| set.contains(&character))
                }
            };
            made(stripped.to_owned())
        }
        "startswith" | "endswith" => {
            takes(name, given, 1, 3)?;
            let Some((part, _)) = within(string, given.positional.get(1), given.positional.get(2))? else {
                return Ok(Value::Bool(false));
            };
            let has = |affix: &Value| {
                let affix = text(name, affix)?;
                Ok::<bool, Error>(if name == "startswith" { part.starts_with(affix) } else { part.ends_with(affix) })
            };
            if let Value::Tuple(items) = &given.positional[0] {
                for item in items.iter() {
                    if has(item)? {
                        return Ok(Value::Bool(true));
                    }
                }
                return Ok(Value::Bool(false));
            }
            has(&given.positional[0]).map(Value::Bool)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            takes(name, given, 1, 3)?;
            let wanted = argument(0)?;
            let part = within(string, given.positional.get(1), given.positional.get(2))?;
            if name == "count" {
                let count = part.map_or(0, |(part, _)| match wanted.is_empty() {
                    true => characters(part) + 1,
                    false => part.matches(wanted).count(),
                });
                return Ok(Value::from(count));
            }
            let found = part.and_then(|(part, before)| {
                let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
                at.map(|at| before + characters(&part[..at]))
            });
            match found {
                Some(at) => Ok(Value::from(at)),
                None if name.ends_with("index") => Err(Error::new("substring not found")),
                None => Ok(Value::Int(-1)),
            }
        }
        "replace" => {
            takes(name, given, 2, 3)?;
            let count = given.positional.get(2).map_or(Ok(-1), |count| integer(name, count))?;
            replace(string, argument(0)?, argument(1)?, count)
        }
        "partition" | "rpartition" => {
            takes(name, given, 1, 1)?;
            let separator = argument(0)?;
            if separator.is_empty() {
                return Err(Error::new("empty separator"));
            }
            let found = if name == "partition" { string.split_once(separator) } else { string.rsplit_once(separator) };
            let parts = match found {
                Some((before, behind)) => [before, separator, behind],
                None if name == "partition" => [string, "", ""],
                None => ["", "", string],
            };
            Ok(Value::tuple(parts.into_iter().map(Value::from).collect()))
        }
        "removeprefix" | "removesuffix" => {
            takes(name, given, 1, 1)?;
            let affix = argument(0)?;
            let rest = if name == "removeprefix" { string.strip_prefix(affix) } else { string.strip_suffix(affix) };
            made(rest.unwrap_or(string).to_owned())
        }
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => filled(string, name, given),
        _ => {
            takes(name, given, 0, 0)?;
            plain_text_method(string, name)
        }
    }
}

/// Checks the number of arguments of a method that takes them by place alone.
fn takes(name: &str, given: &CallArguments, least: usize, most: usize) -> Result<(), Error> {
    if !given.named.is_empty() {
        return Err(Error::new(format!("str.{name}() takes no keyword arguments")));
    }
    let count = given.positional.len();
    if count < least || count > most {
        return Err(Error::new(format!("str.{name}() takes {least} to {most} arguments, found {count}")));
    }
    Ok(())
}

/// A text that a method made.
fn made(text: String) -> Result<Value, Error> {
    charge(text.len())?;
    Ok(Value::from(text))
}

/// Methods that fill a text up: `center`, `ljust`, `rjust`, `zfill` and `expandtabs`.
fn filled(string: &str, name: &str, given: &CallArguments) -> Result<Value, Error> {
    match name {
        "center" | "ljust" | "rjust" => {
            takes(name, given, 1, 2)?;
            let width = usize::try_from(integer(name, &given.positional[0])?).unwrap_or(0);
            let fill = given.positional.get(1).map_or(Ok(" "), |fill| text(name, fill))?;
            if fill.chars().count() != 1 {
                return Err(Error::new("the fill character must be exactly one character long"));
            }
            made(justified(string, name, width, fill)?)
        }
        "zfill" => {
            takes(name, given, 1, 1)?;
            let width = usize::try_from(integer(name, &given.positional[0])?).unwrap_or(0);
            let missing = width.saturating_sub(characters(string));
            charge(missing)?;
            let sign = usize::from(string.starts_with(['+', '-']));
            made(format!("{}{}{}", &string[..sign], "0".repeat(missing), &string[sign..]))
        }
        _ => {
            let [size] = given.bind(name, ["tabsize"])?;
            let size = size.map_or(Ok(8), |size| integer(name, &size))?.max(0) as usize;
            charge(string.matches('\t').count().saturating_mul(size))?;
            let (mut text, mut column) = (String::new(), 0);
            for character in string.chars() {
                match character {
                    '\t' if size > 0 => {
                        let blanks = size - column % size;
                        text.extend(std::iter::repeat_n(' ', blanks));
                        column += blanks;
                    }
                    '\t' => {}
                    other => {
                        text.push(other);
                        column = if matches!(other, '\n' | '\r') { 0 } else { column + 1 };
                    }
                }
            }
            made(text)
        }
    }
}

/// Methods without arguments.
fn plain_text_method(string: &str, name: &str) -> Result<Value, Error> {
    charge(string.len())?;
    let all = |test: fn(char) -> bool| Value::Bool(!string.is_empty() && string.chars().all(test));
    Ok(match name {
        "lower" => string.to_lowercase().into(),
        "casefold" => casefold(string).into(),
        "upper" => string.to_uppercase().into(),
        "capitalize" => capitalized(string).into(),
        "title" => title(string).into(),
        "swapcase" => {
            let swap = |character: char| -> String {
                if character.is_uppercase() {
                    character.to_lowercase().collect()
                } else if character.is_lowercase() {
                    character.to_uppercase().collect()
                } else {
                    character.into()
                }
            };
            string.chars().map(swap).collect::<String>().into()
        }
        "isalnum" => all(|c| is_letter(c) || is_digit(c) || is_numeric(c)),
        "isalpha" => all(is_letter),
        "isascii" => Value::Bool(string.is_ascii()),
        "isdecimal" => all(|c| decimal(c).is_some()),
        "isdigit" => all(is_digit),
        "isnumeric" => all(is_numeric),
        "isspace" => all(is_space),
        "isprintable" => Value::Bool(string.chars().all(is_printable)),
        "isidentifier" => {
            let mut rest = string.chars();
            let starts = rest.next().is_some_and(|c| c.is_alphabetic() || c == '_');
            Value::Bool(starts && rest.all(|c| c.is_alphanumeric() || c == '_'))
        }
        "islower" => Value::Bool(is_cased(string, false)),
        "isupper" => Value::Bool(is_cased(string, true)),
        "istitle" => Value::Bool(string.chars().any(is_cased_letter) && title(string) == string),
        _ => return Err(Error::new(format!("'str' object has no method '{name}'"))),
    })
}

/// True if all cased characters are of one case, and there is one.
pub(super) fn is_cased(string: &str, upper: bool) -> bool {
    let (is, is_not): (fn(char) -> bool, fn(char) -> bool) =
        if upper { (char::is_uppercase, char::is_lowercase) } else { (char::is_lowercase, char::is_uppercase) };
    string.chars().any(is) && !string.chars().any(is_not)
}

pub(super) fn capitalized(string: &str) -> String {
    let Some(first) = string.chars().next() else { return String::new() };
    // Lowered whole, because the form of a sigma depends on the letters around.
    let skipped: usize = first.to_lowercase().map(char::len_utf8).sum();
    titlecase(first) + &string.to_lowercase()[skipped..]
}

/// `str.title`: letters after anything but a letter with case are capital.
fn title(string: &str) -> String {
    let (mut made, mut is_inside) = (String::with_capacity(string.len()), false);
    let lower = string.to_lowercase();
    let mut rest = &*lower;
    for character in string.chars() {
        let (lowered, behind) = rest.split_at(character.to_lowercase().map(char::len_utf8).sum());
        rest = behind;
        if is_inside {
            made.push_str(lowered)
        } else {
            made.push_str(&titlecase(character))
        }
        is_inside = is_cased_letter(character);
    }
    made
}

/// A method of text that needs no escaping: arguments are escaped, and the result needs none.
///
/// # Errors
/// As [`text_method`].
pub(super) fn markup_method(string: &str, name: &str, given: &CallArguments) -> Result<Value, Error> {
    let mut given = given.clone();
    match (name, &mut given.positional[..]) {
        ("join", [items, ..]) => {
            let safe = items.items()?.iter().map(|item| Ok(safe(&soft_text(item)?))).collect::<Result<_, Error>>();
            *items = Value::list(safe?);
        }
        ("replace", [_, new, ..]) => *new = safe(new),
        ("format", positional) => {
            positional.iter_mut().for_each(|value| *value = safe(value));
            given.named.iter_mut().for_each(|(_, value)| *value = safe(value));
        }
        _ => {}
    }
    text_method(string, name, &given).map(marked)
}

/// A value with text escaped.
pub(super) fn safe(value: &Value) -> Value {
    match value {
        Value::Text(text) => Value::Markup(escaped(text).into()),
        other => other.clone(),
    }
}

/// Text made of a value: it needs no escaping if the value needs none.
pub(super) fn marked_as(value: &Value, made: Value) -> Value {
    if matches!(value, Value::Markup(_)) { marked(made) } else { made }
}

/// A value whose text needs no escaping.
fn marked(value: Value) -> Value {
    let all = |items: &[Value]| items.iter().cloned().map(marked).collect();
    match value {
        Value::Text(text) => Value::Markup(text),
        Value::List(items) => Value::list(all(&items)),
        Value::Tuple(items) => Value::tuple(all(&items)),
        other => other,
    }
}

fn stripped<'s>(string: &'s str, name: &str, is_stripped: impl Fn(char) -> bool) -> &'s str {
    let string = if name == "rstrip" { string } else { string.trim_start_matches(&is_stripped) };
    if name == "lstrip" { string } else { string.trim_end_matches(&is_stripped) }
}

/// `text.strip(chars)`.
///
/// # Errors
/// Characters that are not text.
pub(super) fn strip(string: &str, characters: Option<&Value>) -> Result<Value, Error> {
    let given = characters.cloned().map_or_else(CallArguments::default, CallArguments::one);
    text_method(string, "strip", &given)
}

/// Lines by all line ends that Python knows.
pub(super) fn lines(string: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = string;
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    while let Some(at) = rest.find(is_end) {
        let length =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        lines.push(&rest[..at + if keep { length } else { 0 }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `text.replace(old, new, count)`.
///
/// # Errors
/// A limit that is exceeded.
pub(super) fn replace(string: &str, old: &str, new: &str, count: i64) -> Result<Value, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let matches = if old.is_empty() { string.len() + 1 } else { string.matches(old).count() };
    charge(string.len() + matches.min(count).saturating_mul(new.len()))?;
    Ok(string.replacen(old, new, count).into())
}

fn split(string: &str, separator: Option<Value>, most: i64, from_right: bool) -> Result<Value, Error> {
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = Vec::new();
    match &separator {
        Some(separator) => {
            let separator = text("split", separator)?;
            if separator.is_empty() {
                return Err(Error::new("empty separator"));
            }
            if from_right {
                parts.extend(string.rsplitn(most + 1, separator));
            } else {
                parts.extend(string.splitn(most + 1, separator));
            }
        }
        None if from_right => {
            let mut rest = string.trim_end_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == most {
                    parts.push(rest);
                    break;
                }
                let start =
                    rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
        }
        None => {
            let mut rest = string.trim_start_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == most {
                    parts.push(rest);
                    break;
                }
                let end = rest.find(is_space).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    charge(string.len() + parts.len() * 32)?;
    Ok(Value::list(parts.into_iter().map(Value::from).collect()))
}

fn justified(string: &str, name: &str, width: usize, fill: &str) -> Result<String, Error> {
    let missing = width.saturating_sub(characters(string));
    charge(missing.saturating_mul(fill.len()))?;
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // As CPython rounds: an odd blank goes to the left of strings in odd widths.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!("{}{string}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// `text.center(width)`.
///
/// # Errors
/// A limit that is exceeded.
pub(super) fn centered(string: &str, width: usize) -> Result<Value, Error> {
    justified(string, "center", width, " ").map(Value::from)
}

/// `str(value)` as a value; text is returned unchanged.
///
/// # Errors
/// A value that cannot be printed.
pub(super) fn soft_text(value: &Value) -> Result<Value, Error> {
    Ok(if value.as_text().is_some() { value.clone() } else { Value::Text(printed(value)?) })
}
