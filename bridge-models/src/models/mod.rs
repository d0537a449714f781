//! Kinds of models: the meaning of a kind's recipe section, and its layers in order.

pub mod decoder;
pub mod encoder_decoder;
