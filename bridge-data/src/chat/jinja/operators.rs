//! Operators with Python's meaning, items and slices.

use std::rc::Rc;

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};

use super::ast::{Comparison, Math};
use super::error::Error;
use super::format::percent;
use super::limits::charge;
use super::text::{escaped, printed};
use super::value::{Value, View, compare, equal, range_length};

/// Most bits of an integer.
const BITS: u64 = 1 << 17;

fn unsupported(sign: &str, a: &Value, b: &Value) -> Error {
    if let (Value::Undefined(message), _) | (_, Value::Undefined(message)) = (a, b) {
        return Error::new(&**message);
    }
    let (a, b) = (a.type_name(), b.type_name());
    Error::new(format!("unsupported operand type(s) for {sign}: '{a}' and '{b}'"))
}

/// `a operator b`.
///
/// # Errors
/// Operands that Python refuses; a limit that is exceeded.
pub(super) fn math(operator: Math, a: &Value, b: &Value) -> Result<Value, Error> {
    match operator {
        Math::Add => add(a, b),
        Math::Mul if !(a.is_number() && b.is_number()) => repeat(a, b),
        Math::Rem if a.as_text().is_some() => percent(a, b),
        _ => number(operator, a, b),
    }
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            charge(a.len() + b.len())?;
            let mut text = String::with_capacity(a.len() + b.len());
            text.push_str(a);
            text.push_str(b);
            Ok(text.into())
        }
        (Value::Markup(_), Value::Text(_) | Value::Markup(_)) | (Value::Text(_), Value::Markup(_)) => {
            let safe = |value: &Value| match value {
                Value::Markup(text) => text.to_string(),
                other => escaped(other.as_text().unwrap_or_default()),
            };
            let text = safe(a) + &safe(b);
            charge(text.len())?;
            Ok(Value::Markup(text.into()))
        }
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            charge((x.len() + y.len()) * 16)?;
            let items = x.iter().chain(&**y).cloned().collect();
            Ok(if matches!(a, Value::List(_)) { Value::list(items) } else { Value::tuple(items) })
        }
        _ => number(Math::Add, a, b),
    }
}

fn repeat(a: &Value, b: &Value) -> Result<Value, Error> {
    let (sequence, count) = match (a.as_int(), b.as_int()) {
        (None, Some(count)) => (a, count),
        (Some(count), None) => (b, count),
        _ => return Err(unsupported("*", a, b)),
    };
    let count = usize::try_from(count).unwrap_or(0);
    let many = |items: &[Value]| {
        charge(items.len().saturating_mul(count).saturating_mul(16))?;
        Ok::<Vec<Value>, Error>((0..count).flat_map(|_| items.iter().cloned()).collect())
    };
    Ok(match sequence {
        Value::Text(text) | Value::Markup(text) => {
            charge(text.len().saturating_mul(count))?;
            let made = text.repeat(count);
            if matches!(sequence, Value::Text(_)) { made.into() } else { Value::Markup(made.into()) }
        }
        Value::List(items) => Value::list(many(items)?),
        Value::Tuple(items) => Value::tuple(many(items)?),
        _ => return Err(unsupported("*", a, b)),
    })
}

fn sign_of(operator: Math) -> &'static str {
    match operator {
        Math::Add => "+",
        Math::Sub => "-",
        Math::Mul => "*",
        Math::Div => "/",
        Math::FloorDiv => "//",
        Math::Rem => "%",
        Math::Pow => "** or pow()",
    }
}

fn number(operator: Math, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        let made = match operator {
            Math::Add => x.checked_add(y),
            Math::Sub => x.checked_sub(y),
            Math::Mul => x.checked_mul(y),
            Math::FloorDiv if y > 0 => Some(x.div_euclid(y)),
            Math::Rem if y > 0 => Some(x.rem_euclid(y)),
            Math::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            _ => None,
        };
        if let Some(made) = made {
            return Ok(Value::Int(made));
        }
    }
    if let (Some(x), Some(y)) = (a.as_big(), b.as_big()) {
        return integer(operator, &x, &y);
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else { return Err(unsupported(sign_of(operator), a, b)) };
    float(operator, x, y)
}

