//! Meaning of a family's table of weights: one parameter is one or more tensors, fused, transposed
//! or padded.
//!
//! The same table reads weights, writes them, and renames gradients.

mod modules;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::error::HfError;
use super::family::Family;
use super::runs::{Run, Strides};
use super::source::TensorSource;
use crate::architecture::config::{LinearAttentionConfig, MoeConfig};
use crate::decoder::{DecoderConfig, name_behind_layers};

/// One line of a family's table: a pattern of names. `{}` is a placeholder for a number (of a layer
/// or an expert), in the same order on both sides. [`HALF`] is one for half of our number, rounded
/// down: the layer of a file that is two of ours, of which [`REST`] says which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightRule {
    /// Our (Megatron's) names.
    megatron: &'static str,
    /// Hugging Face's names.
    hugging_face: &'static [&'static str],
    /// Composition of the parameter from tensors.
    fusion: Fusion,
    /// Orientation of the tensors if they are matrices.
    storage: Storage,
    /// Layout of the experts of a layer in tensors.
    experts: ExpertLayout,
    /// Name of the tensor in files of earlier versions of transformers.
    legacy_name: Option<&'static str>,
    /// Names of copies of the tensor in layers of multi-token prediction; `{}` is the number of
    /// such a layer after all others.
    copies: &'static [&'static str],
    /// Alternative names. Files may contain the tensor under these as well, or under one of these
    /// alone; exports do not write them.
    optional_aliases: &'static [&'static str],
    /// True if the rows of all experts are one after the other in the tensor, without a dimension
    /// of experts.
    joins_experts: bool,
    /// True if the tensor has rows of identity experts too, behind those of the others.
    has_identities: bool,
    /// Models that the rule applies to; `None` for all.
    applies_to: Option<fn(&DecoderConfig) -> bool>,
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
    fn of_rules(self) -> Self {
        match self {
            Self::Apart => Self::Apart,
            Self::Stacked | Self::StackedInputs => Self::Stacked,
        }
    }
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

/// Composition of a parameter from tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// One unchanged tensor.
    Single,
    /// One tensor with a row a token, padded with zero rows.
    Vocabulary,
    /// One tensor without dimensions, of a parameter with one element.
    Scalar,
    /// One tensor with one row, `[1, columns]`, of a vector.
    Row,
    /// One tensor with the taps of a channel in a row, `[channels, 1, taps]`.
    Convolution,
    /// Rows of query, key and value from a tensor each.
    Qkv,
    /// Rows of query, key and value from one tensor that has all queries first, then keys, then
    /// values.
    PackedQkv,
    /// The same three tensors, where the first has the rows of a query head, then those of its
    /// gate, and so on.
    GatedQkv,
    /// One tensor with a row of weights a head, `[heads, head size]`, of a vector of all.
    HeadRows,
    /// A tensor a head, of a vector of all; `{head}` in the name is the number of the head.
    EachHead,
    /// Rows of the gate, then of the other half, from a tensor each.
    GateUp,
    /// One tensor with interleaved rows of the gate and of the other half.
    Alternating,
    /// Rows of linear attention from several tensors, one after the other, with these numbers of
    /// rows.
    Linear(&'static [LinearRows]),
    /// Rows of linear attention from two tensors that are ordered by key heads: for each its
    /// queries, keys, values and gates in the first, its betas and decays in the second.
    LinearByHead,
    /// Taps of linear attention's channels, `[channels, 1, taps]`, from several tensors with these
    /// numbers of channels.
    LinearConvolution(&'static [LinearRows]),
    /// One tensor with a number a head, `[1, 1, heads, 1]`.
    PerHead,
}

/// Number of rows of a part of linear attention's projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearRows {
    /// All queries, or all keys.
    Keys,
    /// All values, or all gates.
    Values,
    /// Queries, keys and values.
    Mixed,
    /// A row for each value head.
    Heads,
    /// The decays.
    Decays,
}

