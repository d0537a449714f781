//! Names of the parameters that Gemma 4 does not have.

use crate::families::prelude::*;

pub(super) const STREAMS: &[WeightRule] = &[
    rule("embedding.altup_projections.{}.weight", &["model.altup_projections.{}.weight"]),
    rule("decoder.altup_unembed_projections.{}.weight", &["model.altup_unembed_projections.{}.weight"]),
    layer!("altup.router_norm.weight", "altup.router_norm.weight"),
    layer!("altup.modality_router.weight", "altup.modality_router.weight"),
    layer!("altup.prediction_coefs.weight", "altup.prediction_coefs.weight"),
    layer!("altup.correction_coefs.weight", "altup.correction_coefs.weight"),
    layer!("altup.correct_output_scale", "altup.correct_output_scale"),
    layer!("laurel.linear_left.weight", "laurel.linear_left.weight"),
    layer!("laurel.linear_right.weight", "laurel.linear_right.weight"),
    layer!("laurel.post_laurel_norm.weight", "laurel.post_laurel_norm.weight"),
];
