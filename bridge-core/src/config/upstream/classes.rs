//! Upstream's classes: the section that each belongs to, the kind that it stands for, and the defaults that it sets.

use super::super::node::{Data, Entry, Location, Node};
use super::super::overrides;

/// The classes of each section by their last names. The sections with kinds are below.
const CLASSES: &[(&str, &[&str])] = &[
    ("", &["ConfigContainer"]),
    ("rng", &["RNGConfig"]),
    ("rerun_state_machine", &["RerunStateMachineConfig"]),
    ("train", &["TrainingConfig"]),
    ("validation", &["ValidationConfig"]),
    ("optimizer", &["OptimizerConfig", "AdamOptimizerConfig", "SGDOptimizerConfig"]),
    ("optimizer_config_override_provider", &["OptimizerConfigOverrideProvider"]),
    ("ddp", &["DistributedDataParallelConfig"]),
    ("scheduler", &["SchedulerConfig"]),
    ("logger", &["LoggerConfig"]),
    ("tokenizer", &["TokenizerConfig"]),
    ("checkpoint", &["CheckpointConfig"]),
    ("dist", &["DistributedInitConfig"]),
    ("ft", &["FaultToleranceConfig"]),
    ("straggler", &["StragglerDetectionConfig"]),
    ("nvrx_straggler", &["NVRxStragglerDetectionConfig"]),
    ("profiling", &["ProfilingConfig"]),
    ("comm_overlap", &["CommOverlapConfig"]),
    ("mixed_precision", &["MixedPrecisionConfig"]),
    ("tensor_inspect", &["TensorInspectConfig"]),
    ("inprocess_restart", &["InProcessRestartConfig"]),
    ("dataset.dataset_kwargs", &["GPTSFTDataset"]),
    ("dataset.packed_sequence_specs", &["PackedSequenceSpecs"]),
];

/// Classes that choose a kind.
const KINDS: &[(&str, &str, &str)] = &[
    ("dataset", "GPTDatasetConfig", "gpt"),
    ("dataset", "GPTFIMDatasetConfig", "fim"),
    ("dataset", "MockGPTDatasetConfig", "mock"),
    ("dataset", "FinetuningDatasetConfig", "finetuning"),
    ("dataset", "GPTSFTDatasetConfig", "sft"),
    ("peft", "LoRA", "lora"),
    ("peft", "DoRA", "dora"),
    ("model", "GPTModelConfig", "gpt"),
    ("model", "BridgeGPTModelConfig", "gpt"),
    ("model", "MambaModelProvider", "mamba"),
    ("model", "T5ModelProvider", "t5"),
];

/// Model classes that only set fields of the previous class, and those fields. A class for one size, such as
/// `Llama3ModelProvider8B`, begins with the name of its family.
const MODELS: &[(&str, Defaults)] = &[
    ("GPTModelProvider", &[]),
    ("GPTProvider", &[]),
    ("LlamaModelProvider", &[LLAMA]),
    ("Llama2ModelProvider", &[LLAMA]),
    ("Llama3ModelProvider", &[LLAMA, GROUPS, LLAMA3]),
    ("Llama31ModelProvider", &[LLAMA, GROUPS, LLAMA31]),
    ("Llama32ModelProvider", &[LLAMA, GROUPS, LLAMA31]),
    ("CodeLlamaModelProvider", &[LLAMA]),
];

/// The names of the classes of a section.
pub(in super::super) fn classes_of(section: &str) -> Vec<String> {
    let listed = CLASSES.iter().filter(|(of, _)| *of == section).flat_map(|(_, classes)| classes.iter().copied());
    let kinds = KINDS.iter().filter(|(of, ..)| *of == section).map(|(_, class, _)| *class);
    let models = MODELS.iter().map(|(class, _)| *class).take(if section == "model" { 1 } else { 0 });
    listed.chain(kinds).chain(models).map(str::to_owned).collect()
}

