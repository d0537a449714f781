//! Filters of sequences: `first`, `last`, `list`, `reverse`, `items`, `batch`, `slice` and `attr`.

use super::super::error::Error;
use super::super::given::{CallArguments, bounded, required, text};
use super::super::limits::charge;
use super::super::value::{Value, View};

pub(super) fn sequence(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
                    let found = super::super::methods::attribute(value, attribute)?;
                    Ok(if matches!(found, Value::Method(_)) { found } else { nothing() })
                }
                other => super::super::methods::attribute(other, attribute),
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
                    Value::Iter(iter) => iter.next()?,
                    other => other.items()?.first().cloned(),
                }
                .map_or_else(|| Ok(Value::Undefined("no first item, sequence was empty".into())), Ok),
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
