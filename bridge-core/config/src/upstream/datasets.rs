//! Upstream's classes of fine-tuning data: today's and older names of packing, preprocessing and
//! sources.

use super::super::error::{ConfigError, ErrorKind};
use super::super::kinds::FINETUNING;
use super::super::node::{Data, Entry, Node};
use super::entries::{TARGET, is_given, is_true, rename, set, take, text, value};

/// Fields that name data of the Hugging Face hub, and how it is divided and converted.
const HUB: &str = "dataset_name dataset_subset dataset_dict process_example_fn hf_filter_lambda hf_filter_lambda_kwargs \
                   hf_kwargs download_mode delete_raw rewrite split_val_from_train val_proportion split hf_dataset \
                   hf_validation_dataset hf_test_dataset hf_output_root hf_validation_proportion hf_rewrite";

/// Settings of every kind of dataset: all that stays if the command line chooses another kind than
/// the class.
const SHARED: [&str; 6] = ["kind", "seq_length", "sequence_length", "random_seed", "seed", "num_workers"];

/// Options of prompts with answers that have the same names in `dataset_kwargs`.
const PREPROCESSING: [&str; 4] = ["add_bos", "add_sep", "add_eos", "truncation_method"];

/// Replaces fields of `[dataset]` by the settings that they mean; returns remarks about the omitted
/// fields. Fails on data of the Hugging Face hub without a folder of files, and preprocessing that
/// Bridge cannot do.
pub(super) fn settings_of(class: &str, entries: &mut Vec<Entry>) -> Result<Vec<String>, Box<ConfigError>> {
    let is_tuning = text(entries, "kind") == Some(FINETUNING);
    if let Some(given) = entries.iter().find(|entry| entry.key == "kind" && is_given(&entry.node))
        && is_of_tuning(class)
        && given.node != Node::string(FINETUNING)
    {
        let kind = given.node.to_inline();
        let (kept, left): (Vec<_>, Vec<_>) = std::mem::take(entries)
            .into_iter()
            .partition(|entry| is_given(&entry.node) || SHARED.contains(&entry.key.as_str()));
        *entries = kept;
        let names: Vec<_> = left.iter().filter(|e| !e.node.is_null()).map(|entry| entry.key.as_str()).collect();
        let head = format!("dataset: fields of {class} that dataset.kind = {kind} of the command line does not have");
        return Ok(vec![format!("{head}: {}", names.join(", "))]);
    }
    if !is_of_tuning(class) || !is_tuning {
        return Ok(Vec::new());
    }
    let mut remarks = Vec::new();
    let has_files = value(entries, "dataset_root").is_some() || value(entries, "source").is_some();
    let sources = ["dataset_name", "hf_dataset"];
    let source = sources.into_iter().find(|key| value(entries, key).is_some());
    if let (false, Some(key)) = (has_files, source) {
        let node = value(entries, key).cloned().unwrap_or_else(Node::null);
        let found = match &node.data {
            Data::Table(_) => node.get("path").or_else(|| node.get("dataset_name")).unwrap_or(&node).to_inline(),
            _ => node.to_inline(),
        };
        let message = "data of the Hugging Face hub, which is not downloaded";
        let error = ConfigError::new(ErrorKind::NotImplemented, format!("dataset.{key}"), message)
            .with_found(found)
            .with_expected("dataset.dataset_root: a folder with training.jsonl and validation.jsonl of these records")
            .with_location(node.location)
            .with_hint("or choose dataset.kind=mock for a run without data");
        return Err(Box::new(error));
    }
    let mut left = Vec::new();
    for key in HUB.split_whitespace() {
        if let Some(entry) = take(entries, key)
            && !entry.node.is_null()
        {
            left.push(key);
        }
    }
    if source.is_some() {
        remarks.push(format!("dataset: dataset.dataset_root is read instead of data of the hub: {}", left.join(", ")));
    }
    let packs = take(entries, "enable_offline_packing").is_none_or(|entry| entry.node.data == Data::Bool(true));
    if packs {
        rename(entries, "offline_packing_specs", "packed_sequence_specs");
    } else {
        take(entries, "offline_packing_specs");
    }
    if let Some(entry) = take(entries, "preprocessing")
        && let Data::Table(fields) = &entry.node.data
    {
        preprocessing(entries, fields, &entry)?;
    }
    Ok(remarks)
}

/// Leaves out the fields that only one class of data has.
pub(super) fn keep_shared(entries: &mut Vec<Entry>) {
    entries.retain(|entry| is_given(&entry.node) || SHARED.contains(&entry.key.as_str()));
}

/// True for classes of fine-tuning data.
fn is_of_tuning(class: &str) -> bool {
    class.contains("Finetuning") || class.contains("SFT") || class.contains("HF")
}

/// Turns today's preprocessing classes into settings of `dataset_kwargs`.
fn preprocessing(entries: &mut Vec<Entry>, fields: &[Entry], whole: &Entry) -> Result<(), Box<ConfigError>> {
    let class = text(fields, TARGET).unwrap_or_default().rsplit('.').next().unwrap_or_default();
    let mut kwargs = Vec::new();
    let mut put = |key: &str, data: Data| kwargs.push(Entry::new(key, data.into()));
    let refused = |key: &str, found: String, expected: &str| {
        let error =
            ConfigError::new(ErrorKind::NotImplemented, format!("dataset.preprocessing.{key}"), "not implemented yet")
                .with_found(found)
                .with_expected(expected)
                .with_location(whole.node.location.clone());
        Box::new(error)
    };
    match class {
        "ChatSFTPreprocessingConfig" => {
            put("chat", Data::Bool(true));
            match text(fields, "loss_mode").unwrap_or("assistant") {
                "assistant" => {}
                "full" => put("answer_only_loss", Data::Bool(false)),
                other => return Err(refused("loss_mode", other.to_owned(), "assistant or full")),
            }
        }
        "PromptCompletionSFTPreprocessingConfig" => {
            put("chat", Data::Bool(false));
            let prompt = text(fields, "prompt_column").unwrap_or("prompt");
            let completion = text(fields, "completion_column").unwrap_or("completion");
            let template = text(fields, "prompt_template").unwrap_or("{prompt}");
            let separator = text(fields, "separator").unwrap_or_default();
            let prompt_text = template.replace("{prompt}", &format!("{{{prompt}}}"));
            put("prompt_template", Data::String(format!("{prompt_text}{separator}{{{completion}}}")));
            put("label_key", Data::String(completion.to_owned()));
            put("truncation_field", Data::String(prompt.to_owned()));
            if text(fields, "loss_mode") == Some("full") {
                put("answer_only_loss", Data::Bool(false));
            }
            for field in PREPROCESSING {
                if let Some(node) = value(fields, field) {
                    put(field, node.data.clone());
                }
            }
        }
        other => {
            let expected = "ChatSFTPreprocessingConfig or PromptCompletionSFTPreprocessingConfig";
            return Err(refused(TARGET, other.to_owned(), expected));
        }
    }
    if let Some(Data::Table(old)) = take(entries, "dataset_kwargs").map(|entry| entry.node.data) {
        kwargs.extend(
            old.into_iter().filter(|entry| !is_true(std::slice::from_ref(entry), "use_hf_tokenizer_chat_template")),
        );
    }
    set(entries, "dataset_kwargs", Data::Table(kwargs));
    Ok(())
}
