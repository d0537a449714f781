//! Jinja2's filters, with `tojson` as transformers replaces it.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_traits::FromPrimitive;

use super::error::Error;
use super::format::percent;
use super::given::{Given, integer, required, text};
use super::limits::charge;
use super::methods::{capitalized, centered, lines, replace, soft_text, strip, subscript};
use super::operators::math;
use super::predicates::test;
use super::text::{Json, escaped, file_size, is_space, printed, represent, stripped_tags};
use super::value::{Value, View, compare, equal};

/// Largest width, count or precision of a filter.
const COUNT: i64 = 100_000;

const NAMES: [&str; 53] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
];

pub(super) fn is_filter(name: &str) -> bool {
    NAMES.contains(&name) || name == "xmlattr"
}

/// `value | name(given)`.
///
/// # Errors
/// Unknown filters; values and arguments that the filter does not take; a limit that is exceeded.
pub(super) fn filter(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    super::limits::step()?;
    match name {
        "tojson" => to_json(value, given),
        "trim" => {
            let [chars] = given.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            strip(&printed(value)?, chars.as_ref())
        }
        "length" | "count" => {
            let [] = given.bind(name, [])?;
            value.length().map(Value::from)
        }
        "default" | "d" => {
            let [default, boolean] = given.bind(name, ["default_value", "boolean"])?;
            let replaces = value.is_undefined() || (boolean.is_some_and(|b| b.is_true()) && !value.is_true());
            Ok(if replaces { default.unwrap_or_else(|| "".into()) } else { value.clone() })
        }
        "map" => map(value, given),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, value, given),
        "join" => join(value, given),
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(name, old)?, required(name, new)?);
            let count = count.filter(|count| !matches!(count, Value::None));
            let count = count.map_or(Ok(-1), |count| integer(name, &count))?;
            replace(&printed(value)?, &printed(&old)?, &printed(&new)?, count)
        }
        "int" | "float" | "round" | "abs" | "sum" | "filesizeformat" => numeric(name, value, given),
        "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" => ordered(name, value, given),
        "upper" | "lower" | "capitalize" | "title" | "center" | "indent" | "truncate" | "wordcount" | "wordwrap"
        | "format" | "string" | "safe" | "e" | "escape" | "forceescape" | "striptags" | "urlencode" | "pprint" => {
            textual(name, value, given)
        }
        "first" | "last" | "list" | "reverse" | "items" | "batch" | "slice" | "random" | "attr" => {
            sequence(name, value, given)
        }
        "urlize" | "xmlattr" => Err(Error::new(format!("the filter '{name}' is not supported in chat templates"))),
        _ => Err(Error::new(format!("no filter named '{name}'"))),
    }
}

fn bounded(name: &str, value: &Value) -> Result<i64, Error> {
    let count = integer(name, value)?;
    if count > COUNT {
        return Err(Error::too_much(&format!("{count} is too large a number for '{name}'")));
    }
    Ok(count)
}

fn to_json(value: &Value, given: &Given) -> Result<Value, Error> {
    let [ensure_ascii, indent, separators, sort_keys] =
        given.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text) | Value::Markup(text)) => Some(text.to_string()),
        Some(width) => Some(" ".repeat(bounded("tojson", &width)?.max(0) as usize)),
    };
    let separators = match separators {
        None | Some(Value::None) => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(pair) => match &pair.items()?[..] {
            [item, key] => [text("tojson", item)?.to_owned(), text("tojson", key)?.to_owned()],
            _ => return Err(Error::new("tojson: expected two separators")),
        },
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let style = Json { indent, sort_keys: is_true(sort_keys), ensure_ascii: is_true(ensure_ascii), separators };
    let mut text = String::new();
    style.write(value, 0, &mut text)?;
    Ok(text.into())
}

