//! Tokens of a template, by the rules of Jinja2 with `trim_blocks` and `lstrip_blocks`.

use std::sync::Arc;

use num_bigint::BigInt;

use super::error::Error;
use super::text::{escape as write_escape, is_space};

/// Longest integer literal in digits; Python refuses longer ones too.
const DIGITS: usize = 4300;
/// Operators, longest first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// Token of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(Arc<str>),
    Text(String),
    Integer(BigInt),
    Float(f64),
    Operator(&'static str),
    End,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data(_) => f.write_str("template text"),
            Self::PrintBegin => f.write_str("'{{'"),
            Self::PrintEnd => f.write_str("'}}'"),
            Self::BlockBegin => f.write_str("'{%'"),
            Self::BlockEnd => f.write_str("'%}'"),
            Self::Name(name) => write!(f, "'{name}'"),
            Self::Text(_) => f.write_str("a string"),
            Self::Integer(_) => f.write_str("an integer"),
            Self::Float(_) => f.write_str("a number"),
            Self::Operator(operator) => write!(f, "'{operator}'"),
            Self::End => f.write_str("the end of the template"),
        }
    }
}

/// The tokens of `source`, each with its line. Fails on text that is not a token; comments and raw
/// blocks without an end.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, u32)>, Error> {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    let mut lexer = Lexer { text: &text, at: 0, line: 1, line_starts: true, found: Vec::new() };
    lexer.root()?;
    let line = lexer.line;
    lexer.found.push((Token::End, line));
    Ok(lexer.found)
}

struct Lexer<'s> {
    text: &'s str,
    at: usize,
    line: u32,
    /// True if the last match ended with a line.
    line_starts: bool,
    found: Vec<(Token, u32)>,
}

