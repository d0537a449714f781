//! `bridge convert`: Hugging Face folders and GGUF files to checkpoints and back, and Megatron's
//! checkpoints in.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::{
    CARRIED_GROUP, Checkpoint, CheckpointError, CheckpointWriter, SaveOptions, ShardTensor, Snapshot,
};
use bridge_core::config::FINETUNING;
use bridge_models::huggingface::{
    Carried, CarriedTensor, ExpertLayout, ExportOptions, Exporter, Family, GgufDtype, GgufExporter, HfError, LAYOUT,
    NAMED_TEMPLATES, ORIGINAL_CONFIG, ReadRows, StorageDtype, StoredTensor, WeightEntry, is_companion, is_exported,
    is_exported_gguf, parse_settings, snapshot, text_model_type,
};
use bridge_models::{DecoderConfig, families, megatron};
use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::adapters;
use super::chat::end_of_turn;
use super::model_card::{self, Exported};
use crate::failure::Failure;
use crate::foreign::open_foreign;
use crate::generation_settings::{eos_tokens, with_stop_tokens};
use crate::model_source::{Adapted, Found, check_recipe, find, recipe, with_averages};
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
    /// Linear layers in float8 (E4M3) with a scale for each block of 128 x 128, the rest in
    /// bfloat16.
    F8,
    /// GGUF only: 8-bit integers, 32 of them with a factor.
    #[value(name = "q8_0")]
    Q8,
}

impl Dtype {
    /// In a Hugging Face folder.
    fn in_folder(self) -> Result<StorageDtype, Failure> {
        match self {
            Self::F32 => Ok(StorageDtype::F32),
            Self::F16 => Ok(StorageDtype::F16),
            Self::Bf16 => Ok(StorageDtype::Bf16),
            Self::F8 => Ok(StorageDtype::F8),
            Self::Q8 => Err(Failure::input("--dtype q8_0: only GGUF files (OUTPUT.gguf) have it")),
        }
    }

    /// In a GGUF file.
    fn in_gguf(self) -> Result<GgufDtype, Failure> {
        match self {
            Self::F32 => Ok(GgufDtype::F32),
            Self::F16 => Ok(GgufDtype::F16),
            Self::Bf16 => Ok(GgufDtype::Bf16),
            Self::Q8 => Ok(GgufDtype::Q8_0),
            Self::F8 => {
                Err(Failure::input("--dtype f8: GGUF files have no such type: expected f32, f16, bf16 or q8_0"))
            }
        }
    }
}

/// Direction of the conversion.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hugging Face folder, GGUF file or Megatron's checkpoint -> checkpoint.
    Import {
        /// Folder with config.json and safetensors, a GGUF file, or a checkpoint of Megatron
        /// (`torch_dist`).
        source: PathBuf,
        /// Checkpoint folder to write (`checkpoint.pretrained_checkpoint` of a recipe).
        #[arg(required_unless_present = "dry_run")]
        output: Option<PathBuf>,
        /// Write nothing: check the folder, and print which parameter is made of which tensors.
        #[arg(long)]
        dry_run: bool,
        /// For a checkpoint of Megatron without run_config.yaml: the recipe that says which model
        /// it is of.
        #[arg(long)]
        recipe: Option<PathBuf>,
        #[command(flatten)]
        force: Force,
    },
    /// Checkpoint of an adapter -> checkpoint of a whole model: its base with the adapter taken up,
    /// in float32.
    Merge {
        /// Checkpoint folder of the adapter, or one of its `iter_` folders.
        adapter: PathBuf,
        /// Checkpoint folder to write.
        output: PathBuf,
        #[command(flatten)]
        force: Force,
    },
    /// Checkpoint -> Hugging Face folder or GGUF file; checkpoint of an adapter -> folder of
    /// `peft`.
    Export {
        /// Checkpoint folder, or one of its `iter_` folders.
        checkpoint: PathBuf,
        /// Folder to write, or a file whose name ends in `.gguf`.
        output: PathBuf,
        /// dtype of the weights.
        #[arg(long, value_enum, default_value = "f32")]
        dtype: Dtype,
        /// A file of weights is started anew beyond this size, such as 500MB or 5GB (powers of
        /// 1000) or a number of bytes.
        #[arg(long, default_value = "5GB", value_parser = num_bytes)]
        max_shard_size: usize,
        /// Base that an adapter's folder names: a folder or a name on a hub; by default the Hugging
        /// Face folder that it was trained on.
        #[arg(long)]
        base: Option<String>,
        /// Write the moving averages of the weights (`optimizer.ema_decay`) instead of the weights.
        #[arg(long)]
        ema: bool,
        #[command(flatten)]
        force: Force,
    },
}

