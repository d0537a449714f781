//! The shared settings of `[dataset]`: names, defaults, ranges.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::choice::{DataloaderType, SourceFormat};
use super::super::field::{ByteSize, Field, OneOrMany};
use super::super::limits::Limits;
use super::super::node::{Data, Node};
use super::super::reader::Reader;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{excludes, given_with, idle_unless, needs};
use super::super::section::section;
use super::super::spec::TypeSpec;
use super::{FinetuningKwargs, PackedSequenceSpecs};

/// Dataset prefixes and, unless each is used in proportion to its size, their weights.
/// Written as `[[path, ...]]` or `[[path, ...], [weight, ...]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Blend {
    /// Prefixes of `.bin`/`.idx` pairs.
    pub paths: Vec<String>,
    /// One weight per path.
    pub weights: Option<Vec<f64>>,
}

impl Field for Blend {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        let Data::List(parts) = &node.data else { return reader.wrong_type(node, &Self::spec()) };
        let (paths, weights) = match parts.as_slice() {
            [paths] => (paths, None),
            [paths, weights] => (paths, Some(weights)),
            _ => return reader.wrong_type(node, &Self::spec()),
        };
        let paths = reader.inside("0", |reader| Vec::read(paths, reader));
        let weights = match weights {
            Some(weights) => reader.inside("1", |reader| Option::read(weights, reader)),
            None => Some(None),
        };
        Some(Self { paths: paths?, weights: weights? })
    }

    fn write(&self) -> Node {
        let mut parts = vec![self.paths.write()];
        parts.extend(self.weights.as_ref().map(Vec::write));
        Data::List(parts).into()
    }

    fn spec() -> TypeSpec {
        TypeSpec::List(Box::new(TypeSpec::OneOf(vec![Vec::<String>::spec(), Vec::<f64>::spec()])))
    }
}

/// Fine-tuning data, beside which token files and running text have no place.
const EXAMPLES: &str = "dataset.kind = finetuning: it reads dataset.dataset_root";

