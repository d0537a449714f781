//! Pointer, journal and metadata of a checkpoint root.
#![no_main]

use bridge_core::checkpoint::{CheckpointStore, JOURNAL_FILE, LATEST_FILE, LoadRequest, METADATA_FILE};
use bridge_fuzz::{parts, with_files};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (pointer, rest) = parts(data);
    let (journal, metadata) = parts(rest);
    with_files(&[(LATEST_FILE, pointer), (JOURNAL_FILE, journal)], |root| {
        let folder = root.join("iter_0000001");
        if std::fs::create_dir(&folder).is_ok() && std::fs::write(folder.join(METADATA_FILE), metadata).is_ok() {
            let _ = CheckpointStore::open(root).and_then(|store| store.resolve(&LoadRequest::default()));
        }
    });
});
