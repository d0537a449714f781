//! Attributes and methods of Python's texts, lists, dictionaries and numbers, as far as the sandbox
//! of transformers allows them.

use std::rc::Rc;

use super::error::Error;
use super::given::{CallArguments, bounds, required};
use super::limits::charge;
use super::strings::{markup_method, text_method};
use super::value::{Value, View, equal, range_length};

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
/// Methods that change their object.
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

/// `container[key]`, if there is such an item.
///
/// # Errors
/// An undefined container.
pub(super) fn item(container: &Value, key: &Value) -> Result<Option<Value>, Error> {
    let place = |length: usize| {
        let at = key.as_int()?;
        let at = if at < 0 { at.checked_add(length as i64)? } else { at };
        usize::try_from(at).ok().filter(|at| *at < length)
    };
    Ok(match container {
        Value::Undefined(message) => return Err(Error::new(&**message)),
        Value::Dict(dict) => {
            if key.is_hashable() {
                dict.get(key).cloned()
            } else {
                None
            }
        }
        Value::List(items) | Value::Tuple(items) => place(items.len()).map(|at| items[at].clone()),
        Value::Text(text) | Value::Markup(text) if key.as_int().is_some() => {
            charge(text.len() / 16)?;
            let found = match place(text.chars().count()) {
                Some(at) if text.is_ascii() => text.get(at..=at).map(str::to_owned),
                Some(at) => text.chars().nth(at).map(String::from),
                None => None,
            };
            found.map(Value::from)
        }
        Value::Range(start, stop, step) => {
            place(range_length(*start, *stop, *step)).map(|at| Value::Int(start + at as i64 * step))
        }
        _ => None,
    })
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

/// The item of a value at a path such as `a.b.0`, or `default` if it is undefined.
///
/// # Errors
/// As [`subscript`].
pub(super) fn at_path(item: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let mut found = item.clone();
    let mut enter = |key: &Value| {
        found = subscript(&found, key)?;
        if let Some(default) = default.filter(|_| found.is_undefined()) {
            found = default.clone();
        }
        Ok::<_, Error>(())
    };
    match path.as_text() {
        Some(path) => {
            for part in path.split('.') {
                let number = part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty();
                let key = part.parse().ok().filter(|_| number).map_or_else(|| Value::from(part), Value::Int);
                enter(&key)?;
            }
        }
        None if matches!(path, Value::None) => {}
        None => enter(path)?,
    }
    Ok(found)
}

/// Calls a method of a text, list, dictionary or number. Fails on arguments that the method does
/// not take; a limit that is exceeded.
pub(super) fn call(value: &Value, name: &str, given: &CallArguments) -> Result<Value, Error> {
    match value {
        Value::Text(string) => text_method(string, name, given),
        Value::Markup(string) => markup_method(string, name, given),
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

fn list_method(value: &Value, name: &str, given: &CallArguments) -> Result<Value, Error> {
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
