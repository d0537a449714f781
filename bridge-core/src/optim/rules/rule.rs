//! Declaration of a rule, and the contract of its update.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bridge_kernels::optim::{Format, Master, MasterFormat, Stored, UpdateStep};
use burn::tensor::{FloatDType, Tensor};

use crate::config::OptimizerConfig;
use crate::config::optimizer_rules::{KeptFormats, OptimizerRule};
use crate::optim::error::OptimizerError;
use crate::schedule::GroupSettings;

/// Name of averages in checkpoints, beside those of states. Rules may have a state of this name,
/// by which models are evaluated.
pub const AVERAGE: &str = "average";

/// Optimizer, apart from the values of its settings.
#[derive(Debug)]
pub struct Rule {
    /// Name and settings, as recipes see them.
    pub declared: &'static OptimizerRule,
    /// States of each parameter that are kept from step to step.
    pub states: &'static [State],
    /// Range of a parameter that an update needs at once.
    pub unit: Unit,
    /// Makes the update with the settings of `[optimizer]` that are the rule's own
    /// ([`OptimizerRule::settings`]), and no others. Updates of rules that keep formats are
    /// [`LowPrecisionUpdate`]s too.
    pub update: fn(&OptimizerConfig) -> Arc<dyn Update>,
}

/// Range of a parameter that an update needs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// An element with its states: parameters may be cut into flat ranges of which each rank
    /// updates one.
    Element,
    /// A whole parameter with its states, which one rank has: parameters and gradients are gathered
    /// there for the update ([`Update::update_whole`]).
    Parameter,
}

/// A tensor that a rule keeps of each parameter.
#[derive(Debug)]
pub struct State {
    /// Name in checkpoints, before the parameter's: without a dot, and not `master`.
    pub name: &'static str,
    /// The dtype in which it is kept and saved.
    pub dtype: FloatDType,
    /// Value before the first step.
    pub start: Start,
    /// Shape of the state if it is not the parameter's, which only rules of whole parameters
    /// ([`Unit::Parameter`]) may have.
    pub shape: Option<StateShape>,
    /// Format in which the state is kept with some settings. Every state has one if the rule keeps
    /// formats ([`OptimizerRule::keeps_formats`]).
    pub format: Option<fn(&OptimizerConfig) -> Format>,
}

/// Shape of a state by the settings and the shape of the whole parameter.
pub type StateShape = fn(&OptimizerConfig, &[usize]) -> Vec<usize>;

/// Value of a state before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Zeros.
    Zeros,
    /// The parameter's value, in its shape.
    Parameter,
}

impl State {
    /// A float32 state in the parameter's shape that starts from zeros.
    pub const fn zeros(name: &'static str) -> Self {
        Self { name, dtype: FloatDType::F32, start: Start::Zeros, shape: None, format: None }
    }

    /// Shape of the state of a parameter of shape `parameter`.
    pub(in crate::optim) fn shape_for(&self, settings: &OptimizerConfig, parameter: &[usize]) -> Vec<usize> {
        self.shape.map_or_else(|| parameter.to_vec(), |shape| shape(settings, parameter))
    }

    fn len(&self, settings: &OptimizerConfig, parameter: &[usize]) -> usize {
        self.shape_for(settings, parameter).iter().product()
    }

    /// The state of `len` elements before the first step of a parameter, or of a range of it.
    pub(in crate::optim) fn first(&self, parameter: &Tensor<1>, len: usize) -> Tensor<1> {
        match self.start {
            Start::Zeros => Tensor::zeros([len], (&parameter.device(), self.dtype.into())),
            Start::Parameter => parameter.clone().cast(self.dtype),
        }
    }
}

impl Rule {
    /// The rule with its settings of `[optimizer]`.
    pub fn with(&'static self, settings: &OptimizerConfig) -> Algorithm {
        let by_blocks = self.declared.formats == KeptFormats::Blocks;
        let formats = by_blocks.then(|| Arc::new(self.formats(settings, MasterFormat::Float32)));
        Algorithm { rule: self, update: (self.update)(settings), settings: Arc::new(settings.clone()), formats }
    }

    /// Formats of masters and of states.
    pub fn formats(&self, settings: &OptimizerConfig, master: MasterFormat) -> StateFormats {
        let states = self.states.iter().filter_map(|state| state.format).map(|format| format(settings));
        StateFormats { master, states: states.collect() }
    }

    /// Bytes of the states of a parameter of this shape, or of a range of it in one dimension.
    pub fn state_bytes(&self, settings: &OptimizerConfig, shape: &[usize]) -> u64 {
        let bytes = |state: &State| state.len(settings, shape) * burn::tensor::DType::from(state.dtype).size();
        self.states.iter().map(|state| bytes(state) as u64).sum()
    }
}

