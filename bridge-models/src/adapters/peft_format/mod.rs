//! Folders of the `peft` library: `adapter_config.json` and `adapter_model.safetensors`, for a base
//! that is a Hugging Face model.
//!
//! | file | what it has |
//! | --- | --- |
//! | `settings` | which modules have a branch, by `peft`'s rules |
//! | `modules` | what the modules of a family are here |
//! | `write` | branches that were trained here as such a folder |

mod modules;
mod settings;
mod write;

use bridge_core::config::PeftKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::model::{Declaration, Initial, LinearLayer, ModelChunk, Scope};
use bridge_data::untrusted_io;
use burn::tensor::{Device, Tensor, TensorData};

pub(super) use self::modules::ModuleNames;
use self::modules::{AdaptedModule, SavedParameter};
use self::settings::Settings;
pub use self::write::PeftOptions;
use super::AdapterError;
use super::lora::{Branch, Dropout, LowRankAdapter, Targets};
use super::merge::merged;
use crate::huggingface::{HfCheckpoint, HfError, HfModel, HostTensor, TensorProblem, TensorSource, parse_settings};

/// The file with the settings.
const SETTINGS: &str = "adapter_config.json";
/// The file with the tensors.
const TENSORS: &str = "adapter_model.safetensors";
/// Prefix that `peft` adds to the names of a base's tensors.
const PREFIX: &str = "base_model.model.";

/// A folder of `peft` for a base, checked: its tensors are those of its settings.
#[derive(Debug)]
pub struct PeftAdapter {
    method: PeftKind,
    modules: Vec<AdaptedModule>,
    saved: Vec<SavedParameter>,
    names: ModuleNames,
    source: HfCheckpoint,
}

/// A gradient under the name that `peft` gives the parameter, without the prefix of the base.
#[derive(Debug)]
pub struct NamedGradient {
    /// The name.
    pub name: String,
    /// Shape and values as `peft` has them.
    pub tensor: HostTensor,
}

/// The layers that a folder names.
#[derive(Debug)]
struct Listed {
    branches: BTreeMap<String, Vec<Branch>>,
    trained: BTreeSet<String>,
}

impl Targets for Listed {
    fn branches(&self, layer: &LinearLayer, _: &Scope) -> Vec<Branch> {
        self.branches.get(&layer.name).cloned().unwrap_or_default()
    }

    fn trains(&self, declaration: &Declaration) -> bool {
        self.trained.contains(&declaration.name)
    }
}

