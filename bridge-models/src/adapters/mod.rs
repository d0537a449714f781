//! Adapters: low-rank branches (LoRA) at linear layers, with learned lengths of the rows (DoRA),
//! and the same in `peft`'s format.
//!
//! | file | what it has |
//! | --- | --- |
//! | `parts` | the parts of a fused layer, such as queries, keys and values, each of which may have a branch of its own |
//! | `lora` | [`LowRankAdapter`]: which parameters a layer gets, and what is made of them |
//! | `dora` | the lengths of rows |
//! | `matcher` | `[peft]` of recipes: layers by name |
//! | `merge` | merging of branches into weights |
//! | `trained` | [`TrainedAdapter`]: branches whose values a checkpoint has |
//! | `several` | [`AdapterSet`]: adapters by name on one base |
//! | `peft_format` | [`PeftAdapter`]: folders of the `peft` library |
//!
//! Adapters implement `bridge_core::model::Adapter`. No kind of model and no rank layout belongs
//! here.

mod dora;
mod error;
mod lora;
mod matcher;
mod merge;
mod parts;
mod peft_format;
mod several;
#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
mod trained;

pub use error::AdapterError;
pub use lora::{Branch, Dropout, DropoutPlace, LowRankAdapter, Targets};
pub use matcher::{low_rank_adapter, usual_targets};
pub use peft_format::{NamedGradient, PeftAdapter, PeftOptions};
pub use several::{AdapterRequest, AdapterSet, SetError};
pub use trained::{ReadValues, TrainedAdapter};
