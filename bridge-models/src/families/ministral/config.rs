//! Settings of Ministral; absent ones have the values of `MinistralConfig`.

use crate::families::mistral::config::{LAYERS, read_window};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(LAYERS), Setting::Keys { read: read_window, write: windows::write_pattern }];