/// The item of a value at a path such as `a.b.0`.
fn at_path(item: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
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

fn map(value: &Value, given: &Given) -> Result<Value, Error> {
    if !value.is_true() {
        return Ok(Value::iterator([]));
    }
    let items = value.items()?;
    if given.positional.is_empty() && given.named.iter().any(|(name, _)| **name == *"attribute") {
        let [attribute, default] = given.bind("map", ["attribute", "default"])?;
        let attribute = required("map", attribute)?;
        let default = default.filter(|default| !matches!(default, Value::None));
        return Ok(Value::iterator(items.iter().map(|item| at_path(item, &attribute, default.as_ref()))));
    }
    let Some((name, rest)) = given.positional.split_first() else {
        return Ok(Value::iterator([Err(Error::new("map requires a filter argument"))]));
    };
    let name = text("map", name)?;
    let rest = Given { positional: rest.to_vec(), named: given.named.clone() };
    Ok(Value::iterator(items.iter().map(|item| filter(name, item, &rest))))
}

fn select(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    if !value.is_true() {
        return Ok(Value::iterator([]));
    }
    let by_attribute = name.ends_with("attr");
    let mut rest = given.positional.iter();
    let attribute = match by_attribute {
        true => Some(rest.next().ok_or_else(|| Error::new("missing parameter for attribute name"))?),
        false => None,
    };
    let test_name = rest.next().map(|name| text("select", name)).transpose()?;
    let rest = Given { positional: rest.cloned().collect(), named: given.named.clone() };
    let is_kept = |item: &Value| {
        let tested = attribute.map_or_else(|| Ok(item.clone()), |path| at_path(item, path, None))?;
        let holds = test_name.map_or_else(|| Ok(tested.is_true()), |name| test(name, &tested, &rest))?;
        Ok::<bool, Error>(holds != name.starts_with("reject"))
    };
    let items = value.items()?;
    let kept = items.iter().filter_map(|item| match is_kept(item) {
        Ok(true) => Some(Ok(item.clone())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    });
    Ok(Value::iterator(kept))
}

fn join(value: &Value, given: &Given) -> Result<Value, Error> {
    let [separator, attribute] = given.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or_else(|| Ok("".into()), |separator| printed(&separator))?;
    let items = value.items()?;
    let mut made = String::new();
    for (at, item) in items.iter().enumerate() {
        let item = match attribute.as_ref().filter(|path| !matches!(path, Value::None)) {
            Some(path) => at_path(item, path, None)?,
            None => item.clone(),
        };
        if at > 0 {
            charge(separator.len())?;
            made.push_str(&separator);
        }
        super::text::print(&item, &mut made)?;
    }
    Ok(made.into())
}

/// `int(text, base)` of Python.
fn parse_integer(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        16 => lower.strip_prefix("0x"),
        8 => lower.strip_prefix("0o"),
        2 => lower.strip_prefix("0b"),
        _ => None,
    };
    let digits = prefix.map_or(&*lower, |rest| rest.strip_prefix('_').unwrap_or(rest));
    let is_grouped = digits.split('_').all(|part| !part.is_empty());
    if !is_grouped || digits.len() > 4300 || digits.starts_with(['+', '-']) {
        return None;
    }
    let number = BigInt::parse_bytes(digits.replace('_', "").as_bytes(), base)?;
    Some(if negative { -number } else { number })
}

/// `float(text)` of Python.
fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space).to_ascii_lowercase();
    let unsigned = text.trim_start_matches(['+', '-']);
    if matches!(unsigned, "inf" | "infinity" | "nan") {
        return text.replace("infinity", "inf").parse().ok();
    }
    let is_grouped = !text.contains("__") && !text.starts_with('_') && !text.ends_with('_');
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    text.replace('_', "").parse().ok().filter(|_| is_grouped && is_number)
}

