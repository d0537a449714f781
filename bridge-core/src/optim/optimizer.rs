//! One optimizer for all parameters of a rank's chunks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bridge_dist::comm::CommError;
use bridge_kernels::optim::{Master, SquareSums, Stored};
use burn::tensor::{DType, FloatDType, Tensor};

use super::flat::part;
use super::gradients::to_float32;
use super::groups::{self, OverrideProvider, ParameterGroup};
use super::offload::{HostTransfers, Offload, OffloadSettings, OffloadedElements, UpdateInputs, to_device};
use super::rules::{self, Algorithm, Unit, UpdateBatch, UpdateStep};
use super::scales::{Magnitudes, Scales, low_precision_gradient};
use super::slot::Slot;
use super::update_times::{CopyTimes, UpdateTimer};
use super::{Distribution, GradientBuffer, ShardedParameters};
use crate::model::{Declaration, ModelChunk, Replacement};
use crate::schedule::{GroupRates, GroupSettings};
use crate::timers::{TimerLevel, Timers};

/// Components of an optimizer.
#[derive(Clone, Debug)]
pub struct OptimizerSettings {
    /// The rule of its updates.
    pub algorithm: Algorithm,
    /// Limit on the global gradient norm; 0 is off.
    pub clip_grad: f64,
    /// True if zero gradient entries are counted.
    pub count_zeros: bool,
    /// States in host memory if parameters are on another device; `None` keeps all states beside
    /// the parameters.
    pub offload: Option<OffloadSettings>,
}

/// Divisors of the accumulated gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScales {
    /// First divisor of the accumulated gradients: the loss scale.
    pub loss_scale: f64,
    /// Second divisor: tokens of the step with a per-token loss, else 1.
    pub divisor: f64,
}

/// Outcome of one optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// False when the gradients were not finite and nothing was changed.
    pub success: bool,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Zero gradient entries, if they are counted.
    pub num_zeros: Option<u64>,
}

/// A parameter that is trained.
#[derive(Debug)]
pub(super) struct TrainedParameter {
    /// Index of the parameter's group.
    group: usize,
    /// Shape of this rank's shard of the parameter.
    shape: Vec<usize>,
}

/// The optimizer rule needs whole parameters, but the run shards them.
#[derive(Debug, thiserror::Error)]
#[error(
    "optimizer.optimizer = {rule}: its update needs whole parameters, which are not gathered for it, and {parameter} is divided over {ranks} \
     ranks; expected one rank for each (no ddp.use_distributed_optimizer, full sharding or tensor parallelism), or one of the rules {others}"
)]
pub struct ShardedParameterError {
    rule: &'static str,
    parameter: String,
    ranks: &'static str,
    others: String,
}

/// The optimizer of one rank.
#[derive(Debug)]
pub struct Optimizer {
    pub(super) settings: OptimizerSettings,
    groups: Vec<ParameterGroup>,
    pub(super) trained: BTreeMap<String, TrainedParameter>,
    pub(super) slots: BTreeMap<String, Slot>,
    pub(super) offload: Offload,
    pub(super) distribution: Arc<Distribution>,
    pub(super) parameters: ShardedParameters,
    pub(super) step: u64,
    timers: Arc<Timers>,
    /// Copy times of the current step.
    copies: CopyTimes,
    /// Quantization scales of the states written by this step.
    scales: Scales,
    /// Updates of the current step, if the rule makes several at a time.
    batch: Option<Box<dyn UpdateBatch>>,
}

/// Callback that inspects parameters.
type ParameterVisitor<'a> = dyn FnMut(&str, &Tensor<1>) + 'a;

