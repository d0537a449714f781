//! Report on the records of fine-tuning data, sent while datasets are built.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Report on the records of a split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExamplesReport {
    /// Files, by the name of the first.
    pub source: String,
    /// `train`, `valid` or `test`.
    pub split: String,
    /// Examples.
    pub examples: u64,
    /// Tokens of the examples.
    pub tokens: u64,
    /// Tokens that count for the loss.
    pub counted: u64,
    /// Bytes of the records.
    pub bytes: u64,
    /// Checksum of the records in their order, wherever their files lie.
    pub digest: String,
    /// Examples of which something was cut off.
    pub truncated: u64,
    /// Records of which nothing counts for the loss, left out.
    pub without_loss: u64,
    /// Examples whose answer is empty or blank.
    pub blank: u64,
    /// Examples with tool calls that the chat template does not write.
    pub lost_calls: u64,
    /// Examples whose last answer ends without a token that tells so, because the chat template
    /// writes none.
    #[serde(default)]
    pub unended: u64,
    /// Preferences whose two answers are the same.
    pub ties: u64,
    /// Preferences whose two answers have different messages of the user.
    #[serde(default)]
    pub differing: u64,
    /// Fields that nothing used, with the number of records that have them.
    #[serde(default)]
    pub unused: BTreeMap<String, u64>,
    /// Lines that are not examples, skipped as the recipe says.
    pub skipped: u64,
    /// Problems of the first skipped records.
    pub reasons: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// True if an earlier result was reused.
    #[serde(skip)]
    pub reused: bool,
}

/// Most names of fields that a report counts; records may have names of their own without end.
#[cfg(feature = "finetuning")]
const MOST_FIELDS: usize = 1000;
/// Names of fields that a report shows.
const SHOWN_FIELDS: usize = 20;

impl ExamplesReport {
    /// Names of the fields that nothing used, in words, the most frequent first.
    pub fn unused_fields(&self) -> Option<String> {
        let mut fields: Vec<_> = self.unused.iter().collect();
        fields.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let shown: Vec<String> =
            fields.iter().take(SHOWN_FIELDS).map(|(field, count)| format!("`{field}` (in {count})")).collect();
        let more = fields.len().saturating_sub(SHOWN_FIELDS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!shown.is_empty()).then(|| format!("fields that nothing used: {}{more}", shown.join(", ")))
    }

    /// Counts the fields of a record that nothing used.
    #[cfg(feature = "finetuning")]
    pub(crate) fn note_unused(&mut self, fields: Vec<String>) {
        for field in fields {
            if let Some(count) = self.unused.get_mut(&field) {
                *count += 1;
            } else if self.unused.len() < MOST_FIELDS {
                self.unused.insert(field, 1);
            }
        }
    }

    /// True if a part of the files is not in the examples, or if examples teach something unwanted.
    pub fn lacks(&self) -> bool {
        let counts = [
            self.truncated,
            self.without_loss,
            self.blank,
            self.lost_calls,
            self.unended,
            self.ties,
            self.differing,
            self.skipped,
        ];
        !self.unused.is_empty() || counts.iter().any(|count| *count > 0)
    }
}

impl fmt::Display for ExamplesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, split, examples, tokens, counted, .. } = self;
        write!(f, "{source}: {examples} {split} examples, {tokens} tokens, of which {counted} count for the loss")?;
        if self.truncated > 0 {
            write!(f, "; {} truncated", self.truncated)?;
        }
        if self.without_loss > 0 {
            write!(f, "; {} left out, because nothing of them counts", self.without_loss)?;
        }
        if self.blank > 0 {
            write!(f, "; {} with an empty answer, which teach the model to end at once", self.blank)?;
        }
        if self.lost_calls > 0 {
            write!(f, "; {} with tool calls, which the chat template does not write", self.lost_calls)?;
        }
        if self.unended > 0 {
            let count = self.unended;
            write!(
                f,
                "; {count} with an answer at the end of which the chat template writes no token that ends a turn: the model does not learn to stop there"
            )?;
        }
        if self.ties > 0 {
            write!(f, "; {} with both answers the same, which teach nothing", self.ties)?;
        }
        if self.differing > 0 {
            let count = self.differing;
            write!(
                f,
                "; {count} whose two answers have different messages of the user, so that they answer other prompts"
            )?;
        }
        if let Some(fields) = self.unused_fields() {
            write!(f, "; {fields}")?;
        }
        if self.skipped > 0 {
            write!(f, "; {} bad lines skipped: {}", self.skipped, self.reasons.join("; "))?;
            if self.skipped > self.reasons.len() as u64 {
                f.write_str("; ...")?;
            }
        }
        Ok(())
    }
}
