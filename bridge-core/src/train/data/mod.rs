//! Data of a run: text, tokenizers, datasets, and their fingerprints.

pub(in crate::train) mod data_errors;
pub(in crate::train) mod data_events;
pub(in crate::train) mod data_identity;
pub(in crate::train) mod data_lengths;
pub(in crate::train) mod error;
pub(in crate::train) mod gpt_data;
pub(in crate::train) mod input_fingerprints;
pub(in crate::train) mod inputs;
pub(in crate::train) mod model_tokenizer;
pub(in crate::train) mod registry;
pub(in crate::train) mod run_data;
pub(in crate::train) mod sft_data;
pub(in crate::train) mod text;
pub(in crate::train) mod token_bytes;
pub(in crate::train) mod tokenizers;
