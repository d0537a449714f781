//! Families of Hugging Face models, a folder each: its settings and its table of weights. What they share is in [`crate::huggingface`].

pub(crate) mod gpt2;
pub(crate) mod llama;
