//! TOML to the value tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use super::super::error::ConfigErrors;
use super::super::node::{Data, Entry, Location, Node};
use super::lines::{Lines, MAX_DEPTH};

/// More messages than this about one broken file do not help.
const MAX_SYNTAX_ERRORS: usize = 20;

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, ConfigErrors> {
    if let Some(offset) = too_deep(text) {
        return Err(lines.syntax_error(format!("nested more than {MAX_DEPTH} deep"), lines.at_byte(offset)).into());
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let data = convert_table(table.get_ref(), &|offset| Some(lines.at_byte(offset)));
        return Ok(Node { data, location: Some(lines.at(1, 1)) });
    }
    Err(errors
        .iter()
        .take(MAX_SYNTAX_ERRORS)
        .map(|error| {
            let span = error.span().unwrap_or_default();
            let mut message = error.message().trim().to_owned();
            if message == "duplicate key" {
                message = format!("{message} `{}`", text.get(span.clone()).unwrap_or_default());
            }
            lines.syntax_error(message, lines.at_byte(span.start))
        })
        .collect())
}

/// Reads a single TOML value, as on the right of `key = `.
pub(in super::super) fn parse_value(text: &str) -> Result<Node, String> {
    if too_deep(text).is_some() {
        return Err(format!("nested more than {MAX_DEPTH} deep"));
    }
    match DeValue::parse(text) {
        Ok(value) => Ok(convert(&value, &|_| None)),
        Err(error) => Err(error.message().trim().to_owned()),
    }
}

/// Offset at which a text nests deeper than recipes do. The parts of a dotted key count like
/// brackets: the parser, which bounds brackets only, makes a table of each.
fn too_deep(text: &str) -> Option<usize> {
    let (mut open, mut around, mut dots) = (Vec::new(), 0, 0_usize);
    for token in Source::new(text).lex() {
        match token.kind() {
            TokenKind::Dot => dots += 1,
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                open.push(dots);
                around += dots + 1;
                dots = 0;
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                dots = open.pop().unwrap_or(0);
                around = around.saturating_sub(dots + 1);
            }
            TokenKind::Comma | TokenKind::Newline | TokenKind::Comment => dots = 0,
            TokenKind::Equals
            | TokenKind::Whitespace
            | TokenKind::LiteralString
            | TokenKind::BasicString
            | TokenKind::MlLiteralString
            | TokenKind::MlBasicString
            | TokenKind::Atom
            | TokenKind::Eof => {}
        }
        if around + dots > MAX_DEPTH {
            return Some(token.span().start());
        }
    }
    None
}

type Locate<'l> = &'l dyn Fn(usize) -> Option<Location>;

fn convert(value: &Spanned<DeValue<'_>>, locate: Locate<'_>) -> Node {
    let data = match value.get_ref() {
        DeValue::String(text) => Data::String(text.to_string()),
        DeValue::Integer(integer) => {
            // Beyond 128 bits the exact digits do not matter: the number is outside every range.
            i128::from_str_radix(integer.as_str(), integer.radix()).map_or_else(
                |_| Data::Float(if integer.as_str().starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
                Data::Int,
            )
        }
        DeValue::Float(float) => Data::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(value) => Data::Bool(*value),
        // No setting is a date; as text it gets the usual message about a wrong type.
        DeValue::Datetime(date) => Data::String(date.to_string()),
        DeValue::Array(items) => Data::List(items.iter().map(|item| convert(item, locate)).collect()),
        DeValue::Table(table) => convert_table(table, locate),
    };
    Node { data, location: locate(value.span().start) }
}

fn convert_table(table: &DeTable<'_>, locate: Locate<'_>) -> Data {
    let mut entries: Vec<_> = table.iter().collect();
    // The parser sorts by name; messages should be in the order of the file.
    entries.sort_by_key(|(key, _)| key.span().start);
    Data::Table(
        entries
            .into_iter()
            .map(|(key, value)| Entry {
                key: key.get_ref().to_string(),
                key_location: locate(key.span().start),
                node: convert(value, locate),
            })
            .collect(),
    )
}
