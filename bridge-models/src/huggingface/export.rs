//! Parameters to a Hugging Face folder: `config.json` and safetensors, single or sharded. A part of
//! a parameter is in memory at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use bridge_core::model::{Component, ModelChunk, ParameterRole};
use bridge_data::untrusted_io;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use super::checkpoint::{INDEX, SINGLE};
use super::encoding::to_scaled_e4m3;
use super::error::HfError;
use super::family::Family;
use super::fields::Fields;
use super::json::to_text;
use super::multimodal::{Carried, CarriedTensor, Multimodal, TextForm};
use super::rope::keep_axes;
use super::staged::{FileLayout, Staged, is_unfinished};
use super::stored::ReadRows;
use super::weight_map::{ExpertLayout, WeightEntry, WeightMap};
use crate::decoder::{DecoderConfig, PositionEmbedding};
use crate::families::{has_other_class, with_model_type};

/// The file of the architecture.
const CONFIG: &str = "config.json";
/// Most rows and columns that share a scale where weights are written in 8 bits.
const F8_BLOCK: usize = 128;
/// Smallest side of a block; the scales of smaller blocks would take as much space as the values.
const LEAST_F8_BLOCK: usize = 4;

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
    /// 8-bit float (E4M3) with a scale for each block of 128 x 128, or of fewer rows or columns
    /// where these do not divide the matrices, for those of linear layers; the rest is written as
    /// [`Self::Bf16`].
    F8,
    /// 64-bit integer, for tables of numbers alone.
    I64,
}

/// Content of an exported folder besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// The dtype of the weights.
    pub dtype: StorageDtype,
    /// Size in bytes beyond which a new file begins.
    pub max_shard_bytes: usize,
    /// The token that begins a text.
    pub bos_token_id: Option<i64>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<i64>,
    /// The `config.json` of the folder that the model was imported from. Its keys that do not
    /// describe the model, and its number of positions, are kept. With that of a multimodal model,
    /// the whole model is written.
    pub original: Option<Map<String, Value>>,
    /// Other tensors of a multimodal model, which [`Exporter::carry`] takes.
    pub carried: Option<Carried>,
    /// Layout of the experts of a layer in files, if the family has both.
    pub experts: ExpertLayout,
    /// Other files of the folder, by name: files of the tokenizer, a model card.
    pub companions: BTreeMap<String, Vec<u8>>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            dtype: StorageDtype::F32,
            max_shard_bytes: 5_000_000_000,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            original: None,
            carried: None,
            experts: ExpertLayout::default(),
            companions: BTreeMap::new(),
        }
    }
}

/// Writes the model whose stages are `chunks`, on one rank, to `folder`, which is created if it
/// does not exist.
///
/// # Errors
/// If the family cannot hold the decoder, the chunks lack a parameter, or a file cannot be written.
pub fn to_hf(
    folder: &Path,
    family: &Family,
    config: &DecoderConfig,
    chunks: &[&dyn ModelChunk],
    options: &ExportOptions,
) -> Result<(), HfError> {
    let mut exporter = Exporter::new(folder, family, config, options)?;
    exporter.add_chunks(chunks);
    exporter.finish()
}

/// Writer of a Hugging Face folder: takes parameters, one after the other, and writes each to its
/// place. The folder has a model when it is finished, and not before: `config.json` comes last.
///
/// For a model that is spread over ranks, every rank calls [`crate::gather_parameters`] and one of
/// them passes the parameters to an exporter.
#[derive(Debug)]
pub struct Exporter {
    map: WeightMap,
    /// Storage dtype of each tensor.
    storages: HashMap<String, StorageDtype>,
    /// Rows and columns that share a scale in 8 bits.
    block: [usize; 2],
    staged: Staged,
    /// Names of the parameters that were added.
    added: HashSet<String>,
    /// Bytes of the tensors that are carried along and were not added.
    missing: BTreeMap<String, usize>,
    failure: Option<HfError>,
}

