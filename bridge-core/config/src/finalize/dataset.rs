//! The rules of `[dataset]`: where data comes from, blends, splits.

use super::super::choice::DataloaderType;
use super::super::error::ErrorKind;
use super::super::field::OneOrMany;
use super::super::kinds::Kinds;
use super::super::run_config::FinalDataset;
use super::super::sections::{Blend, GptDatasetConfig};
use super::{Draft, finetuning};

/// Checks the dataset and fills in length, seed and split.
pub(super) fn resolve(draft: &mut Draft<'_>) -> FinalDataset {
    let kind = draft.recipe.dataset.kind.clone();
    draft.check_kind::<GptDatasetConfig>("dataset.kind", &kind);
    let seq_length = seq_length(draft);
    let seed = draft.recipe.rng.seed;
    let random_seed = *draft.recipe.dataset.random_seed.get_or_insert(seed);
    let blend = blend(draft);
    match kind.as_str() {
        kind if is_generated(kind) => {
            mock_has_no_data(draft);
        }
        kind if reads_token_files(kind) => data_is_given_once(draft),
        _ => {}
    }
    fim_settings_go_with_fim(draft, &kind);
    finetuning::check(draft, &kind);
    blends_per_split(draft);
    dataloader_fits(draft, &kind);
    surplus_has_weights(draft, &kind, blend.as_ref());
    full_validation_has_no_weights(draft, blend.as_ref());
    validation_sets_are_named(draft, &kind);
    let split_shares = split(draft, &kind);
    draft.recipe.dataset.extra = draft.extra_with_defaults(&draft.recipe.dataset);
    span_corruption(draft, &kind);
    FinalDataset {
        kind,
        seq_length,
        random_seed,
        blend,
        split_shares,
        extra: draft.recipe.dataset.extra.clone(),
        config: draft.recipe.dataset.config.clone(),
    }
}

/// True if datasets of the kind are made of token files.
pub(in super::super) fn reads_token_files(kind: &str) -> bool {
    matches!(kind, "gpt" | "fim" | "t5")
}

/// True if datasets of the kind are generated.
pub(in super::super) fn is_generated(kind: &str) -> bool {
    matches!(kind, "mock" | "mock_t5")
}

/// Samples of span corruption have an encoder's and a decoder's sequence, and no options of running
/// text.
fn span_corruption(draft: &mut Draft<'_>, kind: &str) {
    if !matches!(kind, "t5" | "mock_t5") {
        return;
    }
    for key in [
        "dataset.reset_position_ids",
        "dataset.reset_attention_mask",
        "dataset.eod_mask_loss",
        "dataset.add_extra_token_to_sequence",
        "dataset.allow_ambiguous_pad_tokens",
    ] {
        let is_changed = draft.recipe_differs(key);
        draft.idle_if(is_changed, key, format!("has no effect with dataset.kind = \"{kind}\""));
    }
    let number = |name: &str| {
        let value = draft.recipe.dataset.extra.get(name);
        value.and_then(|value| value.as_float().or_else(|| value.as_integer().map(|value| value as f64)))
    };
    let longest = draft.recipe.model.seq_length as f64;
    let rules = [
        ("masked_lm_prob", "must be above 0 and below 1", number("masked_lm_prob").is_none_or(|p| p > 0.0 && p < 1.0)),
        ("short_seq_prob", "must be 0 to 1", number("short_seq_prob").is_none_or(|p| (0.0..=1.0).contains(&p))),
        (
            "mean_span_length",
            "must be at least 1, and no longer than a sample",
            number("mean_span_length").is_none_or(|mean| (1.0..=longest.max(1.0)).contains(&mean)),
        ),
        ("num_sentinels", "must be at least 1", number("num_sentinels").is_none_or(|count| count >= 1.0)),
    ];
    for (name, message, is_met) in rules {
        draft.require(is_met, &format!("dataset.{name}"), message);
    }
}

fn seq_length(draft: &mut Draft<'_>) -> usize {
    let model_length = draft.recipe.model.seq_length;
    let length = *draft.recipe.dataset.seq_length.get_or_insert(model_length);
    draft.require(
        length == model_length,
        "dataset.seq_length",
        format!("must equal model.seq_length = {model_length}"),
    );
    length
}

