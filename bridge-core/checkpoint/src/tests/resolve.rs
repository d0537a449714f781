//! Checkpoint that is found in every state that saves, kills and people can leave a root in.

use super::super::journal::{Journal, write_journal, write_pointer};
use super::*;

fn iteration(root: &Path) -> u64 {
    found(resolve(root).unwrap()).checkpoint.iteration()
}

fn notices(root: &Path) -> Vec<Notice> {
    found(resolve(root).unwrap()).report.notices
}

fn nothing_found(root: &Path) -> bool {
    matches!(resolve(root), Ok(Resolution::NothingFound { searched }) if searched == root)
}

/// The checksum that the metadata of a checkpoint states.
fn metadata_checksum(root: &Path, step: u64) -> Checksum {
    super::super::checksum::stated_checksum(&fs::read(folder(root, step).join(METADATA_FILE)).unwrap()).unwrap()
}

fn saving(root: &Path, iteration: u64, previous: Option<u64>) {
    let metadata_checksum = metadata_checksum(root, iteration);
    write_journal(root, &Journal::Saving { iteration, metadata_checksum, previous }).unwrap();
}

fn unpublish(root: &Path, step: u64) {
    fs::rename(folder(root, step), root.join(format!(".tmp-{}", iteration_folder_name(step)))).unwrap();
}

#[test]
fn where_nothing_was_saved_nothing_is_found() {
    let dir = tempfile::tempdir().unwrap();
    assert!(nothing_found(dir.path()));
    assert!(nothing_found(&dir.path().join("not/there")));
    fs::write(dir.path().join("progress.txt"), "other things").unwrap();
    fs::create_dir(dir.path().join("logs")).unwrap();
    assert!(nothing_found(dir.path()));
    assert!(CheckpointStore::open(dir.path()).unwrap().list().unwrap().is_empty());
}

#[test]
fn paths_that_are_no_folder_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(CheckpointStore::open(&file), Err(CheckpointError::NotAFolder { path }) if path == file));
    assert!(matches!(CheckpointWriter::open(&file, SaveOptions::default()), Err(CheckpointError::NotAFolder { .. })));
    let dangling = dir.path().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
    assert!(CheckpointStore::open(&dangling).unwrap_err().to_string().contains("dangling"));
    // The path of a missing checkpoint does not count as an empty root.
    assert!(matches!(resolve_or_fall_back(&folder(dir.path(), 5)), Err(CheckpointError::Damaged(_))));
}

#[test]
fn a_first_save_cut_short_at_any_line_is_no_damage() {
    let dir = root_with(&[5]);
    let root = dir.path();
    // After the pointer, before the journal was closed.
    saving(root, 5, None);
    assert_eq!(notices(root), [Notice::InterruptedSave { iteration: 5, loaded: 5 }]);
    // After the rename, before the pointer.
    fs::remove_file(root.join(LATEST_FILE)).unwrap();
    assert_eq!(notices(root), [Notice::InterruptedSave { iteration: 5, loaded: 5 }]);
    // After the journal, before the rename; then before the journal.
    unpublish(root, 5);
    assert!(nothing_found(root));
    fs::remove_file(root.join(JOURNAL_FILE)).unwrap();
    assert!(nothing_found(root));
    // The next writer clears up.
    writer(root);
    assert!(names_in(root).is_empty());
}

#[test]
fn a_later_save_cut_short_at_any_line_is_no_damage() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    saving(root, 9, Some(5));
    assert_eq!(notices(root), [Notice::InterruptedSave { iteration: 9, loaded: 9 }]);
    write_pointer(root, 5).unwrap();
    assert_eq!(notices(root), [Notice::InterruptedSave { iteration: 9, loaded: 9 }]);
    unpublish(root, 9);
    assert_eq!(notices(root), [Notice::InterruptedSave { iteration: 9, loaded: 5 }]);
    write_journal(root, &Journal::Saved { iteration: 5 }).unwrap();
    assert_eq!(notices(root), []);
    assert_eq!(iteration(root), 5);
}

/// A run went back from 9 to 5, came to 9 again, and was killed before it published: the 9 that is
/// there is another run's.
#[test]
fn an_abandoned_checkpoint_is_not_taken_for_an_interrupted_save_of_the_same_iteration() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    writer(root).save(&snapshot_of(5, 0.25)).unwrap();
    assert_eq!(notices(root), [Notice::NewerIgnored { latest: 5, newer: vec![9] }]);
    let metadata_checksum = Checksum::compute(b"the new one");
    write_journal(root, &Journal::Saving { iteration: 9, metadata_checksum, previous: Some(5) }).unwrap();
    assert_eq!(
        notices(root),
        [Notice::InterruptedSave { iteration: 9, loaded: 5 }, Notice::NewerIgnored { latest: 5, newer: vec![9] }]
    );
}