impl Optimizer {
    /// An optimizer for the trainable parameters of `chunks`, with fresh state.
    ///
    /// # Errors
    /// If its rule needs whole parameters and some are cut.
    pub fn new(
        settings: OptimizerSettings,
        chunks: &[Box<dyn ModelChunk>],
        provider: &dyn OverrideProvider,
        distribution: Arc<Distribution>,
    ) -> Result<Self, ShardedParameterError> {
        let parameters = || chunks.iter().flat_map(|chunk| chunk.parameters());
        refuse_sharded_parameters(&settings.algorithm, parameters(), &distribution)?;
        let groups = groups::group(parameters(), provider);
        let group_of: BTreeMap<_, _> = groups
            .iter()
            .enumerate()
            .flat_map(|(i, group)| group.names.iter().map(move |name| (name.as_str(), i)))
            .collect();
        let trained = parameters().filter_map(|Declaration { name, shape, .. }| {
            let group = *group_of.get(name.as_str())?;
            Some((name.clone(), TrainedParameter { group, shape: shape.clone() }))
        });
        let trained = trained.collect();
        let updated = parameters().filter_map(|Declaration { name, .. }| {
            distribution.state_range(name).map(|range| (name.as_str(), range.len()))
        });
        Ok(Self {
            offload: Offload::new(settings.offload, updated),
            settings,
            groups,
            trained,
            slots: BTreeMap::new(),
            parameters: ShardedParameters::new(Arc::clone(&distribution), chunks),
            distribution,
            step: 0,
            timers: Arc::new(Timers::new(None)),
            copies: CopyTimes::default(),
            scales: Scales::new(),
            batch: None,
        })
    }

    /// Times the parts of each step.
    #[must_use]
    pub fn with_timers(mut self, timers: &Arc<Timers>) -> Self {
        self.timers = Arc::clone(timers);
        self
    }

    /// Sharded parameters, or parameters with sharded state.
    pub fn parameters(&mut self) -> &mut ShardedParameters {
        &mut self.parameters
    }

    /// Ranges of sharded parameters that this rank owns, by name: empty if parameters are not
    /// sharded.
    pub fn shards(&self) -> &BTreeMap<String, Tensor<1>> {
        self.parameters.shards()
    }

    /// Distribution of parameters over ranks.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Settings of each group, in order.
    pub fn groups(&self) -> impl Iterator<Item = &GroupSettings> {
        self.groups.iter().map(|group| &group.settings)
    }

    /// Updates all parameters from `gradients`, which are emptied.
    ///
    /// `rates` holds one entry a group. Non-finite gradients change nothing and are reported as
    /// failure. Norm and zeros are those of the whole model; every rank finds the same.
    ///
    /// # Errors
    /// If ranks cannot add up the norm.
    ///
    /// # Panics
    /// If `rates` has not one entry for each group.
    pub fn step(
        &mut self,
        chunks: &mut [Box<dyn ModelChunk>],
        gradients: &mut GradientBuffer,
        rates: &[GroupRates],
        scales: StepScales,
    ) -> Result<StepOutcome, CommError> {
        gradients.flush();
        let squares = self.distribution.squares(gradients).finish().into_iter().sum();
        self.step_with_grad_norm_sq(squares, chunks, gradients, rates, scales)
    }

