//! Token files: `.idx` and `.bin`.
#![no_main]

use bridge_data::indexed::{BinAccess, IndexedDataset};
use bridge_fuzz::{parts, with_files};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (index, tokens) = parts(data);
    with_files(&[("text.idx", index), ("text.bin", tokens)], |folder| {
        for access in [BinAccess::Mmap, BinAccess::Pread] {
            if let Ok(dataset) = IndexedDataset::open(folder.join("text"), access) {
                for i in 0..dataset.len().min(100) {
                    let _ = dataset.sequence(i);
                }
                for i in 0..dataset.num_documents().min(100) {
                    let _ = dataset.document(i);
                }
            }
        }
    });
});
