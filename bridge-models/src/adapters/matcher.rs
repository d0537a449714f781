//! `[peft]`: selection of the layers with a branch, by name. A pattern is a short name or a full
//! dotted one, in which `*` stands for any characters; names are Megatron's (of layers, and of
//! parts of fused ones such as `linear_q`), or those that any Hugging Face family here has.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::config::{AdapterInit, BaseQuantization, DropoutPosition, FinalTransformer, PeftConfig};
use bridge_core::model::{Declaration, Initial, LinearLayer, ModelBuildError, Scope, matches_pattern};

use bridge_kernels::{CodeFormat, Quantization};

use super::lora::{Branch, Dropout, DropoutPlace, LowRankAdapter, Targets, short_name};
use super::parts::Parts;
use crate::decoder::DecoderConfig;
use crate::families::FAMILIES;

/// Short names of the layers that adapters target by default.
const USUAL_TARGETS: [&str; 14] = [
    "linear_qkv",
    "linear_q",
    "linear_kv",
    "linear_q_proj",
    "linear_k_proj",
    "linear_q_down_proj",
    "linear_q_up_proj",
    "linear_kv_down_proj",
    "linear_kv_up_proj",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
    "in_proj",
    "out_proj",
];

/// Default `target_modules` of a model: its attention, feed-forward and state space layers.
pub fn usual_targets(config: &DecoderConfig) -> Vec<&'static str> {
    let table = config.declarations();
    let weights = table.parameters().iter().filter_map(|declaration| declaration.name.strip_suffix(".weight"));
    let layers: BTreeSet<&str> = weights.map(short_name).collect();
    USUAL_TARGETS.into_iter().filter(|name| layers.contains(name)).collect()
}

/// The adapter that a recipe's `[peft]` asks for, in a decoder whose section is `model`.
///
/// # Errors
/// Errors of settings that are refused for this model.
pub fn low_rank_adapter(peft: &PeftConfig, model: &FinalTransformer) -> Result<LowRankAdapter, ModelBuildError> {
    let experts = model.num_moe_experts.map(|_| model.moe_router_topk);
    let divisor = match (peft.normalize_moe_lora, experts) {
        (false, _) => 1,
        (true, Some(experts)) if experts > 0 && peft.dim.is_multiple_of(experts) => experts,
        (true, _) => {
            let message = "needs experts, and peft.dim divisible by model.moe_router_topk".to_owned();
            return Err(ModelBuildError::Invalid { key: "peft.normalize_moe_lora".into(), message });
        }
    };
    let place = match peft.dropout_position {
        DropoutPosition::Pre => DropoutPlace::Input,
        DropoutPosition::Post => DropoutPlace::Output,
    };
    let matcher = Matcher {
        // A mapping replaces the targets.
        targets: if peft.canonical_mapping.is_empty() { peft.target_modules.clone() } else { Vec::new() },
        mapping: peft.canonical_mapping.iter().map(|(pattern, parts)| (pattern.clone(), names_in(parts))).collect(),
        excluded: peft.exclude_modules.clone(),
        saved: peft.modules_to_save.clone(),
        rank: peft.dim,
        alpha: peft.scale_numerator() as f64,
        divisor,
        met: Mutex::default(),
        met_in_full: Mutex::default(),
    };
    Ok(LowRankAdapter::new(
        Arc::new(matcher),
        peft.kind,
        [initial(peft.lora_A_init_method), initial(peft.lora_B_init_method)],
        Dropout { rate: peft.dropout, place },
    )
    .quantized(
        quantization(peft.base_quantization, peft.base_quantization_block_size),
        quantization(peft.base_quantization_embedding, peft.base_quantization_block_size),
    ))
}

/// Quantization of the base's values.
fn quantization(choice: BaseQuantization, block_size: usize) -> Option<Quantization> {
    let format = match choice {
        BaseQuantization::None => return None,
        BaseQuantization::Int8 => CodeFormat::Int8,
        BaseQuantization::Nf4 => CodeFormat::Nf4,
        BaseQuantization::Int4 => CodeFormat::Int4,
    };
    Some(Quantization { format, block_size })
}

