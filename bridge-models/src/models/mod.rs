//! Kinds of models: what a kind's recipe section means, and its layers in order.

pub mod decoder;
pub mod encoder_decoder;
