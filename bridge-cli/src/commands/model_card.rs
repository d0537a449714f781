//! The model card of an exported folder: the checkpoint's record of its training.

use std::fmt::Write;
use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, TrainState};
use bridge_core::config::{
    Concerns, Detail, DistillationConfig, DpoConfig, Format, PeftConfig, RawConfig, RecipeConfig, Section,
};
use bridge_core::logging::runs;
use bridge_core::train::{LINEAGE_KEY, LOSSES_KEY};
use bridge_data::untrusted_io;
use bridge_models::registry;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::model_source::recipe;
use crate::rooted::start_folder;

/// Key in the training state of a merged model for the progress and the recipe of the adapter's
/// run.
const MERGED_KEY: &str = "merged";

/// State of an adapter's run that a merge keeps for the model card: progress, recipe and losses.
pub fn history(of_adapter: &Checkpoint) -> Result<Map<String, Value>, Failure> {
    let (raw, state) = (recipe(of_adapter)?, of_adapter.train_state().map_err(Failure::input)?);
    let merged = json!({
        "iteration": state.step,
        "samples": state.consumed_train_samples,
        "recipe": raw.to_toml(),
    });
    let losses = losses_of(of_adapter, &raw, &state);
    Ok([(MERGED_KEY.to_owned(), merged), (LOSSES_KEY.to_owned(), losses.into())].into_iter().collect())
}

/// Last losses of the checkpoint's run by split.
fn losses_of(checkpoint: &Checkpoint, raw: &RawConfig, state: &TrainState) -> Map<String, Value> {
    let mut losses = state.extra.get(LOSSES_KEY).and_then(Value::as_object).cloned().unwrap_or_default();
    let run = state.extra.get(LINEAGE_KEY).and_then(|lineage| lineage["run"].as_str());
    let started = start_folder(raw, checkpoint.path()).unwrap_or_default();
    if let (Some(run), Some(log_dir)) = (run, &raw.logger.log_dir)
        && let Some(loss) = final_validation(&started.join(log_dir), run, state.step)
    {
        losses.insert("validation".to_owned(), json!({ "loss": loss, "iteration": state.step }));
    }
    losses
}

/// Last validation loss in the logs of a run, if it is that of `iteration`. The validation after
/// training follows the last save, so the checkpoint does not have it.
fn final_validation(log_dir: &Path, run: &str, iteration: u64) -> Option<f64> {
    let logged = runs::read(log_dir).ok().filter(|logged| logged.id.as_deref() == Some(run))?;
    let (at, loss) = *logged.losses.validation.last()?;
    (at as u64 == iteration).then_some(loss)
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
    let mut state = checkpoint.train_state().map_err(Failure::input)?;
    // Merges of earlier releases have no recipe of the adapter's run.
    let of_adapter = state.extra.get(MERGED_KEY).and_then(|merged| merged["recipe"].as_str());
    let raw = match of_adapter {
        Some(text) => RawConfig::from_text(text, Format::Toml, &[], &registry().kinds()).map_err(|errors| {
            Failure::input(format!("{}: the recipe of the merged adapter: {errors}", checkpoint.path().display()))
        })?,
        None => recipe(checkpoint)?,
    };
    let losses = losses_of(checkpoint, &raw, &state);
    state.extra.insert(LOSSES_KEY.to_owned(), losses.into());
    let started = start_folder(&raw, checkpoint.path()).or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    text_of(raw, &state, &started, family, exported)
        .map_err(|error| Failure::run(format!("the recipe of the checkpoint: {error}")))
}

/// The text of a card. Absolute paths below `started` are shown relative to it.
fn text_of(
    mut raw: RawConfig,
    state: &TrainState,
    started: &Path,
    family: &str,
    exported: Exported,
) -> Result<String, Box<dyn std::error::Error>> {
    if let Some(peft) = &mut raw.peft {
        peft.alpha = Some(peft.scale_numerator());
    }
    let name = raw.name.clone().unwrap_or_else(|| family.to_owned());
    let merged = state.extra.get(MERGED_KEY);
    let of_merged = |key: &str, own: u64| merged.map_or(own, |merged| merged[key].as_u64().unwrap_or(0));
    let iteration = of_merged("iteration", state.step);
    let samples = of_merged("samples", state.consumed_train_samples);
    let mut data = data_of(&raw, started);
    if data.is_empty() {
        data.push(match iteration {
            0 => "none: imported weights".into(),
            _ => format!("kind {}", raw.dataset.kind),
        });
    }
    let length = raw.dataset.seq_length.unwrap_or(raw.model.seq_length) as u64;
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
    if let Some(peft) = &raw.peft {
        let merged = match exported {
            Exported::Model(_) => ", merged into the base model",
            Exported::Adapter(_) => "",
        };
        let (kind, dim, alpha) = (peft.kind, peft.dim, peft.scale_numerator());
        rows.push(("adapter".into(), format!("{kind} of rank {dim}, alpha {alpha}{merged}")));
    }
    for (split, loss) in state.extra.get(LOSSES_KEY).and_then(|losses| losses.as_object()).into_iter().flatten() {
        let Some(value) = loss["loss"].as_f64() else { continue };
        rows.push((format!("{split} loss"), format!("{} (iteration {})", four_digits(value), loss["iteration"])));
    }
    for (key, value) in rows {
        // A bar would end a cell.
        let value = value.replace('|', "\\|").replace('\n', " ");
        card.extend(["| ", &key, " | ", &value, " |\n"]);
    }
    let _ = write!(
        card,
        "\n## Recipe\n\nSettings that differ from Bridge's defaults. The main settings of a trained model's optimizer, \
         schedule and adapter are always there. Sections that only concern execution, such as logs and checkpoints, are \
         left out.\n\n```toml\n{}\n```\n",
        shown_settings(&raw, iteration > 0, started)?.trim_end()
    );
    Ok(card)
}

