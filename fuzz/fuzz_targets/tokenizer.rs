//! `tokenizer.json` and its companion, and use of the loaded tokenizer.
#![no_main]

use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use bridge_fuzz::{parts, with_files};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (tokenizer, config) = parts(data);
    with_files(&[("tokenizer.json", tokenizer), ("tokenizer_config.json", config)], |folder| {
        if let Ok(tokenizer) = HuggingFaceTokenizer::load(folder) {
            if let Ok(ids) = tokenizer.encode("Some words, 123\n\u{e9}\u{1f600}  end") {
                let _ = tokenizer.decode(&ids);
            }
            for id in 0..tokenizer.vocab_size().min(1000) {
                let _ = tokenizer.id_to_bytes(id as i64);
            }
        }
    });
});
