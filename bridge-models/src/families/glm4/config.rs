//! Settings of GLM-4; absent ones have the values of `Glm4Config`, which are those of `GlmConfig`.

use crate::families::glm;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] =
    &[Setting::Rows(glm::config::SETTINGS), Setting::Always(|c| c.residual.norms = NormPlacement::Sandwich)];
