//! A Hugging Face folder as a model: its configuration, its checked tensors, and loading them into chunks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::model::{BuildContext, Declaration, ModelBuildError, ModelChunk, ModelHook, Parallel, Stage};
use bridge_data::outside;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde_json::{Map, Value};

use super::checkpoint::{HfCheckpoint, HostTensor, io};
use super::error::{HfError, TensorProblem};
use super::family::Family;
use super::fields::Fields;
use super::weight_map::{WeightEntry, WeightMap};
use crate::decoder::{DecoderConfig, build_decoder};
use crate::families::{FAMILIES, with_model_type};
use crate::sharding::local_part;

/// An opened folder whose configuration is understood and whose tensors are those of the model.
#[derive(Debug)]
pub struct HfModel {
    family: &'static Family,
    config: DecoderConfig,
    eos_token_ids: Vec<i64>,
    checkpoint: HfCheckpoint,
    map: WeightMap,
    /// The family's prefix, if the files leave it out.
    dropped_prefix: Option<&'static str>,
}

impl HfModel {
    /// Opens a folder with `config.json` and safetensors, and checks every tensor's name and shape.
    ///
    /// # Errors
    /// If a file is missing or damaged, a setting is not supported, or tensors are missing, unexpected or of other shapes:
    /// all of them are listed.
    pub fn open(folder: &Path) -> Result<Self, HfError> {
        let (family, config, eos_token_ids) = read_config(folder)?;
        let checkpoint = HfCheckpoint::open(folder)?;
        config.check_against(checkpoint.tensors().count())?;
        let map = WeightMap::new(family, &config)?;
        let has_prefix = checkpoint.tensors().any(|(name, _)| name.starts_with(family.prefix));
        let dropped_prefix = (!has_prefix).then_some(family.prefix);
        let model = Self { family, config, eos_token_ids, checkpoint, map, dropped_prefix };
        let problems = model.problems()?;
        if !problems.is_empty() {
            return Err(HfError::Tensors { path: folder.to_owned(), problems });
        }
        Ok(model)
    }

    /// The family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// The decoder that `config.json` describes.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Tokens that end a text, as `config.json` has them.
    pub fn eos_token_ids(&self) -> &[i64] {
        &self.eos_token_ids
    }

    /// Parameters with their Hugging Face names.
    pub fn weight_map(&self) -> &WeightMap {
        &self.map
    }

    /// Builds the whole model in float32 on `device` (with autodiff on, for training) with the folder's weights.
    ///
    /// # Errors
    /// Those of [`build_decoder`] and [`HfModel::load_into`].
    pub fn build(&self, device: &Device) -> Result<Box<dyn ModelChunk>, HfError> {
        let config = DecoderConfig { perform_initialization: false, ..self.config.clone() };
        let context = BuildContext {
            device: device.clone(),
            seed: 0,
            params_dtype: FloatDType::F32,
            padded_vocab_size: config.padded_vocab_size,
            parallel: Parallel::single(),
            deferred: None,
            adapter: None,
        };
        let mut chunk = build_decoder(&config, &context, &Stage::whole(config.stacks()))?;
        self.load_into(chunk.as_mut())?;
        Ok(chunk)
    }

    /// Replaces the parameters of a chunk, which may be a stage of the model, the slice of one of several ranks, and have a padded
    /// vocabulary. One whole parameter is in memory at a time.
    ///
    /// # Errors
    /// If the chunk has a parameter the folder does not, or one of another shape. The chunk is then partly loaded.
    pub fn load_into(&self, chunk: &mut dyn ModelChunk) -> Result<(), HfError> {
        let mut entries = self.entries_for(chunk)?.into_iter().zip(chunk.parameters().to_vec());
        let mut failure = None;
        chunk.update_parameters(&mut |_, old| {
            // Parameters are updated in the order they are listed in.
            let Some((entry, info)) = entries.next().filter(|_| failure.is_none()) else {
                return old.into();
            };
            match self.tensors_of(&entry) {
                Ok(tensors) => {
                    let values = local_part(entry.fuse(tensors), &info.placement, &entry.shape);
                    let count = values.len();
                    Tensor::<1>::from_data(TensorData::new(values, [count]), (&old.device(), old.dtype())).into()
                }
                Err(error) => {
                    failure = Some(error);
                    old.into()
                }
            }
        });
        failure.map_or(Ok(()), Err)
    }

    /// An entry for each of the chunk's parameters: for the whole of it, with the chunk's padded vocabulary.
    fn entries_for(&self, chunk: &dyn ModelChunk) -> Result<Vec<WeightEntry>, HfError> {
        let for_parameter = |info: &Declaration| {
            let mismatch =
                |expected: String| HfError::Parameter { name: info.name.clone(), found: info.global_shape(), expected };
            let Some(entry) = self.map.entry(&info.name) else {
                return Err(mismatch("no such parameter".into()));
            };
            entry.padded_to(&info.global_shape()).ok_or_else(|| mismatch(format!("{:?}", entry.shape)))
        };
        chunk.parameters().iter().map(for_parameter).collect()
    }

