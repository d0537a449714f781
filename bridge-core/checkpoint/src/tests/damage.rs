//! Every damage to a file is detected, named, and never mistaken for an empty folder.

use super::super::checksum::{seal, unseal};
use super::*;

/// Damage to a file.
#[derive(Debug, Clone, Copy)]
enum Harm {
    FlipBit,
    Truncate,
    Append,
    Empty,
    Delete,
    BecomeFolder,
}

/// Does it; `false` when it would change nothing.
fn harm(path: &Path, harm: Harm, random: &mut Random) -> bool {
    let mut bytes = fs::read(path).unwrap();
    match harm {
        Harm::FlipBit | Harm::Truncate | Harm::Empty if bytes.is_empty() => return false,
        Harm::FlipBit => {
            let bit = random.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        Harm::Truncate => bytes.truncate(random.below(bytes.len())),
        Harm::Append => bytes.extend((0..=random.below(9)).map(|_| random.next() as u8)),
        Harm::Empty => bytes.clear(),
        Harm::Delete | Harm::BecomeFolder => {
            fs::remove_file(path).unwrap();
            if matches!(harm, Harm::BecomeFolder) {
                fs::create_dir(path).unwrap();
            }
            return true;
        }
    }
    fs::write(path, bytes).unwrap();
    true
}

fn restore(path: &Path, bytes: &[u8]) {
    if path.is_dir() {
        fs::remove_dir(path).unwrap();
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn any_harm_to_any_file_of_a_checkpoint_is_found() {
    let dir = root_with(&[1, 2]);
    let newest = folder(dir.path(), 2);
    let files = files_below(&newest);
    assert_eq!(files.len(), 8);
    let mut random = Random(1);
    let harms = [Harm::FlipBit, Harm::Truncate, Harm::Append, Harm::Empty, Harm::Delete, Harm::BecomeFolder];
    let flips = std::iter::repeat_n(Harm::FlipBit, 60);
    for path in &files {
        let original = fs::read(path).unwrap();
        for kind in harms.into_iter().chain(flips.clone()) {
            if !harm(path, kind, &mut random) {
                continue;
            }
            let name = path.strip_prefix(&newest).unwrap().display().to_string();
            let Err(CheckpointError::Damaged(damaged)) = resolve(dir.path()) else {
                panic!("{kind:?} of {name} went unnoticed");
            };
            assert_eq!(damaged.intact, Some(1), "{kind:?} of {name}");
            assert_eq!(damaged.checkpoint.iteration, Some(2));
            assert!(damaged.to_string().contains(&name), "{damaged}");
            restore(path, &original);
        }
    }
    assert!(found(resolve(dir.path()).unwrap()).report.is_empty());
}

#[test]
fn any_flip_in_the_files_of_the_root_is_found() {
    let dir = root_with(&[100, 300]);
    for name in [LATEST_FILE, JOURNAL_FILE] {
        let path = dir.path().join(name);
        let original = fs::read(&path).unwrap();
        for bit in 0..original.len() * 8 {
            let mut bytes = original.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            let error = resolve(dir.path()).unwrap_err();
            assert!(matches!(error, CheckpointError::Root { intact: Some(300), .. }), "{name} bit {bit}: {error}");
            assert!(error.to_string().contains(name), "{error}");
            let fallen_back = found(resolve_or_fall_back(dir.path()).unwrap());
            assert_eq!(fallen_back.checkpoint.iteration(), 300, "{name} bit {bit}");
            assert!(matches!(fallen_back.report.notices[..], [Notice::Fault(_)]));
        }
        fs::write(&path, original).unwrap();
    }
}

#[test]
fn falling_back_reports_what_was_passed_over() {
    let dir = root_with(&[1, 2, 3]);
    let path = folder(dir.path(), 3).join("model-rank00000.safetensors");
    harm(&path, Harm::FlipBit, &mut Random(2));
    fs::remove_file(folder(dir.path(), 2).join(METADATA_FILE)).unwrap();
    let Resolved { checkpoint, report } = found(resolve_or_fall_back(dir.path()).unwrap());
    assert_eq!(checkpoint.iteration(), 1);
    assert_whole(&checkpoint);
    let skipped: Vec<_> = report.skipped.iter().map(|s| (s.iteration, s.damage.len())).collect();
    assert_eq!(skipped, [(Some(3), 1), (Some(2), 1)]);
    assert!(
        matches!(&report.skipped[0].damage[0], Damage::ChecksumMismatch { expected, found, .. } if expected != found)
    );
    let text = report.to_string();
    assert!(
        text.contains("iter_0000003 is damaged\n  - model-rank00000.safetensors: expected checksum xxh3"),
        "{text}"
    );
}

#[test]
fn nothing_but_damage_is_never_a_fresh_start() {
    let dir = root_with(&[1, 2]);
    for step in [1, 2] {
        fs::remove_file(folder(dir.path(), step).join(TRAIN_STATE_FILE)).unwrap();
    }
    let error = resolve_or_fall_back(dir.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::NothingIntact { skipped, .. } if skipped.len() == 2), "{error}");
    assert!(error.to_string().contains("train_state.json: missing"), "{error}");
    let Err(CheckpointError::Damaged(damaged)) = resolve(dir.path()) else {
        panic!("a damaged checkpoint was loaded");
    };
    assert_eq!(damaged.intact, None);
    // Also when the folders are all gone and only the pointer remembers them.
    for step in [1, 2] {
        fs::remove_dir_all(folder(dir.path(), step)).unwrap();
    }
    assert!(matches!(resolve_or_fall_back(dir.path()), Err(CheckpointError::NothingIntact { .. })));
    assert!(matches!(resolve(dir.path()), Err(CheckpointError::Damaged(_))));
}

#[test]
fn a_step_that_was_asked_for_is_never_replaced_by_another() {
    let dir = root_with(&[1, 2]);
    fs::remove_file(folder(dir.path(), 2).join(TRAIN_STATE_FILE)).unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    let at = |step| {
        let request = LoadRequest { ckpt_step: Some(step), fallback: true, ..LoadRequest::default() };
        store.resolve(&request)
    };
    assert!(matches!(at(2), Err(CheckpointError::Damaged(damaged)) if damaged.intact == Some(1)));
    let error = at(5).unwrap_err().to_string();
    assert!(error.ends_with("no checkpoint of iteration 5; there are: 1, 2"), "{error}");
    let one = CheckpointStore::open(folder(dir.path(), 2)).unwrap();
    let request = LoadRequest { fallback: true, ..LoadRequest::default() };
    assert!(matches!(one.resolve(&request), Err(CheckpointError::Damaged(damaged)) if damaged.intact == Some(1)));
    assert!(matches!(store.open_iteration(2, Verification::Sizes), Err(CheckpointError::Damaged(_))));
    assert_eq!(store.open_iteration(1, Verification::Sizes).unwrap().iteration(), 1);
}

/// Damage whose checksums are right: written by another program, or by a later Bridge.
#[test]
fn metadata_that_lies_is_found_too() {
    type Forge = fn(&mut serde_json::Value);
    let dir = root_with(&[1, 2]);
    let path = folder(dir.path(), 2).join(METADATA_FILE);
    let (original, _) = unseal::<serde_json::Value>(&fs::read(&path).unwrap()).unwrap();
    let forgeries: [(Forge, &str); 8] = [
        (|m| m["format_version"] = 99.into(), "format version 99, but this program reads versions up to 1"),
        (|m| m["iteration"] = 7.into(), "says iteration 2, its metadata.json says 7"),
        (|m| m["tensors"]["model.big"]["slices"][0]["key"] = "model.other".into(), "lacks `model.other`"),
        (|m| m["tensors"]["model.big"]["slices"][0]["file"] = "nowhere".into(), "`nowhere`, which is not listed"),
        (|m| m["tensors"]["model.big"]["slices"][0]["file"] = "tokenizer.json".into(), "not a safetensors file"),
        (|m| m["tensors"]["model.big"]["dtype"] = "I32".into(), "is F32 [100, 30], metadata.json has it as I32"),
        (|m| m["tensors"]["model.big"]["shape"] = serde_json::json!([u64::MAX, u64::MAX]), "more bytes than can"),
        (|m| drop(m.as_object_mut().unwrap().remove("tensors")), "missing field `tensors`"),
    ];
    for (forge, expected) in forgeries {
        let mut metadata = original.clone();
        forge(&mut metadata);
        fs::write(&path, seal(&metadata).unwrap().0).unwrap();
        let text = resolve(dir.path()).unwrap_err().to_string();
        assert!(text.contains(expected), "expected {expected:?} in {text}");
    }
}

#[test]
fn shards_of_garbage_under_right_checksums_do_no_harm() {
    let dir = root_with(&[1, 2]);
    let metadata_path = folder(dir.path(), 2).join(METADATA_FILE);
    let name = "model-rank00000.safetensors";
    let shard_path = folder(dir.path(), 2).join(name);
    let (mut metadata, _) = unseal::<Metadata>(&fs::read(&metadata_path).unwrap()).unwrap();
    let original = fs::read(&shard_path).unwrap();
    let mut random = Random(3);
    for case in 0..200 {
        let mut bytes = original.clone();
        match case % 4 {
            0 => bytes.truncate(random.below(12)),
            1 => bytes[..8].copy_from_slice(&random.next().to_le_bytes()),
            2 => bytes[random.below(8)] = random.next() as u8,
            _ => bytes[8 + random.below(400)] = random.next() as u8,
        }
        let record = FileRecord { size: bytes.len() as u64, checksum: Checksum::compute(&bytes) };
        metadata.files.insert(name.to_owned(), record);
        fs::write(&shard_path, &bytes).unwrap();
        fs::write(&metadata_path, seal(&metadata).unwrap().0).unwrap();
        match resolve(dir.path()) {
            Err(error) => assert!(error.to_string().contains(name), "{error}"),
            // The changed byte has no effect: it is padding of the header, or has the same value as
            // before.
            Ok(resolution) => drop(found(resolution).checkpoint.load_tensor("model.big").unwrap()),
        }
    }
}
