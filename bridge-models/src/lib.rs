//! Models for Bridge: the decoder family, Hugging Face import and export, verification and
//! generation.
//!
//! | module | content |
//! | --- | --- |
//! | `blocks` | blocks of layers: maths, initial values, sharding over ranks |
//! | `models` | kinds of models: [`decoder`], one that covers GPT-2 and the Llama line by configuration, and [`encoder_decoder`], T5 |
//! | [`adapters`] | LoRA and DoRA at linear layers; adapters in `peft`'s format |
//! | [`families`] | Hugging Face families: settings and weights |
//! | `fingerprint` | detection of changed weight files |
//! | [`huggingface`] | Hugging Face folders in and out: `config.json`, safetensors, weight maps |
//! | [`megatron`] | checkpoints of Megatron-LM and Megatron Bridge (`torch_dist`) in |
//! | `sharding` | [`gather_parameters`]: whole parameters from models spread over ranks |
//! | [`verify`](mod@verify) | comparison of an imported folder with reference values |
//! | [`generate`](mod@generate) | batched generation with a KV cache or SSM state |
//! | [`score`] | log-likelihoods of given continuations |
//! | `registry` | [`registry()`]: the built-in kinds, to which programs add theirs |
//!
//! This crate opens no socket, reads no recipe and writes no checkpoint directory; bridge-core
//! does.
#![deny(missing_docs)]

pub mod adapters;
mod architecture;
mod blocks;
pub mod families;
mod fingerprint;
pub mod generate;
pub mod huggingface;
pub mod megatron;
mod models;
mod registry;
pub mod score;
mod sharding;
pub mod verify;

pub use generate::generate;
pub use huggingface::AutoBridge;
pub use models::decoder::{DecoderConfig, GptModelBuilder, GptModelConfig, register_builtin};
pub use models::{decoder, encoder_decoder};
pub use registry::registry;
pub use sharding::{OnParameter, gather_parameters};
pub use verify::{verify, verify_adapter};

bridge_data::readable_errors!(
    adapters::AdapterError,
    adapters::SetError,
    generate::GenerateError,
    huggingface::HfError,
    megatron::MegatronError,
    score::ScoreError,
    verify::VerifyError,
);