fn integer(operator: Math, x: &BigInt, y: &BigInt) -> Result<Value, Error> {
    let too_large = || Error::too_much("it computes with integers that are too large");
    if x.bits() + y.bits() > BITS {
        return Err(too_large());
    }
    let floored = || {
        let (quotient, remainder) = (x / y, x % y);
        if remainder.is_zero() || remainder.is_negative() == y.is_negative() {
            (quotient, remainder)
        } else {
            (quotient - 1, remainder + y)
        }
    };
    if y.is_zero() && matches!(operator, Math::Div | Math::FloorDiv | Math::Rem) {
        return Err(Error::new("division by zero"));
    }
    Ok(match operator {
        Math::Add => Value::from(x + y),
        Math::Sub => Value::from(x - y),
        Math::Mul => Value::from(x * y),
        Math::FloorDiv => Value::from(floored().0),
        Math::Rem => Value::from(floored().1),
        Math::Div => match (x.to_f64(), y.to_f64()) {
            (Some(x), Some(y)) if x.is_finite() && y.is_finite() => Value::Float(x / y),
            _ => return Err(Error::new("integer division result too large for a float")),
        },
        Math::Pow if y.is_negative() => {
            return float(operator, x.to_f64().unwrap_or(f64::NAN), y.to_f64().unwrap_or(f64::NAN));
        }
        Math::Pow => {
            let exponent = y.to_u32().ok_or_else(too_large)?;
            if x.bits().saturating_mul(u64::from(exponent)) > BITS {
                return Err(too_large());
            }
            charge(x.bits() as usize * exponent as usize / 8)?;
            Value::from(x.pow(exponent))
        }
    })
}

fn float(operator: Math, x: f64, y: f64) -> Result<Value, Error> {
    if y == 0.0 && matches!(operator, Math::Div | Math::FloorDiv | Math::Rem) {
        return Err(Error::new("float division by zero"));
    }
    let remainder = || {
        let remainder = x % y;
        if remainder != 0.0 && (remainder < 0.0) != (y < 0.0) {
            remainder + y
        } else if remainder == 0.0 {
            0.0_f64.copysign(y)
        } else {
            remainder
        }
    };
    Ok(Value::Float(match operator {
        Math::Add => x + y,
        Math::Sub => x - y,
        Math::Mul => x * y,
        Math::Div => x / y,
        Math::Rem => remainder(),
        Math::FloorDiv => {
            let quotient = (x - remainder()) / y;
            let floor = quotient.floor();
            if quotient - floor > 0.5 { floor + 1.0 } else { floor }
        }
        Math::Pow if x == 0.0 && y < 0.0 => return Err(Error::new("zero cannot be raised to a negative power")),
        Math::Pow if x < 0.0 && y.fract() != 0.0 => return Err(Error::new("complex numbers are not supported")),
        Math::Pow => {
            let power = x.powf(y);
            if power.is_infinite() && x.is_finite() && y.is_finite() {
                return Err(Error::new("numerical result out of range"));
            }
            power
        }
    }))
}

/// `-value`, or `+value`.
///
/// # Errors
/// A value that is not a number.
pub(super) fn signed(value: &Value, is_minus: bool) -> Result<Value, Error> {
    let sign = if is_minus { -1 } else { 1 };
    match value {
        Value::Undefined(message) => Err(Error::new(&**message)),
        Value::Float(number) => Ok(Value::Float(if is_minus { -number } else { *number })),
        other => match other.as_big() {
            Some(number) => Ok(Value::from(number * sign)),
            None => Err(Error::new(format!("bad operand type for unary -: '{}'", other.type_name()))),
        },
    }
}

/// `a comparison b`.
///
/// # Errors
/// Operands that Python refuses.
pub(super) fn compared(comparison: Comparison, a: &Value, b: &Value) -> Result<bool, Error> {
    Ok(match comparison {
        Comparison::Eq => equal(a, b)?,
        Comparison::Ne => !equal(a, b)?,
        Comparison::Lt => compare(a, b, "<")?.is_some_and(std::cmp::Ordering::is_lt),
        Comparison::Le => compare(a, b, "<=")?.is_some_and(std::cmp::Ordering::is_le),
        Comparison::Gt => compare(a, b, ">")?.is_some_and(std::cmp::Ordering::is_gt),
        Comparison::Ge => compare(a, b, ">=")?.is_some_and(std::cmp::Ordering::is_ge),
        Comparison::In => contains(b, a)?,
        Comparison::NotIn => !contains(b, a)?,
    })
}

