//! Gradients summed over the micro-batches of a step.

use std::collections::BTreeMap;
use std::ops::Range;

use bridge_dist::comm::{CommError, Group, ReduceOp};
use bridge_dist::exchange::TensorExchange;
use bridge_kernels::optim::accumulate;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::flat::{detached_part, part};
use super::packing::Packing;

/// dtype in which gradients are summed over micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulationDType {
    /// float32, whatever the parameters are.
    Float32,
    /// The dtype the backward pass produced.
    AsComputed,
}

/// Elements of one gradient that ranks add up.
#[derive(Debug)]
pub(super) struct SharedElements<'a> {
    /// The parameter.
    pub name: &'a str,
    /// How many elements of its gradient this rank has.
    pub held: usize,
    /// Those of them that are added up.
    pub elements: Range<usize>,
}

/// Parameters whose gradients ranks add up in one operation.
#[derive(Debug)]
pub(super) struct SharedParameters<'a> {
    /// What of each.
    pub parameters: Vec<SharedElements<'a>>,
    /// Elements that travel: at least those of the parameters, padded so that every rank of the world sends as many.
    pub num_elements: usize,
}

/// The gradient of each parameter, by name, flat.
#[derive(Debug)]
pub struct GradientBuffer {
    accumulation: AccumulationDType,
    gradients: BTreeMap<String, Tensor<1>>,
    /// Gradients that ranks have added up already, on their way to take the place of `gradients`.
    reduced: BTreeMap<String, Tensor<1>>,
}

impl GradientBuffer {
    /// An empty buffer.
    pub fn new(accumulation: AccumulationDType) -> Self {
        Self { accumulation, gradients: BTreeMap::new(), reduced: BTreeMap::new() }
    }

    /// The dtype of sums.
    pub(crate) fn accumulation(&self) -> AccumulationDType {
        self.accumulation
    }

    /// Forgets all gradients.
    pub fn clear(&mut self) {
        self.gradients.clear();
        self.reduced.clear();
    }

    /// Adds a micro-batch's gradient of the parameter `name`.
    pub fn add(&mut self, name: &str, gradient: Tensor<1>) {
        let sum = match (self.gradients.remove(name), self.accumulation) {
            (Some(sum), _) => accumulate(sum, gradient),
            (None, AccumulationDType::Float32) => to_float32(gradient),
            (None, AccumulationDType::AsComputed) => gradient,
        };
        self.gradients.insert(name.to_owned(), sum);
    }

    /// Takes the gradient of one parameter, in the dtype it has.
    pub(super) fn take_unchanged(&mut self, name: &str) -> Option<Tensor<1>> {
        self.gradients.remove(name)
    }

    /// Adds a gradient that ranks have added up.
    pub(super) fn add_reduced(&mut self, name: &str, gradient: Tensor<1>) {
        let sum = match self.reduced.remove(name) {
            Some(sum) => accumulate(sum, gradient),
            None => gradient,
        };
        self.reduced.insert(name.to_owned(), sum);
    }

    /// Takes a gradient that ranks have added up.
    pub(super) fn take_reduced(&mut self, name: &str) -> Option<Tensor<1>> {
        self.reduced.remove(name)
    }

    /// Lets reduced gradients take the place of this rank's own.
    pub(super) fn adopt_reduced(&mut self) {
        self.gradients.append(&mut self.reduced);
    }

    /// Replaces the gradient of one parameter.
    pub(crate) fn set(&mut self, name: &str, gradient: Tensor<1>) {
        self.gradients.insert(name.to_owned(), gradient);
    }

    /// All gradients in name order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<1>)> {
        self.gradients.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Adds the gradients of some parameters up over a group, in one operation. All ranks name the same parameters; one without gradient
    /// counts as zero.
    pub(super) fn all_reduce(
        &mut self,
        SharedParameters { parameters, num_elements }: &SharedParameters<'_>,
        group: &Group,
        device: &Device,
    ) -> Result<(), CommError> {
        if group.size() == 1 || parameters.is_empty() {
            return Ok(());
        }
        if let Some(way) = TensorExchange::of(group, device) {
            let packing = Packing { device, dtype: DType::F32 };
            let pieces = parameters.iter().map(|SharedElements { name, elements, .. }| {
                let gradient = self.gradients.get(*name).cloned().filter(|_| !elements.is_empty());
                (gradient.map(|gradient| to_float32(part(gradient, elements))), elements.len())
            });
            let sums = way.all_reduce(packing.concatenated(pieces, *num_elements), ReduceOp::Sum)?;
            let mut start = 0;
            for shared in parameters {
                let own = start..start + shared.elements.len();
                start = own.end;
                self.replace_shared(shared, device, detached_part(sums.clone(), &own));
            }
            return Ok(());
        }
        let mut values: Vec<f32> = Vec::new();
        for SharedElements { name, elements, .. } in parameters {
            let end = values.len() + elements.len();
            if let Some(gradient) = self.gradients.get(*name).cloned().filter(|_| !elements.is_empty()) {
                values.extend(to_float32(part(gradient, elements)).into_data().iter::<f32>());
            }
            values.resize(end, 0.0);
        }
        values.resize(*num_elements, 0.0);
        group.all_reduce((&mut values).into(), ReduceOp::Sum)?;
        let mut rest = values.as_slice();
        for shared in parameters {
            let (own, others) = rest.split_at(shared.elements.len());
            rest = others;
            let sum = Tensor::<1>::from_data(TensorData::new(own.to_vec(), [own.len()]), (device, DType::F32));
            self.replace_shared(shared, device, sum);
        }
        Ok(())
    }

    /// Puts the sum of some elements in the place of this rank's.
    fn replace_shared(
        &mut self,
        SharedElements { name, held, elements }: &SharedElements<'_>,
        device: &Device,
        sum: Tensor<1>,
    ) {
        let dtype = self.gradients.get(*name).map_or(DType::F32, Tensor::dtype);
        let sum = if dtype == DType::F32 { sum } else { sum.cast(FloatDType::from(dtype)) };
        let gradient = if *elements == (0..*held) {
            sum
        } else if elements.is_empty() {
            return;
        } else {
            let before = self.gradients.remove(*name);
            let before = before.unwrap_or_else(|| Tensor::zeros([*held], (device, dtype)));
            before.slice_assign([elements.clone()], sum)
        };
        self.set(name, gradient);
    }

    /// The gradient of one parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&Tensor<1>> {
        self.gradients.get(name)
    }
}

/// The same in float32.
pub(super) fn to_float32(x: Tensor<1>) -> Tensor<1> {
    if x.dtype() == burn::tensor::DType::F32 { x } else { x.cast(FloatDType::F32) }
}
