//! Bridge as a library. This crate exports nothing; its programs are in `examples/`, and `tests/`
//! runs each of them; `object_store` runs in `tests/objects.rs` of the workspace, where the S3
//! server is.
//!
//! | program | what it shows |
//! | --- | --- |
//! | `service` | training runs inside a web service: start, watch, cancel, list checkpoints |
//! | `custom_model` | a custom model, with its own recipe field |
//! | `custom_dataset` | a custom dataset, with its own recipe field |
//! | `custom_loss` | a custom loss, logged by its own name |
//! | `custom_tokenizer` | a dataset with its own tokenizer |
//! | `object_store` | checkpoints in S3, Google Cloud Storage or Azure |
