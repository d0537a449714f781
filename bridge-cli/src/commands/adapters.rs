//! `bridge convert` of checkpoints of adapters: to `peft`'s folders, and merged with their bases.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::{
    CARRIED_GROUP, Checkpoint, CheckpointError, CheckpointWriter, DType, Element, RunFiles, SaveOptions, ShardTensor,
    Snapshot, TensorGroup, TensorStream, TrainState,
};
use bridge_core::logging::terminal::complain;
use bridge_core::model::ModelChunk;
use bridge_data::untrusted_io;
use bridge_models::adapters::{PeftOptions, TrainedAdapter};
use bridge_models::huggingface::{is_companion, module_layout};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::json;

use super::convert::origin_of;
use super::model_card::{self, Exported};
use crate::failure::Failure;
use crate::model_source::{Adapted, copy_tokenizer, find, recipe};
use crate::overwrite::Force;
use crate::speech::Speech;

/// Largest allowed difference between logits of a merged model and those of base and adapter,
/// relative to the largest, at the median of positions. A few positions of a deep model may be as
/// ill-conditioned as to differ by more; a branch that is merged wrongly moves all.
const TOLERANCE: f64 = 1e-5;
/// Tokens of the sequence that both are compared on.
const TOKENS: usize = 48;

/// Writes an adapter as a folder of `peft`, which names `base` as its base if that is given.
pub fn export(
    adapted: &Adapted,
    output: &Path,
    base: Option<&str>,
    force: Force,
    speech: &Speech,
) -> Result<u8, Failure> {
    let files = ["adapter_config.json", "adapter_model.safetensors"].map(|name| output.join(name));
    let is_other = output.join("config.json").exists();
    force.over(files.iter().find(|_| is_other).cloned())?;
    let raw = recipe(&adapted.checkpoint)?;
    let (family, original) = origin_of(&adapted.base, &adapted.config)?;
    let folder = raw.checkpoint.pretrained_checkpoint.as_ref().filter(|path| path.join("config.json").is_file());
    let folder = folder.map(|path| std::path::absolute(path).unwrap_or(path.clone()).display().to_string());
    let layout = original.as_ref().map_or(Ok(None), module_layout).map_err(Failure::input)?;
    // The base's name in its own files.
    let name = || Some(original?.get("_name_or_path")?.as_str()?.to_owned()).filter(|name| !name.is_empty());
    let options = PeftOptions {
        layout,
        base: base.map(str::to_owned).or(folder).or_else(name),
        dropout: raw.peft.as_ref().map_or(0.0, |peft| peft.dropout),
    };
    let trained = TrainedAdapter::new(&adapted.adapter, &adapted.config);
    let values = |checkpoint: &Checkpoint, name: &str| values_of(checkpoint, name);
    let (base, own) = (|name: &str| values(&adapted.base, name), |name: &str| values(&adapted.checkpoint, name));
    let written = trained.to_peft(output, family, &adapted.config, &options, &base, &own);
    let modules = written.map_err(Failure::input)?;
    if copy_tokenizer(&adapted.checkpoint, output)?.is_empty() {
        copy_tokenizer(&adapted.base, output)?;
    }
    write_card(output, &model_card::render(&adapted.checkpoint, family.model_type(), Exported::Adapter(modules))?)?;
    if options.base.is_none() {
        complain(
            "adapter_config.json names no base (the adapter was trained on a checkpoint): `--base NAME` writes one, which AutoPeftModel needs",
        );
    }
    speech.result(
        || format!("wrote {} (an adapter of {modules} modules)", output.display()),
        || json!({ "wrote": output, "modules": modules }),
    );
    Ok(0)
}

/// Writes the model card of a folder, unless it has one that was written by hand.
fn write_card(folder: &Path, card: &str) -> Result<(), Failure> {
    let path = folder.join("README.md");
    let failed = |error: std::io::Error| Failure::run(format!("{}: {error}", path.display()));
    let is_own = |text: &str| text.contains("Exported by Bridge");
    match untrusted_io::read_text(&path, untrusted_io::SETTINGS_BYTES) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        Ok(text) if !is_own(&text) => Ok(()),
        _ => untrusted_io::replace(&path, card.as_bytes()).map_err(failed),
    }
}

/// Writes the base of an adapter, with the branches merged into it, as a checkpoint, and compares
/// both on a sequence of tokens.
pub fn merge(source: &Path, output: &Path, speech: &Speech) -> Result<u8, Failure> {
    let missing = || Failure::input(format!("{}: expected a checkpoint of an adapter", source.display()));
    let adapted = Arc::new(Adapted::find(source)?.ok_or_else(missing)?);
    let path = write_merged(&adapted, output)?;
    let device = Device::flex();
    let expected = logits(adapted.build(&device)?.as_ref(), &adapted);
    let merged = logits(find(output)?.build(&device)?.as_ref(), &adapted);
    let Difference { median, worst } = Difference::compare(&expected, &merged, adapted.config.padded_vocab_size);
    if median > TOLERANCE {
        let path = path.display();
        let text = format!("{path}: logits differ from those of base and adapter by {median:.1e} of the largest");
        return Err(Failure::run(format!(
            "{text}, expected at most {TOLERANCE:.0e}; what was written is left for a look"
        )));
    }
    speech.result(
        || {
            format!(
                "wrote {} (logits differ by {median:.1e} of the largest, at one position by {worst:.1e})",
                path.display()
            )
        },
        || json!({ "wrote": path, "logit_difference": median, "largest_logit_difference": worst }),
    );
    Ok(0)
}

