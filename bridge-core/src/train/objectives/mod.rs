//! Losses other than the next token: preferences (DPO) and distillation.

pub(in crate::train) mod distillation;
pub(in crate::train) mod dpo;
