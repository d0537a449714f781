//! Llama: settings and table of weights. Query, key and value are three matrices there, gate and up two.

mod config;

pub(crate) use config::{RULES, decoder_config, settings};
