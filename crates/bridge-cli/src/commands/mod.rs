//! One file a command.

pub mod bench;
pub mod config;
pub mod convert;
pub mod data;
pub mod eval;
pub mod generate;
pub mod mpi;
mod split_name;
mod text_input;
pub mod tokenizer;
pub mod train;
pub mod verify;
