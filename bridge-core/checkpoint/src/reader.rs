//! Reading an opened checkpoint: small files, whole tensors and any part of them, across shards, in
//! bounded memory. Choosing and verifying checkpoints does not belong here.
//!
//! Shards are read with positioned reads, not mapped: a file truncated during reading is an error,
//! not a signal, and pages of the file do not count as memory of the process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use bytes::Bytes;

use super::error::{CheckpointError, Damage, DamagedCheckpoint, SkippedCheckpoint};
use super::metadata::{Metadata, SliceRecord, TensorRecord};
use super::names::{RUN_CONFIG_FILE, TRAIN_STATE_FILE};
use super::slices::{Run, TensorSlice};
use super::tensor::{DType, HostTensor};
use super::train_state::TrainState;
use super::verify::VerifiedFile;

/// Runs shorter than this are read through a window, so that a narrow column of a matrix does not
/// cost a system call per row.
const DIRECT_READ_BYTES: usize = 32 << 10;
/// Bytes of that window: the only memory that reading needs besides the tensor.
const WINDOW_BYTES: usize = 1 << 20;

/// The location of a slice in its shard file.
#[derive(Debug)]
pub(super) struct StoredSlice {
    /// First byte, counted from the beginning of the file.
    pub(super) start: u64,
}

/// A verified checkpoint. It stays readable even if it is deleted or replaced meanwhile.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    metadata: Metadata,
    files: BTreeMap<String, VerifiedFile>,
    /// For every tensor of the metadata, one entry per slice.
    slices: BTreeMap<String, Vec<StoredSlice>>,
}

/// Key in a train state's `extra`: the prefix of the tensors by which the run evaluated the model
/// ([`Checkpoint::replace_by`]), if these are not its weights.
pub const EVALUATED_WEIGHTS: &str = "evaluated_weights";

impl Checkpoint {
    pub(super) fn new(
        path: PathBuf,
        metadata: Metadata,
        files: BTreeMap<String, VerifiedFile>,
        slices: BTreeMap<String, Vec<StoredSlice>>,
    ) -> Self {
        Self { path, metadata, files, slices }
    }

    /// Folder of the checkpoint.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts tensors named `PREFIX.NAME` in the place of those named `NAME`; false if there are no
    /// such tensors. Master weights of the replaced ones go.
    pub fn replace_by(&mut self, prefix: &str) -> bool {
        let names = self.names().filter_map(|name| Some((name.to_owned(), name.strip_prefix(prefix)?.to_owned())));
        let names: Vec<(String, String)> = names.collect();
        for (from, to) in &names {
            let (record, slices) = (self.metadata.tensors.remove(from), self.slices.remove(from));
            let (Some(mut record), Some(slices)) = (record, slices) else { continue };
            if let Some(replaced) = self.metadata.tensors.get(to) {
                record.group.clone_from(&replaced.group);
            }
            let master = format!("optimizer.master.{to}");
            self.metadata.tensors.remove(&master);
            self.slices.remove(&master);
            self.metadata.tensors.insert(to.clone(), record);
            self.slices.insert(to.clone(), slices);
        }
        !names.is_empty()
    }

    /// The checkpoint with the weights by which its run evaluated the model, if those are averages
    /// ([`EVALUATED_WEIGHTS`]).
    ///
    /// # Errors
    /// If the train state cannot be read.
    pub fn with_evaluated_weights(mut self) -> Result<Self, CheckpointError> {
        let state = self.train_state()?;
        if let Some(prefix) = state.extra.get(EVALUATED_WEIGHTS).and_then(|prefix| prefix.as_str()) {
            self.replace_by(prefix);
        }
        Ok(self)
    }

    /// The step that was saved.
    #[must_use]
    pub fn iteration(&self) -> u64 {
        self.metadata.iteration
    }

    /// Files and tensors, with all slices of each.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The train state of the run.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a train state that this version supports.
    pub fn train_state(&self) -> Result<TrainState, CheckpointError> {
        let bytes = self.file(TRAIN_STATE_FILE)?;
        let state: TrainState =
            serde_json::from_slice(&bytes).map_err(|e| self.malformed(TRAIN_STATE_FILE, e.to_string()))?;
        match state.problem(self.iteration()) {
            None => Ok(state),
            Some(reason) => Err(self.malformed(TRAIN_STATE_FILE, reason)),
        }
    }

