//! Safetensors files of a folder, single or sharded, memory-mapped and read tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bridge_data::untrusted_io;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::encoding;
use super::error::{HfError, TensorProblem};
use super::multimodal::checkpoint_dtype;
use super::source::TensorSource;

/// A tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub values: Vec<f32>,
}

/// The tensors of one or more safetensors files, by name.
#[derive(Debug)]
pub struct HfCheckpoint {
    folder: PathBuf,
    files: Vec<Mmap>,
    /// Path of each file.
    paths: Vec<PathBuf>,
    resident: Resident,
    tensors: BTreeMap<String, Entry>,
}

/// Resident pages of mapped files: pages that were read are released from time to time, or a model
/// of any size would be in memory after all of its tensors have passed. The system still has them
/// in its cache.
#[derive(Debug, Default)]
pub(super) struct Resident {
    bytes: AtomicUsize,
}

impl Resident {
    /// Bytes that are read before resident pages are returned to the system.
    const MOST: usize = 16 << 20;

    /// Records that `bytes` bytes of the files are about to be read.
    pub fn read(&self, bytes: usize, files: &[Mmap]) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) >= Self::MOST {
            self.bytes.store(bytes, Ordering::Relaxed);
            files.iter().for_each(untrusted_io::hand_back);
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
    encoding: Encoding,
}

/// Encoding of the elements of a tensor.
#[derive(Clone, Debug)]
enum Encoding {
    /// Elements are stored unencoded.
    Plain,
    /// Elements times the scale of their block of rows and columns.
    Scaled { scales: Box<Entry>, block: [usize; 2] },
    /// Pairs of 4-bit floats in rows of blocks, which have a scale each; the tensor is the
    /// transpose of the stored matrices.
    Mxfp4 { scales: Box<Entry> },
}

/// Quantization of a folder's weights, from `quantization_config` of its `config.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// Weights are not quantized.
    #[default]
    None,
    /// Floats of 8 bits, with a tensor `NAME_scale_inv` beside each: a factor for each block of
    /// rows and columns (as DeepSeek-V3 has them).
    Fp8 {
        /// Rows and columns of a block.
        block: [usize; 2],
    },
    /// Blocks of 32 floats of 4 bits in `NAME_blocks`, a scale each in `NAME_scales`; `NAME` is
    /// made of both (as GPT-OSS has them).
    Mxfp4,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Most bytes of a tensor's name: messages have it.
const MOST_NAME_BYTES: usize = 1024;
pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const SINGLE: &str = "model.safetensors";
/// Files of weights that are not read, by prefix and suffix of their names, with advice.
const NOT_READ: [(&str, &str, &str); 7] = [
    ("adapter_model", "", "it is an adapter: name its base, and this folder by --adapter"),
    (
        "consolidated",
        "",
        "it has the names of another program: convert the folder to transformers' form, or fetch the files model*.safetensors of the model",
    ),
    ("pytorch_model", "", RESAVE),
    (
        "",
        ".safetensors.index.json",
        "call it model.safetensors.index.json, or name it by transformers_weights in config.json",
    ),
    ("", ".safetensors", "call it model.safetensors, or give shards their model.safetensors.index.json"),
    ("", ".bin", RESAVE),
    ("", ".pth", RESAVE),
];
const RESAVE: &str =
    "such a file is a program, which is not run: write the folder anew by transformers, model.save_pretrained(FOLDER)";
/// Types of tensors beside those of a language model.
const CARRIED_TYPES: &str = "F64, F32, BF16, F16, I64, I32, U32, U8 or BOOL, not quantized, beside the language model";
/// PyTorch's own files of weights, whole and in shards.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

