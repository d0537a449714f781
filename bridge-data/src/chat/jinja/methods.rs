//! Attributes and methods of Python's texts, lists, dictionaries and numbers, as far as the sandbox
//! of transformers allows them.

use std::rc::Rc;

use super::error::Error;
use super::format::format;
use super::given::{Given, integer, required, text};
use super::limits::charge;
use super::operators::item;
use super::text::{is_printable, is_space, printed};
use super::value::{Value, View, equal};

const TEXT: [&str; 41] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
];
const MORE_TEXT: [&str; 3] = ["title", "upper", "zfill"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];
/// Methods that change what they are called on.
const MUTATING: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "add",
];

/// True if the value has a method of this name that a template may call.
pub(super) fn has_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) | Value::Markup(_) => TEXT.contains(&name) || MORE_TEXT.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::List(_) => LIST.contains(&name),
        Value::Tuple(_) | Value::Range(..) => TUPLE.contains(&name),
        Value::Int(_) | Value::Big(_) | Value::Bool(_) => ["bit_length", "is_integer", "conjugate"].contains(&name),
        Value::Float(_) => ["is_integer", "conjugate"].contains(&name),
        Value::Loop(_) => ["cycle", "changed"].contains(&name),
        Value::Cycler(_) => ["next", "reset"].contains(&name),
        Value::Function(super::value::Function::Dict) => name == "fromkeys",
        _ => false,
    }
}

/// A field of a value that is not called: of loops, macros and numbers.
fn field(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Loop(looped) => {
            let (at, length) = (looped.at.get(), looped.items.len());
            Some(match name {
                "index" => Value::from(at + 1),
                "index0" => Value::from(at),
                "revindex" => Value::from(length - at),
                "revindex0" => Value::from(length - at - 1),
                "first" => Value::Bool(at == 0),
                "last" => Value::Bool(at + 1 == length),
                "length" => Value::from(length),
                "depth" => Value::from(looped.depth + 1),
                "depth0" => Value::from(looped.depth),
                "previtem" => match at.checked_sub(1) {
                    Some(at) => looped.items[at].clone(),
                    None => Value::Undefined("there is no previous item".into()),
                },
                "nextitem" => match looped.items.get(at + 1) {
                    Some(item) => item.clone(),
                    None => Value::Undefined("there is no next item".into()),
                },
                _ => return None,
            })
        }
        Value::Macro(closure) => Some(match name {
            "name" => Value::Text(closure.name.clone()),
            "arguments" => Value::tuple(closure.args.iter().cloned().map(Value::Text).collect()),
            "catch_kwargs" => Value::Bool(closure.code.uses_kwargs),
            "catch_varargs" => Value::Bool(closure.code.uses_varargs),
            "caller" => Value::Bool(closure.code.uses_caller),
            _ => return None,
        }),
        Value::Namespace(dict) => dict.borrow().get_text(name).cloned(),
        // A group of `groupby`: the only pairs with lists that templates read by these names.
        Value::Tuple(pair) if pair.len() == 2 && matches!(pair[1], Value::List(_)) => match name {
            "grouper" => Some(pair[0].clone()),
            "list" => Some(pair[1].clone()),
            _ => None,
        },
        Value::Range(start, stop, step) => match name {
            "start" => Some(Value::Int(*start)),
            "stop" => Some(Value::Int(*stop)),
            "step" => Some(Value::Int(*step)),
            _ => None,
        },
        Value::Cycler(cycler) if name == "current" => cycler.0.get(cycler.1.get()).cloned(),
        Value::Int(_) | Value::Big(_) | Value::Float(_) | Value::Bool(_) => match name {
            "real" => Some(value.clone()),
            "numerator" if !matches!(value, Value::Float(_)) => Some(value.clone()),
            "denominator" if !matches!(value, Value::Float(_)) => Some(Value::Int(1)),
            "imag" if matches!(value, Value::Float(_)) => Some(Value::Float(0.0)),
            "imag" => Some(Value::Int(0)),
            _ => None,
        },
        _ => None,
    }
}

/// True for names of methods that change a list or dictionary, which are undefined in the sandbox.
fn is_mutating(value: &Value, name: &str) -> bool {
    matches!(value, Value::Dict(_) | Value::List(_)) && MUTATING.contains(&name)
}

fn own(value: &Value, name: &str) -> Option<Value> {
    if is_mutating(value, name) {
        let message = format!("access to attribute '{name}' of '{}' object is unsafe", value.type_name());
        let known = match value {
            Value::Dict(_) => ["clear", "pop", "popitem", "setdefault", "update"].contains(&name),
            _ => !["popitem", "setdefault", "update", "add"].contains(&name),
        };
        return known.then(|| Value::Undefined(message.into()));
    }
    field(value, name).or_else(|| has_method(value, name).then(|| Value::Method(Rc::new((value.clone(), name.into())))))
}