impl Exporter {
    /// A folder for a model of `family` that `config` describes, which is created if it does not
    /// exist.
    ///
    /// # Errors
    /// If the family cannot hold the decoder, or files cannot be made.
    pub fn new(
        folder: &Path,
        family: &Family,
        config: &DecoderConfig,
        options: &ExportOptions,
    ) -> Result<Self, HfError> {
        let multimodal = multimodal(family, config, options)?;
        let mut settings = config_json(family, config, multimodal.as_ref(), options)?;
        let (map, carried) = match multimodal {
            Some(whole) => {
                let text = TextForm { layout: whole.modules(), experts: options.experts };
                let Carried { text, tensors } =
                    options.carried.clone().unwrap_or(Carried { text, tensors: Vec::new() });
                let map = WeightMap::new(family, config, whole.experts(text.experts, options.experts))?;
                (map.renamed(|name| text.layout.name_in_file(family.prefix, name)), tensors)
            }
            None => (WeightMap::new(family, config, options.experts)?, Vec::new()),
        };
        let storages = storages(config, &map, options.dtype);
        let block = f8_block(family, &map, &storages)?;
        if options.dtype == StorageDtype::F8 {
            settings.insert("quantization_config".into(), quantization_config(&map, &storages, &carried, block));
        }
        let (layouts, index) = layouts(&map, &storages, &carried, block, options.max_shard_bytes)?;
        let mut staged = Staged::create(folder, layouts)?;
        if let Some(index) = index {
            staged.add(INDEX, &to_json(INDEX, &index)?)?;
        }
        for (name, content) in &options.companions {
            staged.add(name, content)?;
        }
        staged.add(CONFIG, &to_json(CONFIG, &Value::Object(settings))?)?;
        let missing = carried.into_iter().map(|CarriedTensor { name, dtype, shape }| {
            let bytes = num_bytes(&(String::new(), dtype, shape));
            (name, bytes)
        });
        Ok(Self { map, storages, block, staged, added: HashSet::new(), missing: missing.collect(), failure: None })
    }

    /// Adds a tensor that is carried along. [`Self::finish`] returns the error of an unknown one.
    pub fn carry(&mut self, name: &str, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        let stored = match self.missing.get(name) {
            Some(count) if *count == bytes.len() => self.staged.fill(name, 0, bytes),
            Some(_) | None => {
                let (name, found) = (name.to_owned(), vec![bytes.len()]);
                Err(HfError::Parameter { name, found, expected: "bytes of a tensor that is carried along".into() })
            }
        };
        self.missing.remove(name);
        self.failure = stored.err();
    }

    /// Adds a whole parameter, row-major. [`Self::finish`] returns the error of an invalid
    /// parameter.
    ///
    /// # Panics
    /// If there are fewer values than the shape says.
    pub fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let width: usize = shape[1..].iter().product();
        self.stream(name, shape, &mut |rows| Ok(values[rows.start * width..rows.end * width].to_vec()));
    }

    /// Adds all parameters of these stages on one rank.
    pub(super) fn add_chunks(&mut self, chunks: &[&dyn ModelChunk]) {
        for chunk in chunks {
            let shapes: HashMap<String, Vec<usize>> =
                chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
            chunk.visit_parameters(&mut |name, value| {
                let values = value.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now");
                self.add(name, &shapes[name], &values);
            });
        }
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
        for (number, place) in entry.tensors.iter().enumerate() {
            let dtype = self.storages[&place.name];
            let index = place.part.map_or(0, |part| part.index);
            let names = || std::iter::once(&place.name).chain(&entry.copies);
            let stored_as: Vec<_> = names().map(|name| stored_as(name, &place.shape, dtype, self.block)).collect();
            let mut places: Vec<usize> = stored_as[0].iter().map(|stored| index * num_bytes(stored)).collect();
            // A scalar has one row of one element.
            let row: usize = place.shape.iter().skip(1).product();
            for elements in entry.stored_blocks(number, self.block[0]) {
                let values = entry.stored(number, elements, read)?;
                for (part, (at, bytes)) in places.iter_mut().zip(encode(&values, row, dtype, self.block)).enumerate() {
                    stored_as.iter().try_for_each(|stored| self.staged.fill(&stored[part].0, *at, &bytes))?;
                    *at += bytes.len();
                }
            }
        }
        self.added.insert(name.to_owned());
        Ok(())
    }

    /// Renames the temporary files to their final names.
    ///
    /// # Errors
    /// If a parameter was unknown, of another shape or is missing, or a file cannot be written: the
    /// folder is then unchanged. If a file cannot be renamed: the folder then has no model.
    pub fn finish(self) -> Result<(), HfError> {
        let Self { map, staged, added, missing, failure, .. } = self;
        if let Some(failure) = failure {
            return Err(failure);
        }
        map.require_all(&added)?;
        if let Some(name) = missing.into_keys().next() {
            return Err(HfError::MissingParameter { name });
        }
        staged.publish_over(&[CONFIG, INDEX], &is_of_weights)
    }
}

