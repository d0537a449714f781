//! Fine-tuning on examples: prompts with their answers, and conversations. Lines of files become
//! tokens with a weight for each, once, in a store that samples are read from. Training on samples
//! does not belong here.
//!
//! | step | file |
//! |---|---|
//! | the files of a split, record by record | `files` |
//! | rows of Arrow files, items of JSON lists | `arrow`, `json_values` |
//! | fields of a record, and which of them were used | `fields` |
//! | the spellings of records, preferences, messages and calls | `spellings`, `preferences`, `messages`, `calls` |
//! | a record to token ids and weights | `example`, `ids`, `prompt` |
//! | which files hold examples, and splits made of them | `survey` |
//! | examples made of documented Rust functions | `rust_docs` |
//! | all records of a split, in threads | `prepare` |
//! | the resulting store on disk | `store` |
//! | which examples share a sequence | `packing` |
//! | samples in their order | `dataset` |
//! | settings of a recipe, and the provider that combines the steps | `params`, `provider` |

mod arrow;
mod calls;
mod dataset;
mod example;
mod fields;
mod files;
#[cfg(test)]
mod hostile_tests;
mod ids;
mod json_values;
mod messages;
mod packing;
mod params;
mod parquet_rows;
#[cfg(test)]
mod preference_tests;
mod preferences;
mod prepare;
mod prompt;
mod provider;
#[cfg(test)]
mod records_tests;
#[cfg(test)]
mod remarks_tests;
mod rust_docs;
mod spellings;
mod store;
mod survey;
mod table;
#[cfg(test)]
mod tests;

pub use files::records;
pub use params::{
    BadLine, EpochOrder, ExampleOptions, Packing, PackingAlgorithm, RecordKind, SftParams, TRUNCATED_FIELD,
    TruncationMethod,
};
pub use provider::SftProvider;
pub use rust_docs::{DocsReport, Documented, documented_functions, make_examples};
pub use survey::{ExampleKind, SplitCounts, divide, examples_of, is_part_of_example, splits_of};
