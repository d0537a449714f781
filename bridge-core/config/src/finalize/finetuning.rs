//! The rules of fine-tuning data: required settings, and settings that belong to other data.

use super::super::choice::DataloaderType;
use super::super::kinds::FINETUNING;
use super::super::sections::PackedSequenceSpecs;
use super::Draft;

/// Checks the settings of examples, and fills in the sampler.
pub(super) fn check(draft: &mut Draft<'_>, kind: &str) {
    if kind != FINETUNING {
        let specs = draft.recipe.dataset.packed_sequence_specs.clone().unwrap_or_default();
        draft.forbid(
            specs != PackedSequenceSpecs::default(),
            "dataset.packed_sequence_specs",
            "needs dataset.kind = \"finetuning\"",
        );
        let key = "dataset.source_format";
        draft.forbid(
            draft.recipe.dataset.makes_examples(),
            key,
            "must be text or jsonl without dataset.kind = \"finetuning\"",
        );
        return;
    }
    let is_made = draft.recipe.dataset.makes_examples();
    for key in ["dataset.source", "dataset.split"] {
        // Two places of data contradict each other.
        let is_void = !is_made && draft.recipe_differs(key);
        draft.forbid(is_void, key, "excludes dataset.kind = \"finetuning\", which reads dataset.dataset_root");
    }
    let root = draft.recipe.dataset.dataset_root.clone();
    match (is_made, root) {
        (true, root) => {
            let message = "excludes dataset.source_format = \"rust-docs\", which makes examples of dataset.source";
            draft.forbid(root.is_some(), "dataset.dataset_root", message);
            if draft.recipe.dataset.split.is_none() {
                let message = "must be given, such as \"97,3,0\" for training, validation, test";
                draft.missing("dataset.split", message);
            }
        }
        (false, None) => draft.missing("dataset.dataset_root", "must be given: the folder with training.jsonl"),
        (false, Some(_)) => {}
    }
    draft.recipe.dataset.dataloader_type.get_or_insert(DataloaderType::Batch);
    packing(draft);
    prompts(draft);
}

fn prompts(draft: &mut Draft<'_>) {
    let kwargs = draft.recipe.dataset.dataset_kwargs.clone();
    let is_padded =
        kwargs.pad_to_max_length || kwargs.pack_on_the_fly || draft.recipe.dataset.packed_sequence_specs.is_some();
    let key = "dataset.dataset_kwargs.pad_seq_length_to_mult";
    let is_changed = draft.recipe_differs(key);
    draft.idle_if(is_padded && is_changed, key, "has no effect where every sequence has the full length");
}

fn packing(draft: &mut Draft<'_>) {
    // As upstream: without a size nothing is packed.
    let specs = draft.recipe.dataset.packed_sequence_specs.clone();
    let Some(specs) = specs.filter(|specs| *specs != PackedSequenceSpecs::default()) else {
        draft.recipe.dataset.packed_sequence_specs = None;
        return;
    };
    let longest = draft.recipe.model.seq_length;
    let size = usize::try_from(specs.packed_sequence_size).unwrap_or(0);
    let key = "dataset.packed_sequence_specs.packed_sequence_size";
    let message = format!("must be 1 to model.seq_length = {longest}");
    draft.require(size > 0 && size <= longest, key, message);
    let key = "dataset.packed_sequence_specs.num_tokenizer_workers";
    let workers = specs.num_tokenizer_workers;
    draft.require(workers == -1 || (1..=4096).contains(&workers), key, "must be -1, for all cores, or 1 to 4096");
    draft.forbid(
        draft.recipe.dataset.dataset_kwargs.pack_on_the_fly,
        "dataset.dataset_kwargs.pack_on_the_fly",
        "excludes dataset.packed_sequence_specs, by which sequences are packed beforehand",
    );
    let padded = draft.recipe.dataset.dataset_kwargs.pad_to_max_length;
    draft.idle_if(
        padded,
        "dataset.dataset_kwargs.pad_to_max_length",
        "has no effect with packed sequences, which all have the full length",
    );
}