/// The multimodal model whose language model is written. Fails if the decoder is no longer of the
/// family of that language model.
fn multimodal(family: &Family, config: &DecoderConfig, options: &ExportOptions) -> Result<Option<Multimodal>, HfError> {
    let multimodal = options.original.as_ref().map_or(Ok(None), Multimodal::new)?;
    if let Some(own) = multimodal.as_ref().map(Multimodal::family).filter(|own| *own != family) {
        own.settings(config)?;
        let expected = format!("the language model of the folder, {}", own.model_type());
        return Err(own.cannot_hold("model_type".into(), family.model_type().to_owned(), expected));
    }
    Ok(multimodal)
}

fn config_json(
    family: &Family,
    config: &DecoderConfig,
    multimodal: Option<&Multimodal>,
    options: &ExportOptions,
) -> Result<Map<String, Value>, HfError> {
    let model_type = |original: &Map<String, Value>| original.get("model_type")?.as_str().map(str::to_owned);
    let is_of_family =
        |original: &&Map<String, Value>| model_type(original).and_then(|name| with_model_type(&name)) == Some(family);
    let text = multimodal.map(|whole| whole.text(config.share_embeddings_and_output_weights));
    let original = text.as_ref().or(options.original.as_ref()).filter(is_of_family);
    let mut settings = settings_over(family, config, original)?;
    // These keys describe files of the original folder, which are not copied.
    for key in ["quantization_config", "auto_map", "transformers_weights"] {
        settings.remove(key);
    }
    let dtype = match options.dtype {
        StorageDtype::F32 | StorageDtype::I64 => "float32",
        StorageDtype::F16 => "float16",
        StorageDtype::Bf16 | StorageDtype::F8 => "bfloat16",
    };
    let eos = match options.eos_token_ids.as_slice() {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    };
    let (model_type, architecture) =
        original.and_then(other_names).unwrap_or((family.model_type(), family.architecture));
    let common =
        [("model_type", json!(model_type)), ("architectures", json!([architecture])), ("torch_dtype", json!(dtype))];
    settings.extend(common.map(|(key, value)| (key.to_owned(), value)));
    if settings.contains_key("dtype") {
        settings.insert("dtype".into(), json!(dtype));
    }
    let known = |key: &str| original.and_then(|original| original.get(key)).filter(|value: &&Value| !value.is_null());
    // If the key is absent, transformers uses the default of the class, which may lie beyond the
    // vocabulary and then fails.
    let padding = known("pad_token_id").and_then(Value::as_u64).filter(|id| (*id as usize) < config.vocab_size);
    let padding = padding.or_else(|| config.encoder.map(|encoder| encoder.start_token as u64));
    settings.insert("pad_token_id".into(), json!(padding));
    let bos = json!(options.bos_token_id.or(family.usual_bos));
    for (key, value) in [("bos_token_id", bos), ("eos_token_id", eos)] {
        let is_negative = |id: &Value| id.as_i64().is_some_and(|id| id < 0);
        if known(key).is_none_or(is_negative) {
            settings.insert(key.to_owned(), value);
        }
    }
    Ok(match multimodal {
        Some(whole) => whole.with_text(settings, dtype),
        None => settings,
    })
}

