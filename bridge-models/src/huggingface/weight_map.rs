//! Meaning of a family's table of weights: one parameter is one or more tensors, fused, transposed
//! or padded.
//!
//! The same table reads weights, writes them, and renames gradients. `rules` has a line of the
//! table, `fusion` how tensors make up a parameter; the map of a whole model is here.

mod fusion;
mod rules;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub(crate) use fusion::{Fusion, LinearRows};
use fusion::{Heads, LinearSizes, Sizes};
pub use rules::ExpertLayout;
use rules::{Storage, pattern, placeholders, with_numbers};
pub(crate) use rules::{WeightRule, rule, stacked};

use super::error::HfError;
use super::family::Family;
use super::runs::{Run, Strides};
use super::source::TensorSource;
use crate::decoder::{DecoderConfig, MoeConfig, name_behind_layers};

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

    /// True if the stored matrices are `[inputs, outputs]`.
    pub(crate) fn rows_are_inputs(&self) -> bool {
        self.storage == Storage::RowsAreInputs
    }

    /// Elements of one row of the parameter.
    pub fn row_length(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Rows of the parameter in each tensor.
    fn rows_of_tensors(&self) -> Vec<usize> {
        let width = self.row_length().max(1);
        self.tensors.iter().map(|stored| stored.shape.iter().product::<usize>() / width).collect()
    }

    /// For each tensor, which of its rows (of a matrix stored as `[inputs, outputs]`, its columns)
    /// are the parameter's, in the parameter's order.
    pub(crate) fn stored_rows(&self) -> Vec<Vec<usize>> {
        let counts = self.rows_of_tensors();
        let mut rows = vec![Vec::new(); counts.len()];
        for (range, step) in self.fusion.order(self.heads, self.linear, counts.iter().sum()) {
            for mut row in range.step_by(step) {
                let mut tensor = 0;
                while row >= counts[tensor] {
                    row -= counts[tensor];
                    tensor += 1;
                }
                rows[tensor].push(row);
            }
        }
        rows
    }

    /// Positions of the parameter's rows. Rows of padding have none.
    pub(super) fn runs(&self) -> Vec<Run> {
        let width = self.row_length();
        let stored = self.rows_of_tensors();
        let mut runs = Vec::new();
        let mut next = 0;
        for (rows, step) in self.fusion.order(self.heads, self.linear, stored.iter().sum()) {
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
}

#[cfg(test)]
#[path = "weight_map_tests.rs"]
mod tests;
