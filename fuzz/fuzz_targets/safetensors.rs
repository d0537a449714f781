//! Header and values of a safetensors file.
#![no_main]

use bridge_fuzz::with_files;
use bridge_models::huggingface::{HfCheckpoint, TensorSource};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    with_files(&[("model.safetensors", data)], |folder| {
        if let Ok(file) = HfCheckpoint::open(folder) {
            let names: Vec<String> = file.tensors().map(|(name, _)| name.to_owned()).collect();
            for name in names {
                let _ = (file.read(&name), file.read_ints(&name), file.read_doubles(&name));
            }
        }
    });
});
