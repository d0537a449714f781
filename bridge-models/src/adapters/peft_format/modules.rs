//! Modules of a Hugging Face base as linear layers, or parts of fused ones.

use std::collections::{BTreeMap, BTreeSet};

use bridge_core::model::LinearLayer;

use super::PREFIX;
use super::settings::Settings;
use crate::adapters::AdapterError;
use crate::adapters::lora::{Branch, BranchNames};
use crate::adapters::parts::Parts;
use crate::decoder::DecoderConfig;
use crate::huggingface::family::{place, renamed};
use crate::huggingface::{ExpertLayout, Family, HfError, HfModel, Layout, StoredTensor, WeightEntry, WeightMap};

/// Names of a family's modules in an adapter's folder: those of transformers, or those of the files
/// of its bases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleNames {
    pairs: &'static [(&'static str, &'static str)],
    /// True if the names are those of files, as in older versions of transformers.
    as_in_files: bool,
    /// Prefix of the family's modules.
    prefix: &'static str,
    /// Names of the language model of a multimodal base.
    layout: Option<Layout>,
}

impl ModuleNames {
    /// The names that `peft` has with transformers 5. `layout` is that of a multimodal base.
    pub fn new(family: &Family, layout: Option<Layout>) -> Self {
        Self { pairs: family.module_names, as_in_files: false, prefix: family.prefix, layout }
    }

    /// The names in a folder with these tensors. `layout` is that of a multimodal base in
    /// transformers 5; older versions have others.
    pub fn in_folder<'a>(
        family: &Family,
        layout: Option<Layout>,
        tensors: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let tensors = tensors.map(|name| name.strip_prefix(PREFIX).unwrap_or(name));
        let layout = layout.map(|usual| Layout::find(family.prefix, tensors.clone()).unwrap_or(usual));
        let names = Self::new(family, layout);
        let is_of_file = |name: &str| names.pairs.iter().any(|(file, _)| place(name, file).is_some());
        let as_in_files = match layout {
            None => tensors.clone().any(is_of_file),
            Some(layout) => {
                let mut of_text = tensors.filter_map(|name| layout.text_name(family.prefix, name));
                of_text.any(|name| is_of_file(&name))
            }
        };
        Self { as_in_files, ..names }
    }

    /// True if the model has modules besides those of the language model.
    pub fn has_others(self) -> bool {
        self.layout.is_some()
    }

    /// The name of a module, or of one of its tensors, of which `name` is that in a base's files.
    pub fn module_name(self, name: &str) -> String {
        let pairs = self.pairs.iter().copied();
        let name = match self.as_in_files {
            true => renamed(name, pairs.map(|(file, module)| (module, file))),
            false => renamed(name, pairs),
        };
        match self.layout {
            Some(layout) => layout.name_in_file(self.prefix, &name),
            None => name,
        }
    }
}

/// A linear layer of a Hugging Face model.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// Name of the module.
    pub name: String,
    /// The layer here that it is, or is a part of.
    pub layer: LinearLayer,
    /// Part of the layer.
    pub part: Option<usize>,
    /// For each row of this layer, the row of the module's weight.
    pub rows: Vec<usize>,
    /// True if its weight is stored as `[inputs, outputs]`.
    pub rows_are_inputs: bool,
    /// True if it is inside one of several experts.
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
    /// Tensors of the weight.
    pub entry: WeightEntry,
    /// For each of these tensors, the module that is trained in full and has it.
    pub modules: Vec<String>,
    /// The tensor of the head where it is tied to this parameter: `peft` has a copy of it for each.
    pub tied: Option<StoredTensor>,
}

