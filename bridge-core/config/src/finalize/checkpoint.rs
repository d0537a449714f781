//! The rules of `[checkpoint]`.

use super::super::changes::{MODEL, TOKENIZER, concerns};
use super::super::choice::{NonPersistentType, OnDamaged};
use super::super::error::{ConfigError, ErrorKind};
use super::super::section::Section;
use super::super::sections::CheckpointConfig;
use super::super::spec::Concerns;
use super::Draft;

/// Checks that saving and loading settings have a folder to work on and agree with each other.
pub(super) fn check(draft: &mut Draft<'_>) {
    saving_needs_a_folder(draft);
    loading_needs_a_folder(draft);
    state_is_loaded(draft);
    retained_are_saved(draft);
    changes_are_of_the_model(draft);
    settings_are_taken(draft);
    temporary_saves(draft);
    replicas(draft);
    let checkpoint = draft.recipe.checkpoint.clone();
    if checkpoint.most_recent_k == Some(0) {
        let message = "would keep no checkpoint; -1 keeps all";
        draft.error(ErrorKind::OutOfRange, "checkpoint.most_recent_k", message);
    }
    for (key, path) in [
        ("checkpoint.save", &checkpoint.save),
        ("checkpoint.load", &checkpoint.load),
        ("checkpoint.pretrained_checkpoint", &checkpoint.pretrained_checkpoint),
        ("checkpoint.non_persistent_global_ckpt_dir", &checkpoint.non_persistent_global_ckpt_dir),
        ("checkpoint.non_persistent_local_ckpt_dir", &checkpoint.non_persistent_local_ckpt_dir),
    ] {
        let is_empty = path.as_ref().is_some_and(|path| path.as_os_str().is_empty());
        draft.require(!is_empty, key, "is not the name of a folder");
    }
}

fn saving_needs_a_folder(draft: &mut Draft<'_>) {
    let checkpoint = draft.recipe.checkpoint.clone();
    let settings = [
        ("checkpoint.save_interval", checkpoint.save_interval.is_some()),
        ("checkpoint.save_wgrads_interval", checkpoint.save_wgrads_interval.is_some()),
        ("checkpoint.save_dgrads_interval", checkpoint.save_dgrads_interval.is_some()),
        ("checkpoint.save_retain_interval", checkpoint.save_retain_interval.is_some()),
        ("checkpoint.non_persistent_save_interval", checkpoint.non_persistent_save_interval.is_some()),
        ("checkpoint.most_recent_k", checkpoint.most_recent_k.is_some_and(|k| k != -1)),
        ("checkpoint.async_save", checkpoint.async_save),
        ("checkpoint.keep_best", checkpoint.keep_best),
        ("checkpoint.custom_manager_class", checkpoint.custom_manager_class.is_some()),
        ("checkpoint.save_optim", !checkpoint.save_optim),
        ("checkpoint.save_rng", !checkpoint.save_rng),
        ("checkpoint.save_tokenizer_assets", !checkpoint.save_tokenizer_assets),
    ];
    for (key, is_set) in settings {
        draft.require(checkpoint.save.is_some() || !is_set, key, "needs checkpoint.save");
    }
}

fn loading_needs_a_folder(draft: &mut Draft<'_>) {
    let checkpoint = draft.recipe.checkpoint.clone();
    draft.require(
        checkpoint.ckpt_step.is_none() || checkpoint.load.is_some(),
        "checkpoint.ckpt_step",
        "needs checkpoint.load",
    );
    let has_input = checkpoint.load.is_some() || checkpoint.pretrained_checkpoint.is_some();
    for (key, is_set) in [
        ("checkpoint.exit_on_missing_checkpoint", checkpoint.exit_on_missing_checkpoint),
        ("checkpoint.finetune", checkpoint.finetune),
    ] {
        let message = "needs checkpoint.load or checkpoint.pretrained_checkpoint";
        draft.require(!is_set || has_input, key, message);
    }
}

