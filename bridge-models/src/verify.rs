//! Comparison of an imported folder with reference values: logits, loss, gradients and ten AdamW
//! steps.
//!
//! The reference is a safetensors file with `input_ids` `[b, t]` and any of `logits` `[b, t, v]`,
//! `ce_loss` `[1]`, `grad.<Hugging Face parameter name>`, and `train_ids` `[s, b, t]` with
//! `train_losses` and `train_grad_norms` `[s]`. For a model with an encoder these ids are the
//! encoder's, and `labels` `[b, t]` and `train_labels` `[s, b, t]` what the decoder predicts; -100
//! counts for nothing.
//!
//! Layers of multi-token prediction, which transformers ignores, take part where the reference has
//! gradients of them. These, and the steps, are then those of the loss and a tenth of the mean of
//! the layers' losses (DeepSeek-V3, arXiv:2412.19437, equation 25).

mod adamw;
mod inputs;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bridge_core::model::{ForwardContext, Mode, ModelChunk, loss_sum};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use self::adamw::AdamW;
use self::inputs::{IGNORED, Ids, Inputs};
use crate::adapters::{AdapterError, NamedGradient, PeftAdapter};
use crate::huggingface::{ExpertLayout, HfCheckpoint, HfError, HfModel, Layout, TensorSource, WeightMap};

/// Float32 tolerances: those of the reference values' own rounding, with room.
mod tolerance {
    pub const LOGITS: f64 = 2e-5;
    pub const LOSS: f64 = 2e-6;
    pub const GRADIENTS: f64 = 1e-4;
    pub const STEP_LOSSES: f64 = 1e-5;
    pub const STEP_NORMS: f64 = 5e-5;
}

/// A gradient of less than this share of the whole gradient's norm is compared with that share
/// instead of with itself: it may be zero but for rounding.
const SMALLEST_GRADIENT: f64 = 1e-4;

/// One compared quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The difference; `None` if it is not a finite number.
    pub difference: Option<f64>,
    /// The largest difference that passes.
    pub tolerance: f64,
    /// True if the figure is within its tolerance.
    pub passed: bool,
    /// Place of the largest difference, if there are several: a parameter's name or a step.
    pub worst: Option<String>,
}

impl Figure {
    fn new(difference: f64, tolerance: f64, worst: Option<String>) -> Self {
        let difference = Some(difference).filter(|difference| difference.is_finite());
        Self { difference, tolerance, passed: difference.is_some_and(|difference| difference <= tolerance), worst }
    }
}

/// Result of the comparison. Figures without reference values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// True if every compared figure is within its tolerance, and there was one.
    pub passed: bool,
    /// Largest absolute difference of the logits; the tolerance grows with the largest logit above
    /// 1.
    pub logits: Option<Figure>,
    /// Largest absolute difference of the logits of the model with the adapter merged into its
    /// weights.
    pub merged_logits: Option<Figure>,
    /// Relative difference of the loss.
    pub loss: Option<Figure>,
    /// Worst relative difference, in norm, of a parameter's gradient.
    pub gradients: Option<Figure>,
    /// Worst relative difference of the training losses.
    pub step_losses: Option<Figure>,
    /// Worst relative difference of the gradient norms before clipping.
    pub step_grad_norms: Option<Figure>,
    /// Losses of the training steps.
    pub losses: Vec<f64>,
    /// Gradient norms of the training steps.
    pub grad_norms: Vec<f64>,
}

