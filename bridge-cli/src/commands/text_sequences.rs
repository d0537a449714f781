//! Text as sequences to evaluate, read and tokenized lazily.

use std::collections::VecDeque;
use std::sync::Arc;

use bridge_data::Sample;
use bridge_data::source::{Documents, Text};
use bridge_data::tokenizer::Tokenizer;

use crate::failure::Failure;

/// Sequences of `seq_length` tokens in which every token of the text except the first is predicted
/// once. The last one is padded, unless it is the only one; padding does not count.
pub struct TextSequences {
    documents: Documents,
    tokenizer: Arc<dyn Tokenizer>,
    seq_length: usize,
    /// Tokens that have been read but not all predicted yet: the next sequence begins with the
    /// first of them.
    tokens: VecDeque<i64>,
    is_first: bool,
}

impl TextSequences {
    /// Sequences of the documents' text, each ended by the tokenizer's end-of-document token.
    pub fn new(documents: Documents, tokenizer: Arc<dyn Tokenizer>, seq_length: usize) -> Self {
        Self { documents, tokenizer, seq_length, tokens: VecDeque::new(), is_first: true }
    }

    /// Reads another document; false at the end.
    fn read_document(&mut self) -> Result<bool, Failure> {
        let Some(document) = self.documents.next() else { return Ok(false) };
        let document = document.map_err(Failure::input)?;
        let name = document.name();
        match document.into_text().map_err(Failure::input)? {
            Text::Valid(text) => {
                self.tokens.extend(self.tokenizer.encode(&text).map_err(Failure::input)?);
                self.tokens.extend(self.tokenizer.eod());
            }
            Text::Empty => {}
            Text::NoText(what) => eprintln!("warning: {name}: skipped, because it is {what}"),
        }
        Ok(true)
    }
}

impl Iterator for TextSequences {
    type Item = Result<Sample, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.tokens.len() <= self.seq_length {
            match self.read_document() {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => return Some(Err(failure)),
            }
        }
        let predicted = self.tokens.len().saturating_sub(1).min(self.seq_length);
        if predicted == 0 {
            return None;
        }
        let length = if self.is_first { predicted } else { self.seq_length };
        self.is_first = false;
        let padded = |ids: &mut dyn Iterator<Item = &i64>| -> Vec<i64> {
            ids.copied().chain(std::iter::repeat(0)).take(length).collect()
        };
        let sample = Sample {
            tokens: padded(&mut self.tokens.iter().take(predicted)),
            labels: padded(&mut self.tokens.iter().skip(1).take(predicted)),
            loss_mask: (0..length).map(|position| if position < predicted { 1.0 } else { 0.0 }).collect(),
            position_ids: (0..length as i64).collect(),
            document_ids: None,
            extras: Default::default(),
        };
        self.tokens.drain(..predicted);
        Some(Ok(sample))
    }
}

#[cfg(test)]
mod tests {
    use bridge_data::source::{SourceParams, TextSource};
    use bridge_data::tokenizer::NullTokenizer;

    use super::*;

    fn sequences(folder: &std::path::Path, seq_length: usize) -> Vec<Sample> {
        let inputs = vec![folder.join("*.txt").display().to_string()];
        let source = TextSource::resolve(&SourceParams { inputs, ..SourceParams::default() }).unwrap();
        // The end of a document is 9.
        let tokenizer = Arc::new(NullTokenizer::new(9));
        TextSequences::new(source.documents().unwrap(), tokenizer, seq_length).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn every_token_but_the_first_is_predicted_once() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", &b"1 2 3"[..]), ("b", b""), ("c", b"\xff\xfe"), ("d", b"4 5 6 7 8")] {
            std::fs::write(folder.path().join(format!("{name}.txt")), bytes).unwrap();
        }
        let all = [1, 2, 3, 9, 4, 5, 6, 7, 8, 9];
        for seq_length in 1..12 {
            let samples = sequences(folder.path(), seq_length);
            assert_eq!(samples.len(), 9_usize.div_ceil(seq_length), "{seq_length}");
            let counted = |of: fn(&Sample) -> &Vec<i64>| -> Vec<i64> {
                let of_sample = |s| of(s).iter().zip(&s.loss_mask).filter(|(_, m)| **m == 1.0).map(|(id, _)| *id);
                samples.iter().flat_map(of_sample).collect()
            };
            assert_eq!(counted(|s| &s.tokens), all[..9], "{seq_length}");
            assert_eq!(counted(|s| &s.labels), all[1..], "{seq_length}");
            assert!(samples.iter().all(|s| s.tokens.len() == seq_length.min(9)), "{seq_length}");
        }
    }

    #[test]
    fn one_token_predicts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "").unwrap();
        assert!(sequences(folder.path(), 4).is_empty());
    }
}