/// Settings about a checkpoint's state other than its weights need a run to resume: that of
/// `checkpoint.load`, or an earlier one of `checkpoint.save`.
fn state_is_loaded(draft: &mut Draft<'_>) {
    let checkpoint = draft.recipe.checkpoint.clone();
    let scheduler = draft.recipe.scheduler.clone();
    let resumes = checkpoint.load.is_some() || checkpoint.save.is_some();
    for (key, is_set) in [
        ("checkpoint.load_optim", !checkpoint.load_optim),
        ("checkpoint.load_rng", !checkpoint.load_rng),
        ("scheduler.override_opt_param_scheduler", scheduler.override_opt_param_scheduler),
        ("scheduler.use_checkpoint_opt_param_scheduler", scheduler.use_checkpoint_opt_param_scheduler),
    ] {
        let message = "has no effect without a run to resume: checkpoint.load or checkpoint.save";
        draft.idle_unless(!is_set || resumes, key, message);
    }
    draft.idle_unless(
        checkpoint.on_damaged == OnDamaged::Fallback || resumes || checkpoint.pretrained_checkpoint.is_some(),
        "checkpoint.on_damaged",
        "has no effect without a checkpoint to load: checkpoint.load, checkpoint.save or checkpoint.pretrained_checkpoint",
    );
    for (is_met, message) in [
        (!checkpoint.load_optim, "needs checkpoint.load_optim = false: masters are part of the optimizer state"),
        (
            resumes || checkpoint.pretrained_checkpoint.is_some(),
            "needs a checkpoint to load: checkpoint.load, checkpoint.save or checkpoint.pretrained_checkpoint",
        ),
    ] {
        draft.require(
            !checkpoint.load_main_params_from_ckpt || is_met,
            "checkpoint.load_main_params_from_ckpt",
            message,
        );
    }
    // The schedule belongs to the optimizer state.
    draft.idle_unless(
        !scheduler.use_checkpoint_opt_param_scheduler || (checkpoint.load_optim && !checkpoint.finetune),
        "scheduler.use_checkpoint_opt_param_scheduler",
        "has no effect with checkpoint.load_optim = false or checkpoint.finetune = true, which do not load the schedule",
    );
}

/// Settings in `allow_model_changes` must be ones that would be refused otherwise.
fn changes_are_of_the_model(draft: &mut Draft<'_>) {
    let key = "checkpoint.allow_model_changes";
    let names = draft.recipe.model.known_names(draft.raw.kinds());
    for name in draft.recipe.checkpoint.allow_model_changes.clone() {
        let is_known = name == TOKENIZER || names.contains(&name);
        if !is_known {
            let known = names.iter().map(String::as_str).chain([TOKENIZER]);
            let error = ConfigError::new(ErrorKind::UnknownKey, key, "is no setting of [model], nor \"tokenizer\"")
                .with_found(format!("{name:?}"))
                .with_nearest(&name, known)
                .with_location(draft.raw.location(key));
            draft.errors.push(error);
        } else if name != TOKENIZER && concerns(&format!("{MODEL}{name}")) != Concerns::Function {
            let message =
                format!("need not name {name:?}: it does not change what the model computes, and may change anyway");
            draft.error(ErrorKind::Conflict, key, message);
        }
    }
}

/// Settings that are taken from a checkpoint need one to load.
fn settings_are_taken(draft: &mut Draft<'_>) {
    let checkpoint = draft.recipe.checkpoint.clone();
    let has_place =
        checkpoint.load.is_some() || checkpoint.save.is_some() || checkpoint.pretrained_checkpoint.is_some();
    for (key, is_set) in [
        ("checkpoint.use_checkpoint_args", checkpoint.use_checkpoint_args),
        ("checkpoint.use_mp_args_from_checkpoint_args", checkpoint.use_mp_args_from_checkpoint_args),
    ] {
        let message =
            "needs a checkpoint to load: checkpoint.load, checkpoint.save or checkpoint.pretrained_checkpoint";
        draft.require(!is_set || has_place, key, message);
    }
    draft.idle_unless(
        checkpoint.use_tokenizer_model_from_checkpoint_args || checkpoint.use_checkpoint_args,
        "checkpoint.use_tokenizer_model_from_checkpoint_args",
        "has no effect without checkpoint.use_checkpoint_args",
    );
}

