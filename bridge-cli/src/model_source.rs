//! A model for inference, from a checkpoint or from a Hugging Face folder.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, LoadRequest, RUN_CONFIG_FILE, Resolution, Snapshot, named,
};
use bridge_core::config::{Format, RawConfig};
use bridge_core::logging::terminal::complain;
use bridge_core::model::{BuildContext, ModelChunk, Parallel, Stage};
use bridge_core::optim::AVERAGE;
use bridge_core::train::{AdapterBase, load_adapted, load_parameters, open_base};
use bridge_data::chat::ChatTemplate;
use bridge_data::tokenizer::{HuggingFaceTokenizer, NullTokenizer, Tokenizer};
use bridge_data::untrusted_io;
use bridge_models::adapters::{LowRankAdapter, low_rank_adapter};
use bridge_models::decoder::{KIND, MAMBA_KIND, build_decoder, section_of_kind};
use bridge_models::huggingface::{HfModel, is_companion};
use bridge_models::{DecoderConfig, registry};
use burn::tensor::{Device, FloatDType};

use crate::failure::Failure;
use crate::foreign::open_foreign;
use crate::generation_settings::GenerationSettings;
use crate::rooted::start_folder;

/// The parameter whose rows are the vocabulary.
const EMBEDDING: &str = "embedding.word_embeddings.weight";

/// Folder of checkpoints in the folder of a run.
const CHECKPOINTS: &str = "checkpoints";

/// A model with its tokenizer.
pub struct LoadedModel {
    /// The model, without autodiff.
    pub chunk: Box<dyn ModelChunk>,
    /// Architecture of the model.
    pub config: DecoderConfig,
    /// Tokenizer of the model, if it has one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Tokens that end a text.
    pub stop_tokens: Vec<i64>,
    /// Chat template of the model, if it has one.
    pub chat_template: Option<ChatTemplate>,
    /// Generation settings of the model's folder.
    pub generation: GenerationSettings,
    /// The checkpoint it was loaded from, if any.
    pub checkpoint: Option<Checkpoint>,
}

impl LoadedModel {
    /// Tokenizer of the model. `name` is the user's name of the model. Fails if it has none.
    pub fn tokenizer_of(&self, name: &Path) -> Result<&dyn Tokenizer, Failure> {
        let missing = || Failure::input(format!("{}: there is no tokenizer (expected tokenizer.json)", name.display()));
        self.tokenizer.as_deref().ok_or_else(missing)
    }
}

/// A model that is found and whose tensors are those of its configuration, of which nothing is in
/// memory yet.
pub enum Found {
    /// A Hugging Face folder, or a GGUF file.
    HuggingFace(Box<HfModel>),
    /// A checkpoint with its architecture.
    Checkpoint(Box<Checkpoint>, Box<DecoderConfig>),
}

/// A checkpoint of an adapter, and the base that it was trained on.
pub struct Adapted {
    /// Checkpoint of the adapter.
    pub checkpoint: Checkpoint,
    /// Checkpoint of the base.
    pub base: Arc<Checkpoint>,
    /// The base's architecture.
    pub config: DecoderConfig,
    /// Adapter that the base is built with.
    pub adapter: LowRankAdapter,
}

