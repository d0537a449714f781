//! Fine-tuning data: from the `dataset` section to the parameters of its datasets.

use bridge_data::sft::{EpochOrder, ExampleOptions, Packing, RecordKind, SftParams, SftProvider};
use bridge_data::{DataError, DatasetProvider};

use crate::config::DataloaderType;
use crate::train::data::registry::DatasetFactoryContext;

/// The factory of fine-tuning data.
pub(in crate::train) fn sft_provider(context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
    let section = context.section;
    let kwargs = &section.dataset_kwargs;
    let root = section.dataset_root.clone().or_else(|| context.examples.clone());
    let root = root.ok_or_else(|| DataError::Parameter("dataset.dataset_root: must be given".to_owned()))?;
    let specs = section.packed_sequence_specs.as_ref();
    let threads = specs.and_then(|specs| usize::try_from(specs.num_tokenizer_workers).ok());
    let parts = context.sequence_parts;
    Ok(Box::new(SftProvider::new(SftParams {
        root,
        cache: section.path_to_cache.clone(),
        example: ExampleOptions {
            seq_length: section.seq_length,
            kind: match kwargs.chat {
                Some(true) if context.preferences => RecordKind::ChatPreference,
                _ if context.preferences => RecordKind::Preference,
                None => RecordKind::AsWritten,
                Some(true) => RecordKind::Chat,
                Some(false) => RecordKind::Prompt,
            },
            prompt_template: kwargs.prompt_template.clone(),
            label_key: kwargs.label_key.clone(),
            truncation_field: kwargs.truncation_field.clone(),
            truncation_method: kwargs.truncation_method,
            add_bos: kwargs.add_bos,
            add_eos: kwargs.add_eos,
            add_sep: kwargs.add_sep,
            answer_only_loss: kwargs.answer_only_loss,
            tokens_to_generate: kwargs.tokens_to_generate,
        },
        bad_line: kwargs.on_bad_line,
        max_train_samples: section.max_train_samples,
        packing: match specs {
            Some(specs) => Packing::Offline {
                size: usize::try_from(specs.packed_sequence_size).unwrap_or(section.seq_length),
                multiple: specs.pad_seq_to_mult,
                algorithm: specs.packing_algorithm,
            },
            None if kwargs.pack_on_the_fly => Packing::OnTheFly,
            None => Packing::Off,
        },
        // Both hold of the least common multiple.
        pad_multiple: least_common_multiple(kwargs.pad_seq_length_to_mult, parts),
        pad_to_max_length: kwargs.pad_to_max_length,
        seed: section.random_seed,
        order: match section.dataloader_type {
            Some(DataloaderType::Cyclic) => EpochOrder::AsStored,
            _ => EpochOrder::Shuffled,
        },
        splits: [true, section.do_validation, section.do_test],
        validates_files: context.validation.multiple_validation_sets,
        num_threads: threads,
    })?))
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}