impl LinearRows {
    fn count(self, linear: LinearSizes) -> usize {
        let (keys, values) = (linear.key_heads * linear.key_size, linear.value_heads * linear.value_size);
        match self {
            Self::Keys => keys,
            Self::Values => values,
            Self::Mixed => 2 * keys + values,
            Self::Heads => linear.value_heads,
            Self::Decays => linear.value_heads * linear.decays,
        }
    }
}

/// Orientation of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// `[outputs, inputs]`, as ours.
    RowsAreOutputs,
    /// `[inputs, outputs]`.
    RowsAreInputs,
}

/// All parameters of a model with their tensors.
#[derive(Clone, Debug)]
pub struct WeightMap {
    entries: Vec<WeightEntry>,
    /// The place of each parameter in `entries`.
    places: HashMap<String, usize>,
}

/// One parameter with its tensors.
#[derive(Clone, Debug)]
pub struct WeightEntry {
    /// Name of the parameter.
    pub parameter: String,
    /// Shape of the parameter.
    pub shape: Vec<usize>,
    /// The tensors.
    pub tensors: Vec<StoredTensor>,
    /// Further names of its only tensor. Files may have it under these too, and exports do.
    pub copies: Vec<String>,
    /// Alternative names of its only tensor. Files may contain it under these as well, or under one
    /// of these alone; exports do not write them.
    pub optional_aliases: &'static [&'static str],
    fusion: Fusion,
    storage: Storage,
    heads: Heads,
    linear: LinearSizes,
}

/// Source of a parameter: a tensor of a file, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Name of the tensor.
    pub name: String,
    /// Shape of the parameter's part of the tensor.
    pub shape: Vec<usize>,
    /// Part of the tensor; `None` for all of it.
    pub part: Option<Part>,
}

/// Index of an equal part of a tensor along its first dimension, which the part itself lacks unless
/// it is joined to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the part, from 0.
    pub index: usize,
    /// Number of parts.
    pub count: usize,
    /// True if the first dimension is that of a part times the number of parts.
    pub is_joined: bool,
}

impl StoredTensor {
    /// The number of the element of the tensor in the file at which the parameter's begin.
    pub fn start(&self) -> usize {
        self.part.map_or(0, |part| part.index * self.shape.iter().product::<usize>())
    }

    /// The shape of the tensor in the file.
    pub fn whole_shape(&self) -> Vec<usize> {
        match self.part {
            Some(Part { count, is_joined: true, .. }) => {
                let rows = self.shape[0] * count;
                std::iter::once(rows).chain(self.shape[1..].iter().copied()).collect()
            }
            part => part.iter().map(|part| part.count).chain(self.shape.iter().copied()).collect(),
        }
    }
}

/// Sizes that a map needs besides those of the parameters.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    linear: LinearSizes,
    vocab_size: usize,
    num_experts: usize,
    num_identity_experts: usize,
    num_layers: usize,
    /// Layers of multi-token prediction.
    num_predictions: usize,
}

/// Sizes that say how query, key and value rows interleave.
#[derive(Clone, Copy, Debug)]
struct Heads {
    groups: usize,
    queries_per_group: usize,
    head_size: usize,
    value_size: usize,
}

impl Heads {
    /// The heads of a layer with this configuration of attention.
    fn new(config: &DecoderConfig) -> Self {
        Self {
            groups: config.num_query_groups,
            queries_per_group: config.num_attention_heads / config.num_query_groups,
            head_size: config.kv_channels,
            value_size: config.value_size(),
        }
    }
}

/// Sizes of linear attention; zero where no layer has it.
#[derive(Clone, Copy, Debug, Default)]
struct LinearSizes {
    key_heads: usize,
    value_heads: usize,
    key_size: usize,
    value_size: usize,
    /// Decays of a value head.
    decays: usize,
}

