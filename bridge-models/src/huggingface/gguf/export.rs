//! Parameters to a GGUF file, one after the other, a part at a time.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::super::described::Architecture;
use super::super::error::HfError;
use super::super::export::PRODUCER;
use super::super::family::{Family, as_in_a_file};
use super::super::fields::Fields;
use super::super::staged::{FileLayout, Staged};
use super::super::stored::ReadRows;
use super::super::weight_map::{ExpertLayout, StoredTensor, WeightMap};
use super::super::windows::windowed_layers;
use super::blocks::{BlockType, to_q8_0};
use super::family::{GgufNumber, GgufWindows, Rearrangement};
use super::file::{ALIGNMENT, GgufFile, GgufValue, MAGIC, shortest};
use super::model::{GgufModel, of_family, rearranged};
use super::tokenizer;
use crate::decoder::DecoderConfig;

/// Storage type of the matrices of a GGUF file. Vectors are float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GgufDtype {
    /// 32-bit IEEE float.
    #[default]
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// Blocks of 32 8-bit integers with a scale. Tensors whose row length is not a multiple of 32
    /// are written as [`Self::F16`].
    Q8_0,
}

/// Key of a GGUF file under which an export leaves its name. Readers ignore keys of other programs.
const MARK: &str = "bridge.producer";

/// True if an export has made the GGUF file at `path`.
pub fn is_exported_gguf(path: &Path) -> bool {
    GgufFile::open(path).is_ok_and(|file| file.text(MARK).is_some())
}

/// Writer of a GGUF file, which takes parameters as [`Exporter`](crate::huggingface::Exporter)
/// does.
#[derive(Debug)]
pub struct GgufExporter {
    map: WeightMap,
    head_size: usize,
    /// Tensors by their Hugging Face name: GGUF name, rearrangement of the elements, storage type.
    tensors: BTreeMap<String, (String, Rearrangement, BlockType)>,
    staged: Staged,
    /// Names of the parameters that were added.
    added: HashSet<String>,
    failure: Option<HfError>,
}

