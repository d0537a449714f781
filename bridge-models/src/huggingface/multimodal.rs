//! Multimodal folders as language models: the settings of their `text_config`, and the tensors of
//! their language model under the names of its family.
//!
//! All other tensors are carried along unread, as are all other settings. The classes are in
//! [`crate::families::multimodal`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bridge_core::checkpoint::DType;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::checkpoint::HfCheckpoint;
use super::error::{HfError, TensorProblem};
use super::family::Family;
use super::fields::Fields;
use super::source::TensorSource;
use super::weight_map::ExpertLayout;
use crate::decoder::DecoderConfig;
use crate::families::multimodal::{CLASSES, TEXT_CLASSES};
use crate::families::{FAMILIES, with_model_type};

/// The key of the language model's settings.
const TEXT_CONFIG: &str = "text_config";
const TIED: &str = "tie_word_embeddings";
/// Keys that apply to the language model where `text_config` lacks them.
const INHERITED: [&str; 5] =
    ["eos_token_id", "bos_token_id", "pad_token_id", "quantization_config", "transformers_weights"];
/// Beginnings of the keys of a flat file that are not those of the language model.
const OF_OTHER_PARTS: [&str; 4] = ["vision_", "image_", "video_", "audio_"];
/// Name in a checkpoint of the file with the [`TextForm`].
pub const LAYOUT: &str = "hf_layout.json";
/// Group of a checkpoint with the tensors that are carried along.
pub use bridge_core::checkpoint::CARRIED_GROUP;

/// Class of multimodal models.
#[derive(Debug)]
pub(crate) struct MultimodalClass {
    model_type: &'static str,
    architecture: &'static str,
    /// Other names of the class, in files with code of their own.
    other_names: &'static [&'static str],
    /// `model_type` of a `text_config` that has none.
    text: &'static str,
    /// True if the output is tied to the embedding where no key says so.
    is_tied: bool,
    /// True if `tie_word_embeddings` of `text_config` ties them too.
    is_tied_as_text: bool,
    /// True if the class applies caps and factors of the text's family to logits.
    scales_logits: bool,
    /// True if a file may have the settings of the language model beside its own.
    may_be_flat: bool,
    /// Keys of `text_config` that change nothing for text.
    ignored: &'static [&'static str],
    /// True if transformers reads the experts of a layer in one tensor only.
    has_stacked_experts: bool,
    /// Names of modules in transformers 5.
    modules: Layout,
}

impl MultimodalClass {
    pub const fn new(model_type: &'static str, architecture: &'static str, text: &'static str) -> Self {
        Self {
            model_type,
            architecture,
            other_names: &[],
            text,
            is_tied: false,
            is_tied_as_text: false,
            scales_logits: false,
            may_be_flat: false,
            ignored: &[],
            has_stacked_experts: false,
            modules: Layout::Inside,
        }
    }

    pub const fn tied(self) -> Self {
        Self { is_tied: true, ..self }
    }

    pub const fn tied_as_text(self) -> Self {
        Self { is_tied_as_text: true, ..self }
    }

    pub const fn scaling_logits(self) -> Self {
        Self { scales_logits: true, ..self }
    }

    pub const fn maybe_flat(self) -> Self {
        Self { may_be_flat: true, ..self }
    }

    pub const fn ignoring(self, ignored: &'static [&'static str]) -> Self {
        Self { ignored, ..self }
    }

    pub const fn with_stacked_experts(self) -> Self {
        Self { has_stacked_experts: true, ..self }
    }

    pub const fn called(self, modules: Layout) -> Self {
        Self { modules, ..self }
    }

    pub const fn also_named(self, other_names: &'static [&'static str]) -> Self {
        Self { other_names, ..self }
    }
}

/// Class of the language model in a `text_config`.
#[derive(Debug)]
pub(crate) struct TextClass {
    model_type: &'static str,
    family: &'static str,
    /// Values of [`Self::SIZES`] if the keys are absent; zero if the class has no such key.
    sizes: [usize; 6],
    /// Values of other absent keys, as JSON.
    absent: &'static [(&'static str, &'static str)],
    /// Values of the class that no key changes, as JSON.
    always: &'static [(&'static str, &'static str)],
    /// True if heads share the width of the model where no key says their size.
    shares_width: bool,
}

