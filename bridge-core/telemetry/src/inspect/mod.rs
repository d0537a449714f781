//! Statistics of tensors (`[tensor_inspect]`): which are taken of what and when, and what they are.
//! Plain numbers: who has the tensors hands them in.

mod inspector;
mod statistics;

pub use bridge_config::tensor_features::{FeatureError, Rule, Statistic, TensorKind, rules};
pub use inspector::{Gathered, Inspector, of_all};
pub use statistics::Statistics;
