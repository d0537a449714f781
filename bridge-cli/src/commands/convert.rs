//! `bridge convert`: Hugging Face folders to checkpoints and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridge_core::checkpoint::{
    Checkpoint, CheckpointWriter, HostTensor, RunFiles, SaveOptions, ShardTensor, Snapshot, TensorGroup, TrainState,
};
use bridge_core::config::RawConfig;
use bridge_core::train::select_device;
use bridge_data::outside;
use bridge_models::families;
use bridge_models::huggingface::{ExportOptions, HfModel, StorageDtype, export, is_exported};
use clap::{Subcommand, ValueEnum};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::model_card;
use crate::failure::Failure;
use crate::model_source::{copy_tokenizer, is_tokenizer_file, open};
use crate::overwrite::Force;
use crate::speech::Speech;

/// dtype of exported weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Dtype {
    /// float32.
    F32,
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Which way to convert.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hugging Face folder -> checkpoint.
    Import {
        /// Folder with config.json and safetensors.
        hf_dir: PathBuf,
        /// Checkpoint folder to write (`checkpoint.pretrained_checkpoint` of a recipe).
        output: PathBuf,
        #[command(flatten)]
        force: Force,
    },
    /// Checkpoint -> Hugging Face folder.
    Export {
        /// Checkpoint folder, or one of its `iter_` folders.
        checkpoint: PathBuf,
        /// Folder to write.
        output: PathBuf,
        /// dtype of the weights.
        #[arg(long, value_enum, default_value = "f32")]
        dtype: Dtype,
        #[command(flatten)]
        force: Force,
    },
}

/// Runs the command.
pub fn run(command: &Command, speech: &Speech) -> Result<u8, Failure> {
    match command {
        Command::Import { hf_dir, output, force } => {
            force.outside(hf_dir, output)?;
            force.over(not_imported(output))?;
            let (path, num_parameters) = import(hf_dir, output)?;
            wrote(&path, num_parameters, speech);
            Ok(0)
        }
        Command::Export { checkpoint, output, dtype, force } => {
            force.outside(checkpoint, output)?;
            force.over(not_exported(output))?;
            export_folder(checkpoint, (output, *dtype), speech)
        }
    }
}

/// Writes the model of a Hugging Face folder as a checkpoint. Returns the checkpoint's path and the model's number of parameters.
///
/// # Errors
/// If the folder has no model that is understood, or the checkpoint cannot be written.
pub fn import(folder: &Path, output: &Path) -> Result<(PathBuf, u64), Failure> {
    let model = HfModel::open(folder).map_err(Failure::input)?;
    let device = select_device("flex").map_err(Failure::input)?.autodiff();
    let chunk = model.build(&device).map_err(Failure::input)?;
    let shapes: BTreeMap<String, Vec<usize>> =
        chunk.parameters().iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
    let mut tensors = Vec::new();
    let mut failure = None;
    chunk.visit_parameters(&mut |name, value| {
        let values = value.into_data().iter::<f32>().collect::<Vec<f32>>();
        match HostTensor::from_vec(shapes[name].clone(), values) {
            Ok(tensor) => tensors.push(ShardTensor::whole(name, tensor)),
            Err(error) => failure = Some(error),
        }
    });
    failure.map_or(Ok(()), |error| Err(Failure::run(error)))?;
    let num_parameters: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();

    let mut raw = RawConfig::default();
    raw.model.kind = model.config().kind().to_owned();
    raw.model.config = model.config().to_transformer().map_err(Failure::input)?;
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Failure::input(format!("{}: {e}", folder.display())))? {
        let entry = entry.map_err(Failure::run)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kept = if name == "config.json" { ORIGINAL_CONFIG.to_owned() } else { name.clone() };
        if is_tokenizer_file(&name) || kept != name {
            files.insert(kept, read(&entry.path())?.into());
        }
    }
    files.insert(EXPERTS.to_owned(), serde_json::to_vec(&model.experts()).map_err(Failure::run)?.into());
    let snapshot = Snapshot {
        run: RunFiles { train_state: TrainState::default(), run_config: raw.to_toml(), files, ..RunFiles::default() },
        groups: vec![TensorGroup { name: "model".into(), tensors }],
    };
    let options = SaveOptions { producer: concat!("bridge ", env!("CARGO_PKG_VERSION")).into(), ..Default::default() };
    let report = CheckpointWriter::open(output, options).and_then(|w| w.save(&snapshot)).map_err(Failure::run)?;
    Ok((report.path, num_parameters as u64))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = outside::read(path, outside::TABLE_BYTES);
    read.map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

