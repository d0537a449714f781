//! Safetensors files of a folder, single or sharded, memory-mapped and read tensor by tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::error::HfError;

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

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

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
        let text = std::fs::read_to_string(&index_path).map_err(|source| io(&index_path, source))?;
        let index: Index =
            serde_json::from_str(&text).map_err(|source| HfError::Json { path: index_path.clone(), source })?;
        let mut names: Vec<&String> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let checkpoint = Self::open_files(folder, &paths)?;
        match index.weight_map.iter().find(|(name, _)| !checkpoint.tensors.contains_key(*name)) {
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
        let mut checkpoint = Self { folder: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let file = File::open(path).map_err(|source| io(path, source))?;
            // SAFETY: the mapping is read-only and private to this value; as with every memory map, nobody may truncate
            // or rewrite the file while it is open, which is also what loading from it means.
            let map = unsafe { Mmap::map(&file) }.map_err(|source| io(path, source))?;
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
                checkpoint.tensors.insert(name, entry);
            }
            checkpoint.files.push(map);
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
    /// If there is no such tensor, or it is not of floats.
    pub fn read(&self, name: &str) -> Result<HostTensor, HfError> {
        let (entry, bytes) = self.entry(name)?;
        let values = match entry.dtype {
            Dtype::F32 => elements(bytes, f32::from_le_bytes),
            Dtype::F16 => elements(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => elements(bytes, |b| half::bf16::from_le_bytes(b).to_f32()),
            Dtype::F64 => elements(bytes, |b| f64::from_le_bytes(b) as f32),
            other => {
                return Err(HfError::Dtype { name: name.to_owned(), found: other.to_string() });
            }
        };
        Ok(HostTensor { shape: entry.shape.clone(), values })
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
            other => {
                return Err(HfError::Dtype { name: name.to_owned(), found: other.to_string() });
            }
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
            Dtype::F64 => Ok(elements(bytes, f64::from_le_bytes)),
            _ => Ok(self.read(name)?.values.into_iter().map(f64::from).collect()),
        }
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
