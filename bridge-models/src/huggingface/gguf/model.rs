//! A GGUF file as if it were a Hugging Face folder: the settings of a `config.json`, and the
//! tensors by Hugging Face's names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Map, Value, json};

use super::super::error::HfError;
use super::super::family::Family;
use super::super::source::TensorSource;
use super::super::windows::type_names;
use super::family::{GgufFamily, GgufNumber, GgufWindows, Rearrangement, paired_row};
use super::file::{GgufFile, GgufTensor, GgufValue};
use super::tokenizer;
use crate::families::GGUF_FAMILIES;

/// Factors of the rotary frequencies, which are not a tensor of the model there.
const FREQUENCIES: &str = "rope_freqs.weight";
/// The table of word vectors, whose rows are the vocabulary.
const EMBEDDING: &str = "token_embd.weight";
/// The output, where it is not that table.
const OUTPUT: &str = "output.weight";

/// A GGUF file as the parts of a Hugging Face folder.
pub(crate) struct GgufModel {
    pub settings: Map<String, Value>,
    pub source: GgufSource,
    /// Files of the tokenizer, by name.
    pub companions: BTreeMap<String, Vec<u8>>,
    /// Keys of the model that are set and not read.
    pub unread: Vec<String>,
}

impl GgufModel {
    /// Opens a file. Fails if it is damaged, of a family that is not known, lacks a setting, or has
    /// a tensor that the family does not.
    pub fn open(path: &Path) -> Result<Self, HfError> {
        let file = GgufFile::open(path)?;
        let known = || {
            let mut names: Vec<&str> = GGUF_FAMILIES.iter().map(|family| family.architecture).collect();
            names.dedup();
            format!("one of those that are known: {}", names.join(", "))
        };
        let architecture = file.text("general.architecture");
        let family = GGUF_FAMILIES.iter().copied().find(|family| Some(family.architecture) == architecture);
        let Some(family) = family else {
            let found = architecture.map_or("no such text".to_owned(), |name| format!("\"{name}\""));
            return Err(file.wrong("general.architecture", known(), found));
        };
        if file.int("split.count").is_some_and(|count| count > 1) {
            return Err(file.wrong("split.count", "one file: join the parts with llama-gguf-split --merge", "several"));
        }
        let settings = settings(&file, family)?;
        let companions = tokenizer::files(&file)?;
        let unread = unread(&file, family);
        Ok(Self { source: GgufSource::new(file, family, &settings)?, settings, companions, unread })
    }
}

/// The settings of a file as those of a `config.json`.
fn settings(file: &GgufFile, family: &GgufFamily) -> Result<Map<String, Value>, HfError> {
    let mut settings = Map::new();
    for (key, name, number) in family.settings.iter().copied().flatten() {
        let key = format!("{}.{key}", family.architecture);
        let value = match file.values.get(&key) {
            None => continue,
            Some(GgufValue::Int(count)) if *number == GgufNumber::OfHead => {
                json!(*count as f64 / head_size(&settings).max(1) as f64)
            }
            Some(GgufValue::Int(number)) => json!(i64::try_from(*number).unwrap_or(i64::MAX)),
            Some(GgufValue::Float(number)) => json!(number),
            Some(other) => {
                return Err(file.wrong(
                    &key,
                    "a number, the same for all layers",
                    format!("{other:?}").chars().take(60).collect::<String>(),
                ));
            }
        };
        settings.insert((*name).to_owned(), value);
    }
    for (tensor, name) in family.switches {
        settings.insert((*name).to_owned(), json!(file.tensors.contains_key(*tensor)));
    }
    windows(file, family, &mut settings)?;
    let Some([rows, _]) = file.tensors.get(EMBEDDING).map(|tensor| tensor.shape.as_slice()) else {
        return Err(file.wrong(EMBEDDING, "a matrix with a row for each token", "no such tensor"));
    };
    settings.insert("vocab_size".into(), json!(rows));
    settings.insert("tie_word_embeddings".into(), json!(!file.tensors.contains_key(OUTPUT)));
    settings.insert("model_type".into(), json!(family.family.model_type()));
    for (key, name) in [("bos", "bos_token_id"), ("eos", "eos_token_id")] {
        if let Some(id) = file.int(&format!("tokenizer.ggml.{key}_token_id")) {
            settings.insert(name.into(), json!(id));
        }
    }
    if let Some(scaling) = scaling(file, family)? {
        settings.insert("rope_scaling".into(), scaling);
    }
    if let Some(GgufValue::Bool(is_causal)) = file.values.get(&format!("{}.attention.causal", family.architecture)) {
        settings.insert("is_causal".into(), json!(is_causal));
    }
    Ok(settings)
}

/// Elements of a head by these settings; zero if they do not say.
fn head_size(settings: &Map<String, Value>) -> usize {
    let size = |key: &str| settings.get(key).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
    let heads = size("num_attention_heads").unwrap_or(1).max(1);
    size("head_dim").or_else(|| Some(size("hidden_size")? / heads)).unwrap_or(0)
}

