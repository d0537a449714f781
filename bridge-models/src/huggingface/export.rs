//! Chunks to a Hugging Face folder: `config.json` and safetensors, single or sharded.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;

use bridge_core::model::ModelChunk;
use bridge_data::outside;
use safetensors::{Dtype, SafeTensors, View};
use serde_json::{Map, Value, json};

use super::checkpoint::{INDEX, SINGLE, io};
use super::error::HfError;
use super::family::Family;
use super::fields::Fields;
use super::weight_map::{ExpertLayout, Part, StoredTensor, WeightMap};
use crate::decoder::{DecoderConfig, PositionEmbedding};

/// The file of the architecture, written before the weights.
const CONFIG: &str = "config.json";

/// The dtype that weights are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageDtype {
    /// 32-bit IEEE float.
    #[default]
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
}

/// What an exported folder says besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// The dtype of the weights.
    pub dtype: StorageDtype,
    /// A file is started anew beyond so many bytes.
    pub max_shard_bytes: usize,
    /// The token that begins a text.
    pub bos_token_id: Option<i64>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<i64>,
    /// The `config.json` of the folder that the model was imported from: what it says beside the model, and the positions that it allows, stays.
    pub original: Option<Map<String, Value>>,
    /// How the files have the experts of a layer, where the family has both ways.
    pub experts: ExpertLayout,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            dtype: StorageDtype::F32,
            max_shard_bytes: 5_000_000_000,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            original: None,
            experts: ExpertLayout::default(),
        }
    }
}

/// Writes the model whose stages are `chunks`, on one rank, to `folder`, which is created if it does not exist.
///
/// # Errors
/// If the family cannot hold the decoder, the chunks lack a parameter, or a file cannot be written.
pub fn export(
    folder: &Path,
    family: &Family,
    config: &DecoderConfig,
    chunks: &[&dyn ModelChunk],
    options: &ExportOptions,
) -> Result<(), HfError> {
    let mut exporter = Exporter::new(family, config, options)?;
    for chunk in chunks {
        let shapes: HashMap<String, Vec<usize>> =
            chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        chunk.visit_parameters(&mut |name, value| {
            let values = value.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now");
            exporter.add(name, &shapes[name], values);
        });
    }
    exporter.write(folder)
}

/// A Hugging Face folder in the making: takes whole parameters, one after the other.
///
/// For a model that is spread over ranks, every rank calls [`crate::gather_parameters`] and one of them hands what it gets to an exporter.
#[derive(Debug)]
pub struct Exporter {
    settings: Map<String, Value>,
    map: WeightMap,
    options: ExportOptions,
    stored: BTreeMap<String, Stored>,
    /// Names of the tensors that were added, and which part of each.
    added: BTreeSet<(String, Option<usize>)>,
    failure: Option<HfError>,
}

impl Exporter {
    /// A folder for a model of `family` that `config` describes.
    ///
    /// # Errors
    /// If the family cannot hold the decoder.
    pub fn new(family: &Family, config: &DecoderConfig, options: &ExportOptions) -> Result<Self, HfError> {
        Ok(Self {
            settings: config_json(family, config, options)?,
            map: WeightMap::new(family, config, options.experts)?,
            options: options.clone(),
            stored: BTreeMap::new(),
            added: BTreeSet::new(),
            failure: None,
        })
    }