fn numeric(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    if let Value::Undefined(message) = value
        && name != "sum"
    {
        return Err(Error::new(&**message));
    }
    match name {
        "int" => {
            let [default, base] = given.bind(name, ["default", "base"])?;
            let base = base.map_or(Ok(10), |base| integer(name, &base))?;
            let default = default.unwrap_or(Value::Int(0));
            let of_float = |number: f64| BigInt::from_f64(number.trunc()).filter(|_| number.is_finite());
            Ok(match value {
                Value::Float(number) => of_float(*number).map_or(default, Value::from),
                Value::Text(text) | Value::Markup(text) => {
                    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
                    let whole = base.and_then(|base| parse_integer(text, base));
                    whole.or_else(|| parse_float(text).and_then(of_float)).map_or(default, Value::from)
                }
                other => other.as_big().map_or(default, Value::from),
            })
        }
        "float" => {
            let [default] = given.bind(name, ["default"])?;
            let number = match value.as_text() {
                Some(text) => parse_float(text),
                None => value.as_float(),
            };
            Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => round(value, given),
        "abs" => {
            let [] = given.bind(name, [])?;
            match value {
                Value::Float(number) => Ok(Value::Float(number.abs())),
                other => match other.as_big() {
                    Some(number) => Ok(Value::from(BigInt::from(number.magnitude().clone()))),
                    None => Err(Error::new(format!("bad operand type for abs(): '{}'", other.type_name()))),
                },
            }
        }
        "sum" => {
            let [attribute, start] = given.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if sum.as_text().is_some() {
                return Err(Error::new("sum() can't sum strings"));
            }
            for item in value.items()?.iter() {
                let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| at_path(item, path, None))?;
                sum = math(super::ast::Math::Add, &sum, &item)?;
            }
            Ok(sum)
        }
        _ => {
            let [binary] = given.bind(name, ["binary"])?;
            let bytes = value.as_text().and_then(parse_float).or(value.as_float());
            let bytes = bytes.ok_or_else(|| Error::new("filesizeformat: expected a number"))?;
            Ok(file_size(bytes, binary.is_some_and(|binary| binary.is_true())).into())
        }
    }
}

fn round(value: &Value, given: &Given) -> Result<Value, Error> {
    let [precision, method] = given.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| bounded("round", &precision))?;
    let method = method.map_or_else(|| Ok("common".into()), |method| printed(&method))?;
    let number = value
        .as_float()
        .ok_or_else(|| Error::new(format!("round: expected a number, found '{}'", value.type_name())))?;
    match &*method {
        "common" => {}
        "ceil" | "floor" => {
            let factor = 10f64.powi(precision as i32);
            let scaled = number * factor;
            return Ok(Value::Float(if *method == *"ceil" { scaled.ceil() } else { scaled.floor() } / factor));
        }
        _ => return Err(Error::new("method must be common, ceil or floor")),
    }
    if let Some(whole) = value.as_big() {
        if precision >= 0 {
            return Ok(Value::from(whole));
        }
        let unit = BigInt::from(10).pow(u32::try_from(-precision).unwrap_or(0).min(400));
        let half_even = |whole: &BigInt| {
            let (low, twice): (BigInt, BigInt) = {
                let remainder = ((whole % &unit) + &unit) % &unit;
                (whole - &remainder, remainder * 2)
            };
            let is_odd = (&low / &unit) % 2 != BigInt::from(0);
            if twice > unit || (twice == unit && is_odd) { low + &unit } else { low }
        };
        return Ok(Value::from(half_even(&whole)));
    }
    if !number.is_finite() || precision > 320 {
        return Ok(value.clone());
    }
    if precision >= 0 {
        let text = format!("{number:.*}", precision as usize);
        return Ok(Value::Float(text.parse().unwrap_or(number)));
    }
    let factor = 10f64.powi(-precision as i32);
    let scaled = number / factor;
    Ok(Value::Float(scaled.round_ties_even() * factor))
}

