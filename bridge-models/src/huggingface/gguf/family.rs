//! A family's GGUF form as data: which key of the file is which key of `config.json`, and which
//! tensor is which. The tables are in [`crate::families`].

use super::super::family::Family;

/// A family as llama.cpp has it.
pub(crate) struct GgufFamily {
    /// The family.
    pub family: &'static Family,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Keys, without the architecture before them, and the keys of `config.json`.
    pub settings: &'static [&'static [GgufSetting]],
    /// Keys of `config.json` that say whether a tensor is there, by the name of that of the first
    /// layer.
    pub switches: &'static [(&'static str, &'static str)],
    /// Sliding windows of the layers.
    pub windows: GgufWindows,
    /// Names of tensors in GGUF and in Hugging Face files; `{}` is a placeholder for the number of
    /// the layer.
    pub tensors: &'static [&'static [GgufName]],
}

impl GgufFamily {
    /// Values that most families share; names, settings and tensors are empty.
    pub const USUAL: Self = Self {
        family: &Family::USUAL,
        architecture: "",
        settings: &[],
        switches: &[],
        windows: GgufWindows::Ignored,
        tensors: &[],
    };
}

/// A key of a GGUF file, the key of `config.json`, and the type of the number.
pub(crate) type GgufSetting = (&'static str, &'static str, GgufNumber);

/// Name of a tensor in a GGUF file, its name in Hugging Face's, and how the two differ.
pub(crate) type GgufName = (&'static str, &'static str, Rearrangement);

/// Meaning of `attention.sliding_window` for a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgufWindows {
    /// llama.cpp ignores the key.
    Ignored,
    /// Files with a window are refused.
    Refused,
    /// Layers have the window that `attention.sliding_window_pattern` marks.
    Stored,
}

/// GGUF type of a number of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgufNumber {
    /// 32-bit unsigned integer.
    Count,
    /// 32-bit float.
    Float,
    /// 32-bit unsigned integer: elements of a head, of which the key of `config.json` is the share.
    OfHead,
}

/// Difference of a tensor's elements between GGUF and Hugging Face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rearrangement {
    /// The order is the same.
    None,
    /// In the order of the rows of each head: pairs that are rotated stand side by side here, and
    /// half a head apart there.
    PairedHeads,
    /// The matrix is the transpose.
    Transposed,
    /// Each element is larger by one here: weights of norms that are stored minus one there.
    PlusOne,
}

impl GgufFamily {
    /// Hugging Face's name of a tensor, and how it differs.
    pub fn hugging_face(&self, name: &str) -> Option<(String, Rearrangement)> {
        self.tensors.iter().copied().flatten().find_map(|(here, there, how)| Some((renamed(name, here, there)?, *how)))
    }

    /// The name here of one of Hugging Face's tensors, and how it differs.
    pub fn gguf(&self, name: &str) -> Option<(String, Rearrangement)> {
        self.tensors.iter().copied().flatten().find_map(|(here, there, how)| Some((renamed(name, there, here)?, *how)))
    }
}

/// A name of pattern `from` as one of pattern `to`.
fn renamed(name: &str, from: &str, to: &str) -> Option<String> {
    let Some((before, after)) = from.split_once("{}") else {
        return (name == from).then(|| to.to_owned());
    };
    let number = name.strip_prefix(before)?.strip_suffix(after)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| to.replace("{}", number))
}

/// The row of one of Hugging Face's tensors that is row `row` of a head of `size` rows here.
pub(super) fn paired_row(row: usize, size: usize) -> usize {
    let (head, within) = (row / size, row % size);
    head * size + within % 2 * (size / 2) + within / 2
}
