//! Knowledge distillation: a frozen teacher runs before each pass, and the model learns its outputs
//! in addition to the text.

mod cache;
mod loss;
mod top;

use std::sync::Arc;

use bridge_dist::mesh::{GroupKind, ProcessGroups};

use crate::config::DistillationConfig;
use crate::model::{Batch, CustomLossCall, ModelChunk};
use crate::train::engine::error::EngineError;
use crate::train::engine::pipeline::{EvaluationBatches, MicroBatchInput, Pipeline};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use cache::Cache;
use loss::{DistillationLoss, Listener, Said};

pub(in crate::train) use loss::CE_LOSS;

/// Objective of a run.
#[derive(Clone, Debug)]
struct Objective {
    settings: DistillationConfig,
    /// The rows of the vocabulary that the model and its teacher both have.
    rows: usize,
}

/// A teacher on this rank.
pub(in crate::train) struct Distillation {
    chunks: Vec<Box<dyn ModelChunk>>,
    pipeline: Pipeline,
    objective: Arc<Objective>,
    cache: Option<Cache>,
}

impl Distillation {
    /// A teacher, built and loaded, with the settings of the objective and the rows of the
    /// vocabulary that it shares with the model. `fingerprint` is of all that its outputs depend on
    /// besides samples.
    pub fn new(
        chunks: Vec<Box<dyn ModelChunk>>,
        pipeline: Pipeline,
        settings: DistillationConfig,
        rows: usize,
        fingerprint: &str,
    ) -> Self {
        let kept = settings.cache.as_ref().zip(settings.top_k);
        let cache = kept.map(|(folder, k)| Cache::new(folder, fingerprint, rows, k));
        Self { chunks, pipeline, objective: Arc::new(Objective { settings, rows }), cache }
    }

    /// The losses of micro-batches, when the teacher has seen them. All ranks that share a model
    /// call this together.
    pub fn losses(
        &mut self,
        groups: &ProcessGroups,
        batches: &[Batch],
    ) -> Result<Vec<Option<CustomLossCall>>, EngineError> {
        let mut known = self.read(groups, batches)?;
        let missing: Vec<usize> = (0..batches.len()).filter(|index| known[*index].is_none()).collect();
        if !missing.is_empty() {
            let of_teacher: Vec<Batch> = missing.iter().map(|index| batches[*index].clone()).collect();
            let listeners: Vec<Arc<Listener>> =
                missing.iter().map(|_| Arc::new(Listener::new(Arc::clone(&self.objective)))).collect();
            let losses: Vec<_> =
                listeners.iter().map(|listener| Some(CustomLossCall::new(Arc::clone(listener) as _))).collect();
            let inputs = MicroBatchInput::evaluated(&of_teacher, &losses);
            let mut work = EvaluationBatches { inputs: &inputs, parameters: None };
            self.pipeline.evaluate(&mut self.chunks, of_teacher.len(), &mut work)?;
            for (index, listener) in missing.into_iter().zip(listeners) {
                let said = listener.take();
                self.write(groups, &batches[index], &said)?;
                known[index] = Some(said);
            }
        }
        let loss = |said: Option<Said>| {
            let said = said.unwrap_or_default();
            Some(CustomLossCall::new(Arc::new(DistillationLoss::new(Arc::clone(&self.objective), said))))
        };
        Ok(known.into_iter().map(loss).collect())
    }

    /// Cached outputs of micro-batches: all ranks that share the model have those of a micro-batch,
    /// or none has.
    fn read(&self, groups: &ProcessGroups, batches: &[Batch]) -> Result<Vec<Option<Said>>, EngineError> {
        let Some(cache) = &self.cache else {
            return Ok(batches.iter().map(|_| None).collect());
        };
        let mut known: Vec<Option<Said>> =
            batches.iter().map(|batch| cache.read(batch).map(Said::from_cache)).collect();
        let mut missing: Vec<f64> = known.iter().map(|said| f64::from(u8::from(said.is_none()))).collect();
        if let Some(group) = groups.get(GroupKind::Model) {
            agreement::max(group, &mut missing)?;
        }
        known.iter_mut().zip(missing).filter(|(_, missing)| *missing > 0.0).for_each(|(said, _)| *said = None);
        Ok(known)
    }

    /// Caches the teacher's outputs, on one of the ranks that have them.
    fn write(&self, groups: &ProcessGroups, batch: &Batch, said: &Said) -> Result<(), CommonError> {
        match (&self.cache, said.best()) {
            (Some(cache), Some(best)) if groups.tensor().rank() == 0 => cache.write(batch, best),
            _ => Ok(()),
        }
    }
}
