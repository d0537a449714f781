//! How much a template may do: steps, bytes that it makes or looks at, depth, and time. Each thread renders one template at a time and keeps its
//! account.

use std::cell::Cell;
use std::time::Duration;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use rustix::time::{ClockId, clock_gettime};

use super::printed;

/// Instructions of the engine: some hundred milliseconds of them.
const STEPS: u64 = 3_000_000;
/// Bytes that any template may make, and how many more for each byte of the conversation.
const BYTES: u64 = 64 << 20;
const BYTES_PER_BYTE: u64 = 64;
/// Time that any template may compute, and how much more for each byte of the conversation: ten times what usual ones need.
const TIME: Duration = Duration::from_millis(500);
const TIME_PER_BYTE: Duration = Duration::from_micros(1);
/// Bytes after which the clock is looked at.
const BETWEEN_LOOKS: u64 = 64 << 10;
/// What a value costs besides its text.
const VALUE: u64 = 16;
/// How deep values may be nested: printing one recurses.
const DEPTH: usize = 64;
/// Largest number that a filter or method takes as a width or a count.
const COUNT: i64 = 100_000;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Bytes until the next look at the clock.
    static UNTIL_LOOK: Cell<u64> = const { Cell::new(0) };
    /// What the thread's clock says when time is over.
    static END: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long this thread has computed: other programs, and a stop of this one, do not count.
pub(crate) fn computed() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Gives this thread's next template its budget, for a conversation of `bytes`.
pub(super) fn open(bytes: u64) {
    LEFT.set(BYTES + BYTES_PER_BYTE.saturating_mul(bytes));
    UNTIL_LOOK.set(BETWEEN_LOOKS);
    END.set(computed() + TIME + TIME_PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX));
}

/// Takes `bytes` off the budget.
///
/// # Errors
/// If it has not so many left, or its time is over.
pub(super) fn charge(bytes: u64) -> Result<(), Error> {
    let left = LEFT
        .get()
        .checked_sub(bytes)
        .ok_or_else(|| too_much("it makes or reads more text than any conversation needs"))?;
    LEFT.set(left);
    match UNTIL_LOOK.get().checked_sub(bytes) {
        Some(until) => UNTIL_LOOK.set(until),
        None if computed() > END.get() => return Err(too_much("it computes for longer than any conversation needs")),
        None => UNTIL_LOOK.set(BETWEEN_LOOKS),
    }
    Ok(())
}

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the template does too much: {what}"))
}

/// Limits the steps of templates, and everything of the engine and of Python's methods that makes much of little.
pub(super) fn limit(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(STEPS));
    environment.add_filter(super::charged::FILTER, |value: Value| charge_for(&value).map(|()| value));
    environment.remove_global("debug");
    // A blank keeps templates from calling them.
    environment.add_filter("plain replace", filters::replace);
    environment.add_filter("plain join", filters::join);
    environment.add_filter("plain indent", filters::indent);
    environment.add_filter("plain format", filters::format);
    environment.add_filter("plain batch", filters::batch);
    environment.add_filter("plain slice", filters::slice);
    for (name, plain) in [
        ("replace", "plain replace"),
        ("join", "plain join"),
        ("indent", "plain indent"),
        ("format", "plain format"),
        ("batch", "plain batch"),
        ("slice", "plain slice"),
    ] {
        environment.add_filter(name, move |state: &State, args: Rest<Value>| {
            charge(price(name, &args)?)?;
            state.apply_filter(plain, &as_texts(name, &args)?)
        });
    }
}

/// Python's methods of strings, lists and dictionaries, charged for.
///
/// # Errors
/// Those of the method; a budget that is spent.
pub(super) fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    charge_for(value)?;
    args.iter().try_for_each(charge_for)?;
    // What is joined is the argument, and the separator the value.
    let priced: Vec<Value> = match name {
        "join" => args.iter().chain([value]).cloned().collect(),
        _ => std::iter::once(value).chain(args).cloned().collect(),
    };
    charge(price(name, &priced)?)?;
    let args = match name {
        "format" => &args.iter().map(printed::printed_unless_number).collect::<Result<Vec<_>, _>>()?,
        _ => args,
    };
    let made = minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?;
    charge_for(&made)?;
    Ok(made)
}

/// The arguments of a filter that prints: items and values as Python prints them.
fn as_texts(name: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let mut texts = args.to_vec();
    match (name, texts.split_first_mut()) {
        ("join", Some((items, _))) if items.as_str().is_none() && items.kind() != ValueKind::Undefined => {
            *items = items.try_iter()?.map(printed::printed).collect::<Result<Vec<_>, _>>()?.into();
        }
        ("format", Some((_, values))) => {
            for value in values {
                *value = printed::printed_unless_number(value)?;
            }
        }
        _ => {}
    }
    Ok(texts)
}

/// Bytes that a filter or method makes beyond those of its arguments, at most.
fn price(name: &str, args: &[Value]) -> Result<u64, Error> {
    let text = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    let length = |at: usize| text(at).len() as u64;
    let largest = || args.iter().filter_map(Value::as_i64).max().unwrap_or(0);
    match name {
        "replace" => {
            let matches = if text(1).is_empty() { length(0) + 1 } else { text(0).matches(text(1)).count() as u64 };
            Ok(matches.saturating_mul(length(2)))
        }
        "join" => Ok((args.first().and_then(Value::len).unwrap_or(0) as u64).saturating_mul(length(1))),
        "indent" | "batch" | "slice" | "format" => {
            let widths = text(0).split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let in_format = || widths.map(|digits| digits.parse().unwrap_or(i64::MAX)).max().unwrap_or(0);
            let count =
                if name == "format" { largest().max(in_format()) } else { keyword(args, "width")?.max(largest()) };
            if count > COUNT {
                return Err(too_much(&format!("{count} is too large a number for `{name}`")));
            }
            let lines = text(0).matches(if name == "format" { '%' } else { '\n' }).count() as u64 + 1;
            Ok(lines.saturating_mul(count.max(0) as u64))
        }
        _ => Ok(0),
    }
}

/// A number among the keyword arguments.
fn keyword(args: &[Value], name: &str) -> Result<i64, Error> {
    let Some(Ok(keywords)) = args.last().filter(|last| last.is_kwargs()).map(|last| Kwargs::try_from(last.clone()))
    else {
        return Ok(0);
    };
    Ok(keywords.get::<Option<i64>>(name)?.unwrap_or(0))
}

/// Takes a value off the budget: its text, and something for each part of it.
///
/// # Errors
/// If that is too much, or it is nested too deep.
pub(super) fn charge_for(value: &Value) -> Result<(), Error> {
    charge_nested(value, 0)
}

fn charge_nested(value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(too_much("it nests values too deep"));
    }
    if let Some(text) = value.as_str() {
        return charge(VALUE + text.len() as u64);
    }
    charge(VALUE)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.try_for_each(|item| charge_nested(&item, depth + 1)),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            charge_nested(&key, depth + 1)?;
            charge_nested(&value.get_item(&key)?, depth + 1)
        }),
        _ => Ok(()),
    }
}
