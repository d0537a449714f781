//! Tests of the configuration tree, by a user's actions.

mod advice;
mod checkpoint_args;
mod coverage;
mod data_parallel;
mod distillation;
mod experts;
mod fuzz;
mod graphs;
mod kinds;
mod mutated;
mod offload;
mod ops;
mod overrides;
mod presets;
mod reading;
mod refused;
mod refused_models;
mod round_trip;
mod rules;
mod stragglers;
mod together;
mod trackers;
mod upstream;
mod validation_sets;
mod values;

use super::{ConfigErrors, Format, Kinds, RawConfig, RunConfig, World, load_text};

/// A small Llama-style recipe on mock data.
pub(super) const TINY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/tiny.toml"));

/// Text files, a trained tokenizer, 16-bit compute.
pub(super) const TEXT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/text.toml"));

/// Loads TOML with overrides, on one rank.
pub(super) fn run_toml(text: &str, overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    load_text(text, Format::Toml, &overrides, &Kinds::builtin(), &World::SINGLE)
}

/// The tiny recipe with overrides.
pub(super) fn tiny(overrides: &[&str]) -> Result<RunConfig, ConfigErrors> {
    run_toml(TINY, overrides)
}

/// The tiny recipe before it is checked.
pub(super) fn tiny_raw() -> RawConfig {
    RawConfig::from_text(TINY, Format::Toml, &[], &Kinds::builtin()).expect("the fixture reads")
}

/// Problems of the tiny recipe with overrides, of which there must be some: errors, or otherwise
/// settings without effect, each of which is a warning too.
pub(super) fn tiny_errors(overrides: &[&str]) -> ConfigErrors {
    match tiny(overrides).and_then(strict_as_warned) {
        Ok(_) => panic!("{overrides:?} was accepted"),
        Err(errors) => errors,
    }
}

/// The configuration, if it is strict; otherwise the settings without effect, of which there is one
/// warning each.
pub(super) fn strict_as_warned(config: RunConfig) -> Result<RunConfig, ConfigErrors> {
    let warnings = config.warnings().to_vec();
    config.strict().inspect_err(|errors| {
        for error in errors {
            let told = warnings.iter().filter(|warning| **warning == error.sentence()).count();
            assert_eq!(told, 1, "{error}");
            assert!(error.message.contains("no effect"), "{error}");
        }
    })
}

/// Asserts that the overrides of each row are refused with a problem of exactly the row's key.
pub(super) fn assert_all_refused(rows: &[(&[&str], &str)]) {
    let wrong = rows.iter().filter_map(|(overrides, key)| {
        let errors = tiny_errors(overrides);
        (!errors.names(key)).then(|| format!("{overrides:?} should name {key}:\n{errors}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Asserts that the overrides are refused with a problem of exactly `key`.
pub(super) fn assert_refused(overrides: &[&str], key: &str) {
    assert_all_refused(&[(overrides, key)]);
}
