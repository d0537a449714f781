//! `config.json` of a Hugging Face folder.
#![no_main]

use bridge_fuzz::with_files;
use bridge_models::huggingface::HfModel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // A file without tensors, so that reading after the configuration fails on sizes.
    let weights = b"\x08\0\0\0\0\0\0\0{}      ";
    with_files(&[("config.json", data), ("model.safetensors", weights)], |folder| drop(HfModel::open(folder)));
});
