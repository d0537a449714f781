//! Python's `%` on texts and `str.format`.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};

use super::error::Error;
use super::given::CallArguments;
use super::limits::charge;
use super::methods::{attribute, item};
use super::strings::safe;
use super::text::{ascii, float as float_text, print, represent};
use super::value::Value;

/// Largest width and precision.
const WIDTH: usize = 100_000;

/// Form of one formatted value.
#[derive(Default)]
struct Form {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    is_alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `text % values`.
///
/// # Errors
/// Values that do not fit the text.
pub(super) fn percent(text: &Value, values: &Value) -> Result<Value, Error> {
    let source = text.as_text().unwrap_or_default();
    let is_markup = matches!(text, Value::Markup(_));
    let mut made = String::with_capacity(source.len());
    let list: Vec<Value> = match values {
        Value::Tuple(items) => items.to_vec(),
        other => vec![other.clone()],
    };
    let mut next = list.iter();
    let mut missing = || next.next().ok_or_else(|| Error::new("not enough arguments for format string"));
    let mut rest = source.chars().peekable();
    let mut uses_names = false;
    while let Some(character) = rest.next() {
        if character != '%' {
            made.push(character);
            continue;
        }
        let mut named = None;
        if rest.peek() == Some(&'(') {
            rest.next();
            let (mut name, mut depth) = (String::new(), 1);
            loop {
                let Some(character) = rest.next() else { return Err(Error::new("incomplete format key")) };
                depth += i32::from(character == '(') - i32::from(character == ')');
                if depth == 0 {
                    break;
                }
                name.push(character);
            }
            uses_names = true;
            let Value::Dict(dict) = values else { return Err(Error::new("format requires a mapping")) };
            named =
                Some(dict.get_text(&name).cloned().ok_or_else(|| Error::new(format!("no key {name:?} to format")))?);
        }
        let mut form = Form::default();
        let mut is_zero = false;
        while let Some(flag) = rest.peek().copied().filter(|flag| "-+ #0".contains(*flag)) {
            rest.next();
            match flag {
                '-' => form.align = Some('<'),
                '+' => form.sign = Some('+'),
                ' ' if form.sign.is_none() => form.sign = Some(' '),
                '#' => form.is_alternate = true,
                '0' => is_zero = true,
                _ => {}
            }
        }
        let mut number = |rest: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            if rest.next_if_eq(&'*').is_some() {
                let value = missing()?.as_int().ok_or_else(|| Error::new("* wants int"))?;
                return Ok(value);
            }
            let mut value: i64 = 0;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                rest.next();
                value = value.saturating_mul(10).saturating_add(i64::from(digit));
            }
            Ok::<_, Error>(value)
        };
        let width = number(&mut rest)?;
        if width < 0 {
            form.align = Some('<');
        }
        form.width = bounded(width.unsigned_abs())?;
        if rest.next_if_eq(&'.').is_some() {
            form.precision = Some(bounded(number(&mut rest)?.max(0).unsigned_abs())?);
        }
        while rest.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = rest.next() else { return Err(Error::new("incomplete format")) };
        if kind == '%' {
            made.push('%');
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => missing()?.clone(),
        };
        if is_zero && form.align.is_none() && !"srac".contains(kind) {
            form.fill = Some('0');
            form.align = Some('=');
        }
        if form.align.is_none() {
            form.align = Some('>');
        }
        form.kind = Some(kind);
        let value = if is_markup { safe(&value) } else { value };
        percent_one(&value, form, &mut made)?;
    }
    let takes_rest = uses_names || matches!(values, Value::Dict(_) | Value::List(_));
    if next.next().is_some() && !takes_rest {
        return Err(Error::new("not all arguments converted during string formatting"));
    }
    charge(made.len())?;
    Ok(if is_markup { Value::Markup(made.into()) } else { made.into() })
}

fn bounded(width: u64) -> Result<usize, Error> {
    usize::try_from(width)
        .ok()
        .filter(|width| *width <= WIDTH)
        .ok_or_else(|| Error::too_much(&format!("{width} is too large a width")))
}