impl LinearSizes {
    fn new(linear: &LinearAttentionConfig) -> Self {
        Self {
            key_heads: linear.num_key_heads,
            value_heads: linear.num_value_heads,
            key_size: linear.key_head_size,
            value_size: linear.value_head_size,
            decays: linear.decay_size() / linear.num_value_heads,
        }
    }

    /// Row ranges of queries, keys, values, gates, betas and decays in two tensors that are ordered
    /// by key heads.
    fn rows_by_head(self) -> impl Iterator<Item = Range<usize>> {
        let times = self.value_heads / self.key_heads;
        let (keys, values) = (self.key_size, times * self.value_size);
        let of_head = 2 * (keys + values);
        let first = [(0, keys), (keys, keys), (2 * keys, values), (2 * keys + values, values)];
        let second = [(0, times), (times, times)];
        let begin = self.key_heads * of_head;
        let parts = first.map(|part| (0, of_head, part)).into_iter().chain(second.map(|part| (begin, 2 * times, part)));
        parts.flat_map(move |(begin, of_head, (start, count))| {
            (0..self.key_heads).map(move |head| begin + head * of_head + start).map(move |row| row..row + count)
        })
    }
}

impl WeightMap {
    /// The map of a decoder in `family`, to files with this layout where the family has both.
    ///
    /// # Errors
    /// If the family cannot store one of the decoder's parameters.
    pub fn new(family: &Family, config: &DecoderConfig, experts: ExpertLayout) -> Result<Self, HfError> {
        // A layer of multi-token prediction is like the last layer.
        let heads = |layer: usize| Heads::new(&config.of_layer(layer.min(config.num_layers - 1)));
        let table = config.declarations();
        let parameters = table.parameters().iter();
        let shapes =
            parameters.map(|info| (info.name.clone(), info.shape.clone(), heads(info.layer.unwrap_or(0)))).collect();
        let experts_of = |count: fn(&MoeConfig) -> usize| config.moe.as_ref().map_or(0, count);
        let num_experts = experts_of(|moe| moe.num_experts);
        let num_identity_experts = experts_of(|moe| moe.num_identity_experts);
        let (num_layers, num_predictions) = (config.num_layers, config.mtp_num_layers);
        let linear = config.linear_attention.as_ref().map(LinearSizes::new).unwrap_or_default();
        let vocab_size = config.vocab_size;
        let sizes = Sizes { linear, vocab_size, num_experts, num_identity_experts, num_layers, num_predictions };
        let applies = |rule: &WeightRule| rule.applies_to.is_none_or(|applies_to| applies_to(config));
        Self::from_shapes(family, &applies, shapes, sizes, experts)
    }

