//! Trained adapter: the branches of a decoder, whose values a checkpoint has, and the base's
//! weights with them.

use bridge_core::config::PeftKind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::checkpoint::CheckpointError;
use bridge_core::model::{Adapter, Declaration, LinearAdaptation, LinearLayer, Scope};
use burn::tensor::{Device, Tensor, TensorData};

use super::lora::{Branch, BranchNames, LowRankAdapter};
use super::merge::merged;
use super::parts::Parts;
use crate::decoder::DecoderConfig;

/// Gives the values of a whole parameter, row-major, by its name.
pub type ReadValues<'a> = dyn Fn(&str) -> Result<Vec<f32>, CheckpointError> + 'a;

/// A layer with its branches.
#[derive(Clone, Debug)]
pub(super) struct AdaptedLayer {
    /// The layer.
    pub layer: LinearLayer,
    /// Branches of the layer: one of the whole, or some of parts.
    pub branches: Vec<Branch>,
    /// True if the layer is inside one of several experts.
    pub is_of_expert: bool,
}

/// The parameters of a layer's branches.
pub(super) struct Values {
    /// Matrices `a`, `[r, i]`, and `b`, `[o, r]`, of each branch.
    pub matrices: Vec<Tensor<2>>,
    /// With DoRA, of each branch the lengths of rows, `[o]`.
    pub vectors: Vec<Tensor<1>>,
}

/// The branches of a decoder. Their values stay where they are, and are read when they are asked
/// for.
#[derive(Clone, Debug)]
pub struct TrainedAdapter {
    pub(super) method: PeftKind,
    /// Layers by name.
    pub(super) layers: BTreeMap<String, AdaptedLayer>,
    /// Parameters of the base that are trained in full.
    pub(super) in_full: BTreeSet<String>,
}

impl TrainedAdapter {
    /// Effect of `adapter` on the decoder `config`.
    pub fn new(adapter: &LowRankAdapter, config: &DecoderConfig) -> Self {
        let recorder = Arc::new(Recorder { adapter: adapter.clone(), found: Mutex::default() });
        config.ask(Arc::<Recorder>::clone(&recorder));
        let (layers, in_full) = std::mem::take(&mut *recorder.found.lock().unwrap_or_else(PoisonError::into_inner));
        Self { method: adapter.method(), layers, in_full }
    }

    /// The values of a parameter of the whole model, row-major: those of `base`, with the branches
    /// in `own` merged, in float32; those of `own` where they are trained in full.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn merged(
        &self,
        parameter: &str,
        base: &ReadValues<'_>,
        own: &ReadValues<'_>,
    ) -> Result<Vec<f32>, CheckpointError> {
        if self.in_full.contains(parameter) {
            return own(parameter);
        }
        let values = base(parameter)?;
        let Some(adapted) = parameter.strip_suffix(".weight").and_then(|layer| self.layers.get(layer)) else {
            return Ok(values);
        };
        let layer = &adapted.layer;
        let weight_oi = matrix(values, [layer.outputs, layer.inputs]);
        let Values { matrices, vectors } = self.values(adapted, own)?;
        let sum_oi = merged(weight_oi, layer, &adapted.branches, self.method, (&matrices, &vectors));
        Ok(floats(sum_oi.reshape([layer.outputs * layer.inputs])))
    }

    /// The parameters of a layer's branches.
    pub(super) fn values(&self, adapted: &AdaptedLayer, own: &ReadValues<'_>) -> Result<Values, CheckpointError> {
        let AdaptedLayer { layer, branches, .. } = adapted;
        let parts = Parts::from_layer(layer);
        let mut values = Values { matrices: Vec::new(), vectors: Vec::new() };
        for branch in branches {
            let names = BranchNames::new(&layer.name, parts, branch.part);
            let rows = branch.part.map_or(layer.outputs, |part| parts.rows(part, layer.outputs));
            values.matrices.push(matrix(own(&names.a)?, [branch.rank, layer.inputs]));
            values.matrices.push(matrix(own(&names.b)?, [rows, branch.rank]));
            if self.method == PeftKind::Dora {
                values.vectors.push(vector(own(&names.magnitudes)?));
            }
        }
        Ok(values)
    }
}

/// Records the layers and parameters that an adapter chooses, and changes nothing.
#[derive(Debug)]
struct Recorder {
    adapter: LowRankAdapter,
    found: Mutex<Found>,
}

/// Layers with branches by name, and names of parameters that are trained in full.
type Found = (BTreeMap<String, AdaptedLayer>, BTreeSet<String>);

impl Adapter for Recorder {
    fn trains(&self, declaration: &Declaration) -> bool {
        if self.adapter.trains(declaration) {
            self.found.lock().unwrap_or_else(PoisonError::into_inner).1.insert(declaration.name.clone());
        }
        true
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let branches = self.adapter.branches(layer, scope);
        if !branches.is_empty() {
            let adapted = AdaptedLayer { layer: layer.clone(), branches, is_of_expert: scope.is_of_expert() };
            self.found.lock().unwrap_or_else(PoisonError::into_inner).0.insert(layer.name.clone(), adapted);
        }
        None
    }
}

/// A matrix of these values on the CPU.
pub(super) fn matrix(values: Vec<f32>, shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// A vector of these values on the CPU.
pub(super) fn vector(values: Vec<f32>) -> Tensor<1> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex())
}

/// The values of a tensor of float32.
pub(super) fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("it was made as float32")
}
