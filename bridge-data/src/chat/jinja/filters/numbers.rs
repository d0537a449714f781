//! Filters of numbers: `int`, `float`, `round`, `abs`, `sum` and `filesizeformat`.

use num_bigint::BigInt;
use num_traits::FromPrimitive;

use super::super::error::Error;
use super::super::given::{CallArguments, bounded, integer};
use super::super::methods::at_path;
use super::super::operators::math;
use super::super::text::{file_size, is_space, printed};
use super::super::unicode::decimal;
use super::super::value::Value;

/// A number's text with ASCII digits in place of those of other scripts, without blanks around.
fn with_ascii_digits(text: &str) -> String {
    let digit = |c| decimal(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c);
    text.trim_matches(is_space).chars().map(digit).collect()
}

/// `int(text, base)` of Python.
fn parse_integer(text: &str, base: u32) -> Option<BigInt> {
    let text = with_ascii_digits(text);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
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
    let text = with_ascii_digits(text).to_ascii_lowercase();
    let unsigned = text.trim_start_matches(['+', '-']);
    if matches!(unsigned, "inf" | "infinity" | "nan") {
        return text.replace("infinity", "inf").parse().ok();
    }
    let is_grouped = !text.contains("__") && !text.starts_with('_') && !text.ends_with('_');
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    text.replace('_', "").parse().ok().filter(|_| is_grouped && is_number)
}

pub(super) fn numeric(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
                sum = math(super::super::ast::Math::Add, &sum, &item)?;
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

fn round(value: &Value, given: &CallArguments) -> Result<Value, Error> {
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
