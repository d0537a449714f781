//! Jinja2's filters, with `tojson` as transformers replaces it.

mod numbers;
mod order;
mod sequences;
mod texts;

use super::error::Error;
use super::given::{CallArguments, bounded, integer, required, text};
use super::limits::charge;
use super::methods::at_path;
use super::predicates::test;
use super::strings::{marked_as, replace, strip};
use super::text::{Json, printed};
use super::value::Value;

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
pub(super) fn filter(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
    super::limits::step()?;
    match name {
        "tojson" => to_json(value, given),
        "trim" => {
            let [chars] = given.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            let made = strip(&printed(value)?, chars.as_ref())?;
            Ok(marked_as(value, made))
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
        "int" | "float" | "round" | "abs" | "sum" | "filesizeformat" => numbers::numeric(name, value, given),
        "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" => order::ordered(name, value, given),
        "upper" | "lower" | "capitalize" | "title" | "center" | "indent" | "truncate" | "wordcount" | "wordwrap"
        | "format" | "string" | "safe" | "e" | "escape" | "forceescape" | "striptags" | "urlencode" | "pprint" => {
            texts::textual(name, value, given)
        }
        "first" | "last" | "list" | "reverse" | "items" | "batch" | "slice" | "random" | "attr" => {
            sequences::sequence(name, value, given)
        }
        "urlize" | "xmlattr" => Err(Error::new(format!("the filter '{name}' is not supported in chat templates"))),
        _ => Err(Error::new(format!("no filter named '{name}'"))),
    }
}

fn to_json(value: &Value, given: &CallArguments) -> Result<Value, Error> {
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

fn map(value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
    let rest = CallArguments { positional: rest.to_vec(), named: given.named.clone() };
    Ok(Value::iterator(items.iter().map(|item| filter(name, item, &rest))))
}

fn select(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
    let rest = CallArguments { positional: rest.cloned().collect(), named: given.named.clone() };
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

fn join(value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