/// Why nothing could be compared.
#[derive(thiserror::Error)]
pub enum VerifyError {
    /// Model or reference cannot be read.
    #[error(transparent)]
    HuggingFace(#[from] HfError),
    /// The adapter cannot be read, or is not one of the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The reference is not one for this model.
    #[error("{path}: {tensor}: expected {expected}, found {found}")]
    Reference {
        /// The file with the reference values.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Expected value.
        expected: String,
        /// Found value.
        found: String,
    },
}

/// Runs the model of `folder` on the inputs of `reference` and compares.
///
/// # Errors
/// If the folder cannot be imported or the reference is not one for its model. Differences are
/// reported, not errors.
pub fn verify(folder: &Path, reference: &Path, device: &Device) -> Result<VerifyReport, VerifyError> {
    let reference = HfCheckpoint::open_file(reference)?;
    let mut model = HfModel::open(folder)?;
    let predicts = model.mtp_tensors().any(|stored| reference.shape(&format!("{GRADIENT}{}", stored.name)).is_some());
    if !predicts {
        model = model.without_mtp()?;
    }
    let chunk = model.build(&device.clone().autodiff())?;
    compare(&model, None, chunk, reference, device)
}

/// Prefix of the names of gradients.
const GRADIENT: &str = "grad.";

/// [`verify`] for the model with the adapter of the folder `adapter`, in `peft`'s format. Gradients
/// and steps are those of the adapter's trained parameters; `merged_logits` are the logits after
/// merging the adapter.
///
/// # Errors
/// As [`verify`], and if the adapter cannot be read or is not one of the model.
pub fn verify_adapter(
    folder: &Path,
    adapter: &Path,
    reference: &Path,
    device: &Device,
) -> Result<VerifyReport, VerifyError> {
    let reference = HfCheckpoint::open_file(reference)?;
    let model = HfModel::open(folder)?.without_mtp()?;
    let adapter = PeftAdapter::open(adapter, &model)?;
    let chunk = adapter.build(&model, &device.clone().autodiff())?;
    compare(&model, Some(&adapter), chunk, reference, device)
}

fn compare(
    model: &HfModel,
    adapter: Option<&PeftAdapter>,
    mut chunk: Box<dyn ModelChunk>,
    file: HfCheckpoint,
    device: &Device,
) -> Result<VerifyReport, VerifyError> {
    let reference = Reference { file, model, adapter };
    let device = device.clone().autodiff();
    let mut report = VerifyReport::default();

    let ids = reference.inputs("input_ids", "labels", 2)?;
    report.logits = reference.compare_logits("logits", chunk.as_ref(), &ids, &device)?;
    if let Some(adapter) = adapter.filter(|_| reference.has(MERGED_LOGITS)) {
        let merged = adapter.build_merged(model, &device)?;
        report.merged_logits = reference.compare_logits(MERGED_LOGITS, merged.as_ref(), &ids, &device)?;
    }
    let (loss, gradients) = step(chunk.as_ref(), &ids, &device);
    report.loss = reference.compare_loss(loss)?;
    report.gradients = reference.compare_gradients(&gradients)?;
    if reference.has("train_ids") {
        reference.compare_training(chunk.as_mut(), &device, &mut report)?;
    }
    let figures = [
        &report.logits,
        &report.merged_logits,
        &report.loss,
        &report.gradients,
        &report.step_losses,
        &report.step_grad_norms,
    ];
    let verdicts: Vec<bool> = figures.into_iter().flatten().map(|figure| figure.passed).collect();
    if verdicts.is_empty() {
        return Err(reference.wrong("logits", "this or another tensor to compare with".into(), "none".into()));
    }
    report.passed = verdicts.iter().all(|passed| *passed);
    Ok(report)
}

/// Logits of the model with an adapter merged into its weights.
const MERGED_LOGITS: &str = "merged_logits";

/// Gradients by parameter name.
type NamedGradients = HashMap<String, Tensor<1>>;

/// Mean loss and gradients of one batch.
fn step(chunk: &dyn ModelChunk, inputs: &Inputs, device: &Device) -> (f64, NamedGradients) {
    let batch = inputs.batch(device);
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let sum = loss_sum(chunk, &context).expect("a decoder returns the tensors that it declares");
    let loss = sum / batch.num_tokens;
    let value = f64::from(loss.clone().into_scalar::<f32>());
    let mut gradients: Gradients = loss.backward();
    let mut named = HashMap::new();
    chunk.take_gradients(&mut gradients, &mut |name, gradient| {
        named.insert(name.to_owned(), gradient);
    });
    (value, named)
}

struct Reference<'a> {
    file: HfCheckpoint,
    model: &'a HfModel,
    adapter: Option<&'a PeftAdapter>,
}

