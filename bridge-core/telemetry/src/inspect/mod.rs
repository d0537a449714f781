//! Statistics of tensors (`[tensor_inspect]`): selection of tensors and steps, and computation.
//! Plain numbers: owners of tensors pass their values in.

mod inspector;
mod statistics;

pub use bridge_config::tensor_features::{FeatureError, Rule, Statistic, TensorKind, rules};
pub use inspector::{Gathered, Inspector, of_all};
pub use statistics::Statistics;