/// Difference between logits of a sequence, relative to the largest.
struct Difference {
    /// Median of the positions' largest differences; infinite if a logit is not finite.
    median: f64,
    worst: f64,
}

impl Difference {
    /// Between logits `[t, v]`.
    fn compare(expected: &[f32], found: &[f32], v: usize) -> Self {
        let largest = expected.iter().fold(f64::MIN_POSITIVE, |largest, value| largest.max(f64::from(value.abs())));
        let at_position = |(expected, found): (&[f32], &[f32])| {
            let differences = expected.iter().zip(found).map(|(a, b)| f64::from((a - b).abs()) / largest);
            differences.fold(
                0.0,
                |worst, difference| if difference.is_finite() { difference.max(worst) } else { f64::INFINITY },
            )
        };
        let mut positions: Vec<f64> = expected.chunks_exact(v).zip(found.chunks_exact(v)).map(at_position).collect();
        positions.sort_by(f64::total_cmp);
        let worst = positions.last().copied().unwrap_or(f64::INFINITY);
        Self { median: if worst.is_finite() { positions[positions.len() / 2] } else { worst }, worst }
    }
}

fn write_merged(adapted: &Arc<Adapted>, output: &Path) -> Result<PathBuf, Failure> {
    let trained = Arc::new(TrainedAdapter::new(&adapted.adapter, &adapted.config));
    let declarations = adapted.config.declarations();
    let tensors = declarations.parameters().iter().map(|declaration| {
        let (adapted, trained) = (adapted.clone(), trained.clone());
        let merged = Merged { adapted, trained, name: declaration.name.clone(), shape: declaration.shape.clone() };
        ShardTensor::streamed(&declaration.name, Arc::new(merged))
    });
    let tensors = tensors.collect();
    let mut raw = recipe(&adapted.checkpoint)?;
    raw.model = recipe(&adapted.base)?.model.clone();
    raw.peft = None;
    raw.checkpoint.pretrained_checkpoint = None;
    // A merged checkpoint is the start of a run, and its model card has the adapter's history.
    let extra = model_card::history(&adapted.checkpoint)?;
    let train_state = TrainState { extra, ..TrainState::default() };
    let mut run = RunFiles { train_state, run_config: raw.to_toml(), ..RunFiles::default() };
    // The adapter's tokenizer is the later one.
    for checkpoint in [adapted.base.as_ref(), &adapted.checkpoint] {
        let names = checkpoint.file_names().filter(|name| is_companion(name) || name.starts_with("hf_"));
        for name in names {
            run.files.insert(name.to_owned(), checkpoint.file(name).map_err(Failure::input)?.into());
        }
    }
    let options = SaveOptions { producer: concat!("bridge ", env!("CARGO_PKG_VERSION")).into(), ..Default::default() };
    let mut groups = vec![TensorGroup { name: "model".into(), tensors }];
    let carried = adapted.base.names_in(CARRIED_GROUP).map(|name| ShardTensor::copied(&adapted.base, name));
    let carried: Vec<ShardTensor> = carried.collect::<Result<_, _>>().map_err(Failure::input)?;
    if !carried.is_empty() {
        groups.push(TensorGroup { name: CARRIED_GROUP.into(), tensors: carried });
    }
    let snapshot = Snapshot { run, groups };
    let saved = CheckpointWriter::open(output, options).and_then(|writer| writer.save(&snapshot));
    Ok(saved.map_err(Failure::run)?.path)
}

/// A parameter on its way from two checkpoints to one.
struct Merged {
    adapted: Arc<Adapted>,
    trained: Arc<TrainedAdapter>,
    name: String,
    shape: Vec<usize>,
}

impl TensorStream for Merged {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let Adapted { base, checkpoint, .. } = self.adapted.as_ref();
        let read = |name: &str| values_of(base, name);
        let values = self.trained.merged(&self.name, &read, &|name| values_of(checkpoint, name))?;
        write(f32::as_bytes(&values))
    }
}

/// The values of a whole tensor.
fn values_of(checkpoint: &Checkpoint, name: &str) -> Result<Vec<f32>, CheckpointError> {
    checkpoint.load_float_rows(name, 0..checkpoint.tensor(name)?.shape[0])
}

/// Next-token logits of a model on a sequence in which tokens of the whole vocabulary are.
fn logits(chunk: &dyn ModelChunk, adapted: &Adapted) -> Vec<f32> {
    let config = &adapted.config;
    let count = match config.max_position_embeddings {
        0 => TOKENS,
        limit => TOKENS.min(limit),
    };
    let ids: Vec<i64> = (0..count).map(|place| ((place * 7919 + 3) % config.vocab_size) as i64).collect();
    let tokens_bt = || Tensor::<2, Int>::from_data(TensorData::new(ids.clone(), [1, count]), &Device::flex());
    let mut state = chunk.new_state();
    // `None` for a model without an encoder.
    let _ = chunk.read_source(tokens_bt(), &mut state);
    let logits_btv = chunk.logits(tokens_bt(), &mut state).expect("a whole model has next-token logits");
    logits_btv.into_data().convert::<f32>().try_into_vec().expect("they are float32 now")
}
