//! Index arrays in numpy's format.
#![no_main]

use bridge_fuzz::with_files;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    with_files(&[("index.npy", data)], |folder| drop(bridge_data::gpt::check_index_file(&folder.join("index.npy"))));
});