impl Adapted {
    /// Finds an adapter by the same names and paths as [`find`]; `None` if something else is there.
    pub fn find(name: &Path) -> Result<Option<Self>, Failure> {
        let path = locate(name)?;
        if is_foreign(&path) {
            return Ok(None);
        }
        let checkpoint = open_checkpoint(&path)?;
        let named = AdapterBase::named_by(&checkpoint).map_err(Failure::input)?;
        let Some(named) = named else { return Ok(None) };
        let raw = recipe(&checkpoint)?;
        let started = start_folder(&raw, checkpoint.path()).unwrap_or_default();
        let told = raw.checkpoint.pretrained_checkpoint.as_ref().map(|told| started.join(told));
        let (foreign, told): (Vec<_>, Vec<_>) = told.into_iter().partition(|told| is_foreign(told));
        // The path at which the run had the base, or else that of the recipe.
        let places: Vec<PathBuf> = named.path.parent().map(Path::to_owned).into_iter().chain(told).collect();
        let root = places.iter().find(|root| root.is_dir()).ok_or_else(|| {
            let listed: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            let (path, listed) = (checkpoint.path().display(), listed.join(" or "));
            let import =
                foreign.iter().map(|folder| format!("`bridge convert import {} BASE`, then ", folder.display()));
            let remedy = format!("{}name BASE, and this by --adapter", import.collect::<String>());
            Failure::input(format!("{path}: found an adapter, expected its base in {listed}: {remedy}"))
        })?;
        Self::from_checkpoint(checkpoint, root).map(Some)
    }

    /// The adapter of `checkpoint`, whose base is one of the checkpoints at `root`.
    pub fn from_checkpoint(checkpoint: Checkpoint, root: &Path) -> Result<Self, Failure> {
        let raw = recipe(&checkpoint)?;
        let base = Arc::new(open_base(root, &checkpoint).map_err(Failure::input)?);
        let config = decoder_config(&base)?;
        check_tensors(&base, &config)?;
        let section = raw.model.config.finalize().map_err(|errors| in_run_config(&checkpoint, errors))?;
        let missing = || in_run_config(&checkpoint, "expected [peft]: the checkpoint is one of an adapter");
        let adapter = low_rank_adapter(raw.peft.as_ref().ok_or_else(missing)?, &section);
        let adapter = adapter.map_err(|error| in_run_config(&checkpoint, error))?;
        Ok(Self { checkpoint, base, config, adapter })
    }

    /// Builds the base with the adapter, without autodiff.
    pub fn build(&self, device: &Device) -> Result<Box<dyn ModelChunk>, Failure> {
        let context = BuildContext { adapter: Some(Arc::new(self.adapter.clone())), ..context(&self.config, device) };
        let mut chunk = blank(&self.config, &context)?;
        load_adapted(chunk.as_mut(), &self.checkpoint, &self.base).map_err(Failure::input)?;
        Ok(chunk.inference())
    }

    /// Companions of the checkpoint, or else those of its base.
    pub fn companions(&self) -> Result<Companions, Failure> {
        let own = companions_of(&self.checkpoint)?;
        if own.tokenizer.is_some() { Ok(own) } else { companions_of(&self.base) }
    }

    /// Builds the model, with its companions.
    pub fn load(self, device: &Device) -> Result<LoadedModel, Failure> {
        Ok(self.companions()?.of_model(self.build(device)?, self.config, Some(self.checkpoint)))
    }
}

/// Finds a model by the name or folder of its run, a checkpoint folder, one of its `iter_` folders,
/// a Hugging Face folder, or a GGUF file.
pub fn find(name: &Path) -> Result<Found, Failure> {
    let path = &locate(name)?;
    if is_foreign(path) {
        return Ok(Found::HuggingFace(Box::new(open_foreign(path)?)));
    }
    let checkpoint = open_checkpoint(path)?;
    if AdapterBase::named_by(&checkpoint).map_err(Failure::input)?.is_some() {
        let text = "expected a checkpoint of a whole model, found one of an adapter";
        return Err(Failure::input(format!("{}: {text}", checkpoint.path().display())));
    }
    let config = decoder_config(&checkpoint)?;
    check_tensors(&checkpoint, &config)?;
    Ok(Found::Checkpoint(Box::new(checkpoint), Box::new(config)))
}

/// A checkpoint with the moving averages of its weights (`optimizer.ema_decay`).
pub fn with_averages(mut checkpoint: Checkpoint) -> Result<Checkpoint, Failure> {
    if checkpoint.replace_by(&format!("optimizer.{AVERAGE}.")) {
        return Ok(checkpoint);
    }
    let path = checkpoint.path().display();
    Err(Failure::input(format!("--ema: {path} has no averages of weights, which optimizer.ema_decay keeps")))
}

