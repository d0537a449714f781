//! Hugging Face folders in and out: `config.json` to a decoder's configuration, safetensors to its
//! parameters, and back.
//!
//! | file | content |
//! | --- | --- |
//! | `family` | [`Family`]: a family as data, a table of settings and a table of weights |
//! | `settings` | reader of tables of settings: keys of `config.json` to fields and back |
//! | `weight_map` | reader of tables of weights: fusing, splitting, transposing, padding |
//! | `multimodal` | multimodal folders as those of their language model |
//! | `runs` | rows of a parameter in a tensor, read and written by parts |
//! | `source` | [`TensorSource`]: tensors by name, read piece by piece |
//! | `checkpoint` | safetensors files, single and sharded, memory-mapped |
//! | `encoding` | storage of elements: floats of 8 to 64 bits, blocks of 4 bits |
//! | `described`, `unread` | architecture in `config.json`, and keys without effect |
//! | `import`, `export` | folders to chunks and back |
//! | `recipe_keys` | keys of `config.json` for settings of recipes that errors name |
//! | `rope` | rotary settings in the forms of all versions of transformers |
//! | `windows` | sliding windows, of all layers or of some |
//! | `snapshot` | a folder as a checkpoint |
//! | `auto_bridge` | [`AutoBridge`]: all of it as one value |
//! | `stored` | tensors of a file, from rows of parameters |
//! | `staged` | files of tensors that are being written |
//! | `gguf` | GGUF files in and out |
//! | `fields` | typed reading of `config.json` |
//!
//! The tables of each family are in [`crate::families`]. No maths of a model here.

mod auto_bridge;
mod checkpoint;
mod described;
mod encoding;
pub(crate) mod error;
mod export;
pub(crate) mod family;
pub(crate) mod fields;
pub(crate) mod gguf;
mod import;
pub(crate) mod multimodal;
mod recipe_keys;
pub(crate) mod rope;
mod runs;
pub(crate) mod settings;
mod snapshot;
mod source;
mod staged;
mod stored;
mod unread;
pub(crate) mod weight_map;
pub(crate) mod windows;

#[cfg(test)]
pub(crate) mod tests;

pub use auto_bridge::AutoBridge;
pub(crate) use bridge_data::python_json as json;
pub use bridge_data::python_json::parse_table as parse_settings;
pub use checkpoint::{HfCheckpoint, HostTensor, Quantization};
pub use error::{HfError, TensorProblem};
pub use export::{ExportOptions, Exporter, StorageDtype, is_exported, to_hf};
pub use family::Family;
pub use gguf::{GgufDtype, GgufExporter, is_exported_gguf};
pub use import::{HfModel, import_hook};
pub use multimodal::{CARRIED_GROUP, Carried, CarriedTensor, LAYOUT, Layout, TextForm, module_layout, text_model_type};
pub use runs::row_blocks;
pub(crate) use snapshot::HUGGING_FACE;
pub use snapshot::{NAMED_TEMPLATES, ORIGINAL_CONFIG, is_companion, snapshot};
pub use source::TensorSource;
pub(crate) use staged::Staged;
pub use stored::ReadRows;
pub use weight_map::{ExpertLayout, Part, StoredTensor, WeightEntry, WeightMap};
