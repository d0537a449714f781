//! Jinja2's tests, the operands of `is`.

use super::ast::Comparison;
use super::error::Error;
use super::filters::is_filter;
use super::given::CallArguments;
use super::operators::{compared, contains, is_same, math};
use super::strings::is_cased;
use super::text::printed;
use super::value::{Value, equal};

const NAMES: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub(super) fn is_test(name: &str) -> bool {
    NAMES.contains(&name)
}

/// `value is name(given)`.
///
/// # Errors
/// Unknown tests; arguments that the test does not take.
pub(super) fn test(name: &str, value: &Value, given: &CallArguments) -> Result<bool, Error> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(Comparison::Eq),
        "!=" | "ne" => Some(Comparison::Ne),
        ">" | "gt" | "greaterthan" => Some(Comparison::Gt),
        ">=" | "ge" => Some(Comparison::Ge),
        "<" | "lt" | "lessthan" => Some(Comparison::Lt),
        "<=" | "le" => Some(Comparison::Le),
        _ => None,
    };
    let argument = || given.bind(name, ["other"]).and_then(|[other]| super::given::required(name, other));
    let remainder = |by: i64| math(super::ast::Math::Rem, value, &Value::Int(by));
    if let Some(comparison) = comparison {
        return compared(comparison, value, &argument()?);
    }
    match name {
        "in" => return contains(&argument()?, value),
        "sameas" => return Ok(is_same(value, &argument()?)),
        "divisibleby" => return equal(&math(super::ast::Math::Rem, value, &argument()?)?, &Value::Int(0)),
        _ => {
            let [] = given.bind(name, [])?;
        }
    }
    Ok(match name {
        "odd" => equal(&remainder(2)?, &Value::Int(1))?,
        "even" => equal(&remainder(2)?, &Value::Int(0))?,
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" | "test" if !value.is_hashable() => {
            return Err(Error::new(format!("unhashable type: '{}'", value.type_name())));
        }
        "filter" => value.as_text().is_some_and(is_filter),
        "test" => value.as_text().is_some_and(is_test),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
        "float" => matches!(value, Value::Float(_)),
        "lower" => is_cased(&printed(value)?, false),
        "upper" => is_cased(&printed(value)?, true),
        "string" => value.as_text().is_some(),
        "mapping" => matches!(value, Value::Dict(_)),
        "number" => value.is_number(),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Markup(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
        ),
        "iterable" => value.is_iterable(),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Macro(_)
                | Value::Loop(_)
                | Value::Joiner(_)
        ),
        "escaped" => matches!(value, Value::Markup(_)),
        _ => return Err(Error::new(format!("no test named '{name}'"))),
    })
}
