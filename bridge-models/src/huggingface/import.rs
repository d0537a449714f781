//! A Hugging Face folder as a model: its configuration, its checked tensors, and loading them into
//! chunks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::model::{
    Adapter, BuildContext, Declaration, ModelBuildError, ModelChunk, ModelHook, Parallel, Placement, Stage,
};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde_json::{Map, Value};

use super::checkpoint::HfCheckpoint;
use super::described::{Architecture, Described, read_folder, unread_keys_message};
use super::error::{HfError, TensorProblem};
use super::family::Family;
use super::fields::Fields;
use super::gguf::GgufModel;
use super::multimodal::{Carried, Layout, Multimodal, TextTensors};
use super::recipe_keys::in_file;
use super::runs::BLOCK;
use super::source::TensorSource;
use super::weight_map::{ExpertLayout, StoredTensor, WeightEntry, WeightMap};
use crate::decoder::{DecoderConfig, build_decoder, name_behind_layers};

/// A Hugging Face folder or GGUF file: its configuration, and tensors with the names and shapes
/// that the model needs.
#[derive(Debug)]
pub struct HfModel {
    family: &'static Family,
    config: DecoderConfig,
    eos_token_ids: Vec<i64>,
    settings: Map<String, Value>,
    /// Files of the tokenizer that are in the same file as the tensors.
    tokenizer_files: BTreeMap<String, Vec<u8>>,
    source: Box<dyn TensorSource>,
    map: WeightMap,
    experts: ExpertLayout,
    /// The family's prefix, if the files leave it out.
    dropped_prefix: Option<&'static str>,
    /// Names in the files of tensors that are stored under an alternative name only.
    aliases: BTreeMap<String, String>,
    /// Keys of `config.json` that have no effect here.
    unread: Vec<String>,
    /// The whole folder, if the model is the language model of a multimodal one.
    whole: Option<Whole>,
}

/// A multimodal folder.
#[derive(Debug)]
struct Whole {
    config: Multimodal,
    carried: Carried,
    files: Arc<HfCheckpoint>,
}

impl HfModel {
    /// Opens a folder with `config.json` and safetensors, or a GGUF file, and checks every tensor's
    /// name and shape.
    ///
    /// # Errors
    /// If a file is missing or damaged, a setting is not supported, or tensors are missing,
    /// unexpected or of other shapes: all of them are listed.
    pub fn open(folder: &Path) -> Result<Self, HfError> {
        if !folder.is_dir() {
            let GgufModel { settings, source, companions, unread } = GgufModel::open(folder)?;
            let architecture = Architecture::new(&Fields::new(&settings));
            let architecture = architecture.map_err(|error| in_file(folder, &settings, error))?;
            return Ok(Self { unread, ..Self::new(folder, architecture, settings, companions, Box::new(source))? });
        }
        let beside = folder.join("adapter_config.json");
        if beside.is_file() {
            return Err(HfError::AdapterBeside { path: beside });
        }
        let described = read_folder(folder, None)?;
        let is_said = described.multimodal.as_ref().is_none_or(|whole| whole.is_tied().is_some());
        match Self::from_described(folder, described) {
            // As in transformers, a head with values of its own is not tied if no key says so.
            Err(HfError::Tensors { problems, .. })
                if !is_said && problems.iter().any(|problem| matches!(problem, TensorProblem::NotTied { .. })) =>
            {
                Self::from_described(folder, read_folder(folder, Some(false))?)
            }
            opened => opened,
        }
    }