/// A rule with the values of its settings.
#[derive(Clone, Debug)]
pub struct Algorithm {
    pub(in crate::optim) rule: &'static Rule,
    pub(in crate::optim) update: Arc<dyn Update>,
    pub(in crate::optim) settings: Arc<OptimizerConfig>,
    /// Formats of the states; `None` keeps them as the rule declares them, and float32 masters.
    pub(in crate::optim) formats: Option<Arc<StateFormats>>,
}

/// The formats in which states and masters are kept between steps
/// (`optimizer.use_precision_aware_optimizer`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFormats {
    /// Format of the float32 values of 16-bit parameters.
    pub master: MasterFormat,
    /// Formats of the states that the rule declares, in its order.
    pub states: Vec<Format>,
}

impl StateFormats {
    /// Bytes of an element of a parameter, of 16 bits or not.
    pub fn bytes_per_element(&self, has_master: bool) -> f64 {
        let master = if has_master { self.master.bytes() as f64 } else { 0.0 };
        master + self.states.iter().map(|format| format.bytes()).sum::<f64>()
    }

    /// Bytes of an element that are in host memory with any device: codes and remainders.
    pub fn host_bytes_per_element(&self, has_master: bool) -> f64 {
        let has_remainders = has_master && self.master == MasterFormat::Remainders;
        let master = if has_remainders { self.master.bytes() as f64 } else { 0.0 };
        let codes = self.states.iter().filter(|format| format.is_of_host());
        master + codes.map(|format| format.bytes()).sum::<f64>()
    }

    /// For the master and each state, whether its tensors have a scale.
    pub(in crate::optim) fn are_scaled(&self) -> Vec<bool> {
        let master = self.master.whole().is_some_and(Format::is_scaled);
        std::iter::once(master).chain(self.states.iter().map(|format| format.is_scaled())).collect()
    }

    /// Scales that a parameter has.
    pub fn num_scales(&self) -> usize {
        self.are_scaled().into_iter().filter(|is_scaled| *is_scaled).count()
    }

    /// Number of scales of states that are in host memory with any device.
    pub fn num_host_scales(&self) -> usize {
        self.states.iter().filter(|format| **format == Format::Float8).count()
    }

    /// The scales that go with largest magnitudes of master and states; 1 for those without.
    pub(in crate::optim) fn scales(&self, magnitudes: &[f32]) -> Vec<f32> {
        let formats =
            std::iter::once(self.master.whole().unwrap_or(Format::Float32)).chain(self.states.iter().copied());
        formats.zip(magnitudes).map(|(format, magnitude)| format.scale_for(*magnitude)).collect()
    }
}

impl Algorithm {
    /// The algorithm of a group with settings of its own, of which `parameter` is a member.
    ///
    /// # Errors
    /// If the group's rule does not exist, or has no setting for a value of the group.
    pub(in crate::optim) fn for_group(&self, group: &GroupSettings, parameter: &str) -> Result<Self, OptimizerError> {
        let parameter = || parameter.to_owned();
        let unknown = |rule| OptimizerError::UnknownRule { rule, parameter: parameter() };
        let rule = group.rule.map_or(Ok(self.rule), |name| super::named(name).ok_or_else(|| unknown(name)))?;
        let mut settings = self.settings.as_ref().clone();
        let set = |setting: Option<&mut f64>, name, value: Option<f64>| match (setting, value) {
            (Some(setting), Some(value)) => {
                *setting = value;
                Ok(())
            }
            (None, Some(_)) => {
                Err(OptimizerError::NoSetting { setting: name, rule: rule.declared.name, parameter: parameter() })
            }
            (_, None) => Ok(()),
        };
        set(rule.declared.momentum(&mut settings), "momentum", group.momentum)?;
        set(rule.declared.epsilon(&mut settings), "eps", group.epsilon)?;
        let made = rule.with(&settings);
        let formats = self.formats.clone().filter(|_| rule.declared == self.rule.declared);
        Ok(Self { formats: formats.or(made.formats.clone()), ..made })
    }

    /// True if updates need whole parameters.
    pub fn is_whole(&self) -> bool {
        self.rule.unit == Unit::Parameter
    }

    /// The algorithm with states that are kept in these formats.
    ///
    /// # Panics
    /// If the rule does not keep formats, or there is not one for each state.
    #[must_use]
    pub fn keeping(self, formats: StateFormats) -> Self {
        assert!(
            self.rule.declared.keeps_formats() && self.update.low_precision().is_some(),
            "{} keeps no formats",
            self.rule.declared.name
        );
        assert_eq!(
            formats.states.len(),
            self.rule.states.len(),
            "a format for each state of {}",
            self.rule.declared.name
        );
        Self { formats: Some(Arc::new(formats)), ..self }
    }
}

