//! Filters that compare items: `sort`, `unique`, `min`, `max`, `groupby` and `dictsort`.

use std::cmp::Ordering;

use super::super::error::Error;
use super::super::given::{CallArguments, required, text};
use super::super::limits::charge;
use super::super::methods::at_path;
use super::super::value::{Value, compare, equal};

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

pub(super) fn ordered(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
            let mut seen = super::super::value::Dict::default();
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
