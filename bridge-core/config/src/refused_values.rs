//! Values of settings without a field, because all values except neutral ones are refused: types,
//! reading and writing. The reasons are in `refusal`.

use std::collections::BTreeMap;

use super::field::Field;
use super::node::{Data, Node};
use super::reader::Reader;
use super::spec::{TypeSpec, is_null_word};

/// Values of the refused settings of one section. A setting that is not in the map has its default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RefusedValues(BTreeMap<&'static str, Node>);

impl RefusedValues {
    /// Sets the value of the refused setting `name`. `finalize` reports it unless it has no effect.
    pub fn set(&mut self, name: &'static str, value: impl Field) {
        self.0.insert(name, value.write());
    }

    pub(super) fn read(
        &mut self,
        name: &'static str,
        default: &impl RefusedDefault,
        node: &Node,
        reader: &mut Reader<'_>,
    ) {
        match default.read(node, reader) {
            Some(value) if value == default.write() => drop(self.0.remove(name)),
            Some(value) => drop(self.0.insert(name, value)),
            None => {}
        }
    }

    pub(super) fn write(&self, name: &str, default: &impl RefusedDefault) -> Node {
        self.0.get(name).cloned().unwrap_or_else(|| default.write())
    }
}

/// Default of a refused setting, which also gives the type of its values.
pub(super) trait RefusedDefault {
    fn read(&self, node: &Node, reader: &mut Reader<'_>) -> Option<Node>;
    fn write(&self) -> Node;
    fn spec(&self) -> TypeSpec;
}

impl<T: Field> RefusedDefault for T {
    fn read(&self, node: &Node, reader: &mut Reader<'_>) -> Option<Node> {
        T::read(node, reader).map(|value| value.write())
    }
    fn write(&self) -> Node {
        Field::write(self)
    }
    fn spec(&self) -> TypeSpec {
        T::spec()
    }
}

/// Default of a refused choice of names; made by `one_of` and `one_or_null`.
pub(super) struct Names {
    default: Option<&'static str>,
    names: &'static [&'static str],
    is_nullable: bool,
}

pub(super) const fn one_of(default: &'static str, names: &'static [&'static str]) -> Names {
    Names { default: Some(default), names, is_nullable: false }
}

pub(super) const fn one_or_null(default: Option<&'static str>, names: &'static [&'static str]) -> Names {
    Names { default, names, is_nullable: true }
}

impl RefusedDefault for Names {
    fn read(&self, node: &Node, reader: &mut Reader<'_>) -> Option<Node> {
        match &node.data {
            _ if self.is_nullable && is_null_word(node) => Some(Node::null()),
            Data::String(text) if self.names.contains(&text.as_str()) => Some(Node::string(text)),
            _ => reader.wrong_type(node, &TypeSpec::Choice(self.names)),
        }
    }
    fn write(&self) -> Node {
        self.default.map_or_else(Node::null, Node::string)
    }
    fn spec(&self) -> TypeSpec {
        let spec = TypeSpec::Choice(self.names);
        if self.is_nullable { TypeSpec::Nullable(Box::new(spec)) } else { spec }
    }
}