impl GgufExporter {
    /// A file for a model of `family` that `config` describes; `companions` are the tokenizer's
    /// files of a folder, by name.
    ///
    /// # Errors
    /// If llama.cpp has no form of the family, of a setting or of the tokenizer, or the file cannot
    /// be made.
    pub fn new(
        path: &Path,
        family: &'static Family,
        config: &DecoderConfig,
        dtype: GgufDtype,
        companions: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Self, HfError> {
        let wrong = |name: &str, expected: &str, found: String| HfError::Gguf {
            path: path.to_owned(),
            name: name.to_owned(),
            expected: expected.to_owned(),
            found,
        };
        let Some(gguf) = of_family(family) else {
            return Err(wrong("model_type", "a family that has a GGUF form here", family.model_type().to_owned()));
        };
        let settings = family.settings(config)?;
        let is_scaled = settings.get("rope_scaling").is_some_and(|scaling| !scaling.is_null());
        if is_scaled {
            return Err(wrong("rope_scaling", "rotary positions that are not scaled", "a scaling".to_owned()));
        }
        let mut values = vec![
            ("general.architecture".to_owned(), GgufValue::Text(gguf.architecture.to_owned())),
            ("general.name".into(), GgufValue::Text(family.model_type().to_owned())),
            ("general.quantization_version".into(), GgufValue::Int(2)),
            ("general.file_type".into(), GgufValue::Int(dtype.file_type())),
            (MARK.into(), GgufValue::Text(PRODUCER.to_owned())),
            (format!("{}.vocab_size", gguf.architecture), GgufValue::Int(config.vocab_size as i128)),
        ];
        for (key, name, number) in gguf.settings.iter().copied().flatten() {
            let value = match (settings.get(*name).and_then(Value::as_f64), number) {
                (None, _) => continue,
                (Some(value), GgufNumber::Count) => GgufValue::Int(value as i128),
                (Some(value), GgufNumber::Float) => GgufValue::Float(value),
                (Some(share), GgufNumber::OfHead) => GgufValue::Int((share * config.kv_channels as f64) as i128),
            };
            values.push((format!("{}.{key}", gguf.architecture), value));
        }
        if let (GgufWindows::Stored, Some(left)) = (gguf.windows, config.window_size) {
            let key = format!("{}.attention.sliding_window", gguf.architecture);
            values.push((format!("{key}_pattern"), GgufValue::Bools(windowed_layers(config))));
            values.push((key, GgufValue::Int(left as i128 + 1)));
        }
        let of_tokenizer = tokenizer::values(companions, config.vocab_size);
        values.extend(of_tokenizer.map_err(|(expected, found)| wrong("tokenizer", &expected, found))?);

        let map = WeightMap::new(family, config, ExpertLayout::Apart)?;
        let (mut tensors, mut infos) = (BTreeMap::new(), Vec::new());
        for StoredTensor { name, shape, .. } in map.entries().iter().flat_map(|entry| &entry.tensors) {
            let Some((here, how)) = gguf.gguf(name) else {
                return Err(wrong(name, "a tensor that llama.cpp has", format!("shape {shape:?}")));
            };
            let mut stored = shape.clone();
            if how == Rearrangement::Transposed {
                stored.reverse();
            }
            let kind = dtype.of_shape(&stored);
            tensors.insert(name.clone(), (here.clone(), how, kind));
            infos.push((here, stored, kind));
        }
        let layout = layout(path, &values, &infos);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = layout.name.clone();
        let staged = Staged::create(folder, vec![layout])?;
        says_the_same(&staged.temporary(&name), family, config)?;
        let head_size = config.kv_channels;
        Ok(Self { map, head_size, tensors, staged, added: HashSet::new(), failure: None })
    }

    /// Adds a parameter whose rows `read` returns on demand, so it is never in memory as a whole.
    /// [`Self::finish`] returns the error of an invalid parameter.
    pub fn stream(&mut self, name: &str, shape: &[usize], read: &mut ReadRows<'_>) {
        if self.failure.is_none() {
            self.failure = self.store(name, shape, read).err();
        }
    }

    fn store(&mut self, name: &str, shape: &[usize], read: &mut ReadRows<'_>) -> Result<(), HfError> {
        let entry = self.map.entry_for(name, shape)?;
        for (number, stored) in entry.tensors.iter().enumerate() {
            let (here, how, kind) = &self.tensors[&stored.name];
            let row: usize = stored.shape[1..].iter().product::<usize>().max(1);
            // A block must contain whole units of rearrangement: a head, or all rows of a
            // transposed matrix.
            let multiple = match how {
                Rearrangement::None | Rearrangement::PlusOne => 1,
                Rearrangement::PairedHeads => self.head_size,
                Rearrangement::Transposed => stored.shape[0].max(1),
            };
            let mut at = 0;
            for elements in entry.stored_blocks(number, multiple) {
                let mut block = stored.shape.clone();
                block[0] = elements.len() / row;
                let values = entry.stored(number, elements, read)?;
                let bytes = encode(&rearranged(&values, &block, *how, self.head_size), *kind);
                self.staged.fill(here, at, &bytes)?;
                at += bytes.len();
            }
        }
        self.added.insert(name.to_owned());
        Ok(())
    }

    /// Renames the temporary file to its final name.
    ///
    /// # Errors
    /// If a parameter was unknown, of another shape or is missing, or the file cannot be written.
    /// Then there is no file at the path.
    pub fn finish(self) -> Result<(), HfError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.map.require_all(&self.added)?;
        self.staged.publish()
    }
}

/// Refuses a model whose configuration cannot be read back from the file, so that no setting
/// without a GGUF key is lost.
fn says_the_same(file: &Path, family: &Family, config: &DecoderConfig) -> Result<(), HfError> {
    let GgufModel { settings, .. } = GgufModel::open(file)?;
    let Architecture { config: found, .. } = Architecture::new(&Fields::new(&settings))?;
    // GGUF numbers have 32 bits, as in the computations of transformers and llama.cpp.
    let mut rounded = Value::Object(family.settings(config)?);
    round(&mut rounded);
    let Value::Object(rounded) = rounded else { unreachable!("it was a table") };
    let config = family.decoder_config(&Fields::new(&rounded))?;
    // GGUF files have no settings that only training reads.
    let found = DecoderConfig {
        init_method_std: config.init_method_std,
        embedding_init_method_std: config.init_method_std,
        attention_dropout: config.attention_dropout,
        hidden_dropout: config.hidden_dropout,
        embedding_dropout: config.embedding_dropout,
        ..found
    };
    match as_in_a_file(config).difference(&found) {
        None => Ok(()),
        Some(difference) => {
            Err(family.cannot_hold(difference.field, difference.ours, format!("{} (in GGUF)", difference.theirs)))
        }
    }
}

