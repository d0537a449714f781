//! What a family's table of weights means: one parameter is one or more tensors, fused, transposed or padded.
//!
//! The same table reads weights, writes them, and renames gradients.

use super::Family;
use super::checkpoint::HostTensor;
use super::error::HfError;
use crate::decoder::DecoderConfig;

/// One line of a family's table. `{}` stands for the layer number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightRule {
    /// Our (Megatron's) name.
    pub megatron: &'static str,
    /// Hugging Face's names.
    pub hugging_face: &'static [&'static str],
    /// How the tensors make up the parameter.
    pub fusion: Fusion,
    /// Orientation of the tensors if they are matrices.
    pub storage: Storage,
}

/// How tensors make up a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// One tensor, as it is.
    Single,
    /// One tensor with a row a token, padded with zero rows.
    Vocabulary,
    /// Rows of query, key and value from a tensor each.
    Qkv,
    /// Rows of query, key and value from one tensor that has all queries first, then keys, then values.
    PackedQkv,
    /// Rows of the gate, then of the other half, from a tensor each.
    GateUp,
}

/// Orientation of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// `[outputs, inputs]`, as ours.
    RowsAreOutputs,
    /// `[inputs, outputs]`.
    RowsAreInputs,
}

/// All parameters of a model with their tensors.
#[derive(Clone, Debug)]
pub struct WeightMap {
    entries: Vec<WeightEntry>,
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
    pub fn new(family: Family, config: &DecoderConfig) -> Result<Self, HfError> {
        let heads = Heads {
            groups: config.num_query_groups,
            queries_per_group: config.num_attention_heads / config.num_query_groups,
            head_size: config.kv_channels,
        };
        let entry = |(parameter, shape): (String, Vec<usize>)| {
            let (template, layer) = template(&parameter);
            let Some(rule) = family.rules().iter().find(|rule| rule.megatron == template) else {
                return Err(HfError::NotOfFamily {
                    family: family.model_type(),
                    key: "parameters",
                    found: format!("`{parameter}`"),
                    expected: "no such parameter".into(),
                });
            };
            let names = rule.hugging_face.iter().map(|name| name.replace("{}", &layer));
            let shapes = rule.tensor_shapes(&shape, heads, config.vocab_size);
            let (fusion, storage) = (rule.fusion, rule.storage);
            Ok(WeightEntry { parameter, shape, tensors: names.zip(shapes).collect(), fusion, storage, heads })
        };
        let entries = config.parameter_shapes().into_iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// The parameters in the order of the model's chunk.
    pub fn entries(&self) -> &[WeightEntry] {
        &self.entries
    }

    /// The entry of a parameter.
    pub fn entry(&self, parameter: &str) -> Option<&WeightEntry> {
        self.entries.iter().find(|entry| entry.parameter == parameter)
    }
}

impl WeightRule {
    /// Shapes of the stored tensors of a parameter of shape `shape`.
    fn tensor_shapes(&self, shape: &[usize], heads: Heads, vocab_size: usize) -> Vec<Vec<usize>> {
        let d = heads.head_size;
        let rows = match self.fusion {
            Fusion::Single | Fusion::PackedQkv => vec![shape[0]],
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

    /// The parameter's values, row-major, from those of its tensors, which have the shapes of [`WeightEntry::tensors`].
    ///
    /// # Panics
    /// If they have not.
    pub fn fuse(&self, tensors: Vec<HostTensor>) -> Vec<f32> {
        for (tensor, (name, shape)) in tensors.iter().zip(&self.tensors) {
            assert_eq!(&tensor.shape, shape, "shape of `{name}`");
        }
        let mut parts: Vec<Vec<f32>> = tensors.into_iter().map(|tensor| self.turned(tensor)).collect();
        let row = self.row_length();
        match self.fusion {
            Fusion::Single => parts.swap_remove(0),
            Fusion::Vocabulary => {
                let mut table = parts.swap_remove(0);
                table.resize(self.shape[0] * row, 0.0);
                table
            }
            Fusion::GateUp => parts.concat(),
            Fusion::Qkv | Fusion::PackedQkv => {
                let stored = parts.concat();
                let rows = self.heads.stored_rows();
                rows.flat_map(|from| stored[from.start * row..from.end * row].iter().copied()).collect()
            }
        }
    }

    /// The tensors of a parameter's values: the inverse of [`WeightEntry::fuse`]. Padding is dropped.
    ///
    /// # Panics
    /// If there are not as many values as the parameter has.
    pub fn split(&self, values: &[f32]) -> Vec<HostTensor> {
        assert_eq!(values.len(), self.shape.iter().product::<usize>(), "number of values of `{}`", self.parameter);
        let row = self.row_length();
        let mut stored = values.to_vec();
        if matches!(self.fusion, Fusion::Qkv | Fusion::PackedQkv) {
            let mut from = values;
            for to in self.heads.stored_rows() {
                let (block, rest) = from.split_at(to.len() * row);
                stored[to.start * row..to.end * row].copy_from_slice(block);
                from = rest;
            }
        }
        let mut rest = stored.as_slice();
        self.tensors
            .iter()
            .map(|(_, shape)| {
                let (part, tail) = rest.split_at(shape.iter().product());
                rest = tail;
                let values = match (shape.as_slice(), self.storage) {
                    ([columns, rows], Storage::RowsAreInputs) => transpose(part, *rows, *columns),
                    _ => part.to_vec(),
                };
                HostTensor { shape: shape.clone(), values }
            })
            .collect()
    }

    /// Elements of one row of the parameter.
    fn row_length(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// A tensor's values with rows as outputs.
    fn turned(&self, tensor: HostTensor) -> Vec<f32> {
        match (tensor.shape.as_slice(), self.storage) {
            ([rows, columns], Storage::RowsAreInputs) => transpose(&tensor.values, *rows, *columns),
            _ => tensor.values,
        }
    }
}

impl Heads {
    /// Row ranges of `[queries, keys, values]` in the order of the fused projection: for each group its queries, its key and
    /// its value.
    fn stored_rows(self) -> impl Iterator<Item = std::ops::Range<usize>> {
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

/// The transpose of a row-major matrix.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for column in 0..columns {
        turned.extend((0..rows).map(|row| values[row * columns + column]));
    }
    turned
}

/// A parameter's name with `{}` for its layer number, and that number.
fn template(parameter: &str) -> (String, String) {
    match parameter.strip_prefix("decoder.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => (format!("decoder.layers.{{}}.{rest}"), layer.to_owned()),
        None => (parameter.to_owned(), String::new()),
    }
}
