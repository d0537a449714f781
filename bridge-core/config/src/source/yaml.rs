//! YAML to the value tree, from the parser's events, so that the depth and the size of expanded
//! aliases can be limited. Plain scalars follow the YAML 1.2 core schema.

use std::borrow::Cow;
use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::super::error::ConfigErrors;
use super::super::node::{Data, Entry, Node};
use super::lines::{Lines, MAX_DEPTH};

/// Aliases may repeat values, but not expand a file to more values than this.
const MAX_NODES: usize = 100_000;

pub(super) fn parse(text: &str, lines: &Lines) -> Result<Node, ConfigErrors> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let marker = error.marker();
                let location = lines.at(marker.line().max(1), marker.col() + 1);
                return Err(lines.syntax_error(error.info(), location).into());
            }
        };
        let location = lines.at(span.start.line().max(1), span.start.col() + 1);
        if let Err(message) = builder.event(event, span, lines) {
            return Err(lines.syntax_error(message, location).into());
        }
    }
    // A file of comments only is an empty recipe.
    let empty = || Node { data: Data::Table(Vec::new()), location: Some(lines.at(1, 1)) };
    Ok(match builder.root {
        Some(root) if !root.is_null() => root,
        _ => empty(),
    })
}

/// A collection that is not closed yet.
struct Open {
    anchor: usize,
    node: Node,
    key: Option<(String, Node)>,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    documents: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: Span, lines: &Lines) -> Result<(), String> {
        let at = |data| Node { data, location: Some(lines.at(span.start.line().max(1), span.start.col() + 1)) };
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("a recipe is a single YAML document".into());
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let data = scalar(&text, style, tag.as_ref());
                self.close(at(data), anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(at(Data::List(Vec::new())), anchor),
            Event::MappingStart(anchor, _) => self.begin(at(Data::Table(Vec::new())), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.close(open.node, open.anchor),
                None => Err("a collection ends that never began".into()),
            },
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                let node = node.ok_or("an alias inside its own anchor")?;
                self.close(node, 0)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} deep"));
        }
        self.open.push(Open { anchor, node, key: None });
        Ok(())
    }

    /// Puts a finished value into its collection.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        self.nodes += count(&node);
        if self.nodes > MAX_NODES {
            return Err(format!("more than {MAX_NODES} values, aliases expanded"));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.data, open.key.take()) {
            (Data::List(items), _) => items.push(node),
            (Data::Table(entries), Some((key, key_node))) => {
                entries.push(Entry { key, key_location: key_node.location, node })
            }
            _ => open.key = Some((key_name(&node)?, node)),
        }
        Ok(())
    }
}

fn count(node: &Node) -> usize {
    match &node.data {
        Data::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Data::Table(entries) => 1 + entries.iter().map(|e| count(&e.node)).sum::<usize>(),
        _ => 1,
    }
}

fn key_name(node: &Node) -> Result<String, String> {
    match &node.data {
        Data::String(text) => Ok(text.clone()),
        Data::List(_) | Data::Table(_) => Err("a key is a list or a table".into()),
        _ => Ok(node.to_inline()),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Cow<'_, Tag>>) -> Data {
    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Data::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Data::Null,
        "true" | "True" | "TRUE" => return Data::Bool(true),
        "false" | "False" | "FALSE" => return Data::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Data::Float(f64::NAN),
        _ => {}
    }
    number(text).unwrap_or_else(|| Data::String(text.to_owned()))
}

fn number(text: &str) -> Option<Data> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        let infinity = if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY };
        return Some(Data::Float(infinity));
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return i128::from_str_radix(digits, radix).ok().map(Data::Int);
        }
    }
    // Rust would also read "inf", "nan" and "infinity" as floats; YAML reads them as text.
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(Data::Float(f64::INFINITY), Data::Int));
    }
    text.parse().ok().map(Data::Float)
}