impl TextClass {
    /// Keys of sizes.
    const SIZES: [&str; 6] = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ];

    pub const fn new(
        model_type: &'static str,
        family: &'static str,
        absent: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { model_type, family, sizes: [0; 6], absent, always: &[], shares_width: false }
    }

    /// Sets the values of [`Self::SIZES`].
    pub const fn with_sizes(self, sizes: [usize; 6]) -> Self {
        Self { sizes, ..self }
    }

    pub const fn always(self, always: &'static [(&'static str, &'static str)]) -> Self {
        Self { always, ..self }
    }

    pub const fn sharing_width(self) -> Self {
        Self { shares_width: true, ..self }
    }

    /// Completes the settings of the class to those of the family.
    fn complete(&self, text: &mut Map<String, Value>) {
        let value = |json: &str| serde_json::from_str(json).unwrap_or(Value::Null);
        for (key, size) in Self::SIZES.into_iter().zip(self.sizes).filter(|(_, size)| *size > 0) {
            text.entry(key).or_insert(json!(size));
        }
        for (key, json) in self.absent {
            text.entry(*key).or_insert_with(|| value(json));
        }
        text.extend(self.always.iter().map(|(key, json)| ((*key).to_owned(), value(json))));
        let size = |key: &str| text.get(key).and_then(Value::as_u64);
        if self.shares_width
            && text.get("head_dim").is_none_or(Value::is_null)
            && let (Some(width), Some(heads @ 1..)) = (size("hidden_size"), size("num_attention_heads"))
        {
            text.insert("head_dim".into(), json!(width / heads));
        }
    }
}

/// Names of the language model's tensors in a multimodal model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `language_model.` before all names of the family: most published files.
    Whole,
    /// `model.language_model.` in place of the family's prefix, and the head outside: modules of
    /// transformers 5.
    Inside,
    /// `model.text_model.` in place of the family's prefix, and the head outside.
    TextModel,
    /// The names of the family, with the other parts of the model beside them.
    Beside,
}

impl Layout {
    const WHOLE: &str = "language_model.";
    /// Beginning of the names of heads.
    const HEAD: &str = "lm_head.";
    /// Parts of a language model, as [`Self::Beside`] has them under its prefix.
    const PARTS: [&str; 3] = ["embed_tokens.", "layers.", "norm."];

    /// The prefix that replaces the family's.
    fn body(self) -> Option<&'static str> {
        match self {
            Self::Inside => Some("model.language_model."),
            Self::TextModel => Some("model.text_model."),
            Self::Whole | Self::Beside => None,
        }
    }

    /// The layout of a file or an adapter with these names, of a family with this prefix; `None` if
    /// no name belongs to a language model.
    pub(crate) fn find<'a>(prefix: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let is_whole = |name: &str| name.strip_prefix(Self::WHOLE).is_some_and(|name| name.starts_with(prefix));
        let has = |layout: &Self| match layout.body() {
            Some(body) => names.clone().any(|name| name.starts_with(body)),
            None if *layout == Self::Whole => names.clone().any(is_whole),
            None => names.clone().any(|name| layout.text_name(prefix, name).is_some()),
        };
        [Self::Whole, Self::Inside, Self::TextModel, Self::Beside].into_iter().find(has)
    }

    /// The name in a file of a tensor or module that a family with this prefix calls `name`.
    pub(crate) fn name_in_file(self, prefix: &str, name: &str) -> String {
        match (self, self.body().zip(name.strip_prefix(prefix))) {
            (Self::Whole, _) => format!("{}{name}", Self::WHOLE),
            (_, Some((body, rest))) => format!("{body}{rest}"),
            (_, None) => name.to_owned(),
        }
    }

    /// The family's name of a tensor of a file; `None` if it is not one of the language model.
    pub(crate) fn text_name(self, prefix: &str, name: &str) -> Option<String> {
        if self == Self::Whole {
            return name.strip_prefix(Self::WHOLE).map(str::to_owned);
        }
        if name.starts_with(Self::HEAD) {
            return Some(name.to_owned());
        }
        match self.body() {
            Some(body) => name.strip_prefix(body).map(|rest| format!("{prefix}{rest}")),
            None => {
                let rest = name.strip_prefix(prefix)?;
                Self::PARTS.iter().any(|part| rest.starts_with(part)).then(|| name.to_owned())
            }
        }
    }
}

