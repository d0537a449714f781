//! `bridge convert`: Hugging Face folders to checkpoints and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridge_core::checkpoint::{
    CheckpointWriter, HostTensor, RunFiles, SaveOptions, ShardTensor, Snapshot, TensorGroup, TrainState,
};
use bridge_core::config::RawConfig;
use bridge_core::train::select_device;
use bridge_data::outside;
use bridge_models::families;
use bridge_models::huggingface::{ExportOptions, HfModel, StorageDtype, export};
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use crate::failure::Failure;
use crate::model_source::{copy_tokenizer, is_tokenizer_file, open};
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
    },
}

/// Runs the command.
pub fn run(command: &Command, speech: &Speech) -> Result<u8, Failure> {
    match command {
        Command::Import { hf_dir, output } => {
            let (path, num_parameters) = import(hf_dir, output)?;
            wrote(&path, num_parameters, speech);
            Ok(0)
        }
        Command::Export { checkpoint, output, dtype } => export_folder(checkpoint, (output, *dtype), speech),
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
    raw.model.config = model.config().to_transformer().map_err(Failure::input)?;
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Failure::input(format!("{}: {e}", folder.display())))? {
        let entry = entry.map_err(Failure::run)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_tokenizer_file(&name) {
            files.insert(name, read(&entry.path())?.into());
        }
    }
    let snapshot = Snapshot {
        run: RunFiles { train_state: TrainState::default(), best: None, run_config: raw.to_toml(), files },
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
    let family = families::of(&model.config).map_err(Failure::input)?;
    let options = ExportOptions {
        dtype: match dtype {
            Dtype::F32 => StorageDtype::F32,
            Dtype::F16 => StorageDtype::F16,
            Dtype::Bf16 => StorageDtype::Bf16,
        },
        bos_token_id: model.tokenizer.as_ref().and_then(|t| t.bos()),
        eos_token_ids: model.stop_tokens.clone(),
        ..ExportOptions::default()
    };
    export(output, family, &model.config, &[model.chunk.as_ref()], &options).map_err(Failure::input)?;
    if let Some(checkpoint) = &model.checkpoint {
        copy_tokenizer(checkpoint, output)?;
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
