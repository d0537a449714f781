//! Runs in Comet's offline archives, which `comet upload` sends: a ZIP file with the run's messages, a line each, and its files. Nothing here asks a
//! server.

mod archive;
mod messages;

pub(super) use archive::{Archive, Asset};
pub(super) use messages::{Messages, Experiment, key_of, step_of_line};

#[cfg(test)]
mod tests;
