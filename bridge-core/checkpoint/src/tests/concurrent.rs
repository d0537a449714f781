//! Readers beside a writer never see half of anything.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn readers_beside_a_writer_see_whole_checkpoints_only() {
    let dir = root_with(&[1]);
    let root = dir.path();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let retention = RetentionPolicy::new(1, None).unwrap();
            let writer = CheckpointWriter::open(root, SaveOptions { retention, ..SaveOptions::default() }).unwrap();
            for step in 2..14 {
                writer.save(&snapshot(step)).unwrap();
                writer.save(&snapshot_of(step, 0.5)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let mut seen = Vec::new();
        while !done.load(Ordering::Acquire) || seen.is_empty() {
            let resolved = found(resolve(root).unwrap());
            assert!(resolved.report.skipped.is_empty(), "{}", resolved.report);
            assert_whole(&resolved.checkpoint);
            seen.push(resolved.checkpoint.iteration());
            CheckpointStore::open(root).unwrap().list().unwrap();
        }
        assert!(seen.is_sorted(), "{seen:?}");
    });
    assert_eq!(found(resolve(root).unwrap()).checkpoint.iteration(), 13);
}
