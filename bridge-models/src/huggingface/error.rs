//! Errors of a Hugging Face folder.

use std::fmt;
use std::path::PathBuf;

use bridge_core::model::ModelBuildError;

/// Why a folder could not be imported or written.
#[derive(thiserror::Error)]
pub enum HfError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A JSON file is malformed.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Place and reason.
        source: serde_json::Error,
    },
    /// A safetensors file is malformed.
    #[error("{path}: {source}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Cause of the error.
        source: safetensors::SafeTensorError,
    },
    /// A setting of `config.json` that cannot be used.
    #[error("{path}: {key}: expected {expected}, found {found}")]
    Setting {
        /// The file; only its name where the settings come from no file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Found value.
        found: String,
        /// Accepted values.
        expected: String,
    },
    /// The tensors are not those of the model.
    #[error("{path}: {} of the tensors do not fit the model:{}", .problems.len(), list(.problems))]
    Tensors {
        /// The folder.
        path: PathBuf,
        /// One entry a tensor.
        problems: Vec<TensorProblem>,
    },
    /// The weights are in PyTorch's own files only.
    #[error(
        "{path}: there is no model.safetensors, and pytorch_model.bin is not read, because such a file is a program: write the folder \
         anew by transformers, `model.save_pretrained(FOLDER, safe_serialization=True)`"
    )]
    Pickled {
        /// The folder.
        path: PathBuf,
    },
    /// The weights are in files of another kind or under another name.
    #[error("{path}: expected {expected}, found {found}: {remedy}")]
    OtherWeights {
        /// The folder.
        path: PathBuf,
        /// The name of the file that is read.
        expected: &'static str,
        /// The file that is there.
        found: String,
        /// Remedy.
        remedy: &'static str,
    },
    /// An adapter lies beside the weights of a base: transformers applies it to the base that its
    /// settings name.
    #[error(
        "{path}: an adapter beside the weights of a model: transformers loads the adapter with the base that base_model_name_or_path names, \
         Bridge one of the two: move adapter_config.json and adapter_model.* to a folder of their own, and name that by --adapter"
    )]
    AdapterBeside {
        /// The settings of the adapter.
        path: PathBuf,
    },
    /// `config.json` describes a model that cannot be computed.
    #[error("{path}: {source}")]
    Described {
        /// The file.
        path: PathBuf,
        /// Why not, by the file's key, or by a recipe's setting if the file has no such key.
        source: ModelBuildError,
    },
    /// The names of the tensors have something before or in them that a wrapper of the model has
    /// left.
    #[error(
        "{path}: the names of {count} tensors have `{inserted}`, such as `{example}`, expected `{expected}`: {remedy}"
    )]
    Wrapped {
        /// The folder.
        path: PathBuf,
        /// Number of tensors with this name.
        count: usize,
        /// Surplus part of the names.
        inserted: String,
        /// Example of such a name.
        example: String,
        /// The name that is meant.
        expected: String,
        /// Remedy.
        remedy: &'static str,
    },
    /// A tensor is in none of the files that should have it.
    #[error("{path}: there is no tensor `{name}`")]
    NoTensor {
        /// The file, or the folder of several.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor is in two of the files, so that it is not known which one is meant.
    #[error("{path}: the tensor `{name}` is in {} too, with other values: expected it once", .first.display())]
    Twice {
        /// The second file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The first file.
        first: PathBuf,
    },
    /// A tensor has a value with which no model computes anything.
    #[error(
        "{path}: `{name}`: expected finite numbers, found {value} as number {index} of it: the file is damaged, or was saved from a \
             model that had diverged"
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Index in the tensor, row-major.
        index: usize,
        /// The value.
        value: f64,
    },
    /// A GGUF file is malformed, or cannot hold the model.
    #[error("{path}: {name}: expected {expected}, found {found}")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The key, the tensor, or the place in the file.
        name: String,
        /// Accepted values.
        expected: String,
        /// Found value.
        found: String,
    },
    /// A tensor is stored in a way that cannot be read.
    #[error("{path}: `{name}`: expected {expected}, found {found}")]
    Storage {
        /// The file, or the folder of several.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Accepted values.
        expected: &'static str,
        /// Found value.
        found: String,
    },
    /// A tensor's dtype is not one of those that can be read.
    #[error("{path}: `{name}`: expected dtype {expected}, found {found}")]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Supported dtypes.
        expected: &'static str,
        /// Dtype of the tensor.
        found: String,
    },
    /// The family cannot store a setting or parameter of the decoder.
    #[error("cannot be written as {family}: {key}: expected {expected}, found {found}")]
    NotOfFamily {
        /// The family's `model_type`.
        family: &'static str,
        /// The decoder's field, or the family's key.
        key: String,
        /// Found value.
        found: String,
        /// Value of the family.
        expected: String,
    },
    /// No family can hold the decoder.
    #[error("no Hugging Face family that is known here has this architecture:{}", lines(.reasons))]
    NoFamily {
        /// Why not, an error a family.
        reasons: Vec<HfError>,
    },
    /// The chunks lack a parameter of the model.
    #[error("parameter `{name}` is in none of the chunks")]
    MissingParameter {
        /// Name of the tensor.
        name: String,
    },
    /// A chunk has a parameter the model does not have, or of another shape.
    #[error("parameter `{name}` has shape {found:?}, expected {expected}")]
    Parameter {
        /// Name of the tensor.
        name: String,
        /// The chunk's shape.
        found: Vec<usize>,
        /// Value of the configuration.
        expected: String,
    },
    /// The rows of a parameter that is written could not be read where they come from.
    #[error(transparent)]
    Rows(Box<dyn std::error::Error + Send + Sync>),
    /// The configuration cannot be built.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
}

