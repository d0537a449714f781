//! Saving the same iteration again, errors of the disk, and files that a killed writer leaves.

use super::super::writer::move_aside_and_publish;
use super::*;

fn flavour(root: &Path) -> f32 {
    assert_whole(&found(resolve(root).unwrap()).checkpoint)
}

#[test]
fn the_same_iteration_can_be_saved_again() {
    let dir = root_with(&[5]);
    for flavour_saved in [0.5, 0.25] {
        writer(dir.path()).save(&snapshot_of(5, flavour_saved)).unwrap();
        assert_eq!(flavour(dir.path()), flavour_saved);
        assert_eq!(names_in(dir.path()), [JOURNAL_FILE, "iter_0000005", LATEST_FILE]);
    }
}

#[test]
fn an_opened_checkpoint_stays_readable_while_it_is_replaced_and_deleted() {
    let dir = root_with(&[5]);
    let opened = found(resolve(dir.path()).unwrap()).checkpoint;
    writer(dir.path()).save(&snapshot_of(5, 0.5)).unwrap();
    assert_eq!(assert_whole(&opened), 5.0);
    fs::remove_dir_all(folder(dir.path(), 5)).unwrap();
    assert_eq!(assert_whole(&opened), 5.0);
}

/// The way of file systems that cannot swap two names, stopped after each of its renames.
#[test]
fn moving_aside_leaves_no_moment_without_a_checkpoint() {
    let dir = root_with(&[5, 6]);
    let root = dir.path();
    let aside = root.join(".old-iter_0000006");
    fs::rename(folder(root, 6), &aside).unwrap();
    assert_eq!(flavour(root), 6.0);
    assert!(found(resolve(root).unwrap()).report.is_empty());
    // A writer that starts now gives it its name back.
    let writer = writer(root);
    assert!(folder(root, 6).is_dir() && !aside.exists());

    // A real one, made elsewhere and moved over.
    let other = root_with(&[]);
    CheckpointWriter::open(other.path(), SaveOptions::default()).unwrap().save(&snapshot_of(6, 0.5)).unwrap();
    let staging = writer.begin(6).unwrap();
    fs::remove_dir(root.join(".tmp-iter_0000006")).unwrap();
    fs::rename(folder(other.path(), 6), root.join(".tmp-iter_0000006")).unwrap();
    move_aside_and_publish(root, &staging).unwrap();
    assert!(aside.is_dir());
    assert_eq!(flavour(root), 0.5);
    self::writer(root);
    assert!(!aside.exists());
    assert_eq!(flavour(root), 0.5);
}

#[test]
fn only_our_leftovers_are_cleared() {
    let dir = root_with(&[5]);
    let ours = [".tmp-iter_0000007", ".trash-iter_0000004"];
    let foreign = [".tmp-mine", ".trash", "iter_notes", ".old-stuff"];
    for name in ours.iter().chain(&foreign) {
        fs::create_dir_all(dir.path().join(name).join("inside")).unwrap();
    }
    fs::write(dir.path().join(format!(".tmp-{LATEST_FILE}")), "1").unwrap();
    assert_eq!(flavour(dir.path()), 5.0);
    writer(dir.path());
    let mut expected = [JOURNAL_FILE, "iter_0000005", LATEST_FILE].map(str::to_owned).to_vec();
    expected.extend(foreign.map(str::to_owned));
    expected.sort();
    assert_eq!(names_in(dir.path()), expected);
}

#[test]
fn errors_of_the_disk_name_the_path_and_leave_the_rest_alone() {
    let dir = root_with(&[5]);
    let writer = writer(dir.path());
    // A folder in place of the pointer: the rename onto it fails for every user, root included.
    let pointer = dir.path().join(LATEST_FILE);
    fs::remove_file(&pointer).unwrap();
    fs::create_dir_all(pointer.join("inside")).unwrap();
    let error = writer.save(&snapshot(6)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path == &pointer), "{error}");
    assert!(resolve_or_fall_back(dir.path()).unwrap_err().to_string().contains(LATEST_FILE));
    fs::remove_dir_all(&pointer).unwrap();
    fs::write(&pointer, "5\n").unwrap();
    assert_eq!(flavour(dir.path()), 5.0);

    // The root vanishes under the writer.
    let gone = dir.path().join("gone");
    let writer = CheckpointWriter::open(&gone, SaveOptions::default()).unwrap();
    fs::remove_dir(&gone).unwrap();
    let error = writer.save(&snapshot(6)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path.starts_with(&gone)), "{error}");
    assert!(matches!(
        CheckpointWriter::open(pointer.join("below"), SaveOptions::default()),
        Err(CheckpointError::Io { .. })
    ));
}
