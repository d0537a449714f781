//! Hugging Face folders in and out: `config.json` to a decoder's configuration, safetensors to its parameters, and back.
//!
//! | file | what it has |
//! | --- | --- |
//! | `family` | [`Family`]: a family as data, a table of settings and a table of weights |
//! | `settings` | what a table of settings means: keys of `config.json` to fields and back |
//! | `weight_map` | what a table of weights means: fusing, splitting, transposing, padding |
//! | `checkpoint` | safetensors files, single and sharded, memory-mapped |
//! | `import`, `export` | folders to chunks and back |
//! | `rope` | rotary settings in the forms of all versions of transformers |
//! | `windows` | sliding windows, of all layers or of some |
//! | `fields` | typed reading of `config.json` |
//!
//! The tables of each family are in [`crate::families`]. No maths of a model here.

mod checkpoint;
pub(crate) mod error;
mod export;
mod family;
pub(crate) mod fields;
mod import;
pub(crate) mod rope;
pub(crate) mod settings;
pub(crate) mod weight_map;
pub(crate) mod windows;

#[cfg(test)]
mod tests;

pub use checkpoint::{HfCheckpoint, HostTensor};
pub use error::{HfError, TensorProblem};
pub use export::{ExportOptions, Exporter, StorageDtype, export, is_exported};
pub use family::Family;
pub use import::{HfModel, import_hook};
pub use weight_map::{ExpertLayout, Part, StoredTensor, WeightEntry, WeightMap};