/// The `model_type` and class of a folder that names others than its family's own.
fn other_names(original: &Map<String, Value>) -> Option<(&str, &str)> {
    let model_type = original.get("model_type")?.as_str()?;
    let mut classes = original.get("architectures")?.as_array()?.iter().filter_map(Value::as_str);
    classes.find(|class| has_other_class(model_type, class)).map(|class| (model_type, class))
}

/// The family's settings, over those of the folder that the model came from. A run on shorter
/// samples leaves a model without learned positions all that it had.
fn settings_over(
    family: &Family,
    config: &DecoderConfig,
    original: Option<&Map<String, Value>>,
) -> Result<Map<String, Value>, HfError> {
    let Some(original) = original.map(|original| family.with_own_keys(original.clone())).transpose()? else {
        return family.settings(config);
    };
    let mut config = config.clone();
    let positions = family.decoder_config(&Fields::new(&original)).map_or(0, |before| before.max_position_embeddings);
    if config.position_embedding != PositionEmbedding::LearnedAbsolute {
        config.max_position_embeddings = config.max_position_embeddings.max(positions);
    }
    let mut settings = family.settings(&config)?;
    keep_axes(&original, &mut settings);
    let mut whole = original;
    whole.extend(settings.clone());
    // A key that the family reads and does not write would say something else of another model.
    let reads = |settings: &Map<String, Value>| family.decoder_config(&Fields::new(settings)).ok();
    Ok(if reads(&whole) == reads(&settings) { whole } else { settings })
}