    fn tensors_of(&self, entry: &WeightEntry) -> Result<Vec<HostTensor>, HfError> {
        entry.tensors.iter().map(|(name, _)| self.checkpoint.read(self.name_in_file(name))).collect()
    }

    fn name_in_file<'a>(&self, name: &'a str) -> &'a str {
        let former = || self.family.weights.iter().copied().flatten().find_map(|rule| rule.former_name(name));
        match self.checkpoint.shape(name).is_none().then(former).flatten() {
            Some(former) if self.checkpoint.shape(former).is_some() => former,
            Some(_) | None => self.dropped_prefix.and_then(|prefix| name.strip_prefix(prefix)).unwrap_or(name),
        }
    }

    /// Everything that is wrong with the tensors.
    fn problems(&self) -> Result<Vec<TensorProblem>, HfError> {
        let mut problems = Vec::new();
        let mut expected = std::collections::BTreeSet::new();
        for (name, shape) in self.map.entries().iter().flat_map(|entry| &entry.tensors) {
            let name = self.name_in_file(name);
            expected.insert(name);
            match self.checkpoint.shape(name) {
                None => problems.push(TensorProblem::Missing { name: name.to_owned(), expected: shape.clone() }),
                Some(found) if found != shape => problems.push(TensorProblem::Shape {
                    name: name.to_owned(),
                    expected: shape.clone(),
                    found: found.to_vec(),
                }),
                Some(_) => {}
            }
        }
        for (name, shape) in self.checkpoint.tensors() {
            let is_buffer = self.family.buffers.iter().any(|suffix| name.ends_with(suffix));
            if expected.contains(name) || is_buffer {
                continue;
            }
            if name == OUTPUT && self.config.share_embeddings_and_output_weights {
                problems.extend(self.tie_problem(&problems)?);
            } else {
                problems.push(TensorProblem::Unexpected { name: name.to_owned(), found: shape.to_vec() });
            }
        }
        Ok(problems)
    }

    /// Files of tied models may repeat the embedding as the output's weight; it must be the same.
    fn tie_problem(&self, earlier: &[TensorProblem]) -> Result<Option<TensorProblem>, HfError> {
        let entry = self.map.entry("embedding.word_embeddings.weight");
        let Some((name, _)) = entry.and_then(|entry| entry.tensors.first()) else {
            return Ok(None);
        };
        let embedding = self.name_in_file(name);
        let is_readable = !earlier.iter().any(|problem| {
            matches!(problem, TensorProblem::Missing { name, .. } | TensorProblem::Shape { name, .. } if name == embedding)
        });
        if !is_readable || self.checkpoint.read(OUTPUT)? == self.checkpoint.read(embedding)? {
            return Ok(None);
        }
        Ok(Some(TensorProblem::NotTied { name: OUTPUT.to_owned(), expected: embedding.to_owned() }))
    }
}

const OUTPUT: &str = "lm_head.weight";

/// A hook that loads the weights of a folder into the chunks of a model, for [`crate::GptModelConfig`].
pub fn import_hook(folder: PathBuf) -> ModelHook {
    Arc::new(move |mut chunks| {
        let failed = |error: HfError| match error {
            HfError::Model(error) => error,
            other => ModelBuildError::Invalid { key: folder.display().to_string(), message: other.to_string() },
        };
        let model = HfModel::open(&folder).map_err(failed)?;
        for chunk in &mut chunks {
            model.load_into(chunk.as_mut()).map_err(failed)?;
        }
        Ok(chunks)
    })
}

/// Family, decoder and end-of-text tokens of a folder's `config.json`.
pub(super) fn read_config(folder: &Path) -> Result<(&'static Family, DecoderConfig, Vec<i64>), HfError> {
    let path = folder.join("config.json");
    let text = outside::read_text(&path, outside::SETTINGS_BYTES).map_err(|source| io(&path, source))?;
    let values: Map<String, Value> = serde_json::from_str(&text).map_err(|source| HfError::Json { path, source })?;
    let fields = Fields::new(&values);
    let known = || {
        let names: Vec<_> = FAMILIES.iter().map(|family| family.model_type()).collect();
        format!("one of {}", names.join(", "))
    };
    let model_type =
        fields.string("model_type")?.ok_or_else(|| fields.error("model_type", "no such setting", &known()))?;
    let family = with_model_type(model_type)
        .ok_or_else(|| fields.error("model_type", &format!("\"{model_type}\""), &known()))?;
    if fields.get("quantization_config").is_some() {
        return Err(fields.error("quantization_config", "a table", "no quantization"));
    }
    let config = family.decoder_config(&fields)?;
    config.validate()?;
    let eos_token_ids = match fields.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().map(|id| token_id(&fields, id)).collect::<Result<_, _>>()?,
        Some(id) => vec![token_id(&fields, id)?],
        None => Vec::new(),
    };
    Ok((family, config, eos_token_ids))
}

/// A token that ends a text. It may be outside the vocabulary, as that of small models often is: no text ends with it then.
fn token_id(fields: &Fields, id: &Value) -> Result<i64, HfError> {
    let known = id.as_i64().filter(|id| (0..=i64::from(u32::MAX)).contains(id));
    known.ok_or_else(|| fields.error("eos_token_id", &id.to_string(), "a token id, or a list of them"))
}
