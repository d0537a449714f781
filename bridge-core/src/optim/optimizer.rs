//! One optimizer for all parameters of a rank's chunks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_dist::comm::CommError;
use burn::tensor::{DType, FloatDType, Tensor};

use super::flat::bytes_of;
use super::groups::{self, OverrideProvider, ParameterGroup};
use super::rules::{self, Algorithm, Unit, UpdateStep, Values};
use super::{Distribution, GradientBuffer, GroupSettings, ShardedParameters};
use crate::model::{Declaration, ModelChunk, Replacement};
use crate::timers::{TimerLevel, Timers};

/// What an optimizer is made of.
#[derive(Clone, Debug)]
pub struct OptimizerSettings {
    /// The rule of its updates.
    pub algorithm: Algorithm,
    /// Limit on the global gradient norm; 0 is off.
    pub clip_grad: f64,
    /// Whether to count zero gradient entries.
    pub count_zeros: bool,
}

/// Learning rate and weight decay of one group at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupRates {
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay, the group's factor included.
    pub weight_decay: f64,
}

/// Factors between the accumulated gradients and the true ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScales {
    /// The accumulated gradients are divided by this (loss scale).
    pub loss_scale: f64,
    /// ... and by this (number of tokens, with a per-token loss; else 1).
    pub divisor: f64,
}

/// What one optimizer step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// False when the gradients were not finite and nothing was changed.
    pub success: bool,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Zero gradient entries, if they are counted.
    pub num_zeros: Option<u64>,
}

/// What an optimizer keeps of one parameter.
#[derive(Clone, Debug)]
struct Slot {
    /// float32 copy of a parameter kept in 16 bits.
    master: Option<Tensor<1>>,
    /// The states that the rule declares, in its order; those that are missing start with the next step.
    states: Vec<Option<Tensor<1>>>,
}

/// The master weight's name in checkpoints, beside those of states.
pub(crate) const MASTER: &str = "master";

/// A parameter that is trained.
#[derive(Debug)]
struct Trained {
    /// Its group.
    group: usize,
    /// The shape of what this rank's model holds of it.
    shape: Vec<usize>,
}

/// A rule needs whole parameters, and a run cuts them.
#[derive(Debug, thiserror::Error)]
#[error(
    "optimizer.optimizer = {rule}: its update needs whole parameters, which are not gathered for it, and {parameter} is divided over {ranks} \
     ranks; expected one rank for each (no ddp.use_distributed_optimizer, full sharding or tensor parallelism), or one of the rules {others}"
)]
pub struct CutParameter {
    rule: &'static str,
    parameter: String,
    ranks: &'static str,
    others: String,
}

/// Saved state of an optimizer: named tensors and the number of steps made.
///
/// With a sharded optimizer each rank has only a range of each tensor; the ranks of `Distribution::shards` together have all of it. Ranks
/// cut all tensors of a parameter alike, in rank order (see [`owned_range`](super::owned_range)).
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// `master.{parameter}`, float32, and `{state}.{parameter}` for each state of the rule, to its value, flat. Cloning shares memory.
    pub tensors: BTreeMap<String, Tensor<1>>,
    /// For each of these tensors, the elements it covers of what this rank's model holds of the parameter, flat and row-major. A tensor
    /// without an entry covers all.
    pub ranges: BTreeMap<String, Range<usize>>,
    /// Number of successful steps.
    pub step: u64,
}

/// The optimizer of one rank.
#[derive(Debug)]
pub struct Optimizer {
    settings: OptimizerSettings,
    groups: Vec<ParameterGroup>,
    trained: BTreeMap<String, Trained>,
    slots: BTreeMap<String, Slot>,
    distribution: Arc<Distribution>,
    parameters: ShardedParameters,
    step: u64,
    timers: Arc<Timers>,
    /// Of the step under way.
    copies: CopyTimes,
}

