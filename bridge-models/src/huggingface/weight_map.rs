//! What a family's table of weights means: one parameter is one or more tensors, fused, transposed or padded.
//!
//! The same table reads weights, writes them, and renames gradients.

use std::collections::HashMap;
use std::ops::Range;

use super::checkpoint::HostTensor;
use super::error::HfError;
use super::family::Family;
use super::runs::{Run, Strides};
use super::source::TensorSource;
use crate::decoder::DecoderConfig;

/// One line of a family's table: a pattern of names. `{}` stands for a number (of a layer, of an expert), in the same order on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightRule {
    /// Our (Megatron's) names.
    megatron: &'static str,
    /// Hugging Face's names.
    hugging_face: &'static [&'static str],
    /// How the tensors make up the parameter.
    fusion: Fusion,
    /// Orientation of the tensors if they are matrices.
    storage: Storage,
    /// What files of earlier versions of transformers call the tensor.
    former: Option<&'static str>,
    /// The models whose parameter is stored so; `None` for all.
    of: Option<fn(&DecoderConfig) -> bool>,
}

/// A parameter that is one tensor, as it is.
pub(crate) const fn rule(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule {
        megatron,
        hugging_face,
        fusion: Fusion::Single,
        storage: Storage::RowsAreOutputs,
        former: None,
        of: None,
    }
}

impl WeightRule {
    /// The tensors make up the parameter in this way.
    pub const fn fused(self, fusion: Fusion) -> Self {
        Self { fusion, ..self }
    }

    /// Files of earlier versions of transformers call the tensor so.
    pub const fn formerly(self, name: &'static str) -> Self {
        Self { former: Some(name), ..self }
    }

    /// What such files call `name`, if that is the rule's tensor.
    pub fn former_name(&self, name: &str) -> Option<&'static str> {
        self.former.filter(|_| self.hugging_face == [name])
    }

    /// Only the parameters of models for which `of` says so are stored in this way.
    pub const fn only(self, of: fn(&DecoderConfig) -> bool) -> Self {
        Self { of: Some(of), ..self }
    }

    /// The stored matrices are `[inputs, outputs]`.
    pub const fn rows_are_inputs(self) -> Self {
        Self { storage: Storage::RowsAreInputs, ..self }
    }
}

/// How tensors make up a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// One tensor, as it is.
    Single,
    /// One tensor with a row a token, padded with zero rows.
    Vocabulary,
    /// One tensor with the taps of a channel in a row, `[channels, 1, taps]`.
    Convolution,
    /// Rows of query, key and value from a tensor each.
    Qkv,
    /// Rows of query, key and value from one tensor that has all queries first, then keys, then values.
    PackedQkv,
    /// Rows of the gate, then of the other half, from a tensor each.
    GateUp,
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
    /// Names and shapes of the tensors.
    pub tensors: Vec<(String, Vec<usize>)>,
    fusion: Fusion,
    storage: Storage,
    heads: Heads,
}

/// Sizes that say how query, key and value rows interleave.
#[derive(Clone, Copy, Debug)]
struct Heads {
    groups: usize,
    queries_per_group: usize,
    head_size: usize,
}

impl WeightMap {
    /// The map of a decoder in `family`.
    ///
    /// # Errors
    /// If the family has no place for one of the decoder's parameters.
    pub fn new(family: &Family, config: &DecoderConfig) -> Result<Self, HfError> {
        let heads = Heads {
            groups: config.num_query_groups,
            queries_per_group: config.num_attention_heads / config.num_query_groups,
            head_size: config.kv_channels,
        };
        let table = config.declarations();
        let shapes = table.parameters().iter().map(|info| (info.name.clone(), info.shape.clone()));
        let is_of = |rule: &WeightRule| rule.of.is_none_or(|of| of(config));
        Self::of((family, &is_of), shapes.collect(), heads, config.vocab_size)
    }

    /// The map of parameters with these names and shapes: in time that is linear in their number.
    fn of(
        (family, is_of): (&Family, &dyn Fn(&WeightRule) -> bool),
        parameters: Vec<(String, Vec<usize>)>,
        heads: Heads,
        vocab_size: usize,
    ) -> Result<Self, HfError> {
        let mut rules: HashMap<&str, &WeightRule> = HashMap::new();
        for rule in family.weights.iter().copied().flatten().filter(|rule| is_of(rule)) {
            rules.entry(rule.megatron).or_insert(rule);
        }
        let entry = |(parameter, shape): (String, Vec<usize>)| {
            let (pattern, numbers) = pattern(&parameter);
            let Some(rule) = rules.get(pattern.as_str()) else {
                let found = format!("`{parameter}`");
                return Err(family.cannot_hold("parameters".into(), found, "no such parameter".into()));
            };
            let names = rule.hugging_face.iter().map(|name| with_numbers(name, &numbers));
            let shapes = rule.tensor_shapes(&shape, heads, vocab_size);
            let tensors = names.zip(shapes).collect();
            Ok(WeightEntry { tensors, shape, fusion: rule.fusion, storage: rule.storage, heads, parameter })
        };
        let entries = parameters.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.parameter.clone(), place)).collect();
        Ok(Self { entries, places })
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
    /// The entry of a parameter that has this shape.
    ///
    /// # Errors
    /// If there is no such parameter, or it has another shape.
    pub(super) fn entry_for(&self, parameter: &str, shape: &[usize]) -> Result<&WeightEntry, HfError> {
        let entry = self.entry(parameter);
        entry.filter(|entry| entry.shape == shape).ok_or_else(|| {
            let expected = entry.map_or("no such parameter".into(), |entry| format!("{:?}", entry.shape));
            HfError::Parameter { name: parameter.to_owned(), found: shape.to_vec(), expected }
        })
    }
}

