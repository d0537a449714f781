//! One optimizer for all parameters of a rank's chunks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bridge_dist::comm::CommError;
use bridge_kernels::optim::{Master, SquareSums, Stored};
use burn::tensor::{DType, FloatDType, Tensor};

use super::averages::Averages;
use super::error::OptimizerError;
use super::flat::part;
use super::gradients::to_float32;
use super::groups::{self, OverrideProvider, ParameterGroup};
use super::offload::{HostTransfers, Offload, OffloadSettings, OffloadedElements, UpdateInputs, to_device};
use super::rules::{Algorithm, UpdateBatch, UpdateStep, Values, WholeParameter};
use super::scales::{Magnitudes, Scales, low_precision_gradient};
use super::slot::Slot;
use super::update_times::{CopyTimes, UpdateTimer};
use super::whole::WholeGathers;
use super::{Distribution, GradientBuffer, ShardedParameters};
use crate::config::optimizer_rules::ScalarRule;
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
    /// Global gradient norm above which the update is skipped.
    pub skip_above: f64,
    /// Decay of exponential moving averages of the weights, if they are kept.
    pub ema_decay: Option<f64>,
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
    /// False when the gradients were not finite or too large, and nothing was changed.
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
    /// Index of the algorithm of its updates.
    algorithm: usize,
    /// Shape that updates are given: of the whole parameter if they need that, else of this rank's
    /// shard of it.
    pub shape: Vec<usize>,
    /// Rows of each part of a fused projection.
    parts: Vec<Vec<Range<usize>>>,
}

/// The optimizer of one rank.
#[derive(Debug)]
pub struct Optimizer {
    pub(super) settings: OptimizerSettings,
    groups: Vec<ParameterGroup>,
    /// Lines for people about parameters with settings of their own.
    override_lines: Vec<String>,
    /// The algorithm of the settings, and those of groups with other rules.
    algorithms: Vec<Algorithm>,
    pub(super) trained: Arc<BTreeMap<String, TrainedParameter>>,
    pub(super) slots: BTreeMap<String, Slot>,
    pub(super) averages: Averages,
    pub(super) offload: Offload,
    pub(super) distribution: Arc<Distribution>,
    pub(super) parameters: ShardedParameters,
    pub(super) step: u64,
    timers: Arc<Timers>,
    /// Copy times of the current step.
    copies: CopyTimes,
    /// Quantization scales of the states written by this step.
    scales: Scales,
    /// By algorithm, updates of the current step, if the rule makes several at a time.
    batches: Vec<Option<Box<dyn UpdateBatch>>>,
    gathers: WholeGathers,
    /// New values of the parameters of the current step that were updated whole.
    updated: BTreeMap<String, Tensor<1>>,
}

/// Callback that inspects parameters.
pub(super) type ParameterVisitor<'a> = dyn FnMut(&str, &Tensor<1>) + 'a;

