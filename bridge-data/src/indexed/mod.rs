//! Megatron's indexed dataset, `{prefix}.bin` + `{prefix}.idx`, byte for byte: its header, token
//! types and paths. Reading is in `reader`, writing in `writer`; splits and samples do not belong
//! here.
//!
//! `{prefix}.idx`, little endian:
//!
//! | offset | type | content |
//! |---|---|---|
//! | 0 | 9 bytes | `MMIDIDX\0\0` |
//! | 9 | u64 | version, 1 |
//! | 17 | u8 | token type code |
//! | 18 | u64 | number of sequences `S` |
//! | 26 | u64 | number of document boundaries `D` |
//! | 34 | i32\[S\] | tokens of each sequence |
//! | 34 + 4 S | i64\[S\] | byte offset of each sequence in `.bin` |
//! | 34 + 12 S | i64\[D\] | document boundaries as sequence numbers, from 0 to `S` |
//! | 34 + 12 S + 8 D | i8\[S\] | sequence modes, in multimodal files only |

mod checks;
mod reader;
mod writer;

use std::path::{Path, PathBuf};

pub use reader::{BinAccess, IndexedDataset, ModeColumn};
pub use writer::{IndexedDatasetBuilder, SequenceTokens};

pub(crate) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
pub(crate) const VERSION: u64 = 1;
pub(crate) const HEADER_BYTES: usize = 34;

/// The type of a token in `.bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenDtype {
    /// Code 1.
    U8,
    /// Code 2.
    I8,
    /// Code 3.
    I16,
    /// Code 4.
    I32,
    /// Code 5.
    I64,
    /// Code 6.
    F64,
    /// Code 7.
    F32,
    /// Code 8.
    U16,
}

impl TokenDtype {
    /// Every type, in the order of the codes.
    pub const ALL: [Self; 8] = [Self::U8, Self::I8, Self::I16, Self::I32, Self::I64, Self::F64, Self::F32, Self::U16];

    /// The code stored in `.idx`.
    pub fn code(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::I8 => 2,
            Self::I16 => 3,
            Self::I32 => 4,
            Self::I64 => 5,
            Self::F64 => 6,
            Self::F32 => 7,
            Self::U16 => 8,
        }
    }

    /// The type with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Bytes of one token.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// numpy's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::U16 => "uint16",
        }
    }

    /// The type in which Megatron writes token ids: uint16 below 65500 ids, otherwise int32.
    pub fn for_vocab_size(vocab_size: usize) -> Self {
        if vocab_size < 65_500 { Self::U16 } else { Self::I32 }
    }
}

/// `{prefix}.bin`.
pub fn bin_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".bin")
}

/// `{prefix}.idx`.
pub fn idx_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".idx")
}

/// Appends to the file name; `Path::with_extension` would replace the part after a dot in the
/// prefix.
pub(crate) fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests;
