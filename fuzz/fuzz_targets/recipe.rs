//! Recipes in TOML, YAML and JSON; the first byte chooses.
#![no_main]

use bridge_core::config::{Format, RawConfig, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = [Format::Toml, Format::Yaml, Format::Json][usize::from(*choice) % 3];
    if let Ok(raw) = RawConfig::from_text(text, format, &[], &bridge_models::registry().kinds()) {
        let _ = raw.finalize(&World::SINGLE);
    }
});