fn nothing(value: &Value, name: &str) -> Value {
    Value::Undefined(format!("'{} object' has no attribute '{name}'", value.type_name()).into())
}

/// `value.name`: the attribute, else the item.
///
/// # Errors
/// An undefined value.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if let Value::Undefined(message) = value {
        return Err(Error::new(&**message));
    }
    if let Some(found) = own(value, name) {
        return Ok(found);
    }
    if let Value::Dict(dict) = value {
        return Ok(dict.get_text(name).cloned().unwrap_or_else(|| nothing(value, name)));
    }
    Ok(nothing(value, name))
}

/// `value[key]`: the item, else the attribute.
///
/// # Errors
/// An undefined value.
pub(super) fn subscript(value: &Value, key: &Value) -> Result<Value, Error> {
    if let Some(found) = item(value, key)? {
        return Ok(found);
    }
    let Some(name) = key.as_text() else {
        return Ok(Value::Undefined(format!("'{} object' has no such item", value.type_name()).into()));
    };
    Ok(own(value, name).unwrap_or_else(|| nothing(value, name)))
}

/// Calls a method of a text, list, dictionary or number.
///
/// # Errors
/// Arguments that the method does not take; a limit that is exceeded.
pub(super) fn call(value: &Value, name: &str, given: &Given) -> Result<Value, Error> {
    match value {
        Value::Text(string) | Value::Markup(string) => text_method(string, name, given),
        Value::Dict(dict) => {
            let [key, default] = given.bind(name, ["key", "default"])?;
            match name {
                "get" if !given.named.is_empty() => Err(Error::new("dict.get() takes no keyword arguments")),
                "get" => {
                    let key = required("get", key)?;
                    if !key.is_hashable() {
                        return Err(Error::new(format!("unhashable type: '{}'", key.type_name())));
                    }
                    Ok(dict.get(&key).cloned().or(default).unwrap_or(Value::None))
                }
                _ if key.is_some() => Err(Error::new(format!("dict.{name}() takes no arguments"))),
                "items" => Ok(Value::View(View::Items, dict.clone())),
                "keys" => Ok(Value::View(View::Keys, dict.clone())),
                "values" => Ok(Value::View(View::Values, dict.clone())),
                _ => Ok(Value::Dict(dict.clone())),
            }
        }
        Value::List(_) | Value::Tuple(_) | Value::Range(..) => list_method(value, name, given),
        Value::Int(_) | Value::Big(_) | Value::Bool(_) => Ok(match name {
            "bit_length" => Value::Int(value.as_big().unwrap_or_default().bits() as i64),
            "is_integer" => Value::Bool(true),
            _ => value.clone(),
        }),
        Value::Float(number) => Ok(match name {
            "is_integer" => Value::Bool(number.fract() == 0.0),
            _ => value.clone(),
        }),
        Value::Loop(looped) if name == "cycle" => {
            let count = given.positional.len();
            if count == 0 {
                return Err(Error::new("no items for cycling given"));
            }
            Ok(given.positional[looped.at.get() % count].clone())
        }
        Value::Loop(looped) => {
            let mut last = looped.last.borrow_mut();
            let same = match &*last {
                Some(last) => equal(&Value::list(last.clone()), &Value::list(given.positional.clone()))?,
                None => false,
            };
            *last = Some(given.positional.clone());
            Ok(Value::Bool(!same))
        }
        Value::Cycler(cycler) => {
            let at = cycler.1.get();
            cycler.1.set(if name == "reset" { 0 } else { (at + 1) % cycler.0.len() });
            Ok(if name == "reset" { Value::None } else { cycler.0[at].clone() })
        }
        Value::Function(_) => {
            let [keys, default] = given.bind(name, ["keys", "value"])?;
            let default = default.unwrap_or(Value::None);
            let keys = required(name, keys)?.items()?;
            Ok(Value::dict(keys.iter().map(|key| (key.clone(), default.clone()))))
        }
        other => Err(Error::new(format!("'{}' object has no method '{name}'", other.type_name()))),
    }
}

fn list_method(value: &Value, name: &str, given: &Given) -> Result<Value, Error> {
    let items = value.items()?;
    let [wanted, start, stop] = given.bind(name, ["value", "start", "stop"])?;
    match name {
        "copy" => Ok(Value::List(items)),
        "count" => {
            let wanted = required(name, wanted)?;
            let mut count = 0;
            for item in items.iter() {
                count += usize::from(equal(item, &wanted)?);
            }
            Ok(Value::from(count))
        }
        _ => {
            let wanted = required(name, wanted)?;
            let (start, stop) = bounds(items.len(), start.as_ref(), stop.as_ref())?;
            for (at, item) in items.iter().enumerate().take(stop).skip(start) {
                if equal(item, &wanted)? {
                    return Ok(Value::from(at));
                }
            }
            Err(Error::new("the value is not in the list"))
        }
    }
}

