//! Settings of MiMo; absent ones have the values of `Qwen2Config`, from which its own class
//! descends.

use serde_json::json;

use crate::families::qwen2;
use crate::huggingface::settings::Setting;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(qwen2::config::SETTINGS),
    Setting::Only("attention_bias", || json!(true)),
    Setting::Unused(&["num_nextn_predict_layers"]),
];
