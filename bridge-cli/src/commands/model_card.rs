//! The model card of an exported folder: the checkpoint's record of its training.

use std::fmt::Write;
use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, TrainState};
use bridge_core::train::LOSSES_KEY;
use bridge_data::untrusted_io;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::model_source::recipe;

/// Key in the training state of a merged model for the sources of the merge.
const MERGED_KEY: &str = "merged";

/// State of an adapter's run that a merge keeps: progress and losses.
pub fn history(of_adapter: &TrainState) -> Map<String, Value> {
    let made = json!({ "iteration": of_adapter.step, "samples": of_adapter.consumed_train_samples });
    let losses = of_adapter.extra.get(LOSSES_KEY).map(|losses| (LOSSES_KEY.to_owned(), losses.clone()));
    [(MERGED_KEY.to_owned(), made)].into_iter().chain(losses).collect()
}

/// Beginning of the sentence by which a card is recognized.
const EXPORTED: &str = "Exported by Bridge ";

/// True if an export has written the card at `path`.
pub fn is_own(path: &Path) -> bool {
    untrusted_io::read_text(path, untrusted_io::SETTINGS_BYTES)
        .is_ok_and(|text| text.lines().any(|line| line.starts_with(EXPORTED)))
}

/// Contents of an exported folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Model with this number of parameters.
    Model(u64),
    /// Adapter with this number of modules, without its base.
    Adapter(usize),
}

/// The text of `README.md` for a checkpoint that is exported as a model of `family`, or as an
/// adapter on one.
pub fn render(checkpoint: &Checkpoint, family: &str, exported: Exported) -> Result<String, Failure> {
    let raw = recipe(checkpoint)?;
    let state = checkpoint.train_state().map_err(Failure::input)?;
    let name = raw.name.clone().unwrap_or_else(|| family.to_owned());
    let dataset = &raw.dataset;
    let merged = state.extra.get(MERGED_KEY);
    let of_merged = |key: &str, own: u64| merged.map_or(own, |merged| merged[key].as_u64().unwrap_or(0));
    let iteration = of_merged("iteration", state.step);
    let samples = of_merged("samples", state.consumed_train_samples);
    let mut data: Vec<String> = dataset.source.iter().flat_map(|source| source.as_slice().to_vec()).collect();
    data.extend(dataset.data_path.iter().flat_map(|path| path.as_slice().to_vec()));
    data.extend(dataset.blend.iter().flat_map(|blend| blend.paths.clone()));
    data.extend(dataset.dataset_root.iter().map(|root| root.display().to_string()));
    if data.is_empty() {
        data.push(if iteration == 0 { "none: imported weights".into() } else { format!("kind {}", dataset.kind) });
    }
    let length = raw.model.seq_length as u64;
    let data: Vec<String> = data.iter().map(|name| without_folders(name)).collect();
    let base = raw.checkpoint.pretrained_checkpoint.as_deref();
    let (library, lora) = match exported {
        Exported::Model(_) => ("transformers", ""),
        Exported::Adapter(_) => ("peft", "- lora\n"),
    };
    let base_model = base.map(|base| format!("base_model: {}\n", json!(without_folders(&base.display().to_string()))));
    // Without a licence the rights of a model's users are unknown: the field is there to be filled
    // in.
    let license = base.and_then(license_of).unwrap_or_else(|| "unknown".to_owned());
    let mut card = format!(
        "---\nlibrary_name: {library}\npipeline_tag: text-generation\nlicense: {license}\n{}tags:\n- bridge\n- {family}\n{lora}---\n\n\
         # {name}\n\n{EXPORTED}{} from iteration {} of the run `{name}`.\n\n| | |\n| --- | --- |\n",
        base_model.unwrap_or_default(),
        env!("CARGO_PKG_VERSION"),
        iteration,
    );
    let mut rows = vec![("family".to_owned(), family.to_owned())];
    rows.push(match exported {
        Exported::Model(count) => ("parameters".into(), count.to_string()),
        Exported::Adapter(count) => ("adapted modules".into(), count.to_string()),
    });
    rows.push(("data".into(), data.join(", ")));
    // Examples are shorter than the sequences: the checkpoint does not know their tokens.
    rows.push(match has_full_sequences(&raw.dataset.kind) {
        true => ("tokens".into(), format!("{} ({samples} samples of {length})", samples.saturating_mul(length))),
        false => ("sequences".into(), format!("{samples}, of at most {length} tokens each")),
    });
    if let Some(base) = base {
        rows.push(("base model".into(), without_folders(&base.display().to_string())));
    }
    for (split, loss) in state.extra.get(LOSSES_KEY).and_then(|losses| losses.as_object()).into_iter().flatten() {
        rows.push((format!("{split} loss"), format!("{} (iteration {})", loss["loss"], loss["iteration"])));
    }
    for (key, value) in rows {
        // A bar would end a cell.
        let value = value.replace('|', "\\|").replace('\n', " ");
        card.extend(["| ", &key, " | ", &value, " |\n"]);
    }
    let text = checkpoint.run_config().map_err(Failure::input)?;
    let settings =
        shown_settings(&text).map_err(|error| Failure::run(format!("the recipe of the checkpoint: {error}")))?;
    let _ = write!(
        card,
        "\n## Recipe\n\nAll settings that decide the training, defaults included; of paths the last name is shown:\n\n```toml\n{}\n```\n",
        settings.trim_end()
    );
    Ok(card)
}