    fn from_described(folder: &Path, described: Described) -> Result<Self, HfError> {
        let Described { settings, multimodal, architecture, unread } = described;
        let files = HfCheckpoint::open_named(folder, architecture.weights.as_deref())?
            .dequantized(architecture.quantization)?;
        let file = folder.join("config.json");
        let Some(config) = multimodal else {
            return Ok(Self { unread, ..Self::new(&file, architecture, settings, BTreeMap::new(), Box::new(files))? });
        };
        let (files, family) = (Arc::new(files), architecture.family);
        let (source, mut carried) = TextTensors::new(files.clone(), family, config.modules())?;
        let model = Self::new(&file, architecture, settings, BTreeMap::new(), Box::new(source));
        let model = model.map_err(|error| match error {
            HfError::Tensors { path, problems } => {
                let rename = |name: &str| carried.text.layout.name_in_file(family.prefix, name);
                let problems = problems.into_iter().map(|problem| problem.renamed(&rename)).collect();
                HfError::Tensors { path, problems }
            }
            other => other,
        })?;
        carried.text.experts = model.experts;
        Ok(Self { unread, whole: Some(Whole { config, carried, files }), ..model })
    }

    /// A model with these tensors. `file` has the settings.
    fn new(
        file: &Path,
        architecture: Architecture,
        settings: Map<String, Value>,
        tokenizer_files: BTreeMap<String, Vec<u8>>,
        source: Box<dyn TensorSource>,
    ) -> Result<Self, HfError> {
        let Architecture { family, mut config, eos_token_ids, .. } = architecture;
        let num_tensors = source.tensors().map(|(_, shape)| most_matrices(shape)).sum();
        config.check_against(num_tensors).map_err(|error| in_file(file, &settings, error.into()))?;
        if let Some(moe) = config.moe.as_mut().filter(|moe| moe.num_identity_experts > 0) {
            moe.identity_weights = source.tensors().any(|(name, _)| is_of_identity(name, moe.num_experts));
        }
        let experts = ExpertLayout::Apart;
        let map = WeightMap::new(family, &config, experts)?;
        let has_prefix = source.tensors().any(|(name, _)| name.starts_with(family.prefix));
        let dropped_prefix = (!has_prefix).then_some(family.prefix);
        let (unread, aliases) = (Vec::new(), BTreeMap::new());
        let mut model = Self {
            family,
            config,
            eos_token_ids,
            settings,
            tokenizer_files,
            source,
            map,
            experts,
            dropped_prefix,
            aliases,
            unread,
            whole: None,
        };
        if !model.has_mtp_tensors() {
            model = model.without_mtp()?;
        }
        model.aliases = model.find_aliases();
        let mut problems = model.problems()?;
        for layout in [ExpertLayout::Stacked, ExpertLayout::StackedInputs] {
            if problems.is_empty() {
                break;
            }
            let stacked = WeightMap::new(family, &model.config, layout)?;
            let before = std::mem::replace(&mut model.map, stacked);
            let others = model.problems()?;
            if others.len() < problems.len() {
                (problems, model.experts) = (others, layout);
            } else {
                model.map = before;
            }
        }
        if !problems.is_empty() {
            let path = model.source.path().to_owned();
            return Err(model.diagnose_wrapped_names().unwrap_or(HfError::Tensors { path, problems }));
        }
        Ok(model)
    }

    /// True if files have a tensor of the layers of multi-token prediction. Transformers drops them
    /// and leaves the setting with their number.
    fn has_mtp_tensors(&self) -> bool {
        self.mtp_tensors().any(|stored| self.source.shape(self.name_in_file(&stored.name)).is_some())
    }

    /// The tensors of the layers of multi-token prediction.
    pub fn mtp_tensors(&self) -> impl Iterator<Item = &StoredTensor> {
        let is_behind = |entry: &&WeightEntry| name_behind_layers(&entry.parameter, self.config.num_layers).is_some();
        self.map.entries().iter().filter(is_behind).flat_map(|entry| &entry.tensors)
    }

    /// The model without its layers of multi-token prediction, as transformers has it.
    ///
    /// # Errors
    /// If the family has no place for one of the parameters.
    pub fn without_mtp(mut self) -> Result<Self, HfError> {
        if self.config.mtp_num_layers > 0 {
            self.config.mtp_num_layers = 0;
            self.map = WeightMap::new(self.family, &self.config, self.experts)?;
        }
        Ok(self)
    }