fn names_in(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

/// Initial values of a matrix, by its numbers of inputs and outputs.
fn initial(method: AdapterInit) -> fn(usize, usize) -> Initial {
    match method {
        // Glorot and Bengio, 2010, equation 12, with a normal distribution.
        AdapterInit::Xavier => |inputs, outputs| Initial::Normal((2.0 / (inputs + outputs) as f64).sqrt()),
        AdapterInit::Normal => |_, _| Initial::Normal(0.2),
        // He et al., 2015, with the slope sqrt(5) that PyTorch has for linear layers.
        AdapterInit::Kaiming | AdapterInit::Uniform => |inputs, _| {
            let bound = 1.0 / (inputs as f64).sqrt();
            Initial::Uniform([-bound, bound])
        },
        AdapterInit::Zero => |_, _| Initial::Zeros,
    }
}

/// The patterns of `[peft]`.
#[derive(Debug)]
struct Matcher {
    targets: Vec<String>,
    /// Patterns of fused layers, with the parts that have a branch each.
    mapping: Vec<(String, Vec<String>)>,
    excluded: Vec<String>,
    /// Patterns of modules that are trained in full.
    saved: Vec<String>,
    rank: usize,
    alpha: f64,
    /// Divisor of the rank inside experts.
    divisor: usize,
    /// The patterns that a layer was found for.
    met: Mutex<BTreeSet<String>>,
    /// Patterns of `saved` that matched a parameter.
    met_in_full: Mutex<BTreeSet<String>>,
}

impl Matcher {
    /// True if a pattern matches one of these names; then it is recorded.
    fn matches(&self, pattern: &str, names: &[String]) -> bool {
        let matches = names.iter().any(|name| short_name(name) == pattern || matches_pattern(pattern, name));
        if matches {
            self.met.lock().unwrap_or_else(PoisonError::into_inner).insert(pattern.to_owned());
        }
        matches
    }

    /// True if a parameter is in a module that is trained in full; then the pattern is recorded.
    fn is_in_full(&self, parameter: &str) -> bool {
        if self.saved.is_empty() {
            return false;
        }
        let modules = modules_around(parameter);
        let is_named =
            |pattern: &str| modules.iter().any(|name| short_name(name) == pattern || matches_pattern(pattern, name));
        let matching: Vec<&String> = self.saved.iter().filter(|pattern| is_named(pattern)).collect();
        self.met_in_full.lock().unwrap_or_else(PoisonError::into_inner).extend(matching.iter().copied().cloned());
        !matching.is_empty()
    }

    /// The parts of a layer that have a branch; `[None]` for the whole layer.
    fn parts(&self, layer: &LinearLayer) -> Vec<Option<usize>> {
        let Names { whole, parts } = Names::from_layer(layer);
        if !self.mapping.is_empty() {
            let mapped = self.mapping.iter().filter(|(pattern, _)| self.matches(pattern, &whole));
            let wanted: Vec<&String> = mapped.flat_map(|(_, wanted)| wanted).collect();
            return (0..parts.len())
                .filter(|part| wanted.iter().any(|pattern| self.matches(pattern, &parts[*part])))
                .map(Some)
                .collect();
        }
        let is_any = |patterns: &[String], names: &[String]| {
            patterns.iter().filter(|pattern| self.matches(pattern, names)).count() > 0
        };
        let is_whole = match self.targets.is_empty() {
            true => !is_any(&self.excluded, &whole),
            false => is_any(&self.targets, &whole),
        };
        if is_whole {
            return vec![None];
        }
        (0..parts.len()).filter(|part| is_any(&self.targets, &parts[*part])).map(Some).collect()
    }
}

impl Targets for Matcher {
    fn branches(&self, layer: &LinearLayer, place: &Scope) -> Vec<Branch> {
        if self.is_in_full(&format!("{}.weight", layer.name)) {
            return Vec::new();
        }
        let rank = if place.is_of_expert() { self.rank / self.divisor } else { self.rank };
        let branch = |part| Branch { part, rank, scale: self.alpha / rank as f64 };
        self.parts(layer).into_iter().map(branch).collect()
    }

    fn trains(&self, declaration: &Declaration) -> bool {
        self.is_in_full(&declaration.name)
    }

    fn unmatched(&self) -> Option<String> {
        let met = self.met_in_full.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = self.saved.iter().find(|pattern| !met.contains(*pattern)) {
            let tied = "a head that is tied to the embedding is trained with that";
            return Some(format!(
                "`{name}` in modules_to_save names no module of the model that has weights of its own ({tied})"
            ));
        }
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = self.mapping.iter().flat_map(|(pattern, parts)| std::iter::once(pattern).chain(parts));
        let all = self.targets.iter().chain(&self.excluded).chain(parts);
        let mut unmet = all.filter(|pattern| !met.contains(*pattern));
        unmet.next().map(|name| format!("`{name}` names no linear layer of the model"))
    }
}

/// Modules that a parameter is in, from the outermost: by our names and, outside layers, by those
/// of the Hugging Face families, whose names inside layers are ambiguous.
fn modules_around(parameter: &str) -> Vec<String> {
    let around = |name: &str| -> Vec<String> {
        name.match_indices('.').map(|(place, _)| name[..place].to_owned()).filter(|module| module != "model").collect()
    };
    let mut modules = around(parameter);
    if !parameter.contains(".layers.") {
        let rules = FAMILIES.iter().flat_map(|family| family.weights.iter().copied().flatten());
        let stored = rules.filter_map(|rule| rule.names_of(parameter)).filter(|stored| stored.len() == 1).flatten();
        modules.extend(stored.flat_map(|name| around(&name)));
    }
    modules
}

/// The full names that a layer and its parts have.
struct Names {
    whole: Vec<String>,
    parts: Vec<Vec<String>>,
}

impl Names {
    fn from_layer(layer: &LinearLayer) -> Self {
        let (parent, short) = layer.name.rsplit_once('.').unwrap_or(("", &layer.name));
        let part = |name: &String| vec![format!("{parent}.{name}")];
        let mut names = Self {
            whole: vec![layer.name.clone()],
            parts: Parts::from_layer(layer).names(short).iter().map(part).collect(),
        };
        let rules = FAMILIES.iter().flat_map(|family| family.weights.iter().copied().flatten());
        for stored in rules.filter_map(|rule| rule.names_of(&format!("{}.weight", layer.name))) {
            let stored: Vec<String> =
                stored.iter().filter_map(|name| name.strip_suffix(".weight")).map(str::to_owned).collect();
            if stored.len() == 1 {
                names.whole.extend(stored);
            } else if stored.len() == names.parts.len() {
                names.parts.iter_mut().zip(stored).for_each(|(names, name)| names.push(name));
            }
        }
        // In a family without a gate, the whole layer may have the name that a part has in another
        // family.
        let of_parts: BTreeSet<&str> = names.parts.iter().flatten().map(|name| short_name(name)).collect();
        names.whole.retain(|name| !of_parts.contains(short_name(name)));
        names
    }
}

#[cfg(test)]
mod tests {
    use bridge_core::model::TensorPartition;

    use super::*;

    fn matcher(targets: &[&str], mapping: &[(&str, &str)], excluded: &[&str]) -> Matcher {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Matcher {
            targets: owned(targets),
            mapping: mapping.iter().map(|(pattern, parts)| ((*pattern).to_owned(), names_in(parts))).collect(),
            excluded: owned(excluded),
            saved: Vec::new(),
            rank: 4,
            alpha: 8.0,
            divisor: 1,
            met: Mutex::default(),
            met_in_full: Mutex::default(),
        }
    }

    fn layer(name: &str, cut: TensorPartition) -> LinearLayer {
        LinearLayer { name: name.into(), inputs: 8, outputs: 8, cut }
    }

    #[test]
    fn patterns_match_short_names_full_ones_and_parts() {
        let qkv = layer(
            "decoder.layers.1.self_attention.linear_qkv",
            TensorPartition::KeyValueGroups { groups: 2, head_sizes: [1, 1], gates: false },
        );
        let fc1 = layer("decoder.layers.1.mlp.linear_fc1", TensorPartition::Blocks(2));
        let (whole, none): (Vec<Option<usize>>, Vec<Option<usize>>) = (vec![None], Vec::new());
        let of = |targets: &[&str], layer: &LinearLayer| matcher(targets, &[], &[]).parts(layer);
        assert_eq!(of(&["linear_qkv"], &qkv), whole);
        assert_eq!(of(&["*.layers.1.*.linear_qkv"], &qkv), whole);
        assert_eq!(of(&["*.layers.0.*"], &qkv), none);
        assert_eq!(of(&["layers.1.self_attention.linear_qkv"], &qkv), none, "anchored at both ends");
        assert_eq!(of(&["q_proj", "v_proj"], &qkv), [Some(0), Some(2)]);
        assert_eq!(of(&["model.layers.1.self_attn.k_proj"], &qkv), [Some(1)]);
        assert_eq!(of(&["linear_q", "linear_k"], &qkv), [Some(0), Some(1)]);
        assert_eq!(of(&["linear_fc1_up", "gate_proj"], &fc1), [Some(0), Some(1)]);
        assert_eq!(of(&["up_proj"], &fc1), [Some(1)]);
        assert_eq!(matcher(&[], &[], &["linear_fc1"]).parts(&fc1), none);
        assert_eq!(matcher(&[], &[], &["linear_fc1"]).parts(&qkv), whole);
        let mapped = matcher(&[], &[("*.linear_qkv", "linear_q, linear_v")], &[]);
        assert_eq!(mapped.parts(&qkv), [Some(0), Some(2)]);
        assert_eq!(mapped.parts(&fc1), none);
        let targets = matcher(&["linear_qkv", "linear_typo"], &[], &[]);
        targets.parts(&qkv);
        assert_eq!(targets.unmatched().unwrap(), "`linear_typo` names no linear layer of the model");
    }

    #[test]
    fn modules_in_full_are_met_by_either_name_and_have_no_branch() {
        let saving = |saved: &[&str]| Matcher {
            saved: saved.iter().map(|name| (*name).to_owned()).collect(),
            ..matcher(&[], &[], &[])
        };
        let parameters = [
            "embedding.word_embeddings.weight",
            "decoder.layers.0.input_layernorm.weight",
            "decoder.layers.0.mlp.linear_fc1.weight",
            "decoder.final_layernorm.weight",
            "output_layer.weight",
        ];
        let in_full = |saved: &[&str]| -> Vec<usize> {
            let matcher = saving(saved);
            let of_all = (0..5).filter(|index| matcher.is_in_full(parameters[*index])).collect();
            assert_eq!(matcher.unmatched(), None, "{saved:?}");
            of_all
        };
        assert_eq!(in_full(&["embed_tokens", "lm_head"]), [0, 4]);
        assert_eq!(in_full(&["embedding", "output_layer"]), [0, 4]);
        assert_eq!(in_full(&["model.embed_tokens"]), [0]);
        assert_eq!(in_full(&["norm"]), [3], "the norms of layers are called so in some family");
        assert_eq!(in_full(&["*.layers.*.input_layernorm"]), [1]);
        assert_eq!(in_full(&["mlp"]), [2]);
        let mut matcher = saving(&["linear_fc1", "wte_typo"]);
        matcher.targets = vec!["linear_fc1".to_owned()];
        let declared = matcher.is_in_full(parameters[2]);
        assert!(declared && matcher.unmatched().unwrap().contains("wte_typo"));
    }
}
