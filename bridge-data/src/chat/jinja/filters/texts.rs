//! Filters of texts.

use super::super::error::Error;
use super::super::format::percent;
use super::super::given::{CallArguments, bounded, integer, text};
use super::super::limits::charge;
use super::super::strings::{capitalized, centered, lines, marked_as, soft_text};
use super::super::text::{escaped, is_space, printed, represent, stripped_tags};
use super::super::unicode::is_letter;
use super::super::value::{Value, View};

pub(super) fn textual(name: &str, value: &Value, given: &CallArguments) -> Result<Value, Error> {
    let string = printed(value)?;
    charge(string.len() / 4)?;
    let kept = |made: Value| marked_as(value, made);
    match name {
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            centered(&string, width.map_or(Ok(80), |width| bounded(name, &width))?.max(0) as usize).map(kept)
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
            percent(&soft_text(value)?, &values)
        }
        "wordwrap" => wrap(text(name, value)?, given),
        _ => {
            let [] = given.bind(name, [])?;
            Ok(match name {
                "upper" => kept(string.to_uppercase().into()),
                "lower" => kept(string.to_lowercase().into()),
                "capitalize" => kept(capitalized(&string).into()),
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

fn indent(value: &Value, given: &CallArguments) -> Result<Value, Error> {
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

/// Jinja2's title: letters after blanks, hyphens and opening brackets are capital.
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

/// Parts of a word that a line may end with: up to a hyphen between two letters and two more.
fn hyphenated(word: &str) -> Vec<&str> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for (at, _) in word.match_indices('-') {
        let all_letters = |found: Vec<char>| found.len() == 2 && found.into_iter().all(is_letter);
        let behind = word[at + 1..].chars().take(2).collect();
        if all_letters(word[..at].chars().rev().take(2).collect()) && all_letters(behind) {
            parts.push(&word[from..=at]);
            from = at + 1;
        }
    }
    parts.push(&word[from..]);
    parts
}

/// `textwrap.wrap` of each line. Of its breaks at hyphens, those within words are made.
fn wrap(string: &str, given: &CallArguments) -> Result<Value, Error> {
    let [width, break_long, separator, hyphens] =
        given.bind("wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = width.map_or(Ok(79), |width| bounded("wordwrap", &width))?.max(1) as usize;
    let breaks = break_long.is_none_or(|breaks| breaks.is_true());
    let at_hyphens = hyphens.is_none_or(|breaks| breaks.is_true());
    let separator = separator.filter(|value| !matches!(value, Value::None));
    let separator = separator.map_or_else(|| Ok("\n".into()), |value| printed(&value))?;
    charge(string.len() * 4)?;
    let mut made = Vec::new();
    for line in lines(string, false) {
        let (mut wrapped, mut current) = (Vec::new(), String::new());
        let words = line.split_inclusive(' ');
        let parts = words.flat_map(|word| if at_hyphens { hyphenated(word) } else { vec![word] });
        for word in parts {
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
