//! Inputs of a model for a comparison with reference values.

use bridge_core::model::Batch;
use bridge_data::{ENCODER_MASK, ENCODER_TOKENS, Extra, ExtraCut, ExtraValues, Extras, MicroBatch};
use burn::tensor::Device;

/// Token ids of one batch, or of all steps.
#[derive(Clone)]
pub(super) struct Ids {
    pub shape: [usize; 2],
    pub values: Vec<i64>,
}

/// Inputs of a model.
pub(super) struct Inputs {
    pub ids: Ids,
    /// For a model with an encoder, the labels of its decoder, and the decoder's start token.
    pub labels: Option<(Ids, i64)>,
}

/// Label of tokens that the loss ignores.
pub(super) const IGNORED: i64 = -100;

impl Inputs {
    pub fn batch(&self, device: &Device) -> Batch {
        let Some((labels, _)) = &self.labels else { return self.ids.batch(device) };
        let [batch_size, seq_length] = labels.shape;
        let extra = |values| Extra { values, shape: self.ids.shape.to_vec(), cut: ExtraCut::Whole };
        let mask = vec![1.0; self.ids.values.len()];
        let micro_batch = MicroBatch {
            tokens: self.decoder_tokens().values,
            labels: labels.values.iter().map(|label| if *label == IGNORED { 0 } else { *label }).collect(),
            loss_mask: labels.values.iter().map(|label| if *label == IGNORED { 0.0 } else { 1.0 }).collect(),
            position_ids: (0..batch_size).flat_map(|_| 0..seq_length as i64).collect(),
            batch_size,
            seq_length,
            extras: Extras::from([
                (ENCODER_TOKENS.to_owned(), extra(ExtraValues::Ints(self.ids.values.clone()))),
                (ENCODER_MASK.to_owned(), extra(ExtraValues::Floats(mask))),
            ]),
            ..MicroBatch::default()
        };
        Batch::new(&micro_batch, device)
    }

    /// Tokens whose next-token logits are compared: the ids, or the decoder's inputs, which are its
    /// labels shifted by one.
    pub fn decoder_tokens(&self) -> Ids {
        let Some((labels, start)) = &self.labels else { return self.ids.clone() };
        let length = labels.shape[1];
        let shifted =
            labels.values.chunks(length).flat_map(|row| [*start].into_iter().chain(row[..length - 1].to_vec()));
        // Ignored labels become the decoder's start token, which is the padding of these models.
        let values = shifted.map(|id| if id == IGNORED { *start } else { id }).collect();
        Ids { shape: labels.shape, values }
    }
}

impl Ids {
    pub fn steps(&self) -> usize {
        self.values.len() / (self.shape[0] * self.shape[1])
    }

    pub fn of_step(&self, number: usize) -> Self {
        let count = self.shape[0] * self.shape[1];
        Self { shape: self.shape, values: self.values[number * count..(number + 1) * count].to_vec() }
    }

    /// The batch whose labels are the next tokens; the last position of each sequence has none.
    pub fn batch(&self, device: &Device) -> Batch {
        let [batch_size, seq_length] = self.shape;
        let rows = || self.values.chunks(seq_length);
        let labels = rows().flat_map(|row| row[1..].iter().copied().chain([0])).collect();
        let loss_mask = rows().flat_map(|row| (0..row.len()).map(|i| if i + 1 < row.len() { 1.0 } else { 0.0 }));
        let micro_batch = MicroBatch {
            tokens: self.values.clone(),
            labels,
            loss_mask: loss_mask.collect(),
            position_ids: rows().flat_map(|row| 0..row.len() as i64).collect(),
            batch_size,
            seq_length,
            ..MicroBatch::default()
        };
        Batch::new(&micro_batch, device)
    }
}