fn percent_one(value: &Value, mut form: Form, made: &mut String) -> Result<(), Error> {
    match form.kind {
        Some('s') => {
            let mut text = String::new();
            print(value, &mut text)?;
            pad_text(text, &form, made)
        }
        Some('a') => pad_text(ascii(value)?, &form, made),
        Some('r') => {
            let mut text = String::new();
            represent(value, &mut text, 0)?;
            pad_text(text, &form, made)
        }
        Some('c') => {
            let character = match value {
                Value::Text(text) if text.chars().count() == 1 => text.to_string(),
                other => {
                    let code = other.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
                    code.ok_or_else(|| Error::new("%c requires int or char"))?.to_string()
                }
            };
            pad_text(character, &form, made)
        }
        Some(kind @ ('d' | 'i' | 'u' | 'x' | 'X' | 'o')) => {
            let is_decimal = matches!(kind, 'd' | 'i' | 'u');
            let number = match value {
                Value::Float(number) if is_decimal && number.is_finite() => {
                    num_traits::FromPrimitive::from_f64(number.trunc())
                }
                other => other.as_big(),
            };
            let name = value.type_name();
            let number: BigInt =
                number.ok_or_else(|| Error::new(format!("%{kind} format: a real number is required, not {name}")))?;
            form.kind = Some(if is_decimal { 'd' } else { kind });
            integer(&number, &form, made)
        }
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => {
            let number = value
                .as_float()
                .ok_or_else(|| Error::new(format!("must be real number, not {}", value.type_name())))?;
            real(number, &form, made)
        }
        other => Err(Error::new(format!("unsupported format character {other:?}"))),
    }
}

fn pad_text(text: String, form: &Form, made: &mut String) -> Result<(), Error> {
    let text = match form.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    pad("", &text, form, '<', made)
}

/// Adds a sign and a body, filled up to the width.
fn pad(sign: &str, body: &str, form: &Form, usual: char, made: &mut String) -> Result<(), Error> {
    let fill = form.fill.unwrap_or(' ');
    let length = sign.chars().count() + body.chars().count();
    let missing = form.width.saturating_sub(length);
    charge(missing + body.len())?;
    let blanks = |count: usize| std::iter::repeat_n(fill, count);
    match form.align.unwrap_or(usual) {
        '<' => {
            made.push_str(sign);
            made.push_str(body);
            made.extend(blanks(missing));
        }
        '^' => {
            made.extend(blanks(missing / 2));
            made.push_str(sign);
            made.push_str(body);
            made.extend(blanks(missing - missing / 2));
        }
        '=' => {
            made.push_str(sign);
            made.extend(blanks(missing));
            made.push_str(body);
        }
        _ => {
            made.extend(blanks(missing));
            made.push_str(sign);
            made.push_str(body);
        }
    }
    Ok(())
}

fn sign_of(is_negative: bool, form: &Form) -> String {
    if is_negative {
        "-".to_owned()
    } else {
        form.sign.filter(|sign| *sign != '-').map(String::from).unwrap_or_default()
    }
}

fn grouped(digits: &str, separator: Option<char>, every: usize) -> String {
    let Some(separator) = separator else { return digits.to_owned() };
    let mut made = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(every) {
            made.push(separator);
        }
        made.push(digit);
    }
    made
}

fn integer(number: &BigInt, form: &Form, made: &mut String) -> Result<(), Error> {
    let (radix, prefix, every) = match form.kind {
        Some('x') => (16, "0x", 4),
        Some('X') => (16, "0X", 4),
        Some('o') => (8, "0o", 4),
        Some('b') => (2, "0b", 4),
        _ => (10, "", 3),
    };
    let mut digits = number.magnitude().to_str_radix(radix);
    if form.kind == Some('X') {
        digits.make_ascii_uppercase();
    }
    if let Some(precision) = form.precision {
        digits = format!("{}{digits}", "0".repeat(precision.saturating_sub(digits.len())));
    }
    let mut digits = grouped(&digits, form.grouping, every);
    let prefix = if form.is_alternate { prefix } else { "" };
    let sign = sign_of(number.is_negative(), form) + prefix;
    if let (Some('0'), Some('='), Some(separator)) = (form.fill, form.align, form.grouping) {
        zero_groups(&mut digits, sign.len(), form.width, separator, every);
    }
    pad(&sign, &digits, form, '>', made)
}

/// Zeros that fill a grouped number up, with separators between them.
fn zero_groups(digits: &mut String, sign: usize, width: usize, separator: char, every: usize) {
    let group = |digits: &String| digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    while digits.len() + sign < width {
        if group(digits) == every {
            digits.insert(0, separator);
        }
        digits.insert(0, '0');
    }
}

