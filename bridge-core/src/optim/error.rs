//! Reasons for which there is no optimizer.

use bridge_dist::comm::CommError;

use crate::config::optimizer_rules::NAMES;

/// Reason for which there is no optimizer.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    /// An override names a rule that does not exist.
    #[error("the parameter {parameter} is given to the optimizer `{rule}`; expected one of {}", NAMES.join(", "))]
    UnknownRule {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        parameter: String,
    },
    /// A group has a value that its rule does not read.
    #[error(
        "optimizer_config_override_provider.rules: {setting} is set for the parameter {parameter}, whose optimizer \
         `{rule}` has no {setting}; leave {setting} out, or match only parameters of an optimizer that has it"
    )]
    NoSetting {
        /// Name of the value in recipes.
        setting: &'static str,
        /// The rule.
        rule: &'static str,
        /// The parameter.
        parameter: String,
    },
    /// A rule of matrices is given another parameter.
    #[error(
        "the optimizer `{rule}` updates matrices only: parameter {parameter} has shape {shape:?}, expected two dimensions; match it by no rule that sets this optimizer"
    )]
    NotMatrix {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        parameter: String,
        /// Shape of the parameter.
        shape: Vec<usize>,
    },
    /// Ranks cannot form groups that gather parameters.
    #[error(transparent)]
    Comm(#[from] CommError),
}
