//! For tests: checks of models for their authors, and models small enough for unit tests of the loop.

#[cfg(test)]
mod micro_step;
mod segments;
#[cfg(test)]
mod toy;
#[cfg(test)]
mod two_stacks;

#[cfg(test)]
pub use micro_step::{Closures, forward_backward};
pub use segments::check_segments;
#[cfg(test)]
pub use toy::*;
#[cfg(test)]
pub use two_stacks::{STACKS, source_and_target, two_stacks};