fn real(number: f64, form: &Form, made: &mut String) -> Result<(), Error> {
    let kind = form.kind.unwrap_or('g');
    let magnitude = number.abs();
    let mut body = if !number.is_finite() {
        if number.is_nan() { "nan".to_owned() } else { "inf".to_owned() }
    } else {
        match kind.to_ascii_lowercase() {
            'f' => format!("{magnitude:.*}", form.precision.unwrap_or(6)),
            '%' => format!("{:.*}%", form.precision.unwrap_or(6), magnitude * 100.0),
            'e' => exponential(magnitude, form.precision.unwrap_or(6)),
            _ => general(magnitude, form.precision.unwrap_or(6).max(1), form.is_alternate),
        }
    };
    if kind.is_ascii_uppercase() {
        body.make_ascii_uppercase();
    }
    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let mut whole = grouped(&body[..end], form.grouping, 3);
    let sign = sign_of(number.is_sign_negative() && !number.is_nan(), form);
    if let (Some('0'), Some('='), Some(separator)) = (form.fill, form.align, form.grouping) {
        zero_groups(&mut whole, sign.len() + body.len() - end, form.width, separator, 3);
    }
    pad(&sign, &(whole + &body[end..]), form, '>', made)
}

fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

fn general(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let scientific = exponential(number, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", without_zeros(digits));
    }
    without_zeros(&format!("{number:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
}

/// Numbers of the fields of a format.
#[derive(Default)]
struct Numbering {
    /// Fields without a number so far.
    automatic: usize,
    /// True if a field has a number.
    is_manual: bool,
}

/// `text.format(...)`.
///
/// # Errors
/// Fields without a value; forms that the value does not have.
pub(super) fn format(text: &str, given: &CallArguments) -> Result<Value, Error> {
    let made = format_within(text, given, &mut Numbering::default(), 0)?;
    charge(made.len())?;
    Ok(Value::from(made))
}

fn format_within(text: &str, given: &CallArguments, numbering: &mut Numbering, depth: usize) -> Result<String, Error> {
    if depth > 2 {
        return Err(Error::new("max string recursion exceeded"));
    }
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        made.push_str(&rest[..at]);
        let (brace, behind) = (&rest[at..=at], &rest[at + 1..]);
        if behind.starts_with(brace) {
            made.push_str(brace);
            rest = &behind[1..];
            continue;
        }
        if brace == "}" {
            return Err(Error::new("single '}' encountered in format string"));
        }
        let (mut open, mut end) = (1, None);
        for (place, character) in behind.char_indices() {
            open += i32::from(character == '{') - i32::from(character == '}');
            if open == 0 {
                end = Some(place);
                break;
            }
        }
        let end = end.ok_or_else(|| Error::new("expected '}' before end of string"))?;
        field(&behind[..end], given, numbering, depth, &mut made)?;
        rest = &behind[end + 1..];
    }
    made.push_str(rest);
    Ok(made)
}

fn field(
    field: &str,
    given: &CallArguments,
    numbering: &mut Numbering,
    depth: usize,
    made: &mut String,
) -> Result<(), Error> {
    let name_end = {
        let mut in_brackets = false;
        field
            .char_indices()
            .find(|(_, c)| {
                in_brackets = (in_brackets || *c == '[') && *c != ']';
                !in_brackets && (*c == '!' || *c == ':')
            })
            .map_or(field.len(), |(at, _)| at)
    };
    let (name, behind) = field.split_at(name_end);
    let (conversion, form) = match behind.strip_prefix('!') {
        Some(rest) => {
            let conversion = rest
                .chars()
                .next()
                .ok_or_else(|| Error::new("end of string while looking for conversion specifier"))?;
            let rest = &rest[conversion.len_utf8()..];
            (Some(conversion), rest.strip_prefix(':').unwrap_or(rest))
        }
        None => (None, behind.strip_prefix(':').unwrap_or(behind)),
    };
    let value = looked_up(name, given, numbering)?;
    let form = format_within(form, given, numbering, depth + 1)?;
    let value = match conversion {
        None => value,
        Some('s') => {
            let mut text = String::new();
            print(&value, &mut text)?;
            text.into()
        }
        Some('a') => ascii(&value)?.into(),
        Some('r') => {
            let mut text = String::new();
            represent(&value, &mut text, 0)?;
            text.into()
        }
        Some(other) => return Err(Error::new(format!("unknown conversion specifier {other}"))),
    };
    formatted(&value, &form, made)
}

fn looked_up(name: &str, given: &CallArguments, numbering: &mut Numbering) -> Result<Value, Error> {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    numbering.is_manual |= is_number;
    numbering.automatic += usize::from(name.is_empty());
    if numbering.is_manual && numbering.automatic > 0 && (is_number || name.is_empty()) {
        return Err(Error::new("cannot switch between manual and automatic field numbering"));
    }
    let first_end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(first_end);
    let missing = || Error::new(format!("no argument {first:?} to format"));
    let mut value = if name.is_empty() {
        given.positional.get(numbering.automatic - 1).cloned()
    } else if let Ok(at) = first.parse::<usize>() {
        given.positional.get(at).cloned()
    } else {
        given.named.iter().find(|(key, _)| **key == *first).map(|(_, value)| value.clone())
    }
    .ok_or_else(missing)?;
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(['.', '[']).unwrap_or(behind.len());
            value = attribute(&value, &behind[..end])?;
            rest = &behind[end..];
        } else {
            let behind = rest.strip_prefix('[').ok_or_else(missing)?;
            let end = behind.find(']').ok_or_else(|| Error::new("missing ']' in format string"))?;
            let key = behind[..end].parse::<i64>().map_or_else(|_| Value::from(&behind[..end]), Value::Int);
            value = item(&value, &key)?.unwrap_or_else(|| Value::undefined(&behind[..end]));
            rest = &behind[end + 1..];
        }
    }
    Ok(value)
}