/// Opening of a tag: its sign and the place after it.
struct Opening {
    sign: Option<u8>,
    end: usize,
    kind: u8,
    is_raw: bool,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.text[self.at..]
    }

    /// Moves to `end` and counts lines.
    fn advance(&mut self, end: usize) {
        let passed = &self.text[self.at..end];
        self.line += passed.bytes().filter(|byte| *byte == b'\n').count() as u32;
        if !passed.is_empty() {
            self.line_starts = passed.ends_with('\n');
        }
        self.at = end;
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::syntax(message).at_line(self.line))
    }

    /// Text and tags.
    fn root(&mut self) -> Result<(), Error> {
        while self.at < self.text.len() {
            let Some((start, opening)) = self.next_opening() else {
                self.data(self.text.len(), None);
                return Ok(());
            };
            let signed = (opening.kind != b'{' || opening.sign == Some(b'-')).then_some(opening.sign);
            self.data(start, signed);
            self.advance(opening.end);
            match opening.kind {
                b'#' => self.comment()?,
                _ if opening.is_raw => self.raw()?,
                kind => self.tag(kind == b'{')?,
            }
        }
        Ok(())
    }

    /// The text up to `end`, stripped according to the sign of the tag that follows. `None` strips
    /// nothing.
    fn data(&mut self, end: usize, sign: Option<Option<u8>>) {
        let line = self.line;
        let text = &self.text[self.at..end];
        let kept = match sign {
            None | Some(Some(b'+')) => text,
            Some(Some(_)) => text.trim_end_matches(is_space),
            Some(None) => {
                let begin = text.rfind('\n').map_or(0, |at| at + 1);
                let is_first = begin > 0 || self.line_starts;
                let is_blank = text[begin..].chars().all(is_space);
                if is_first && is_blank { &text[..begin] } else { text }
            }
        };
        if !kept.is_empty() {
            self.found.push((Token::Data(kept.to_owned()), line));
        }
        self.advance(end);
    }

    fn next_opening(&self) -> Option<(usize, Opening)> {
        let bytes = self.text.as_bytes();
        let mut from = self.at;
        loop {
            let at = from + self.text[from..].find('{')?;
            let kind = bytes.get(at + 1).copied();
            if let Some(kind @ (b'{' | b'%' | b'#')) = kind {
                let sign = bytes.get(at + 2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
                let end = at + 2 + usize::from(sign.is_some());
                let raw = if kind == b'%' { self.end_of_word_tag(end, "raw", false) } else { None };
                let is_raw = raw.is_some();
                return Some((at, Opening { sign, end: raw.unwrap_or(end), kind, is_raw }));
            }
            from = at + 1;
        }
    }

    /// The place after a tag of one word, of which `from` is inside.
    fn end_of_word_tag(&self, from: usize, word: &str, trims: bool) -> Option<usize> {
        let rest = self.text[from..].trim_start_matches(is_space).strip_prefix(word)?;
        let rest = rest.trim_start_matches(is_space);
        let rest = match rest.strip_prefix("-%}") {
            Some(rest) => rest.trim_start_matches(is_space),
            None if trims && rest.starts_with("+%}") => &rest[3..],
            None => {
                let rest = rest.strip_prefix("%}")?;
                rest.strip_prefix('\n').filter(|_| trims).unwrap_or(rest)
            }
        };
        Some(self.text.len() - rest.len())
    }

    fn comment(&mut self) -> Result<(), Error> {
        let Some(found) = self.rest().find("#}") else { return self.fail("missing end of comment tag") };
        let sign = self.rest()[..found].bytes().last();
        let behind = self.at + found + 2;
        let rest = &self.text[behind..];
        let rest = match sign {
            Some(b'-') => rest.trim_start_matches(is_space),
            Some(b'+') => rest,
            _ => rest.strip_prefix('\n').unwrap_or(rest),
        };
        self.advance(self.text.len() - rest.len());
        Ok(())
    }

    fn raw(&mut self) -> Result<(), Error> {
        let mut from = self.at;
        while let Some(found) = self.text[from..].find("{%") {
            let start = from + found;
            let sign = self.text.as_bytes().get(start + 2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
            if let Some(end) = self.end_of_word_tag(start + 2 + usize::from(sign.is_some()), "endraw", true) {
                self.data(start, Some(sign));
                self.advance(end);
                return Ok(());
            }
            from = start + 2;
        }
        self.fail("missing end of raw directive")
    }

    /// The inside of a tag and its end.
    fn tag(&mut self, is_print: bool) -> Result<(), Error> {
        let begin = if is_print { Token::PrintBegin } else { Token::BlockBegin };
        self.found.push((begin, self.line));
        let mut open = Vec::new();
        loop {
            if open.is_empty()
                && let Some(end) = self.end_of_tag(is_print)
            {
                let token = if is_print { Token::PrintEnd } else { Token::BlockEnd };
                self.found.push((token, self.line));
                self.advance(end);
                return Ok(());
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return Ok(()) };
            if is_space(first) {
                let behind = rest.trim_start_matches(is_space);
                self.advance(self.text.len() - behind.len());
                continue;
            }
            let line = self.line;
            let (token, length) = self.token(rest, first)?;
            if let Token::Operator(operator) = token {
                match operator {
                    "{" => open.push("}"),
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "}" | ")" | "]" if open.pop() != Some(operator) => {
                        return self.fail(format!("unexpected '{operator}'"));
                    }
                    _ => {}
                }
            }
            self.found.push((token, line));
            self.advance(self.at + length);
        }
    }

    fn end_of_tag(&self, is_print: bool) -> Option<usize> {
        let (rest, end) = (self.rest(), if is_print { "}}" } else { "%}" });
        let behind = match rest.strip_prefix('-').and_then(|rest| rest.strip_prefix(end)) {
            Some(behind) => behind.trim_start_matches(is_space),
            None if is_print => rest.strip_prefix(end)?,
            None => match rest.strip_prefix("+%}") {
                Some(behind) => behind,
                None => {
                    let behind = rest.strip_prefix(end)?;
                    behind.strip_prefix('\n').unwrap_or(behind)
                }
            },
        };
        Some(self.text.len() - behind.len())
    }

    fn token(&self, rest: &str, first: char) -> Result<(Token, usize), Error> {
        if first.is_ascii_digit() {
            return self.number(rest);
        }
        if first == '\'' || first == '"' {
            return self.string(rest, first);
        }
        if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            return Ok((Token::Name(rest[..end].into()), end));
        }
        match OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
            Some(operator) => Ok((Token::Operator(operator), operator.len())),
            None => self.fail(format!("unexpected character {first:?}")),
        }
    }

    fn number(&self, rest: &str) -> Result<(Token, usize), Error> {
        let is_behind_dot = self.at > 0 && self.text.as_bytes()[self.at - 1] == b'.';
        if !is_behind_dot && let Some(length) = float_length(rest) {
            let number = rest[..length].replace('_', "").parse().unwrap_or(f64::NAN);
            return Ok((Token::Float(number), length));
        }
        let bytes = rest.as_bytes();
        let prefix = (bytes[0] == b'0').then(|| bytes.get(1).map(u8::to_ascii_lowercase)).flatten();
        let radix = match prefix {
            Some(b'x') => 16,
            Some(b'o') => 8,
            Some(b'b') => 2,
            _ => 10,
        };
        let skipped = if radix == 10 { 0 } else { 2 };
        let is_digit = |byte: u8| match radix {
            // Zeros may not lead: `012` is two numbers.
            10 if bytes[0] == b'0' => byte == b'0',
            _ => char::from(byte).is_digit(radix),
        };
        let mut length = skipped + digits_length(&bytes[skipped..], is_digit, radix != 10);
        let radix = if length == skipped { 10 } else { radix };
        let digits = if length == skipped {
            length = 1;
            "0".to_owned()
        } else {
            rest[skipped..length].replace('_', "")
        };
        if radix == 10 && digits.len() > DIGITS {
            return self.fail("integer literal with too many digits");
        }
        let number = BigInt::parse_bytes(digits.as_bytes(), radix).unwrap_or_default();
        Ok((Token::Integer(number), length))
    }

    fn string(&self, rest: &str, quote: char) -> Result<(Token, usize), Error> {
        let mut escaped = false;
        for (at, character) in rest.char_indices().skip(1) {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if character == quote => {
                    let text = unescape(&rest[1..at]).map_err(|problem| Error::syntax(problem).at_line(self.line))?;
                    return Ok((Token::Text(text), at + 1));
                }
                _ => {}
            }
        }
        self.fail(format!("unexpected character {quote:?}: the string has no end"))
    }
}

