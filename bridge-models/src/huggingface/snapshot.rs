//! A Hugging Face model as a snapshot for a checkpoint: its parameters as streams, its recipe, and
//! companion files. bridge-core writes the checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bridge_core::checkpoint::{
    CheckpointError, DType, Element, RunFiles, ShardTensor, Snapshot, TensorGroup, TensorStream, TrainState,
};
use bridge_core::config::RawConfig;
use bridge_core::train::WeightFormat;
use bridge_data::untrusted_io;
use serde_json::{Map, Value};

use super::checkpoint::io;
use super::described::unread_keys_warning;
use super::error::HfError;
use super::import::HfModel;
use super::json::table_to_text;
use super::multimodal::{CARRIED_GROUP, Carried, CarriedTensor, LAYOUT, checkpoint_dtype};
use super::runs::row_blocks;
use super::weight_map::WeightEntry;
use crate::fingerprint::fingerprint_of;

/// Name under which a checkpoint keeps the `config.json` of the folder that it was imported from.
pub const ORIGINAL_CONFIG: &str = "hf_config.json";

/// A parameter on its way from a folder to a checkpoint: some rows at a time.
struct Parameter {
    model: Arc<HfModel>,
    /// Index in the model's map.
    index: usize,
}

impl Parameter {
    fn entry(&self) -> &WeightEntry {
        &self.model.weight_map().entries()[self.index]
    }
}

impl TensorStream for Parameter {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.entry().shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let entry = self.entry();
        row_blocks(0..entry.shape[0], entry.row_length()).try_for_each(|rows| {
            let values = self.model.rows(entry, rows);
            let values = values.map_err(|error| CheckpointError::InvalidTensor { reason: error.to_string() })?;
            write(f32::as_bytes(&values))
        })
    }
}

/// A tensor of a multimodal folder on its way to a checkpoint, unread.
struct CarriedStream {
    model: Arc<HfModel>,
    tensor: CarriedTensor,
    dtype: DType,
}

impl TensorStream for CarriedStream {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let bytes = self.model.carried_bytes(&self.tensor.name);
        let bytes = bytes.map_err(|error| CheckpointError::InvalidTensor { reason: error.to_string() })?;
        bytes.chunks(1 << 20).try_for_each(write)
    }
}

/// Snapshot of this model: its parameters, of which a part at a time is in memory when they are
/// written, a recipe with its architecture, and its [companions](HfModel::companions).
///
/// # Errors
/// If its kind cannot be written as a recipe, or a file cannot be read.
pub fn snapshot(model: Arc<HfModel>) -> Result<Snapshot, HfError> {
    let mut groups = Vec::new();
    let tensor = |(index, entry): (usize, &WeightEntry)| {
        ShardTensor::streamed(&entry.parameter, Arc::new(Parameter { model: model.clone(), index }))
    };
    let tensors = model.weight_map().entries().iter().enumerate().map(tensor).collect();
    groups.push(TensorGroup { name: "model".into(), tensors });
    let mut raw = RawConfig::default();
    raw.model.kind = model.config().kind().to_owned();
    raw.model.config = model.config().to_transformer()?;
    let mut files = model.companions()?;
    files.insert(ORIGINAL_CONFIG.to_owned(), original_config(&model)?);
    if let Some(Carried { text, tensors }) = model.carried() {
        let text = serde_json::to_vec(text).map_err(|source| json_error(LAYOUT, source))?;
        files.insert(LAYOUT.to_owned(), text);
        let tensors = tensors.iter().map(|tensor| {
            let dtype = checkpoint_dtype(tensor.dtype).expect("other types were refused when the folder was opened");
            let carried = CarriedStream { model: model.clone(), tensor: tensor.clone(), dtype };
            ShardTensor::streamed(&tensor.name, Arc::new(carried))
        });
        groups.push(TensorGroup { name: CARRIED_GROUP.into(), tensors: tensors.collect() });
    }
    let files = files.into_iter().map(|(name, content)| (name, content.into())).collect();
    Ok(Snapshot {
        run: RunFiles { train_state: TrainState::default(), run_config: raw.to_toml(), files, ..RunFiles::default() },
        groups,
    })
}

