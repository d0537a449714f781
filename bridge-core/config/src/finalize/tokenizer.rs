//! The rules of `[tokenizer]`.

use super::super::choice::TokenizerType;
use super::super::error::ErrorKind;
use super::super::kinds::Kinds;
use super::super::templates::{NO_TEMPLATE, has_marks, names_file};
use super::Draft;

/// Checks that the tokenizer has the settings that its type needs, and none that only another type
/// uses.
pub(super) fn check(draft: &mut Draft<'_>) {
    let config = draft.recipe.tokenizer.clone();
    match config.tokenizer_type {
        None => none(draft),
        Some(TokenizerType::ByteLevelBpe) => byte_level_bpe(draft),
        Some(kind @ (TokenizerType::Multimodal | TokenizerType::NullMultimodal)) => {
            let message = format!("not implemented yet: {kind} is for images");
            draft.error(ErrorKind::NotImplemented, "tokenizer.tokenizer_type", message);
            return;
        }
        Some(_) => prompt_format_is_known(draft),
    }
    vocabulary_fits(draft);
    let is_template =
        config.chat_template.as_deref().is_none_or(|template| names_file(template) || has_marks(template));
    draft.require(is_template, "tokenizer.chat_template", NO_TEMPLATE);
}

fn none(draft: &mut Draft<'_>) {
    data_needs_a_tokenizer(draft);
    if draft.recipe.dataset.source.is_some() {
        let message = "must be given: dataset.source is text";
        draft.missing("tokenizer.tokenizer_type", message);
    }
    if may_bring_a_tokenizer(draft) {
        return;
    }
    if draft.recipe.generate.prompt.is_some() {
        let message = "must be given: generate.prompt is text";
        draft.missing("tokenizer.tokenizer_type", message);
    }
    if draft.recipe.model.vocab_size.is_none() {
        draft.missing("model.vocab_size", "must be given without tokenizer.tokenizer_type");
    }
}

/// A kind that a program registered may have its own tokenizer. Whether it does is known only when
/// its data is built.
fn may_bring_a_tokenizer(draft: &Draft<'_>) -> bool {
    Kinds::builtin().dataset.get(&draft.recipe.dataset.kind).is_none()
}

/// Mock data takes its vocabulary from the tokenizer, and the other kinds the end-of-document
/// token.
fn data_needs_a_tokenizer(draft: &mut Draft<'_>) {
    let key = "tokenizer.tokenizer_type";
    let kind = draft.recipe.dataset.kind.clone();
    if matches!(kind.as_str(), "mock" | "fim" | "t5" | "mock_t5" | "finetuning") {
        draft.missing(key, format!("must be given with dataset.kind = \"{kind}\""));
    }
    let dataset = &draft.recipe.dataset;
    let flags = [
        ("reset_position_ids", dataset.reset_position_ids),
        ("reset_attention_mask", dataset.reset_attention_mask),
        ("eod_mask_loss", dataset.eod_mask_loss),
    ];
    for (flag, is_set) in flags {
        if is_set {
            let message = format!("must be given: dataset.{flag} needs the end-of-document token");
            draft.missing(key, message);
        }
    }
}

fn byte_level_bpe(draft: &mut Draft<'_>) {
    let key = "tokenizer.bpe_vocab_size";
    draft.require(
        draft.recipe.dataset.source.is_some(),
        "tokenizer.tokenizer_type",
        "ByteLevelBPE is trained on dataset.source, which is not given",
    );
    let model_size = draft.recipe.model.vocab_size;
    match (draft.recipe.tokenizer.bpe_vocab_size, model_size) {
        (None, None) => draft.missing(key, "this or model.vocab_size must be given"),
        (None, Some(size)) => {
            draft.require(
                size >= 257,
                "model.vocab_size",
                "ByteLevelBPE needs at least 257: all bytes and the end of a document",
            );
            draft.recipe.tokenizer.bpe_vocab_size = Some(size);
        }
        (Some(_), _) => {}
    }
}

fn prompt_format_is_known(draft: &mut Draft<'_>) {
    let format = draft.recipe.tokenizer.tokenizer_prompt_format.clone();
    const FORMATS: [&str; 4] = ["default", "identity", "nemotron-h-aligned", "nemotron-nano-v2"];
    draft.require(
        format.as_deref().is_none_or(|format| FORMATS.contains(&format)),
        "tokenizer.tokenizer_prompt_format",
        format!("must be one of {}", FORMATS.join(", ")),
    );
}

fn vocabulary_fits(draft: &mut Draft<'_>) {
    let config = draft.recipe.tokenizer.clone();
    // The null tokenizer adds its end-of-document token.
    let (key, tokenizer_size) = match config.tokenizer_type {
        Some(TokenizerType::Null) => ("tokenizer.vocab_size", config.vocab_size.map(|size| size.saturating_add(1))),
        Some(TokenizerType::ByteLevelBpe) => ("tokenizer.bpe_vocab_size", config.bpe_vocab_size),
        _ => return,
    };
    if let (Some(model_size), Some(size)) = (draft.recipe.model.vocab_size, tokenizer_size) {
        let message = format!("is below the tokenizer's vocabulary of {size}, which follows from {key}");
        draft.require(model_size >= size, "model.vocab_size", message);
    }
}
