//! Reference values as `bridge verify` reads them.
#![no_main]

use bridge_fuzz::with_files;
use bridge_models::huggingface::HfCheckpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    with_files(&[("golden.safetensors", data)], |folder| {
        if let Ok(file) = HfCheckpoint::open_file(&folder.join("golden.safetensors")) {
            for name in ["input_ids", "train_ids"] {
                let _ = file.read_ints(name);
            }
            for name in ["loss", "ce_loss", "train_losses", "train_grad_norms"] {
                let _ = file.read_doubles(name);
            }
            let _ = file.read("logits");
        }
    });
});