/// Text in lower case, unless case matters.
fn folded(value: Value, is_case_sensitive: bool) -> Value {
    match value.as_text() {
        Some(text) if !is_case_sensitive => text.to_lowercase().into(),
        _ => value,
    }
}

/// A stable sort by keys.
fn sorted<T>(mut items: Vec<(Value, T)>, is_reverse: bool) -> Result<Vec<(Value, T)>, Error> {
    charge(items.len() * 64)?;
    let mut failure = None;
    items.sort_by(|a, b| {
        if failure.is_some() {
            return Ordering::Equal;
        }
        let order = compare(&a.0, &b.0, "<").unwrap_or_else(|error| {
            failure = Some(error);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if is_reverse { order.reverse() } else { order }
    });
    failure.map_or(Ok(items), Err)
}

fn ordered(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    let is_true = |value: &Option<Value>| value.as_ref().is_some_and(Value::is_true);
    let keyed = |attribute: &Option<Value>, is_case_sensitive: bool, default: Option<&Value>| {
        let key = |item: &Value| {
            let found = match attribute.as_ref().filter(|path| !matches!(path, Value::None)) {
                None => item.clone(),
                Some(path) => at_path(item, path, default)?,
            };
            Ok::<_, Error>(folded(found, is_case_sensitive))
        };
        value.items()?.iter().map(|item| Ok((key(item)?, item.clone()))).collect::<Result<Vec<_>, Error>>()
    };
    match name {
        "sort" => {
            let [reverse, case_sensitive, attribute] = given.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let several = attribute.as_ref().and_then(Value::as_text).filter(|path| path.contains(','));
            let items = match several {
                Some(paths) => {
                    let key = |item: &Value| {
                        let parts = paths
                            .split(',')
                            .map(|path| Ok(folded(at_path(item, &path.into(), None)?, is_true(&case_sensitive))));
                        parts.collect::<Result<Vec<_>, Error>>().map(Value::list)
                    };
                    value.items()?.iter().map(|item| Ok((key(item)?, item.clone()))).collect::<Result<_, Error>>()?
                }
                None => keyed(&attribute, is_true(&case_sensitive), None)?,
            };
            Ok(Value::list(sorted(items, is_true(&reverse))?.into_iter().map(|(_, item)| item).collect()))
        }
        "unique" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let mut seen = super::value::Dict::default();
            let mut kept = Vec::new();
            for (key, item) in keyed(&attribute, is_true(&case_sensitive), None)? {
                if !key.is_hashable() {
                    kept.push(Err(Error::new(format!("unhashable type: '{}'", key.type_name()))));
                    break;
                }
                charge(16)?;
                if seen.get(&key).is_none() {
                    seen.insert(key, Value::None);
                    kept.push(Ok(item));
                }
            }
            Ok(Value::iterator(kept))
        }
        "min" | "max" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in keyed(&attribute, is_true(&case_sensitive), None)? {
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                let is_better = match &best {
                    None => true,
                    Some((other, _)) => compare(&key, other, "<")? == Some(wanted),
                };
                if is_better {
                    best = Some((key, item));
                }
            }
            let none = || Value::Undefined("no aggregated item, sequence was empty".into());
            Ok(best.map_or_else(none, |(_, item)| item))
        }
        "groupby" => {
            let [attribute, default, case_sensitive] = given.bind(name, ["attribute", "default", "case_sensitive"])?;
            let attribute = Some(required(name, attribute)?);
            let default = default.filter(|default| !matches!(default, Value::None));
            let items = sorted(keyed(&attribute, is_true(&case_sensitive), default.as_ref())?, false)?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in items {
                match groups.last_mut() {
                    Some((last, members)) if equal(last, &key)? => members.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            let made = groups.into_iter().map(|(key, members)| {
                let path = attribute.clone().unwrap_or(Value::None);
                let key = if is_true(&case_sensitive) { key } else { at_path(&members[0], &path, default.as_ref())? };
                let fields = [("grouper".into(), key), ("list".into(), Value::list(members))];
                Ok(Value::tuple(fields.into_iter().map(|(_, value): (Value, Value)| value).collect()))
            });
            Ok(Value::list(made.collect::<Result<_, Error>>()?))
        }
        _ => {
            let [case_sensitive, by, reverse] = given.bind(name, ["case_sensitive", "by", "reverse"])?;
            let Value::Dict(dict) = value else {
                return Err(Error::new(format!("dictsort: expected a dict, found '{}'", value.type_name())));
            };
            let by_value = match by.as_ref().map(|by| text(name, by)).transpose()? {
                None | Some("key") => false,
                Some("value") => true,
                Some(_) => return Err(Error::new("you can only sort by either \"key\" or \"value\"")),
            };
            let items = dict.entries().map(|(key, value)| {
                let by = if by_value { value } else { key };
                (folded(by.clone(), is_true(&case_sensitive)), Value::tuple(vec![key.clone(), value.clone()]))
            });
            let items = sorted(items.collect(), is_true(&reverse))?;
            Ok(Value::list(items.into_iter().map(|(_, item)| item).collect()))
        }
    }
}

fn textual(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    let string = printed(value)?;
    charge(string.len() / 4)?;
    match name {
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            centered(&string, width.map_or(Ok(80), |width| bounded(name, &width))?.max(0) as usize)
        }
        "indent" => indent(value, given),
        "truncate" => {
            let [length, kill, end, leeway] = given.bind(name, ["length", "killwords", "end", "leeway"])?;
            let length = length.map_or(Ok(255), |length| integer(name, &length))?;
            let end = end.map_or_else(|| Ok("...".into()), |end| printed(&end))?;
            let leeway = leeway.filter(|leeway| !matches!(leeway, Value::None));
            let leeway = leeway.map_or(Ok(5), |leeway| integer(name, &leeway))?;
            let kept = length - end.chars().count() as i64;
            if kept < 0 || leeway < 0 {
                return Err(Error::new("truncate: expected a length of at least that of the end"));
            }
            if value.length()? as i64 <= length.saturating_add(leeway) {
                return Ok(value.clone());
            }
            let cut: String = text(name, value)?.chars().take(kept as usize).collect();
            let cut = match kill.is_some_and(|kill| kill.is_true()) {
                true => &*cut,
                false => cut.rsplit_once(' ').map_or(&*cut, |(before, _)| before),
            };
            Ok(format!("{cut}{end}").into())
        }
        "format" => {
            if !given.positional.is_empty() && !given.named.is_empty() {
                return Err(Error::new("can't handle positional and keyword arguments at the same time"));
            }
            let values = match given.named.is_empty() {
                true => Value::tuple(given.positional.clone()),
                false => {
                    Value::dict(given.named.iter().map(|(name, value)| (Value::Text(name.clone()), value.clone())))
                }
            };
            percent(&Value::Text(string), &values)
        }
        "wordwrap" => wrap(&string, given),
        _ => {
            let [] = given.bind(name, [])?;
            Ok(match name {
                "upper" => string.to_uppercase().into(),
                "lower" => string.to_lowercase().into(),
                "capitalize" => capitalized(&string).into(),
                "title" => title(&string).into(),
                "wordcount" => {
                    let is_word = |c: char| c.is_alphanumeric() || c == '_';
                    Value::from(string.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count())
                }
                "string" => soft_text(value)?,
                "safe" => Value::Markup(string),
                "e" | "escape" if matches!(value, Value::Markup(_)) => value.clone(),
                "e" | "escape" | "forceescape" => Value::Markup(escaped(&string).into()),
                "striptags" => Value::Text(stripped_tags(&string).into()),
                "urlencode" => url_encoded(value)?.into(),
                _ => {
                    let mut made = String::new();
                    represent(value, &mut made, 0)?;
                    made.into()
                }
            })
        }
    }
}

fn indent(value: &Value, given: &Given) -> Result<Value, Error> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
    let string = text("indent", value)?;
    let indent = match &width {
        None => "    ".to_owned(),
        Some(Value::Text(text) | Value::Markup(text)) => text.to_string(),
        Some(width) => " ".repeat(bounded("indent", width)?.max(0) as usize),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    let ended = format!("{string}\n");
    let lines = lines(&ended, false);
    charge(lines.len().saturating_mul(indent.len()) + string.len())?;
    let mut made = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            made.push('\n');
        }
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            made.push_str(&indent);
        }
        made.push_str(line);
    }
    Ok(made.into())
}

