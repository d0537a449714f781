//! Inputs of steps: data, and facts about its tokens.

use std::collections::BTreeMap;

use bridge_data::MicroBatch;
use bridge_dist::mesh::ProcessGroups;
use bytes::Bytes;

use crate::checkpoint::ShardTensor;
use crate::timers::{TimerLevel, Timers};
use crate::train::data::error::InputError;
use crate::train::data::run_data::RunData;
use crate::train::ranks::agreement;

/// The data of a run on this rank.
pub(in crate::train) struct Inputs {
    pub data: RunData,
    /// The tokenizer's files, as they are saved with each checkpoint.
    pub tokenizer_files: BTreeMap<String, Bytes>,
    /// Tensors beside the model that checkpoints carry along, on rank 0.
    pub carried: Vec<ShardTensor>,
    /// Record of the run and its data in checkpoints.
    pub lineage: serde_json::Value,
    /// Rows of the model's embedding.
    pub padded_vocab_size: usize,
}

impl Inputs {
    /// The next `count` micro-batches of a step, in order, of a run that has consumed `consumed`
    /// samples. All ranks call this together.
    pub fn next_micro_batches(
        &mut self,
        groups: &ProcessGroups,
        timers: &Timers,
        count: u64,
        consumed: u64,
    ) -> Result<Vec<MicroBatch>, InputError> {
        let _timer = timers.start("batch-generator", TimerLevel::MicroBatch);
        let batches = self.data.next_train(count, consumed).and_then(|batches| {
            batches.iter().try_for_each(|batch| self.check_ids(batch))?;
            Ok(batches)
        });
        agreement::agree(groups, "reading training data", batches)
    }

    /// Refuses token ids that the model has no row for.
    pub fn check_ids(&self, micro_batch: &MicroBatch) -> Result<(), InputError> {
        let known = 0..self.padded_vocab_size as i64;
        let labels = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask != 0.0);
        let mut ids = micro_batch.tokens.iter().chain(labels.map(|(label, _)| label));
        match ids.find(|id| !known.contains(id)) {
            None => Ok(()),
            Some(id) => Err(InputError::UnknownToken { id: *id, vocab_size: self.padded_vocab_size }),
        }
    }
}