    /// The resolved configuration of the run, as TOML.
    ///
    /// # Errors
    /// If the file cannot be read or is not UTF-8.
    pub fn run_config(&self) -> Result<String, CheckpointError> {
        let bytes = self.file(RUN_CONFIG_FILE)?;
        String::from_utf8(bytes).map_err(|e| self.malformed(RUN_CONFIG_FILE, e.to_string()))
    }

    /// The names of all files except the metadata: shards, run config, train state, and other saved
    /// files.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The content of one file.
    ///
    /// # Errors
    /// If the checkpoint has no such file, or it cannot be read.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let Some(file) = self.files.get(name) else {
            return Err(self.damaged(Damage::FileMissing { file: name.to_owned() }));
        };
        let limit = untrusted_io::RECORDS_BYTES;
        let size = usize::try_from(file.size()).ok().filter(|_| file.size() <= limit);
        let too_large = || self.malformed(name, format!("it has {} bytes, which is more than {limit}", file.size()));
        let mut bytes = vec![0; size.ok_or_else(too_large)?];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// The small files that are saved with a run and do not describe it, such as those of the
    /// tokenizer.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn companions(&self) -> Result<BTreeMap<String, Bytes>, CheckpointError> {
        let describes =
            |name: &str| matches!(name, TRAIN_STATE_FILE | RUN_CONFIG_FILE) || name.ends_with(".safetensors");
        let names = self.file_names().filter(|name| !describes(name));
        names.map(|name| Ok((name.to_owned(), Bytes::from(self.file(name)?)))).collect()
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.metadata.tensors.keys().map(String::as_str)
    }

    /// The names of the tensors of one group, sorted.
    pub fn names_in(&self, group: &str) -> impl Iterator<Item = &str> {
        self.metadata.tensors.iter().filter(move |(_, record)| record.group == group).map(|(name, _)| name.as_str())
    }

    /// The metadata of a tensor.
    ///
    /// # Errors
    /// If there is no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<&TensorRecord, CheckpointError> {
        self.metadata.tensors.get(name).ok_or_else(|| CheckpointError::UnknownTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: nearest(name, self.names()),
        })
    }

    /// Checks type and shape of a tensor before any of it is read.
    ///
    /// # Errors
    /// If there is no tensor of that name, or it has another type or shape.
    pub fn expect(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<&TensorRecord, CheckpointError> {
        let record = self.tensor(name)?;
        if record.dtype == dtype && record.shape == shape {
            return Ok(record);
        }
        let fitting = self.metadata.tensors.iter().filter(|(_, r)| r.dtype == dtype && r.shape == shape);
        Err(CheckpointError::TensorMismatch {
            path: self.path.clone(),
            name: name.to_owned(),
            expected_dtype: dtype,
            expected_shape: shape.to_vec(),
            found_dtype: record.dtype,
            found_shape: record.shape.clone(),
            nearest: nearest(name, fitting.map(|(other, _)| other.as_str())),
        })
    }

    /// Reads a whole tensor.
    ///
    /// # Errors
    /// If there is no tensor of that name, or a file cannot be read.
    pub fn load_tensor(&self, name: &str) -> Result<HostTensor, CheckpointError> {
        self.load_slice(name, &TensorSlice::whole(&self.tensor(name)?.shape))
    }

    /// Reads some rows of a tensor of floats as float32.
    ///
    /// # Errors
    /// As [`load_slice`](Self::load_slice); elements that are not floats, or are NaN or infinite.
    pub fn load_float_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.load_slice(name, &TensorSlice::rows(&self.tensor(name)?.shape, rows))?;
        CheckpointError::unless_finite(&self.path, name, &tensor)?;
        match tensor.dtype() {
            DType::F16 => Ok(tensor.to_vec::<half::f16>()?.into_iter().map(half::f16::to_f32).collect()),
            DType::BF16 => Ok(tensor.to_vec::<half::bf16>()?.into_iter().map(half::bf16::to_f32).collect()),
            DType::F64 => Ok(tensor.to_vec::<f64>()?.into_iter().map(|value| value as f32).collect()),
            DType::F32 | DType::I64 | DType::I32 | DType::U32 | DType::U8 | DType::Bool => tensor.to_vec::<f32>(),
        }
    }

    /// Reads a slice of a tensor.
    ///
    /// # Errors
    /// If there is no tensor of that name, `slice` reaches outside it, or a file cannot be read.
    pub fn load_slice(&self, name: &str, slice: &TensorSlice) -> Result<HostTensor, CheckpointError> {
        let record = self.tensor(name)?;
        let len = checked_byte_len(name, record, slice)?;
        let mut bytes = vec![0; len];
        self.read_slice_into(name, slice, &mut bytes)?;
        HostTensor::new(record.dtype, slice.extent.clone(), bytes)
    }

    /// As [`load_slice`](Self::load_slice), into the caller's memory: little-endian, row-major.
    /// Needs one more megabyte, whatever the size of the tensor and the slice.
    ///
    /// # Errors
    /// As [`load_slice`](Self::load_slice), and if the length of `target` is not that of the slice.
    pub fn read_slice_into(&self, name: &str, slice: &TensorSlice, target: &mut [u8]) -> Result<(), CheckpointError> {
        let record = self.tensor(name)?;
        let expected = checked_byte_len(name, record, slice)?;
        if target.len() != expected {
            let reason = format!("it takes {expected} bytes, the buffer has {}", target.len());
            return Err(invalid_slice(name, record, slice, reason));
        }
        let size = record.dtype.size();
        for (part, stored) in record.slices.iter().zip(&self.slices[name]) {
            let mut source = self.source(part, stored, record.dtype);
            for Run { source: from, target: to, len } in part.slice.common_runs(slice) {
                source.read(from * size, &mut target[to * size..][..len * size])?;
            }
        }
        Ok(())
    }

    fn source(&self, part: &SliceRecord, stored: &StoredSlice, dtype: DType) -> SliceSource<'_> {
        // Both were checked when the checkpoint was opened: the file is listed, and the slice fits
        // in memory.
        let len = dtype.byte_len(&part.slice.extent).unwrap_or(0);
        SliceSource { file: &self.files[&part.file], start: stored.start, len, window: Vec::new(), window_start: 0 }
    }

    fn malformed(&self, file: &str, reason: String) -> CheckpointError {
        self.damaged(Damage::Malformed { file: file.to_owned(), reason })
    }

    fn damaged(&self, damage: Damage) -> CheckpointError {
        let iteration = Some(self.iteration());
        let checkpoint = SkippedCheckpoint { path: self.path.clone(), iteration, damage: vec![damage] };
        CheckpointError::Damaged(Box::new(DamagedCheckpoint { checkpoint, intact: None }))
    }
}

