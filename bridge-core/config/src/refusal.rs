//! Refusals: why a setting, or some of its values, is understood but not accepted. A refusal is
//! part of the setting's row in the section's table; `finalize::refused` turns it into an error. So
//! no setting is accepted and ignored.

use super::node::Node;
use super::overrides;

/// The refusal of a setting; made by `not_built` and `no_counterpart`.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    cause: Cause,
    /// Effect that the setting asks for, and the reason of the refusal or the replacement.
    pub reason: &'static str,
    /// Values besides the default that have no effect or state Bridge's behaviour, written as in an
    /// override.
    pub inert: &'static [&'static str],
    /// Implemented values. All other values except the default are refused.
    pub built: &'static [&'static str],
    /// A setting that this one repeats: its value is accepted here too.
    pub same_as: Option<&'static str>,
    /// Values that upstream's classes set by default; they are omitted when its saved files are
    /// read.
    pub upstream: &'static [&'static str],
    /// True if every value only asks for speed or memory, never for another result.
    is_execution_only: bool,
}

/// The cause of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    NotBuilt,
    NoCounterpart,
}

/// Refuses a feature that Bridge could implement but has not yet.
pub const fn not_built(reason: &'static str) -> Refusal {
    Refusal {
        cause: Cause::NotBuilt,
        reason,
        inert: &[],
        built: &[],
        same_as: None,
        upstream: &[],
        is_execution_only: false,
    }
}

/// Refuses a setting without meaning in Bridge, because it controls a library, language or device
/// that Bridge does not use.
pub const fn no_counterpart(reason: &'static str) -> Refusal {
    Refusal { cause: Cause::NoCounterpart, ..not_built(reason) }
}

impl Refusal {
    /// Accepts values that have no effect, or state Bridge's behaviour.
    #[must_use]
    pub const fn inert(self, values: &'static [&'static str]) -> Self {
        Self { inert: values, ..self }
    }

    /// Accepts values that are implemented: only the other values are refused.
    #[must_use]
    pub const fn built(self, values: &'static [&'static str]) -> Self {
        Self { built: values, ..self }
    }

    /// Accepts the value of another setting.
    #[must_use]
    pub const fn same_as(self, key: &'static str) -> Self {
        Self { same_as: Some(key), ..self }
    }

    /// Omits values when upstream's saved files are read, because its classes set them by default.
    #[must_use]
    pub const fn upstream(self, values: &'static [&'static str]) -> Self {
        Self { upstream: values, ..self }
    }

    /// Omits every value when upstream's saved files are read, because none of them changes a
    /// result.
    #[must_use]
    pub const fn execution_only(self) -> Self {
        Self { is_execution_only: true, ..self }
    }

    /// True if the setting controls something that Bridge does not have.
    pub(super) const fn is_without_counterpart(&self) -> bool {
        matches!(self.cause, Cause::NoCounterpart)
    }

    /// True if no value changes a result.
    pub(super) const fn is_execution_only(&self) -> bool {
        self.is_execution_only
    }

    /// True if every value may be left out when upstream's saved files are read.
    pub(super) const fn is_optional(&self) -> bool {
        self.is_execution_only || self.is_without_counterpart()
    }

    /// True if every value that would have an effect is refused.
    pub const fn is_whole(&self) -> bool {
        self.built.is_empty()
    }

    /// The message of the error.
    pub fn message(&self) -> String {
        let cause = match self.cause {
            Cause::NotBuilt => "not implemented yet",
            Cause::NoCounterpart => "no counterpart here",
        };
        format!("{cause}: {}", self.reason)
    }

    /// The values that are accepted, the default first.
    pub(super) fn accepted(&self, default: &Node) -> Vec<Node> {
        let others = self.built.iter().chain(self.inert).map(|text| overrides::value_of(text));
        std::iter::once(default.clone()).chain(others.filter(|value| value != default)).collect()
    }
}