/// Parts of the updates of a step.
#[derive(Clone, Copy, Debug, Default)]
struct CopyTimes {
    /// Gradients on their way to float32.
    gradients: Duration,
    /// Updated float32 values on their way to the dtype of the parameters.
    parameters: Duration,
}

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
    ) -> Result<Self, CutParameter> {
        let parameters = || chunks.iter().flat_map(|chunk| chunk.parameters());
        refuse_cuts(&settings.algorithm, parameters(), &distribution)?;
        let groups = groups::group(parameters(), provider);
        let group_of: BTreeMap<_, _> = groups
            .iter()
            .enumerate()
            .flat_map(|(i, group)| group.names.iter().map(move |name| (name.as_str(), i)))
            .collect();
        let trained = parameters().filter_map(|Declaration { name, shape, .. }| {
            let group = *group_of.get(name.as_str())?;
            Some((name.clone(), Trained { group, shape: shape.clone() }))
        });
        let trained = trained.collect();
        Ok(Self {
            settings,
            groups,
            trained,
            slots: BTreeMap::new(),
            parameters: ShardedParameters::new(Arc::clone(&distribution), chunks),
            distribution,
            step: 0,
            timers: Arc::new(Timers::new(None)),
            copies: CopyTimes::default(),
        })
    }

    /// Times the parts of each step.
    #[must_use]
    pub fn with_timers(mut self, timers: &Arc<Timers>) -> Self {
        self.timers = Arc::clone(timers);
        self
    }

    /// The parameters, as far as they or their state are sharded.
    pub fn parameters(&mut self) -> &mut ShardedParameters {
        &mut self.parameters
    }

    /// What this rank owns of parameters that are sharded, by name: empty where they are not.
    pub fn shards(&self) -> &BTreeMap<String, Tensor<1>> {
        self.parameters.shards()
    }

    /// How parameters are spread over ranks.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Settings of each group, in order.
    pub fn groups(&self) -> impl Iterator<Item = &GroupSettings> {
        self.groups.iter().map(|group| &group.settings)
    }

    /// Updates all parameters from `gradients`, which are emptied.
    ///
    /// `rates` holds one entry a group. Non-finite gradients change nothing and are reported as failure. Norm and zeros are those of the whole
    /// model; every rank finds the same.
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
        assert_eq!(rates.len(), self.groups.len(), "one rate for each parameter group");
        let timers = Arc::clone(&self.timers);
        let phase = |name| timers.start(name, TimerLevel::Phase);
        let unscale = 1.0 / (scales.loss_scale * scales.divisor);
        let timer = phase("optimizer-unscale-and-check-inf");
        let grad_norm = self.distribution.sum_of_squares(gradients)?.sqrt() * unscale;
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
        let step = Step { rates, number: self.step, gradient_scale };
        if self.distribution.sharding().divides_state() {
            let owned = self.parameters.owned(chunks)?;
            let timer = UpdateTimer::start(&timers);
            let mut updated = BTreeMap::new();
            for (name, value) in owned {
                let value = self.update(&name, value, gradients, &step);
                updated.insert(name, value);
            }
            timer.stop(std::mem::take(&mut self.copies));
            let _timer = phase("params-all-gather");
            self.parameters.publish(chunks, updated)?;
        } else {
            let timer = UpdateTimer::start(&timers);
            for chunk in chunks {
                chunk.update_parameters(&mut |name, value| match self.trained.contains_key(name) {
                    true => self.update(name, value, gradients, &step).into(),
                    false => Replacement::Kept,
                });
            }
            timer.stop(std::mem::take(&mut self.copies));
        }
        gradients.clear();
        Ok(StepOutcome { success: true, grad_norm, num_zeros })
    }

    /// Updates one parameter, or the range of it that this rank owns.
    fn update(&mut self, name: &str, value: Tensor<1>, gradients: &mut GradientBuffer, step: &Step<'_>) -> Tensor<1> {
        let Some(Trained { group, shape }) = self.trained.get(name) else {
            return value;
        };
        // A parameter that the step did not touch has a zero gradient: its moments decay.
        let taken = Instant::now();
        let gradient = gradients.take(name).unwrap_or_else(|| zeros_like(&value));
        self.copies.gradients += taken.elapsed();
        let algorithm = &self.settings.algorithm;
        let slot = self.slots.entry(name.to_owned()).or_insert_with(|| Slot::empty(algorithm));
        let GroupRates { learning_rate, weight_decay } = step.rates[*group];
        let (number, gradient_scale) = (step.number, step.gradient_scale);
        let eps_mult = self.groups[*group].settings.eps_mult;
        let step = UpdateStep { learning_rate, weight_decay, eps_mult, number, gradient_scale, shape };
        let dtype = value.dtype();
        let updated = slot.update(algorithm, value, gradient, &step);
        if dtype == DType::F32 {
            return updated;
        }
        let rounding = Instant::now();
        let rounded = updated.clone().cast(FloatDType::from(dtype));
        slot.master = Some(updated);
        self.copies.parameters += rounding.elapsed();
        rounded
    }

    /// Euclidean norm of all parameters of the model (of their float32 masters, where there are any).
    ///
    /// # Errors
    /// If ranks cannot add up.
    pub fn parameter_norm(&self, chunks: &[Box<dyn ModelChunk>]) -> Result<f64, CommError> {
        let mut sum = 0.0;
        self.parameters.visit_kept(chunks, &mut |name, value| {
            let master = self.slots.get(name).and_then(|slot| slot.master.as_ref());
            sum += self.distribution.counted_square(name, master.unwrap_or(value));
        });
        Ok(self.distribution.over_world(sum)?.sqrt())
    }

    /// Hands on, of each parameter in float32 where there is such a copy, the part that this rank counts: every element of the model is counted by
    /// one rank. Updates on their way have to be settled.
    pub fn visit_counted(&self, chunks: &[Box<dyn ModelChunk>], f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.parameters.visit_kept(chunks, &mut |name, value| {
            let master = self.slots.get(name).and_then(|slot| slot.master.as_ref());
            if let Some(part) = self.distribution.counted_part(name, master.unwrap_or(value)) {
                f(name, part);
            }
        });
    }

    /// Number of successful steps.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Bytes of the state that is on this rank.
    pub fn state_bytes(&self) -> u64 {
        let tensors = self.slots.values().flat_map(|slot| std::iter::once(&slot.master).chain(&slot.states));
        tensors.flatten().map(bytes_of).sum()
    }

    /// Bytes of the parameters of `chunks` that this rank keeps between steps.
    pub fn parameter_bytes(&self, chunks: &[Box<dyn ModelChunk>]) -> u64 {
        self.parameters.kept_bytes(chunks)
    }

    /// The state to save, as far as it is on this rank.
    pub fn state(&self) -> OptimizerState {
        let (mut tensors, mut ranges) = (BTreeMap::new(), BTreeMap::new());
        for (name, slot) in &self.slots {
            let range = self.distribution.state_range(name);
            let states = self.settings.algorithm.rule.states.iter().map(|state| state.name).zip(&slot.states);
            for (kind, tensor) in std::iter::once((MASTER, &slot.master)).chain(states) {
                if let Some(tensor) = tensor {
                    let key = format!("{kind}.{name}");
                    ranges.extend(range.clone().map(|range| (key.clone(), range)));
                    tensors.insert(key, tensor.clone());
                }
            }
        }
        OptimizerState { tensors, ranges, step: self.step }
    }

    /// The dtype of a kind of saved tensor; `None` if this optimizer has no such kind.
    pub fn state_dtype(&self, kind: &str) -> Option<FloatDType> {
        let state = self.settings.algorithm.rule.states.iter().find(|state| state.name == kind);
        state.map(|state| state.dtype).or((kind == MASTER).then_some(FloatDType::F32))
    }

    /// Restores saved state. Returns the names of saved tensors that belong to no parameter of this optimizer.
    ///
    /// A tensor may cover all that this rank's model holds of a parameter, or just the range whose state is on this rank.
    pub fn load_state(&mut self, state: OptimizerState) -> Vec<String> {
        let algorithm = &self.settings.algorithm;
        self.step = state.step;
        self.slots.clear();
        let mut unknown = Vec::new();
        for (key, tensor) in state.tensors {
            let known = key.split_once('.').filter(|(_, name)| self.trained.contains_key(*name));
            let Some((kind, name)) = known else {
                unknown.push(key);
                continue;
            };
            let tensor = match self.distribution.state_range(name) {
                Some(range) if range.end <= tensor.dims()[0] && range.len() < tensor.dims()[0] => tensor.slice(range),
                _ => tensor,
            };
            let slot = self.slots.entry(name.to_owned()).or_insert_with(|| Slot::empty(algorithm));
            match algorithm.rule.states.iter().position(|state| state.name == kind) {
                Some(index) => slot.states[index] = Some(tensor),
                None if kind == MASTER => slot.master = Some(tensor),
                None => unknown.push(key),
            }
        }
        unknown
    }
}