/// The `config.json` of a multimodal model.
#[derive(Clone, Debug)]
pub(crate) struct Multimodal {
    class: &'static MultimodalClass,
    text_class: Option<&'static TextClass>,
    family: &'static Family,
    settings: Map<String, Value>,
}

impl Multimodal {
    /// The multimodal model of a `config.json`; `None` for other models. Fails if the language
    /// model is of no family that is known here.
    pub fn new(settings: &Map<String, Value>) -> Result<Option<Self>, HfError> {
        let model_type = settings.get("model_type").and_then(Value::as_str);
        let Some(class) = CLASSES.iter().find(|class| Some(class.model_type) == model_type) else { return Ok(None) };
        let fields = Fields::new(settings);
        if let Some(names) = fields.get("architectures").and_then(Value::as_array).filter(|names| !names.is_empty()) {
            let is_own =
                |name: &Value| name == class.architecture || class.other_names.iter().any(|other| name == other);
            let expected = format!("\"{}\", the class of model_type \"{}\"", class.architecture, class.model_type);
            let found = json!(names).to_string();
            fields.require(names.iter().any(is_own), "architectures", &found, &expected)?;
        }
        let text = fields.table(TEXT_CONFIG, "text_config.")?;
        if text.is_none() && !class.may_be_flat {
            return Err(fields.missing(TEXT_CONFIG, "a table with the settings of the language model"));
        }
        let named = text.map_or(Ok(None), |text| text.string("model_type"))?.unwrap_or(class.text);
        let text_class = TEXT_CLASSES.iter().find(|class| class.model_type == named);
        let family = with_model_type(text_class.map_or(named, |class| class.family)).ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().map(|family| family.model_type()).collect();
            let expected = format!("a language model that is known here: {}", known.join(", "));
            fields.error("text_config.model_type", &format!("\"{named}\""), &expected)
        })?;
        Ok(Some(Self { class, text_class, family, settings: settings.clone() }))
    }

    /// Family of the language model.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// The whole `config.json`.
    pub fn settings(&self) -> &Map<String, Value> {
        &self.settings
    }

    /// Names of modules in transformers 5.
    pub fn modules(&self) -> Layout {
        self.class.modules
    }

    /// The layout of experts in an export of a folder that had them in the layout `own`, where
    /// `wanted` is that of other models.
    pub fn experts(&self, own: ExpertLayout, wanted: ExpertLayout) -> ExpertLayout {
        if self.class.has_stacked_experts { own } else { wanted }
    }

    /// The settings of the language model in the file, and where they are.
    fn stored_text(&self) -> (&'static str, Map<String, Value>) {
        match self.settings.get(TEXT_CONFIG).and_then(Value::as_object) {
            Some(text) => ("text_config.", text.clone()),
            None => {
                let is_of_text = |key: &str| OF_OTHER_PARTS.iter().all(|start| !key.starts_with(start));
                let text = self.settings.iter().filter(|(key, _)| is_of_text(key));
                ("", text.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
        }
    }

    /// Path of the table that has `key`, a key of the language model: its own, unless only the
    /// whole model has the key.
    pub fn place_of(&self, key: &str) -> &'static str {
        let first = key.split('.').next().unwrap_or(key);
        let (place, text) = self.stored_text();
        let is_inherited = !text.contains_key(first) && self.settings.contains_key(first);
        if is_inherited { "" } else { place }
    }

    /// The `config.json` of the language model as a folder of its own, whose output is tied to the
    /// embedding as the file says, or as `is_tied` says.
    pub fn text(&self, is_tied: bool) -> Map<String, Value> {
        let (_, mut text) = self.stored_text();
        for key in INHERITED {
            if text.get(key).is_none_or(Value::is_null)
                && let Some(value) = self.settings.get(key)
            {
                text.insert(key.to_owned(), value.clone());
            }
        }
        text.remove("architectures");
        self.class.ignored.iter().for_each(|key| drop(text.remove(*key)));
        text.insert("model_type".into(), json!(self.family.model_type()));
        if let Some(class) = self.text_class {
            class.complete(&mut text);
        }
        text.insert(TIED.into(), json!(is_tied));
        text
    }

    /// True if the output is tied to the embedding; `None` if no key says so.
    pub fn is_tied(&self) -> Option<bool> {
        let said = |settings: &Map<String, Value>| settings.get(TIED).and_then(Value::as_bool);
        let of_text = self.settings.get(TEXT_CONFIG).and_then(Value::as_object).and_then(said);
        match (said(&self.settings), of_text) {
            (Some(true), _) => Some(true),
            (_, Some(true)) if self.class.is_tied_as_text => Some(true),
            (Some(false), _) => Some(false),
            (None, _) => None,
        }
    }

    /// True if the output is tied where no key says so.
    pub fn is_tied_by_default(&self) -> bool {
        self.class.is_tied
    }

    /// Refuses what the language model would do with logits alone and the multimodal model does
    /// not. Fails if the family caps or scales logits.
    pub fn check(&self, fields: &Fields, config: &DecoderConfig) -> Result<(), HfError> {
        let is_plain = config.logit_softcap.is_none() && config.logit_multiplier == 1.0;
        let key = ["final_logit_softcapping", "logit_scale", "logits_scaling"];
        let key = key.into_iter().find(|key| fields.peek(key).is_some()).unwrap_or("final_logit_softcapping");
        let found = fields.peek(key).map_or_else(|| "no value".to_owned(), Value::to_string);
        let expected = format!("null: {} does not scale or cap logits", self.class.architecture);
        fields.require(self.class.scales_logits || is_plain, key, &found, &expected)
    }

    /// The whole `config.json` with these settings of the language model, whose weights have the
    /// dtype `dtype`.
    pub fn with_text(&self, mut text: Map<String, Value>, dtype: &str) -> Map<String, Value> {
        let (place, stored) = self.stored_text();
        let is_tied = text.get(TIED).cloned();
        let inherited = INHERITED.iter().filter(|key| stored.contains_key(**key) || self.settings.contains_key(**key));
        for key in ["architectures", "model_type", "torch_dtype"].iter().chain(inherited).chain(self.class.ignored) {
            text.remove(*key);
            text.extend(stored.get(*key).map(|value| ((*key).to_owned(), value.clone())));
        }
        let mut whole = self.settings.clone();
        match place {
            "" => whole.extend(text),
            _ => {
                text.entry("model_type").or_insert_with(|| json!(self.class.text));
                whole.insert(TEXT_CONFIG.into(), Value::Object(text));
            }
        }
        whole.extend(is_tied.map(|is_tied| (TIED.to_owned(), is_tied)));
        let text = whole.get_mut(TEXT_CONFIG).and_then(Value::as_object_mut);
        text.into_iter().for_each(|text| set_dtype(text, dtype));
        set_dtype(&mut whole, dtype);
        if !whole.contains_key("dtype") {
            whole.insert("torch_dtype".into(), json!(dtype));
        }
        // These keys describe files of the original folder, which are not copied.
        for key in ["quantization_config", "auto_map", "transformers_weights"] {
            whole.remove(key);
            if let Some(text) = whole.get_mut(TEXT_CONFIG).and_then(Value::as_object_mut) {
                text.remove(key);
            }
        }
        whole
    }
}