/// Adds `format(value, form)`.
fn formatted(value: &Value, form: &str, made: &mut String) -> Result<(), Error> {
    if form.is_empty() {
        return print(value, made);
    }
    let form = parsed(form, value.as_text().is_some())?;
    match value {
        Value::Text(text) | Value::Markup(text) => match form.kind {
            None | Some('s') if form.align != Some('=') => pad_text(text.to_string(), &form, made),
            _ => Err(Error::new("unknown format code for text")),
        },
        Value::Float(number) => match form.kind {
            None if form.precision.is_none() => {
                let sign = sign_of(number.is_sign_negative(), &form);
                pad(&sign, &grouped_float(&float_text(number.abs()), form.grouping), &form, '>', made)
            }
            None | Some('n' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => real(*number, &form, made),
            _ => Err(Error::new("unknown format code for a float")),
        },
        other if other.is_number() => {
            let number = other.as_big().unwrap_or_default();
            match form.kind {
                None if matches!(other, Value::Bool(_)) => integer(&number, &form, made),
                None | Some('n' | 'd' | 'x' | 'X' | 'o' | 'b') if form.precision.is_none() => {
                    integer(&number, &form, made)
                }
                Some('c') if form.sign.is_none() && form.precision.is_none() => {
                    let character = number.to_u32().and_then(char::from_u32);
                    let character = character.ok_or_else(|| Error::new("%c arg not in range(0x110000)"))?;
                    pad("", &character.to_string(), &form, '>', made)
                }
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => real(number.to_f64().unwrap_or(f64::NAN), &form, made),
                _ => Err(Error::new("unknown format code for an integer")),
            }
        }
        other => Err(Error::new(format!("unsupported format string passed to {}.__format__", other.type_name()))),
    }
}

fn grouped_float(text: &str, separator: Option<char>) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    grouped(&text[..end], separator, 3) + &text[end..]
}

/// The form of a format specification:
/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`. Zeros stand behind the sign of a
/// number, and after text.
fn parsed(text: &str, is_of_text: bool) -> Result<Form, Error> {
    let mut form = Form::default();
    let mut characters: Vec<char> = text.chars().collect();
    let is_align = |c: &char| "<>=^".contains(*c);
    if characters.get(1).is_some_and(is_align) {
        form.fill = Some(characters[0]);
        form.align = Some(characters[1]);
        characters.drain(..2);
    } else if characters.first().is_some_and(is_align) {
        form.align = Some(characters.remove(0));
    }
    let mut rest = characters.into_iter().peekable();
    form.sign = rest.next_if(|c| "+- ".contains(*c));
    form.is_alternate = rest.next_if_eq(&'#').is_some();
    if rest.next_if_eq(&'0').is_some() {
        form.fill = form.fill.or(Some('0'));
        form.align = form.align.or(Some(if is_of_text { '<' } else { '=' }));
    }
    let number = |rest: &mut std::iter::Peekable<std::vec::IntoIter<char>>| {
        let mut value: Option<u64> = None;
        while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
            rest.next();
            value = Some(value.unwrap_or(0).saturating_mul(10).saturating_add(u64::from(digit)));
        }
        value.map(bounded).transpose()
    };
    form.width = number(&mut rest)?.unwrap_or(0);
    form.grouping = rest.next_if(|c| ",_".contains(*c));
    if rest.next_if_eq(&'.').is_some() {
        let precision = number(&mut rest)?;
        form.precision = Some(precision.ok_or_else(|| Error::new("format specifier missing precision"))?);
    }
    form.kind = rest.next();
    if rest.next().is_some() {
        return Err(Error::new("invalid format specifier"));
    }
    Ok(form)
}
