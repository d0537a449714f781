//! One file per command.

mod adapters;
pub mod bench;
mod bench_ops;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod convert;
pub mod data;
pub mod documents;
pub mod eval;
mod explain;
pub mod generate;
pub mod init;
mod model_card;
mod monitor;
pub mod mpi;
pub mod plan;
mod restarts;
pub mod runs;
mod split_name;
mod supervise;
mod text_input;
mod text_sequences;
pub mod tokenizer;
pub mod trace;
pub mod train;
pub mod verify;
