//! Stage 4: `[straggler]` and `[nvrx_straggler]`: rules of what is enabled.

use std::net::IpAddr;

use super::Draft;

pub(super) fn check(draft: &mut Draft<'_>) {
    let times = draft.recipe.straggler.clone().filter(|settings| settings.log_straggler);
    draft.require(
        times.is_none_or(|settings| settings.straggler_ctrlr_host.parse::<IpAddr>().is_ok()),
        "straggler.straggler_ctrlr_host",
        "is not an IP address; expected one such as 127.0.0.1, 0.0.0.0 or ::1",
    );
    let scores = draft.recipe.nvrx_straggler.clone().filter(|settings| settings.enabled);
    draft.require(
        scores.is_none_or(|settings| settings.enable_logging || settings.stop_if_detected),
        "nvrx_straggler.enable_logging",
        "cannot be false without nvrx_straggler.stop_if_detected: nobody would learn of a straggler",
    );
}