/// `data_path` as a blend, as upstream reads it: entries that alternate with numbers are weighted.
fn blend(draft: &mut Draft<'_>) -> Option<Blend> {
    let key = "dataset.data_path";
    let Some(data_path) = draft.recipe.dataset.data_path.clone() else {
        let blend = draft.recipe.dataset.blend.clone();
        if let Some(blend) = &blend {
            check_blend(draft, "dataset.blend", blend);
        }
        return blend;
    };
    let entries: Vec<String> = match data_path {
        OneOrMany::One(text) => text.split_whitespace().map(str::to_owned).collect(),
        OneOrMany::Many(entries) => entries,
    };
    if !entries.len().is_multiple_of(2) {
        return checked(draft, key, entries, None);
    }
    let numbers: Vec<Option<f64>> = entries.iter().step_by(2).map(|e| e.parse().ok()).collect();
    if numbers.iter().all(Option::is_none) {
        return checked(draft, key, entries, None);
    }
    let weights: Option<Vec<f64>> = numbers.into_iter().collect();
    if weights.is_none() {
        draft.conflict(key, "mixes weighted and unweighted paths");
        return None;
    }
    let paths = entries.into_iter().skip(1).step_by(2).collect();
    checked(draft, key, paths, weights)
}

fn checked(draft: &mut Draft<'_>, key: &str, paths: Vec<String>, weights: Option<Vec<f64>>) -> Option<Blend> {
    let blend = Blend { paths, weights };
    check_blend(draft, key, &blend);
    Some(blend)
}

fn check_blend(draft: &mut Draft<'_>, key: &str, blend: &Blend) {
    let is_named = !blend.paths.is_empty() && blend.paths.iter().all(|path| !path.is_empty());
    draft.require(is_named, key, "is not the name of a dataset");
    let Some(weights) = &blend.weights else { return };
    draft.require(weights.len() == blend.paths.len(), key, "must have as many weights as paths");
    let is_valid = weights.iter().all(|w| w.is_finite() && *w > 0.0);
    if !is_valid || !weights.iter().sum::<f64>().is_finite() {
        let message = "weights must be finite and above 0; leave out datasets that should not be read";
        draft.error(ErrorKind::OutOfRange, key, message);
    }
}

