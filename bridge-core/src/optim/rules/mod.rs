//! Optimizer rules: the list of all, and what a rule declares (`rule`). A rule is a file of this
//! folder and a line of the list; nothing outside its file knows its name, its settings or its
//! states.

mod rule;
#[cfg(test)]
pub(super) mod tests;

pub use bridge_kernels::optim::{Format, MasterFormat};
pub use rule::{
    Algorithm, ReducedUpdate, ReducedValues, Rule, Start, State, StateFormats, StateShape, Unit, Update, UpdateBatch,
    UpdateSize, UpdateStep, Values,
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
}

/// The names of all rules, in their order.
pub const NAMES: &[&str] = &{
    let mut names = [""; RULES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = RULES[index].name;
        index += 1;
    }
    names
};

/// The rule of a name.
pub fn named(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

/// True if a setting of `[optimizer]` belongs to some rule alone.
pub fn have_setting(setting: &str) -> bool {
    RULES.iter().any(|rule| rule.settings.contains(&setting))
}