/// The maths of a rule.
pub trait Update: fmt::Debug + Send + Sync {
    /// Makes one step. The values are handed over so that their memory can be used again.
    ///
    /// # Shapes
    /// Parameter, gradient and states are flat. Parameter and gradient have one length: a whole
    /// parameter, or for rules by [`Unit::Element`] a range of one. A state has that length too,
    /// unless it declares a [`State::shape`]. Parameter and gradient are float32, states have their
    /// declared dtypes.
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values;

    /// Updates whole parameters of a step, which may share work, in their order.
    fn update_whole(&self, parameters: Vec<WholeParameter<'_>>) -> Vec<Values> {
        let update = |one: WholeParameter<'_>| self.update(one.values, one.gradient, &one.step);
        parameters.into_iter().map(update).collect()
    }

    /// Batched updates of many parameters, if the rule supports them. Otherwise each parameter is
    /// updated separately.
    fn batch(&self) -> Option<Box<dyn UpdateBatch>> {
        None
    }

    /// The update of states in less than 32 bits, where the rule has one
    /// ([`OptimizerRule::keeps_formats`]).
    fn low_precision(&self) -> Option<&dyn LowPrecisionUpdate> {
        None
    }
}

/// Whole parameter of an update by a rule of [`Unit::Parameter`].
#[derive(Debug)]
pub struct WholeParameter<'a> {
    /// The parameter and its states, each flat.
    pub values: Values,
    /// Gradient, flat, float32.
    pub gradient: Tensor<1>,
    /// The step, with the shape of the whole parameter.
    pub step: UpdateStep<'a>,
    /// Rows of each part of a fused projection; empty if the parameter is one matrix
    /// ([`Declaration::fused_rows`](crate::model::Declaration::fused_rows)).
    pub parts: &'a [Vec<Range<usize>>],
}

/// Updates of many parameters of a step, each with the result that [`Update::update`] has, to the
/// bit. On a GPU a launch has several of them.
pub trait UpdateBatch: fmt::Debug + Send + Sync {
    /// Adds the update of a parameter. `previous` is its value in the 16 bits of the model, if it
    /// has them: then the new value comes in that dtype too, and the gradient may have 16 bits.
    ///
    /// Tensors that are returned may be kept, but neither read nor given to an operation before
    /// [`finish`](Self::finish).
    fn add(
        &mut self,
        values: Values,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        previous: Option<Tensor<1>>,
    ) -> (Values, Option<Tensor<1>>);

    /// Launches the remaining updates.
    fn finish(self: Box<Self>);
}

/// The maths of a rule whose states may be kept in less than 32 bits. The scale of a tensor is its
/// largest magnitude divided by the largest number of the format. It belongs to the whole
/// parameter, so ranks first compute magnitudes and agree on them, and then update.
pub trait LowPrecisionUpdate {
    /// The largest magnitudes that the float32 parameter and each state would have after a step
    /// that is not made.
    fn magnitudes(&self, values: &LowPrecisionValues, gradient: &Tensor<1>, step: &UpdateStep<'_>) -> Vec<f32>;

    /// Makes one step in float32 and keeps the states in `formats`, with `scales` (of master and
    /// states; 1 for those without). The gradient is float32 or bfloat16; states may have other
    /// formats than they get, as a checkpoint had them.
    fn update(
        &self,
        values: LowPrecisionValues,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        formats: &StateFormats,
        scales: &[f32],
    ) -> LowPrecisionValues;
}

/// A parameter, or the range of it that a rank owns, with its states as they are kept.
#[derive(Clone, Debug)]
pub struct LowPrecisionValues {
    /// The parameter, flat, in the dtype of the model.
    pub parameter: Tensor<1>,
    /// Float32 value of a 16-bit parameter that was updated before.
    pub master: Option<Master>,
    /// States, in the order in which the rule declares them.
    pub states: Vec<Stored>,
}

/// A parameter, or the range of it that a rank owns, with its states.
#[derive(Clone, Debug)]
pub struct Values {
    /// The parameter, flat, float32.
    pub parameter: Tensor<1>,
    /// States, in the order in which the rule declares them.
    pub states: Vec<Tensor<1>>,
}

impl Values {
    /// The parameter and its states.
    ///
    /// # Panics
    /// If there are not `N` states.
    pub fn split<const N: usize>(self) -> (Tensor<1>, [Tensor<1>; N]) {
        (self.parameter, self.states.try_into().expect("a rule gets the states that it declares"))
    }
}