fn given(draft: &Draft<'_>) -> Vec<&'static str> {
    let dataset = &draft.recipe.dataset;
    let per_split = dataset.blend_per_split.as_ref();
    [
        ("dataset.source", dataset.source.is_some()),
        ("dataset.data_path", dataset.data_path.is_some()),
        ("dataset.blend", dataset.blend.is_some()),
        ("dataset.blend_per_split", per_split.is_some_and(|splits| splits.iter().any(Option::is_some))),
    ]
    .into_iter()
    .filter_map(|(key, is_given)| is_given.then_some(key))
    .collect()
}

fn mock_has_no_data(draft: &mut Draft<'_>) {
    for key in given(draft) {
        draft.conflict(key, "makes no sense with dataset.kind = \"mock\"");
    }
}

/// An external loader needs a dataset that has one, and whole global batches need a constant batch
/// size.
fn dataloader_fits(draft: &mut Draft<'_>, kind: &str) {
    let key = "dataset.dataloader_type";
    match draft.recipe.dataset.dataloader_type {
        Some(DataloaderType::External) => {
            let is_built_in = Kinds::builtin().dataset.get(kind).is_some();
            let message = format!(
                "\"external\" needs a dataset with its own loader, but dataset.kind = \"{kind}\" is read sample by sample; a program can \
                 register a kind that has one"
            );
            draft.require(!is_built_in, key, message);
        }
        Some(DataloaderType::Batch) => {
            let is_constant = draft.recipe.train.rampup_batch_size.is_none();
            draft.require(
                is_constant,
                key,
                "\"batch\" needs a constant batch size: it excludes train.rampup_batch_size",
            );
        }
        _ => {}
    }
}

/// A surplus can be requested only from a member that has a share of the samples.
fn surplus_has_weights(draft: &mut Draft<'_>, kind: &str, blend: Option<&Blend>) {
    let key = "dataset.mid_level_dataset_surplus";
    if !reads_token_files(kind) && !is_generated(kind) {
        return;
    }
    let per_split = draft.recipe.dataset.blend_per_split.clone().unwrap_or_default();
    let is_weighted = per_split.iter().flatten().chain(blend).any(|blend| blend.weights.is_some());
    let is_changed = draft.recipe_differs(key);
    let message = "has no effect without weights in dataset.data_path, dataset.blend or dataset.blend_per_split, which \
                   dataset.kind = \"mock\" and dataset.source lack";
    draft.idle_unless(is_weighted || !is_changed, key, message);
}

fn data_is_given_once(draft: &mut Draft<'_>) {
    let given = given(draft);
    if given.is_empty() {
        draft.missing(
            "dataset.data_path",
            "no data: give this, dataset.blend, dataset.blend_per_split or dataset.source, or choose dataset.kind = \"mock\"",
        );
    }
    for key in given.iter().skip(1) {
        draft.conflict(key, format!("excludes {}", given[0]));
    }
    if let Some(source) = &draft.recipe.dataset.source {
        let patterns = source.as_slice();
        let is_named = !patterns.is_empty() && patterns.iter().all(|p| !p.trim().is_empty());
        draft.require(is_named, "dataset.source", "is not the name of a file");
    }
}

fn fim_settings_go_with_fim(draft: &mut Draft<'_>, kind: &str) {
    if kind != "fim" {
        return;
    }
    let dataset = draft.recipe.dataset.config.clone();
    let names = ["prefix", "middle", "suffix", "pad", "eod"];
    let tokens = dataset.fim_extra_tokens.unwrap_or_default();
    let has_all = tokens.is_empty() || names.iter().all(|name| tokens.contains_key(*name));
    let has_no_other = tokens.keys().all(|name| names.contains(&name.as_str()));
    draft.require(
        has_all && has_no_other,
        "dataset.fim_extra_tokens",
        "must name the tokens prefix, middle, suffix, pad and eod",
    );
}

fn blends_per_split(draft: &mut Draft<'_>) {
    let key = "dataset.blend_per_split";
    let Some(splits) = draft.recipe.dataset.blend_per_split.clone() else { return };
    draft.require(splits.len() == 3, key, "must be a list of three: train, valid, test");
    for blend in splits.iter().flatten() {
        check_blend(draft, key, blend);
    }
}

/// Refuses weights for a split that is evaluated completely.
fn full_validation_has_no_weights(draft: &mut Draft<'_>, blend: Option<&Blend>) {
    let per_split = draft.recipe.dataset.blend_per_split.clone();
    let valid = per_split.and_then(|splits| splits.get(1).cloned().flatten());
    // The weight of a split's only member has no effect.
    let valid = valid.filter(|blend| blend.paths.len() > 1);
    let is_weighted = |blend: &Blend| blend.weights.is_some();
    draft.require(
        !draft.recipe.validation.full_validation
            || !(blend.is_some_and(is_weighted) || valid.as_ref().is_some_and(is_weighted)),
        "validation.full_validation",
        "reads the whole validation split, so the weights of its blend have no meaning",
    );
}

/// Sets that are evaluated apart are named by the recipe, or lie in the folder of fine-tuning data.
fn validation_sets_are_named(draft: &mut Draft<'_>, kind: &str) {
    if !draft.recipe.validation.multiple_validation_sets || !(reads_token_files(kind) || is_generated(kind)) {
        return;
    }
    let key = "validation.multiple_validation_sets";
    let per_split = draft.recipe.dataset.blend_per_split.clone();
    let valid = per_split.and_then(|splits| splits.get(1).cloned().flatten());
    let is_several = valid.as_ref().is_some_and(|blend| blend.paths.len() > 1);
    draft.require(
        is_several,
        key,
        "needs several validation sets: a second blend in dataset.blend_per_split with more than one path",
    );
    let is_weighted = valid.is_some_and(|blend| blend.weights.is_some());
    draft.require(
        !is_weighted,
        key,
        "evaluates each set apart, so the weights of the validation blend have no meaning",
    );
}

/// The shares of the three splits. Mock data is split evenly, as upstream.
fn split(draft: &mut Draft<'_>, kind: &str) -> Option<[f64; 3]> {
    if draft.recipe.dataset.blend_per_split.is_some() {
        return None;
    }
    let needs_split = reads_token_files(kind) && !given(draft).is_empty();
    if draft.recipe.dataset.split.is_none() && needs_split {
        let message = "must be given, such as \"969,30,1\" for train, valid, test";
        draft.missing("dataset.split", message);
        return None;
    }
    if is_generated(kind) {
        draft.recipe.dataset.split.get_or_insert_with(|| "1,1,1".into());
    }
    let text = draft.recipe.dataset.split.clone()?;
    let shares = parse_split(&text);
    if shares.is_none() {
        let message = "must be up to three shares that are not negative and not all 0, such as \"969,30,1\"";
        draft.error(ErrorKind::OutOfRange, "dataset.split", message);
    }
    if is_generated(kind) && shares.is_some_and(|shares| shares != [1.0 / 3.0; 3]) {
        let message = "cannot be chosen with generated data, which is always split 1,1,1";
        draft.conflict("dataset.split", message);
    }
    shares
}

/// Shares from text such as `969,30,1`, padded with 0 to three and divided by their sum.
pub(super) fn parse_split(text: &str) -> Option<[f64; 3]> {
    let mut shares = [0.0; 3];
    let parts: Vec<&str> = text.split([',', ' ', ':', '/']).map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.len() > 3 {
        return None;
    }
    for (share, part) in shares.iter_mut().zip(&parts) {
        *share = part.parse().ok()?;
    }
    let sum: f64 = shares.iter().sum();
    let is_valid = shares.iter().all(|share| share.is_finite() && *share >= 0.0) && sum > 0.0;
    (is_valid && sum.is_finite()).then(|| shares.map(|share| share / sum))
}
