//! The index of sharded weights.
#![no_main]

use bridge_fuzz::with_files;
use bridge_models::huggingface::HfCheckpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let shard = b"\x08\0\0\0\0\0\0\0{}      ";
    let files = [("model.safetensors.index.json", data), ("a.safetensors", &shard[..])];
    with_files(&files, |folder| drop(HfCheckpoint::open(folder)));
});
