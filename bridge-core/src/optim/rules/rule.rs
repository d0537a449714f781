//! What a rule declares, and the contract of its update.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What an optimizer is, apart from the values of its settings.
#[derive(Debug)]
pub struct Rule {
    /// The value of `optimizer.optimizer` that chooses it.
    pub name: &'static str,
    /// The settings of `[optimizer]` that it reads besides learning rate and weight decay. Beside another rule they are void, and refused.
    pub settings: &'static [&'static str],
    /// What it keeps of each parameter from step to step.
    pub states: &'static [State],
    /// What an update must have at once.
    pub unit: Unit,
    /// What the size of an update follows.
    pub size: UpdateSize,
    /// Makes the update of a table of its own settings, and no others.
    pub read: fn(Value) -> serde_json::Result<Arc<dyn Update>>,
}

/// What the update of a rule must have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// An element with its states: parameters may be cut into flat ranges of which each rank updates one.
    Element,
    /// A whole parameter with its states. Nothing gathers them yet, so parameters that are cut are refused.
    Parameter,
}

/// What the size of a rule's update follows: with muP, learning rates of hidden matrices go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateSize {
    /// The learning rate, however large gradients are.
    LearningRate,
    /// The gradient.
    Gradient,
}

/// A tensor that a rule keeps of each parameter.
#[derive(Debug)]
pub struct State {
    /// Its name in checkpoints, before the parameter's: without a dot, and not `master`.
    pub name: &'static str,
    /// The dtype in which it is kept and saved.
    pub dtype: FloatDType,
    /// Its shape.
    pub shape: StateShape,
    /// What it is before the first step.
    pub start: Start,
}

/// The shape of a state. Another one needs its layout in checkpoints and its bytes in plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// The parameter's.
    OfParameter,
}

/// What a state is before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Zeros.
    Zeros,
    /// The parameter's value.
    Parameter,
}

impl State {
    /// A float32 state in the parameter's shape that starts from zeros.
    pub const fn zeros(name: &'static str) -> Self {
        Self { name, dtype: FloatDType::F32, shape: StateShape::OfParameter, start: Start::Zeros }
    }

    /// The state before the first step of a parameter, or of a range of it.
    pub(in crate::optim) fn first(&self, parameter: &Tensor<1>) -> Tensor<1> {
        let StateShape::OfParameter = self.shape;
        match self.start {
            Start::Zeros => Tensor::zeros(parameter.shape(), (&parameter.device(), self.dtype.into())),
            Start::Parameter => parameter.clone().cast(self.dtype),
        }
    }
}

impl Rule {
    /// The rule with the values that a table of settings has for its own.
    ///
    /// # Errors
    /// If one is missing, or is not of the type that the rule reads.
    pub fn with(&'static self, settings: &Value) -> serde_json::Result<Algorithm> {
        let own = self.settings.iter().filter_map(|name| Some(((*name).to_owned(), settings.get(*name)?.clone())));
        Ok(Algorithm { rule: self, update: (self.read)(Value::Object(own.collect()))? })
    }

    /// Bytes of the states of one element.
    pub fn bytes_per_element(&self) -> u64 {
        let bytes = |state: &State| match state.shape {
            StateShape::OfParameter => burn::tensor::DType::from(state.dtype).size() as u64,
        };
        self.states.iter().map(bytes).sum()
    }
}

/// For [`Rule::read`]: an update whose fields are the settings.
pub(super) fn read<U: Update + DeserializeOwned + 'static>(own: Value) -> serde_json::Result<Arc<dyn Update>> {
    Ok(Arc::new(serde_json::from_value::<U>(own)?))
}

/// A rule with the values of its settings.
#[derive(Clone, Debug)]
pub struct Algorithm {
    pub(in crate::optim) rule: &'static Rule,
    pub(in crate::optim) update: Arc<dyn Update>,
}

/// The maths of a rule.
pub trait Update: fmt::Debug + Send + Sync {
    /// Makes one step. The values are handed over so that their memory can be used again.
    ///
    /// # Shapes
    /// Parameter, gradient and states are flat and of one length: a whole parameter, or of rules by [`Unit::Element`] a range of one. Parameter
    /// and gradient are float32, states have their declared dtypes.
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values;
}

/// A parameter, or the range of it that a rank owns, with its states.
#[derive(Clone, Debug)]
pub struct Values {
    /// The parameter, flat, float32.
    pub parameter: Tensor<1>,
    /// Its states, in the order in which the rule declares them.
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

/// Constants of one step of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep<'a> {
    /// Learning rate of its group.
    pub learning_rate: f64,
    /// Weight decay of its group.
    pub weight_decay: f64,
    /// Factor of its group on the rule's epsilon, where it has one.
    pub eps_mult: f64,
    /// Number of the step, from 1.
    pub number: u64,
    /// Factor on the gradient: clipping, loss scale and accumulation in one.
    pub gradient_scale: f64,
    /// Shape of the whole parameter.
    pub shape: &'a [usize],
}