    /// Map of parameters with these names and shapes, in time linear in their number.
    fn from_shapes(
        family: &Family,
        applies: &dyn Fn(&WeightRule) -> bool,
        parameters: Vec<(String, Vec<usize>, Heads)>,
        sizes: Sizes,
        experts: ExpertLayout,
    ) -> Result<Self, HfError> {
        let mut rules: HashMap<&str, &WeightRule> = HashMap::new();
        let all = || family.weights.iter().copied().flatten().filter(|rule| applies(rule));
        let of_rules = experts.of_rules();
        let (preferred, others) =
            (all().filter(|rule| rule.experts == of_rules), all().filter(|rule| rule.experts != of_rules));
        for rule in preferred.chain(others) {
            rules.entry(rule.megatron).or_insert(rule);
        }
        let entry = |(parameter, shape, heads): (String, Vec<usize>, Heads)| {
            let behind_layers = name_behind_layers(&parameter, sizes.num_layers);
            let (pattern, numbers) = pattern(behind_layers.as_ref().unwrap_or(&parameter));
            let Some(rule) = rules.get(pattern.as_str()) else {
                let found = format!("`{parameter}`");
                return Err(family.cannot_hold("parameters".into(), found, "no such parameter".into()));
            };
            let has_all = placeholders(rule.hugging_face[0]) < numbers.len();
            let expert = numbers.last().filter(|_| has_all);
            // The state of a module has the names of files but for some modules.
            let is_renamed = experts != ExpertLayout::Apart && rule.experts == ExpertLayout::Apart;
            let in_place = |name: String| if is_renamed { family.module_name(&name) } else { name };
            let part = expert.map(|expert| Part {
                index: expert.parse().expect("it is made of digits"),
                count: sizes.num_experts + if rule.has_identities { sizes.num_identity_experts } else { 0 },
                is_joined: rule.joins_experts,
            });
            let rule = match experts {
                ExpertLayout::StackedInputs if part.is_some() => rule.rows_are_inputs(),
                _ => **rule,
            };
            let shapes = rule.tensor_shapes(&shape, heads, sizes);
            let name = |(index, shape): (usize, Vec<usize>)| {
                let pattern = rule.hugging_face[if rule.fusion == Fusion::EachHead { 0 } else { index }];
                let name = in_place(with_numbers(pattern, &numbers).replace("{head}", &index.to_string()));
                StoredTensor { name, shape, part }
            };
            let tensors = shapes.into_iter().enumerate().map(name).collect();
            let layers = (sizes.num_layers..).take(sizes.num_predictions).map(|layer| layer.to_string());
            let copies = layers.flat_map(|layer| rule.copies.iter().map(move |name| with_numbers(name, &[&layer])));
            Ok(WeightEntry {
                copies: copies.collect(),
                optional_aliases: rule.optional_aliases,
                tensors,
                shape,
                fusion: rule.fusion,
                storage: rule.storage,
                heads,
                linear: sizes.linear,
                parameter,
            })
        };
        let entries = parameters.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.parameter.clone(), place)).collect();
        Ok(Self { entries, places })
    }

    /// The map to tensors that `rename` calls otherwise.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        for entry in &mut self.entries {
            let tensors = entry.tensors.iter_mut().map(|stored| &mut stored.name);
            tensors.chain(&mut entry.copies).for_each(|name| *name = rename(name));
        }
        self
    }

    /// The parameters in the order of the model's chunk.
    pub fn entries(&self) -> &[WeightEntry] {
        &self.entries
    }

    /// The entry of a parameter.
    pub fn entry(&self, parameter: &str) -> Option<&WeightEntry> {
        self.places.get(parameter).map(|place| &self.entries[*place])
    }
}

impl WeightMap {
    /// The entry of a parameter that has this shape. Fails if there is no such parameter, or it has
    /// another shape.
    pub(super) fn entry_for(&self, parameter: &str, shape: &[usize]) -> Result<&WeightEntry, HfError> {
        let entry = self.entry(parameter);
        entry.filter(|entry| entry.shape == shape).ok_or_else(|| {
            let expected = entry.map_or("no such parameter".into(), |entry| format!("{:?}", entry.shape));
            HfError::Parameter { name: parameter.to_owned(), found: shape.to_vec(), expected }
        })
    }

    /// Refuses a model of which a parameter is not among these. Fails with the first that is
    /// missing.
    pub(super) fn require_all(&self, parameters: &HashSet<String>) -> Result<(), HfError> {
        match self.entries.iter().find(|entry| !parameters.contains(&entry.parameter)) {
            None => Ok(()),
            Some(entry) => Err(HfError::MissingParameter { name: entry.parameter.clone() }),
        }
    }
}