section! {
    /// Data source, sample building and loading of pre-training datasets.
    pub struct GptDatasetConfig {
        /// Sampler; null is single.
        dataloader_type: Option<DataloaderType> = None;
        /// Loader workers.
        @execution num_workers: usize = 2, Limits::between(0.0, 65_536.0);
        /// True if each data-parallel rank shuffles its own contiguous part when samples are
        /// shuffled (cyclic training, validation).
        data_sharding: bool = true;
        refused @execution pin_memory = true, "Page-locked batches."
            => no_counterpart("page-locked batches, for copies to a GPU; batches are in ordinary memory").inert(&["false"]);
        /// Drop the last incomplete batch; cyclic sampling always does.
        drop_last: bool = true, excludes("dataset.dataloader_type = cyclic: it has no incomplete batches");
        refused @execution persistent_workers = true, "Keep workers alive."
            => no_counterpart("loader processes that end with their epoch; loaders are threads that run until the end").inert(&["false"]);
        refused @execution trust_remote_code = None::<bool>, "Hub dataset scripts."
            => no_counterpart("code that comes with datasets of the hub; Bridge runs no code of datasets").inert(&["false"]);

        /// Tokens per sample; null means `model.seq_length`, anything else must equal it.
        seq_length: Option<usize> = None, Limits::SIZE;
        /// Seed of all shuffles; null means `rng.seed`.
        random_seed: Option<u64> = None, Limits::SEED;
        /// Dataset prefixes, optionally with weights: "a b" or "0.3 a 0.7 b", or a list.
        data_path: Option<OneOrMany<String>> = None, excludes(EXAMPLES);
        /// Dataset prefixes and weights.
        blend: Option<Blend> = None, excludes(EXAMPLES);
        /// Separate prefixes and weights of train, valid and test.
        blend_per_split: Option<Vec<Option<Blend>>> = None, excludes(EXAMPLES);
        /// Proportions of train, valid and test, such as "969,30,1"; always "1,1,1" for mock data.
        split: Option<String> = None, excludes("dataset.blend_per_split");
        refused multiple_validation_sets = None::<bool>, "Separate losses per validation source."
            => not_built("the old name of validation.multiple_validation_sets; set that instead").inert(&["false"]);
        refused full_validation = None::<bool>, "Old name of `validation.full_validation`."
            => not_built("the old name of validation.full_validation; set that instead").inert(&["false"]);
        /// Parallel builders.
        @execution num_dataset_builder_threads: usize = 1, Limits::between(1.0, 65_536.0),
            idle_unless("dataset.kind != mock"), idle_unless("dataset.kind != mock_t5"), excludes(EXAMPLES);
        /// Folder of index caches.
        @execution path_to_cache: Option<PathBuf> = None;
        /// Map files instead of reading them.
        @execution mmap_bin_files: bool = true, idle_unless("dataset.kind != mock"),
            idle_unless("dataset.kind != mock_t5"), excludes(EXAMPLES);
        /// Fraction of extra samples per member of a blend.
        mid_level_dataset_surplus: f64 = 0.005, Limits::FRACTION, excludes(EXAMPLES);
        /// Mask the padding token even where it also ends documents.
        allow_ambiguous_pad_tokens: bool = false, excludes(EXAMPLES),
            idle_unless("tokenizer.tokenizer_type: there is no padding token"),
            idle_unless("tokenizer.tokenizer_type != NullTokenizer: it has no padding token");
        refused fast_cache_load = false, "Trust existing caches."
            => not_built("index caches used without validating them");
        refused defer_npy_index_mmap = false, "Map index caches late."
            => not_built("index caches mapped at the first sample; they are mapped at the start");
        refused sequences_per_dataset = None::<BTreeMap<String, usize>>, "Known sequence counts."
            => not_built("sequence counts that avoid opening each file; every file is opened anyway").inert(&["{}"]);
        /// Restart positions after each document. Required upstream; defaults to false here.
        reset_position_ids: bool = false, excludes(EXAMPLES);
        /// Keep attention inside documents. Required upstream; defaults to false here.
        reset_attention_mask: bool = false, excludes(EXAMPLES);
        /// No loss at document ends. Required upstream; defaults to false here.
        eod_mask_loss: bool = false, excludes(EXAMPLES);
        refused @execution create_attention_mask = true, "Emit a dense mask."
            => no_counterpart("a dense mask with each sample; attention derives it from the document boundaries").inert(&["false"]);
        /// Drop the short last validation sample.
        drop_last_partial_validation_sequence: bool = true, excludes(EXAMPLES);
        /// Fetch one token more than the sample holds, for the last label.
        add_extra_token_to_sequence: bool = true, excludes(EXAMPLES);
        refused object_storage_cache_path = None::<PathBuf>, "Local cache of object stores."
            => not_built("token files in object stores; files are read from mounted folders");
        refused data_parallel_size = 1_usize, "Padding hint.", Limits::POSITIVE
            => no_counterpart("the replicas that packed samples are padded for; every sample has seq_length tokens");
        refused sequence_parallel_size = 0_usize, "Padding hint."
            => no_counterpart("the tensor ranks that packed samples are padded for; every sample has seq_length tokens");
        refused hybrid_context_parallel = false, "Padding hint."
            => not_built("samples of different lengths over different numbers of context ranks");
        refused context_parallel_size = None::<usize>, "Padding hint.", Limits::POSITIVE
            => no_counterpart("the context ranks that packed samples are padded for; every sample has seq_length tokens").same_as("model.context_parallel_size");
        refused skip_getting_attention_mask_from_dataset = true, "Leave the attention mask to the kernel."
            => no_counterpart("masks that come with the samples; attention computes its own");

        /// Probability of permuting a piece (kind fim).
        fim_rate: Option<f64> = None, Limits::FRACTION, needs("dataset.kind = fim"), given_with("dataset.kind = fim");
        /// Fraction in suffix-prefix-middle order (kind fim).
        fim_spm_rate: Option<f64> = None, Limits::FRACTION, needs("dataset.kind = fim"),
            given_with("dataset.kind = fim");
        /// Tokens named prefix, middle, suffix, pad, eod (kind fim).
        fim_extra_tokens: Option<BTreeMap<String, String>> = None, needs("dataset.kind = fim"),
            given_with("dataset.kind = fim");
        /// Token at which pieces are split (kind fim).
        fim_split_sample: Option<String> = None, needs("dataset.kind = fim"), needs("dataset.fim_fragment_rate");
        /// Rate inside split pieces (kind fim).
        fim_fragment_rate: Option<f64> = None, Limits::FRACTION, needs("dataset.kind = fim"),
            idle_unless("dataset.fim_split_sample");
        /// Pieces that start with this are not permuted (kind fim).
        fim_no_prefix: Option<String> = None, needs("dataset.kind = fim");

        /// Folder with the files of each split: training, validation and test (kind finetuning).
        dataset_root: Option<PathBuf> = None, needs("dataset.kind = finetuning");
        refused @execution memmap_workers = 1_usize, "Index builders.", Limits::POSITIVE
            => no_counterpart("workers that index lines; lines are tokenized once, by packed_sequence_specs.num_tokenizer_workers threads");
        /// Examples of the training split that are used, from the first on (kind finetuning).
        max_train_samples: Option<usize> = None, Limits::POSITIVE, needs("dataset.kind = finetuning");
        /// Grouping of examples into sequences before the run (kind finetuning).
        packed_sequence_specs: Option<PackedSequenceSpecs> = None;
        /// Conversion of lines to examples (kind finetuning).
        dataset_kwargs: FinetuningKwargs = FinetuningKwargs::default(), needs("dataset.kind = finetuning");
        /// Read the validation split (kind finetuning).
        do_validation: bool = true, needs("dataset.kind = finetuning");
        /// Read the test split (kind finetuning).
        do_test: bool = true, needs("dataset.kind = finetuning");

        /// Text files or globs to tokenize (ours); `~`, `$VAR` and `${VAR}` are expanded when read.
        source: Option<OneOrMany<String>> = None;
        /// Format of the source (ours); null means by extension.
        source_format: Option<SourceFormat> = None, idle_unless("dataset.source");
        /// Key of a JSON object, or column of a table, that holds the text (ours).
        source_jsonl_key: String = "text".into(), idle_unless("dataset.source"),
            idle_unless("dataset.source_format != text"), idle_unless("dataset.source_format != rust-docs");
        /// Globs to leave out (ours).
        source_exclude: Vec<String> = Vec::new(), idle_unless("dataset.source");
        /// Maximum bytes of text to use (ours), such as "64MB".
        source_max_bytes: Option<ByteSize> = None, Limits::POSITIVE, idle_unless("dataset.source");
        /// Seed of the shuffle of documents (ours); null keeps the order of the files.
        source_shuffle_seed: Option<u64> = None, Limits::SEED, idle_unless("dataset.source");
        /// Cut documents of the source into pieces of about this size, at blank lines, so that
        /// splits can divide them (ours); null cuts only if the files are fewer than the splits
        /// need.
        source_piece_bytes: Option<ByteSize> = None, Limits::POSITIVE, idle_unless("dataset.source"),
            idle_unless("dataset.source_format != rust-docs");
        /// Folder of the tokenized source (ours); null is `data/<name>`.
        @execution source_cache_dir: Option<PathBuf> = None, idle_unless("dataset.source");
        /// End each document of the source with the end-of-document token (ours).
        append_eod: bool = true, idle_unless("dataset.source"), idle_unless("dataset.source_format != rust-docs");

        alias "sequence_length" = seq_length;
        alias "seed" = random_seed;
    }
}