    /// The family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Warning for users of the model: keys of `config.json` that are set and that have no effect
    /// here. A model with code of its own may compute something else then.
    pub fn unused_warning(&self) -> Option<String> {
        let dropped: Vec<&str> =
            self.source.tensors().map(|(name, _)| name).filter(|name| self.is_dropped(name)).collect();
        let of_tensors = dropped.first().map(|name| {
            let (path, count) = (self.source.path().display(), dropped.len());
            format!("{path}: not read, as in transformers: {count} tensors such as `{name}`")
        });
        let warnings: Vec<String> =
            unread_keys_message(self.source.path(), &self.unread).into_iter().chain(of_tensors).collect();
        (!warnings.is_empty()).then(|| warnings.join("\nwarning: "))
    }

    /// True if transformers ignores a tensor of this name.
    fn is_dropped(&self, name: &str) -> bool {
        self.family.dropped.iter().any(|start| name.starts_with(start))
    }

    /// The decoder that `config.json` describes.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Layout of the experts of a layer in the files.
    pub fn experts(&self) -> ExpertLayout {
        self.experts
    }

    /// Tokens that end a text, as `config.json` has them.
    pub fn eos_token_ids(&self) -> &[i64] {
        &self.eos_token_ids
    }

    /// The table of `config.json`, or its counterpart in a GGUF file.
    pub fn settings(&self) -> &Map<String, Value> {
        self.whole.as_ref().map_or(&self.settings, |whole| whole.config.settings())
    }

    /// Tensors of a multimodal folder besides those of its language model; `None` for other models.
    pub fn carried(&self) -> Option<&Carried> {
        self.whole.as_ref().map(|whole| &whole.carried)
    }

