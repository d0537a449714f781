//! The kinds of models and datasets that a configuration may choose, and the extra settings of
//! each. A program registers its own kinds with their factories (`train::Registry`). Rules of a
//! particular kind do not belong here.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bridge_data::{ENCODER_MASK, ENCODER_TOKENS};

use super::saved::FindRecipe;
use super::spec::TypeSpec;

/// The kind of dataset for fine-tuning.
pub const FINETUNING: &str = "finetuning";

/// Inputs of a model with an encoder.
pub const ENCODER_INPUTS: [&str; 2] = [ENCODER_TOKENS, ENCODER_MASK];

/// An additional setting of a registered kind.
#[derive(Debug, Clone)]
pub struct ExtraField {
    /// The name, valid in the section if the kind is chosen.
    pub name: String,
    /// The type.
    pub spec: TypeSpec,
    /// The default; `None` leaves the setting out.
    pub default: Option<toml::Value>,
    /// One sentence about it.
    pub doc: String,
}

/// One kind. By default it supports all values that the section's table does not refuse.
#[derive(Debug, Clone, Default)]
pub struct Kind {
    /// The settings of the section that it supports; `None` means all that the section's table does
    /// not refuse.
    pub settings: Option<Vec<String>>,
    /// Additional settings of the kind.
    pub extra: Vec<ExtraField>,
    /// Why it cannot be used yet, for names that exist upstream only.
    pub not_implemented: Option<String>,
    /// Extra tensors that models of this kind read, or datasets of it bring; `None` if that is not
    /// said.
    pub inputs: Option<Vec<String>>,
    /// Question to a kind of model about a resolved section; its builder registers the answer.
    pub model: Option<AskModel>,
}

/// Layers of each of the stacks of a model, or the setting that it cannot be built with, and why.
pub type ModelAnswer = Result<Vec<usize>, (String, String)>;

/// A question of a section whose type is not known here.
type Question = dyn Fn(&dyn Any) -> ModelAnswer + Send + Sync;

/// Asks a kind of model about a resolved section. The type of sections is defined in terms of this
/// file, so it is not known here.
#[derive(Clone)]
pub struct AskModel(Arc<Question>);

impl AskModel {
    /// Asks `answer` about sections of type `T`.
    pub fn new<T: Any>(answer: impl Fn(&T) -> ModelAnswer + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |section| answer(section.downcast_ref().expect("a model is asked about its own section"))))
    }

    /// The answer.
    pub fn about(&self, section: &dyn Any) -> ModelAnswer {
        (self.0)(section)
    }
}

impl fmt::Debug for AskModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskModel")
    }
}

impl Kind {
    /// A kind that supports exactly these settings of the section, even if the section's table
    /// refuses them, and those of `[model]` that every kind has.
    pub fn supporting<'a>(settings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { settings: Some(settings.into_iter().map(str::to_owned).collect()), ..Self::default() }
    }

    /// Adds settings that only this kind has.
    #[must_use]
    pub fn with(mut self, extra: impl IntoIterator<Item = ExtraField>) -> Self {
        self.extra.extend(extra);
        self
    }

    /// Says which extra tensors a model reads besides tokens, or a dataset brings: a recipe must
    /// not choose two kinds that do not fit.
    #[must_use]
    pub fn with_inputs<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { inputs: Some(names.into_iter().map(str::to_owned).collect()), ..self }
    }
}

/// The settings of datasets of span corruption.
pub(crate) fn span_corruption() -> [ExtraField; 4] {
    let (float, integer) = (TypeSpec::Float, TypeSpec::Integer);
    let sentinels = "Sentinel ids, counted down from the top of the vocabulary; null takes the tokenizer's <extra_id_0>, <extra_id_1> and so on.";
    [
        ("masked_lm_prob", float.clone(), Some(0.15), "Share of a sample's tokens that are masked, in (0, 1)."),
        ("short_seq_prob", float.clone(), Some(0.1), "Share of the samples that are made of fewer tokens, in [0, 1]."),
        ("mean_span_length", float, Some(3.0), "Mean number of tokens of a masked span, at least 1."),
        ("num_sentinels", integer, None, sentinels),
    ]
    .map(|(name, spec, default, doc)| ExtraField {
        name: name.to_owned(),
        spec,
        default: default.map(toml::Value::Float),
        doc: doc.to_owned(),
    })
}

/// The kinds of one section, by name.
#[derive(Debug, Clone, Default)]
pub struct KindRegistry {
    kinds: BTreeMap<String, Kind>,
}

impl KindRegistry {
    /// Adds a kind, or replaces the one of the same name.
    pub fn register(&mut self, name: impl Into<String>, kind: Kind) -> &mut Self {
        self.kinds.insert(name.into(), kind);
        self
    }

    /// Adds a name that is understood but cannot be used yet, with the reason.
    pub fn register_not_implemented(&mut self, name: impl Into<String>, reason: impl Into<String>) -> &mut Self {
        let kind = Kind { not_implemented: Some(reason.into()), ..Kind::default() };
        self.kinds.insert(name.into(), kind);
        self
    }

    /// The kind of a name.
    pub fn get(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(name)
    }

    /// The names that can be used.
    pub fn usable_names(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().filter(|(_, kind)| kind.not_implemented.is_none()).map(|(name, _)| name.as_str())
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }
}

/// The kinds of `model.kind` and `dataset.kind`.
#[derive(Debug, Clone)]
pub struct Kinds {
    /// Kinds of model.
    pub model: KindRegistry,
    /// Kinds of dataset.
    pub dataset: KindRegistry,
    /// Looks for the recipe of the checkpoint that a run would start from.
    pub saved: Option<FindRecipe>,
}

impl Kinds {
    /// The built-in kinds: models `gpt`, `mamba`, `t5`; datasets `gpt`, `fim`, `mock`, `t5`,
    /// `mock_t5`, `finetuning`.
    ///
    /// These are only names; `bridge_models::registry()` has their factories, and more kinds are
    /// registered there.
    pub fn builtin() -> Self {
        let mut model = KindRegistry::default();
        for name in ["gpt", "mamba"] {
            model.register(name, Kind::default());
        }
        model.register("t5", Kind::default().with_inputs(ENCODER_INPUTS));
        model.register_not_implemented("mimo", "model.kind = \"gpt\", \"mamba\" and \"t5\" are built in");
        let mut dataset = KindRegistry::default();
        for name in ["gpt", "fim", "mock"] {
            dataset.register(name, Kind::default().with_inputs([]));
        }
        for name in ["t5", "mock_t5"] {
            dataset.register(name, Kind::default().with_inputs(ENCODER_INPUTS).with(span_corruption()));
        }
        dataset.register(FINETUNING, Kind::default().with_inputs([]));
        dataset.register_not_implemented("sft", "choose dataset.kind = \"finetuning\"");
        Self { model, dataset, saved: None }
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::builtin()
    }
}
