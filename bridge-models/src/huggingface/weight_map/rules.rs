//! Lines of a family's table of weights: names of a parameter and of its tensors, and how these
//! are stored.

use serde::{Deserialize, Serialize};

use super::fusion::Fusion;
use crate::decoder::DecoderConfig;

/// One line of a family's table: a pattern of names. `{}` is a placeholder for a number (of a layer
/// or an expert), in the same order on both sides. [`HALF`] is one for half of our number, rounded
/// down: the layer of a file that is two of ours, of which [`REST`] says which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightRule {
    /// Our (Megatron's) names.
    pub(super) megatron: &'static str,
    /// Hugging Face's names.
    pub(super) hugging_face: &'static [&'static str],
    /// Composition of the parameter from tensors.
    pub(super) fusion: Fusion,
    /// Orientation of the tensors if they are matrices.
    pub(super) storage: Storage,
    /// Layout of the experts of a layer in tensors.
    pub(super) experts: ExpertLayout,
    /// Name of the tensor in files of earlier versions of transformers.
    pub(super) legacy_name: Option<&'static str>,
    /// Names of copies of the tensor in layers of multi-token prediction; `{}` is the number of
    /// such a layer after all others.
    pub(super) copies: &'static [&'static str],
    /// Alternative names. Files may contain the tensor under these as well, or under one of these
    /// alone; exports do not write them.
    pub(super) optional_aliases: &'static [&'static str],
    /// True if the rows of all experts are one after the other in the tensor, without a dimension
    /// of experts.
    pub(super) joins_experts: bool,
    /// True if the tensor has rows of identity experts too, behind those of the others.
    pub(super) has_identities: bool,
    /// Models that the rule applies to; `None` for all.
    pub(super) applies_to: Option<fn(&DecoderConfig) -> bool>,
}

/// Layout of the experts of a layer in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertLayout {
    /// Layout and names of published files: each expert has tensors of its own, in most families.
    #[default]
    Apart,
    /// Layout and names of the state of a module of transformers 5: one tensor has all experts, one
    /// after the other along its first dimension.
    Stacked,
    /// As [`Self::Stacked`], with matrices `[inputs, outputs]`: published files of Qwen 3 VL.
    StackedInputs,
}

impl ExpertLayout {
    /// The layout of the rules for files with this layout.
    pub(super) fn of_rules(self) -> Self {
        match self {
            Self::Apart => Self::Apart,
            Self::Stacked | Self::StackedInputs => Self::Stacked,
        }
    }
}

/// Orientation of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// `[outputs, inputs]`, as ours.
    RowsAreOutputs,
    /// `[inputs, outputs]`.
    RowsAreInputs,
}

/// Rule of a parameter that is stored unchanged as one tensor.
pub(crate) const fn rule(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule {
        megatron,
        hugging_face,
        fusion: Fusion::Single,
        storage: Storage::RowsAreOutputs,
        experts: ExpertLayout::Apart,
        legacy_name: None,
        copies: &[],
        optional_aliases: &[],
        joins_experts: false,
        has_identities: false,
        applies_to: None,
    }
}

impl WeightRule {
    /// Sets how the parameter is composed of the tensors.
    pub const fn fused(self, fusion: Fusion) -> Self {
        Self { fusion, ..self }
    }

    /// Sets the name of the tensor in files of earlier versions of transformers.
    pub const fn with_legacy_name(self, name: &'static str) -> Self {
        Self { legacy_name: Some(name), ..self }
    }