/// Jinja2's title: letters behind blanks, hyphens and opening brackets are capital.
fn title(string: &str) -> String {
    let is_border = |c: char| is_space(c) || "-({[<".contains(c);
    let (mut made, mut is_first) = (String::with_capacity(string.len()), true);
    for character in string.chars() {
        if is_first {
            made.extend(character.to_uppercase())
        } else {
            made.extend(character.to_lowercase())
        }
        is_first = is_border(character);
    }
    made
}

fn url_encoded(value: &Value) -> Result<String, Error> {
    let quoted = |value: &Value, in_query: bool| {
        let text = printed(value)?;
        charge(text.len() * 3)?;
        let mut made = String::new();
        for byte in text.bytes() {
            match byte {
                b' ' if in_query => made.push('+'),
                b'/' if !in_query => made.push('/'),
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => made.push(byte.into()),
                other => made.push_str(&format!("%{other:02X}")),
            }
        }
        Ok::<_, Error>(made)
    };
    if value.as_text().is_some() || !value.is_iterable() {
        return quoted(value, false);
    }
    let pairs = match value {
        Value::Dict(dict) => Value::View(View::Items, dict.clone()),
        other => other.clone(),
    };
    let mut made = Vec::new();
    for pair in pairs.items()?.iter() {
        match &pair.items()?[..] {
            [key, value] => made.push(format!("{}={}", quoted(key, true)?, quoted(value, true)?)),
            _ => return Err(Error::new("urlencode: expected pairs")),
        }
    }
    Ok(made.join("&"))
}