/// Problem of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorProblem {
    /// The model needs the tensor and the files lack it.
    Missing {
        /// Name of the tensor.
        name: String,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// The files have it and the model does not.
    Unexpected {
        /// Name of the tensor.
        name: String,
        /// Found shape.
        found: Vec<usize>,
    },
    /// The tensor has another shape.
    Shape {
        /// Name of the tensor.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The file's shape.
        found: Vec<usize>,
    },
    /// The model has one table under two names, but the files have different values for them.
    NotTied {
        /// The name of the copy, such as that of a tied output.
        name: String,
        /// The name of the table.
        expected: String,
    },
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => {
                write!(f, "`{name}`: expected shape {expected:?}, found no such tensor")
            }
            Self::Unexpected { name, found } => write!(f, "`{name}`: expected no such tensor, found shape {found:?}"),
            Self::Shape { name, expected, found } => {
                write!(f, "`{name}`: expected shape {expected:?}, found {found:?}")
            }
            Self::NotTied { name, expected } => {
                write!(
                    f,
                    "`{name}`: expected the values of `{expected}`, because the model has one table for both (tie_word_embeddings \
                     is true, or the family shares it always), found others"
                )
            }
        }
    }
}

/// One a line.
fn lines(items: &[impl fmt::Display]) -> String {
    items.iter().map(|item| format!("\n  {item}")).collect()
}

/// The first problems, one a line. At most half of them are missing tensors where there are
/// problems of other kinds, which tell the names that were found instead.
fn list(problems: &[TensorProblem]) -> String {
    const SHOWN: usize = 20;
    let (missing, others): (Vec<_>, Vec<_>) =
        problems.iter().partition(|problem| matches!(problem, TensorProblem::Missing { .. }));
    let of_others = others.len().min(SHOWN - missing.len().min(SHOWN / 2));
    let shown: Vec<_> = missing.iter().take(SHOWN - of_others).chain(others.iter().take(of_others)).collect();
    let mut text = lines(&shown);
    if problems.len() > SHOWN {
        text += &format!("\n  and {} more", problems.len() - SHOWN);
    }
    text
}
