//! Settings of MiMo; absent ones have the values of `Qwen2Config`, from which its own class
//! descends.

use crate::families::prelude::*;
use crate::families::qwen2;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(qwen2::config::SETTINGS),
    Setting::Only("attention_bias", || json!(true)),
    Setting::Unused(&["num_nextn_predict_layers"]),
];
