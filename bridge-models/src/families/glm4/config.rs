//! Settings of GLM-4; absent ones have the values of `Glm4Config`, which are those of `GlmConfig`.

use bridge_core::config::NormPlacement;

use crate::families::glm;
use crate::huggingface::settings::Setting;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(glm::config::SETTINGS), Setting::Always(|c| c.residual.norms = NormPlacement::Sandwich)];