    /// Adds a whole parameter, row-major. What is wrong with it is an error of [`Self::write`].
    pub fn add(&mut self, name: &str, shape: &[usize], values: Vec<f32>) {
        let Some(entry) = self.map.entry(name).filter(|entry| entry.shape == shape) else {
            let expected =
                self.map.entry(name).map_or("no such parameter".into(), |entry| format!("{:?}", entry.shape));
            let failure = HfError::Parameter { name: name.to_owned(), found: shape.to_vec(), expected };
            self.failure.get_or_insert(failure);
            return;
        };
        for (place, tensor) in entry.tensors.iter().zip(entry.split(&values)) {
            let encoded = encode(tensor.shape, &tensor.values, self.options.dtype);
            self.added.insert((place.name.clone(), place.part.map(|part| part.index)));
            let Some(Part { index, count }) = place.part else {
                self.stored.insert(place.name.clone(), encoded);
                continue;
            };
            let size = encoded.bytes.len();
            let empty = || Stored { dtype: encoded.dtype, shape: place.whole_shape(), bytes: vec![0; count * size] };
            let whole = self.stored.entry(place.name.clone()).or_insert_with(empty);
            whole.bytes[index * size..(index + 1) * size].copy_from_slice(&encoded.bytes);
        }
    }

    /// Writes `config.json` and the tensors to `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// If a parameter was unknown, of another shape or is missing, or a file cannot be written.
    pub fn write(self, folder: &Path) -> Result<(), HfError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let is_added =
            |place: &StoredTensor| self.added.contains(&(place.name.clone(), place.part.map(|part| part.index)));
        let missing = self.map.entries().iter().find(|entry| !entry.tensors.iter().all(is_added));
        if let Some(entry) = missing {
            return Err(HfError::MissingParameter { name: entry.parameter.clone() });
        }
        std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
        write_json(&folder.join(CONFIG), &Value::Object(self.settings))?;
        write_tensors(folder, self.stored, self.options.max_shard_bytes)
    }
}

fn config_json(
    family: &Family,
    config: &DecoderConfig,
    options: &ExportOptions,
) -> Result<Map<String, Value>, HfError> {
    let original =
        options.original.as_ref().filter(|original| original.get("model_type") == Some(&json!(family.model_type())));
    let mut settings = settings_over(family, config, original)?;
    let dtype = match options.dtype {
        StorageDtype::F32 => "float32",
        StorageDtype::F16 => "float16",
        StorageDtype::Bf16 => "bfloat16",
    };
    let eos = match options.eos_token_ids.as_slice() {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    };
    let common = [
        ("model_type", json!(family.model_type())),
        ("architectures", json!([family.architecture])),
        ("torch_dtype", json!(dtype)),
    ];
    settings.extend(common.map(|(key, value)| (key.to_owned(), value)));
    if settings.contains_key("dtype") {
        settings.insert("dtype".into(), json!(dtype));
    }
    for (key, value) in [("bos_token_id", json!(options.bos_token_id)), ("eos_token_id", eos)] {
        let has = original.and_then(|original| original.get(key)).is_some_and(|value| !value.is_null());
        if !has {
            settings.insert(key.to_owned(), value);
        }
    }
    Ok(settings)
}

/// The family's settings, over those of the folder that the model came from. A run on shorter samples leaves a model without learned positions
/// all that it had.
fn settings_over(
    family: &Family,
    config: &DecoderConfig,
    original: Option<&Map<String, Value>>,
) -> Result<Map<String, Value>, HfError> {
    let Some(original) = original else {
        return family.settings(config);
    };
    let mut config = config.clone();
    let positions = family.decoder_config(&Fields::new(original)).map_or(0, |before| before.max_position_embeddings);
    if config.position_embedding != PositionEmbedding::LearnedAbsolute {
        config.max_position_embeddings = config.max_position_embeddings.max(positions);
    }
    let settings = family.settings(&config)?;
    let mut whole = original.clone();
    whole.extend(settings.clone());
    // A key that the family reads and does not write would say something else of another model.
    let reads = |settings: &Map<String, Value>| family.decoder_config(&Fields::new(settings)).ok();
    Ok(if reads(&whole) == reads(&settings) { whole } else { settings })
}

/// Whether an export has made a folder's weights.
pub fn is_exported(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut weights = entries
        .map(|entry| entry.path())
        .filter(|path| is_of_weights(path) && path.extension().is_some_and(|e| e == "safetensors"));
    weights.next().is_some_and(|path| has_mark(&path))
}