    /// Legacy name of the tensor `name`, if `name` is the rule's tensor.
    pub fn legacy_name_of(&self, name: &str) -> Option<&'static str> {
        self.legacy_name.filter(|_| self.hugging_face == [name])
    }

    /// Sets the names of copies of the tensor in layers of multi-token prediction.
    pub const fn with_copies(self, copies: &'static [&'static str]) -> Self {
        Self { copies, ..self }
    }

    /// Sets alternative names. Files may have the tensor under these as well, or under one of these
    /// alone.
    pub const fn with_optional_aliases(self, names: &'static [&'static str]) -> Self {
        Self { optional_aliases: names, ..self }
    }

    /// The names that files have for the only tensor of `parameter`, if the rule is its own.
    pub fn own_names(&self, parameter: &str) -> impl Iterator<Item = &'static str> + use<> {
        let is_own = self.megatron == parameter && self.hugging_face.len() == 1;
        let names = is_own.then(|| std::iter::once(self.hugging_face[0]).chain(self.legacy_name));
        names.into_iter().flatten()
    }

    /// Restricts the rule to models for which `applies_to` is true.
    pub const fn only(self, applies_to: fn(&DecoderConfig) -> bool) -> Self {
        Self { applies_to: Some(applies_to), ..self }
    }

    /// The stored matrices are `[inputs, outputs]`.
    pub const fn rows_are_inputs(self) -> Self {
        Self { storage: Storage::RowsAreInputs, ..self }
    }

    /// [`Self::stacked`], where the rows of all experts are one after the other, without a
    /// dimension of experts.
    pub const fn joined(self) -> Self {
        Self { joins_experts: true, ..self.stacked() }
    }

    /// [`Self::stacked`], where the tensor has matrices of identity experts too; they are not read.
    pub const fn with_identities(self) -> Self {
        Self { has_identities: true, ..self.stacked() }
    }

    /// The rule of files that have all experts in one tensor. If a name has one number less than
    /// ours, our last number (the expert) is an index into the first dimension.
    pub const fn stacked(self) -> Self {
        Self { experts: ExpertLayout::Stacked, ..self }
    }

    /// The names of the tensors that a parameter is made of, if the rule is its own and the tensors
    /// are not those of other parameters too. Where files number layers otherwise than we do, names
    /// begin behind the number: another family's layer of our number is meant by it.
    pub fn names_of(&self, parameter: &str) -> Option<Vec<String>> {
        let (pattern, numbers) = pattern(parameter);
        let is_own = self.megatron == pattern && self.experts == ExpertLayout::Apart;
        let is_whole = self.hugging_face.iter().all(|name| placeholders(name) == numbers.len());
        let name = |name: &&str| {
            let whole = with_numbers(name, &numbers);
            match name.find(HALF).and_then(|at| whole[at..].split_once('.')) {
                Some((_, behind)) => behind.to_owned(),
                None => whole,
            }
        };
        (is_own && is_whole).then(|| self.hugging_face.iter().map(name).collect())
    }
}

/// These rules, as those of files that have all experts in one tensor ([`WeightRule::stacked`]).
pub(crate) const fn stacked<const N: usize>(mut rules: [WeightRule; N]) -> [WeightRule; N] {
    let mut index = 0;
    while index < N {
        rules[index] = rules[index].stacked();
        index += 1;
    }
    rules
}

/// A parameter's name with `{}` for each number between its dots, and the numbers.
pub(super) fn pattern(parameter: &str) -> (String, Vec<&str>) {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = parameter.split('.').filter(is_number).collect();
    let parts: Vec<&str> = parameter.split('.').map(|part| if is_number(&part) { "{}" } else { part }).collect();
    (parts.join("."), numbers)
}

/// Placeholder for half of a number, rounded down.
const HALF: &str = "{/2}";
/// Placeholder for the rest behind [`HALF`] of the same number: 0 or 1.
const REST: &str = "{%2}";

/// Number of placeholders in a pattern.
pub(super) fn placeholders(pattern: &str) -> usize {
    pattern.matches("{}").count() + pattern.matches(HALF).count()
}

/// A pattern with numbers in place of its placeholders.
pub(super) fn with_numbers(pattern: &str, numbers: &[&str]) -> String {
    let mut numbers = numbers.iter();
    let mut number = || *numbers.next().expect("as many as in our name");
    let mut rest = 0;
    let parts = pattern.split('.').map(|part| match part {
        "{}" => number().to_owned(),
        HALF => {
            let whole: usize = number().parse().expect("it is made of digits");
            rest = whole % 2;
            (whole / 2).to_string()
        }
        REST => rest.to_string(),
        part => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}