/// Refuses what cuts the parameters of a rule that needs them whole.
pub(super) fn refuse_cuts<'a>(
    algorithm: &Algorithm,
    mut parameters: impl Iterator<Item = &'a Declaration>,
    distribution: &Distribution,
) -> Result<(), CutParameter> {
    if algorithm.rule.unit == Unit::Element {
        return Ok(());
    }
    let divides_state = distribution.sharding().divides_state();
    let cut = |parameter: &&Declaration| parameter.trainable && (divides_state || parameter.placement.shard.is_some());
    parameters.find(cut).map_or(Ok(()), |parameter| {
        let others = rules::RULES.iter().filter(|rule| rule.unit == Unit::Element).map(|rule| rule.name);
        Err(CutParameter {
            rule: algorithm.rule.name,
            parameter: parameter.name.clone(),
            ranks: if divides_state { "data-parallel" } else { "tensor-parallel" },
            others: others.collect::<Vec<_>>().join(", "),
        })
    })
}

/// `clip / (norm + 1e-6)` where that is below 1; 1 when clipping is off.
fn clip_coefficient(clip_grad: f64, grad_norm: f64) -> f64 {
    if clip_grad > 0.0 { (clip_grad / (grad_norm + 1e-6)).min(1.0) } else { 1.0 }
}

