//! The model card of an exported folder: what the checkpoint says of how it was made.

use std::fmt::Write;

use bridge_core::checkpoint::{Checkpoint, TrainState};
use bridge_core::train::LOSSES_KEY;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::model_source::recipe;

/// The key of what a merge was made of, in its state.
const MERGED_KEY: &str = "merged";

/// What the state of a merge keeps of that of the adapter's run: where it stood, and its losses.
pub fn history(of_adapter: &TrainState) -> Map<String, Value> {
    let made = json!({ "iteration": of_adapter.step, "samples": of_adapter.consumed_train_samples });
    let losses = of_adapter.extra.get(LOSSES_KEY).map(|losses| (LOSSES_KEY.to_owned(), losses.clone()));
    [(MERGED_KEY.to_owned(), made)].into_iter().chain(losses).collect()
}

/// The text of `README.md` for a checkpoint of `num_parameters` that is exported as a model of `family`.
pub fn of(checkpoint: &Checkpoint, family: &str, num_parameters: u64) -> Result<String, Failure> {
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
    let tokens = samples.saturating_mul(length);
    let mut card = format!(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- bridge\n- {family}\n---\n\n# {name}\n\n\
         Exported by Bridge {} from iteration {} of the run `{name}`.\n\n| | |\n| --- | --- |\n",
        env!("CARGO_PKG_VERSION"),
        iteration,
    );
    let mut rows = vec![
        ("family".to_owned(), family.to_owned()),
        ("parameters".into(), num_parameters.to_string()),
        ("data".into(), data.join(", ")),
        ("tokens".into(), format!("{tokens} ({samples} samples of {length})")),
    ];
    if let Some(base) = &raw.checkpoint.pretrained_checkpoint {
        rows.push(("trained from".into(), base.display().to_string()));
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
    let _ = write!(card, "\n## Recipe\n\nAll settings, defaults included:\n\n```toml\n{}\n```\n", text.trim_end());
    Ok(card)
}