/// True if there is a Hugging Face folder or a GGUF file.
pub fn is_foreign(path: &Path) -> bool {
    let is_folder = path.join("config.json").is_file() && !path.join("metadata.json").is_file();
    is_folder || path.extension().is_some_and(|extension| extension == "gguf")
}

/// Companions of a model's weights.
pub struct Companions {
    /// Tokenizer of the model, if it has one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Tokens that end a text.
    pub stop_tokens: Vec<i64>,
    /// Chat template of the model, if it has one.
    pub chat_template: Option<ChatTemplate>,
    /// Generation settings of the model's folder.
    pub generation: GenerationSettings,
}

impl Companions {
    /// The model that they belong to.
    pub fn of_model(
        self,
        chunk: Box<dyn ModelChunk>,
        config: DecoderConfig,
        checkpoint: Option<Checkpoint>,
    ) -> LoadedModel {
        let Self { tokenizer, stop_tokens, chat_template, generation } = self;
        LoadedModel { chunk, config, tokenizer, stop_tokens, chat_template, generation, checkpoint }
    }

    /// Companions in a Hugging Face folder; `eos` are further end tokens.
    fn in_folder(folder: &Path, eos: &[i64]) -> Result<Self, Failure> {
        let tokenizer: Option<Arc<dyn Tokenizer>> = match HuggingFaceTokenizer::is_in(folder) {
            true => Some(Arc::new(HuggingFaceTokenizer::load(folder).map_err(Failure::input)?)),
            false => None,
        };
        let generation = GenerationSettings::load(folder)?;
        let stop_tokens = eos.iter().chain(&generation.stop_tokens).copied().collect();
        let chat_template = ChatTemplate::load(folder).map_err(Failure::input)?;
        Ok(Self { tokenizer, stop_tokens, chat_template, generation })
    }
}

impl Found {
    /// Architecture of the model.
    pub fn config(&self) -> &DecoderConfig {
        match self {
            Self::HuggingFace(model) => model.config(),
            Self::Checkpoint(_, config) => config,
        }
    }

    /// Companions of the model's weights.
    pub fn companions(&self) -> Result<Companions, Failure> {
        match self {
            Self::HuggingFace(model) => companions_of_foreign(model),
            Self::Checkpoint(checkpoint, _) => companions_of(checkpoint),
        }
    }

    /// Builds it with its weights, without autodiff.
    pub fn build(&self, device: &Device) -> Result<Box<dyn ModelChunk>, Failure> {
        match self {
            Self::HuggingFace(model) => {
                Ok(model.build(&device.clone().autodiff()).map_err(Failure::input)?.inference())
            }
            Self::Checkpoint(checkpoint, config) => build_whole(checkpoint, config, device),
        }
    }
}

/// The model of a checkpoint, without autodiff.
pub fn build_whole(
    checkpoint: &Checkpoint,
    config: &DecoderConfig,
    device: &Device,
) -> Result<Box<dyn ModelChunk>, Failure> {
    let mut chunk = blank(config, &context(config, device))?;
    load_parameters(chunk.as_mut(), checkpoint).map_err(Failure::input)?;
    Ok(chunk.inference())
}

/// Companions in a Hugging Face folder or a GGUF file.
pub fn companions_of_foreign(model: &HfModel) -> Result<Companions, Failure> {
    let unpacked = unpack(model.tokenizer_files())?;
    let path = model.source().path();
    let folder = if path.is_dir() { path } else { unpacked.path() };
    Companions::in_folder(folder, model.eos_token_ids())
}

/// Companions in a checkpoint.
pub fn companions_of(checkpoint: &Checkpoint) -> Result<Companions, Failure> {
    let tokenizer = checkpoint_tokenizer(checkpoint)?;
    let files = unpack_tokenizer(checkpoint)?;
    let generation = GenerationSettings::load(files.path())?;
    let mut stop_tokens = generation.stop_tokens.clone();
    stop_tokens.extend(tokenizer.iter().filter_map(|tokenizer| tokenizer.eod()));
    let chat_template = ChatTemplate::load(files.path()).map_err(Failure::input)?;
    Ok(Companions { tokenizer, stop_tokens, chat_template, generation })
}

