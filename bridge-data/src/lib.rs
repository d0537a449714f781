//! Data: from text and token files to micro-batches, in Megatron's formats and sample order.
//! Tensors, models, losses and configuration types do not belong here.
//!
//! | step | module |
//! |---|---|
//! | text files, JSON Lines, standard input | [`source`] |
//! | text to ids and back | [`tokenizer`] |
//! | tokenized into `.bin`/`.idx` | [`pack`], [`indexed`] |
//! | files from outside, opened, sized and made anew | [`untrusted_io`] |
//! | JSON as Python writes it | [`python_json`] |
//! | samples of a fixed length, blends, mock data | [`gpt`] |
//! | conversations to text and ids (feature `finetuning`) | `chat` |
//! | examples of fine-tuning (feature `finetuning`) | `sft` |
//! | which samples a rank reads next | [`sampler`] |
//! | prefetched micro-batches | [`loader`] |

mod atomic;
#[cfg(feature = "finetuning")]
pub mod chat;
pub mod dataset;
mod error;
mod examples_report;
pub mod extra;
pub mod gpt;
pub mod indexed;
mod json_text;
pub mod loader;
pub mod manifest;
mod npy;
pub mod pack;
pub mod python_json;
pub mod random;
mod readable;
pub mod sampler;
#[cfg(feature = "finetuning")]
pub mod sft;
pub mod source;
pub mod tokenizer;
pub mod untrusted_io;

pub use dataset::{
    BuildEvent, BuildObserver, DataParallel, Dataset, DatasetBuildContext, DatasetProvider, Datasets, FetchOrder,
    Filling, LoaderRequest, Sample, Silent, ValidSet,
};
pub use error::DataError;
pub use examples_report::ExamplesReport;
pub use extra::{ENCODER_MASK, ENCODER_TOKENS, Extra, ExtraCut, ExtraValues, Extras, PADDING};
pub use loader::{DataLoader, MicroBatch, MicroBatches, SequencePart};
pub use readable::write_with_causes;

readable_errors!(DataError, tokenizer::TokenizerError);
#[cfg(feature = "finetuning")]
readable_errors!(chat::ChatError);