/// Digits with single underscores between them; with `leading`, one may come first.
fn digits_length(bytes: &[u8], is_digit: impl Fn(u8) -> bool, leading: bool) -> usize {
    let mut length = 0;
    loop {
        let underscore = usize::from(bytes.get(length) == Some(&b'_') && (length > 0 || leading));
        match bytes.get(length + underscore) {
            Some(byte) if is_digit(*byte) => length += underscore + 1,
            _ => return length,
        }
    }
}

/// The length of a floating-point literal at the beginning of `rest`.
fn float_length(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let digits = |from: usize| digits_length(&bytes[from.min(bytes.len())..], |byte| byte.is_ascii_digit(), false);
    let whole = digits(0);
    let mut length = whole;
    if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            return Some(length + 1 + sign + exponent);
        }
    }
    (length > whole).then_some(length)
}

/// A string literal's text, with Python's escapes.
fn unescape(text: &str) -> Result<String, String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut made = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            made.push(character);
            continue;
        }
        let Some(escape) = rest.next() else { return Err("a string ends with a backslash".to_owned()) };
        let code = |rest: &mut std::str::Chars<'_>, digits: usize| {
            let hex: String = rest.by_ref().take(digits).collect();
            let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
            code.and_then(char::from_u32).ok_or_else(|| format!("truncated or invalid escape \\{escape}{hex}"))
        };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => made.push(escape),
            'a' => made.push('\u{7}'),
            'b' => made.push('\u{8}'),
            'f' => made.push('\u{c}'),
            'n' => made.push('\n'),
            'r' => made.push('\r'),
            't' => made.push('\t'),
            'v' => made.push('\u{b}'),
            'x' => made.push(code(&mut rest, 2)?),
            'u' => made.push(code(&mut rest, 4)?),
            'U' => made.push(code(&mut rest, 8)?),
            'N' => return Err("escapes with names of characters are not supported".to_owned()),
            '0'..='7' => {
                let mut value = escape.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = rest.as_str().chars().next().and_then(|c| c.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    rest.next();
                }
                made.push(char::from_u32(value).unwrap_or_default());
            }
            // Python escapes characters beyond ASCII before it reads the escapes of the source.
            other if !other.is_ascii() => write_escape(other, &mut made),
            other => made.extend(['\\', other]),
        }
    }
    Ok(made)
}
