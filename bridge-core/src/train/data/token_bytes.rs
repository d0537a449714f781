//! Bytes of text of each token, for bits per byte.

use bridge_data::MicroBatch;
use bridge_data::tokenizer::Tokenizer;

/// Bytes of text of each token id.
#[derive(Clone, Debug)]
pub struct TokenBytes {
    /// `None` if the tokenizer does not know the bytes of an id.
    lengths: Vec<Option<u32>>,
}

impl TokenBytes {
    /// The table of a tokenizer.
    pub fn new(tokenizer: &dyn Tokenizer) -> Self {
        let length = |id: usize| tokenizer.id_to_bytes(id as i64).map(|bytes| bytes.len() as u32);
        Self { lengths: (0..tokenizer.vocab_size()).map(length).collect() }
    }

    /// Bytes that the counted labels of a micro-batch stand for; `None` if the bytes of one of them
    /// are unknown.
    pub fn of_labels(&self, micro_batch: &MicroBatch) -> Option<u64> {
        let counted = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask > 0.0);
        counted.map(|(label, _)| self.lengths.get(usize::try_from(*label).ok()?).copied()?.map(u64::from)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bridge_data::tokenizer::{BpeTrainParams, NullTokenizer, train_byte_level_bpe};

    fn micro_batch(labels: &[i64], loss_mask: &[f32]) -> MicroBatch {
        MicroBatch { labels: labels.to_vec(), loss_mask: loss_mask.to_vec(), ..MicroBatch::default() }
    }

    #[test]
    fn only_counted_labels_have_bytes() {
        let params = BpeTrainParams { vocab_size: 270, ..BpeTrainParams::default() };
        let text = "the thin thing there is this one";
        let tokenizer = train_byte_level_bpe(&params, [text.to_owned()].into_iter()).unwrap();
        let bytes = TokenBytes::new(&tokenizer);
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.len() < text.len(), "some tokens have more than one byte");
        assert_eq!(bytes.of_labels(&micro_batch(&ids, &vec![1.0; ids.len()])), Some(text.len() as u64));
        let first = tokenizer.id_to_bytes(ids[0]).unwrap().len() as u64;
        let mut mask = vec![0.0; ids.len()];
        mask[0] = 1.0;
        assert_eq!(bytes.of_labels(&micro_batch(&ids, &mask)), Some(first));
        // The end-of-document token has no text.
        assert_eq!(bytes.of_labels(&micro_batch(&[tokenizer.eod().unwrap()], &[1.0])), Some(0));
    }

    #[test]
    fn ids_that_stand_for_no_text_make_the_sum_unknown() {
        let bytes = TokenBytes::new(&NullTokenizer::new(7));
        assert_eq!(bytes.of_labels(&micro_batch(&[3, 4], &[1.0, 0.0])), None);
        assert_eq!(bytes.of_labels(&micro_batch(&[3, 4], &[0.0, 0.0])), Some(0));
        for unknown in [-1, 1000] {
            assert_eq!(bytes.of_labels(&micro_batch(&[unknown], &[1.0])), None);
        }
    }
}