impl PeftAdapter {
    /// True if `folder` has an adapter in this format.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(SETTINGS).is_file()
    }

    /// Opens `folder`, an adapter of `base`.
    ///
    /// # Errors
    /// If a file is missing or damaged, a setting is one that cannot be computed here, or tensors
    /// are missing, unexpected or of other shapes.
    pub fn open(folder: &Path, base: &HfModel) -> Result<Self, AdapterError> {
        let path = folder.join(SETTINGS);
        let text = untrusted_io::read_text(&path, untrusted_io::SETTINGS_BYTES);
        let text = text.map_err(|source| HfError::Io { path: path.clone(), source })?;
        let table = parse_settings(&text).map_err(|source| HfError::Json { path: path.clone(), source })?;
        let settings = Settings::new(&path, &table)?;
        let pickled = folder.join("adapter_model.bin");
        if pickled.is_file() && !folder.join(TENSORS).is_file() {
            return Err(HfError::OtherWeights {
                path: folder.to_owned(),
                expected: TENSORS,
                found: "adapter_model.bin".into(),
                remedy: "such a file is a program, which is not run: write the folder anew by peft, model.save_pretrained(FOLDER)",
            }
            .into());
        }
        let source = HfCheckpoint::open_file(&folder.join(TENSORS))?;
        let tensors: Vec<&str> = source.tensors().map(|(name, _)| name).collect();
        let names = ModuleNames::in_folder(base.family(), base.module_layout(), tensors.into_iter());
        let all = modules::modules(base.config(), base.weight_map(), names);
        modules::check_targets(&settings, &all, source.tensors().map(|(name, _)| name))?;
        let modules = modules::adapted(&settings, all, |name| source.shape(&tensor_name(name, A)).is_some())?;
        let saved = modules::saved(&settings, base, names)?;
        let method = if settings.is_dora { PeftKind::Dora } else { PeftKind::Lora };
        let adapter = Self { method, modules, saved, names, source };
        adapter.check(&folder.join(TENSORS))?;
        for SavedParameter { entry, tied, .. } in &adapter.saved {
            if let Some(head) = tied
                && !adapter.is_same(&entry.tensors[0].name, &head.name)?
            {
                let expected = "a head with the values of the embedding, to which it is tied";
                return Err(settings.cannot_save(&names.module_name(&head.name), expected));
            }
        }
        Ok(adapter)
    }

    /// Adapter that changes the base's declarations.
    pub fn adapter(&self) -> LowRankAdapter {
        let trained = self.saved.iter().map(|saved| saved.entry.parameter.clone()).collect();
        let zeros = |_: usize, _: usize| Initial::Zeros;
        let targets = Arc::new(Listed { branches: modules::by_layer(&self.modules), trained });
        LowRankAdapter::new(targets, self.method, [zeros, zeros], Dropout::default())
    }

    /// The base with this adapter, in float32 on `device`, on one rank.
    ///
    /// # Errors
    /// Errors of the base, and of tensors that cannot be read.
    pub fn build(&self, base: &HfModel, device: &Device) -> Result<Box<dyn ModelChunk>, AdapterError> {
        let mut chunk = base.build_with(device, Some(Arc::new(self.adapter())))?;
        self.load_into(chunk.as_mut())?;
        Ok(chunk)
    }

    /// Gives the parameters that this adapter has their values, in a chunk that was built with it
    /// on one rank.
    ///
    /// # Errors
    /// If tensors cannot be read.
    pub fn load_into(&self, chunk: &mut dyn ModelChunk) -> Result<(), AdapterError> {
        replace(chunk, self.values()?);
        Ok(())
    }

    /// The base whose weights have taken this adapter up, in float32 on `device`, on one rank.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_merged(&self, base: &HfModel, device: &Device) -> Result<Box<dyn ModelChunk>, AdapterError> {
        let mut chunk = base.build(device)?;
        let values = self.values()?;
        let plain = device.clone().without_autodiff();
        let tensor = |name: &String| {
            let HostTensor { shape, values } = values[name].clone();
            (shape.clone(), Tensor::<1>::from_data(TensorData::new(values, [shape.iter().product::<usize>()]), &plain))
        };
        let matrix = |name: &String| {
            let (shape, values) = tensor(name);
            values.reshape([shape[0], shape[1]])
        };
        let branches = modules::by_layer(&self.modules);
        chunk.update_parameters(&mut |name, value| {
            let of_layer = name.strip_suffix(".weight").and_then(|layer| Some((layer, branches.get(layer)?)));
            let Some((layer, branches)) = of_layer else {
                return match values.contains_key(name) {
                    true => tensor(&name.to_owned()).1.into(),
                    false => value.into(),
                };
            };
            let mut of_layer = self.modules.iter().filter(|adapted| adapted.module.layer.name == layer).peekable();
            let whole = of_layer.peek().expect("a layer with branches is a module's").module.layer.clone();
            let names: Vec<_> = of_layer.map(|adapted| &adapted.names).collect();
            let matrices: Vec<_> = names.iter().flat_map(|names| [matrix(&names.a), matrix(&names.b)]).collect();
            let vectors: Vec<_> = match self.method {
                PeftKind::Lora => Vec::new(),
                PeftKind::Dora => names.iter().map(|names| tensor(&names.magnitudes).1).collect(),
            };
            let weight_oi = value.reshape([whole.outputs, whole.inputs]);
            let count = whole.outputs * whole.inputs;
            merged(weight_oi, &whole, branches, self.method, (&matrices, &vectors)).reshape([count]).into()
        });
        Ok(chunk)
    }

    /// The adapter's parameters, and those of the base that it has in full, by their names here.
    pub(super) fn values(&self) -> Result<BTreeMap<String, HostTensor>, AdapterError> {
        let mut values = BTreeMap::new();
        for AdaptedModule { module, names, .. } in &self.modules {
            values.insert(names.a.clone(), self.source.read(&tensor_name(&module.name, A))?);
            let in_our_order = |stored: HostTensor| {
                let width: usize = stored.shape[1..].iter().product();
                let rows = module.rows.iter().flat_map(|row| &stored.values[row * width..(row + 1) * width]);
                HostTensor { values: rows.copied().collect(), shape: stored.shape }
            };
            values.insert(names.b.clone(), in_our_order(self.source.read(&tensor_name(&module.name, B))?));
            if self.method == PeftKind::Dora {
                let stored = self.source.read(&tensor_name(&module.name, MAGNITUDES))?;
                values.insert(names.magnitudes.clone(), in_our_order(stored));
            }
        }
        for SavedParameter { entry, .. } in &self.saved {
            let read = entry
                .read_part(0..entry.shape[0], 0..entry.row_length(), &self.source, &|name| self.saved_name(name))?;
            values.insert(entry.parameter.clone(), HostTensor { shape: entry.shape.clone(), values: read });
        }
        Ok(values)
    }

    /// Gradients of the trained parameters of a model on one rank, under `peft`'s names and in its
    /// order of rows.
    ///
    /// # Panics
    /// If one is missing.
    pub fn gradients(&self, gradients: &HashMap<String, Tensor<1>>) -> Vec<NamedGradient> {
        let values = |name: &str| -> Vec<f32> {
            let gradient = gradients.get(name).unwrap_or_else(|| panic!("`{name}` is trained and has no gradient"));
            gradient.clone().into_data().try_into_vec().expect("gradients of a float32 model are float32")
        };
        let mut all = Vec::new();
        for AdaptedModule { module, branch, names } in &self.modules {
            let mut push = |end: &str, shape: Vec<usize>, values: Vec<f32>| {
                all.push(NamedGradient {
                    name: format!("{}.{end}", module.name),
                    tensor: HostTensor { shape, values },
                });
            };
            let outputs = module.rows.len();
            push(A, vec![branch.rank, module.layer.inputs], values(&names.a));
            push(B, vec![outputs, branch.rank], module.stored(&values(&names.b), branch.rank));
            if self.method == PeftKind::Dora {
                let magnitudes = module.stored(&values(&names.magnitudes), 1);
                push(&format!("{MAGNITUDES}.weight"), vec![outputs], magnitudes);
            }
        }
        for SavedParameter { entry, modules, .. } in &self.saved {
            let split = entry.split(&values(&entry.parameter));
            for ((stored, module), tensor) in entry.tensors.iter().zip(modules).zip(split) {
                let stored = self.names.module_name(&stored.name);
                let name = format!("{module}.modules_to_save{}", &stored[module.len()..]);
                all.push(NamedGradient { name, tensor });
            }
        }
        all
    }

    /// Name in the adapter's file of a tensor of a module that is trained in full, from its name in
    /// a base's files.
    fn saved_name(&self, stored: &str) -> String {
        format!("{PREFIX}{}", self.names.module_name(stored))
    }

    /// True if two tensors of modules that are trained in full have the same elements.
    fn is_same(&self, one: &str, other: &str) -> Result<bool, AdapterError> {
        const ELEMENTS: usize = 1 << 20;
        let names = [one, other].map(|name| self.saved_name(name));
        let count: usize = self.source.shape(&names[0]).unwrap_or_default().iter().product();
        for start in (0..count).step_by(ELEMENTS) {
            let mut elements = [(); 2].map(|()| vec![0.0; ELEMENTS.min(count - start)]);
            for (name, elements) in names.iter().zip(&mut elements) {
                self.source.read_into(name, start, elements)?;
            }
            if elements[0] != elements[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses tensors that are missing, unexpected or of other shapes.
    fn check(&self, path: &Path) -> Result<(), AdapterError> {
        let mut expected: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for AdaptedModule { module, branch, .. } in &self.modules {
            let outputs = module.rows.len();
            expected.insert(tensor_name(&module.name, A), vec![branch.rank, module.layer.inputs]);
            expected.insert(tensor_name(&module.name, B), vec![outputs, branch.rank]);
            if self.method == PeftKind::Dora {
                expected.insert(tensor_name(&module.name, MAGNITUDES), vec![outputs]);
            }
        }
        let saved = self.saved.iter().flat_map(|saved| saved.entry.tensors.iter().chain(&saved.tied));
        expected.extend(saved.map(|stored| (self.saved_name(&stored.name), stored.whole_shape())));
        let mut problems = Vec::new();
        for (name, shape) in &expected {
            let (name, expected) = (name.clone(), shape.clone());
            match self.source.shape(&name) {
                None => problems.push(TensorProblem::Missing { name, expected }),
                Some(found) if found != shape => {
                    problems.push(TensorProblem::Shape { name, expected, found: found.to_vec() });
                }
                Some(_) => {}
            }
        }
        let others = self.source.tensors().filter(|(name, _)| !expected.contains_key(*name));
        problems
            .extend(others.map(|(name, shape)| TensorProblem::Unexpected { name: name.into(), found: shape.to_vec() }));
        match problems.is_empty() {
            true => Ok(()),
            false => Err(HfError::Tensors { path: PathBuf::from(path), problems }.into()),
        }
    }
}

const A: &str = "lora_A.weight";
const B: &str = "lora_B.weight";
const MAGNITUDES: &str = "lora_magnitude_vector";

/// Name in the adapter's file of a tensor of a module's branch.
fn tensor_name(module: &str, tensor: &str) -> String {
    format!("{PREFIX}{module}.{tensor}")
}

/// Gives parameters of a chunk on one rank these values.
fn replace(chunk: &mut dyn ModelChunk, mut values: BTreeMap<String, HostTensor>) {
    chunk.update_parameters(&mut |name, old| match values.remove(name) {
        Some(HostTensor { values, .. }) => {
            let count = values.len();
            Tensor::<1>::from_data(TensorData::new(values, [count]), (&old.device(), old.dtype())).into()
        }
        None => old.into(),
    });
}