fn invalid_slice(name: &str, record: &TensorRecord, slice: &TensorSlice, reason: String) -> CheckpointError {
    CheckpointError::InvalidSlice { name: name.to_owned(), shape: record.shape.clone(), slice: slice.clone(), reason }
}

/// Bytes of `slice`, after checking that it lies inside the tensor.
fn checked_byte_len(name: &str, record: &TensorRecord, slice: &TensorSlice) -> Result<usize, CheckpointError> {
    let invalid = |reason: String| invalid_slice(name, record, slice, reason);
    if slice.offset.len() != record.shape.len() {
        return Err(invalid(format!("expected {} dimensions, found {}", record.shape.len(), slice.offset.len())));
    }
    if !slice.is_inside(&record.shape) {
        return Err(invalid("it reaches outside the tensor".to_owned()));
    }
    let too_large = || invalid("it has more bytes than can be addressed".to_owned());
    record.dtype.byte_len(&slice.extent).ok_or_else(too_large)
}

/// The most similar of `names`, unless it is `name` itself.
fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    let scored = names.filter(|other| *other != name).map(|other| (strsim::jaro_winkler(name, other), other));
    scored.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, other)| other.to_owned())
}

/// Reads one stored slice, front to back.
struct SliceSource<'f> {
    file: &'f VerifiedFile,
    /// First byte of the slice in the file.
    start: u64,
    /// Bytes of the slice.
    len: usize,
    window: Vec<u8>,
    /// First byte of the window in the slice.
    window_start: usize,
}

impl SliceSource<'_> {
    /// Fills `target` from byte `at` of the slice on.
    fn read(&mut self, at: usize, target: &mut [u8]) -> Result<(), CheckpointError> {
        if target.len() >= DIRECT_READ_BYTES || target.len() == self.len {
            return self.file.read_exact_at(target, self.start + at as u64);
        }
        let window_end = self.window_start + self.window.len();
        if at < self.window_start || at + target.len() > window_end {
            self.window.resize(WINDOW_BYTES.min(self.len - at), 0);
            self.window_start = at;
            self.file.read_exact_at(&mut self.window, self.start + at as u64)?;
        }
        let position = at - self.window_start;
        target.copy_from_slice(&self.window[position..position + target.len()]);
        Ok(())
    }
}
