//! Import and export of GGUF files, llama.cpp's format of a model with its tokenizer.
//!
//! | file | content |
//! | --- | --- |
//! | `file` | the tables of a file, checked against its size |
//! | `blocks` | storage of elements: floats, and blocks of integers with scales |
//! | `family` | a family as data: keys and names of tensors |
//! | `model` | a file as if it were a Hugging Face folder |
//! | `tokenizer` | byte-level tokenizers from and to the files of a folder |
//! | `export` | parameters to a file |
//!
//! The reader is our own, because untrusted input is checked here, size by size. A crate that reads
//! the tables would not read the blocks, names and tokenizer.

mod blocks;
mod export;
mod family;
mod file;
mod model;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use export::{GgufDtype, GgufExporter, is_exported_gguf};
pub(crate) use family::{GgufFamily, GgufName, GgufNumber, GgufSetting, GgufWindows, Rearrangement};
pub(super) use model::GgufModel;