impl Optimizer {
    /// An optimizer for the trainable parameters of `chunks`, with fresh state.
    ///
    /// All ranks call this together.
    ///
    /// # Errors
    /// If a group names a rule that does not exist, or has a value that its rule does not read, or
    /// ranks cannot form groups.
    pub fn new(
        settings: OptimizerSettings,
        chunks: &[Box<dyn ModelChunk>],
        provider: &dyn OverrideProvider,
        distribution: Arc<Distribution>,
    ) -> Result<Self, OptimizerError> {
        let parameters = || chunks.iter().flat_map(|chunk| chunk.parameters());
        let groups = groups::group(parameters(), provider);
        let (mut algorithms, mut algorithm_of) = (vec![settings.algorithm.clone()], BTreeMap::new());
        // Of groups whose updates are alike, the first makes the algorithm.
        let mut kinds = vec![(None, None, None)];
        for (index, group) in groups.iter().enumerate() {
            let GroupSettings { rule, epsilon, momentum, .. } = group.settings;
            let kind = (rule.filter(|rule| *rule != settings.algorithm.rule.declared.name), epsilon, momentum);
            if !kinds.contains(&kind) {
                algorithms.push(settings.algorithm.for_group(&group.settings, &group.names[0])?);
                kinds.push(kind);
            }
            let algorithm = kinds.iter().position(|known| *known == kind).expect("it was added");
            algorithm_of.extend(group.names.iter().map(|name| (name.as_str(), (index, algorithm))));
        }
        let trained = parameters().filter_map(|parameter| {
            let (group, algorithm) = *algorithm_of.get(parameter.name.as_str())?;
            let is_whole = algorithms[algorithm].is_whole();
            let shape = if is_whole { parameter.global_shape() } else { parameter.shape.clone() };
            let parts = if is_whole { parameter.fused_rows() } else { Vec::new() };
            Some((parameter.name.clone(), TrainedParameter { group, algorithm, shape, parts }))
        });
        let trained: BTreeMap<String, TrainedParameter> = trained.collect();
        for (name, TrainedParameter { algorithm, shape, .. }) in &trained {
            let rule = algorithms[*algorithm].rule.declared;
            if rule.scalars != ScalarRule::Same && shape.len() != 2 {
                return Err(OptimizerError::NotMatrix {
                    rule: rule.name,
                    parameter: name.clone(),
                    shape: shape.clone(),
                });
            }
        }
        let is_whole = |name: &str| trained.get(name).is_some_and(|one| algorithms[one.algorithm].is_whole());
        let any_whole = distribution.sum_over_world(f64::from(u8::from(algorithms.iter().any(Algorithm::is_whole))))?;
        let gathers = if any_whole > 0.0 {
            let whole = parameters().filter(|parameter| is_whole(&parameter.name)).collect::<Vec<_>>();
            let divides_state = distribution.sharding().divides_state();
            WholeGathers::new(distribution.groups(), whole.into_iter(), divides_state)?
        } else {
            WholeGathers::default()
        };
        let updated = parameters().filter_map(|Declaration { name, .. }| {
            distribution.state_range(name).map(|range| (name.as_str(), range.len()))
        });
        Ok(Self {
            offload: Offload::new(settings.offload, updated),
            settings,
            groups,
            override_lines: provider.lines(),
            algorithms,
            trained: Arc::new(trained),
            slots: BTreeMap::new(),
            averages: Averages::default(),
            parameters: ShardedParameters::new(Arc::clone(&distribution), chunks),
            distribution,
            step: 0,
            timers: Arc::new(Timers::new(None)),
            copies: CopyTimes::default(),
            scales: Scales::new(),
            batches: Vec::new(),
            gathers,
            updated: BTreeMap::new(),
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

    /// Lines for people about parameters with settings of their own.
    pub fn override_lines(&self) -> &[String] {
        &self.override_lines
    }

    /// Settings of each group, in order.
    pub fn groups(&self) -> impl Iterator<Item = &GroupSettings> {
        self.groups.iter().map(|group| &group.settings)
    }

    /// Updates all parameters from `gradients`, which are emptied.
    ///
    /// `rates` holds one entry a group. Gradients that are not finite, or above the limit, change
    /// nothing and are reported as failure. Norm and zeros are those of the whole model; every rank
    /// finds the same.
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
        if !grad_norm.is_finite() || grad_norm > self.settings.skip_above {
            gradients.clear();
            return Ok(StepOutcome { success: false, grad_norm, num_zeros });
        }
        let clip = timers.time("optimizer-clip-main-grad", TimerLevel::Phase, || {
            clip_coefficient(self.settings.clip_grad, grad_norm)
        });
        let gradient_scale = unscale * clip;
        self.step += 1;
        let steps = self.steps_of_groups(rates, gradient_scale);
        self.batches = self.algorithms.iter().map(|algorithm| algorithm.update.batch()).collect();
        if self.distribution.sharding().divides_state() {
            let owned = self.parameters.owned(chunks)?;
            let mut visit = |f: &mut ParameterVisitor<'_>| owned.iter().for_each(|(name, value)| f(name, value));
            self.scales = self.next_scales(gradients, &steps, &mut visit)?;
            let timer = UpdateTimer::start(&timers);
            self.update_whole(gradients, &steps, &mut visit)?;
            let mut transfers = self.start_host_transfers(gradients, &mut visit);
            let mut updated = BTreeMap::new();
            for (name, value) in owned {
                let value = self.update(&name, value, &mut *gradients, &mut transfers, &steps);
                updated.insert(name, value);
            }
            self.finish_batch();
            self.average(|f| updated.iter().for_each(|(name, value)| f(name, value)));
            timer.stop(std::mem::take(&mut self.copies));
            let _timer = phase("params-all-gather");
            self.parameters.set_owned(chunks, updated)?;
        } else {
            let trained = Arc::clone(&self.trained);
            let mut visit = |f: &mut ParameterVisitor<'_>| {
                for chunk in chunks.iter() {
                    chunk.visit_wanted(&|name| trained.contains_key(name), &mut |name, value| f(name, &value));
                }
            };
            self.scales = self.next_scales(gradients, &steps, &mut visit)?;
            let timer = UpdateTimer::start(&timers);
            self.update_whole(gradients, &steps, &mut visit)?;
            let mut transfers = self.start_host_transfers(gradients, &mut visit);
            for chunk in chunks.iter_mut() {
                chunk.update_parameters(&mut |name, value| match self.trained.contains_key(name) {
                    true => self.update(name, value, &mut *gradients, &mut transfers, &steps).into(),
                    false => Replacement::Kept,
                });
            }
            self.finish_batch();
            self.average(|f| {
                chunks.iter().for_each(|chunk| chunk.visit_wanted(&|_| true, &mut |name, value| f(name, &value)));
            });
            timer.stop(std::mem::take(&mut self.copies));
        }
        gradients.clear();
        Ok(StepOutcome { success: true, grad_norm, num_zeros })
    }

    /// Launches the batched updates of the step. Their results may be read afterwards.
    fn finish_batch(&mut self) {
        for batch in std::mem::take(&mut self.batches).into_iter().flatten() {
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
            let Some(TrainedParameter { group, algorithm, shape, .. }) = self.trained.get(name) else { return };
            if self.algorithms[*algorithm].formats.is_none() {
                return;
            }
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
        let Some(TrainedParameter { group, algorithm, shape, .. }) = self.trained.get(name) else { return value };
        let (index, algorithm) = (*algorithm, &self.algorithms[*algorithm]);
        if let Some(updated) = self.updated.remove(name) {
            return self.kept(name, value.dtype(), updated, None);
        }
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
        let (updated, rounded) = slot.update(algorithm, self.batches[index].as_mut(), value, gradient, &step);
        self.kept(name, dtype, updated, rounded)
    }

    /// The new value of a parameter in its dtype. If that has 16 bits, the float32 value is kept.
    fn kept(&mut self, name: &str, dtype: DType, updated: Tensor<1>, rounded: Option<Tensor<1>>) -> Tensor<1> {
        if dtype == DType::F32 {
            return updated;
        }
        let rounding = Instant::now();
        let rounded = rounded.unwrap_or_else(|| updated.clone().cast(FloatDType::from(dtype)));
        let slot = self.slots.get_mut(name).expect("an update has a slot");
        slot.master = Some(Master::Whole(Box::new(Stored::Plain(updated))));
        self.copies.parameters += rounding.elapsed();
        rounded
    }

    /// Updates the parameters whose rules need whole ones, on the ranks that own them, and keeps
    /// the new values of this rank's parts in `self.updated`.
    fn update_whole(
        &mut self,
        gradients: &mut GradientBuffer,
        steps: &[UpdateStep<'_>],
        visit: &mut dyn FnMut(&mut ParameterVisitor<'_>),
    ) -> Result<(), CommError> {
        let Self { trained, algorithms, slots, .. } = self;
        if !algorithms.iter().any(Algorithm::is_whole) {
            return Ok(());
        }
        let mut parts = BTreeMap::new();
        visit(&mut |name, value| {
            let algorithm = trained.get(name).map(|one| &algorithms[one.algorithm]);
            if let Some(algorithm) = algorithm.filter(|algorithm| algorithm.is_whole()) {
                let slot = slots.entry(name.to_owned()).or_insert_with(|| Slot::empty(algorithm));
                let gradient = gradients.take_unchanged(name).map_or_else(|| zeros_like(value), to_float32);
                parts.insert(name.to_owned(), [slot.take_parameter(value.clone()), gradient]);
            }
        });
        let Some(device) = parts.values().next().map(|[value, _]| value.device()) else { return Ok(()) };
        let whole = self.gathers.gather(parts)?;
        let mut updated = BTreeMap::new();
        for (index, algorithm) in algorithms.iter().enumerate().filter(|(_, algorithm)| algorithm.is_whole()) {
            let names = whole.keys().filter(|name| trained[*name].algorithm == index);
            let prepared = names.clone().map(|name| {
                let (TrainedParameter { group, shape, parts, .. }, [parameter, gradient]) =
                    (&trained[name], &whole[name]);
                let slot = slots.get_mut(name).expect("it was made above");
                let states = slot.take_states(algorithm, parameter, shape);
                let values = Values { parameter: parameter.clone(), states };
                WholeParameter {
                    values,
                    gradient: gradient.clone(),
                    step: UpdateStep { shape, ..steps[*group] },
                    parts,
                }
            });
            let results = algorithm.update.update_whole(prepared.collect());
            for (name, values) in names.zip(results) {
                let slot = slots.get_mut(name).expect("it was made above");
                updated.insert(name.clone(), slot.put(values));
            }
        }
        self.updated = self.gathers.scatter(updated, &device)?;
        Ok(())
    }

    /// Algorithm of the updates of a trained parameter.
    pub(super) fn algorithm_of(&self, name: &str) -> Option<&Algorithm> {
        self.trained.get(name).map(|parameter| &self.algorithms[parameter.algorithm])
    }

    /// True if this rank has the states of the parameter in one piece, for updates of the whole
    /// parameter; `None` if its states are divided as the parameter is.
    pub(super) fn owns_whole(&self, name: &str) -> Option<bool> {
        self.algorithm_of(name).filter(|algorithm| algorithm.is_whole()).map(|_| self.gathers.owns(name))
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
        self.slots.values().map(Slot::bytes).sum::<u64>() + self.averages.bytes().0
    }

    /// Bytes of the state that is in the memory of this process.
    pub fn host_state_bytes(&self) -> u64 {
        self.slots.values().map(Slot::host_bytes).sum::<u64>() + self.averages.bytes().1
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

/// `clip / (norm + 1e-6)` if that is below 1, else 1; 1 if clipping is off.
fn clip_coefficient(clip_grad: f64, grad_norm: f64) -> f64 {
    if clip_grad > 0.0 { (clip_grad / (grad_norm + 1e-6)).min(1.0) } else { 1.0 }
}

fn zeros_like(value: &Tensor<1>) -> Tensor<1> {
    Tensor::zeros(value.shape(), (&value.device(), DType::F32))
}
