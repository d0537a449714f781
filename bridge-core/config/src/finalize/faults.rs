//! Stage 4: `[ft]` and `[inprocess_restart]`. What they need, and what has no effect without
//! something else.

use super::super::choice::RestartGranularity;
use super::super::raw::RawConfig;
use super::super::run_config::World;
use super::Draft;
use super::stragglers::idle;

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
    let Some(settings) = draft.recipe.ft.clone() else { return };
    if !settings.enable_ft_package {
        idle(draft, &["ft.calc_ft_timeouts"], "ft.enable_ft_package");
    }
    let saves = draft.recipe.checkpoint.save.is_some();
    draft.require(
        saves || !settings.enable_ft_package,
        "ft.enable_ft_package",
        "needs checkpoint.save, which keeps learned timeouts",
    );
    if !settings.simulate_fault {
        let keys = ["ft.simulated_fault_type", "ft.simulated_fault_rank", "ft.simulated_fault_base_delay"];
        return idle(draft, &keys, "ft.simulate_fault");
    }
    let ranks = draft.world.size;
    draft.require(
        settings.simulated_fault_rank.is_none_or(|rank| rank < ranks),
        "ft.simulated_fault_rank",
        format!("is no rank of the run, which has {ranks}"),
    );
}

fn restarts(draft: &mut Draft<'_>, world: &World) {
    let Some(settings) = draft.recipe.inprocess_restart.clone() else { return };
    if !settings.enabled {
        let keys = [
            "inprocess_restart.max_iterations",
            "inprocess_restart.max_rank_faults",
            "inprocess_restart.progress_watchdog_interval",
            "inprocess_restart.soft_timeout",
            "inprocess_restart.hard_timeout",
            "inprocess_restart.granularity",
            "inprocess_restart.active_world_size",
        ];
        return idle(draft, &keys, "inprocess_restart.enabled");
    }
    draft.require(
        draft.recipe.checkpoint.save.is_some(),
        "inprocess_restart.enabled",
        "needs checkpoint.save: a run that saves nothing begins again",
    );
    let (active, started) = (settings.active_world_size, world.size);
    draft.require(
        active.is_none_or(|active| active <= started),
        "inprocess_restart.active_world_size",
        format!("is more than the {started} ranks that are started"),
    );
    draft.idle_unless(
        settings.granularity == RestartGranularity::Node || active.is_some(),
        "inprocess_restart.granularity",
        "= \"rank\" has no effect without spare ranks: inprocess_restart.active_world_size",
    );
}
