//! Models small enough for unit tests of the loop, and the loop around one micro-batch.

mod micro_step;
mod toy;
mod two_stacks;

pub use micro_step::{Closures, forward_backward};
pub use toy::*;
pub use two_stacks::{STACKS, source_and_target, two_stacks};