#[test]
fn a_pointer_changed_by_hand_is_an_error_that_says_how_to_mean_it() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    write_pointer(root, 5).unwrap();
    let text = resolve(root).unwrap_err().to_string();
    assert!(text.contains("names iteration 5, but the last save was of iteration 9"), "{text}");
    assert!(text.contains("delete checkpoint_journal.json"), "{text}");
    assert_eq!(found(resolve_or_fall_back(root).unwrap()).checkpoint.iteration(), 9);
    fs::remove_file(root.join(JOURNAL_FILE)).unwrap();
    assert_eq!(notices(root), [Notice::NewerIgnored { latest: 5, newer: vec![9] }]);
    assert_eq!(iteration(root), 5);
}

#[test]
fn removing_the_newest_and_pointing_to_the_one_before_is_going_back() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    fs::remove_dir_all(folder(root, 9)).unwrap();
    assert!(matches!(resolve(root), Err(CheckpointError::Damaged(d)) if d.intact == Some(5)));
    let fallen_back = found(resolve_or_fall_back(root).unwrap());
    assert_eq!(fallen_back.report.skipped[0].damage, [Damage::FolderMissing]);
    write_pointer(root, 5).unwrap();
    assert_eq!(notices(root), [Notice::LastSaveRemoved { saved: 9, pointer: 5 }]);
}

#[test]
fn a_pointer_that_is_missing_or_garbage_is_reported() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    let check = |expected: &str| {
        let error = resolve(root).unwrap_err();
        assert!(matches!(error, CheckpointError::Root { intact: Some(9), .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        let fallen_back = found(resolve_or_fall_back(root).unwrap());
        assert_eq!(fallen_back.checkpoint.iteration(), 9);
        assert!(fallen_back.report.to_string().contains(expected), "{}", fallen_back.report);
    };
    for journal in ["there", "gone"] {
        if journal == "gone" {
            fs::remove_file(root.join(JOURNAL_FILE)).unwrap();
        }
        fs::write(root.join(LATEST_FILE), "release").unwrap();
        check("expected a decimal iteration, found \"release\"");
        fs::remove_file(root.join(LATEST_FILE)).unwrap();
        check("latest_checkpointed_iteration.txt is missing");
    }
    // Without a journal, a pointer to nowhere is as good as none.
    write_pointer(root, 7).unwrap();
    let fallen_back = found(resolve_or_fall_back(root).unwrap());
    assert_eq!(fallen_back.checkpoint.iteration(), 9);
    assert_eq!(fallen_back.report.skipped[0].iteration, Some(7));
    assert!(matches!(resolve(root), Err(CheckpointError::Damaged(d)) if d.intact == Some(9)));
}

#[test]
fn checkpoints_of_an_abandoned_run_are_offered_but_not_taken() {
    let dir = root_with(&[5, 9]);
    let root = dir.path();
    writer(root).save(&snapshot_of(5, 0.5)).unwrap();
    fs::remove_file(folder(root, 5).join(TRAIN_STATE_FILE)).unwrap();
    let error = resolve_or_fall_back(root).unwrap_err();
    assert!(matches!(&error, CheckpointError::NothingIntact { newer, .. } if newer == &[9]), "{error}");
    assert!(error.to_string().contains("not tried, because newer than the latest: iterations 9"), "{error}");
}

#[test]
fn folders_of_other_programs_are_damage_not_absence() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(folder(dir.path(), 100)).unwrap();
    fs::write(folder(dir.path(), 100).join("common.pt"), "x").unwrap();
    fs::write(dir.path().join(LATEST_FILE), "100").unwrap();
    let text = resolve(dir.path()).unwrap_err().to_string();
    assert!(text.contains("metadata.json: missing (not written by Bridge"), "{text}");
    fs::remove_dir_all(folder(dir.path(), 100)).unwrap();
    fs::write(folder(dir.path(), 100), "a file").unwrap();
    let text = resolve(dir.path()).unwrap_err().to_string();
    assert!(text.contains("it is not a folder"), "{text}");
}
