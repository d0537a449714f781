//! Optimizer rules: the list of all, and the declaration of a rule (`rule`). `orthogonal` has what
//! the rules of orthogonalized updates share. A rule is a file of this folder and a line of the
//! list, and names its settings in
//! [`optimizer_rules`](crate::config::optimizer_rules); no other code knows its states.

#[cfg(test)]
mod matrix_tests;
mod orthogonal;
mod rule;
#[cfg(test)]
pub(super) mod tests;

use crate::config::OptimizerName;
pub use bridge_kernels::optim::{Format, MasterFormat, UpdateStep};
pub use rule::{
    AVERAGE, Algorithm, LowPrecisionUpdate, LowPrecisionValues, Rule, Start, State, StateFormats, StateShape, Unit,
    Update, UpdateBatch, Values, WholeParameter,
};

/// Each name is a file of this folder, with its declaration as `RULE`.
macro_rules! rules {
    ($($file:ident,)+) => {
        $(mod $file;)+

        /// All rules, the default first.
        pub const RULES: &[Rule] = &[$($file::RULE,)+];
    };
}

rules! {
    adamw,
    sgd,
    lion,
    muon,
    adaptive_muon,
    soap,
    ademamix,
    adamw_8bit,
    adamw_4bit,
    schedule_free_adamw,
    adafactor,
}

/// The rule of a name.
pub fn named(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.declared.name == name)
}

/// Update rule of an optimizer name in a finalized configuration.
///
/// # Panics
/// Never: each rule that recipes can name has its file, as a test says.
pub fn find(name: OptimizerName) -> &'static Rule {
    named(name.as_str()).expect("a finalized optimizer has a rule")
}
