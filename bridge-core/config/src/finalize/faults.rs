//! Stage 4: `[ft]` and `[inprocess_restart]`: rules about the number of ranks.

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
