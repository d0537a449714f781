//! Stage 4: `[straggler]`, `[nvrx_straggler]`, `[ft]` and `[inprocess_restart]`.

use std::net::IpAddr;

use super::super::raw::RawConfig;
use super::super::run_config::World;
use super::Draft;

/// The ranks that work: all but the spare ones.
pub(super) fn active(raw: &RawConfig, world: &World) -> World {
    let settings = raw.recipe().inprocess_restart.as_ref().filter(|settings| settings.enabled);
    let active = settings.and_then(|settings| settings.active_world_size).unwrap_or(world.size);
    World { size: active.min(world.size) }
}

pub(super) fn check(draft: &mut Draft<'_>, world: &World) {
    simulated_faults(draft);
    restarts(draft, world);
}

/// Checks what is enabled.
pub(super) fn stragglers(draft: &mut Draft<'_>) {
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

fn simulated_faults(draft: &mut Draft<'_>) {
    let Some(settings) = draft.recipe.ft.clone().filter(|settings| settings.simulate_fault) else { return };
    let ranks = draft.world.size;
    draft.require(
        settings.simulated_fault_rank.is_none_or(|rank| rank < ranks),
        "ft.simulated_fault_rank",
        format!("is no rank of the run, which has {ranks}"),
    );
}

fn restarts(draft: &mut Draft<'_>, world: &World) {
    let Some(settings) = draft.recipe.inprocess_restart.clone().filter(|settings| settings.enabled) else { return };
    let (active, started) = (settings.active_world_size, world.size);
    draft.require(
        active.is_none_or(|active| active <= started),
        "inprocess_restart.active_world_size",
        format!("is more than the {started} ranks that are started"),
    );
}