/// Opens a model, or an adapter alone with the base that it finds.
pub fn open(name: &Path, device: &Device) -> Result<LoadedModel, Failure> {
    if let Some(adapted) = Adapted::find(name)? {
        return adapted.load(device);
    }
    let found = find(name)?;
    let (companions, chunk) = (found.companions()?, found.build(device)?);
    Ok(match found {
        Found::HuggingFace(model) => companions.of_model(chunk, model.config().clone(), None),
        Found::Checkpoint(checkpoint, config) => companions.of_model(chunk, *config, Some(*checkpoint)),
    })
}

/// Companions in a folder of `peft`, or else those of its base: training may have changed the
/// tokenizer, or its chat template.
pub fn companions_of_peft(folder: &Path, base: &HfModel) -> Result<Companions, Failure> {
    match HuggingFaceTokenizer::is_in(folder) {
        true => Companions::in_folder(folder, base.eos_token_ids()),
        false => companions_of_foreign(base),
    }
}

/// A decoder whose parameters are yet to be loaded.
fn blank(config: &DecoderConfig, context: &BuildContext) -> Result<Box<dyn ModelChunk>, Failure> {
    let blank = DecoderConfig { perform_initialization: false, ..config.clone() };
    build_decoder(&blank, context, &Stage::whole(config.stacks())).map_err(Failure::input)
}

/// Build context of a model on one rank.
fn context(config: &DecoderConfig, device: &Device) -> BuildContext {
    BuildContext {
        device: device.clone().autodiff(),
        seed: 0,
        params_dtype: FloatDType::F32,
        padded_vocab_size: config.padded_vocab_size,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    }
}

/// The folder of a model: an existing path (the folder of a run means its checkpoints), or the name
/// of a run in the folder `runs` of the working directory or of a parent.
pub fn locate(name: &Path) -> Result<PathBuf, Failure> {
    let path = named(name.to_owned()).map_err(Failure::input)?;
    if path.exists() {
        return Ok(checkpoints_of(&path));
    }
    let missing = |text: String| Failure::input(format!("{}: there is no such file or folder{text}", name.display()));
    if name.components().count() != 1 {
        return Err(missing(String::new()));
    }
    let here = std::env::current_dir().map_err(Failure::run)?;
    let folders: Vec<PathBuf> =
        here.ancestors().map(|folder| folder.join("runs")).filter(|folder| folder.is_dir()).collect();
    match folders.iter().map(|folder| folder.join(name)).find(|run| run.is_dir()) {
        Some(run) => Ok(checkpoints_of(&run)),
        None => Err(missing(match folders.first() {
            Some(folder) => format!(", and no run of this name in {}{}", folder.display(), runs_in(folder)),
            None => ", and no folder `runs` here or above".to_owned(),
        })),
    }
}

/// The names of the runs of a folder, as the end of a sentence.
fn runs_in(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let with_checkpoints = entries.filter(|entry| checkpoints_of(&entry.path()) != entry.path());
    let mut names: Vec<String> =
        with_checkpoints.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { String::new() } else { format!(", which has {}", names.join(", ")) }
}

/// The checkpoints of a run's folder; a folder of another kind is returned unchanged.
fn checkpoints_of(folder: &Path) -> PathBuf {
    let inner = folder.join(CHECKPOINTS);
    let is_model = ["config.json", "metadata.json", "latest_checkpointed_iteration.txt"];
    if inner.is_dir() && !is_model.iter().any(|name| folder.join(name).is_file()) { inner } else { folder.to_owned() }
}