fn zeros_like(value: &Tensor<1>) -> Tensor<1> {
    Tensor::zeros(value.shape(), (&value.device(), DType::F32))
}

/// Times the updates of a step, copies apart.
struct UpdateTimer<'a> {
    timers: &'a Timers,
    started: Instant,
}

impl<'a> UpdateTimer<'a> {
    fn start(timers: &'a Timers) -> Self {
        Self { timers, started: timers.now_at(TimerLevel::Phase) }
    }

    fn stop(self, copies: CopyTimes) {
        let all = self.timers.now_at(TimerLevel::Phase) - self.started;
        for (name, elapsed) in [
            ("optimizer-copy-to-main-grad", copies.gradients),
            ("optimizer-inner-step", all.saturating_sub(copies.gradients + copies.parameters)),
            ("optimizer-copy-main-to-model-params", copies.parameters),
        ] {
            self.timers.record(name, TimerLevel::Phase, elapsed);
        }
    }
}

/// What all updates of one step share.
#[derive(Clone, Copy)]
struct Step<'a> {
    /// One entry a group.
    rates: &'a [GroupRates],
    number: u64,
    gradient_scale: f64,
}

impl Slot {
    fn empty(algorithm: &Algorithm) -> Self {
        Self { master: None, states: vec![None; algorithm.rule.states.len()] }
    }

    /// Updates the states and returns the new value in float32.
    fn update(
        &mut self,
        algorithm: &Algorithm,
        value: Tensor<1>,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
    ) -> Tensor<1> {
        let parameter = match self.master.take() {
            Some(master) => master,
            None if value.dtype() == DType::F32 => value,
            None => value.cast(FloatDType::F32),
        };
        let states = algorithm.rule.states.iter().zip(&mut self.states);
        let states = states.map(|(state, kept)| kept.take().unwrap_or_else(|| state.first(&parameter))).collect();
        let Values { parameter, states } = algorithm.update.update(Values { parameter, states }, gradient, step);
        self.states = states.into_iter().map(Some).collect();
        parameter
    }
}
