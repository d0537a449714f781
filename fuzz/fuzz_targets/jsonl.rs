//! Documents of a JSON Lines file.
#![no_main]

use bridge_data::source::{SourceParams, TextSource};
use bridge_fuzz::with_files;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    with_files(&[("text.jsonl", data)], |folder| {
        for shuffle_seed in [None, Some(1)] {
            let inputs = vec![folder.join("text.jsonl").display().to_string()];
            let source = TextSource::resolve(&SourceParams { inputs, shuffle_seed, ..SourceParams::default() });
            if let Ok(documents) = source.and_then(|source| source.documents()) {
                documents.flatten().for_each(|document| drop(document.into_text()));
            }
        }
    });
});
