//! Settings of VaultGemma; absent ones have the values of `VaultGemmaConfig`, which are Gemma 2's.

use crate::families::gemma2::config::CAPPED;
use crate::huggingface::settings::Setting;

pub(super) const SETTINGS: &[Setting] = &[Setting::Rows(CAPPED)];
