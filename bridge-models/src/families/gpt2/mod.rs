//! GPT-2: settings and table of weights. Its linear layers are `Conv1D`s, which store a row an input.

mod config;

pub(crate) use config::{RULES, decoder_config, settings};