/// Changes the keys of a table that say the dtype of weights.
fn set_dtype(settings: &mut Map<String, Value>, dtype: &str) {
    for key in ["torch_dtype", "dtype"] {
        if let Some(value) = settings.get_mut(key) {
            *value = json!(dtype);
        }
    }
}

/// `model_type` of the family that a `config.json` is read as: of a multimodal model, that of its
/// language model.
///
/// # Errors
/// If a multimodal model has a language model that is not known here.
pub fn text_model_type(settings: &Map<String, Value>) -> Result<Option<&str>, HfError> {
    Ok(match Multimodal::new(settings)? {
        Some(multimodal) => Some(multimodal.family.model_type()),
        None => settings.get("model_type").and_then(Value::as_str),
    })
}

/// Names of modules that transformers 5 has for the language model of a multimodal `config.json`;
/// `None` for other models.
///
/// # Errors
/// As [`text_model_type`].
pub fn module_layout(settings: &Map<String, Value>) -> Result<Option<Layout>, HfError> {
    Ok(Multimodal::new(settings)?.map(|multimodal| multimodal.modules()))
}

/// Form of a language model in the files of a multimodal folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextForm {
    /// Names of the tensors.
    pub layout: Layout,
    /// Layout of the experts of a layer.
    pub experts: ExpertLayout,
}