/// Sets the sliding windows of a family that has them in the file.
fn windows(file: &GgufFile, family: &GgufFamily, settings: &mut Map<String, Value>) -> Result<(), HfError> {
    /// Period of windowed layers of files that do not mark them.
    const PERIOD: usize = 4;
    let key = format!("{}.attention.sliding_window", family.architecture);
    let size = file.int(&key).filter(|size| *size > 0);
    match (family.windows, size) {
        (GgufWindows::Ignored, _) | (GgufWindows::Refused, None) => return Ok(()),
        (GgufWindows::Refused, Some(size)) => {
            return Err(file.wrong(&key, "no window: this one is not read from GGUF files", size.to_string()));
        }
        (GgufWindows::Stored, _) => {}
    }
    let layers = settings.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    // Each layer has tensors, so a larger number is refused elsewhere.
    let layers = usize::try_from(layers).unwrap_or(usize::MAX).min(file.tensors.len());
    let every = |period: usize| (0..layers).map(|layer| period == 0 || layer % period + 1 < period).collect();
    let pattern = format!("{key}_pattern");
    let marks: Vec<bool> = match file.values.get(&pattern) {
        _ if size.is_none() => vec![false; layers],
        None => every(PERIOD),
        Some(GgufValue::Int(period @ 0..=65_536)) => every(*period as usize),
        Some(GgufValue::Ints(marks)) => marks.iter().take(layers).map(|mark| *mark != 0).collect(),
        Some(_) => return Err(file.wrong(&pattern, "a number, or one for each layer", "something else")),
    };
    settings.insert("sliding_window".into(), json!(size));
    settings.insert("layer_types".into(), type_names(&marks));
    Ok(())
}

/// Keys of the model that are set and not read.
fn unread(file: &GgufFile, family: &GgufFamily) -> Vec<String> {
    /// Keys that are read elsewhere or do not change the model's outputs.
    const KNOWN: [&str; 9] = [
        "attention.causal",
        "expert_count",
        "expert_used_count",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.type",
        "tensor_data_layout",
        "vocab_size",
    ];
    let of_model = file.values.iter().filter_map(|(key, value)| {
        let key_in_model = key.strip_prefix(family.architecture)?.strip_prefix('.')?;
        let is_window = family.windows == GgufWindows::Stored && key_in_model.starts_with("attention.sliding_window");
        let in_table = family.settings.iter().copied().flatten().any(|(known, ..)| *known == key_in_model);
        let is_known = KNOWN.contains(&key_in_model) || is_window || in_table;
        let is_on = !matches!(value, GgufValue::Int(0) | GgufValue::Bool(false));
        (!is_known && is_on).then(|| format!("`{key}`"))
    });
    of_model.collect()
}

/// Scaling of rotary positions: only the forms that llama.cpp has keys for.
fn scaling(file: &GgufFile, family: &GgufFamily) -> Result<Option<Value>, HfError> {
    let key = format!("{}.rope.scaling.type", family.architecture);
    // A factor without a type divides positions, also under the key of the first files. Zero is
    // none.
    let factors = ["rope.scaling.factor", "rope.scale_linear"].map(|name| format!("{}.{name}", family.architecture));
    let factor = factors.iter().find_map(|name| Some((name, file.values.get(name)?)));
    let factor = match factor {
        None => None,
        Some((_, GgufValue::Float(factor))) if *factor >= 0.0 && factor.is_finite() => Some(*factor),
        Some((name, other)) => return Err(file.wrong(name, "a factor of at least 0", format!("{other:?}"))),
    };
    match (file.text(&key), factor.filter(|factor| *factor != 0.0)) {
        (Some("none"), _) | (None | Some("linear"), None) => {}
        (None | Some("linear"), Some(factor)) => return Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
        (Some(other), _) => return Err(file.wrong(&key, "none or linear", other)),
    }
    match file.tensors.contains_key(FREQUENCIES) {
        false => Ok(None),
        true => Err(file.wrong(
            FREQUENCIES,
            "no such tensor: rotary frequencies with a factor each are read from Hugging Face folders only",
            "it",
        )),
    }
}

/// The tensors of a file by Hugging Face's names and in its layout.
#[derive(Debug)]
pub(crate) struct GgufSource {
    file: GgufFile,
    /// Tensors by their Hugging Face name: shape there, tensor in the GGUF file, rearrangement.
    tensors: BTreeMap<String, Renamed>,
    /// Rows of a head.
    head_size: usize,
    /// The transposed tensor that was read last.
    turned: Mutex<Option<(String, Vec<f32>)>>,
}

#[derive(Debug)]
struct Renamed {
    shape: Vec<usize>,
    tensor: GgufTensor,
    how: Rearrangement,
}