/// Start and stop of a search, as Python clamps them.
fn bounds(length: usize, start: Option<&Value>, stop: Option<&Value>) -> Result<(usize, usize), Error> {
    let place = |value: Option<&Value>, usual: usize| match value {
        None | Some(Value::None) => Ok(usual),
        Some(value) => {
            let at = integer("index", value)?;
            let at = if at < 0 { at.saturating_add(length as i64).max(0) } else { at };
            Ok(usize::try_from(at).unwrap_or(usize::MAX))
        }
    };
    Ok((place(start, 0)?, place(stop, length)?.min(length)))
}

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
/// start is behind the end.
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

fn text_method(string: &str, name: &str, given: &Given) -> Result<Value, Error> {
    charge(string.len() / 4)?;
    let argument = |at: usize| text(name, &given.positional[at]);
    match name {
        "format" => format(string, given),
        "format_map" => {
            takes(name, given, 1, 1)?;
            let Value::Dict(dict) = &given.positional[0] else { return Err(Error::new("format_map: expected a dict")) };
            let named = dict.entries().filter_map(|(key, value)| Some((key.as_text()?.into(), value.clone())));
            format(string, &Given { positional: Vec::new(), named: named.collect() })
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
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(name, old)?, required(name, new)?);
            let count = count.map_or(Ok(-1), |count| integer(name, &count))?;
            replace(string, text(name, &old)?, text(name, &new)?, count)
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
fn takes(name: &str, given: &Given, least: usize, most: usize) -> Result<(), Error> {
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
fn filled(string: &str, name: &str, given: &Given) -> Result<Value, Error> {
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
        "casefold" => string.to_lowercase().replace('ß', "ss").into(),
        "upper" => string.to_uppercase().into(),
        "capitalize" => capitalized(string).into(),
        "title" => title(string).into(),
        "swapcase" => {
            let swap = |character: char| -> String {
                if character.is_uppercase() {
                    character.to_lowercase().collect()
                } else {
                    character.to_uppercase().collect()
                }
            };
            string.chars().map(swap).collect::<String>().into()
        }
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Value::Bool(string.is_ascii()),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(|c| is_decimal(c) || "⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉①②③④⑤⑥⑦⑧⑨".contains(c)),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => Value::Bool(string.chars().all(is_printable)),
        "isidentifier" => {
            let mut rest = string.chars();
            let starts = rest.next().is_some_and(|c| c.is_alphabetic() || c == '_');
            Value::Bool(starts && rest.all(|c| c.is_alphanumeric() || c == '_'))
        }
        "islower" => Value::Bool(is_cased(string, false)),
        "isupper" => Value::Bool(is_cased(string, true)),
        "istitle" => {
            Value::Bool(string.chars().any(|c| c.is_uppercase() || c.is_lowercase()) && title(string) == string)
        }
        _ => return Err(Error::new(format!("'str' object has no method '{name}'"))),
    })
}

/// True for decimal digits of the scripts that write most numbers.
fn is_decimal(character: char) -> bool {
    let zeros = [
        '0', '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{be6}', '\u{e50}',
        '\u{ff10}',
    ];
    zeros.into_iter().any(|zero| (0..10).contains(&(u32::from(character).wrapping_sub(u32::from(zero)))))
}

/// True if all cased characters are of one case, and there is one.
pub(super) fn is_cased(string: &str, upper: bool) -> bool {
    let (is, is_not): (fn(char) -> bool, fn(char) -> bool) =
        if upper { (char::is_uppercase, char::is_lowercase) } else { (char::is_lowercase, char::is_uppercase) };
    string.chars().any(is) && !string.chars().any(is_not)
}

pub(super) fn capitalized(string: &str) -> String {
    let mut rest = string.chars();
    let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &rest.as_str().to_lowercase()
}

/// `str.title`: letters behind anything but a letter are capital.
fn title(string: &str) -> String {
    let (mut made, mut is_inside) = (String::with_capacity(string.len()), false);
    for character in string.chars() {
        if is_inside {
            made.extend(character.to_lowercase())
        } else {
            made.extend(character.to_uppercase())
        }
        is_inside = character.is_alphabetic();
    }
    made
}

fn stripped<'s>(string: &'s str, name: &str, is_stripped: impl Fn(char) -> bool) -> &'s str {
    let string = if name == "rstrip" { string } else { string.trim_start_matches(&is_stripped) };
    if name == "lstrip" { string } else { string.trim_end_matches(&is_stripped) }
}

/// `text.strip(chars)`.
///
/// # Errors
/// Characters that are no text.
pub(super) fn strip(string: &str, characters: Option<&Value>) -> Result<Value, Error> {
    let given = characters.cloned().map_or_else(Given::default, Given::one);
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

/// `str(value)` as a value; text stays what it is.
///
/// # Errors
/// A value that cannot be printed.
pub(super) fn soft_text(value: &Value) -> Result<Value, Error> {
    Ok(if value.as_text().is_some() { value.clone() } else { Value::Text(printed(value)?) })
}