    /// Bytes of one of these tensors.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn carried_bytes(&self, name: &str) -> Result<&[u8], HfError> {
        let missing = || HfError::NoTensor { path: self.source.path().to_owned(), name: name.to_owned() };
        Ok(self.whole.as_ref().ok_or_else(missing)?.files.raw(name)?.1)
    }

    /// Names of modules that transformers 5 has for the language model of a multimodal folder.
    pub(crate) fn module_layout(&self) -> Option<Layout> {
        self.whole.as_ref().map(|whole| whole.config.modules())
    }

    /// Name in the files of a tensor, for users.
    pub fn shown_name(&self, name: &str) -> String {
        let name = self.name_in_file(name);
        match &self.whole {
            Some(whole) => whole.carried.text.layout.name_in_file(self.family.prefix, name),
            None => name.to_owned(),
        }
    }

    /// Files of the tokenizer by name, if the model is a GGUF file.
    pub fn tokenizer_files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.tokenizer_files
    }

    /// Parameters with their Hugging Face names.
    pub fn weight_map(&self) -> &WeightMap {
        &self.map
    }

    /// Builds the whole model in float32 on `device` (with autodiff on, for training) with the
    /// folder's weights.
    ///
    /// # Errors
    /// Errors of [`build_decoder`] and [`HfModel::load_into`].
    pub fn build(&self, device: &Device) -> Result<Box<dyn ModelChunk>, HfError> {
        self.build_with(device, None)
    }

    /// [`Self::build`] with an adapter, whose parameters have their initial values.
    ///
    /// # Errors
    /// Errors of [`Self::build`].
    pub fn build_with(
        &self,
        device: &Device,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Box<dyn ModelChunk>, HfError> {
        let config = DecoderConfig { perform_initialization: false, ..self.config.clone() };
        let context = BuildContext {
            device: device.clone(),
            seed: 0,
            params_dtype: FloatDType::F32,
            padded_vocab_size: config.padded_vocab_size,
            parallel: Parallel::single(),
            deferred: None,
            adapter,
        };
        let mut chunk = build_decoder(&config, &context, &Stage::whole(config.stacks()))?;
        self.load_into(chunk.as_mut())?;
        Ok(chunk)
    }

    /// Replaces the parameters of a chunk but those of its adapter. It may be a stage of the model,
    /// the slice of one of several ranks, and have a padded vocabulary. Only that part is read, one
    /// parameter after the other.
    ///
    /// # Errors
    /// If the chunk has a parameter the folder does not, or one of another shape. The chunk is then
    /// partly loaded.
    pub fn load_into(&self, chunk: &mut dyn ModelChunk) -> Result<(), HfError> {
        let mut entries = self.entries_for(chunk)?.into_iter().zip(chunk.parameters().to_vec());
        let mut failure = None;
        chunk.update_parameters(&mut |_, old| {
            // Parameters are updated in the order they are listed in.
            let Some((Some(entry), info)) = entries.next().filter(|_| failure.is_none()) else { return old.into() };
            match self.local_part(&entry, &info.placement) {
                Ok(values) => {
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

    /// An entry for each of the chunk's parameters that a plain model has: for the whole of it,
    /// with the chunk's padded vocabulary.
    fn entries_for(&self, chunk: &dyn ModelChunk) -> Result<Vec<Option<WeightEntry>>, HfError> {
        let for_parameter = |info: &Declaration| {
            let mismatch =
                |expected: String| HfError::Parameter { name: info.name.clone(), found: info.global_shape(), expected };
            let Some(entry) = self.map.entry(&info.name) else { return Err(mismatch("no such parameter".into())) };
            entry.padded_to(&info.global_shape()).ok_or_else(|| mismatch(format!("{:?}", entry.shape)))
        };
        let entry = |info: &Declaration| (!info.is_added()).then(|| for_parameter(info)).transpose();
        chunk.parameters().iter().map(entry).collect()
    }

    /// The part of a parameter that a rank holds.
    fn local_part(&self, entry: &WeightEntry, placement: &Placement) -> Result<Vec<f32>, HfError> {
        let (rows, width) = (entry.shape[0], entry.row_length());
        let Some(shard) = &placement.shard else { return self.part(entry, 0..rows, 0..width) };
        match shard.dim {
            0 => {
                let parts = shard.parts.iter().map(|part| self.part(entry, part.clone(), 0..width));
                Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
            }
            1 => {
                let inner: usize = entry.shape[2..].iter().product();
                let parts = shard.parts.iter().map(|part| part.start * inner..part.end * inner);
                let parts: Vec<_> = parts
                    .map(|part| Ok((part.len(), self.part(entry, 0..rows, part)?)))
                    .collect::<Result<_, HfError>>()?;
                let row =
                    |row: usize| parts.iter().flat_map(move |(width, part)| &part[row * width..(row + 1) * width]);
                Ok((0..rows).flat_map(row).copied().collect())
            }
            other => unreachable!("parameters are cut along rows or columns, not dimension {other}"),
        }
    }

    /// Rows of a parameter, for streaming it.
    ///
    /// # Errors
    /// As [`TensorSource::read_into`].
    pub fn rows(&self, entry: &WeightEntry, rows: Range<usize>) -> Result<Vec<f32>, HfError> {
        self.part(entry, rows, 0..entry.row_length())
    }

    fn part(&self, entry: &WeightEntry, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<f32>, HfError> {
        entry.read_part(rows, columns, self.source.as_ref(), &|name| self.name_in_file(name).to_owned())
    }

    /// Source of the tensors.
    pub fn source(&self) -> &dyn TensorSource {
        self.source.as_ref()
    }

    /// Name of a tensor in the [source](Self::source).
    pub fn name_in_file<'a>(&'a self, name: &'a str) -> &'a str {
        if let Some(other) = self.aliases.get(name) {
            return other;
        }
        let legacy_name = || self.family.weights.iter().copied().flatten().find_map(|rule| rule.legacy_name_of(name));
        match self.source.shape(name).is_none().then(legacy_name).flatten() {
            Some(legacy) if self.source.shape(legacy).is_some() => legacy,
            Some(_) | None => self.dropped_prefix.and_then(|prefix| name.strip_prefix(prefix)).unwrap_or(name),
        }
    }

    /// Missing, unexpected and misshapen tensors.
    fn problems(&self) -> Result<Vec<TensorProblem>, HfError> {
        let mut problems = Vec::new();
        let mut expected = std::collections::BTreeSet::new();
        for stored in self.map.entries().iter().flat_map(|entry| &entry.tensors) {
            let (name, shape) = (self.name_in_file(&stored.name), stored.whole_shape());
            // Parameters that are parts of one tensor have one problem with it.
            if !expected.insert(name) {
                continue;
            }
            match self.source.shape(name) {
                None => problems.push(TensorProblem::Missing { name: name.to_owned(), expected: shape }),
                Some(found) if found != shape => problems.push(TensorProblem::Shape {
                    name: name.to_owned(),
                    expected: shape,
                    found: found.to_vec(),
                }),
                Some(_) => {}
            }
        }
        let copies = self.copies();
        for (name, shape) in self.source.tensors() {
            let is_buffer = self.family.buffers.iter().any(|suffix| name.ends_with(suffix));
            if expected.contains(name) || is_buffer || self.is_dropped(name) {
                continue;
            }
            match copies.get(name) {
                Some(original) => problems.extend(self.tie_problem(name, original, &problems)?),
                None => problems.push(TensorProblem::Unexpected { name: name.to_owned(), found: shape.to_vec() }),
            }
        }
        Ok(problems)
    }

    /// Tensors that files may repeat, by the names that they have then: the embedding of a tied
    /// model as the output's weight, the one of several stacks as each of theirs, embedding and
    /// output in layers of multi-token prediction.
    fn copies(&self) -> HashMap<&str, &str> {
        let entries = self.map.entries().iter();
        let copied = entries.flat_map(|entry| entry.copies.iter().map(move |copy| (copy.as_str(), entry)));
        let all = copied.chain(self.alternative_names());
        all.map(|(copy, entry)| (self.name_in_file(copy), self.name_in_file(&entry.tensors[0].name))).collect()
    }

    /// Alternative names of tensors, of which files may contain any.
    fn alternative_names(&self) -> impl Iterator<Item = (&str, &WeightEntry)> {
        let is_tied = self.config.share_embeddings_and_output_weights;
        let rules = self.family.weights.iter().copied().flatten().filter(move |_| is_tied);
        let of_output = rules.flat_map(|rule| rule.own_names("output_layer.weight"));
        let embedding = self.map.entry("embedding.word_embeddings.weight");
        let tied = of_output.filter_map(move |name| Some((name, embedding?)));
        let all = self.map.entries().iter();
        tied.chain(all.flat_map(|entry| entry.optional_aliases.iter().map(move |name| (*name, entry))))
    }

    /// Maps each tensor that the files have only under an alternative name to that name.
    fn find_aliases(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for (name, entry) in self.alternative_names() {
            let own = &entry.tensors[0].name;
            let is_there = |name: &str| self.source.shape(self.name_in_file(name)).is_some();
            if !is_there(own) && is_there(name) {
                found.entry(own.clone()).or_insert_with(|| self.name_in_file(name).to_owned());
            }
        }
        found
    }

    /// Diagnoses names that a wrapper has changed: returns an error if most match the model's
    /// without its prefix.
    fn diagnose_wrapped_names(&self) -> Option<HfError> {
        const WRAPPERS: [(&str, &str); 4] = [
            (
                "_orig_mod.",
                "torch.compile left it: save the model from before, `model._orig_mod.save_pretrained(FOLDER)`",
            ),
            ("module.", "DataParallel left it: save the model inside, `model.module.save_pretrained(FOLDER)`"),
            ("_fsdp_wrapped_module.", "FSDP left it: save a full state dict of the model inside"),
            ("_checkpoint_wrapped_module.", "a wrapper for recompute left it: save the model inside"),
        ];
        let stored = self.map.entries().iter().flat_map(|entry| &entry.tensors).map(|stored| stored.name.as_str());
        let own: HashSet<&str> = stored.collect();
        let without_prefix = own.iter().filter_map(|name| name.strip_prefix(self.family.prefix));
        let expected: HashSet<&str> = own.iter().copied().chain(without_prefix).collect();
        let mut counts: BTreeMap<&str, (usize, &str, String)> = BTreeMap::new();
        for (name, _) in self.source.tensors().filter(|(name, _)| !expected.contains(name)) {
            let wrapper = WRAPPERS.iter().find(|(inserted, _)| expected.contains(name.replace(inserted, "").as_str()));
            let mut prefixes = name.match_indices('.').map(|(at, _)| &name[..=at]);
            let inserted = match wrapper {
                Some((inserted, _)) => Some(*inserted),
                None => prefixes.find(|prefix| expected.contains(&name[prefix.len()..])),
            };
            if let Some(inserted) = inserted {
                counts.entry(inserted).or_insert_with(|| (0, name, name.replacen(inserted, "", 1))).0 += 1;
            }
        }
        let (inserted, (count, example, meant)) = counts.into_iter().max_by_key(|(_, (count, ..))| *count)?;
        if 2 * count < own.len() {
            return None;
        }
        let remedy = WRAPPERS.iter().find(|(known, _)| *known == inserted).map(|(_, remedy)| *remedy);
        Some(HfError::Wrapped {
            path: self.source.path().to_owned(),
            count,
            inserted: inserted.to_owned(),
            example: example.to_owned(),
            expected: meant,
            remedy: remedy.unwrap_or("write the folder anew with the names of the language model alone"),
        })
    }

    /// Repeated tensors must be equal.
    fn tie_problem(
        &self,
        copy: &str,
        original: &str,
        earlier: &[TensorProblem],
    ) -> Result<Option<TensorProblem>, HfError> {
        let is_readable = !earlier.iter().any(|problem| {
            matches!(problem, TensorProblem::Missing { name, .. } | TensorProblem::Shape { name, .. } if name == original)
        });
        if !is_readable || self.are_equal(copy, original)? {
            return Ok(None);
        }
        Ok(Some(TensorProblem::NotTied { name: copy.to_owned(), expected: original.to_owned() }))
    }

    /// True if two tensors have the same shape and values.
    fn are_equal(&self, one: &str, other: &str) -> Result<bool, HfError> {
        let [Some(shape), Some(same)] = [one, other].map(|name| self.source.shape(name)) else { return Ok(false) };
        if shape != same {
            return Ok(false);
        }
        let count: usize = shape.iter().product();
        for start in (0..count).step_by(BLOCK) {
            let mut values = [0, 1].map(|_| vec![0.0; BLOCK.min(count - start)]);
            self.source.read_into(one, start, &mut values[0])?;
            self.source.read_into(other, start, &mut values[1])?;
            if values[0] != values[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// True if a tensor has matrices of identity experts, which follow `num_experts` others.
fn is_of_identity(name: &str, num_experts: usize) -> bool {
    let expert = name.split_once(".experts.").and_then(|(_, rest)| rest.split('.').next()?.parse::<usize>().ok());
    expert.map_or(name.ends_with(".experts.gate_up_proj"), |expert| expert >= num_experts)
}

/// Largest number of matrices in a tensor of this shape: the first of its three dimensions, if it
/// is not empty.
fn most_matrices(shape: &[usize]) -> usize {
    match *shape {
        [count, rows, columns] if rows > 0 && columns > 0 => count.max(1),
        _ => 1,
    }
}

/// A hook that loads the weights of a folder into the chunks of a model, for
/// [`crate::GptModelConfig`].
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