/// True if every token of a sample is one of the data: samples of fine-tuning are examples, with
/// padding after them.
fn has_full_sequences(kind: &str) -> bool {
    matches!(kind, "gpt" | "mock")
}

/// The last name of a path.
fn without_folders(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    if name.is_empty() { path.to_owned() } else { name.to_owned() }
}

/// Licence that the card of a folder names.
fn license_of(folder: &Path) -> Option<String> {
    let text = untrusted_io::read_text(&folder.join("README.md"), untrusted_io::SETTINGS_BYTES).ok()?;
    let head = text.strip_prefix("---\n")?.split("\n---").next()?;
    let name = head.lines().find_map(|line| line.strip_prefix("license:"))?.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
}

/// The settings of a recipe without those of logs, and without folders.
fn shown_settings(text: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut table = text.parse::<toml::Table>()?;
    table.remove("logger");
    table.iter_mut().for_each(|(_, value)| shorten_paths(value));
    Ok(toml::to_string(&table)?)
}

/// Replaces each path in a setting by its last name. Texts such as chat templates have white space
/// or braces.
fn shorten_paths(value: &mut toml::Value) {
    match value {
        toml::Value::String(text) if text.contains('/') && !text.contains(|c: char| c.is_whitespace() || c == '{') => {
            *text = without_folders(text);
        }
        toml::Value::Array(items) => items.iter_mut().for_each(shorten_paths),
        toml::Value::Table(table) => table.iter_mut().for_each(|(_, value)| shorten_paths(value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_no_folders() {
        let text = "name = \"x\"\n[logger]\nlog_dir = \"/home/me/runs\"\n[dataset]\nsource = [\"/home/me/a.txt\", \"b/c.txt\"]\n\
                    [tokenizer]\nchat_template = \"{% if a/b %}\"\n[optimizer]\nlr = 0.1\n";
        let shown = shown_settings(text).unwrap();
        for part in ["name = \"x\"", "\"a.txt\"", "\"c.txt\"", "{% if a/b %}", "lr = 0.1"] {
            assert!(shown.contains(part), "no {part:?} in {shown}");
        }
        assert!(!shown.contains("/home") && !shown.contains("logger"), "{shown}");
    }

    #[test]
    fn licences_come_from_the_card_of_the_base() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(license_of(folder.path()), None);
        let write = |text: &str| std::fs::write(folder.path().join("README.md"), text).unwrap();
        write("---\ntags:\n- a\nlicense: apache-2.0\n---\n# x\n");
        assert_eq!(license_of(folder.path()).as_deref(), Some("apache-2.0"));
        write("# x\nlicense: mit\n");
        assert_eq!(license_of(folder.path()), None);
    }
}
