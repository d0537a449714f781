//! Source of each parameter of a run. Checkpoints of a run with `[peft]` hold trained parameters;
//! all others come from the base.

use std::collections::BTreeSet;

use bridge_dist::mesh::ProcessGroups;

use super::base::{AdapterBase, open_base_together};
use super::restore::load_from;
use super::start::Start;
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::model::{Declaration, ModelChunk, ParameterRole};
use crate::train::resume::error::ResumeError;

/// Checkpoints by parameter.
pub(super) struct Sources<'a> {
    checkpoint: &'a Checkpoint,
    /// The base of the adapter that `checkpoint` is of.
    base: Option<Checkpoint>,
    /// True if `checkpoint` is the base of a new adapter.
    begins: bool,
    /// True if a run starts with the weights of `checkpoint`, rather than resuming from it.
    weights_only: bool,
    /// Parameters that are nowhere, and keep their initial values.
    absent: BTreeSet<String>,
}

impl<'a> Sources<'a> {
    /// Sources of a run that starts with `start`. All ranks call this together.
    pub fn new(config: &RunConfig, start: &'a Start, groups: &ProcessGroups) -> Result<Self, ResumeError> {
        let checkpoint = &start.checkpoint;
        let begins = config.peft.is_some() && start.is_pretrained;
        let root = start.pretrained_root.as_deref().filter(|_| config.peft.is_some() && !begins);
        let base = root.map(|root| open_base_together(root, checkpoint, groups)).transpose()?;
        Ok(Self { checkpoint, base, begins, weights_only: start.weights_only, absent: BTreeSet::new() })
    }

    /// Lets parameters keep their initial values.
    pub fn leave<'n>(&mut self, names: impl IntoIterator<Item = &'n String>) {
        self.absent.extend(names.into_iter().cloned());
    }

    /// Checkpoint of a parameter; `None` for one with an initial value.
    pub fn checkpoint_for(&self, declaration: &Declaration) -> Option<&Checkpoint> {
        if self.absent.contains(&declaration.name) {
            return None;
        }
        // The history of 8-bit scales starts anew if it is missing, or has another length.
        if declaration.role == ParameterRole::CastState {
            let found = self.checkpoint.tensor(&declaration.name);
            let fits = found.is_ok_and(|tensor| tensor.shape == declaration.global_shape());
            return fits.then_some(self.checkpoint);
        }
        match &self.base {
            Some(base) if !declaration.trainable => Some(base),
            Some(_) | None if self.begins && declaration.of_adapter => None,
            // A head that a program has put in place of the projection of these weights; those of a
            // model that had it bring it.
            Some(_) | None if self.weights_only && declaration.of_last_layer => {
                self.checkpoint.tensor(&declaration.name).is_ok().then_some(self.checkpoint)
            }
            Some(_) | None => Some(self.checkpoint),
        }
    }

    /// The base of an adapter that begins.
    pub fn beginning(&self) -> Option<&Checkpoint> {
        self.begins.then_some(self.checkpoint)
    }

    /// Reference to the base in checkpoints, if there is one.
    pub fn adapter_base(&self) -> Option<AdapterBase> {
        self.base.as_ref().or(self.beginning()).map(AdapterBase::from_checkpoint)
    }
}

/// Loads a model on one rank from a checkpoint of its adapter, and the base of that.
///
/// # Errors
/// If a parameter is missing, or has another shape; the chunk must then not be used.
pub fn load_adapted(chunk: &mut dyn ModelChunk, checkpoint: &Checkpoint, base: &Checkpoint) -> Result<(), ResumeError> {
    let of = |declaration: &Declaration| Some(if declaration.trainable { checkpoint } else { base });
    Ok(load_from(chunk, &of)?)
}

/// Loads the trained parameters of a model with an adapter on one rank from a checkpoint of the
/// adapter; all others keep their values.
///
/// # Errors
/// As [`load_adapted`].
pub fn load_adapter(chunk: &mut dyn ModelChunk, checkpoint: &Checkpoint) -> Result<(), ResumeError> {
    Ok(load_from(chunk, &|declaration| declaration.trainable.then_some(checkpoint))?)
}
