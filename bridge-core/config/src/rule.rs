//! Rules between settings that stand on a setting's row: condition, message and documentation in
//! one text. `finalize::rules` checks them. Rules that need arithmetic or the model are functions
//! in `finalize`.
//!
//! A text has conditions, of which one must hold, and may end in a reason:
//! `checkpoint.load | checkpoint.save: there is no other run to resume`. A condition is `key` (set,
//! and not false, 0 or empty), `key = value`, `key != value` or `key > number`; `= value` repeats
//! the key of the condition before it: `dataset.kind = gpt | = fim`.

use std::fmt;

use super::node::Node;
use super::overrides::value_of;

/// A rule of one setting; made by `needs`, `excludes`, `idle_unless` and `given_with`. A value that
/// is the default, null or empty breaks none of the first three.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    kind: RuleKind,
    conditions: Vec<Condition>,
    reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    Needs,
    Excludes,
    IdleUnless,
    GivenWith,
}

/// Refuses the setting unless one of the conditions holds.
pub(super) fn needs(text: &'static str) -> Rule {
    Rule::parse(RuleKind::Needs, text)
}

/// Refuses the setting if one of the conditions holds.
pub(super) fn excludes(text: &'static str) -> Rule {
    Rule::parse(RuleKind::Excludes, text)
}

/// Warns that the setting has no effect unless one of the conditions holds.
pub(super) fn idle_unless(text: &'static str) -> Rule {
    Rule::parse(RuleKind::IdleUnless, text)
}

/// Reports that the setting is missing if one of the conditions holds.
pub(super) fn given_with(text: &'static str) -> Rule {
    Rule::parse(RuleKind::GivenWith, text)
}

impl Rule {
    fn parse(kind: RuleKind, text: &'static str) -> Self {
        let (conditions, reason) = text.split_once(": ").unwrap_or((text, ""));
        let mut key = "";
        let conditions = conditions.split(" | ").map(|text| {
            let condition = Condition::parse(text, key);
            key = condition.key;
            condition
        });
        Self { kind, conditions: conditions.collect(), reason }
    }

    /// True if a setting keeps the rule in a recipe of these values; `given` is its value, unless
    /// that is the default.
    pub fn is_kept(&self, recipe: &Node, given: Option<&Node>) -> bool {
        let holds = || self.conditions.iter().any(|condition| condition.holds(recipe));
        let is_used = given.is_some_and(|value| !value.is_empty());
        match self.kind {
            RuleKind::Needs | RuleKind::IdleUnless => !is_used || holds(),
            RuleKind::Excludes => !is_used || !holds(),
            RuleKind::GivenWith => given.is_some() || !holds(),
        }
    }

    /// True if the rule is about a setting that is not given.
    pub fn is_about_missing(&self) -> bool {
        self.kind == RuleKind::GivenWith
    }

    /// True if the rule reads only settings whose keys begin with `prefix`.
    pub fn is_within(&self, prefix: &str) -> bool {
        self.conditions.iter().all(|condition| condition.key.starts_with(prefix))
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

    /// The message about a setting that breaks the rule in a recipe of these values, without the
    /// setting's key.
    pub fn message_in(&self, recipe: &Node) -> String {
        let holding = self.conditions.iter().find(|condition| condition.holds(recipe));
        match (self.kind, holding) {
            (RuleKind::Excludes, Some(Condition { key, comparison: Comparison::IsAbove(_) })) => {
                let value = recipe.get_path(key).map(Node::to_inline).unwrap_or_default();
                format!("excludes {key} = {value}{}", self.reason())
            }
            (RuleKind::GivenWith, Some(condition)) => format!("must be given with {condition}{}", self.reason()),
            _ => self.message(),
        }
    }

    /// The message about any setting that breaks the rule, without the setting's key.
    pub fn message(&self) -> String {
        let opposite = self.conditions[0].opposite().filter(|_| self.conditions.len() == 1);
        let (verb, last) = match (self.kind, &opposite) {
            (RuleKind::Needs, _) => ("needs", "or"),
            (RuleKind::Excludes, _) => ("excludes", "and"),
            (RuleKind::IdleUnless, Some(_)) => ("has no effect with", "or"),
            (RuleKind::IdleUnless, None) => ("has no effect without", "or"),
            (RuleKind::GivenWith, _) => ("must be given with", "or"),
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
        format!("{verb} {names}{}", self.reason())
    }

    fn reason(&self) -> String {
        if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) }
    }
}

/// A condition on one setting.
#[derive(Debug, Clone)]
struct Condition {
    key: &'static str,
    comparison: Comparison,
}

#[derive(Debug, Clone)]
enum Comparison {
    IsOn,
    Is(Node),
    IsNot(Node),
    IsAbove(f64),
}

impl Condition {
    fn parse(text: &'static str, last_key: &'static str) -> Self {
        let (key, comparison) = if let Some(value) = text.strip_prefix("= ") {
            (last_key, Comparison::Is(value_of(value)))
        } else if let Some((key, value)) = text.split_once(" != ") {
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
            Comparison::IsOn => !value.asks_for_nothing(),
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