/// Opens the newest checkpoint of a folder, or the one at `path`, with the weights by which its run
/// evaluated the model.
pub fn open_checkpoint(path: &Path) -> Result<Checkpoint, Failure> {
    match CheckpointStore::open(path).and_then(|s| s.resolve(&LoadRequest::default())).map_err(name_a_folder)? {
        Resolution::Found(found) => {
            if !found.report.is_empty() {
                complain(&found.report.to_string());
            }
            found.checkpoint.with_evaluated_weights().map_err(Failure::input)
        }
        Resolution::NothingFound { searched } => {
            Err(Failure::input(format!("{}: {}", searched.display(), why_nothing_is_in(&searched))))
        }
    }
}

/// The reason why a folder has no model, for an error.
fn why_nothing_is_in(folder: &Path) -> &'static str {
    let is_run =
        |folder: &Path| ["run.json", "metrics.jsonl", "train.log"].iter().any(|name| folder.join(name).is_file());
    if folder.ends_with(CHECKPOINTS) && folder.parent().is_some_and(is_run) {
        "the run has saved no checkpoint yet"
    } else if is_run(folder) {
        "the run has saved no checkpoint here: if its `checkpoint.save` is another folder, name that one"
    } else {
        "expected a checkpoint or a Hugging Face folder (with config.json), found neither"
    }
}

/// A model is named by its folder: if the newest checkpoint cannot be used, another one can be
/// named directly.
fn name_a_folder(error: CheckpointError) -> Failure {
    let (root, intact) = match &error {
        CheckpointError::Root { root, intact, .. } => (Some(root.clone()), *intact),
        CheckpointError::Damaged(damaged) => (damaged.checkpoint.path.parent().map(Path::to_owned), damaged.intact),
        _ => (None, None),
    };
    match (root, intact) {
        (Some(root), Some(step)) => {
            let folder = root.join(format!("iter_{step:07}"));
            Failure::input(format!("{error}\n(here: name its folder, {})", folder.display()))
        }
        _ => Failure::input(error),
    }
}

