//! Safetensors files of a folder, single or sharded, memory-mapped and read tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bridge_data::outside;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::error::HfError;
use super::weight_map::{Part, StoredTensor};

/// A tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub values: Vec<f32>,
}

/// The tensors of one or more safetensors files, by name.
#[derive(Debug)]
pub struct HfCheckpoint {
    folder: PathBuf,
    files: Vec<Mmap>,
    /// Of each file.
    paths: Vec<PathBuf>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const SINGLE: &str = "model.safetensors";

impl HfCheckpoint {
    /// Maps the files of `folder`: those of `model.safetensors.index.json` if it is there, else `model.safetensors`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or a tensor is not in the file the index names.
    pub fn open(folder: &Path) -> Result<Self, HfError> {
        let index_path = folder.join(INDEX);
        if !index_path.exists() {
            return Self::open_files(folder, &[folder.join(SINGLE)]);
        }
        let text = outside::read_text(&index_path, outside::TABLE_BYTES).map_err(|source| io(&index_path, source))?;
        let index: Index =
            serde_json::from_str(&text).map_err(|source| HfError::Json { path: index_path.clone(), source })?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        let paths = names.iter().map(|name| outside::named(folder, name)).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|source| io(&index_path, source))?;
        let checkpoint = Self::open_files(folder, &paths)?;
        let place_of = |name: &str| checkpoint.tensors.get(name).map(|entry| &checkpoint.paths[entry.file]);
        let misplaced = |(name, file): &(&String, &String)| place_of(name) != Some(&folder.join(file));
        match index.weight_map.iter().find(misplaced) {
            None => Ok(checkpoint),
            Some((name, file)) => Err(HfError::NoTensor { path: folder.join(file), name: name.clone() }),
        }
    }

    /// Maps one file.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn open_file(path: &Path) -> Result<Self, HfError> {
        Self::open_files(path, &[path.to_owned()])
    }

    fn open_files(folder: &Path, paths: &[PathBuf]) -> Result<Self, HfError> {
        let mut checkpoint =
            Self { folder: folder.to_owned(), files: Vec::new(), paths: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let map = outside::map(path).map_err(|source| io(path, source))?;
            let damaged = |source| HfError::Safetensors { path: path.clone(), source };
            let (header, metadata) = SafeTensors::read_metadata(&map).map_err(damaged)?;
            let start = size_of::<u64>() + header;
            for (name, info) in metadata.tensors() {
                let (from, to) = info.data_offsets;
                let entry = Entry {
                    file: checkpoint.files.len(),
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    bytes: start + from..start + to,
                };
                if let Some(earlier) = checkpoint.tensors.insert(name.clone(), entry) {
                    let first = checkpoint.paths[earlier.file].clone();
                    return Err(HfError::Twice { path: path.clone(), name, first });
                }
            }
            checkpoint.files.push(map);
            checkpoint.paths.push(path.clone());
        }
        Ok(checkpoint)
    }

    /// The folder or file it came from.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Names and shapes of all tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    /// A tensor's values, converted to float32.
    ///
    /// # Errors
    /// If there is no such tensor, it is not of floats, or a value is NaN or infinite in float32.
    pub fn read(&self, name: &str) -> Result<HostTensor, HfError> {
        let (entry, bytes) = self.entry(name)?;
        self.floats(name, entry, bytes, entry.shape.clone())
    }

    /// The values of a tensor, or of a part of one, converted to float32.
    ///
    /// # Errors
    /// As [`HfCheckpoint::read`].
    ///
    /// # Panics
    /// If the tensor has another shape.
    pub fn read_stored(&self, stored: &StoredTensor, name: &str) -> Result<HostTensor, HfError> {
        let (entry, bytes) = self.entry(name)?;
        assert_eq!(entry.shape, stored.whole_shape(), "shape of `{name}`");
        let bytes = match stored.part {
            Some(Part { index, count }) => &bytes[bytes.len() / count * index..bytes.len() / count * (index + 1)],
            None => bytes,
        };
        self.floats(name, entry, bytes, stored.shape.clone())
    }

    fn floats(&self, name: &str, entry: &Entry, bytes: &[u8], shape: Vec<usize>) -> Result<HostTensor, HfError> {
        let values = match entry.dtype {
            Dtype::F32 => elements(bytes, f32::from_le_bytes),
            Dtype::F16 => elements(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => elements(bytes, |b| half::bf16::from_le_bytes(b).to_f32()),
            Dtype::F64 => elements(bytes, |b| f64::from_le_bytes(b) as f32),
            other => return Err(self.wrong_dtype(entry, name, "F32, F16, BF16 or F64", other)),
        };
        self.all_finite(entry, name, values.iter().copied().map(f64::from))?;
        Ok(HostTensor { shape, values })
    }

    /// A tensor's shape and integer values.
    ///
    /// # Errors
    /// If there is no such tensor, or it is not of 32- or 64-bit integers.
    pub fn read_ints(&self, name: &str) -> Result<(Vec<usize>, Vec<i64>), HfError> {
        let (entry, bytes) = self.entry(name)?;
        let values = match entry.dtype {
            Dtype::I64 => elements(bytes, i64::from_le_bytes),
            Dtype::I32 => elements(bytes, |b| i64::from(i32::from_le_bytes(b))),
            other => return Err(self.wrong_dtype(entry, name, "I64 or I32", other)),
        };
        Ok((entry.shape.clone(), values))
    }

    /// A tensor's values, converted to float64.
    ///
    /// # Errors
    /// As [`HfCheckpoint::read`].
    pub fn read_doubles(&self, name: &str) -> Result<Vec<f64>, HfError> {
        let (entry, bytes) = self.entry(name)?;
        match entry.dtype {
            Dtype::F64 => {
                let values = elements(bytes, f64::from_le_bytes);
                self.all_finite(entry, name, values.iter().copied())?;
                Ok(values)
            }
            _ => Ok(self.read(name)?.values.into_iter().map(f64::from).collect()),
        }
    }

    /// Refuses values with which no model computes anything.
    fn all_finite(&self, entry: &Entry, name: &str, values: impl Iterator<Item = f64>) -> Result<(), HfError> {
        match values.enumerate().find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((index, value)) => {
                Err(HfError::NotFinite { path: self.paths[entry.file].clone(), name: name.to_owned(), index, value })
            }
        }
    }

    fn wrong_dtype(&self, entry: &Entry, name: &str, expected: &'static str, found: Dtype) -> HfError {
        let path = self.paths[entry.file].clone();
        HfError::Dtype { path, name: name.to_owned(), expected, found: found.to_string() }
    }

    fn entry(&self, name: &str) -> Result<(&Entry, &[u8]), HfError> {
        let Some(entry) = self.tensors.get(name) else {
            return Err(HfError::NoTensor { path: self.folder.clone(), name: name.to_owned() });
        };
        Ok((entry, &self.files[entry.file][entry.bytes.clone()]))
    }
}

fn elements<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| convert(*chunk)).collect()
}

pub(super) fn io(path: &Path, source: std::io::Error) -> HfError {
    HfError::Io { path: path.to_owned(), source }
}