impl WeightRule {
    /// Shapes of the stored tensors of a parameter of shape `shape`.
    fn tensor_shapes(&self, shape: &[usize], heads: Heads, vocab_size: usize) -> Vec<Vec<usize>> {
        let d = heads.head_size;
        let rows = match self.fusion {
            Fusion::Single | Fusion::PackedQkv => vec![shape[0]],
            Fusion::Convolution => return vec![vec![shape[0], 1, shape[1]]],
            Fusion::Vocabulary => vec![vocab_size],
            Fusion::Qkv => vec![heads.groups * heads.queries_per_group * d, heads.groups * d, heads.groups * d],
            Fusion::GateUp => vec![shape[0] / 2; 2],
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
    /// The same entry for a parameter of shape `shape`, which may have more rows where a vocabulary is padded.
    pub(crate) fn padded_to(&self, shape: &[usize]) -> Option<Self> {
        let more_rows = self.fusion == Fusion::Vocabulary
            && shape.len() == self.shape.len()
            && shape[1..] == self.shape[1..]
            && shape[0] >= self.tensors[0].1[0];
        (more_rows || shape == self.shape).then(|| Self { shape: shape.to_vec(), ..self.clone() })
    }

    /// Reads the part of the parameter in these rows and columns (of a parameter with more dimensions, all but the first count as columns), row-major.
    /// Padding is zero. No more is read than that part. `name_of` says what the source calls a tensor.
    ///
    /// # Errors
    /// As [`TensorSource::read_into`].
    ///
    /// # Panics
    /// If a tensor of the source has another shape than [`WeightEntry::tensors`] says.
    pub fn read_part(
        &self,
        (rows, columns): (Range<usize>, Range<usize>),
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
            let name = name_of(&self.tensors[run.tensor].0);
            strides
                .gather((first, columns.len()), target, &mut |start, target| source.read_into(&name, start, target))?;
        }
        Ok(part)
    }

    /// The tensors of a parameter's values. Padding is dropped.
    ///
    /// # Panics
    /// If there are not as many values as the parameter has.
    pub fn split(&self, values: &[f32]) -> Vec<HostTensor> {
        assert_eq!(values.len(), self.shape.iter().product::<usize>(), "number of values of `{}`", self.parameter);
        let empty = |shape: &Vec<usize>| HostTensor { shape: shape.clone(), values: vec![0.0; shape.iter().product()] };
        let mut tensors: Vec<HostTensor> = self.tensors.iter().map(|(_, shape)| empty(shape)).collect();
        let width = self.row_length();
        for run in self.runs() {
            let stored = &mut tensors[run.tensor].values;
            for row in run.rows.clone() {
                let (place, row) = (run.place(row), &values[row * width..(row + 1) * width]);
                for (column, value) in row.iter().enumerate() {
                    stored[place + column * run.column_stride] = *value;
                }
            }
        }
        tensors
    }

    /// Whether the stored matrices are `[outputs, inputs]`.
    pub(super) fn rows_are_outputs(&self) -> bool {
        self.storage == Storage::RowsAreOutputs
    }

    /// Elements of one row of the parameter.
    pub fn row_length(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Where the rows of the parameter lie. Rows of padding lie nowhere.
    fn runs(&self) -> Vec<Run> {
        let width = self.row_length();
        let stored: Vec<usize> =
            self.tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() / width.max(1)).collect();
        let mut runs = Vec::new();
        let mut next = 0;
        for rows in self.order(stored.iter().sum()) {
            let mut begin = 0;
            for (tensor, count) in stored.iter().enumerate() {
                let common = rows.start.max(begin)..rows.end.min(begin + count);
                if !common.is_empty() {
                    let (row_stride, column_stride) = match self.storage {
                        Storage::RowsAreOutputs => (width, 1),
                        Storage::RowsAreInputs if self.shape.len() == 1 => (1, 1),
                        Storage::RowsAreInputs => (1, *count),
                    };
                    let first = (common.start - begin) * row_stride;
                    runs.push(Run { rows: next..next + common.len(), tensor, first, row_stride, column_stride });
                    next += common.len();
                }
                begin += count;
            }
        }
        runs
    }

    /// The parameter's rows in order, as ranges of the rows of its tensors one after the other, of which there are `stored`.
    fn order(&self, stored: usize) -> Vec<Range<usize>> {
        match self.fusion {
            Fusion::Single | Fusion::Convolution | Fusion::Vocabulary | Fusion::GateUp => {
                std::iter::once(0..stored).collect()
            }
            Fusion::Qkv | Fusion::PackedQkv => self.heads.stored_rows().collect(),
        }
    }
}

impl Heads {
    /// Row ranges of `[queries, keys, values]` in the order of the fused projection: for each group its queries, its key and
    /// its value.
    fn stored_rows(self) -> impl Iterator<Item = Range<usize>> {
        let Self { groups, queries_per_group, head_size } = self;
        let keys = groups * queries_per_group * head_size;
        let values = keys + groups * head_size;
        let queries = queries_per_group * head_size;
        (0..groups).flat_map(move |group| {
            [
                group * queries..(group + 1) * queries,
                keys + group * head_size..keys + (group + 1) * head_size,
                values + group * head_size..values + (group + 1) * head_size,
            ]
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

/// A pattern with numbers in place of `{}`.
fn with_numbers(pattern: &str, numbers: &[&str]) -> String {
    let mut numbers = numbers.iter();
    let parts = pattern.split('.');
    let parts = parts.map(|part| if part == "{}" { numbers.next().expect("as many as in our name") } else { part });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
