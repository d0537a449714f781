//! Upstream's classes, with their section, kind and defaults.

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
    ("dataset", "GPTSFTDatasetConfig", "finetuning"),
    ("dataset", "HFDatasetConfig", "finetuning"),
    ("dataset", "DirectHFSFTDatasetConfig", "finetuning"),
    ("peft", "LoRA", "lora"),
    ("peft", "CanonicalLoRA", "lora"),
    ("peft", "DoRA", "dora"),
    ("model", "GPTModelConfig", "gpt"),
    ("model", "BridgeGPTModelConfig", "gpt"),
    ("model", "MambaModelConfig", "mamba"),
    ("model", "MambaModelProvider", "mamba"),
    ("model", "HybridModelConfig", "mamba"),
    ("model", "HybridModelProvider", "mamba"),
    ("model", "T5ModelProvider", "t5"),
];

/// Model classes that only set fields of the previous class, and those fields. A class for one
/// size, such as `Llama3ModelProvider8B`, begins with the name of its family.
const MODELS: &[(&str, Defaults)] = &[
    ("GPTModelProvider GPTProvider", &[]),
    ("LlamaModelProvider Llama2ModelProvider", &[LLAMA]),
    ("Llama3ModelProvider", &[LLAMA, GROUPS, LLAMA3]),
    ("Llama31ModelProvider Llama32ModelProvider", &[LLAMA, GROUPS, LLAMA31]),
    ("CodeLlamaModelProvider", &[LLAMA]),
    (
        "MLAModelProvider DeepSeekModelProvider DeepSeekV2ModelProvider DeepSeekV2LiteModelProvider \
         DeepSeekV3ModelProvider MoonlightModelProvider KimiK2Provider",
        &[LATENT],
    ),
    ("MistralModelProvider MistralSmall3ModelProvider MixtralModelProvider", &[LLAMA]),
    (
        "GemmaModelProvider CodeGemmaModelProvider Gemma2ModelProvider Gemma3ModelProvider OlMoEModelProvider \
         Qwen2ModelProvider Qwen25ModelProvider Qwen3ModelProvider Qwen3MoEModelProvider NemotronModelProvider \
         Nemotron3ModelProvider Nemotron4ModelProvider GPTOSSProvider GLMMoEModelProvider GLM45ModelProvider \
         GLM45AirModelProvider Phi3ModelProvider Starcoder2ModelProvider",
        &[],
    ),
];

/// The classes of [`MODELS`] one by one.
fn models() -> impl Iterator<Item = (&'static str, Defaults)> {
    MODELS.iter().flat_map(|(classes, defaults)| classes.split_whitespace().map(move |class| (class, *defaults)))
}

/// Model classes of `kind = "mamba"`, by the beginning of their name: a size may come before or
/// after `Provider`.
const HYBRIDS: [&str; 4] = ["NemotronHModel", "NemotronNano", "Nemotron3NanoProvider", "Nemotron3SuperProvider"];

/// Model classes by a part of their name that have no counterpart, and the reason.
const ABSENT: &[(&str, &str)] = &[
    ("Qwen3Next", "Qwen3-Next, whose gated delta layers are not implemented"),
    ("Qwen35", "Qwen 3.5, whose gated delta layers are not implemented"),
    ("Gemma3n", "Gemma 3n, whose layers are not implemented"),
    ("Gemma4", "Gemma 4, which is not implemented"),
    ("Llama4", "Llama 4, which is not implemented"),
    ("VL", "a model of images and text; only text models are implemented"),
    ("Omni", "a model of images, audio and text; only text models are implemented"),
    ("45V", "a model of images and text; only text models are implemented"),
    ("Audio", "a model of audio and text; only text models are implemented"),
    ("Mimo", "a model of several modalities; only text models are implemented"),
    ("Heterogeneous", "layers of different sizes, which are not implemented"),
];

/// The message about a class that is not known.
pub(super) fn refusal(path: &str) -> String {
    let name = path.rsplit('.').next().unwrap_or(path);
    let absent = ABSENT.iter().find(|(part, _)| path.starts_with("megatron.") && name.contains(part));
    absent.map_or_else(|| "a class that has no counterpart here".to_owned(), |(_, what)| format!("{name} is {what}"))
}

