//! Writing an indexed dataset. The format is described in the parent module; reading is in
//! `reader`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::reader::{BinAccess, IndexedDataset, ModeColumn};
use super::{MAGIC, TokenDtype, VERSION, bin_path, idx_path};
use crate::atomic::TempFile;
use crate::{DataError, manifest};

/// The values of one sequence for the builder.
#[derive(Debug, Clone, Copy)]
pub enum SequenceTokens<'a> {
    /// Integers, stored in any type that holds them exactly.
    Integers(&'a [i64]),
    /// Floats, for the float types only.
    Floats(&'a [f64]),
}

/// Builds `{prefix}.bin` and `{prefix}.idx`. The files get these names in
/// [`IndexedDatasetBuilder::finalize`]; a builder that is dropped instead removes its files.
///
/// ```ignore
/// let mut builder = IndexedDatasetBuilder::create("corpus", TokenDtype::U16)?;
/// builder.add_document(&[1, 2, 3, 0], &[4])?;
/// builder.finalize()?;
/// ```
pub struct IndexedDatasetBuilder {
    prefix: PathBuf,
    dtype: TokenDtype,
    modes: Option<Vec<i8>>,
    lengths: Vec<i32>,
    boundaries: Vec<i64>,
    bin: BufWriter<TempFile>,
    buffer: Vec<u8>,
}

impl IndexedDatasetBuilder {
    /// Starts a text dataset.
    ///
    /// # Errors
    /// If the folder of `prefix` cannot be created or written.
    pub fn create(prefix: impl AsRef<Path>, dtype: TokenDtype) -> Result<Self, DataError> {
        Self::create_with_modes(prefix, dtype, ModeColumn::Absent)
    }

    /// Starts a dataset, with or without a mode column.
    ///
    /// # Errors
    /// As [`IndexedDatasetBuilder::create`].
    pub fn create_with_modes(
        prefix: impl AsRef<Path>,
        dtype: TokenDtype,
        modes: ModeColumn,
    ) -> Result<Self, DataError> {
        let prefix = prefix.as_ref().to_owned();
        let bin = TempFile::beside(&bin_path(&prefix))?;
        Ok(Self {
            prefix,
            dtype,
            modes: (modes == ModeColumn::Present).then(Vec::new),
            lengths: Vec::new(),
            boundaries: vec![0],
            bin: BufWriter::with_capacity(1 << 20, bin),
            buffer: Vec::new(),
        })
    }

    /// Sequences added so far.
    pub fn num_sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Appends one sequence with mode 0. The document stays open until
    /// [`IndexedDatasetBuilder::end_document`].
    ///
    /// # Errors
    /// If the type cannot hold a token, a sequence has 2^31 tokens or more, or a write fails.
    pub fn add_item(&mut self, tokens: &[i64]) -> Result<(), DataError> {
        self.add_sequence(SequenceTokens::Integers(tokens), 0)
    }

    /// Appends one sequence of either kind with its mode (which only a multimodal dataset stores).
    ///
    /// # Errors
    /// As [`IndexedDatasetBuilder::add_item`]; also a mode other than 0 in a text dataset.
    pub fn add_sequence(&mut self, tokens: SequenceTokens<'_>, mode: i8) -> Result<(), DataError> {
        self.buffer.clear();
        let count = match tokens {
            SequenceTokens::Integers(values) => {
                self.encode(values, |dtype, &value, out| push_integer(dtype, value, out))?;
                values.len()
            }
            SequenceTokens::Floats(values) => {
                self.encode(values, |dtype, &value, out| push_float(dtype, value, out))?;
                values.len()
            }
        };
        let length = i32::try_from(count).map_err(|_| {
            DataError::Parameter(format!(
                "{}: a sequence of {count} tokens is too long, the format holds at most {}",
                self.prefix.display(),
                i32::MAX
            ))
        })?;
        match &mut self.modes {
            Some(modes) => modes.push(mode),
            None if mode != 0 => {
                return Err(DataError::Parameter(format!(
                    "{}: sequence mode {mode} needs a multimodal dataset",
                    self.prefix.display()
                )));
            }
            None => {}
        }
        self.bin.write_all(&self.buffer).map_err(DataError::io("write tokens to", &bin_path(&self.prefix)))?;
        self.lengths.push(length);
        Ok(())
    }

    /// Appends the sequences of one document, concatenated in `tokens`, and closes the document.
    ///
    /// # Errors
    /// If the lengths do not sum to the number of tokens; otherwise as
    /// [`IndexedDatasetBuilder::add_item`].
    pub fn add_document(&mut self, tokens: &[i64], lengths: &[usize]) -> Result<(), DataError> {
        let total = lengths.iter().try_fold(0usize, |total, &length| total.checked_add(length));
        if total != Some(tokens.len()) {
            return Err(DataError::Parameter(format!(
                "{}: the sequence lengths of a document must add up to its {} tokens, found {lengths:?}",
                self.prefix.display(),
                tokens.len()
            )));
        }
        let mut rest = tokens;
        for &length in lengths {
            let (sequence, tail) = rest.split_at(length);
            self.add_item(sequence)?;
            rest = tail;
        }
        self.end_document();
        Ok(())
    }

    /// Closes the current document.
    pub fn end_document(&mut self) {
        self.boundaries.push(self.lengths.len() as i64);
    }

    /// Appends a whole other dataset of the same token type.
    ///
    /// # Errors
    /// The other dataset cannot be opened or has another token type; a failing write.
    pub fn add_index(&mut self, prefix: impl AsRef<Path>) -> Result<(), DataError> {
        let column = if self.modes.is_some() { ModeColumn::Present } else { ModeColumn::Absent };
        let other = IndexedDataset::open_with_modes(&prefix, BinAccess::Pread, column)?;
        if other.dtype() != self.dtype {
            return Err(DataError::malformed(
                &idx_path(other.prefix()),
                format!("cannot append {} tokens to a dataset of {} tokens", other.dtype().name(), self.dtype.name()),
            ));
        }
        let shift = self.lengths.len() as i64;
        for i in 0..other.len() {
            let raw = other.raw(i)?;
            self.bin.write_all(&raw).map_err(DataError::io("write tokens to", &bin_path(&self.prefix)))?;
        }
        // Lengths were checked to be non-negative i32 when the other dataset was opened.
        self.lengths.extend(other.lengths().map(|length| length as i32));
        self.boundaries.extend(other.boundaries().skip(1).map(|boundary| boundary + shift));
        if let Some(modes) = &mut self.modes {
            modes.extend((0..other.len()).map(|i| other.mode(i)));
        }
        Ok(())
    }

    /// Writes the index, syncs both files and gives them their names, `.idx` last.
    ///
    /// # Errors
    /// A document left open, a failing write or rename.
    pub fn finalize(self) -> Result<(), DataError> {
        if self.boundaries.last() != Some(&(self.lengths.len() as i64)) {
            return Err(DataError::Parameter(format!(
                "{}: the last document was not closed (end_document)",
                self.prefix.display()
            )));
        }
        let index_path = idx_path(&self.prefix);
        let data_path = bin_path(&self.prefix);
        let mut index = BufWriter::with_capacity(1 << 20, TempFile::beside(&index_path)?);
        self.write_index(&mut index).map_err(DataError::io("write the index", &index_path))?;
        let index =
            index.into_inner().map_err(|error| DataError::io("write the index", &index_path)(error.into_error()))?;
        let bin =
            self.bin.into_inner().map_err(|error| DataError::io("write tokens to", &data_path)(error.into_error()))?;
        // The record of earlier files of this name is not valid for the new ones.
        if manifest::is_recorded(&self.prefix) {
            manifest::own(&self.prefix)?;
        }
        // An old index must not be seen beside new tokens, not even for a moment.
        match std::fs::remove_file(&index_path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(DataError::io("replace the old index", &index_path)(error));
            }
            _ => {}
        }
        bin.publish()?;
        index.publish()
    }

    fn write_index(&self, out: &mut impl Write) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&[self.dtype.code()])?;
        out.write_all(&(self.lengths.len() as u64).to_le_bytes())?;
        out.write_all(&(self.boundaries.len() as u64).to_le_bytes())?;
        for length in &self.lengths {
            out.write_all(&length.to_le_bytes())?;
        }
        let mut offset = 0i64;
        for &length in &self.lengths {
            out.write_all(&offset.to_le_bytes())?;
            offset += i64::from(length) * self.dtype.size() as i64;
        }
        for boundary in &self.boundaries {
            out.write_all(&boundary.to_le_bytes())?;
        }
        for &mode in self.modes.iter().flatten() {
            out.write_all(&mode.to_le_bytes())?;
        }
        Ok(())
    }

    fn encode<T: std::fmt::Display>(
        &mut self,
        values: &[T],
        push: impl Fn(TokenDtype, &T, &mut Vec<u8>) -> Option<()>,
    ) -> Result<(), DataError> {
        let dtype = self.dtype;
        self.buffer.reserve(values.len() * dtype.size());
        for value in values {
            push(dtype, value, &mut self.buffer).ok_or_else(|| DataError::TokenOutOfRange {
                path: self.prefix.clone(),
                value: value.to_string(),
                dtype: dtype.name(),
            })?;
        }
        Ok(())
    }
}

