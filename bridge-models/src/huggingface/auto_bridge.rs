//! The bridge to Hugging Face as one value: opened from a folder or a GGUF file of any family, and
//! written as a folder again.

use std::path::Path;
use std::sync::Arc;

use bridge_core::checkpoint::Snapshot;
use bridge_core::model::{ModelChunk, ModelHook};
use burn::tensor::Device;

use super::error::HfError;
use super::export::{ExportOptions, Exporter};
use super::import::{HfModel, import_hook};
use super::snapshot::snapshot;
use crate::decoder::DecoderConfig;

/// A model on its way between Hugging Face and Bridge.
#[derive(Clone, Debug)]
pub struct AutoBridge {
    model: Arc<HfModel>,
}

impl AutoBridge {
    /// Opens a folder with `config.json` and safetensors, or a GGUF file. This finds the family and
    /// checks every tensor's name and shape, without reading tensors.
    ///
    /// # Errors
    /// As [`HfModel::open`].
    pub fn from_hf(path: &Path) -> Result<Self, HfError> {
        Ok(Self { model: Arc::new(HfModel::open(path)?) })
    }

    /// The opened model: its family, its map of weights, its tensors.
    pub fn model(&self) -> &HfModel {
        &self.model
    }

    /// Architecture of the model.
    pub fn config(&self) -> &DecoderConfig {
        self.model.config()
    }

    /// Builds it whole in float32, with its weights.
    ///
    /// # Errors
    /// As [`HfModel::build`].
    pub fn build(&self, device: &Device) -> Result<Box<dyn ModelChunk>, HfError> {
        self.model.build(device)
    }

    /// Loads its weights into the chunks of a model of any layout, of which each rank reads its
    /// part.
    pub fn hook(&self) -> ModelHook {
        import_hook(self.model.source().path().to_owned())
    }

    /// Snapshot of the model for [`bridge_core::checkpoint::CheckpointWriter`].
    ///
    /// # Errors
    /// As [`snapshot`].
    pub fn snapshot(&self) -> Result<Snapshot, HfError> {
        snapshot(self.model.clone())
    }

    /// Writes `chunks`, for instance the stages of this model after training, as a folder of its
    /// family, with the settings, tokenizer files and expert layout of this model. Other values of
    /// `options` are used as given.
    ///
    /// # Errors
    /// As [`super::to_hf`], and if one of those files cannot be read.
    pub fn to_hf(&self, folder: &Path, chunks: &[&dyn ModelChunk], options: &ExportOptions) -> Result<(), HfError> {
        let model = &self.model;
        let mut companions = model.companions()?;
        companions.extend(options.companions.clone());
        let options = ExportOptions {
            original: options.original.clone().or_else(|| Some(model.settings().clone())),
            carried: options.carried.clone().or_else(|| model.carried().cloned()),
            experts: model.experts(),
            companions,
            ..options.clone()
        };
        let mut exporter = Exporter::new(folder, model.family(), model.config(), &options)?;
        exporter.add_chunks(chunks);
        for tensor in model.carried().iter().flat_map(|carried| &carried.tensors) {
            exporter.carry(&tensor.name, model.carried_bytes(&tensor.name)?);
        }
        exporter.finish()
    }
}
