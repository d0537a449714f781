//! Model FLOPs and tokens of a step whose sequences have lengths of their own, as those of
//! fine-tuning have.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridge_data::{ENCODER_TOKENS, MicroBatch};

use crate::model::{Adapter, ModelConfig, Outline, Stage, Workload};

/// Model FLOPs of sequences by their length.
pub(in crate::train) struct SequenceFlops {
    model: Box<dyn ModelConfig>,
    adapter: Option<Arc<dyn Adapter>>,
    padded_vocab_size: usize,
    /// True if a reference model runs forward over each sequence too.
    has_reference: bool,
    by_length: BTreeMap<usize, Option<f64>>,
}

impl SequenceFlops {
    /// Counts for `model`; `outline` is that of sequences of `length` tokens.
    pub fn new(
        model: Box<dyn ModelConfig>,
        adapter: Option<Arc<dyn Adapter>>,
        padded_vocab_size: usize,
        has_reference: bool,
        length: usize,
        outline: &Outline,
    ) -> Self {
        let by_length = BTreeMap::from([(length, flops(outline, has_reference))]);
        Self { model, adapter, padded_vocab_size, has_reference, by_length }
    }

    /// FLOPs of forward and backward over one sequence of `length` tokens; `None` if the model does
    /// not count them.
    pub fn for_length(&mut self, length: usize) -> Option<f64> {
        if let Some(known) = self.by_length.get(&length) {
            return *known;
        }
        let work = Workload::sequence(length, self.padded_vocab_size);
        let outline = self.model.builder().outline(&work, &Stage::whole(self.model.stacks()), self.adapter.clone());
        let found = outline.ok().and_then(|outline| flops(&outline, self.has_reference));
        self.by_length.insert(length, found);
        found
    }
}

fn flops(outline: &Outline, has_reference: bool) -> Option<f64> {
    // Backward costs twice as much as forward, minus the gradients of frozen weights.
    let forward =
        || Some(outline.costs.as_ref()?.iter().map(|cost| (cost.flops + cost.skipped_flops) / 3.0).sum::<f64>());
    Some(outline.flops()? + if has_reference { forward()? } else { 0.0 })
}

/// Number of sequences by their length, with padding.
#[derive(Clone, Debug, Default)]
pub(in crate::train) struct SequenceLengths {
    by_length: BTreeMap<usize, u64>,
    /// Tokens of all sequences, an encoder's too.
    pub tokens: u64,
}

impl SequenceLengths {
    /// Adds the sequences of a micro-batch, of which each sample holds `per_sample` in turn.
    pub fn add(&mut self, micro_batch: &MicroBatch, per_sample: usize) {
        let sequences = micro_batch.batch_size * per_sample;
        *self.by_length.entry(micro_batch.seq_length / per_sample).or_default() += sequences as u64;
        let encoded = micro_batch.extras.get(ENCODER_TOKENS).map_or(0, |tokens| tokens.shape.iter().product());
        self.tokens += (micro_batch.tokens.len() + encoded) as u64;
    }

    /// FLOPs of all sequences.
    pub fn flops(&self, flops: &mut SequenceFlops) -> Option<f64> {
        self.by_length.iter().map(|(length, count)| Some(flops.for_length(*length)? * *count as f64)).sum()
    }
}

#[cfg(test)]
mod tests {
    use bridge_data::{Extra, Extras};

    use super::*;

    #[test]
    fn tokens_of_both_stacks_and_both_answers_count() {
        let mut lengths = SequenceLengths::default();
        let batch = |tokens: usize| MicroBatch {
            tokens: vec![0; 2 * tokens],
            batch_size: 2,
            seq_length: tokens,
            ..MicroBatch::default()
        };
        lengths.add(&batch(16), 2);
        let encoder = Extra { shape: vec![2, 24], ..Extra::ints(vec![0; 48], &[48]) };
        lengths.add(&MicroBatch { extras: Extras::from([(ENCODER_TOKENS.to_owned(), encoder)]), ..batch(8) }, 1);
        assert_eq!(lengths.tokens, 32 + 16 + 48);
        assert_eq!(lengths.by_length, BTreeMap::from([(8, 4 + 2)]));
    }
}
