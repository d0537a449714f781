//! Hugging Face folders in and out: `config.json` to a decoder's configuration, safetensors to its parameters, and back.
//!
//! | file | what it has |
//! | --- | --- |
//! | `family` | [`Family`]: a family as data, a table of settings and a table of weights |
//! | `settings` | what a table of settings means: keys of `config.json` to fields and back |
//! | `weight_map` | what a table of weights means: fusing, splitting, transposing, padding |
//! | `runs` | rows of a parameter in a tensor, read and written by parts |
//! | `source` | [`TensorSource`]: tensors by name, read piece by piece |
//! | `checkpoint` | safetensors files, single and sharded, memory-mapped |
//! | `encoding` | how elements are stored: floats of 8 to 64 bits, blocks of 4 bits |
//! | `json` | JSON as Python writes it |
//! | `import`, `export` | folders to chunks and back |
//! | `rope` | rotary settings in the forms of all versions of transformers |
//! | `windows` | sliding windows, of all layers or of some |
//! | `staged` | files of tensors in the making |
//! | `gguf` | GGUF files in and out |
//! | `fields` | typed reading of `config.json` |
//!
//! The tables of each family are in [`crate::families`]. No maths of a model here.

mod checkpoint;
mod encoding;
pub(crate) mod error;
mod export;
mod family;
pub(crate) mod fields;
pub(crate) mod gguf;
mod import;
pub(crate) mod json;
pub(crate) mod rope;
mod runs;
pub(crate) mod settings;
mod source;
mod staged;
pub(crate) mod weight_map;
pub(crate) mod windows;

#[cfg(test)]
pub(crate) mod tests;

pub use checkpoint::{HfCheckpoint, HostTensor, Quantization};
pub use error::{HfError, TensorProblem};
pub use export::{ExportOptions, Exporter, StorageDtype, is_exported, to_hf};
pub use family::Family;
pub use gguf::{GgufDtype, GgufExporter};
pub use import::{HfModel, import_hook};
pub use json::{parse_table as parse_settings, table_to_text as settings_text};
pub use runs::row_blocks;
pub use source::TensorSource;
pub use weight_map::{ExpertLayout, Part, ReadRows, StoredTensor, WeightEntry, WeightMap};
