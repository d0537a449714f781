//! Bridge as a library. This crate exports nothing; its programs are in `examples/`, and `tests/` runs each of them.
//!
//! | program | what it shows |
//! | --- | --- |
//! | `service` | training runs inside a web service: start, watch, cancel, list checkpoints |
//! | `custom_model` | a model family of your own, with a recipe field of its own |
//! | `custom_dataset` | a data set of your own, with a recipe field of its own |
//! | `custom_tokenizer` | a data set that brings its own tokenizer |