impl HfCheckpoint {
    /// Maps the files of `folder` by transformers' rule: `model.safetensors`, or else the files
    /// that `model.safetensors.index.json` names, each as a whole: the index's list of tensors is
    /// ignored.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, HfError> {
        Self::open_named(folder, None)
    }

    /// [`Self::open`], but of the file or index `name`, where `config.json` names one. Fails if a
    /// file is missing or damaged.
    pub(super) fn open_named(folder: &Path, name: Option<&str>) -> Result<Self, HfError> {
        let path = match name {
            Some(name) => {
                untrusted_io::named(folder, name).map_err(|source| io(&folder.join("config.json"), source))?
            }
            None => [SINGLE, INDEX]
                .map(|name| folder.join(name))
                .into_iter()
                .find(|path| path.exists())
                .map_or_else(|| not_read(folder).map_or(Ok(folder.join(SINGLE)), Err), Ok)?,
        };
        if path.extension().is_none_or(|extension| extension != "json") {
            return Self::open_files(folder, &[path]);
        }
        let text = untrusted_io::read_text(&path, untrusted_io::TABLE_BYTES).map_err(|source| io(&path, source))?;
        let index: Index =
            serde_json::from_str(&text).map_err(|source| HfError::Json { path: path.clone(), source })?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        let paths = names.iter().map(|name| untrusted_io::named(folder, name)).collect::<Result<Vec<_>, _>>();
        Self::open_files(folder, &paths.map_err(|source| io(&path, source))?)
    }

    /// Maps one file.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn open_file(path: &Path) -> Result<Self, HfError> {
        Self::open_files(path, &[path.to_owned()])
    }

    fn open_files(folder: &Path, paths: &[PathBuf]) -> Result<Self, HfError> {
        let mut checkpoint = Self {
            folder: folder.to_owned(),
            files: Vec::new(),
            paths: Vec::new(),
            resident: Resident::default(),
            tensors: BTreeMap::new(),
        };
        for path in paths {
            let map = untrusted_io::map(path).map_err(|source| io(path, source))?;
            let damaged = |source| HfError::Safetensors { path: path.clone(), source };
            let (header, metadata) = SafeTensors::read_metadata(&map).map_err(damaged)?;
            let start = size_of::<u64>() + header;
            for (name, info) in metadata.tensors() {
                if name.len() > MOST_NAME_BYTES {
                    let (expected, found) = ("a name of at most 1024 bytes", format!("one of {}", name.len()));
                    let name = name.chars().take(40).chain("...".chars()).collect();
                    return Err(HfError::Storage { path: path.clone(), name, expected, found });
                }
                let (from, to) = info.data_offsets;
                let entry = Entry {
                    file: checkpoint.files.len(),
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    bytes: start + from..start + to,
                    encoding: Encoding::Plain,
                };
                if let Some(earlier) = checkpoint.tensors.get(&name) {
                    // The values that are there twice are read once.
                    let is_same = (earlier.dtype, &earlier.shape) == (entry.dtype, &entry.shape)
                        && checkpoint.files[earlier.file][earlier.bytes.clone()] == map[entry.bytes.clone()];
                    if !is_same {
                        let first = checkpoint.paths[earlier.file].clone();
                        return Err(HfError::Twice { path: path.clone(), name, first });
                    }
                    continue;
                }
                checkpoint.tensors.insert(name, entry);
            }
            checkpoint.files.push(map);
            checkpoint.paths.push(path.clone());
        }
        Ok(checkpoint)
    }

    /// The same tensors, dequantized: scales and other parts of a quantized tensor are no longer
    /// tensors of their own.
    ///
    /// # Errors
    /// If a quantized tensor lacks its scales, or they have another shape or dtype.
    pub fn dequantized(mut self, quantization: Quantization) -> Result<Self, HfError> {
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in names {
            match (quantization, name.strip_suffix("_blocks")) {
                (Quantization::Fp8 { block }, _)
                    if self.tensors.get(&name).is_some_and(|e| encoding::is_f8(e.dtype)) =>
                {
                    self.scale_by_block(&name, block)?;
                }
                (Quantization::Mxfp4, Some(whole)) => self.join_blocks(whole)?,
                (Quantization::None | Quantization::Fp8 { .. } | Quantization::Mxfp4, _) => {}
            }
        }
        Ok(self)
    }

    fn scale_by_block(&mut self, name: &str, block: [usize; 2]) -> Result<(), HfError> {
        let shape = self.tensors[name].shape.clone();
        let [outer @ .., rows, columns] = shape.as_slice() else {
            return Err(self.misshapen(name, &shape, "a matrix, because it is quantized by blocks"));
        };
        let companion = format!("{name}_scale_inv");
        let grid = [outer, &[rows.div_ceil(block[0]), columns.div_ceil(block[1])]].concat();
        // A scale for the whole of a matrix may have any number of dimensions of one.
        let stored = self.tensors.get(&companion).map(|entry| entry.shape.clone());
        let beside_ones = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
        let (grid, block) = match stored {
            Some(stored) if stored != grid && beside_ones(&stored) == beside_ones(outer) => {
                (stored, [(*rows).max(1), (*columns).max(1)])
            }
            Some(_) | None => (grid, block),
        };
        // Scales of activations do not affect the weights.
        if let Some(module) = name.strip_suffix("weight") {
            self.tensors.remove(&format!("{module}activation_scale"));
        }
        let scales = self.take(&companion, &grid)?;
        if encoding::float_size(scales.dtype).is_none() {
            return Err(self.wrong_dtype(&scales, &companion, encoding::FLOATS, scales.dtype));
        }
        let entry = self.tensors.get_mut(name).expect("it is one of the names");
        entry.encoding = Encoding::Scaled { scales: Box::new(scales), block };
        Ok(())
    }

    fn join_blocks(&mut self, whole: &str) -> Result<(), HfError> {
        let name = format!("{whole}_blocks");
        let mut blocks = self.tensors[&name].clone();
        let [outer @ .., rows, count, bytes] = blocks.shape.as_slice() else {
            return Err(self.misshapen(&name, &blocks.shape, "at least three dimensions: rows, blocks, bytes"));
        };
        if *bytes != encoding::MXFP4_BLOCK / 2 {
            return Err(self.misshapen(&name, &blocks.shape, "16 bytes in each block"));
        }
        let (shape, grid) =
            ([outer, &[count * encoding::MXFP4_BLOCK, *rows]].concat(), [outer, &[*rows, *count]].concat());
        let companion = format!("{whole}_scales");
        let scales = self.take(&companion, &grid)?;
        for (name, entry) in [(&name, &blocks), (&companion, &scales)] {
            if entry.dtype != Dtype::U8 {
                return Err(self.wrong_dtype(entry, name, "U8", entry.dtype));
            }
        }
        blocks.shape = shape;
        blocks.encoding = Encoding::Mxfp4 { scales: Box::new(scales) };
        self.tensors.remove(&name);
        match self.tensors.insert(whole.to_owned(), blocks) {
            None => Ok(()),
            Some(twin) => {
                let path = self.paths[twin.file].clone();
                Err(HfError::Twice { path: path.clone(), name: whole.to_owned(), first: path })
            }
        }
    }

    /// Removes a tensor that belongs to another.
    fn take(&mut self, name: &str, expected: &[usize]) -> Result<Entry, HfError> {
        let path = self.folder.clone();
        let problem = match self.tensors.remove(name) {
            Some(entry) if entry.shape == expected => return Ok(entry),
            Some(entry) => {
                TensorProblem::Shape { name: name.to_owned(), expected: expected.to_vec(), found: entry.shape }
            }
            None => TensorProblem::Missing { name: name.to_owned(), expected: expected.to_vec() },
        };
        Err(HfError::Tensors { path, problems: vec![problem] })
    }

    fn misshapen(&self, name: &str, shape: &[usize], expected: &'static str) -> HfError {
        let found = format!("shape {shape:?}");
        HfError::Storage { path: self.folder.clone(), name: name.to_owned(), expected, found }
    }

    /// A tensor's values, converted to float32.
    ///
    /// # Errors
    /// As [`TensorSource::read_into`].
    pub fn read(&self, name: &str) -> Result<HostTensor, HfError> {
        let shape = self.entry(name)?.0.shape.clone();
        let mut values = vec![0.0; shape.iter().product()];
        self.read_into(name, 0, &mut values)?;
        Ok(HostTensor { shape, values })
    }

    /// Type and bytes of a tensor that is carried along unread. Fails if there is no such tensor,
    /// it is quantized, or checkpoints do not have its type.
    pub(super) fn raw(&self, name: &str) -> Result<(Dtype, &[u8]), HfError> {
        let (entry, bytes) = self.entry(name)?;
        let is_plain = matches!(entry.encoding, Encoding::Plain) && checkpoint_dtype(entry.dtype).is_some();
        if is_plain { Ok((entry.dtype, bytes)) } else { Err(self.wrong_dtype(entry, name, CARRIED_TYPES, entry.dtype)) }
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
                self.all_finite(entry, name, 0, values.iter().copied())?;
                Ok(values)
            }
            _ => Ok(self.read(name)?.values.into_iter().map(f64::from).collect()),
        }
    }

    /// Refuses values with which no model computes anything; the first of them is number `start`.
    fn all_finite(
        &self,
        entry: &Entry,
        name: &str,
        start: usize,
        values: impl Iterator<Item = f64>,
    ) -> Result<(), HfError> {
        match (start..).zip(values).find(|(_, value)| !value.is_finite()) {
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

impl TensorSource for HfCheckpoint {
    fn path(&self) -> &Path {
        &self.folder
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = (&str, &[usize])> + '_> {
        Box::new(self.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice())))
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    fn storage(&self, name: &str) -> Option<String> {
        self.tensors.get(name).map(|entry| match entry.encoding {
            Encoding::Plain => entry.dtype.to_string(),
            Encoding::Scaled { block: [rows, columns], .. } => {
                format!("{} in blocks of {rows} x {columns}", entry.dtype)
            }
            Encoding::Mxfp4 { .. } => "MXFP4".to_owned(),
        })
    }

    fn read_into(&self, name: &str, start: usize, target: &mut [f32]) -> Result<(), HfError> {
        let (entry, bytes) = self.entry(name)?;
        self.resident.read(size_of_val(target), &self.files);
        match &entry.encoding {
            Encoding::Mxfp4 { scales } => {
                let scales = &self.files[scales.file][scales.bytes.clone()];
                let [.., columns, rows] = entry.shape[..] else { unreachable!("`join_blocks` made a matrix of it") };
                for (index, value) in (start..).zip(target.iter_mut()) {
                    let (matrix, place) = (index / (rows * columns), index % (rows * columns));
                    let stored = (matrix * rows + place % rows) * columns + place / rows;
                    *value = encoding::mxfp4(bytes, scales, stored);
                }
            }
            Encoding::Plain | Encoding::Scaled { .. } => {
                let Some(size) = encoding::float_size(entry.dtype) else {
                    return Err(self.wrong_dtype(entry, name, encoding::FLOATS, entry.dtype));
                };
                encoding::decode(entry.dtype, &bytes[start * size..(start + target.len()) * size], target);
            }
        }
        if let Encoding::Scaled { scales, block } = &entry.encoding {
            self.multiply(&entry.shape, scales, *block, start, target);
        }
        self.all_finite(entry, name, start, target.iter().copied().map(f64::from))
    }
}

impl HfCheckpoint {
    /// Multiplies the elements of a tensor from number `start` on by the scales of their blocks.
    fn multiply(&self, shape: &[usize], scales: &Entry, block: [usize; 2], start: usize, values: &mut [f32]) {
        if values.is_empty() {
            return;
        }
        let [.., rows, columns] = *shape else { unreachable!("`scale_by_block` looked") };
        let (grid_rows, grid) = (rows.div_ceil(block[0]), columns.div_ceil(block[1]));
        // If a tensor has many matrices, only the scales of those that are read are loaded.
        let matrices = start / (rows * columns)..(start + values.len()).div_ceil(rows * columns);
        let size = grid_rows * grid * encoding::float_size(scales.dtype).expect("`scale_by_block` looked");
        let bytes = &self.files[scales.file][scales.bytes.clone()][matrices.start * size..matrices.end * size];
        let mut factors = vec![0.0; matrices.len() * grid_rows * grid];
        encoding::decode(scales.dtype, bytes, &mut factors);
        for (index, value) in (start..).zip(values.iter_mut()) {
            let (row, column) = (index / columns, index % columns);
            let grid_row = (row / rows - matrices.start) * grid_rows + row % rows / block[0];
            *value *= factors[grid_row * grid + column / block[1]];
        }
    }
}

fn elements<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| convert(*chunk)).collect()
}

/// The error about weights of `folder` that are in other files than those that are read, if there
/// are any.
fn not_read(folder: &Path) -> Option<HfError> {
    if PICKLED.iter().any(|name| folder.join(name).exists()) {
        return Some(HfError::Pickled { path: folder.to_owned() });
    }
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let of = |(begin, end, remedy): &(&str, &str, &'static str)| {
        let is_of_weights = |name: &&String| {
            let ends = [".safetensors", ".safetensors.index.json", ".bin", ".pth", ".pt"];
            name.starts_with(begin) && name.ends_with(end) && ends.iter().any(|end| name.ends_with(end))
        };
        names.iter().find(is_of_weights).map(|name| (name.clone(), *remedy))
    };
    let (found, remedy) = NOT_READ.iter().find_map(of)?;
    Some(HfError::OtherWeights { path: folder.to_owned(), expected: SINGLE, found, remedy })
}

pub(super) fn io(path: &Path, source: std::io::Error) -> HfError {
    HfError::Io { path: path.to_owned(), source }
}
