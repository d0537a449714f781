//! The models of a command: one, or several adapters of one base, whose weights are in memory once,
//! and which of them answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::Checkpoint;
use bridge_core::train::{AdapterBase, load_adapter};
use bridge_models::adapters::{AdapterSet, PeftAdapter};
use burn::tensor::Device;
use clap::Args;

use crate::failure::Failure;
use crate::foreign::open_foreign;
use crate::model_source::{
    Adapted, Companions, LoadedModel, build_whole, companions_of, companions_of_foreign, companions_of_peft,
    is_foreign, locate, open, open_checkpoint,
};

/// Name of the base beside several adapters.
const BASE: &str = "base";

/// Model that a command uses.
#[derive(Debug, Args)]
pub struct ModelArguments {
    /// A run by its name or folder, a checkpoint folder, one of its `iter_` folders, or a Hugging
    /// Face folder.
    pub model: PathBuf,
    /// An adapter of the model: a folder in peft's format, of a Hugging Face folder, or a
    /// checkpoint of a run with `[peft]`, of the checkpoint that it was trained on. A checkpoint of
    /// an adapter alone, given as the model, finds its base itself. Several adapters, each with a
    /// name, share the memory of the model; --use says which of them answers.
    #[arg(long, value_name = "[NAME=]DIR")]
    adapter: Vec<String>,
}

/// An adapter on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    name: Option<String>,
    folder: PathBuf,
}

impl Given {
    /// `NAME=DIR`, or a folder, which may have such a name itself.
    fn new(text: &str) -> Self {
        match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
            Some((name, folder)) if !Path::new(text).exists() => {
                Self { name: Some(name.to_owned()), folder: folder.into() }
            }
            Some(_) | None => Self { name: None, folder: text.into() },
        }
    }
}

/// Models that can answer: several have names, and are adapters and their base.
pub struct Models {
    named: Vec<(Option<String>, LoadedModel)>,
}

/// A model that answers.
#[derive(Clone, Copy)]
pub struct Chosen<'a> {
    /// Name of the model, if there are several.
    pub name: Option<&'a str>,
    /// The model.
    pub model: &'a LoadedModel,
}

impl Models {
    /// Opens the models that the command line names. Fails if a model or adapter cannot be read, an
    /// adapter does not fit its base, or a name is missing or used twice.
    pub fn open(arguments: &ModelArguments, device: &Device) -> Result<Self, Failure> {
        let given: Vec<Given> = arguments.adapter.iter().map(|text| Given::new(text)).collect();
        let only = |model| Ok(Self { named: vec![(None, model)] });
        match given.as_slice() {
            [] => only(open(&arguments.model, device)?),
            [Given { name: None, folder }] => only(open_with(&arguments.model, folder, device)?),
            several => Self::from_adapters(&arguments.model, several, device),
        }
    }

    fn from_adapters(base: &Path, given: &[Given], device: &Device) -> Result<Self, Failure> {
        let mut named: Vec<(&str, &Path)> = Vec::new();
        for Given { name, folder } in given {
            let refused = |text: String| Err(Failure::input(format!("--adapter {}: {text}", folder.display())));
            match name.as_deref() {
                None => return refused(format!("expected NAME={}: several adapters have names", folder.display())),
                Some(BASE) => return refused(format!("`{BASE}` is the name of the model without an adapter")),
                Some(name) if named.iter().any(|(other, _)| *other == name) => {
                    return refused(format!("another adapter is called `{name}` too"));
                }
                Some(name) => named.push((name, folder)),
            }
        }
        let models = match is_foreign(&locate(base)?) {
            true => of_folders(base, &named, device)?,
            false => of_checkpoints(base, &named, device)?,
        };
        Ok(Self { named: models })
    }