/// Tensors of a multimodal model that are not those of its language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    /// Form of the language model beside them.
    pub text: TextForm,
    /// The tensors.
    pub tensors: Vec<CarriedTensor>,
}

/// A tensor that is carried along unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedTensor {
    /// Name in the files.
    pub name: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
}

/// The type that a checkpoint has for elements; `None` if it has no such type.
pub(super) fn checkpoint_dtype(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|known| Dtype::from(*known) == dtype)
}

/// The files of a multimodal folder as those of its language model.
#[derive(Debug)]
pub(super) struct TextTensors {
    files: Arc<HfCheckpoint>,
    /// Names in the files by the names that the family has.
    names: BTreeMap<String, String>,
}

impl TextTensors {
    /// Divides the tensors of `files` into those of a language model of `family` and others. All
    /// are others if none has a name of a language model. Fails if an other tensor is quantized, or
    /// of a type that checkpoints do not have.
    pub fn new(files: Arc<HfCheckpoint>, family: &Family, modules: Layout) -> Result<(Self, Carried), HfError> {
        let prefix = family.prefix;
        let layout = Layout::find(prefix, files.tensors().map(|(name, _)| name).collect::<Vec<_>>().into_iter());
        let layout = layout.unwrap_or(modules);
        let (mut names, mut tensors) = (BTreeMap::new(), Vec::new());
        for (name, shape) in files.tensors() {
            match layout.text_name(prefix, name) {
                Some(text) => drop(names.insert(text, name.to_owned())),
                None => {
                    let dtype = files.raw(name)?.0;
                    tensors.push(CarriedTensor { name: name.to_owned(), dtype, shape: shape.to_vec() });
                }
            }
        }
        let text = TextForm { layout, experts: ExpertLayout::default() };
        Ok((Self { files, names }, Carried { text, tensors }))
    }

    fn in_files(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }
}

impl TensorSource for TextTensors {
    fn path(&self) -> &Path {
        self.files.path()
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = (&str, &[usize])> + '_> {
        Box::new(self.names.iter().filter_map(|(name, file)| Some((name.as_str(), self.files.shape(file)?))))
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.files.shape(self.in_files(name)?)
    }

    fn storage(&self, name: &str) -> Option<String> {
        self.files.storage(self.in_files(name)?)
    }

    fn read_into(&self, name: &str, start: usize, target: &mut [f32]) -> Result<(), HfError> {
        self.files.read_into(self.in_files(name).unwrap_or(name), start, target)
    }
}

impl TensorProblem {
    /// The same problem with the names that files have.
    pub(super) fn renamed(self, rename: &dyn Fn(&str) -> String) -> Self {
        match self {
            Self::Missing { name, expected } => Self::Missing { name: rename(&name), expected },
            Self::Unexpected { name, found } => Self::Unexpected { name: rename(&name), found },
            Self::Shape { name, expected, found } => Self::Shape { name: rename(&name), expected, found },
            Self::NotTied { name, expected } => Self::NotTied { name: rename(&name), expected: rename(&expected) },
        }
    }
}