/// Rounds all numbers with a fraction to 32 bits.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().map(|number| shortest(number as f32));
            *value = rounded.map_or(Value::Null, Value::from);
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(table) => table.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

impl GgufDtype {
    /// The number of `general.file_type`.
    fn file_type(self) -> i128 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Storage type of a tensor of this shape.
    fn of_shape(self, shape: &[usize]) -> BlockType {
        match (self, shape) {
            (Self::F32, _) | (_, [] | [_]) => BlockType::F32,
            (Self::Bf16, _) => BlockType::Bf16,
            (Self::Q8_0, [.., row]) if row.is_multiple_of(32) => BlockType::Q8_0,
            (Self::F16 | Self::Q8_0, _) => BlockType::F16,
        }
    }
}

fn encode(values: &[f32], kind: BlockType) -> Vec<u8> {
    match kind {
        BlockType::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
        BlockType::Bf16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
        BlockType::Q8_0 => to_q8_0(values),
        BlockType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        other => unreachable!("nothing is written as {}", other.name()),
    }
}

/// The file: its tables, and where its tensors are.
fn layout(path: &Path, values: &[(String, GgufValue)], infos: &[(String, Vec<usize>, BlockType)]) -> FileLayout {
    let mut header = MAGIC.to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend((infos.len() as u64).to_le_bytes());
    header.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        put_text(&mut header, key);
        put_value(&mut header, value);
    }
    let mut tensors = Vec::new();
    let mut end = 0_usize;
    for (name, shape, kind) in infos {
        let bytes = shape.iter().product::<usize>() / kind.elements() * kind.bytes();
        put_text(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            header.extend((*size as u64).to_le_bytes());
        }
        header.extend(kind.number().to_le_bytes());
        let start = end.next_multiple_of(ALIGNMENT);
        header.extend((start as u64).to_le_bytes());
        end = start + bytes;
        tensors.push((name.clone(), bytes));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    FileLayout { name, header, tensors, alignment: ALIGNMENT }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A value, preceded by the number of its type.
fn put_value(bytes: &mut Vec<u8>, value: &GgufValue) {
    let put_type = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_le_bytes());
    let put_list = |bytes: &mut Vec<u8>, number: u32, count: usize| {
        put_type(bytes, 9);
        put_type(bytes, number);
        bytes.extend((count as u64).to_le_bytes());
    };
    match value {
        GgufValue::Int(number) => {
            put_type(bytes, 4);
            bytes.extend((*number as u32).to_le_bytes());
        }
        GgufValue::Float(number) => {
            put_type(bytes, 6);
            bytes.extend((*number as f32).to_le_bytes());
        }
        GgufValue::Bool(is_true) => {
            put_type(bytes, 7);
            bytes.push(u8::from(*is_true));
        }
        GgufValue::Text(text) => {
            put_type(bytes, 8);
            put_text(bytes, text);
        }
        GgufValue::Texts(texts) => {
            put_list(bytes, 8, texts.len());
            texts.iter().for_each(|text| put_text(bytes, text));
        }
        GgufValue::Ints(numbers) => {
            put_list(bytes, 5, numbers.len());
            numbers.iter().for_each(|number| bytes.extend((*number as i32).to_le_bytes()));
        }
        GgufValue::Bools(marks) => {
            put_list(bytes, 7, marks.len());
            bytes.extend(marks.iter().map(|mark| u8::from(*mark)));
        }
        GgufValue::Floats(numbers) => {
            put_list(bytes, 6, numbers.len());
            numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
    }
}