/// Saves between the others: how often, and where.
fn temporary_saves(draft: &mut Draft<'_>) {
    let settings = draft.recipe.checkpoint.clone();
    let kind = settings.non_persistent_ckpt_type;
    draft.require(
        settings.non_persistent_save_interval.is_none() || kind.is_some(),
        "checkpoint.non_persistent_save_interval",
        "needs checkpoint.non_persistent_ckpt_type, which says where these saves lie",
    );
    draft.require(
        settings.non_persistent_save_interval.is_some() || kind.is_none(),
        "checkpoint.non_persistent_ckpt_type",
        "needs checkpoint.non_persistent_save_interval",
    );
    draft.idle_unless(
        settings.non_persistent_global_ckpt_dir.is_none() || kind == Some(NonPersistentType::Global),
        "checkpoint.non_persistent_global_ckpt_dir",
        "has no effect without checkpoint.non_persistent_ckpt_type = \"global\"",
    );
    let is_local = kind == Some(NonPersistentType::Local);
    draft.idle_unless(
        settings.non_persistent_local_ckpt_dir.is_none() || is_local,
        "checkpoint.non_persistent_local_ckpt_dir",
        "has no effect without checkpoint.non_persistent_ckpt_type = \"local\"",
    );
    draft.require(
        settings.non_persistent_local_ckpt_dir.is_some() || !is_local,
        "checkpoint.non_persistent_ckpt_type",
        "= \"local\" needs checkpoint.non_persistent_local_ckpt_dir",
    );
    let interval = settings.non_persistent_save_interval.zip(settings.save_interval);
    draft.idle_unless(
        interval.is_none_or(|(temporary, persistent)| !temporary.is_multiple_of(persistent.max(1))),
        "checkpoint.non_persistent_save_interval",
        "has no effect: checkpoint.save_interval saves at each of these steps for good",
    );
}

/// Copies of temporary saves at other ranks.
fn replicas(draft: &mut Draft<'_>) {
    let settings = draft.recipe.checkpoint.clone();
    let in_pieces =
        matches!(settings.non_persistent_ckpt_type, Some(NonPersistentType::Local | NonPersistentType::InMemory));
    if !settings.replication {
        for (key, is_set) in [
            ("checkpoint.replication_jump", settings.replication_jump.is_some()),
            (
                "checkpoint.replication_factor",
                settings.replication_factor != CheckpointConfig::default().replication_factor,
            ),
        ] {
            draft.idle_unless(!is_set, key, "has no effect without checkpoint.replication");
        }
        return;
    }
    let message = "needs checkpoint.non_persistent_ckpt_type = \"local\" or \"in_memory\": other saves are not on one machine alone";
    draft.require(in_pieces, "checkpoint.replication", message);
    let Some(jump) = settings.replication_jump else {
        let message =
            "needs checkpoint.replication_jump; the number of ranks of a machine puts copies on other machines";
        return draft.error(ErrorKind::Conflict, "checkpoint.replication", message);
    };
    let (world, block) = (draft.world.size, jump.saturating_mul(settings.replication_factor));
    if world > 1 && !world.is_multiple_of(block.max(1)) {
        let message = format!(
            "{world} ranks do not divide into groups of checkpoint.replication_jump * checkpoint.replication_factor = {block}"
        );
        draft.error(ErrorKind::Conflict, "checkpoint.replication_jump", message);
    }
}

fn retained_are_saved(draft: &mut Draft<'_>) {
    let checkpoint = draft.recipe.checkpoint.clone();
    let Some(retain) = checkpoint.save_retain_interval else {
        return;
    };
    draft.idle_unless(
        checkpoint.most_recent_k.is_some_and(|k| k != -1),
        "checkpoint.save_retain_interval",
        "has no effect without checkpoint.most_recent_k: every checkpoint is kept then",
    );
    let is_multiple = checkpoint.save_interval.is_some_and(|interval| interval > 0 && retain.is_multiple_of(interval));
    draft.require(is_multiple, "checkpoint.save_retain_interval", "must be a multiple of checkpoint.save_interval");
}