fn export_folder(checkpoint: &Path, (output, dtype): (&Path, Dtype), speech: &Speech) -> Result<u8, Failure> {
    let device = select_device("flex").map_err(Failure::input)?;
    let model = open(checkpoint, &device)?;
    let kept = model.checkpoint.as_ref();
    let original: Option<Map<String, Value>> = kept.map(|kept| kept_json(kept, ORIGINAL_CONFIG)).transpose()?.flatten();
    let origin = original.as_ref().and_then(|settings| settings.get("model_type")?.as_str());
    let family = families::of(&model.config, origin).map_err(Failure::input)?;
    let options = ExportOptions {
        dtype: match dtype {
            Dtype::F32 => StorageDtype::F32,
            Dtype::F16 => StorageDtype::F16,
            Dtype::Bf16 => StorageDtype::Bf16,
        },
        bos_token_id: model.tokenizer.as_ref().and_then(|t| t.bos()),
        eos_token_ids: model.stop_tokens.clone(),
        original,
        experts: kept.map(|kept| kept_json(kept, EXPERTS)).transpose()?.flatten().unwrap_or_default(),
        ..ExportOptions::default()
    };
    export(output, family, &model.config, &[model.chunk.as_ref()], &options).map_err(Failure::input)?;
    if let Some(checkpoint) = &model.checkpoint {
        copy_tokenizer(checkpoint, output)?;
        let card = model_card::of(checkpoint, family.model_type(), model.config.num_parameters() as u64)?;
        let path = output.join("README.md");
        std::fs::write(&path, card).map_err(|error| Failure::run(format!("{}: {error}", path.display())))?;
    }
    wrote(output, model.config.num_parameters() as u64, speech);
    Ok(0)
}

fn wrote(path: &Path, num_parameters: u64, speech: &Speech) {
    speech.result(
        || format!("wrote {} ({num_parameters} parameters)", path.display()),
        || json!({ "wrote": path, "parameters": num_parameters }),
    );
}

/// What an earlier import leaves in a folder.
const IMPORTED: [&str; 2] = ["iter_0000000", "latest_checkpointed_iteration.txt"];

/// The first entry of a checkpoint folder that no import has made: a run's checkpoints, for instance, before which an import would be the
/// latest.
fn not_imported(output: &Path) -> Option<PathBuf> {
    let foreign =
        names_in(output).into_iter().find(|name| !IMPORTED.contains(&name.as_str()) && !name.starts_with('.'));
    foreign.map(|name| output.join(name))
}

/// The first file that an export would write over, unless an export has made the folder.
fn not_exported(output: &Path) -> Option<PathBuf> {
    let is_of_weights = |name: &str| name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    let is_written = |name: &String| {
        matches!(name.as_str(), "config.json" | "README.md")
            || is_tokenizer_file(name)
            || (name.starts_with("model") && is_of_weights(name))
    };
    let written = names_in(output).into_iter().find(is_written);
    written.filter(|_| !is_exported(output)).map(|name| output.join(name))
}

/// Names of what is in a folder, sorted; nothing if there is no such folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Name under which a checkpoint keeps the `config.json` of the folder that it was imported from.
const ORIGINAL_CONFIG: &str = "hf_config.json";
/// Name of the file that says how the folder had the experts of a layer.
const EXPERTS: &str = "hf_experts.json";

/// A file that the import has left in a checkpoint; nothing in other checkpoints.
fn kept_json<T: DeserializeOwned>(checkpoint: &Checkpoint, name: &str) -> Result<Option<T>, Failure> {
    if !checkpoint.file_names().any(|known| known == name) {
        return Ok(None);
    }
    let text = checkpoint.file(name).map_err(Failure::input)?;
    let bad = |error| Failure::input(format!("{}: {error}", checkpoint.path().join(name).display()));
    serde_json::from_slice(&text).map(Some).map_err(bad)
}