/// `textwrap.wrap` of each line, without its breaks at hyphens.
fn wrap(string: &str, given: &Given) -> Result<Value, Error> {
    let [width, break_long, separator, _hyphens] =
        given.bind("wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = width.map_or(Ok(79), |width| bounded("wordwrap", &width))?.max(1) as usize;
    let breaks = break_long.is_none_or(|breaks| breaks.is_true());
    let separator = separator.filter(|value| !matches!(value, Value::None));
    let separator = separator.map_or_else(|| Ok("\n".into()), |value| printed(&value))?;
    charge(string.len() * 4)?;
    let mut made = Vec::new();
    for line in lines(string, false) {
        let (mut wrapped, mut current) = (Vec::new(), String::new());
        for word in line.split_inclusive(' ') {
            let bare = word.trim_end();
            if current.chars().count() + bare.chars().count() > width && !current.trim().is_empty() {
                wrapped.push(current.trim_end().to_owned());
                current = String::new();
            }
            let mut word = word.to_owned();
            while breaks && word.trim_end().chars().count() > width {
                let rest = word.chars().skip(width).collect();
                wrapped.push(word.chars().take(width).collect());
                word = rest;
            }
            current.push_str(&word);
        }
        if !current.trim().is_empty() {
            wrapped.push(current.trim_end().to_owned());
        }
        made.push(wrapped.join(&separator));
    }
    Ok(made.join(&separator).into())
}

fn sequence(name: &str, value: &Value, given: &Given) -> Result<Value, Error> {
    match name {
        "batch" => {
            let [count, fill] = given.bind(name, ["linecount", "fill_with"])?;
            let count = bounded(name, &required(name, count)?)?.max(0) as usize;
            let fill = fill.filter(|fill| !matches!(fill, Value::None));
            let items = value.items()?;
            let chunks = items.chunks(count.max(1)).map(|chunk| {
                let missing = count.saturating_sub(chunk.len());
                charge((chunk.len() + missing) * 16)?;
                let filled = fill.iter().flat_map(|fill| std::iter::repeat_n(fill.clone(), missing));
                Ok(Value::list(chunk.iter().cloned().chain(filled).collect()))
            });
            Ok(Value::iterator(chunks))
        }
        "slice" => {
            let [slices, fill] = given.bind(name, ["slices", "fill_with"])?;
            let slices = bounded(name, &required(name, slices)?)?.max(0) as usize;
            if slices == 0 {
                return Err(Error::new("integer division or modulo by zero"));
            }
            charge(slices * 16)?;
            let fill = fill.filter(|fill| !matches!(fill, Value::None));
            let items = value.items()?;
            let (each, extra) = (items.len() / slices, items.len() % slices);
            let mut from = 0;
            let made = (0..slices).map(|at| {
                let length = each + usize::from(at < extra);
                let mut part = items[from..from + length].to_vec();
                from += length;
                part.extend(fill.clone().filter(|_| at >= extra));
                Ok(Value::list(part))
            });
            Ok(Value::iterator(made))
        }
        "attr" => {
            let [attribute] = given.bind(name, ["name"])?;
            let attribute = required(name, attribute)?;
            let attribute = text(name, &attribute)?;
            let nothing = || Value::Undefined(format!("no attribute '{attribute}'").into());
            match value {
                Value::Dict(dict) if dict.get_text(attribute).is_some() => {
                    let found = super::methods::attribute(value, attribute)?;
                    Ok(if matches!(found, Value::Method(_)) { found } else { nothing() })
                }
                other => super::methods::attribute(other, attribute),
            }
        }
        _ => {
            let [] = given.bind(name, [])?;
            match name {
                "list" => {
                    let items = value.items()?;
                    charge(items.len() * 16)?;
                    Ok(Value::List(items))
                }
                "items" => match value {
                    Value::Undefined(_) => Ok(Value::iterator([])),
                    Value::Dict(dict) => {
                        let pairs = Value::View(View::Items, dict.clone()).items()?;
                        Ok(Value::iterator(pairs.iter().cloned().map(Ok)))
                    }
                    _ => Ok(Value::iterator([Err(Error::new("can only get item pairs from a mapping"))])),
                },
                "first" => match value {
                    Value::Iter(iter) => {
                        let first = iter.items.borrow_mut().pop_front();
                        match (first, iter.failure.borrow().clone()) {
                            (Some(first), _) => Ok(first),
                            (None, Some(error)) => Err(error),
                            (None, None) => Ok(Value::Undefined("no first item, sequence was empty".into())),
                        }
                    }
                    other => {
                        let first = other.items()?.first().cloned();
                        Ok(first.unwrap_or_else(|| Value::Undefined("no first item, sequence was empty".into())))
                    }
                },
                "last" => match value {
                    Value::Iter(_) => Err(Error::new("'generator' object is not reversible")),
                    other => {
                        let last = other.items()?.last().cloned();
                        Ok(last.unwrap_or_else(|| Value::Undefined("no last item, sequence was empty".into())))
                    }
                },
                "reverse" => match value.as_text() {
                    Some(text) => {
                        charge(text.len())?;
                        Ok(text.chars().rev().collect::<String>().into())
                    }
                    None => {
                        let items = value.items()?;
                        let reversed = items.iter().rev().cloned();
                        Ok(match value {
                            Value::Iter(_) => Value::list(reversed.collect()),
                            _ => Value::iterator(reversed.map(Ok)),
                        })
                    }
                },
                // Templates that draw would render a conversation differently each time.
                _ => Err(Error::new("the filter 'random' is not supported in chat templates")),
            }
        }
    }
}
