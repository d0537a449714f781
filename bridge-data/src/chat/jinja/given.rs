//! Arguments of a call.

use std::sync::Arc;

use super::error::Error;
use super::value::Value;

/// Largest width, count or precision of a filter.
const COUNT: i64 = 100_000;

/// Arguments that a filter, test, method, function or macro was given.
#[derive(Default, Clone)]
pub(super) struct CallArguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl CallArguments {
    pub(super) fn one(value: Value) -> Self {
        Self { positional: vec![value], named: Vec::new() }
    }

    /// The arguments by the names of the parameters, in their order. Fails on too many arguments,
    /// unknown names, one argument twice.
    pub(super) fn bind<const N: usize>(&self, what: &str, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
        if self.positional.len() > N {
            let found = self.positional.len();
            return Err(Error::new(format!("{what}: takes at most {N} arguments, found {found}")));
        }
        let mut bound = std::array::from_fn(|at| self.positional.get(at).cloned());
        for (name, value) in &self.named {
            let Some(at) = names.iter().position(|known| **known == **name) else {
                return Err(Error::new(format!("{what}: unexpected argument '{name}'")));
            };
            if bound[at].replace(value.clone()).is_some() {
                return Err(Error::new(format!("{what}: two values for the argument '{name}'")));
            }
        }
        Ok(bound)
    }
}

/// An argument that must be there.
///
/// # Errors
/// It is missing.
pub(super) fn required(what: &str, argument: Option<Value>) -> Result<Value, Error> {
    argument.ok_or_else(|| Error::new(format!("{what}: an argument is missing")))
}

/// An integer argument. Fails on a value that is not a 64-bit integer.
pub(super) fn integer(what: &str, value: &Value) -> Result<i64, Error> {
    value.as_int().ok_or_else(|| match value {
        Value::Undefined(message) => Error::new(&**message),
        other => Error::new(format!("{what}: expected an integer, found '{}'", other.type_name())),
    })
}

/// A width, count or precision of a filter. Fails on a value that is not an integer, or above
/// 100,000.
pub(super) fn bounded(name: &str, value: &Value) -> Result<i64, Error> {
    let count = integer(name, value)?;
    if count > COUNT {
        return Err(Error::too_much(&format!("{count} is too large a number for '{name}'")));
    }
    Ok(count)
}

/// A text argument. Fails on a value that is not text.
pub(super) fn text<'v>(what: &str, value: &'v Value) -> Result<&'v str, Error> {
    value.as_text().ok_or_else(|| Error::new(format!("{what}: expected text, found '{}'", value.type_name())))
}

/// Start and stop of a search, as Python clamps them. Fails on a bound that is not an integer.
pub(super) fn bounds(length: usize, start: Option<&Value>, stop: Option<&Value>) -> Result<(usize, usize), Error> {
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