type Defaults = &'static [&'static [(&'static str, &'static str)]];

const LLAMA: &[(&str, &str)] = &[
    ("normalization", "RMSNorm"),
    ("activation_func", "silu"),
    ("gated_linear_unit", "true"),
    ("position_embedding_type", "rope"),
    ("add_bias_linear", "false"),
    ("seq_length", "4096"),
    ("attention_dropout", "0.0"),
    ("hidden_dropout", "0.0"),
    ("share_embeddings_and_output_weights", "false"),
];

const GROUPS: &[(&str, &str)] = &[("num_query_groups", "8")];

const LLAMA3: &[(&str, &str)] = &[("init_method_std", "0.01")];

const LLAMA31: &[(&str, &str)] = &[("rope_scaling", "true"), ("rope_scaling_factor", "8.0")];

/// Fields that every file of a class for one size has, unless it was written by hand.
const SIZES: [&str; 3] = ["num_layers", "hidden_size", "num_attention_heads"];

/// A known class.
pub(super) struct Class {
    name: String,
    kind: Option<&'static str>,
    defaults: Defaults,
    /// Whether it sets more than `defaults`.
    is_of_a_size: bool,
}

/// The class of a section by its dotted path, or the known classes.
pub(super) fn find(section: &str, path: &str) -> Result<Class, String> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let class = |kind, defaults, is_of_a_size| Class { name: name.to_owned(), kind, defaults, is_of_a_size };
    let listed = CLASSES.iter().find(|(of, _)| *of == section).map_or(&[][..], |(_, names)| *names);
    let kinds = || KINDS.iter().filter(|(of, ..)| *of == section);
    let models = if section == "model" { MODELS } else { &[] };
    if path.starts_with("megatron.") {
        if listed.contains(&name) {
            return Ok(class(None, &[], false));
        }
        if let Some((.., kind)) = kinds().find(|(_, known, _)| *known == name) {
            return Ok(class(Some(*kind), &[], false));
        }
        let of_family = |family: &str| name.strip_prefix(family).is_some_and(is_size);
        if let Some((family, defaults)) = models.iter().find(|(family, _)| of_family(family)) {
            return Ok(class(Some("gpt"), defaults, name != *family));
        }
    }
    let known: Vec<_> = listed.iter().copied().chain(kinds().map(|k| k.1)).chain(models.iter().map(|m| m.0)).collect();
    Err(format!("megatron's {}", known.join(", ")))
}

/// The rest of a class's name after its family's: empty, or a size such as `70B`.
fn is_size(rest: &str) -> bool {
    rest.is_empty() || (rest.starts_with(|c: char| c.is_ascii_digit()) && rest.ends_with(['B', 'M']))
}

/// Adds the kind, and the values that the class sets and the file leaves out; returns a remark about them.
pub(super) fn fill(class: &Class, entries: &mut Vec<Entry>, at: Option<&Location>) -> String {
    let mut put = |key: &str, data: Data| {
        if entries.iter().any(|entry| entry.key == key) {
            return false;
        }
        entries.push(Entry {
            key: key.to_owned(),
            key_location: at.cloned(),
            node: Node { data, location: at.cloned() },
        });
        true
    };
    if let Some(kind) = class.kind {
        put("kind", Data::String(kind.to_owned()));
    }
    let mut filled = Vec::new();
    for (key, text) in class.defaults.iter().copied().flatten() {
        if put(key, overrides::value_of(text).data) {
            filled.push(format!("{key} = {text}"));
        }
    }
    let lacks_size = SIZES.iter().any(|size| entries.iter().all(|entry| entry.key != *size));
    let mut remark = Vec::new();
    if !filled.is_empty() {
        remark.push(format!("set by the class, since the file leaves them out: {}", filled.join(", ")));
    }
    if class.is_of_a_size && (lacks_size || !filled.is_empty()) {
        remark.push(format!("further defaults of {} are not known here; add them to the file", class.name));
    }
    remark.join("; ")
}