impl WeightRule {
    /// Shapes of the stored tensors of a parameter of shape `shape`.
    fn tensor_shapes(&self, shape: &[usize], heads: Heads, sizes: Sizes) -> Vec<Vec<usize>> {
        let (Sizes { linear, vocab_size, .. }, d) = (sizes, heads.head_size);
        let (queries, keys) = (heads.groups * heads.queries_per_group * d, heads.groups * d);
        let rows = match self.fusion {
            Fusion::Single | Fusion::PackedQkv | Fusion::Alternating => vec![shape[0]],
            Fusion::Scalar => return vec![Vec::new()],
            Fusion::Row => return vec![vec![1, shape[0]]],
            Fusion::Convolution => return vec![vec![shape[0], 1, shape[1]]],
            Fusion::Vocabulary => vec![vocab_size],
            Fusion::Qkv => vec![queries, keys, heads.groups * heads.value_size],
            Fusion::GatedQkv => vec![2 * queries, keys, keys],
            Fusion::HeadRows => return vec![vec![shape[0] / d, d]],
            Fusion::EachHead => vec![d; shape[0] / d],
            Fusion::GateUp => vec![shape[0] / 2; 2],
            Fusion::Linear(parts) => parts.iter().map(|part| part.count(linear)).collect(),
            Fusion::LinearByHead => {
                let of_heads = 2 * linear.value_heads;
                vec![shape[0] - of_heads, of_heads]
            }
            Fusion::LinearConvolution(parts) => {
                return parts.iter().map(|part| vec![part.count(linear), 1, shape[1]]).collect();
            }
            Fusion::PerHead => return vec![vec![1, 1, shape[0], 1]],
        };
        rows.into_iter()
            .map(|rows| match (shape.get(1), self.storage) {
                (None, _) => vec![rows],
                (Some(columns), Storage::RowsAreOutputs) => vec![rows, *columns],
                (Some(columns), Storage::RowsAreInputs) => vec![*columns, rows],
            })
            .collect()
    }
}

impl WeightEntry {
    /// The same entry for a parameter of shape `shape`, which may have more rows where a vocabulary
    /// is padded.
    pub(crate) fn padded_to(&self, shape: &[usize]) -> Option<Self> {
        let more_rows = self.fusion == Fusion::Vocabulary
            && shape.len() == self.shape.len()
            && shape[1..] == self.shape[1..]
            && shape[0] >= self.tensors[0].shape[0];
        (more_rows || shape == self.shape).then(|| Self { shape: shape.to_vec(), ..self.clone() })
    }

    /// Reads the part of the parameter in these rows and columns (of a parameter with more
    /// dimensions, all but the first count as columns), row-major. Padding is zero. No more is read
    /// than that part. `name_of` maps a tensor to its name in the source.
    ///
    /// # Errors
    /// As [`TensorSource::read_into`].
    ///
    /// # Panics
    /// If a tensor of the source has another shape than [`WeightEntry::tensors`] says.
    pub fn read_part(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        source: &dyn TensorSource,
        name_of: &dyn Fn(&str) -> String,
    ) -> Result<Vec<f32>, HfError> {
        let mut part = vec![0.0; rows.len() * columns.len()];
        for run in self.runs() {
            let common = rows.start.max(run.rows.start)..rows.end.min(run.rows.end);
            if common.is_empty() || columns.is_empty() {
                continue;
            }
            let first = run.place(common.start) + columns.start * run.column_stride;
            let start = (common.start - rows.start) * columns.len();
            let target = &mut part[start..start + common.len() * columns.len()];
            let strides = Strides { rows: run.row_stride, columns: run.column_stride };
            let stored = &self.tensors[run.tensor];
            let (name, begin) = (name_of(&stored.name), stored.start());
            strides.gather(first, columns.len(), target, &mut |start, target| {
                source.read_into(&name, begin + start, target)
            })?;
        }
        Ok(part)
    }

    /// True if the stored matrices are `[outputs, inputs]`.
    pub(super) fn rows_are_outputs(&self) -> bool {
        self.storage == Storage::RowsAreOutputs
    }