/// Linear layers of a model under Hugging Face's names. Experts that a file has all in one tensor
/// are not linear layers.
pub(super) fn modules(config: &DecoderConfig, map: &WeightMap, names: ModuleNames) -> Vec<Module> {
    let mut modules = Vec::new();
    for listed in config.linear_layers() {
        let Some(entry) = map.entry(&format!("{}.weight", listed.layer.name)) else { continue };
        let parts = Parts::from_layer(&listed.layer).names("").len();
        for (index, (stored, rows)) in entry.tensors.iter().zip(entry.stored_rows()).enumerate() {
            let Some(name) = stored.name.strip_suffix(".weight").filter(|_| stored.part.is_none()) else { continue };
            let is_part = entry.tensors.len() > 1;
            assert!(!is_part || parts == entry.tensors.len(), "`{name}` is a part that its layer's cut does not know");
            modules.push(Module {
                name: names.module_name(name),
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

/// Refuses targets with a branch in the adapter's file that have none here. `tensors` are the names
/// in that file.
pub(super) fn check_targets<'a>(
    settings: &Settings,
    all: &[Module],
    tensors: impl Iterator<Item = &'a str>,
) -> Result<(), AdapterError> {
    for name in tensors {
        let branch = name.strip_prefix(PREFIX).and_then(|name| name.split_once(".lora_"));
        if let Some((module, _)) = branch
            && !all.iter().any(|known| known.name == module)
            && settings.is_target(module)?
        {
            let known = all.first().map_or("", |known| &known.name);
            let expected = format!(
                "modules that have a LoRA branch here, such as {known}: the output layer, embeddings, routers and fused experts have none"
            );
            return Err(settings.cannot_target(&format!("\"{module}\""), &expected));
        }
    }
    Ok(())
}

/// Modules with a branch. `has` is true if the adapter's file has a module's tensors: newer
/// versions of transformers store all experts of a layer in one tensor, which has no branch; older
/// versions have a module for each expert, with the same names.
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
        let names = BranchNames::new(&module.layer.name, Parts::from_layer(&module.layer), module.part);
        adapted.push(AdaptedModule { branch: Branch { part: module.part, rank, scale }, names, module });
    }
    if adapted.is_empty() {
        let expected = format!("names of linear layers of the base, such as {known}");
        return Err(settings.cannot_target("none of them", &expected));
    }
    Ok(adapted)
}

/// The parameters of the base that are trained in full.
pub(super) fn saved(
    settings: &Settings,
    base: &HfModel,
    names: ModuleNames,
) -> Result<Vec<SavedParameter>, AdapterError> {
    let mut saved = Vec::new();
    let mut met = BTreeSet::new();
    // The module itself, or one around it.
    let mut wanted = |stored: &StoredTensor| -> Option<String> {
        let name = names.module_name(&stored.name);
        let mut places = name.match_indices('.').map(|(place, _)| &name[..place]);
        let module = places.rfind(|place| settings.saved.iter().any(|end| place.ends_with(end.as_str())))?;
        // Several names may stand for one module, such as `embed_tokens` and `model.embed_tokens`.
        met.extend(settings.saved.iter().map(String::as_str).filter(|end| module.ends_with(*end)));
        Some(module.to_owned())
    };
    for entry in base.weight_map().entries() {
        let mut modules: Vec<String> = entry.tensors.iter().filter_map(&mut wanted).collect();
        let is_tied = base.config().share_embeddings_and_output_weights && entry.parameter.ends_with(WORD_EMBEDDINGS);
        let head = if is_tied { tied_head(base.family(), base.config())? } else { None };
        let head = head.and_then(|head| head.tensors.into_iter().next());
        let head_module = head.as_ref().and_then(&mut wanted);
        if modules.is_empty() && head_module.is_none() {
            continue;
        }
        if is_tied {
            let module = modules.first().or(head_module.as_ref()).expect("one of them is wanted");
            let expected = match head {
                None => "a module whose weights are not tied to those of another",
                Some(_) => {
                    "the embedding and the head together: they are tied, and peft leaves the one that is not named as it was"
                }
            };
            let has_both = settings.ties || (!modules.is_empty() && head_module.is_some());
            if head.is_none() || !has_both {
                return Err(settings.cannot_save(module, expected));
            }
        }
        if modules.is_empty() {
            let module = |stored: &StoredTensor| names.module_name(stored.name.trim_end_matches(".weight"));
            modules = entry.tensors.iter().map(module).collect();
        }
        let whole = modules.len() == entry.tensors.len() && entry.tensors.iter().all(|stored| stored.part.is_none());
        if !whole {
            return Err(settings.cannot_save(&modules[0], "a module whose weights are not one with those of others"));
        }
        saved.push(SavedParameter { entry: entry.clone(), modules, tied: head });
    }
    match settings.saved.iter().find(|end| !met.contains(end.as_str())) {
        None => Ok(saved),
        Some(end) => Err(settings.cannot_save(end, "a module of the base that has weights of its own")),
    }
}

/// Name that the head of a decoder would have if it were not tied to the embedding. `None` for an
/// encoder-decoder model, or if the family has no such name.
pub(super) fn tied_head(family: &Family, config: &DecoderConfig) -> Result<Option<WeightEntry>, HfError> {
    if config.encoder.is_some() {
        return Ok(None);
    }
    let untied = DecoderConfig { share_embeddings_and_output_weights: false, ..config.clone() };
    Ok(WeightMap::new(family, &untied, ExpertLayout::default())?.entry(HEAD).cloned())
}

/// The parameter of a head that is not tied.
const HEAD: &str = "output_layer.weight";

pub(super) const WORD_EMBEDDINGS: &str = "word_embeddings.weight";

/// Branches by the layer that they belong to.
pub(super) fn by_layer(modules: &[AdaptedModule]) -> BTreeMap<String, Vec<Branch>> {
    let mut layers: BTreeMap<String, Vec<Branch>> = BTreeMap::new();
    for adapted in modules {
        layers.entry(adapted.module.layer.name.clone()).or_default().push(adapted.branch);
    }
    layers
}