    /// Model that answers each of `count` texts: that of `uses`, or one for each; without any, the
    /// only one. Fails if the choice is missing, or no model has a name.
    pub fn choose(&self, uses: &[String], count: usize) -> Result<Vec<Chosen<'_>>, Failure> {
        let of = |place: usize| Chosen { name: self.named[place].0.as_deref(), model: &self.named[place].1 };
        let names: Vec<&str> = self.named.iter().filter_map(|(name, _)| name.as_deref()).collect();
        let listed = || names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        match (names.as_slice(), uses) {
            ([], []) => Ok(vec![of(0); count]),
            ([], [_, ..]) => Err(Failure::input("--use: expected adapters with names, --adapter NAME=DIR, found none")),
            // The base comes last.
            ([_, BASE], []) => Ok(vec![of(0); count]),
            (_, []) => Err(Failure::input(format!("expected --use NAME, which says which of {} answers", listed()))),
            (_, uses) if uses.len() == 1 || uses.len() == count => {
                let place = |name: &String| {
                    let place = names.iter().position(|known| known == name);
                    place.ok_or_else(|| Failure::input(format!("--use {name}: expected one of {}", listed())))
                };
                let places = uses.iter().map(place).collect::<Result<Vec<_>, _>>()?;
                Ok((0..count).map(|text| of(places[if places.len() == 1 { 0 } else { text }])).collect())
            }
            (_, uses) => {
                let found = uses.len();
                Err(Failure::input(format!(
                    "--use: expected one adapter, or one for each of {count} prompts, found {found}"
                )))
            }
        }
    }
}

/// The model `name` with an adapter that stands elsewhere.
fn open_with(name: &Path, adapter: &Path, device: &Device) -> Result<LoadedModel, Failure> {
    let (root, path) = (locate(name)?, locate(adapter)?);
    let needs = |expected: &str, of: &str| needs(name, expected, adapter, of);
    if !PeftAdapter::is_in(&path) {
        let checkpoint = open_adapter_checkpoint(&path, adapter)?;
        if is_foreign(&root) {
            return Err(needs("the checkpoint that it was trained on", "in Bridge's format"));
        }
        // An `iter_` folder selects this checkpoint.
        return Adapted::from_checkpoint(checkpoint, &root)?.load(device);
    }
    if !is_foreign(&root) {
        return Err(needs("a Hugging Face folder", "in peft's format"));
    }
    let model = open_foreign(&root)?;
    let chunk = PeftAdapter::open(&path, &model).and_then(|peft| peft.build(&model, &device.clone().autodiff()));
    let chunk = chunk.map_err(Failure::input)?.inference();
    Ok(companions_of_peft(&path, &model)?.of_model(chunk, model.config().clone(), None))
}

/// Error about a base in another format than the adapter requires.
fn needs(base: &Path, expected: &str, adapter: &Path, format: &str) -> Failure {
    Failure::input(format!(
        "{}: expected {expected}, because the adapter {} is {format}",
        base.display(),
        adapter.display()
    ))
}

/// Opens a checkpoint, which must be one of an adapter; `name` is how the user calls it.
fn open_adapter_checkpoint(path: &Path, name: &Path) -> Result<Checkpoint, Failure> {
    let checkpoint = open_checkpoint(path)?;
    if AdapterBase::named_by(&checkpoint).map_err(Failure::input)?.is_none() {
        let text = "expected an adapter (adapter_config.json, or a checkpoint of a run with [peft]), found a checkpoint of a whole model";
        return Err(Failure::input(format!("--adapter {}: {text}", name.display())));
    }
    Ok(checkpoint)
}

type Named = Vec<(Option<String>, LoadedModel)>;

