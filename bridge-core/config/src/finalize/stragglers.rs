//! Stage 4: `[straggler]` and `[nvrx_straggler]`. What they need, and what has no effect without
//! something else.

use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::Draft;

pub(super) fn check(draft: &mut Draft<'_>) {
    times(draft);
    scores(draft);
}

/// Settings of a section that do nothing while another one is off.
pub(super) fn idle(draft: &mut Draft<'_>, keys: &[&str], other: &str) {
    let (now, defaults) = (draft.recipe.to_node(), RecipeConfig::with_every_section().to_node());
    for key in keys {
        let is_changed = now.get_path(key) != defaults.get_path(key);
        draft.idle_if(is_changed, key, format!("has no effect without {other}"));
    }
}

fn times(draft: &mut Draft<'_>) {
    let Some(settings) = draft.recipe.straggler.clone() else { return };
    if !settings.log_straggler {
        let keys = [
            "straggler.enable_straggler_on_startup",
            "straggler.disable_straggler_on_startup",
            "straggler.straggler_ctrlr_port",
            "straggler.straggler_ctrlr_host",
            "straggler.straggler_minmax_count",
        ];
        return idle(draft, &keys, "straggler.log_straggler");
    }
    draft.require(
        settings.straggler_ctrlr_host.parse::<std::net::IpAddr>().is_ok(),
        "straggler.straggler_ctrlr_host",
        "is not an IP address; expected one such as 127.0.0.1, 0.0.0.0 or ::1",
    );
    draft.idle_unless(
        settings.enable_straggler_on_startup || !settings.disable_straggler_on_startup,
        "straggler.disable_straggler_on_startup",
        "has no effect with straggler.enable_straggler_on_startup = false, which says the same",
    );
    draft.require(
        !draft.recipe.logger.skip_train_metrics_log,
        "straggler.log_straggler",
        "excludes logger.skip_train_metrics_log: times are told each logger.log_interval",
    );
}

fn scores(draft: &mut Draft<'_>) {
    let Some(settings) = draft.recipe.nvrx_straggler.clone() else { return };
    if !settings.enabled {
        let keys = [
            "nvrx_straggler.report_time_interval",
            "nvrx_straggler.calc_relative_gpu_perf",
            "nvrx_straggler.calc_individual_gpu_perf",
            "nvrx_straggler.num_gpu_perf_scores_to_print",
            "nvrx_straggler.gpu_relative_perf_threshold",
            "nvrx_straggler.gpu_individual_perf_threshold",
            "nvrx_straggler.stop_if_detected",
            "nvrx_straggler.enable_logging",
            "nvrx_straggler.profiling_interval",
        ];
        return idle(draft, &keys, "nvrx_straggler.enabled");
    }
    draft.require(
        settings.calc_relative_gpu_perf || settings.calc_individual_gpu_perf,
        "nvrx_straggler.enabled",
        "needs nvrx_straggler.calc_relative_gpu_perf or nvrx_straggler.calc_individual_gpu_perf: there is no other score",
    );
    draft.require(
        settings.enable_logging || settings.stop_if_detected,
        "nvrx_straggler.enable_logging",
        "cannot be false without nvrx_straggler.stop_if_detected: nobody would learn of a straggler",
    );
    if !settings.calc_relative_gpu_perf {
        idle(draft, &["nvrx_straggler.gpu_relative_perf_threshold"], "nvrx_straggler.calc_relative_gpu_perf");
    }
    if !settings.calc_individual_gpu_perf {
        idle(draft, &["nvrx_straggler.gpu_individual_perf_threshold"], "nvrx_straggler.calc_individual_gpu_perf");
    }
    if !settings.enable_logging {
        idle(draft, &["nvrx_straggler.num_gpu_perf_scores_to_print"], "nvrx_straggler.enable_logging");
    }
}