    /// [`step`](Self::step) where the sum of the [squares](Distribution::squares) of the gradients
    /// was read already.
    ///
    /// # Errors
    /// If ranks cannot add up the norm.
    ///
    /// # Panics
    /// If `rates` has not one entry for each group.
    pub fn step_with_grad_norm_sq(
        &mut self,
        squares: f64,
        chunks: &mut [Box<dyn ModelChunk>],
        gradients: &mut GradientBuffer,
        rates: &[GroupRates],
        scales: StepScales,
    ) -> Result<StepOutcome, CommError> {
        assert_eq!(rates.len(), self.groups.len(), "one rate for each parameter group");
        let timers = Arc::clone(&self.timers);
        let phase = |name| timers.start(name, TimerLevel::Phase);
        let unscale = 1.0 / (scales.loss_scale * scales.divisor);
        let timer = phase("optimizer-unscale-and-check-inf");
        let grad_norm = self.distribution.sum_over_world(squares)?.sqrt() * unscale;
        drop(timer);
        let timer = self.settings.count_zeros.then(|| phase("optimizer-count-zeros"));
        let num_zeros = self.settings.count_zeros.then(|| self.distribution.num_zeros(gradients)).transpose()?;
        drop(timer);
        if !grad_norm.is_finite() {
            gradients.clear();
            return Ok(StepOutcome { success: false, grad_norm, num_zeros });
        }
        let clip = timers.time("optimizer-clip-main-grad", TimerLevel::Phase, || {
            clip_coefficient(self.settings.clip_grad, grad_norm)
        });
        let gradient_scale = unscale * clip;
        self.step += 1;
        let steps = self.steps_of_groups(rates, gradient_scale);
        self.batch = self.settings.algorithm.update.batch();
        if self.distribution.sharding().divides_state() {
            let owned = self.parameters.owned(chunks)?;
            let mut visit = |f: &mut ParameterVisitor<'_>| owned.iter().for_each(|(name, value)| f(name, value));
            self.scales = self.next_scales(gradients, &steps, &mut visit)?;
            let timer = UpdateTimer::start(&timers);
            let mut transfers = self.start_host_transfers(gradients, &mut visit);
            let mut updated = BTreeMap::new();
            for (name, value) in owned {
                let value = self.update(&name, value, &mut *gradients, &mut transfers, &steps);
                updated.insert(name, value);
            }
            self.finish_batch();
            timer.stop(std::mem::take(&mut self.copies));
            let _timer = phase("params-all-gather");
            self.parameters.set_owned(chunks, updated)?;
        } else {
            let mut visit = |f: &mut ParameterVisitor<'_>| {
                for chunk in chunks.iter() {
                    chunk.visit_wanted(&|name| self.trained.contains_key(name), &mut |name, value| f(name, &value));
                }
            };
            self.scales = self.next_scales(gradients, &steps, &mut visit)?;
            let timer = UpdateTimer::start(&timers);
            let mut transfers = self.start_host_transfers(gradients, &mut visit);
            for chunk in chunks {
                chunk.update_parameters(&mut |name, value| match self.trained.contains_key(name) {
                    true => self.update(name, value, &mut *gradients, &mut transfers, &steps).into(),
                    false => Replacement::Kept,
                });
            }
            self.finish_batch();
            timer.stop(std::mem::take(&mut self.copies));
        }
        gradients.clear();
        Ok(StepOutcome { success: true, grad_norm, num_zeros })
    }

    /// Launches the batched updates of the step. Their results may be read afterwards.
    fn finish_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            batch.finish();
        }
    }

    /// Quantization scales of the states after this step; empty if no format has one. `visit` hands
    /// on the parameters, or the ranges of them, that this rank updates.
    ///
    /// Tensors for updates in host memory are downloaded for this, and gradients stay there.
    fn next_scales(
        &self,
        gradients: &mut GradientBuffer,
        steps: &[UpdateStep<'_>],
        visit: &mut dyn FnMut(&mut ParameterVisitor<'_>),
    ) -> Result<Scales, CommError> {
        let algorithm = &self.settings.algorithm;
        let Some(formats) = algorithm.formats.as_deref().filter(|formats| formats.num_scales() > 0) else {
            return Ok(Scales::new());
        };
        let update = algorithm.update.low_precision().expect("only rules that have one keep formats");
        let (empty, mut magnitudes) = (Slot::empty(algorithm), Magnitudes::default());
        let mut transfers = self.start_host_transfers(gradients, visit);
        visit(&mut |name, value| {
            let Some(TrainedParameter { group, shape }) = self.trained.get(name) else { return };
            let (value, gradient) = if self.offload.has(name) {
                let (value, gradient) = transfers.take(name).into_value_and_gradient(value);
                gradient.iter().for_each(|gradient| gradients.set(name, gradient.clone()));
                (value, gradient)
            } else {
                (value.clone(), gradients.get(name).cloned())
            };
            let gradient = gradient.map_or_else(|| zeros_like(&value), low_precision_gradient);
            let values = self.slots.get(name).unwrap_or(&empty).values(formats, value);
            magnitudes.insert(name, update.magnitudes(&values, &gradient, &UpdateStep { shape, ..steps[*group] }));
        });
        magnitudes.scales(formats, &self.distribution)
    }

    /// Starts the transfers to host memory of the gradients and parameters that offloaded updates
    /// read; `visit` enumerates them.
    fn start_host_transfers(
        &self,
        gradients: &mut GradientBuffer,
        visit: &mut dyn FnMut(&mut ParameterVisitor<'_>),
    ) -> HostTransfers {
        let mut all = Vec::new();
        if !self.offload.is_empty() {
            visit(&mut |name, value| {
                if self.offload.has(name) {
                    let begins_with_value = self.slots.get(name).is_none_or(Slot::reads_parameter);
                    let (gradient, value) = (gradients.take_unchanged(name), begins_with_value.then(|| value.clone()));
                    all.push(UpdateInputs { name: name.to_owned(), gradient, value });
                }
            });
        }
        self.offload.start_transfers(all)
    }

    /// The step of each group, without the shape of a parameter.
    fn steps_of_groups(&self, rates: &[GroupRates], gradient_scale: f64) -> Vec<UpdateStep<'static>> {
        let groups = self.groups.iter().zip(rates);
        let step = |(group, rates): (&ParameterGroup, &GroupRates)| UpdateStep {
            learning_rate: rates.learning_rate,
            weight_decay: rates.weight_decay,
            eps_mult: group.settings.eps_mult,
            number: self.step,
            gradient_scale,
            shape: &[],
        };
        groups.map(step).collect()
    }

    /// Updates one parameter, or the range of it that this rank owns: where it is, or in host
    /// memory.
    fn update(
        &mut self,
        name: &str,
        value: Tensor<1>,
        gradients: &mut GradientBuffer,
        transfers: &mut HostTransfers,
        steps: &[UpdateStep<'_>],
    ) -> Tensor<1> {
        if !self.offload.has(name) {
            let gradient = gradients.take_unchanged(name);
            return self.update_here(name, value, gradient, steps);
        }
        let device = value.device();
        let waiting = Instant::now();
        let (value, gradient) = transfers.take(name).into_value_and_gradient(&value);
        self.copies.gradients += waiting.elapsed();
        let updated = self.update_here(name, value, gradient, steps);
        let sending = Instant::now();
        let updated = to_device(updated, &device);
        self.copies.parameters += sending.elapsed();
        updated
    }

    /// Updates one parameter, or the range of it that this rank owns, on the device of `value`,
    /// gradient and states.
    fn update_here(
        &mut self,
        name: &str,
        value: Tensor<1>,
        gradient: Option<Tensor<1>>,
        steps: &[UpdateStep<'_>],
    ) -> Tensor<1> {
        let Some(TrainedParameter { group, shape }) = self.trained.get(name) else { return value };
        let algorithm = &self.settings.algorithm;
        // A parameter that the step did not touch has a zero gradient: its moments decay.
        let taken = Instant::now();
        let gradient = gradient.map(match value.dtype() {
            _ if algorithm.formats.is_some() => low_precision_gradient,
            DType::F32 => to_float32,
            // The update rule widens 16-bit gradients itself.
            _ => std::convert::identity,
        });
        let gradient = gradient.unwrap_or_else(|| zeros_like(&value));
        self.copies.gradients += taken.elapsed();
        let step = UpdateStep { shape, ..steps[*group] };
        let slot = self.slots.entry(name.to_owned()).or_insert_with(|| Slot::empty(algorithm));
        if let Some(formats) = &algorithm.formats {
            let none = vec![1.0; 1 + formats.states.len()];
            let scales = self.scales.get(name).unwrap_or(&none);
            return slot.update_low_precision(algorithm, formats, value, gradient, &step, scales);
        }
        let dtype = value.dtype();
        let (updated, rounded) = slot.update(algorithm, self.batch.as_mut(), value, gradient, &step);
        if dtype == DType::F32 {
            return updated;
        }
        let rounding = Instant::now();
        let rounded = rounded.unwrap_or_else(|| updated.clone().cast(FloatDType::from(dtype)));
        slot.master = Some(Master::Whole(Box::new(Stored::Plain(updated))));
        self.copies.parameters += rounding.elapsed();
        rounded
    }

    /// Euclidean norm of all parameters of the model (of their float32 masters, where there are
    /// any).
    ///
    /// # Errors
    /// If ranks cannot add up.
    pub fn parameter_norm(&self, chunks: &[Box<dyn ModelChunk>]) -> Result<f64, CommError> {
        let mut sums = SquareSums::default();
        self.visit_counted(chunks, &mut |_, part| sums.add(&part));
        Ok(self.distribution.sum_over_world(sums.finish().into_iter().sum())?.sqrt())
    }

    /// Hands on, of each parameter in float32 where there is such a copy, the part that this rank
    /// counts: every element of the model is counted by one rank. Gathers in flight have to be
    /// complete.
    pub fn visit_counted(&self, chunks: &[Box<dyn ModelChunk>], f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.parameters.visit_kept(chunks, &mut |name, value| {
            if let Some(part) = self.distribution.counted_part(name, self.master(name, value).as_ref().unwrap_or(value))
            {
                f(name, part);
            }
        });
    }

    /// The float32 value of a parameter in 16 bits, of which this rank keeps `value`. Where
    /// parameters are whole and state is divided, it is a range.
    fn master(&self, name: &str, value: &Tensor<1>) -> Option<Tensor<1>> {
        let slot = self.slots.get(name)?;
        match (&slot.master, self.distribution.state_range(name)) {
            (Some(Master::Remainders(_)), Some(range)) if range.len() < value.dims()[0] => {
                slot.master_value(&part(value.clone(), &range))
            }
            _ => slot.master_value(value),
        }
    }

    /// Number of successful steps.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Bytes of the state that is on this rank.
    pub fn state_bytes(&self) -> u64 {
        self.slots.values().map(Slot::bytes).sum()
    }

    /// Bytes of the state that is in the memory of this process.
    pub fn host_state_bytes(&self) -> u64 {
        self.slots.values().map(Slot::host_bytes).sum()
    }

    /// Trained elements of this rank whose states are in host memory by choice.
    pub fn offloaded(&self) -> OffloadedElements {
        self.offload.elements()
    }

    /// Bytes of the parameters of `chunks` that this rank keeps between steps.
    pub fn parameter_bytes(&self, chunks: &[Box<dyn ModelChunk>]) -> u64 {
        self.parameters.kept_bytes(chunks)
    }
}

/// Refuses layouts that shard the parameters of a rule that needs whole ones.
pub(super) fn refuse_sharded_parameters<'a>(
    algorithm: &Algorithm,
    mut parameters: impl Iterator<Item = &'a Declaration>,
    distribution: &Distribution,
) -> Result<(), ShardedParameterError> {
    if algorithm.rule.unit == Unit::Element {
        return Ok(());
    }
    let divides_state = distribution.sharding().divides_state();
    let cut = |parameter: &&Declaration| parameter.trainable && (divides_state || parameter.placement.shard.is_some());
    parameters.find(cut).map_or(Ok(()), |parameter| {
        let others = rules::RULES.iter().filter(|rule| rule.unit == Unit::Element).map(|rule| rule.declared.name);
        Err(ShardedParameterError {
            rule: algorithm.rule.declared.name,
            parameter: parameter.name.clone(),
            ranks: if divides_state { "data-parallel" } else { "tensor-parallel" },
            others: others.collect::<Vec<_>>().join(", "),
        })
    })
}

/// `clip / (norm + 1e-6)` if that is below 1, else 1; 1 if clipping is off.
fn clip_coefficient(clip_grad: f64, grad_norm: f64) -> f64 {
    if clip_grad > 0.0 { (clip_grad / (grad_norm + 1e-6)).min(1.0) } else { 1.0 }
}

fn zeros_like(value: &Tensor<1>) -> Tensor<1> {
    Tensor::zeros(value.shape(), (&value.device(), DType::F32))
}