/// Parses a number of bytes with or without a unit.
fn num_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => Some(1),
        "KB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000_usize),
        _ => None,
    };
    let size = digits.parse::<usize>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
    size.filter(|size| *size > 0).ok_or_else(|| "expected a number above 0, with or without KB, MB or GB".to_owned())
}

/// Writes the model or the adapter of a checkpoint.
fn export(
    source: &Path,
    output: &Path,
    dtype: Dtype,
    max_shard_size: usize,
    base: Option<&str>,
    ema: bool,
    force: Force,
    speech: &Speech,
) -> Result<u8, Failure> {
    if let Some(mut adapted) = Adapted::find(source)? {
        if is_gguf(output) {
            return Err(Failure::input(format!(
                "{0}: an adapter alone: merge it first, by `bridge convert merge {0} MERGED`",
                source.display()
            )));
        }
        if !matches!(dtype, Dtype::F32) {
            return Err(Failure::input(format!(
                "--dtype: {0} is an adapter alone, which is written in f32: for a whole model, merge it first, by `bridge convert merge {0} MERGED`",
                source.display()
            )));
        }
        if ema {
            adapted.checkpoint = with_averages(adapted.checkpoint)?;
        }
        return adapters::export(&adapted, output, base, force, speech);
    }
    if base.is_some() {
        return Err(Failure::input(format!("--base: {} is a whole model, not an adapter on a base", source.display())));
    }
    let is_file = is_gguf(output);
    force.over(match is_file {
        true => (output.exists() && !is_exported_gguf(output)).then(|| output.to_owned()),
        false => not_exported(output),
    })?;
    let found = match find(source)? {
        Found::Checkpoint(checkpoint, config) if ema => {
            Found::Checkpoint(Box::new(with_averages(*checkpoint)?), config)
        }
        Found::HuggingFace(_) if ema => {
            return Err(Failure::input(format!("--ema: {} is no checkpoint of a run", source.display())));
        }
        found => found,
    };
    match is_file {
        true => export_gguf(&found, output, dtype, speech),
        false => export_folder(&found, output, dtype, max_shard_size, speech),
    }
}

/// Runs the command.
pub fn run(command: &Command, speech: &Speech) -> Result<u8, Failure> {
    match command {
        Command::Import { source, output, dry_run, recipe, force } => {
            let output = output.as_ref().filter(|_| !dry_run);
            let megatron = megatron::find(source);
            if let (None, Some(_)) = (&megatron, recipe) {
                return Err(Failure::input(
                    "--recipe: only checkpoints of Megatron need one; this source says itself which model it has",
                ));
            }
            let Some(output) = output else {
                return match megatron {
                    Some(folder) => show_parameters(&folder, recipe.as_deref(), speech),
                    None => show_map(source, speech),
                };
            };
            force.outside(source, output)?;
            force.over(not_imported(output))?;
            let (path, num_parameters) = match megatron {
                Some(folder) => {
                    let snapshot = megatron::snapshot(&folder, recipe.as_deref()).map_err(Failure::input)?;
                    if let Some(remark) = megatron::left_out(&folder, recipe.as_deref()) {
                        eprintln!("{remark}");
                    }
                    let count = snapshot.groups.iter().flat_map(|group| &group.tensors).map(num_elements).sum();
                    (write(&snapshot, output)?, count)
                }
                None => import(source, output)?,
            };
            wrote(&path, num_parameters, speech);
            Ok(0)
        }
        Command::Export { checkpoint, output, dtype, max_shard_size, base, ema, force } => {
            force.outside(checkpoint, output)?;
            export(checkpoint, output, *dtype, *max_shard_size, base.as_deref(), *ema, *force, speech)
        }
        Command::Merge { adapter, output, force } => {
            force.outside(adapter, output)?;
            force.over(not_imported(output))?;
            adapters::merge(adapter, output, speech)
        }
    }
}

