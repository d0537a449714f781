//! Gradients of a graph's micro-batches, summed where the graph writes them.

use std::collections::{BTreeMap, BTreeSet};

use bridge_kernels::graph::{MemoryAddress, add_into, write_into};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::model::Batch;
use crate::optim::{AccumulationDType, GradientBuffer};
use crate::train::engine::executor::RegionHooks;
use crate::train::engine::forward_step::ForwardStep;

/// The sum of each parameter's gradients, flat, at a fixed place.
#[derive(Default)]
pub(super) struct StaticGradients {
    tensors: BTreeMap<String, Tensor<1>>,
    dtype: Option<DType>,
}

impl StaticGradients {
    /// Drops all sums, before a micro-batch is recorded.
    pub fn restart(&mut self, accumulation: AccumulationDType) {
        self.tensors.clear();
        self.dtype = match accumulation {
            AccumulationDType::Float32 => Some(DType::F32),
            AccumulationDType::AsComputed => None,
        };
    }

    fn add(&mut self, name: &str, gradient: &Tensor<1>, keeps: &Tensor<1>) {
        let sum = match self.tensors.get(name) {
            Some(sum) => sum,
            None => {
                let dtype = self.dtype.unwrap_or_else(|| gradient.dtype());
                let zeros = Tensor::zeros(gradient.dims(), (&gradient.device().without_autodiff(), dtype));
                self.tensors.entry(name.to_owned()).or_insert(zeros)
            }
        };
        add_into(sum, gradient, keeps);
    }

    /// Copies the sums of earlier micro-batches of the step to the memory of the graph. Returns
    /// true if there are any.
    pub fn load(&self, gradients: &GradientBuffer) -> bool {
        if self.tensors.keys().all(|name| gradients.get(name).is_none()) {
            return false;
        }
        for (name, sum) in &self.tensors {
            match gradients.get(name) {
                Some(earlier) if MemoryAddress::from_tensor(earlier) == MemoryAddress::from_tensor(sum) => {}
                Some(earlier) => write_into(sum, &earlier.clone().cast(FloatDType::from(sum.dtype()))),
                None => write_into(sum, &sum.zeros_like()),
            }
        }
        true
    }

    /// Makes these the gradients of the step.
    pub fn store(&self, gradients: &mut GradientBuffer) {
        for (name, sum) in &self.tensors {
            gradients.set(name, sum.clone());
        }
    }
}

/// Hooks around the regions of a micro-batch that is recorded.
pub(super) struct GraphHooks<'a> {
    pub forward_step: &'a mut dyn ForwardStep,
    pub batch: &'a Batch,
    /// Gradients so far, to which those of the micro-batch are added.
    pub sums: &'a mut StaticGradients,
    /// Factor of the loss.
    pub factor: &'a Tensor<1>,
    /// Factor of the gradients so far: 0 or 1.
    pub keeps: &'a Tensor<1>,
    /// A tensor with the value 1.
    pub always: &'a Tensor<1>,
    /// Parameters with a part of this micro-batch's gradient.
    pub begun: BTreeSet<String>,
}

impl RegionHooks for GraphHooks<'_> {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        self.forward_step.objective(loss_sum, self.batch) * self.factor.clone().autodiff()
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        let is_first = self.begun.insert(name.to_owned());
        self.sums.add(name, &gradient, if is_first { self.keeps } else { self.always });
    }
}