/// The unchanged `config.json` of a folder, or its counterpart in a GGUF file.
fn original_config(model: &HfModel) -> Result<Vec<u8>, HfError> {
    let folder = model.source().path();
    if !folder.is_dir() {
        let text = table_to_text(model.settings()).map_err(|source| json_error(ORIGINAL_CONFIG, source))?;
        return Ok(text.into_bytes());
    }
    let path = folder.join("config.json");
    untrusted_io::read(&path, untrusted_io::SETTINGS_BYTES).map_err(|source| io(&path, source))
}

fn json_error(name: &str, source: serde_json::Error) -> HfError {
    HfError::Json { path: name.into(), source }
}

impl HfModel {
    /// The files of the tokenizer, the chat template, the settings of generation and those of
    /// processors of images that are with the model, by name.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn companions(&self) -> Result<BTreeMap<String, Vec<u8>>, HfError> {
        let folder = self.source().path();
        let mut files = self.tokenizer_files().clone();
        let templates = folder.join(NAMED_TEMPLATES);
        for (folder, before) in [(folder, String::new()), (templates.as_path(), format!("{NAMED_TEMPLATES}/"))] {
            if !folder.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(folder).map_err(|source| io(folder, source))? {
                let path = entry.map_err(|source| io(folder, source))?.path();
                let name = format!("{before}{}", path.file_name().unwrap_or_default().to_string_lossy());
                if is_companion(&name) {
                    files.insert(
                        name,
                        untrusted_io::read(&path, untrusted_io::TABLE_BYTES).map_err(|source| io(&path, source))?,
                    );
                }
            }
        }
        if let Some(content) = files.get(TOKENIZER_CONFIG).and_then(|content| without_programs(content)) {
            files.insert(TOKENIZER_CONFIG.to_owned(), content);
        }
        Ok(files)
    }
}

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Folder of named chat templates. A companion from it is called
/// `additional_chat_templates/NAME.jinja`.
pub const NAMED_TEMPLATES: &str = "additional_chat_templates";

/// Removes references to remote code from a tokenizer's settings, because that code is not copied.
/// A class of remote code is replaced by the class for `tokenizer.json`. Returns `None` if there
/// are no references.
fn without_programs(content: &[u8]) -> Option<Vec<u8>> {
    let mut table = serde_json::from_slice::<Map<String, Value>>(content).ok()?;
    let programs = table.remove("auto_map")?.to_string();
    let class = table.get("tokenizer_class").and_then(Value::as_str);
    if class.is_some_and(|class| programs.contains(class)) {
        table.insert("tokenizer_class".into(), Value::from("PreTrainedTokenizerFast"));
    }
    serde_json::to_vec_pretty(&table).ok()
}

/// True if a file of a folder is copied along with its model.
pub fn is_companion(name: &str) -> bool {
    matches!(
        name,
        "tokenizer.json"
            | "tokenizer_config.json"
            | "special_tokens_map.json"
            | "added_tokens.json"
            | "vocab.json"
            | "merges.txt"
            | "generation_config.json"
            | "chat_template.jinja"
            | "chat_template.json"
            | "tokenizer.model"
            | "spiece.model"
            | "tekken.json"
            | "processor_config.json"
            | "preprocessor_config.json"
            | "video_preprocessor_config.json"
    ) || (name.starts_with(NAMED_TEMPLATES) && name.ends_with(".jinja"))
}

/// Hugging Face folders and GGUF files as weights that a run may start from.
pub(crate) const HUGGING_FACE: WeightFormat = WeightFormat { fingerprint, open, remark };

type Error = Box<dyn std::error::Error + Send + Sync>;

fn open(path: &Path) -> Result<Snapshot, Error> {
    Ok(snapshot(Arc::new(HfModel::open(path)?))?)
}

fn remark(path: &Path) -> Option<String> {
    unread_keys_warning(path)
}

/// The path, and name, size and modification time of each file with settings or weights. `None` for
/// a path that is neither a folder nor a file of a model.
fn fingerprint(path: &Path) -> Option<String> {
    let is_ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "config.json" || is_companion(&name) || name.ends_with(".safetensors") || name.ends_with(".index.json")
    };
    let files = if path.is_dir() {
        if !path.join("config.json").exists() || path.join("metadata.json").exists() {
            return None;
        }
        let entries = std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.path());
        entries.filter(|path| is_ours(path)).collect::<Vec<_>>()
    } else {
        vec![path.to_owned()].into_iter().filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect()
    };
    fingerprint_of(files)
}
