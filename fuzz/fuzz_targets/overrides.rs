//! Overrides of the command line, one a line.
#![no_main]

use bridge_core::config::{Format, RawConfig, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let overrides: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Ok(raw) = RawConfig::from_text("", Format::Toml, &overrides, &bridge_models::registry().kinds()) {
        let _ = raw.finalize(&World::SINGLE);
    }
});