/// True if an export has made a folder's weights, or was killed while it gave its files their
/// names.
pub fn is_exported(folder: &Path) -> bool {
    if is_unfinished(folder) {
        return true;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut weights = entries
        .map(|entry| entry.path())
        .filter(|path| is_of_weights(path) && path.extension().is_some_and(|e| e == "safetensors"));
    weights.next().is_some_and(|path| has_mark(&path))
}

/// The key in the header of a safetensors file under which an export leaves its name.
const MARK: &str = "producer";

/// The name that exports leave.
pub(super) const PRODUCER: &str = concat!("bridge ", env!("CARGO_PKG_VERSION"));

/// Largest header in bytes that is searched for the mark; that of an export is smaller.
const LARGEST_HEADER: u64 = 64 << 20;

/// True if the header of a safetensors file has the mark. The tensors behind the header are not
/// read, so a file may have any size.
fn has_mark(path: &Path) -> bool {
    header_of(path).is_some_and(|header| header["__metadata__"].get(MARK).is_some())
}

/// The header of a safetensors file; `None` if it cannot be read.
fn header_of(path: &Path) -> Option<Value> {
    let (mut file, _) = untrusted_io::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= LARGEST_HEADER)?;
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// True if a file of a folder belongs to its weights.
fn is_of_weights(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name == INDEX || name == SINGLE || (name.starts_with("model-") && name.ends_with(".safetensors"))
}

/// Storage dtype of each tensor: the same for all, but in 8 bits only the matrices of linear layers
/// are quantized, and tensors that are float32 in every run stay so.
fn storages(config: &DecoderConfig, map: &WeightMap, dtype: StorageDtype) -> HashMap<String, StorageDtype> {
    let table = config.declarations();
    let infos = table.parameters().iter().map(|info| (info.name.as_str(), info));
    let infos: HashMap<&str, _> = infos.collect();
    let of_entry = |entry: &WeightEntry| {
        let info = &infos[entry.parameter.as_str()];
        let is_product = info.role == ParameterRole::Weight && info.component != Component::Router;
        let is_matrix = !entry.rows_are_inputs() && entry.tensors.iter().all(|stored| stored.shape.len() == 2);
        match dtype {
            _ if entry.parameter.ends_with(".token_experts") => StorageDtype::I64,
            _ if info.is_float32() => StorageDtype::F32,
            StorageDtype::F8 if !(is_product && is_matrix) => StorageDtype::Bf16,
            dtype => dtype,
        }
    };
    map.entries()
        .iter()
        .flat_map(|entry| entry.tensors.iter().map(move |stored| (stored.name.clone(), of_entry(entry))))
        .collect()
}

/// Largest block size that divides all 8-bit matrices; transformers dequantizes only such blocks.
fn f8_block(family: &Family, map: &WeightMap, storages: &HashMap<String, StorageDtype>) -> Result<[usize; 2], HfError> {
    let mut block = [F8_BLOCK; 2];
    let stored = map.entries().iter().flat_map(|entry| &entry.tensors);
    for tensor in stored.filter(|tensor| storages[&tensor.name] == StorageDtype::F8) {
        let [.., rows, columns] = tensor.shape[..] else { unreachable!("only matrices are in 8 bits") };
        for (block, size) in block.iter_mut().zip([rows, columns]) {
            *block = (1..=*block)
                .rev()
                .find(|divisor| size.is_multiple_of(*divisor) && F8_BLOCK.is_multiple_of(*divisor))
                .unwrap_or(1);
        }
        if block.iter().any(|size| *size < LEAST_F8_BLOCK) {
            let (key, found) = (tensor.name.clone(), format!("shape {:?}", tensor.shape));
            let expected =
                format!("rows and columns in multiples of {LEAST_F8_BLOCK} or more for 8 bits: write f32, f16 or bf16");
            return Err(family.cannot_hold(key, found, expected));
        }
    }
    Ok(block)
}

/// Builds `quantization_config`, which lists the linear layers that are not in 8 bits.
fn quantization_config(
    map: &WeightMap,
    storages: &HashMap<String, StorageDtype>,
    carried: &[CarriedTensor],
    block: [usize; 2],
) -> Value {
    let of_layers = map.entries().iter().filter(|entry| !entry.parameter.starts_with("embedding."));
    let matrices = of_layers.flat_map(|entry| &entry.tensors).filter(|tensor| tensor.shape.len() == 2);
    let others = matrices.filter(|tensor| storages[&tensor.name] != StorageDtype::F8);
    let carried = carried.iter().filter(|tensor| tensor.shape.len() == 2).map(|tensor| &tensor.name);
    let names = others.map(|tensor| &tensor.name).chain(carried);
    let modules: Vec<&str> = names.filter_map(|name| name.strip_suffix(".weight")).collect();
    json!({
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block,
        "modules_to_not_convert": modules,
    })
}

/// Rows of a tensor, of `width` elements each, as they are stored: the bytes for each of the
/// tensors that [`stored_as`] says.
fn encode(values: &[f32], width: usize, dtype: StorageDtype, block: [usize; 2]) -> Vec<Vec<u8>> {
    match dtype {
        StorageDtype::F32 => vec![values.iter().flat_map(|v| v.to_le_bytes()).collect()],
        StorageDtype::F16 => vec![values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()],
        StorageDtype::I64 => vec![values.iter().flat_map(|v| (*v as i64).to_le_bytes()).collect()],
        StorageDtype::Bf16 => vec![values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()],
        StorageDtype::F8 => {
            let (bytes, scales) = to_scaled_e4m3(values, width, block);
            vec![bytes, scales.iter().flat_map(|v| v.to_le_bytes()).collect()]
        }
    }
}

fn scales_of(name: &str) -> String {
    format!("{name}_scale_inv")
}

/// Name, dtype and shape of the tensors that one is stored as.
fn stored_as(name: &str, shape: &[usize], dtype: StorageDtype, block: [usize; 2]) -> Vec<(String, Dtype, Vec<usize>)> {
    let as_it_is = |dtype: Dtype| (name.to_owned(), dtype, shape.to_vec());
    match dtype {
        StorageDtype::F32 => vec![as_it_is(Dtype::F32)],
        StorageDtype::F16 => vec![as_it_is(Dtype::F16)],
        StorageDtype::I64 => vec![as_it_is(Dtype::I64)],
        StorageDtype::Bf16 => vec![as_it_is(Dtype::BF16)],
        StorageDtype::F8 => {
            let (outer, matrix) = shape.split_at(shape.len() - block.len());
            let grid = matrix.iter().zip(block).map(|(size, block)| size.div_ceil(block));
            let grid = outer.iter().copied().chain(grid).collect();
            vec![as_it_is(Dtype::F8_E4M3), (scales_of(name), Dtype::F32, grid)]
        }
    }
}

fn num_bytes((_, dtype, shape): &(String, Dtype, Vec<usize>)) -> usize {
    shape.iter().product::<usize>() * dtype.bitsize() / 8
}

/// The files, one or as many as the limit asks for, and their index where they are several.
fn layouts(
    map: &WeightMap,
    storages: &HashMap<String, StorageDtype>,
    carried: &[CarriedTensor],
    block: [usize; 2],
    max_bytes: usize,
) -> Result<(Vec<FileLayout>, Option<Value>), HfError> {
    let mut stored: Vec<(String, Dtype, Vec<usize>)> = Vec::new();
    for entry in map.entries() {
        for tensor in &entry.tensors {
            let names = std::iter::once(&tensor.name).chain(&entry.copies);
            stored.extend(names.flat_map(|name| stored_as(name, &tensor.whole_shape(), storages[&tensor.name], block)));
        }
    }
    stored.extend(carried.iter().map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone())));
    stored.sort();
    // A tensor that has many parameters is there once.
    stored.dedup();
    let total: usize = stored.iter().map(num_bytes).sum();
    let mut shards: Vec<Vec<(String, Dtype, Vec<usize>)>> = vec![Vec::new()];
    let mut size = 0;
    for tensor in stored {
        let bytes = num_bytes(&tensor);
        if size > 0 && size + bytes > max_bytes {
            shards.push(Vec::new());
            size = 0;
        }
        size += bytes;
        shards.last_mut().expect("there is a shard from the start").push(tensor);
    }
    let count = shards.len();
    let mut weight_map = Map::new();
    let mut layouts = Vec::new();
    for (number, mut tensors) in shards.into_iter().enumerate() {
        // Wide elements first, so that each tensor is aligned for its dtype.
        tensors.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.bitsize()));
        let name = match count {
            1 => SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        weight_map.extend(tensors.iter().map(|(tensor, ..)| (tensor.clone(), json!(name))));
        let header = header(&tensors).map_err(|source| HfError::Safetensors { path: name.clone().into(), source })?;
        let tensors = tensors.iter().map(|tensor| (tensor.0.clone(), num_bytes(tensor))).collect();
        layouts.push(FileLayout { name, header, tensors, alignment: 1 });
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    Ok((layouts, (count > 1).then_some(index)))
}

/// Header of a safetensors file: the length of the JSON that follows, eight bytes little-endian,
/// then the JSON, padded with spaces.
fn header(tensors: &[(String, Dtype, Vec<usize>)]) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let metadata = [("format", "pt"), (MARK, PRODUCER)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut end = 0;
    let infos = tensors.iter().map(|(name, dtype, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (start, end) })
    });
    let header = Metadata::new(Some(HashMap::from(metadata)), infos.collect())?;
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([(text.len() as u64).to_le_bytes().to_vec(), text].concat())
}

fn to_json(name: &str, value: &Value) -> Result<Vec<u8>, HfError> {
    let text = to_text(value).map_err(|source| HfError::Json { path: name.into(), source })?;
    Ok((text + "\n").into_bytes())
}