/// Appends an integer in the stored type, or nothing if the type cannot hold it exactly.
fn push_integer(dtype: TokenDtype, value: i64, out: &mut Vec<u8>) -> Option<()> {
    match dtype {
        TokenDtype::U8 => out.extend(u8::try_from(value).ok()?.to_le_bytes()),
        TokenDtype::I8 => out.extend(i8::try_from(value).ok()?.to_le_bytes()),
        TokenDtype::I16 => out.extend(i16::try_from(value).ok()?.to_le_bytes()),
        TokenDtype::U16 => out.extend(u16::try_from(value).ok()?.to_le_bytes()),
        TokenDtype::I32 => out.extend(i32::try_from(value).ok()?.to_le_bytes()),
        TokenDtype::I64 => out.extend(value.to_le_bytes()),
        TokenDtype::F32 => {
            let float = value as f32;
            out.extend((float as i64 == value && float.abs() < 9.0e18).then(|| float.to_le_bytes())?);
        }
        TokenDtype::F64 => {
            let float = value as f64;
            out.extend((float as i64 == value && float.abs() < 9.0e18).then(|| float.to_le_bytes())?);
        }
    }
    Some(())
}

/// Appends a float; integer types take none.
fn push_float(dtype: TokenDtype, value: f64, out: &mut Vec<u8>) -> Option<()> {
    match dtype {
        TokenDtype::F32 => out.extend((value as f32).to_le_bytes()),
        TokenDtype::F64 => out.extend(value.to_le_bytes()),
        _ => return None,
    }
    Some(())
}
