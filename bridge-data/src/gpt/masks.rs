//! From raw tokens to a sample: labels, loss mask, positions, document numbers and padding.
//! Fetching the tokens belongs to the parent module.

use crate::DataError;
use crate::dataset::Sample;
use crate::extra::Extras;

/// Construction of samples from tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleOptions {
    /// Positions restart after each end-of-document token.
    pub reset_position_ids: bool,
    /// Tokens attend only within their document.
    pub reset_attention_mask: bool,
    /// The token after an end-of-document token is not predicted from it.
    pub eod_mask_loss: bool,
    /// One token more than the inputs is fetched, so that the last label is real.
    pub add_extra_token_to_sequence: bool,
    /// The validation split drops its last, incomplete sample.
    pub drop_last_partial_validation_sequence: bool,
    /// The pad token may equal end-of-document, as it is in the data.
    pub allow_ambiguous_pad_tokens: bool,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            reset_position_ids: false,
            reset_attention_mask: false,
            eod_mask_loss: false,
            add_extra_token_to_sequence: true,
            drop_last_partial_validation_sequence: true,
            allow_ambiguous_pad_tokens: false,
        }
    }
}

impl SampleOptions {
    /// Tokens fetched beyond the inputs.
    pub(crate) fn extra(&self) -> usize {
        usize::from(self.add_extra_token_to_sequence)
    }

    /// True if end-of-document tokens matter.
    pub(crate) fn needs_eod(&self) -> bool {
        self.reset_position_ids || self.reset_attention_mask || self.eod_mask_loss
    }
}

/// The ids for making samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpecialTokens {
    pub(crate) eod: Option<i64>,
    pub(crate) pad: i64,
}

impl SpecialTokens {
    /// Id that no data contains.
    const NO_PAD: i64 = -1;

    /// The pad id is the tokenizer's if it differs from end-of-document, otherwise one that no data
    /// contains.
    pub(crate) fn new(eod: Option<i64>, pad: Option<i64>, options: &SampleOptions) -> Self {
        let usable = pad.filter(|pad| options.allow_ambiguous_pad_tokens || Some(*pad) != eod);
        Self { eod, pad: usable.unwrap_or(Self::NO_PAD) }
    }
}

/// Makes a sample of up to `sequence_length` (+ extra) tokens.
pub(crate) fn make_sample(
    mut text: Vec<i64>,
    sequence_length: usize,
    options: &SampleOptions,
    special: &SpecialTokens,
) -> Result<Sample, DataError> {
    let full = sequence_length + options.extra();
    if text.len() > full {
        return Err(DataError::OutOfRange {
            what: "tokens of a sample (the index does not fit the data)".to_owned(),
            index: text.len(),
            len: full,
        });
    }
    text.resize(full, special.pad);
    let mut labels = text[1..].to_vec();
    if options.add_extra_token_to_sequence {
        text.pop();
    } else {
        labels.push(special.pad);
    }
    let mut tokens = text;

    let is_eod = |token: i64| Some(token) == special.eod;
    let mut loss_mask = vec![1.0f32; sequence_length];
    if options.eod_mask_loss {
        for (mask, _) in loss_mask.iter_mut().zip(&tokens).filter(|&(_, &token)| is_eod(token)) {
            *mask = 0.0;
        }
    }
    let position_ids = positions(&tokens, |token| options.reset_position_ids && is_eod(token));
    let document_ids = options.reset_attention_mask.then(|| {
        let mut document = 0;
        let number = |&token: &i64| {
            let this = document;
            document += i32::from(is_eod(token));
            this
        };
        tokens.iter().map(number).collect()
    });
    for (mask, _) in loss_mask.iter_mut().zip(&labels).filter(|&(_, &label)| label == special.pad) {
        *mask = 0.0;
    }
    // Padding must be an id of the embedding.
    for id in tokens.iter_mut().chain(&mut labels).filter(|id| **id == special.pad) {
        *id = 0;
    }
    Ok(Sample { tokens, labels, loss_mask, position_ids, document_ids, extras: Extras::new() })
}

fn positions(tokens: &[i64], ends: impl Fn(i64) -> bool) -> Vec<i64> {
    let mut next = 0;
    let position = |&token: &i64| {
        let this = next;
        next = if ends(token) { 0 } else { next + 1 };
        this
    };
    tokens.iter().map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIAL: SpecialTokens = SpecialTokens { eod: Some(9), pad: 7 };

    #[test]
    fn plain_sample() {
        let sample = make_sample(vec![1, 9, 3, 4, 5], 4, &SampleOptions::default(), &SPECIAL).expect("fits");
        let expected = Sample {
            tokens: vec![1, 9, 3, 4],
            labels: vec![9, 3, 4, 5],
            loss_mask: vec![1.0; 4],
            position_ids: vec![0, 1, 2, 3],
            document_ids: None,
            extras: Extras::new(),
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn document_ends_reset_everything_asked_for() {
        let options = SampleOptions {
            reset_position_ids: true,
            reset_attention_mask: true,
            eod_mask_loss: true,
            ..SampleOptions::default()
        };
        let sample = make_sample(vec![9, 1, 2, 9, 9, 3, 4], 6, &options, &SPECIAL).expect("fits");
        assert_eq!(sample.position_ids, [0, 0, 1, 2, 0, 0]);
        assert_eq!(sample.document_ids, Some(vec![0, 1, 1, 1, 2, 3]));
        assert_eq!(sample.loss_mask, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn short_text_is_padded_and_masked() {
        let sample = make_sample(vec![1, 2, 3], 4, &SampleOptions::default(), &SPECIAL).expect("fits");
        assert_eq!(sample.tokens, [1, 2, 3, 0]);
        assert_eq!(sample.labels, [2, 3, 0, 0]);
        assert_eq!(sample.loss_mask, [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn without_an_extra_token_the_last_label_is_padding() {
        let options = SampleOptions { add_extra_token_to_sequence: false, ..SampleOptions::default() };
        let sample = make_sample(vec![1, 2, 3, 4], 4, &options, &SPECIAL).expect("fits");
        assert_eq!(sample.tokens, [1, 2, 3, 4]);
        assert_eq!(sample.labels, [2, 3, 4, 0]);
        assert_eq!(sample.loss_mask, [1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_pad_id_is_never_end_of_document_unless_allowed() {
        let options = SampleOptions::default();
        assert_eq!(SpecialTokens::new(Some(9), Some(9), &options).pad, -1);
        assert_eq!(SpecialTokens::new(Some(9), None, &options).pad, -1);
        assert_eq!(SpecialTokens::new(Some(9), Some(3), &options).pad, 3);
        let ambiguous = SampleOptions { allow_ambiguous_pad_tokens: true, ..options };
        assert_eq!(SpecialTokens::new(Some(9), Some(9), &ambiguous).pad, 9);
    }

    #[test]
    fn too_many_tokens_are_an_error() {
        assert!(make_sample(vec![1; 6], 4, &SampleOptions::default(), &SPECIAL).is_err());
    }
}