/// The names of the classes of a section.
pub(in super::super) fn classes_of(section: &str) -> Vec<String> {
    let listed = CLASSES.iter().filter(|(of, _)| *of == section).flat_map(|(_, classes)| classes.iter().copied());
    let kinds = KINDS.iter().filter(|(of, ..)| *of == section).map(|(_, class, _)| *class);
    let models = models().map(|(class, _)| class).take(if section == "model" { 1 } else { 0 });
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

const LATENT: &[(&str, &str)] = &[("multi_latent_attention", "true")];

const GROUPS: &[(&str, &str)] = &[("num_query_groups", "8")];

const LLAMA3: &[(&str, &str)] = &[("init_method_std", "0.01")];

const LLAMA31: &[(&str, &str)] = &[("rope_scaling", "true"), ("rope_scaling_factor", "8.0")];

/// Fields that every file of a class for one size has, unless it was written by hand.
const SIZES: [&str; 3] = ["num_layers", "hidden_size", "num_attention_heads"];

/// Fields that every family of models sets in its own way.
const FORM: [&str; 4] = ["normalization", "activation_func", "gated_linear_unit", "position_embedding_type"];

/// A known class.
pub(super) struct Class {
    pub name: String,
    kind: Option<&'static str>,
    defaults: Defaults,
    /// True if the class sets more than `defaults`.
    is_of_a_size: bool,
}

/// The class of a section by its dotted path, or the known classes.
pub(super) fn find(section: &str, path: &str) -> Result<Class, String> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let class = |kind, defaults, is_of_a_size| Class { name: name.to_owned(), kind, defaults, is_of_a_size };
    let listed = CLASSES.iter().find(|(of, _)| *of == section).map_or(&[][..], |(_, names)| *names);
    let kinds = || KINDS.iter().filter(|(of, ..)| *of == section);
    let models = || models().filter(|_| section == "model");
    if path.starts_with("megatron.") {
        if listed.contains(&name) {
            return Ok(class(None, &[], false));
        }
        if let Some((.., kind)) = kinds().find(|(_, known, _)| *known == name) {
            return Ok(class(Some(*kind), &[], false));
        }
        let of_family = |family: &str| name.strip_prefix(family).is_some_and(is_size);
        if let Some((family, defaults)) = models().find(|(family, _)| of_family(family)) {
            return Ok(class(Some("gpt"), defaults, name != family));
        }
        if section == "model" && !name.contains("VL") && HYBRIDS.iter().any(|family| name.starts_with(family)) {
            return Ok(class(Some("mamba"), &[], false));
        }
    }
    let known: Vec<_> = listed.iter().copied().chain(kinds().map(|k| k.1)).chain(models().map(|m| m.0)).collect();
    Err(format!("megatron's {}", known.join(", ")))
}

/// The rest of a class's name after its family's: empty, or a size such as `70B`.
fn is_size(rest: &str) -> bool {
    let active = |rest: &str| rest.rsplit_once("_A").is_some_and(|(_, active)| active.ends_with('B'));
    rest.is_empty() || (rest.starts_with(|c: char| c.is_ascii_digit()) && (rest.ends_with(['B', 'M']) || active(rest)))
}

/// True if a model class belongs to a family, whose defaults differ from those of the kind.
fn is_of_family(class: &Class) -> bool {
    let is_general = ["GPT", "BridgeGPT", "Mamba", "Hybrid"].iter().any(|name| class.name.starts_with(name));
    matches!(class.kind, Some("gpt" | "mamba")) && (!is_general || class.name == "GPTOSSProvider")
}

/// Adds the kind, and the values that the class sets and the file leaves out; returns a remark
/// about them.
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
    let lacks = |fields: &[&str]| fields.iter().any(|field| entries.iter().all(|entry| entry.key != *field));
    let (lacks_size, lacks_form) = (lacks(&SIZES), is_of_family(class) && lacks(&FORM));
    let mut remark = Vec::new();
    if !filled.is_empty() {
        remark.push(format!("set by the class, since the file leaves them out: {}", filled.join(", ")));
    }
    if lacks_form || class.is_of_a_size && (lacks_size || !filled.is_empty()) {
        remark.push(format!("further defaults of {} are not known here; add them to the file", class.name));
    }
    remark.join("; ")
}
