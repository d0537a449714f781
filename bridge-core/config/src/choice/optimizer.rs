//! The choice of an optimizer among the rules of [`crate::optimizer_rules`].

use std::fmt;
use std::sync::LazyLock;

use crate::field::Field;
use crate::node::{Data, Node};
use crate::optimizer_rules::{self as rules, OptimizerRule};
use crate::reader::Reader;
use crate::spec::TypeSpec;

/// Upstream's optimizers. A name without a rule is known, but refused.
const UPSTREAM: [&str; 7] = ["adam", "sgd", "muon", "dist_muon", "adaptive_muon", "lion", "soap"];

static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let others = UPSTREAM.into_iter().filter(|name| !rules::NAMES.contains(name));
    rules::NAMES.iter().copied().chain(others).collect()
});

/// The name of an optimizer: of a rule, or of one of upstream's that have none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptimizerName(&'static str);

impl OptimizerName {
    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The rule of this name, if there is one.
    pub fn rule(self) -> Option<&'static OptimizerRule> {
        rules::named(self.0)
    }
}

impl Default for OptimizerName {
    fn default() -> Self {
        Self(rules::NAMES[0])
    }
}

impl fmt::Display for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Field for OptimizerName {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        let named = match &node.data {
            Data::String(text) => NAMES.iter().find(|name| *name == text),
            _ => None,
        };
        named.map_or_else(|| reader.wrong_type(node, &Self::spec()), |name| Some(Self(name)))
    }

    fn write(&self) -> Node {
        Node::string(self.0)
    }

    fn spec() -> TypeSpec {
        TypeSpec::Choice(&NAMES)
    }
}