impl Reference<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.shape(name).is_some()
    }

    /// Inputs of the model: ids, and labels for a model with an encoder. `rank` is the number of
    /// dimensions of both.
    fn inputs(&self, ids: &str, labels: &str, rank: usize) -> Result<Inputs, VerifyError> {
        let found = Inputs { ids: self.ids(ids, rank, 0)?, labels: None };
        let Some(encoder) = self.model.config().encoder else { return Ok(found) };
        let of_decoder = self.ids(labels, rank, IGNORED)?;
        if of_decoder.shape[0] != found.ids.shape[0] {
            return Err(self.wrong(
                labels,
                format!("{} sequences", found.ids.shape[0]),
                of_decoder.shape[0].to_string(),
            ));
        }
        Ok(Inputs { labels: Some((of_decoder, encoder.start_token as i64)), ..found })
    }

    /// Token ids with `rank` dimensions, each batch no longer than the model's positions. `least`
    /// may be a value that is not a token.
    fn ids(&self, name: &str, rank: usize, least: i64) -> Result<Ids, VerifyError> {
        let (shape, values) = self.file.read_ints(name)?;
        let config = self.model.config();
        let wrong = |expected, found| Err(self.wrong(name, expected, found));
        let [.., batch_size, seq_length] = shape[..] else {
            return wrong(format!("{rank} dimensions"), format!("{shape:?}"));
        };
        let longest = config.longest_sequence();
        if shape.len() != rank || shape.contains(&0) || seq_length < 2 || seq_length > longest {
            let expected = format!("{rank} dimensions, none empty, the last from 2 to {longest}");
            return wrong(expected, format!("{shape:?}"));
        }
        let out_of_range =
            values.iter().find(|id| **id != least && usize::try_from(**id).map_or(true, |id| id >= config.vocab_size));
        if let Some(id) = out_of_range {
            return wrong(format!("token ids in 0..{}", config.vocab_size), id.to_string());
        }
        Ok(Ids { shape: [batch_size, seq_length], values })
    }

    /// Values of a vector of `length`.
    fn doubles(&self, name: &str, length: usize) -> Result<Vec<f64>, VerifyError> {
        let values = self.file.read_doubles(name)?;
        if values.len() != length {
            let (expected, found) = (format!("{length} values"), values.len().to_string());
            return Err(self.wrong(name, expected, found));
        }
        Ok(values)
    }

    /// Compares the loss with plain cross-entropy, and with the reference's own loss unless that of
    /// experts' balance may be in it.
    fn compare_loss(&self, loss: f64) -> Result<Option<Figure>, VerifyError> {
        let mut differences = Vec::new();
        for name in ["ce_loss", "loss"].into_iter().filter(|name| self.has(name)) {
            let expected = self.doubles(name, 1)?[0];
            if name == "ce_loss" || self.model.config().moe.is_none() {
                differences.push(relative(loss, expected));
            }
        }
        let compared = !differences.is_empty();
        Ok(compared.then(|| Figure::new(largest(differences.into_iter()), tolerance::LOSS, None)))
    }

    fn wrong(&self, tensor: &str, expected: String, found: String) -> VerifyError {
        VerifyError::Reference { path: self.file.path().to_owned(), tensor: tensor.to_owned(), expected, found }
    }

    fn compare_logits(
        &self,
        name: &str,
        chunk: &dyn ModelChunk,
        inputs: &Inputs,
        device: &Device,
    ) -> Result<Option<Figure>, VerifyError> {
        if !self.has(name) {
            return Ok(None);
        }
        let expected = self.file.read(name)?;
        let model = chunk.inference();
        let device = device.clone().without_autodiff();
        let tensor = |ids: Ids| Tensor::<2, Int>::from_data(TensorData::new(ids.values, ids.shape), &device);
        let mut state = model.new_state();
        if inputs.labels.is_some() {
            model.read_source(tensor(inputs.ids.clone()), &mut state).expect("a model with labels has an encoder");
        }
        let tokens_bt = tensor(inputs.decoder_tokens());
        let logits_btv = model.logits(tokens_bt, &mut state).expect("a whole model has next-token logits");
        let shape = logits_btv.dims().to_vec();
        if shape != expected.shape {
            let (found, expected) = (format!("{:?}", expected.shape), format!("shape {shape:?}"));
            return Err(self.wrong(name, expected, found));
        }
        let found: Vec<f32> = logits_btv.into_data().try_into_vec().expect("logits of a float32 model are float32");
        let pairs = found.iter().zip(&expected.values);
        let difference = largest(pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()));
        let scale = largest(expected.values.iter().map(|logit| f64::from(logit.abs())));
        Ok(Some(Figure::new(difference, tolerance::LOGITS * scale.max(1.0), None)))
    }

    /// The map to the reference's tensors, of which these are the names: it may have experts
    /// stacked where the folder has them apart.
    fn map_of(&self, names: &BTreeSet<&str>) -> Result<WeightMap, VerifyError> {
        let prefix = self.model.family().prefix;
        let layout = self.model.carried().map(|carried| {
            Layout::find(prefix, names.iter().copied().collect::<Vec<_>>().into_iter()).unwrap_or(carried.text.layout)
        });
        let is_named = |map: &WeightMap| {
            let stored = map.entries().iter().flat_map(|entry| &entry.tensors);
            stored.filter(|stored| names.contains(stored.name.as_str())).count()
        };
        let map = |experts| {
            let map = WeightMap::new(self.model.family(), self.model.config(), experts)?;
            Ok::<_, HfError>(match layout {
                Some(layout) => map.renamed(|name| layout.name_in_file(prefix, name)),
                None => map,
            })
        };
        let (apart, stacked) = (map(ExpertLayout::Apart)?, map(ExpertLayout::Stacked)?);
        Ok(if is_named(&stacked) > is_named(&apart) { stacked } else { apart })
    }

    /// Compares gradients under Hugging Face's names.
    fn compare_gradients(&self, gradients: &NamedGradients) -> Result<Option<Figure>, VerifyError> {
        let names = self.file.tensors().filter_map(|(name, _)| name.strip_prefix(GRADIENT));
        let mut expected_names: BTreeSet<&str> = names.collect();
        if expected_names.is_empty() {
            return Ok(None);
        }
        let mut pairs = Vec::new();
        for Compared { name, start, whole_shape, values } in self.compared(gradients, &expected_names)? {
            let key = format!("{GRADIENT}{name}");
            if let Some(other) = self.file.shape(&key).filter(|other| *other != whole_shape) {
                let (expected, found) = (format!("shape {whole_shape:?}"), format!("{other:?}"));
                return Err(self.wrong(&key, expected, found));
            }
            let mut expected = vec![0.0; values.len()];
            self.file.read_into(&key, start, &mut expected)?;
            expected_names.remove(name.as_str());
            pairs.push((name, expected, values));
        }
        if let Some(name) = expected_names.first() {
            let (expected, found) = ("the gradient of a parameter that the model has", "one of another");
            return Err(self.wrong(&format!("{GRADIENT}{name}"), expected.into(), found.into()));
        }
        let whole = norm(pairs.iter().flat_map(|(_, expected, _)| expected.iter().copied().map(f64::from)));
        let relative = |expected: &[f32], found: &[f32]| {
            let difference = norm(found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            difference / norm(expected.iter().copied().map(f64::from)).max(SMALLEST_GRADIENT * whole)
        };
        let differences = pairs.iter().map(|(name, expected, found)| (relative(expected, found), name));
        let (worst, name) = worst(differences);
        Ok(Some(Figure::new(worst, tolerance::GRADIENTS, name.cloned())))
    }

    /// The gradients of the adapter's parameters, or of the model's, under the reference's `names`.
    fn compared(&self, gradients: &NamedGradients, names: &BTreeSet<&str>) -> Result<Vec<Compared>, VerifyError> {
        if let Some(adapter) = self.adapter {
            let whole = |NamedGradient { name, tensor }| Compared {
                name,
                start: 0,
                whole_shape: tensor.shape,
                values: tensor.values,
            };
            return Ok(adapter.gradients(gradients).into_iter().map(whole).collect());
        }
        let mut compared = Vec::new();
        let map = self.map_of(names)?;
        for entry in map.entries() {
            let Some(gradient) = gradients.get(&entry.parameter) else { continue };
            let data = gradient.clone().into_data();
            let values: Vec<f32> = data.try_into_vec().expect("gradients of a float32 model are float32");
            let parts = entry.tensors.iter().zip(entry.split(&values));
            compared.extend(parts.map(|(stored, found)| Compared {
                name: stored.name.clone(),
                start: stored.start(),
                whole_shape: stored.whole_shape(),
                values: found.values,
            }));
        }
        Ok(compared)
    }

    /// Takes the reference's AdamW steps: learning rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8,
    /// weight decay 0.1 on parameters of two or more dimensions, gradients clipped at norm 1.
    fn compare_training(
        &self,
        chunk: &mut dyn ModelChunk,
        device: &Device,
        report: &mut VerifyReport,
    ) -> Result<(), VerifyError> {
        let all = self.inputs("train_ids", "train_labels", 3)?;
        // `ids` has refused empty shapes.
        let steps = all.ids.steps();
        if let Some((labels, _)) = all.labels.as_ref().filter(|(labels, _)| labels.steps() != steps) {
            return Err(self.wrong("train_labels", format!("{steps} steps"), labels.steps().to_string()));
        }
        let losses = self.doubles("train_losses", steps)?;
        let norms = self.doubles("train_grad_norms", steps)?;
        let mut optimizer = AdamW::default();
        for number in 0..steps {
            let labels = all.labels.as_ref().map(|(labels, start)| (labels.of_step(number), *start));
            let inputs = Inputs { ids: all.ids.of_step(number), labels };
            let (loss, gradients) = step(chunk, &inputs, device);
            report.losses.push(loss);
            report.grad_norms.push(optimizer.step(chunk, gradients));
        }
        let figure = |found: &[f64], expected: &[f64], tolerance| {
            let pairs = found.iter().zip(expected).enumerate();
            let (worst, index) = worst(pairs.map(|(index, (a, b))| (relative(*a, *b), index)));
            Figure::new(worst, tolerance, index.map(|index| format!("step {}", index + 1)))
        };
        report.step_losses = Some(figure(&report.losses, &losses, tolerance::STEP_LOSSES));
        report.step_grad_norms = Some(figure(&report.grad_norms, &norms, tolerance::STEP_NORMS));
        Ok(())
    }
}

/// A gradient, or the part of one that begins at element `start`, under the reference's name.
struct Compared {
    name: String,
    start: usize,
    whole_shape: Vec<usize>,
    values: Vec<f32>,
}

/// The largest value, or NaN if one is NaN.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |worst, value| if value.is_nan() || value > worst { value } else { worst })
}

/// The largest difference and its item; NaN counts as largest.
fn worst<T>(differences: impl Iterator<Item = (f64, T)>) -> (f64, Option<T>) {
    differences.fold((0.0, None), |(worst, at), (difference, here)| {
        let is_worse = at.is_none() || difference.is_nan() || difference > worst;
        if is_worse && !worst.is_nan() { (difference, Some(here)) } else { (worst, at) }
    })
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs().max(f64::MIN_POSITIVE)
}