fn num_elements(tensor: &ShardTensor) -> u64 {
    tensor.global_shape.iter().product::<usize>() as u64
}

/// Prints the parameters of a checkpoint of Megatron.
fn show_parameters(folder: &Path, recipe: Option<&Path>, speech: &Speech) -> Result<u8, Failure> {
    let snapshot = megatron::snapshot(folder, recipe).map_err(Failure::input)?;
    let tensors: Vec<&ShardTensor> = snapshot.groups.iter().flat_map(|group| &group.tensors).collect();
    let count: u64 = tensors.iter().copied().map(num_elements).sum();
    let text = || {
        let lines = tensors.iter().map(|tensor| format!("\n{} {:?}", tensor.name, tensor.global_shape));
        format!("{} ({count} parameters){}", folder.display(), lines.collect::<String>())
    };
    let map = || tensors.iter().map(|t| json!({ "parameter": t.name, "shape": t.global_shape })).collect::<Vec<_>>();
    speech.result(text, || json!({ "family": null, "parameters": count, "map": map() }));
    Ok(0)
}

/// Prints which parameters a folder's tensors become.
fn show_map(folder: &Path, speech: &Speech) -> Result<u8, Failure> {
    let model = Arc::new(open_foreign(folder)?);
    check_recipe(&snapshot(model.clone()).map_err(Failure::input)?, folder)?;
    let stored = |name: &str| model.source().storage(model.name_in_file(name)).unwrap_or_default();
    let entries = model.weight_map().entries();
    let text = || {
        let mut text = format!("{} ({} parameters)\n", model.family().model_type(), model.config().num_parameters());
        for entry in entries {
            let _ = write!(text, "{} {:?}", entry.parameter, entry.shape);
            for StoredTensor { name, shape, part } in &entry.tensors {
                let index = part.map(|part| format!("[{}]", part.index)).unwrap_or_default();
                let _ = write!(text, "\n    <- {}{index} {shape:?} {}", model.shown_name(name), stored(name));
            }
            text.push('\n');
        }
        for CarriedTensor { name, dtype, shape } in model.carried().iter().flat_map(|carried| &carried.tensors) {
            let _ = writeln!(text, "carried along unread: {name} {shape:?} {dtype}");
        }
        text.trim_end().to_owned()
    };
    let json = || {
        let tensor = |StoredTensor { name, shape, part }: &StoredTensor| {
            let index = part.map(|part| part.index);
            json!({ "name": model.shown_name(name), "index": index, "shape": shape, "dtype": stored(name) })
        };
        let entry = |entry: &WeightEntry| {
            let tensors: Vec<Value> = entry.tensors.iter().map(tensor).collect();
            json!({ "parameter": entry.parameter, "shape": entry.shape, "tensors": tensors })
        };
        let map: Vec<Value> = entries.iter().map(entry).collect();
        json!({ "family": model.family().model_type(), "parameters": model.config().num_parameters(), "map": map })
    };
    speech.result(text, json);
    Ok(0)
}

/// Writes the model of a Hugging Face folder as a checkpoint, a part of a tensor at a time. Returns
/// the checkpoint's path and the model's number of parameters. Fails if the folder has no supported
/// model, or the checkpoint cannot be written; then its files are removed.
pub fn import(folder: &Path, output: &Path) -> Result<(PathBuf, u64), Failure> {
    let model = Arc::new(open_foreign(folder)?);
    let snapshot = snapshot(model.clone()).map_err(Failure::input)?;
    check_recipe(&snapshot, folder)?;
    Ok((write(&snapshot, output)?, model.config().num_parameters() as u64))
}

