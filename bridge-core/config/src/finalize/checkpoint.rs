//! The rules of `[checkpoint]`.

use super::super::changes::{MODEL, TOKENIZER, concerns};
use super::super::choice::NonPersistentType;
use super::super::error::{ConfigError, ErrorKind};
use super::super::section::Section;
use super::super::spec::Concerns;
use super::Draft;

/// Checks that saving and loading settings have a folder to work on and agree with each other.
pub(super) fn check(draft: &mut Draft<'_>) {
    retained_are_saved(draft);
    changes_are_of_the_model(draft);
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

/// Checks that `allow_model_changes` names only settings that would be refused otherwise.
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

/// Rules of temporary saves: their interval and place.
fn temporary_saves(draft: &mut Draft<'_>) {
    let settings = draft.recipe.checkpoint.clone();
    let kind = settings.non_persistent_ckpt_type;
    let is_local = kind == Some(NonPersistentType::Local);
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

/// Rules of copies of temporary saves at other ranks.
fn replicas(draft: &mut Draft<'_>) {
    let settings = draft.recipe.checkpoint.clone();
    let Some(jump) = settings.replication_jump.filter(|_| settings.replication) else { return };
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
    let Some(retain) = checkpoint.save_retain_interval else { return };
    let is_multiple = checkpoint.save_interval.is_some_and(|interval| interval > 0 && retain.is_multiple_of(interval));
    draft.require(is_multiple, "checkpoint.save_retain_interval", "must be a multiple of checkpoint.save_interval");
}