/// Sources of the training data, as they are shown.
fn data_of(raw: &RawConfig, started: &Path) -> Vec<String> {
    let dataset = &raw.dataset;
    let mut data: Vec<String> = dataset.source.iter().flat_map(|source| source.as_slice().to_vec()).collect();
    // A text may list several prefixes with their weights.
    let prefixes = dataset.data_path.iter().flat_map(|path| path.as_slice()).flat_map(|text| text.split_whitespace());
    data.extend(prefixes.filter(|word| word.parse::<f64>().is_err()).map(str::to_owned));
    data.extend(dataset.blend.iter().flat_map(|blend| blend.paths.clone()));
    data.extend(dataset.dataset_root.iter().map(|root| root.display().to_string()));
    data.iter().map(|path| shown_path(path, started)).collect()
}

/// Rounds a number to 4 significant digits.
fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// True if every token of a sample is one of the data: samples of fine-tuning are examples, with
/// padding after them.
fn has_full_sequences(kind: &str) -> bool {
    matches!(kind, "gpt" | "mock")
}

/// A relative path unchanged, and an absolute one relative to `started`, or else its last name.
fn shown_path(path: &str, started: &Path) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    match Path::new(path).strip_prefix(started) {
        // Every absolute path is below the root folder.
        Ok(below) if started.parent().is_some() && !below.as_os_str().is_empty() => below.display().to_string(),
        _ => without_folders(path),
    }
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

/// Settings of a trained model that are shown even if they are the defaults.
const MAIN: [(&str, &str); 8] = [
    ("optimizer", "optimizer"),
    ("optimizer", "lr"),
    ("optimizer", "weight_decay"),
    ("scheduler", "lr_decay_style"),
    ("peft", "kind"),
    ("peft", "target_modules"),
    ("peft", "dim"),
    ("peft", "alpha"),
];

/// The settings of a recipe that differ from the defaults, without sections of execution, and those
/// of [`MAIN`] if the model `is_trained`.
fn shown_settings(raw: &RawConfig, is_trained: bool, started: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let mut shown = raw.to_toml().parse::<toml::Table>()?;
    let all = raw.to_text(Format::Toml, Detail::All).parse::<toml::Table>()?;
    for section in RecipeConfig::fields().iter().filter(|section| section.concerns == Concerns::Execution) {
        shown.remove(section.name);
    }
    // Sections that are null by default are written whole.
    for (section, defaults) in [
        ("peft", PeftConfig::default().to_node()),
        ("dpo", DpoConfig::default().to_node()),
        ("distillation", DistillationConfig::default().to_node()),
    ] {
        if let Some(settings) = shown.get_mut(section).and_then(toml::Value::as_table_mut) {
            settings.retain(|name, value| defaults.get(name).is_none_or(|default| default.to_toml_value() != *value));
        }
    }
    for (section, name) in MAIN.into_iter().filter(|_| is_trained) {
        let Some(value) = all.get(section).and_then(|settings| settings.get(name)) else { continue };
        let settings = shown.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(settings) = settings.as_table_mut() {
            settings.insert(name.to_owned(), value.clone());
        }
    }
    shown.iter_mut().for_each(|(_, value)| shorten_paths(value, started));
    Ok(toml::to_string(&shown)?)
}