/// Writes a checkpoint, and returns its path. On failure its files are removed.
fn write(snapshot: &Snapshot, output: &Path) -> Result<PathBuf, Failure> {
    let missing = output.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    let options = SaveOptions { producer: concat!("bridge ", env!("CARGO_PKG_VERSION")).into(), ..Default::default() };
    let saved = CheckpointWriter::open(output, options).and_then(|writer| writer.save(snapshot));
    let report = saved.map_err(|error| {
        // The folder that was made is removed again; a failure of this does not matter beside the
        // reported error.
        missing.iter().for_each(|path| drop(std::fs::remove_dir(path)));
        match error {
            CheckpointError::InvalidTensor { reason } => Failure::input(reason),
            other => Failure::run(other),
        }
    })?;
    Ok(report.path)
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

fn export_folder(
    found: &Found,
    output: &Path,
    dtype: Dtype,
    max_shard_bytes: usize,
    speech: &Speech,
) -> Result<u8, Failure> {
    let (config, besides) = (found.config(), found.companions()?);
    let checkpoint = match found {
        Found::HuggingFace(_) => None,
        Found::Checkpoint(checkpoint, _) => Some(checkpoint),
    };
    let (family, original) = family_of(found)?;
    let carried = carried_by(found)?;
    let num_parameters = config.num_parameters() as u64;
    let mut files = companions(found)?;
    if let Some(checkpoint) = checkpoint {
        let card = model_card::render(checkpoint, family.model_type(), Exported::Model(num_parameters))?;
        files.insert("README.md".to_owned(), card.into_bytes());
        // A base that learned to answer in a template ends its answers by it, which its first
        // makers did not know.
        let learned = recipe(checkpoint)?.dataset.kind == FINETUNING;
        let ends = besides.chat_template.as_ref().zip(besides.tokenizer.as_deref()).filter(|_| learned);
        let end: Vec<i64> =
            ends.and_then(|(template, tokenizer)| end_of_turn(template, tokenizer)).into_iter().collect();
        let before = original.as_ref().map(eos_tokens).unwrap_or_default();
        let settings = with_stop_tokens(files.get(GENERATION).map(Vec::as_slice), &before, &end)?;
        files.extend(settings.map(|settings| (GENERATION.to_owned(), settings)));
    }
    let options = ExportOptions {
        dtype: dtype.in_folder()?,
        max_shard_bytes,
        bos_token_id: besides.tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos()),
        eos_token_ids: besides.stop_tokens,
        original,
        carried,
        // Published files have the experts of a layer apart, and transformers reads no other names
        // in some families.
        experts: ExpertLayout::Apart,
        companions: files,
    };
    let mut exporter = Exporter::new(output, family, config, &options).map_err(Failure::input)?;
    for_each_parameter(found, &mut |name, shape, read| exporter.stream(name, shape, read));
    for CarriedTensor { name, .. } in options.carried.iter().flat_map(|carried| &carried.tensors) {
        match found {
            Found::HuggingFace(model) => exporter.carry(name, model.carried_bytes(name).map_err(Failure::input)?),
            Found::Checkpoint(checkpoint, _) => {
                exporter.carry(name, checkpoint.load_tensor(name).map_err(Failure::input)?.bytes());
            }
        }
    }
    exporter.finish().map_err(Failure::input)?;
    wrote(output, num_parameters, speech);
    Ok(0)
}

/// Tensors of a multimodal model besides those of its language model.
fn carried_by(found: &Found) -> Result<Option<Carried>, Failure> {
    let checkpoint = match found {
        Found::HuggingFace(model) => return Ok(model.carried().cloned()),
        Found::Checkpoint(checkpoint, _) => checkpoint,
    };
    let Some(text) = kept(checkpoint, LAYOUT, |text| serde_json::from_str(text))? else { return Ok(None) };
    let tensor = |name: &str| {
        let record = checkpoint.tensor(name).map_err(Failure::input)?;
        Ok(CarriedTensor { name: name.to_owned(), dtype: record.dtype.into(), shape: record.shape.clone() })
    };
    let tensors = checkpoint.names_in(CARRIED_GROUP).map(tensor).collect::<Result<_, Failure>>()?;
    Ok(Some(Carried { text, tensors }))
}