/// The key in the header of a safetensors file under which an export leaves its name.
const MARK: &str = "producer";

fn has_mark(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    // A header longer than this is not ours.
    let mut head = Vec::new();
    if file.take(64 << 20).read_to_end(&mut head).is_err() {
        return false;
    }
    let metadata = SafeTensors::read_metadata(&head).map(|(_, metadata)| metadata);
    metadata.is_ok_and(|metadata| metadata.metadata().as_ref().is_some_and(|values| values.contains_key(MARK)))
}

/// Whether a file of a folder belongs to its weights.
fn is_of_weights(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name == INDEX || name == SINGLE || (name.starts_with("model-") && name.ends_with(".safetensors"))
}

/// Removes weights that are there, so that none of them is taken for the model's.
fn remove_weights(folder: &Path) -> Result<(), HfError> {
    let entries = std::fs::read_dir(folder).map_err(|source| io(folder, source))?;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| is_of_weights(path)) {
        std::fs::remove_file(&path).map_err(|source| io(&path, source))?;
    }
    Ok(())
}

/// A tensor as it is stored.
#[derive(Debug)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn encode(shape: Vec<usize>, values: &[f32], dtype: StorageDtype) -> Stored {
    let (dtype, bytes) = match dtype {
        StorageDtype::F32 => (Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        StorageDtype::F16 => (Dtype::F16, values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()),
        StorageDtype::Bf16 => {
            (Dtype::BF16, values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect())
        }
    };
    Stored { dtype, shape, bytes }
}

/// Writes one file, or as many as the limit asks for and their index.
fn write_tensors(folder: &Path, tensors: BTreeMap<String, Stored>, max_shard_bytes: usize) -> Result<(), HfError> {
    remove_weights(folder)?;
    let shards = shards(&tensors, max_shard_bytes);
    if let [all] = shards.as_slice() {
        return write_shard(&folder.join(SINGLE), all, &tensors);
    }
    let mut weight_map = Map::new();
    for (index, names) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        write_shard(&folder.join(&file), names, &tensors)?;
        weight_map.extend(names.iter().map(|name| ((*name).to_owned(), json!(file))));
    }
    let total: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    write_json(&folder.join(INDEX), &index)
}

/// Names of the tensors of each file, at least one each.
fn shards(tensors: &BTreeMap<String, Stored>, max_bytes: usize) -> Vec<Vec<&str>> {
    let mut shards: Vec<Vec<&str>> = vec![Vec::new()];
    let mut size = 0;
    for (name, tensor) in tensors {
        let bytes = tensor.bytes.len();
        if size > 0 && size + bytes > max_bytes {
            shards.push(Vec::new());
            size = 0;
        }
        size += bytes;
        shards.last_mut().expect("there is a shard from the start").push(name);
    }
    shards
}

fn write_shard(path: &Path, names: &[&str], tensors: &BTreeMap<String, Stored>) -> Result<(), HfError> {
    let producer = concat!("bridge ", env!("CARGO_PKG_VERSION"));
    let metadata =
        HashMap::from([("format", "pt"), (MARK, producer)].map(|(key, value)| (key.to_owned(), value.to_owned())));
    let views = names.iter().map(|name| (*name, &tensors[*name]));
    safetensors::serialize_to_file(views, Some(metadata), path)
        .map_err(|source| HfError::Safetensors { path: path.to_owned(), source })?;
    // That went through a temporary file only its owner may read; config.json was made as files usually are.
    let usual = std::fs::metadata(path.with_file_name(CONFIG)).map_err(|source| io(path, source))?;
    std::fs::set_permissions(path, usual.permissions()).map_err(|source| io(path, source))
}

fn write_json(path: &Path, value: &Value) -> Result<(), HfError> {
    let text = serde_json::to_string_pretty(value).map_err(|source| HfError::Json { path: path.to_owned(), source })?;
    outside::replace(path, (text + "\n").as_bytes()).map_err(|source| io(path, source))
}
