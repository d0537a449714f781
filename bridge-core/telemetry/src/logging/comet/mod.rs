//! Runs in Comet's offline archives, which `comet upload` sends: a ZIP file with the run's
//! messages, a line each, and its files. No server is contacted.

mod archive;
mod messages;

pub(super) use archive::{Archive, Asset};
pub(super) use messages::{Experiment, Messages, key_of, step_of_line};

#[cfg(test)]
pub(super) mod tests;
