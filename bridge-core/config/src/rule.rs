//! Rules between settings that stand on a setting's row: condition, message and documentation in
//! one text. `finalize::rules` checks them. Rules that need arithmetic or the model are functions
//! in `finalize`.
//!
//! A text has conditions, of which one must hold, and may end in a reason:
//! `checkpoint.load | checkpoint.save: there is no other run to resume`. A condition is `key` (set,
//! and not false, 0 or empty), `key = value`, `key != value` or `key > number`.

use std::fmt;

use super::node::{Data, Node};
use super::overrides::value_of;

/// A rule of one setting; made by `needs`, `excludes` and `idle_unless`. A value that is the
/// default, null or empty breaks no rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    kind: RuleKind,
    text: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    Needs,
    Excludes,
    IdleUnless,
}

/// Refuses the setting unless one of the conditions holds.
pub(super) const fn needs(text: &'static str) -> Rule {
    Rule { kind: RuleKind::Needs, text }
}

/// Refuses the setting if one of the conditions holds.
pub(super) const fn excludes(text: &'static str) -> Rule {
    Rule { kind: RuleKind::Excludes, text }
}

/// Warns that the setting has no effect unless one of the conditions holds.
pub(super) const fn idle_unless(text: &'static str) -> Rule {
    Rule { kind: RuleKind::IdleUnless, text }
}

impl Rule {
    /// The rule with its text parsed.
    pub fn parsed(self) -> ParsedRule {
        let (conditions, reason) = self.text.split_once(": ").unwrap_or((self.text, ""));
        ParsedRule { kind: self.kind, conditions: conditions.split(" | ").map(Condition::parse).collect(), reason }
    }
}

/// A rule whose text has been parsed.
#[derive(Debug)]
pub(super) struct ParsedRule {
    kind: RuleKind,
    conditions: Vec<Condition>,
    reason: &'static str,
}

impl ParsedRule {
    /// True if a setting that is in use keeps the rule in a recipe of these values.
    pub fn is_kept(&self, recipe: &Node) -> bool {
        let holds = self.conditions.iter().any(|condition| condition.holds(recipe));
        holds != (self.kind == RuleKind::Excludes)
    }

    /// True if a setting that breaks the rule is warned about, not refused.
    pub fn is_warning(&self) -> bool {
        self.kind == RuleKind::IdleUnless
    }

    /// Keys in the conditions, and values that they are compared with.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = (&str, Option<&Node>)> {
        self.conditions.iter().map(|condition| match &condition.comparison {
            Comparison::Is(value) | Comparison::IsNot(value) => (condition.key, Some(value)),
            Comparison::IsOn | Comparison::IsAbove(_) => (condition.key, None),
        })
    }

    /// The message about a setting that breaks the rule, without the setting's key.
    pub fn message(&self) -> String {
        let opposite = self.conditions[0].opposite().filter(|_| self.conditions.len() == 1);
        let (verb, last) = match (self.kind, &opposite) {
            (RuleKind::Needs, _) => ("needs", "or"),
            (RuleKind::Excludes, _) => ("excludes", "and"),
            (RuleKind::IdleUnless, Some(_)) => ("has no effect with", "or"),
            (RuleKind::IdleUnless, None) => ("has no effect without", "or"),
        };
        let named = opposite.as_ref().filter(|_| self.is_warning()).map(std::slice::from_ref);
        let named = named.unwrap_or(&self.conditions);
        let name = |(at, condition): (usize, &Condition)| match &condition.comparison {
            // Several values of one setting: `key = "a", "b" or "c"`.
            Comparison::Is(value) if at > 0 && named[at - 1].key == condition.key => value.to_inline(),
            _ => condition.to_string(),
        };
        let names: Vec<_> = named.iter().enumerate().map(name).collect();
        let names = match names.as_slice() {
            [others @ .., name] if !others.is_empty() => format!("{} {last} {name}", others.join(", ")),
            names => names.concat(),
        };
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{verb} {names}{reason}")
    }
}

/// A condition on one setting.
#[derive(Debug)]
struct Condition {
    key: &'static str,
    comparison: Comparison,
}

#[derive(Debug)]
enum Comparison {
    IsOn,
    Is(Node),
    IsNot(Node),
    IsAbove(f64),
}

impl Condition {
    fn parse(text: &'static str) -> Self {
        let (key, comparison) = if let Some((key, value)) = text.split_once(" != ") {
            (key, Comparison::IsNot(value_of(value)))
        } else if let Some((key, value)) = text.split_once(" = ") {
            (key, Comparison::Is(value_of(value)))
        } else if let Some((key, number)) = text.split_once(" > ") {
            (key, Comparison::IsAbove(number.parse().expect("a rule compares with a number")))
        } else {
            (text, Comparison::IsOn)
        };
        Self { key, comparison }
    }

    /// The setting or value that the condition asks to be absent.
    fn opposite(&self) -> Option<Self> {
        let comparison = match &self.comparison {
            Comparison::Is(value) if value.is_null() => Comparison::IsOn,
            Comparison::IsNot(value) => Comparison::Is(value.clone()),
            _ => return None,
        };
        Some(Self { key: self.key, comparison })
    }

    fn holds(&self, recipe: &Node) -> bool {
        let absent = Node::null();
        let value = recipe.get_path(self.key).unwrap_or(&absent);
        match &self.comparison {
            Comparison::IsOn => {
                !matches!(value.data, Data::Bool(false)) && value.number() != Some(0.0) && !is_empty(value)
            }
            Comparison::Is(other) => value == other,
            Comparison::IsNot(other) => value != other,
            Comparison::IsAbove(bound) => value.number().is_some_and(|number| number > *bound),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match &self.comparison {
            // Sections are the keys without a dot.
            Comparison::IsOn if !key.contains('.') => write!(f, "[{key}]"),
            Comparison::IsOn => f.write_str(key),
            Comparison::Is(value) => write!(f, "{key} = {}", value.to_inline()),
            Comparison::IsNot(value) => write!(f, "{key} != {}", value.to_inline()),
            Comparison::IsAbove(bound) => write!(f, "{key} above {bound}"),
        }
    }
}

/// True if a value is null, or a list or table without content.
pub(super) fn is_empty(value: &Node) -> bool {
    match &value.data {
        Data::List(items) => items.is_empty(),
        Data::Table(entries) => entries.is_empty(),
        _ => value.is_null(),
    }
}
