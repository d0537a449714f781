//! The names of files and folders in a checkpoint root. No file access belongs here.

/// The file of a checkpoint that describes all others.
pub const METADATA_FILE: &str = "metadata.json";
/// The file of a checkpoint with the resolved configuration of its run.
pub const RUN_CONFIG_FILE: &str = "run_config.toml";
/// The file of a checkpoint with its [`TrainState`](super::TrainState).
pub const TRAIN_STATE_FILE: &str = "train_state.json";
/// The file of a checkpoint with its tokenizer, if it has one.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The file of a root that names, as a decimal number, the iteration to resume from.
pub const LATEST_FILE: &str = "latest_checkpointed_iteration.txt";
/// The file of a root that names, as a decimal number, the iteration with the lowest validation
/// loss, which is never deleted.
pub const BEST_FILE: &str = "best_checkpointed_iteration.txt";
/// The file of a root that records the state of the last save.
pub const JOURNAL_FILE: &str = "checkpoint_journal.json";
/// The file of a root that names its run to saves that lie elsewhere.
pub const IDENTITY_FILE: &str = "run_identity.txt";
/// The extension of shard files.
pub(super) const SHARD_EXTENSION: &str = ".safetensors";

const ITERATION_PREFIX: &str = "iter_";
/// Prefix of files and folders that are still being written.
pub(super) const STAGING_PREFIX: &str = ".tmp-";
const DISPLACED_PREFIX: &str = ".old-";
const TRASH_PREFIX: &str = ".trash-";

/// The folder of a checkpoint inside its root: `iter_0000100` for 100.
#[must_use]
pub fn iteration_folder_name(iteration: u64) -> String {
    format!("{ITERATION_PREFIX}{iteration:07}")
}

pub(super) fn staging_name(iteration: u64) -> String {
    format!("{STAGING_PREFIX}{}", iteration_folder_name(iteration))
}

pub(super) fn displaced_name(iteration: u64) -> String {
    format!("{DISPLACED_PREFIX}{}", iteration_folder_name(iteration))
}

pub(super) fn trash_name(iteration: u64) -> String {
    format!("{TRASH_PREFIX}{}", iteration_folder_name(iteration))
}

/// The meaning of a name in a checkpoint root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootName {
    /// A published checkpoint.
    Checkpoint(u64),
    /// A checkpoint moved aside while it is replaced.
    Displaced(u64),
    /// Something half-written or half-deleted that is garbage once its writer is gone.
    Leftover,
    /// Not written by Bridge, or not a folder of a checkpoint.
    Other,
}

/// Parses the name of an entry of a checkpoint root. Checkpoint folders may have any number of
/// digits, so that one renamed by hand is still found; all other names must match exactly.
pub(super) fn parse_root_name(name: &str) -> RootName {
    if let Some(iteration) = parse_iteration(name) {
        return RootName::Checkpoint(iteration);
    }
    if let Some(iteration) = name.strip_prefix(DISPLACED_PREFIX).and_then(parse_iteration) {
        return RootName::Displaced(iteration);
    }
    let in_the_making = name.strip_prefix(STAGING_PREFIX);
    let root_file = in_the_making.is_some_and(|rest| rest == LATEST_FILE || rest == BEST_FILE || rest == JOURNAL_FILE);
    let folder = in_the_making.or_else(|| name.strip_prefix(TRASH_PREFIX)).and_then(parse_iteration).is_some();
    if root_file || folder { RootName::Leftover } else { RootName::Other }
}

/// The iteration of a checkpoint's folder by its name; `None` for another name.
pub fn parse_iteration(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(ITERATION_PREFIX)?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// The file of one part of a rank's tensors of a group: `model-rank00000.safetensors`, then, if
/// there are several parts, `model-rank00000-part00001.safetensors` and so on.
pub(super) fn shard_file_name(group: &str, rank: usize, part: usize) -> String {
    let part = if part == 0 { String::new() } else { format!("-part{part:05}") };
    format!("{group}-rank{rank:05}{part}{SHARD_EXTENSION}")
}

/// Why `name` cannot be a file of a checkpoint, if it cannot: it must stay inside the folder on
/// every system.
pub(super) fn file_name_problem(name: &str) -> Option<&'static str> {
    let part_problem = |part: &str| {
        if part.is_empty() {
            Some("has an empty part")
        } else if part.starts_with('.') {
            Some("has a part that starts with a dot")
        } else if part.chars().any(|c| c.is_control() || matches!(c, '\\' | ':')) {
            Some("has a control character, a backslash or a colon")
        } else {
            None
        }
    };
    name.split('/').find_map(part_problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for iteration in [0, 1, 100, 9_999_999, 10_000_000, u64::MAX] {
            assert_eq!(parse_root_name(&iteration_folder_name(iteration)), RootName::Checkpoint(iteration));
            assert_eq!(parse_root_name(&displaced_name(iteration)), RootName::Displaced(iteration));
            assert_eq!(parse_root_name(&staging_name(iteration)), RootName::Leftover);
            assert_eq!(parse_root_name(&trash_name(iteration)), RootName::Leftover);
        }
        assert_eq!(parse_root_name("iter_100"), RootName::Checkpoint(100));
    }

    #[test]
    fn foreign_names_are_left_alone() {
        for name in ["iter_", "iter_12a", "iter_-1", "iter_+1", ".tmp-notes", ".tmp-iter_", ".trash", "latest", ".tmp-"]
        {
            assert_eq!(parse_root_name(name), RootName::Other, "{name}");
        }
        assert_eq!(parse_root_name("iter_99999999999999999999999"), RootName::Other);
    }

    #[test]
    fn file_names_stay_inside() {
        for good in ["tokenizer.json", "tokenizer/vocab.txt", "a b"] {
            assert_eq!(file_name_problem(good), None, "{good}");
        }
        for bad in ["", "/etc/x", "../x", "a/../b", "a//b", "a/", ".hidden", "C:x", "a\\b", "a\nb"] {
            assert!(file_name_problem(bad).is_some(), "{bad:?}");
        }
    }
}