/// Adapters in `peft`'s format on a Hugging Face folder.
fn of_folders(base: &Path, adapters: &[(&str, &Path)], device: &Device) -> Result<Named, Failure> {
    let model = open_foreign(&locate(base)?)?;
    let chunk = model.build(&device.clone().autodiff()).map_err(Failure::input)?;
    let mut set = AdapterSet::new(model.config().clone(), chunk.as_ref(), device);
    drop(chunk);
    let mut companions = Vec::new();
    for (name, folder) in adapters {
        let path = locate(folder)?;
        if !PeftAdapter::is_in(&path) {
            open_adapter_checkpoint(&path, folder)?;
            return Err(needs(base, "the checkpoint that it was trained on", folder, "in Bridge's format"));
        }
        let adapter = PeftAdapter::open(&path, &model).and_then(|adapter| set.add_peft(name, &adapter));
        adapter.map_err(|error| Failure::input(error).about(name))?;
        companions.push((companions_of_peft(&path, &model)?, None));
    }
    named(&set, adapters, companions, (companions_of_foreign(&model)?, None))
}

/// Adapters of runs on the checkpoint that they were trained on.
fn of_checkpoints(base: &Path, adapters: &[(&str, &Path)], device: &Device) -> Result<Named, Failure> {
    let root = locate(base)?;
    let mut opened = Vec::new();
    for (_, folder) in adapters {
        let path = locate(folder)?;
        if PeftAdapter::is_in(&path) {
            return Err(needs(base, "a Hugging Face folder", folder, "in peft's format"));
        }
        opened.push(Adapted::from_checkpoint(open_adapter_checkpoint(&path, folder)?, &root)?);
    }
    let first = &opened[0].base;
    if let Some(other) = opened.iter().find(|adapted| adapted.base.path() != first.path()) {
        let [one, two] = [first, &other.base].map(|base| base.path().display());
        return Err(Failure::input(format!("the adapters were trained on {one} and on {two}: expected one base")));
    }
    let chunk = build_whole(first, &opened[0].config, device)?;
    let mut set = AdapterSet::new(opened[0].config.clone(), chunk.as_ref(), device);
    drop(chunk);
    let mut of_base = companions_of(first)?;
    if of_base.tokenizer.is_none() {
        // An imported base may have left its tokenizer in the source folder; an adapter has the
        // tokenizer of its training.
        of_base.tokenizer = opened[0].companions()?.tokenizer;
    }
    let of_base = (of_base, Some(open_checkpoint(first.path())?));
    let mut companions = Vec::new();
    for ((name, _), adapted) in adapters.iter().zip(opened) {
        let blank = set.blank(Arc::new(adapted.adapter.clone()));
        let mut chunk = blank.map_err(|error| Failure::input(error).about(name))?;
        load_adapter(chunk.as_mut(), &adapted.checkpoint).map_err(|error| Failure::input(error).about(name))?;
        set.insert(name, chunk.as_ref()).map_err(Failure::input)?;
        companions.push((adapted.companions()?, Some(adapted.checkpoint)));
    }
    named(&set, adapters, companions, of_base)
}

type WithCheckpoint = (Companions, Option<Checkpoint>);

/// The adapters of a set and, after them, the base.
fn named(
    set: &AdapterSet,
    adapters: &[(&str, &Path)],
    companions: Vec<WithCheckpoint>,
    of_base: WithCheckpoint,
) -> Result<Named, Failure> {
    let names = adapters.iter().map(|(name, _)| Some(*name)).chain([None]);
    let companions = companions.into_iter().chain([of_base]);
    let model = |(name, (companions, checkpoint)): (Option<&str>, WithCheckpoint)| -> Result<_, Failure> {
        let chunk = set.model(name).map_err(Failure::input)?.inference();
        let loaded = companions.of_model(chunk, set.config().clone(), checkpoint);
        Ok((Some(name.unwrap_or(BASE).to_owned()), loaded))
    };
    names.zip(companions).map(model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_may_have_a_name() {
        let given = |name: Option<&str>, folder: &str| Given { name: name.map(str::to_owned), folder: folder.into() };
        assert_eq!(Given::new("law=adapters/law"), given(Some("law"), "adapters/law"));
        assert_eq!(Given::new("adapters/a=b"), given(None, "adapters/a=b"));
        assert_eq!(Given::new("=adapters"), given(None, "=adapters"));
        assert_eq!(Given::new("adapters"), given(None, "adapters"));
    }
}
