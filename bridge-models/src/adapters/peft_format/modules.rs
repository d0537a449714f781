//! What the modules of a Hugging Face base are here: linear layers, or parts of fused ones.

use std::collections::{BTreeMap, BTreeSet};

use bridge_core::model::LinearLayer;

use super::settings::Settings;
use crate::adapters::AdapterError;
use crate::adapters::lora::{Branch, BranchNames};
use crate::adapters::parts::Parts;
use crate::decoder::DecoderConfig;
use crate::huggingface::{WeightEntry, WeightMap};

/// A linear layer of a Hugging Face model.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// Its name there.
    pub name: String,
    /// The layer here that it is, or is a part of.
    pub layer: LinearLayer,
    /// Which part.
    pub part: Option<usize>,
    /// For each row here, which row of the module's weight it is.
    pub rows: Vec<usize>,
    /// Whether its weight is stored as `[inputs, outputs]`.
    pub rows_are_inputs: bool,
    /// Whether it is inside one of several experts.
    is_of_expert: bool,
}

impl Module {
    /// Rows of `width` values in the module's order.
    pub fn stored(&self, values: &[f32], width: usize) -> Vec<f32> {
        let mut stored = vec![0.0; values.len()];
        for (row, place) in values.chunks(width).zip(&self.rows) {
            stored[place * width..(place + 1) * width].copy_from_slice(row);
        }
        stored
    }
}

/// A module with its branch.
#[derive(Clone, Debug)]
pub(crate) struct AdaptedModule {
    pub module: Module,
    pub branch: Branch,
    /// Names of the branch's parameters here.
    pub names: BranchNames,
}

/// A parameter of the base that is trained in full.
#[derive(Clone, Debug)]
pub(crate) struct SavedParameter {
    /// Its tensors.
    pub entry: WeightEntry,
    /// For each of these, the module that is trained in full and has it.
    pub modules: Vec<String>,
}

/// The linear layers of a model under Hugging Face's names. Experts that a file has all in one tensor are none.
pub(crate) fn modules(config: &DecoderConfig, map: &WeightMap) -> Vec<Module> {
    let mut modules = Vec::new();
    for listed in config.linear_layers() {
        let Some(entry) = map.entry(&format!("{}.weight", listed.layer.name)) else {
            continue;
        };
        let parts = Parts::of(&listed.layer).names("").len();
        for (index, (stored, rows)) in entry.tensors.iter().zip(entry.stored_rows()).enumerate() {
            let Some(name) = stored.name.strip_suffix(".weight").filter(|_| stored.part.is_none()) else {
                continue;
            };
            let is_part = entry.tensors.len() > 1;
            assert!(!is_part || parts == entry.tensors.len(), "`{name}` is a part that its layer's cut does not know");
            modules.push(Module {
                name: name.to_owned(),
                layer: listed.layer.clone(),
                part: is_part.then_some(index),
                rows,
                rows_are_inputs: entry.rows_are_inputs(),
                is_of_expert: listed.is_of_expert,
            });
        }
    }
    modules
}

/// Those that have a branch. `has` says whether the adapter's file has a module's tensors: newer versions of transformers have all experts of a
/// layer in one tensor, which has no branch, and older ones a module each, of the same names.
pub(super) fn adapted(
    settings: &Settings,
    all: Vec<Module>,
    has: impl Fn(&str) -> bool,
) -> Result<Vec<AdaptedModule>, AdapterError> {
    let known = all.first().map_or_else(String::new, |module| module.name.clone());
    let has_experts = all.iter().any(|module| module.is_of_expert && has(&module.name));
    let mut adapted = Vec::new();
    for module in all {
        if (module.is_of_expert && !has_experts) || !settings.is_target(&module.name)? {
            continue;
        }
        let (rank, scale) = settings.branch(&module.name)?;
        let names = BranchNames::new(&module.layer.name, Parts::of(&module.layer), module.part);
        adapted.push(AdaptedModule { branch: Branch { part: module.part, rank, scale }, names, module });
    }
    if adapted.is_empty() { Err(settings.no_targets(&known)) } else { Ok(adapted) }
}

/// The parameters of the base that are trained in full.
pub(super) fn saved(
    settings: &Settings,
    (config, map): (&DecoderConfig, &WeightMap),
) -> Result<Vec<SavedParameter>, AdapterError> {
    let mut saved = Vec::new();
    let mut met = BTreeSet::new();
    for entry in map.entries() {
        let mut modules = Vec::new();
        for stored in &entry.tensors {
            // The module itself, or one around it.
            let places = stored.name.match_indices('.').map(|(place, _)| &stored.name[..place]);
            let mut wanted = places
                .filter_map(|place| Some((place, settings.saved.iter().find(|end| place.ends_with(end.as_str()))?)));
            if let Some((module, end)) = wanted.next_back() {
                met.insert(end.as_str());
                modules.push(module.to_owned());
            }
        }
        if modules.is_empty() {
            continue;
        }
        let whole = modules.len() == entry.tensors.len() && entry.tensors.iter().all(|stored| stored.part.is_none());
        if !whole {
            return Err(settings.cannot_save(&modules[0], "a module whose weights are not one with those of others"));
        }
        let is_tied = config.share_embeddings_and_output_weights && entry.parameter.ends_with(WORD_EMBEDDINGS);
        if is_tied {
            return Err(settings.cannot_save(&modules[0], "a module whose weights are not tied to those of another"));
        }
        saved.push(SavedParameter { entry: entry.clone(), modules });
    }
    match settings.saved.iter().find(|end| !met.contains(end.as_str())) {
        None => Ok(saved),
        Some(end) => Err(settings.cannot_save(end, "a module of the base that has weights of its own")),
    }
}

pub(super) const WORD_EMBEDDINGS: &str = "word_embeddings.weight";

/// Branches by the layer that they belong to.
pub(super) fn by_layer(modules: &[AdaptedModule]) -> BTreeMap<String, Vec<Branch>> {
    let mut layers: BTreeMap<String, Vec<Branch>> = BTreeMap::new();
    for adapted in modules {
        layers.entry(adapted.module.layer.name.clone()).or_default().push(adapted.branch);
    }
    layers
}
