//! Settings of Ministral; absent ones have the values of `MinistralConfig`.

use crate::families::mistral::config::{LAYERS, read_window};
use crate::huggingface::settings::Setting;
use crate::huggingface::windows;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(LAYERS), Setting::Keys { read: read_window, write: windows::write_pattern }];