/// A family, and the `config.json` that a model came with.
pub(super) type Origin = (&'static Family, Option<Map<String, Value>>);

/// The family that a model is written as, its own if it came from one, and the settings that it
/// came with.
fn family_of(found: &Found) -> Result<Origin, Failure> {
    match found {
        Found::HuggingFace(model) => origin(Some(model.settings().clone()), model.config()),
        Found::Checkpoint(checkpoint, config) => origin_of(checkpoint, config),
    }
}

/// The origin of a checkpoint.
pub(super) fn origin_of(checkpoint: &Checkpoint, config: &DecoderConfig) -> Result<Origin, Failure> {
    origin(kept(checkpoint, ORIGINAL_CONFIG, parse_settings)?, config)
}

fn origin(original: Option<Map<String, Value>>, config: &DecoderConfig) -> Result<Origin, Failure> {
    let model_type = original.as_ref().map_or(Ok(None), text_model_type).map_err(Failure::input)?;
    Ok((families::find(config, model_type).map_err(Failure::input)?, original))
}

fn export_gguf(found: &Found, output: &Path, dtype: Dtype, speech: &Speech) -> Result<u8, Failure> {
    let dtype = dtype.in_gguf()?;
    let files = companions(found)?;
    let config = found.config();
    let (family, _) = family_of(found)?;
    let mut exporter = GgufExporter::new(output, family, config, dtype, &files).map_err(Failure::input)?;
    for_each_parameter(found, &mut |name, shape, read| exporter.stream(name, shape, read));
    exporter.finish().map_err(Failure::input)?;
    wrote(output, config.num_parameters() as u64, speech);
    Ok(0)
}

/// The files that go along with a model, by name.
fn companions(found: &Found) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    match found {
        Found::HuggingFace(model) => model.companions().map_err(Failure::input),
        Found::Checkpoint(checkpoint, _) => {
            let names = checkpoint.file_names().filter(|name| is_companion(name));
            names.map(|name| Ok((name.to_owned(), checkpoint.file(name).map_err(Failure::input)?))).collect()
        }
    }
}

/// Takes a parameter: name, shape, function that reads its rows.
type TakeParameter<'a> = dyn FnMut(&str, &[usize], &mut ReadRows<'_>) + 'a;

/// Hands over the parameters of a model, one after the other.
fn for_each_parameter(found: &Found, f: &mut TakeParameter<'_>) {
    match found {
        Found::HuggingFace(model) => {
            for entry in model.weight_map().entries() {
                f(&entry.parameter, &entry.shape, &mut |rows| model.rows(entry, rows));
            }
        }
        Found::Checkpoint(checkpoint, config) => {
            for declaration in config.declarations().parameters() {
                let rows = |rows| checkpoint.load_float_rows(&declaration.name, rows);
                f(&declaration.name, &declaration.shape, &mut |r| rows(r).map_err(|error| HfError::Rows(error.into())));
            }
        }
    }
}

fn wrote(path: &Path, num_parameters: u64, speech: &Speech) {
    speech.result(
        || format!("wrote {} ({num_parameters} parameters)", path.display()),
        || json!({ "wrote": path, "parameters": num_parameters }),
    );
}

/// File of a model's generation settings in its folder.
const GENERATION: &str = "generation_config.json";

/// Files of an earlier import in a folder.
const IMPORTED: [&str; 3] = ["checkpoint_journal.json", "iter_0000000", "latest_checkpointed_iteration.txt"];

/// The first entry of a checkpoint folder that no import has made: a run's checkpoints, for
/// instance, before which an import would be the latest.
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
            || is_companion(name)
            || (name.starts_with("model") && is_of_weights(name))
    };
    // A killed export of an earlier release may have left nothing but its card.
    let is_own = |name: &String| name == "README.md" && model_card::is_own(&output.join(name));
    let templates = names_in(&output.join(NAMED_TEMPLATES)).into_iter().map(|name| format!("{NAMED_TEMPLATES}/{name}"));
    let written = names_in(output).into_iter().chain(templates).find(|name| is_written(name) && !is_own(name));
    written.filter(|_| !is_exported(output)).map(|name| output.join(name))
}

/// Sorted names of a folder's entries; empty if there is no such folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Content of a file that the import has left in a checkpoint; `None` in other checkpoints.
fn kept<T>(
    checkpoint: &Checkpoint,
    name: &str,
    parse: fn(&str) -> serde_json::Result<T>,
) -> Result<Option<T>, Failure> {
    if !checkpoint.file_names().any(|known| known == name) {
        return Ok(None);
    }
    let text = checkpoint.file(name).map_err(Failure::input)?;
    let bad = |error| Failure::input(format!("{}: {error}", checkpoint.path().join(name).display()));
    parse(&String::from_utf8_lossy(&text)).map(Some).map_err(bad)
}