/// The architecture of a checkpoint's model.
pub fn decoder_config(checkpoint: &Checkpoint) -> Result<DecoderConfig, Failure> {
    let shape = &checkpoint.tensor(EMBEDDING).map_err(Failure::input)?.shape;
    let path = checkpoint.path().join(RUN_CONFIG_FILE);
    architecture(&recipe(checkpoint)?, shape).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// The architecture that a recipe describes, with an embedding of `shape`.
fn architecture(raw: &RawConfig, shape: &[usize]) -> Result<DecoderConfig, String> {
    let kinds = [KIND, MAMBA_KIND, bridge_models::encoder_decoder::KIND];
    if !kinds.contains(&raw.model.kind.as_str()) {
        let expected = kinds.map(|kind| format!("`{kind}`")).join(" or ");
        return Err(format!("model.kind: expected {expected}, found `{}`", raw.model.kind));
    }
    // Only a check: derived values also follow from the weights. Without its kind the section
    // refuses settings of the encoder-decoder kind, which are checked when the decoder is built.
    if raw.model.kind != bridge_models::encoder_decoder::KIND {
        raw.model.config.finalize().map_err(|errors| errors.to_string())?;
    }
    let [rows, _] = *shape else {
        return Err(format!("`{EMBEDDING}`: expected two dimensions, found {shape:?}"));
    };
    let mut transformer = section_of_kind(&raw.model.kind, &raw.model.config);
    if raw.model.kind == bridge_models::encoder_decoder::KIND {
        transformer.encoder_num_layers.get_or_insert(transformer.num_layers);
    }
    // If the recipe has no vocabulary size, it was the tokenizer's, padded: read it from the
    // embedding.
    transformer.vocab_size.get_or_insert(rows);
    transformer.should_pad_vocab = false;
    DecoderConfig::from_transformer(&transformer, rows).map_err(|error| error.to_string())
}

/// Checks the recipe of a snapshot as [`decoder_config`] checks a checkpoint's recipe, so that the
/// checkpoint imported from `source` can be opened.
pub fn check_recipe(snapshot: &Snapshot, source: &Path) -> Result<(), Failure> {
    let wrong = |error: String| {
        let source = source.display();
        Failure::input(format!("{source}: the model has no recipe here, because of what its settings become: {error}"))
    };
    let raw = RawConfig::from_text(&snapshot.run.run_config, Format::Toml, &[], &registry().kinds());
    let raw = raw.map_err(|errors| wrong(errors.to_string()))?;
    let tensors = snapshot.groups.iter().flat_map(|group| &group.tensors);
    let embedding = tensors.into_iter().find(|tensor| tensor.name == EMBEDDING);
    let shape = embedding.map(|tensor| tensor.global_shape.clone()).unwrap_or_default();
    architecture(&raw, &shape).map(drop).map_err(wrong)
}

/// Checks that the checkpoint has the parameters of `config`, before any is made.
fn check_tensors(checkpoint: &Checkpoint, config: &DecoderConfig) -> Result<(), Failure> {
    config.check_against(checkpoint.names().count()).map_err(|error| in_run_config(checkpoint, error))?;
    for parameter in config.declarations().parameters() {
        let found = checkpoint.tensor(&parameter.name).map_err(Failure::input)?;
        checkpoint.expect(&parameter.name, found.dtype, &parameter.global_shape()).map_err(Failure::input)?;
    }
    Ok(())
}

/// Failure for the recipe that is saved with a checkpoint.
fn in_run_config(checkpoint: &Checkpoint, error: impl Display) -> Failure {
    Failure::input(format!("{}: {error}", checkpoint.path().join(RUN_CONFIG_FILE).display()))
}

/// The recipe saved with a checkpoint.
pub fn recipe(checkpoint: &Checkpoint) -> Result<RawConfig, Failure> {
    let text = checkpoint.run_config().map_err(Failure::input)?;
    RawConfig::from_text(&text, Format::Toml, &[], &registry().kinds())
        .map_err(|errors| in_run_config(checkpoint, errors))
}

/// The tokenizer saved with a checkpoint, or the Null tokenizer named in its recipe.
pub fn checkpoint_tokenizer(checkpoint: &Checkpoint) -> Result<Option<Arc<dyn Tokenizer>>, Failure> {
    if checkpoint.file_names().any(|name| ["tokenizer.json", "tokenizer.model"].contains(&name)) {
        let folder = unpack_tokenizer(checkpoint)?;
        let loaded = HuggingFaceTokenizer::load(folder.path()).map_err(Failure::input)?;
        return Ok(Some(Arc::new(loaded)));
    }
    let raw = recipe(checkpoint)?;
    let is_null = raw.tokenizer.tokenizer_type == Some(bridge_core::config::TokenizerType::Null);
    Ok(raw
        .tokenizer
        .vocab_size
        .filter(|_| is_null)
        .map(|size| Arc::new(NullTokenizer::new(size)) as Arc<dyn Tokenizer>))
}

fn unpack_tokenizer(checkpoint: &Checkpoint) -> Result<tempfile::TempDir, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    copy_tokenizer(checkpoint, folder.path())?;
    Ok(folder)
}

/// A folder with these files.
fn unpack(files: &BTreeMap<String, Vec<u8>>) -> Result<tempfile::TempDir, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    for (name, content) in files {
        untrusted_io::replace(&folder.path().join(name), content).map_err(Failure::run)?;
    }
    Ok(folder)
}

/// Writes a checkpoint's tokenizer files to `folder`. Returns their path.
pub fn copy_tokenizer(checkpoint: &Checkpoint, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let names: Vec<&str> = checkpoint.file_names().filter(|name| is_companion(name)).collect();
    let mut written = Vec::new();
    for name in names {
        let path = folder.join(name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(Failure::run)?;
        untrusted_io::replace(&path, &checkpoint.file(name).map_err(Failure::input)?)
            .map_err(|error| Failure::run(format!("{}: {error}", path.display())))?;
        written.push(path);
    }
    Ok(written)
}
