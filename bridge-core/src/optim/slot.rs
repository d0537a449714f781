//! State of one parameter in an optimizer, and its update.

use bridge_kernels::optim::{Master, Stored};
use burn::tensor::{DType, FloatDType, Tensor};

use super::gradients::to_float32;
use super::rules::{Algorithm, LowPrecisionValues, State, StateFormats, UpdateBatch, UpdateStep, Values};

/// State of one parameter, or of the range of it that this rank updates. State from a checkpoint
/// may have other formats until the next step.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// The float32 value of a parameter kept in 16 bits.
    pub master: Option<Master>,
    /// The states that the rule declares, in its order; those that are missing start with the next
    /// step.
    pub states: Vec<Option<Stored>>,
}

impl Slot {
    /// Slot without state.
    pub fn empty(algorithm: &Algorithm) -> Self {
        Self { master: None, states: vec![None; algorithm.rule.states.len()] }
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        let states = self.states.iter().flatten().map(Stored::bytes).sum::<u64>();
        states + self.master.as_ref().map_or(0, Master::bytes)
    }

    /// Bytes in host memory. On the CPU these are all bytes; with a GPU, offloaded state and
    /// formats that are always stored in host memory.
    pub fn host_bytes(&self) -> u64 {
        let of_stored = |stored: &Stored| if stored.address().is_some() { stored.bytes() } else { 0 };
        let of_master = |master: &Master| match master {
            Master::Whole(stored) => of_stored(stored),
            Master::Remainders(_) => master.bytes(),
        };
        self.states.iter().flatten().map(of_stored).sum::<u64>() + self.master.as_ref().map_or(0, of_master)
    }

    /// True if an update starts from the value of the parameter: without a master, or with one that
    /// is only a remainder.
    pub fn reads_parameter(&self) -> bool {
        !matches!(self.master, Some(Master::Whole(_)))
    }

    /// The float32 value, if there is a master; `parameter` is the rounded master.
    pub fn master_value(&self, parameter: &Tensor<1>) -> Option<Tensor<1>> {
        self.master.as_ref().map(|master| master.widen(parameter))
    }

    /// Updates the states, which are stored as the rule declares them, alone or as part of a batch.
    /// Returns the new value in float32. For a 16-bit parameter, a batch may also return the value
    /// in the parameter's dtype. The gradient is float32, or 16-bit if the parameter is.
    pub fn update(
        &mut self,
        algorithm: &Algorithm,
        batch: Option<&mut Box<dyn UpdateBatch>>,
        value: Tensor<1>,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        let previous = (value.dtype() != DType::F32).then(|| value.clone());
        let parameter = self.take_parameter(value);
        let states = self.take_states(algorithm, &parameter, &[parameter.dims()[0]]);
        let values = Values { parameter, states };
        let (values, rounded) = match batch {
            Some(batch) => batch.add(values, gradient, step, previous),
            None => (algorithm.update.update(values, to_float32(gradient), step), None),
        };
        (self.put(values), rounded)
    }

    /// Float32 value of the parameter for an update.
    pub fn take_parameter(&mut self, value: Tensor<1>) -> Tensor<1> {
        match self.master.take() {
            Some(Master::Whole(master)) => master.into_plain(&value.device()),
            Some(master) => master.widen(&value),
            None if value.dtype() == DType::F32 => value,
            None => value.cast(FloatDType::F32),
        }
    }

    /// States for an update as the rule declares them. `shape` is that of `parameter`.
    pub fn take_states(&mut self, algorithm: &Algorithm, parameter: &Tensor<1>, shape: &[usize]) -> Vec<Tensor<1>> {
        let states = algorithm.rule.states.iter().zip(&mut self.states);
        let len = |state: &State| state.shape_for(&algorithm.settings, shape).iter().product();
        states.map(|(state, kept)| plain(kept.take(), state, parameter, len(state))).collect()
    }

    /// Keeps the states that an update made, and returns the parameter.
    pub fn put(&mut self, Values { parameter, states }: Values) -> Tensor<1> {
        self.states = states.into_iter().map(|state| Some(Stored::Plain(state))).collect();
        parameter
    }

    /// Inputs of an update with states in `formats`. Nothing is copied.
    pub fn values(&self, formats: &StateFormats, parameter: Tensor<1>) -> LowPrecisionValues {
        let zeros = |format| Stored::zeros(parameter.dims()[0], format, &parameter.device());
        let states = self.states.iter().zip(&formats.states);
        let states = states.map(|(kept, format)| kept.clone().unwrap_or_else(|| zeros(*format))).collect();
        LowPrecisionValues { master: self.master.clone(), states, parameter }
    }

    /// Updates states that are kept in `formats`, and returns the new value in the dtype of the
    /// parameter.
    pub fn update_low_precision(
        &mut self,
        algorithm: &Algorithm,
        formats: &StateFormats,
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        scales: &[f32],
    ) -> Tensor<1> {
        let values = self.values(formats, parameter);
        // Drop other references to the states, so that they can be updated in place.
        (self.master, self.states) = (None, Vec::new());
        let update = algorithm.update.low_precision().expect("only rules that have one keep formats");
        let LowPrecisionValues { parameter, master, states } = update.update(values, gradient, step, formats, scales);
        (self.master, self.states) = (master, states.into_iter().map(Some).collect());
        parameter
    }
}

/// A state as the rule declares it.
fn plain(kept: Option<Stored>, state: &State, parameter: &Tensor<1>, len: usize) -> Tensor<1> {
    match kept {
        None => state.first(parameter, len),
        Some(Stored::Plain(kept)) if kept.dtype() == DType::from(state.dtype) => kept,
        Some(kept) => kept.widen(&parameter.device()).cast(state.dtype),
    }
}