/// `item in container`.
///
/// # Errors
/// A value that is not a container; an item of a type that the container cannot have.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match container {
        Value::Text(text) | Value::Markup(text) => {
            charge(text.len() / 16)?;
            match item.as_text() {
                Some(item) => Ok(text.contains(item)),
                None => {
                    let name = item.type_name();
                    Err(Error::new(format!("'in <string>' requires string as left operand, not {name}")))
                }
            }
        }
        Value::Dict(dict) | Value::View(View::Keys, dict) => {
            if !item.is_hashable() {
                return Err(Error::new(format!("unhashable type: '{}'", item.type_name())));
            }
            Ok(dict.get(item).is_some())
        }
        Value::Range(start, stop, step) => Ok(match item {
            Value::Float(number) if number.fract() != 0.0 => false,
            Value::Float(number) => in_range(*start, *stop, *step, *number as i64),
            other => other.as_int().is_some_and(|number| in_range(*start, *stop, *step, number)),
        }),
        // As in Python, items behind the one that is found stay in an iterator.
        Value::Iter(iter) => {
            while let Some(candidate) = iter.next()? {
                if equal(&candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other if other.is_iterable() => {
            for candidate in other.items()?.iter() {
                if equal(candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => Err(Error::new(format!("argument of type '{}' is not iterable", other.type_name()))),
    }
}

fn in_range(start: i64, stop: i64, step: i64, number: i64) -> bool {
    let inside = if step > 0 { start <= number && number < stop } else { stop < number && number <= start };
    inside && (i128::from(number) - i128::from(start)) % i128::from(step) == 0
}

/// `container[start:stop:step]`.
///
/// # Errors
/// A container without slices; a bound that is not an integer; a step of zero.
pub(super) fn slice(container: &Value, bounds: [Option<&Value>; 3]) -> Result<Value, Error> {
    if let Value::Undefined(message) = container {
        return Err(Error::new(&**message));
    }
    let length = match container {
        Value::Text(_) | Value::Markup(_) | Value::List(_) | Value::Tuple(_) | Value::Range(..) => {
            container.length()?
        }
        other => return Err(Error::new(format!("'{}' object has no slices", other.type_name()))),
    } as i64;
    let bound = |value: Option<&Value>| match value {
        None | Some(Value::None) => Some(None),
        Some(value) => {
            let large = || value.as_big().map(|number| if number.is_negative() { i64::MIN / 2 } else { i64::MAX / 2 });
            value.as_int().or_else(large).map(Some)
        }
    };
    let [Some(start), Some(stop), Some(step)] = bounds.map(bound) else {
        return Err(Error::new("slice indices must be integers or None"));
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(lowest, highest);
    let start = start.map_or(if step > 0 { 0 } else { length - 1 }, clamp);
    let stop = stop.map_or(if step > 0 { length } else { -1 }, clamp);
    let places = || {
        let count = range_length(start, stop, step);
        (0..count as i64).map(move |at| (start + at * step) as usize)
    };
    Ok(match container {
        Value::List(items) => {
            charge(places().count() * 16)?;
            Value::list(places().map(|at| items[at].clone()).collect())
        }
        Value::Tuple(items) => {
            charge(places().count() * 16)?;
            Value::tuple(places().map(|at| items[at].clone()).collect())
        }
        Value::Range(first, _, by) => Value::Range(first + start * by, first + stop * by, by * step),
        Value::Text(text) | Value::Markup(text) => {
            charge(text.len())?;
            let made = if step == 1 {
                let count = usize::try_from(stop - start).unwrap_or(0);
                let byte = |chars: usize| {
                    if text.is_ascii() {
                        chars.min(text.len())
                    } else {
                        text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
                    }
                };
                if count == 0 { String::new() } else { text[byte(start as usize)..byte(stop as usize)].to_owned() }
            } else {
                let characters: Vec<char> = text.chars().collect();
                places().map(|at| characters[at]).collect()
            };
            if matches!(container, Value::Text(_)) { made.into() } else { Value::Markup(made.into()) }
        }
        _ => Value::None,
    })
}

/// Texts of values one after the other, as `~` joins them. Fails on values that cannot be printed;
/// a limit that is exceeded.
pub(super) fn concat(values: &[Value]) -> Result<Value, Error> {
    let texts = values.iter().map(printed).collect::<Result<Vec<_>, _>>()?;
    charge(texts.iter().map(|text| text.len()).sum())?;
    Ok(Value::from(texts.concat()))
}

/// Identity, as Python's `is`. Equal texts and equal numbers count as the same object.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