/// Shortens each absolute path in a setting. Texts with braces are templates.
fn shorten_paths(value: &mut toml::Value, started: &Path) {
    match value {
        toml::Value::String(text) if text.contains('/') && !text.contains('{') => {
            *text = text.split(' ').map(|word| shown_path(word, started)).collect::<Vec<_>>().join(" ");
        }
        toml::Value::Array(items) => items.iter_mut().for_each(|item| shorten_paths(item, started)),
        toml::Value::Table(table) => table.iter_mut().for_each(|(_, value)| shorten_paths(value, started)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawConfig {
        RawConfig::from_text(text, Format::Toml, &[], &registry().kinds()).unwrap()
    }

    const TUNED: &str = "name = \"x\"\n[model]\nseq_length = 512\ncalculate_per_token_loss = true\n\
        [dataset]\nkind = \"finetuning\"\ndataset_root = \"/home/me/work/data/examples\"\n\
        [peft]\ndim = 16\nlora_dtype = \"null\"\n[optimizer]\nlr = 0.5\n\
        [checkpoint]\npretrained_checkpoint = \"/home/me/bases/small\"\n";

    #[test]
    fn settings_have_no_absolute_paths_and_few_defaults() {
        let text = "name = \"x\"\n[logger]\nlog_dir = \"/home/me/runs\"\n\
                    [dataset]\nsource = [\"/home/me/a.txt\", \"b/c.txt\", \"/home/me/work/d/e.txt\"]\n\
                    data_path = \"0.3 /home/me/f 0.7 g/h\"\n\
                    [tokenizer]\nchat_template = \"{% if a/b %}\"\n[optimizer]\nlr = 0.1\n";
        let started = Path::new("/home/me/work");
        let shown = shown_settings(&raw(text), true, started).unwrap();
        for part in ["\"a.txt\"", "\"b/c.txt\"", "\"d/e.txt\"", "0.3 f 0.7 g/h", "{% if a/b %}", "lr = 0.1"] {
            assert!(shown.contains(part), "no {part:?} in {shown}");
        }
        assert!(shown.contains("optimizer = \"adam\"") && shown.contains("lr_decay_style"), "{shown}");
        for part in ["/home", "logger", "peft", "muon"] {
            assert!(!shown.contains(part), "{part:?} in {shown}");
        }
        assert_eq!(data_of(&raw(text), started), ["a.txt", "b/c.txt", "d/e.txt", "f", "g/h"]);
        assert_eq!(shown_path("/home/me/a", Path::new("/")), "a");
        assert_eq!(shown_path("/home/me/a", Path::new("")), "a");
        assert!(!shown_settings(&raw("[model]\nnum_layers = 3\n"), false, started).unwrap().contains("optimizer"));
    }

    #[test]
    fn cards_of_merged_models_tell_how_the_adapter_was_trained() {
        let losses = json!({ "train": { "loss": 6.303396124470358e-05, "iteration": 110 } });
        let merged = json!({ "iteration": 110, "samples": 1760 });
        let extra = [(MERGED_KEY.to_owned(), merged), (LOSSES_KEY.to_owned(), losses)].into_iter().collect();
        let state = TrainState { extra, ..TrainState::default() };
        let started = Path::new("/home/me/work");
        let card = text_of(raw(TUNED), &state, started, "llama", Exported::Model(5)).unwrap();
        for part in [
            "base_model: \"small\"\n",
            "| base model | small |",
            "| adapter | lora of rank 16, alpha 32, merged into the base model |",
            "| data | data/examples |",
            "| sequences | 1760, of at most 512 tokens each |",
            "| train loss | 0.00006303 (iteration 110) |",
            "calculate_per_token_loss = true",
            "[peft]\nalpha = 32\ndim = 16\nkind = \"lora\"\ntarget_modules = [",
        ] {
            assert!(card.contains(part), "no {part:?} in {card}");
        }
        assert!(!card.contains("/home") && !card.contains("null"), "{card}");
        let state = TrainState { step: 110, ..TrainState::default() };
        let card = text_of(raw(TUNED), &state, started, "llama", Exported::Adapter(7)).unwrap();
        assert!(card.contains("| adapter | lora of rank 16, alpha 32 |"), "{card}");
    }

    #[test]
    fn the_final_validation_is_read_from_the_logs() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "{\"kind\":\"train\",\"iteration\":2,\"loss\":6.5,\"run\":\"r\"}\n\
                     {\"kind\":\"valid\",\"iteration\":2,\"loss\":5.5,\"run\":\"r\"}\n";
        assert_eq!(final_validation(folder.path(), "r", 2), None);
        std::fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
        assert_eq!(final_validation(folder.path(), "r", 2), Some(5.5));
        assert_eq!(final_validation(folder.path(), "r", 1), None);
        assert_eq!(final_validation(folder.path(), "other", 2), None);
    }

    #[test]
    fn numbers_are_rounded_to_four_digits() {
        let rounded = [6.3033961e-5, 6.2383857, 0.0, 12346.0].map(|value| four_digits(value).to_string());
        assert_eq!(rounded, ["0.00006303", "6.238", "0", "12350"]);
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