impl GgufSource {
    fn new(file: GgufFile, family: &GgufFamily, settings: &Map<String, Value>) -> Result<Self, HfError> {
        let mut tensors = BTreeMap::new();
        for (name, tensor) in &file.tensors {
            // An unknown tensor keeps its name, so that the error lists it with all other wrong
            // tensors.
            let (renamed, how) = family.hugging_face(name).unwrap_or((name.clone(), Rearrangement::None));
            let mut shape = tensor.shape.clone();
            if how == Rearrangement::Transposed {
                if shape.len() != 2 {
                    return Err(file.wrong(name, "a matrix", format!("shape {shape:?}")));
                }
                shape.reverse();
            }
            tensors.insert(renamed, Renamed { shape, tensor: tensor.clone(), how });
        }
        let head_size = head_size(settings);
        let is_paired = |renamed: &&Renamed| renamed.how == Rearrangement::PairedHeads;
        for renamed in tensors.values().filter(is_paired) {
            let rows = renamed.shape.first().copied().unwrap_or(0);
            if head_size == 0 || !head_size.is_multiple_of(2) || !rows.is_multiple_of(head_size) {
                let found = format!("a query or key projection of {rows} rows");
                return Err(file.wrong(
                    "attention.head_count",
                    format!("heads of an even size that divide the rows (here {head_size})"),
                    found,
                ));
            }
        }
        Ok(Self { file, tensors, head_size, turned: Mutex::new(None) })
    }

    /// Reads in Hugging Face's layout.
    fn fill(&self, name: &str, renamed: &Renamed, start: usize, target: &mut [f32]) {
        match renamed.how {
            Rearrangement::None => self.file.read(&renamed.tensor, start, target),
            Rearrangement::PlusOne => {
                self.file.read(&renamed.tensor, start, target);
                target.iter_mut().for_each(|value| *value -= 1.0);
            }
            Rearrangement::PairedHeads => {
                let width: usize = renamed.shape[1..].iter().product();
                let mut done = 0;
                while done < target.len() {
                    let (row, column) = ((start + done) / width, (start + done) % width);
                    let count = (width - column).min(target.len() - done);
                    let place = unpaired_row(row, self.head_size) * width + column;
                    self.file.read(&renamed.tensor, place, &mut target[done..done + count]);
                    done += count;
                }
            }
            Rearrangement::Transposed => {
                let mut turned = self.turned.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if turned.as_ref().is_none_or(|(of, _)| of != name) {
                    let [rows, columns] = renamed.tensor.shape[..] else { unreachable!("matrices are transposed") };
                    let mut stored = vec![0.0; rows * columns];
                    self.file.read(&renamed.tensor, 0, &mut stored);
                    *turned = Some((name.to_owned(), transposed(&stored, columns)));
                }
                let values = turned.as_ref().map_or(&[][..], |(_, values)| values);
                target.copy_from_slice(&values[start..start + target.len()]);
            }
        }
    }
}

/// The row here of row `row` there, of heads of `size` rows.
fn unpaired_row(row: usize, size: usize) -> usize {
    let (head, within) = (row / size, row % size);
    head * size + within % (size / 2) * 2 + within / (size / 2)
}

/// The transpose of a matrix of `columns` columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

/// The elements of one of Hugging Face's tensors as they stand here.
pub(super) fn rearranged(values: &[f32], shape: &[usize], how: Rearrangement, head_size: usize) -> Vec<f32> {
    match how {
        Rearrangement::None => values.to_vec(),
        Rearrangement::PlusOne => values.iter().map(|value| value + 1.0).collect(),
        Rearrangement::Transposed => transposed(values, shape[1]),
        Rearrangement::PairedHeads => {
            let width: usize = shape[1..].iter().product();
            let rows = (0..shape[0]).map(|row| paired_row(row, head_size));
            rows.flat_map(|row| values[row * width..(row + 1) * width].iter().copied()).collect()
        }
    }
}

impl TensorSource for GgufSource {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = (&str, &[usize])> + '_> {
        Box::new(self.tensors.iter().map(|(name, renamed)| (name.as_str(), renamed.shape.as_slice())))
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|renamed| renamed.shape.as_slice())
    }

    fn storage(&self, name: &str) -> Option<String> {
        self.tensors.get(name).map(|renamed| renamed.tensor.kind.name().to_owned())
    }

    fn read_into(&self, name: &str, start: usize, target: &mut [f32]) -> Result<(), HfError> {
        let Some(renamed) = self.tensors.get(name) else {
            return Err(HfError::NoTensor { path: self.path().to_owned(), name: name.to_owned() });
        };
        self.fill(name, renamed, start, target);
        match (start..).zip(target.iter()).find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((index, value)) => {
                let (path, value) = (self.path().to_owned(), f64::from(*value));
                Err(HfError::NotFinite { path, name: name.to_owned(), index, value })
            }
        }
    }
}

/// The form of a family that llama.cpp has.
pub(super) fn of_family(family: &Family) -> Option<&'static GgufFamily> {
    GGUF_FAMILIES.iter().copied().find(|gguf| gguf.family == family)
}