    /// Elements of one row of the parameter.
    pub fn row_length(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Positions of the parameter's rows. Rows of padding have none.
    pub(super) fn runs(&self) -> Vec<Run> {
        let width = self.row_length();
        let stored: Vec<usize> =
            self.tensors.iter().map(|stored| stored.shape.iter().product::<usize>() / width.max(1)).collect();
        let mut runs = Vec::new();
        let mut next = 0;
        for (rows, step) in self.order(stored.iter().sum()) {
            let mut begin = 0;
            for (tensor, count) in stored.iter().enumerate() {
                let common = rows.start.max(begin)..rows.end.min(begin + count);
                if !common.is_empty() {
                    let (row_stride, column_stride) = match self.storage {
                        Storage::RowsAreOutputs => (width, 1),
                        Storage::RowsAreInputs if self.shape.len() == 1 => (1, 1),
                        Storage::RowsAreInputs => (1, *count),
                    };
                    let (first, num_rows) = ((common.start - begin) * row_stride, common.len().div_ceil(step));
                    let row_stride = row_stride * step;
                    runs.push(Run { rows: next..next + num_rows, tensor, first, row_stride, column_stride });
                    next += num_rows;
                }
                begin += count;
            }
        }
        runs
    }

    /// The parameter's rows in order, as ranges of the rows of its tensors one after the other, of
    /// which there are `stored`, and the step from row to row in each. Only ranges within one
    /// tensor have another step than 1.
    fn order(&self, stored: usize) -> Vec<(Range<usize>, usize)> {
        match self.fusion {
            Fusion::Single
            | Fusion::Scalar
            | Fusion::Row
            | Fusion::Convolution
            | Fusion::Vocabulary
            | Fusion::GateUp
            | Fusion::Linear(_)
            | Fusion::LinearConvolution(_)
            | Fusion::PerHead
            | Fusion::HeadRows
            | Fusion::EachHead => vec![(0..stored, 1)],
            Fusion::LinearByHead => self.linear.rows_by_head().map(|rows| (rows, 1)).collect(),
            Fusion::GatedQkv => self.heads.stored_rows_with_gates().map(|rows| (rows, 1)).collect(),
            Fusion::Alternating => vec![(0..stored, 2), (1..stored, 2)],
            Fusion::Qkv | Fusion::PackedQkv => self.heads.stored_rows().map(|rows| (rows, 1)).collect(),
        }
    }
}

impl Heads {
    /// Row ranges of `[queries, keys, values]` in the order of the fused projection: for each group
    /// its queries, its key and its value.
    fn stored_rows(self) -> impl Iterator<Item = Range<usize>> {
        let Self { groups, queries_per_group, head_size, value_size } = self;
        let keys = groups * queries_per_group * head_size;
        let values = keys + groups * head_size;
        let queries = queries_per_group * head_size;
        (0..groups).flat_map(move |group| {
            [
                group * queries..(group + 1) * queries,
                keys + group * head_size..keys + (group + 1) * head_size,
                values + group * value_size..values + (group + 1) * value_size,
            ]
        })
    }
}

impl Heads {
    /// Row ranges of `[queries with gates, keys, values]` in the order of the fused projection: for
    /// each group its queries, their gates, its key and its value.
    fn stored_rows_with_gates(self) -> impl Iterator<Item = Range<usize>> {
        let Self { groups, queries_per_group, head_size: d, .. } = self;
        let keys = 2 * groups * queries_per_group * d;
        let values = keys + groups * d;
        (0..groups).flat_map(move |group| {
            let heads = group * queries_per_group..(group + 1) * queries_per_group;
            let begins = move |offset: usize| heads.clone().map(move |head| 2 * head * d + offset);
            let shared = [keys + group * d, values + group * d];
            begins(0).chain(begins(d)).chain(shared).map(move |begin| begin..begin + d)
        })
    }
}

/// A parameter's name with `{}` for each number between its dots, and the numbers.
fn pattern(parameter: &str) -> (String, Vec<&str>) {
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
fn placeholders(pattern: &str) -> usize {
    pattern.matches("{}").count() + pattern.matches(HALF).count()
}

/// A pattern with numbers in place of its placeholders.
fn with_numbers(pattern: &str, numbers: &[&str]) -> String {
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

#[cfg(test)]
#[path = "weight_map_tests.rs"]
mod tests;
