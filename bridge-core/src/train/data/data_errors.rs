//! Setting of a recipe that a problem of its data is about, for messages. The meaning of a setting
//! is not known here.

use std::path::Path;

use bridge_data::DataError;
use bridge_data::indexed::{bin_path, idx_path};

use crate::config::{ConfigError, ErrorKind, FINETUNING, RunConfig};
use crate::train::data::error::InputError;
use crate::train::data::gpt_data::dataset_prefix;

/// The same problem under the setting that leads to it, with the place in the recipe; problems of
/// no setting as they are.
pub(in crate::train) fn name_setting(config: &RunConfig, error: InputError) -> InputError {
    let InputError::Data(error) = error else { return error };
    match setting(config, &error) {
        Some((key, kind)) => {
            let error = ConfigError::new(kind, key, error.to_string()).with_location(config.location(key));
            error.into()
        }
        None => InputError::Data(error),
    }
}

fn setting(config: &RunConfig, error: &DataError) -> Option<(&'static str, ErrorKind)> {
    let dataset = &config.dataset;
    match error {
        // Examples are named by their folder; those made of a source by that.
        DataError::Source(_) if dataset.kind == FINETUNING && dataset.dataset_root.is_some() => {
            Some(("dataset.dataset_root", ErrorKind::Missing))
        }
        DataError::Source(_) => Some(("dataset.source", ErrorKind::Missing)),
        DataError::NotMade { .. } => Some(("dataset.source_cache_dir", ErrorKind::Conflict)),
        DataError::Exclude(_) => Some(("dataset.source_exclude", ErrorKind::WrongType)),
        DataError::SplitTooSmall { .. } if dataset.split_shares.is_some() && dataset.kind != "mock" => {
            Some(("dataset.split", ErrorKind::Conflict))
        }
        DataError::BlendOversamples { .. } => Some(("dataset.mid_level_dataset_surplus", ErrorKind::OutOfRange)),
        DataError::Io { path, .. } | DataError::Malformed { path, .. } | DataError::Truncated { path, .. } => {
            token_files(config, path).map(|key| (key, ErrorKind::Unreadable))
        }
        _ => None,
    }
}

/// The setting that names the token file `path`, if it is one that the recipe names.
fn token_files(config: &RunConfig, path: &Path) -> Option<&'static str> {
    let dataset = &config.dataset;
    let is_of = |prefix: &String| {
        let prefix = Path::new(prefix);
        [prefix, &dataset_prefix(prefix)].iter().any(|prefix| path == idx_path(prefix) || path == bin_path(prefix))
    };
    if dataset.blend.as_ref().is_some_and(|blend| blend.paths.iter().any(is_of)) {
        return Some(if dataset.data_path.is_some() { "dataset.data_path" } else { "dataset.blend" });
    }
    let mut per_split = dataset.blend_per_split.iter().flatten().flatten();
    per_split.any(|blend| blend.paths.iter().any(is_of)).then_some("dataset.blend_per_split")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{Format, Kinds, World, load_text};

    const TINY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/tests/fixtures/config/tiny.toml"));

    fn missing(path: &str) -> InputError {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        InputError::Data(DataError::Io { action: "open the index", path: PathBuf::from(path), source })
    }

    fn named(overrides: &[&str], error: InputError) -> String {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World::SINGLE).expect("accepted");
        name_setting(&config, error).to_string()
    }

    #[test]
    fn files_are_named_by_the_setting_that_names_them() {
        let recipe = ["dataset.kind=gpt", "dataset.data_path=a.bin b/c", "dataset.split=9,1"];
        for path in ["a.idx", "b/c.idx", "b/c.bin"] {
            let text = named(&recipe, missing(path));
            assert!(text.contains("error: dataset.data_path: "), "{text}");
            assert!(text.contains("--> command line: dataset.data_path=a.bin b/c"), "{text}");
        }
        let other = named(&recipe, missing("b/cache.idx"));
        assert!(!other.contains("dataset."), "{other}");
        let blend = ["dataset.kind=gpt", "dataset.blend=[['x']]", "dataset.split=9,1"];
        assert!(named(&blend, missing("x.idx")).contains("error: dataset.blend: "));
        let splits = ["dataset.kind=gpt", "dataset.blend_per_split=[[['x']], [['y']], 'null']"];
        assert!(named(&splits, missing("y.bin")).contains("error: dataset.blend_per_split: "));
    }

    #[test]
    fn examples_are_named_by_their_folder() {
        let recipe = ["dataset.kind=finetuning", "dataset.dataset_root=d4"];
        let text = named(&recipe, InputError::Data(DataError::Source("d4: there is no training data".into())));
        assert!(text.starts_with("error: dataset.dataset_root: d4: there is no training data\n"), "{text}");
        assert!(text.contains("--> command line: dataset.dataset_root=d4"), "{text}");
    }

    #[test]
    fn text_is_named_by_its_source() {
        let recipe = [
            "dataset.kind=gpt",
            "dataset.source=nothing/*.txt",
            "dataset.split=9,1",
            "tokenizer.tokenizer_type=ByteLevelBPE",
            "tokenizer.vocab_size=null",
        ];
        let text = named(&recipe, InputError::Data(DataError::Source("no file matches".into())));
        assert!(
            text.starts_with("error: dataset.source: no file matches\n  --> command line: dataset.source="),
            "{text}"
        );
        let text = named(&recipe, InputError::Data(DataError::Exclude("pattern \"[\"".into())));
        assert!(text.starts_with("error: dataset.source_exclude: pattern"), "{text}");
        assert_eq!(named(&recipe, InputError::Data(DataError::Interrupted)), DataError::Interrupted.to_string());
    }
}
