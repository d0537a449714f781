//! Tests of import, export and verification on the golden models: tiny random ones made by Hugging
//! Face transformers.

mod absent;
mod atomic;
mod experts;
mod files;
mod generation;
mod golden;
mod multimodal;
mod predictions;
mod published;
mod scores;
mod settings;
mod sharded;
pub(crate) mod small;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::SafeTensors;
use serde_json::{Map, Value};

use super::*;
use crate::decoder::DecoderConfig;
use crate::families::{FAMILIES, with_model_type};

/// The golden models of families that are known here. Every family has one, in the repository or
/// beside it; those beside it that are not there are reported as skipped.
pub fn golden_models() -> Vec<String> {
    let folders = [OWN, SHARED].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.filter(|name| golden(name).join("config.json").exists()).collect();
    let is_known = |name: &String| with_model_type(settings_of(name)["model_type"].as_str().unwrap()).is_some();
    let names: Vec<String> = names.into_iter().filter(is_known).collect();
    for family in FAMILIES {
        let is_of_family = |name: &String| settings_of(name)["model_type"] == family.model_type();
        if names.iter().any(is_of_family) {
            continue;
        }
        assert!(!Path::new(SHARED).exists(), "{family:?} has no golden model");
        eprintln!("skipped: {family:?}, whose golden model is not on this machine");
    }
    names
}

pub fn golden(name: &str) -> PathBuf {
    let [own, shared] = [OWN, SHARED].map(|folder| Path::new(folder).join(name));
    if own.exists() || !shared.exists() { own } else { shared }
}

/// Golden models of the repository.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/golden");
/// Further ones beside it, on machines that have them.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/golden2026");

pub fn device() -> Device {
    Device::flex().autodiff()
}

pub fn family(model_type: &str) -> &'static Family {
    with_model_type(model_type).unwrap()
}

/// The settings of a golden model.
pub fn settings_of(name: &str) -> Map<String, Value> {
    json::parse_table(&std::fs::read_to_string(golden(name).join("config.json")).unwrap()).unwrap()
}

/// The decoder of these settings.
pub fn parse(settings: &Map<String, Value>) -> Result<DecoderConfig, HfError> {
    described::Architecture::new(&fields::Fields::new(settings)).map(|architecture| architecture.config)
}

/// A copy of a golden model whose tensors went through `change`, as (name, dtype, shape, bytes).
pub fn changed_copy(name: &str, change: impl Fn(&mut Vec<Raw>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
    let mut tensors = raw_tensors(&golden(name).join("model.safetensors"));
    change(&mut tensors);
    write_raw(&folder.path().join("model.safetensors"), &tensors);
    folder
}

/// A tensor as a file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn raw_tensors(path: &Path) -> Vec<Raw> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<Raw> = file
        .iter()
        .map(|(name, view)| Raw {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

pub fn write_raw(path: &Path, tensors: &[Raw]) {
    let views = tensors.iter().map(|raw| {
        (&raw.name, safetensors::tensor::TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}
