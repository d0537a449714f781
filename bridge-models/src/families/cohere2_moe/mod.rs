//! Cohere 2 with experts (Command A+): blocks side by side that read one norm, and after a few
//! dense layers experts and shared ones, whose outputs are averaged or added.

#[cfg(test)]
mod tests;

use super::cohere2::ROWS_BESIDE_SIZES;
use super::llama;
use super::mixture::{self, FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere2_moe",
    architecture: "Cohere2MoeForCausalLM",
    settings: SETTINGS,
    weights: &[mixture::SHARED, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Cohere2MoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    // Dense layers are as wide as experts unless a key says otherwise.
    size("intermediate_size", |c| &mut experts(c).ffn_hidden_size),
    size_from("prefix_dense_intermediate_size", |c| &mut c.ffn_hidden_size, |_, c| Ok(c.ffn_hidden_size)),
    Setting::Group(&HeadSizeOr(128)),
    Setting::Rows(ROWS_BESIDE_SIZES),
    size_or("num_experts", |c| &mut experts(c).num_experts, 8),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 2),
    Setting::Keys { read: read_router, write: write_router },
    Setting::Keys { read: read_combination, write: write_combination },
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 0)))),
    Setting::Keys { read: read_norm, write: write_norm },
    Setting::Keys { read: read_windows, write: windows::write_pattern },
    // transformers does not read it.
    Setting::Only("rope_scaling", || Value::Null),
    Setting::Keys { read: read_rope, write: write_rope },
];

const SCORES: [(&str, RouterScoreFunction); 2] =
    [("softmax", RouterScoreFunction::Softmax), ("sigmoid", RouterScoreFunction::Sigmoid)];

fn read_router(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let key = "expert_selection_fn";
    let name = fields.string(key)?.unwrap_or(SCORES[0].0);
    let known = SCORES.iter().find(|(known, _)| *known == name);
    let (_, function) = known.ok_or_else(|| fields.error(key, &format!("\"{name}\""), "softmax or sigmoid"))?;
    let normalizes = fields.bool("norm_topk_prob")?.unwrap_or(true);
    let moe = experts(config);
    moe.score_function = *function;
    moe.raw_scores = moe.score_function == RouterScoreFunction::Sigmoid && !normalizes;
    Ok(())
}

fn write_router(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    let name =
        SCORES.iter().find(|(_, function)| *function == moe.score_function).map_or(SCORES[0].0, |(name, _)| name);
    settings.insert("expert_selection_fn".into(), json!(name));
    settings.insert("norm_topk_prob".into(), json!(!moe.raw_scores));
}

const SHARED: SharedExperts = SharedExperts("num_shared_experts", None);
const COMBINATION: &str = "shared_expert_combination_strategy";

/// Reads the shared experts, whose output and that of the routed ones are added or averaged.
fn read_combination(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let name = fields.string(COMBINATION)?.unwrap_or("average");
    let is_known = ["average", "sum"].contains(&name);
    fields.require(is_known, COMBINATION, &format!("\"{name}\""), "average or sum")?;
    if fields.get(SHARED.0).is_none_or(|shared| *shared == 0) {
        return Ok(());
    }
    experts(config).output_multiplier = if name == "sum" { 1.0 } else { 0.5 };
    SHARED.read(fields, config)
}

fn write_combination(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_sum = config.moe.as_ref().is_none_or(|moe| moe.output_multiplier == 1.0);
    settings.insert(COMBINATION.into(), json!(if is_sum { "sum" } else { "average" }));
    SHARED.write(config, settings);
}

const EPSILON: &str = "rms_norm_eps";

/// RMSNorm if its epsilon is there, else LayerNorm.
fn read_norm(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    if let Some(epsilon) = fields.number(EPSILON)? {
        (config.norm.kind, config.norm.epsilon) = (Normalization::RmsNorm, epsilon);
    }
    Ok(())
}

fn write_norm(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let epsilon = Some(config.norm.epsilon).filter(|_| config.norm.kind == Normalization::RmsNorm);
    settings.insert(EPSILON.into(), json!(epsilon));
}

const FORM: RopeForm = RopeForm { interleaved: true, ..RopeForm::USUAL };
const DENSE_PATTERN: &str = "prefix_dense_sliding_window_pattern";

/// Dense layers at the beginning have a window pattern of their own.
fn read_windows(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let patterns = [fields.size(DENSE_PATTERN)?.unwrap_or(1), fields.size("sliding_window_pattern")?.unwrap_or(4)];
    let dense = fields.get(FIRST_DENSE).and_then(Value::as_u64).unwrap_or(0) as usize;
    let has_window = |layer: usize| match layer.checked_sub(dense) {
        None => !(layer + 1).is_multiple_of(patterns[0]),
        Some(layer) => !(layer + 1).is_multiple_of(patterns[1]),
    };
    let usual = (0..config.num_layers).map(has_window).collect();
    windows::read_layers(fields, config, 4096, usual)
}

/// Dense layers without a window are rotated too if their pattern has no windows.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rotates_dense = fields.size(DENSE_PATTERN)?.unwrap_or(1) == 1;
    let windowed = windows::windowed_layers(config).into_iter().enumerate();
    let rotates = |(layer, has_window)| has_window || rotates_dense && config.moe_layer(layer).is_none();
    let without = windowed.map(|layer| !rotates(layer)).collect();
    FORM.read(fields, config)?;
    windows::set_unrotated(config, without);
    Ok(())
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_unrotated = |layer: usize| config.moe_layer(layer).is_none() && !config.rotates(layer);
    let has_unrotated = (0..config.num_layers).any(is_unrotated);
    settings.insert(DENSE_PATTERN.into(), json!(if has_unrotated { 2 } else { 1 }));
    FORM.write(config, settings);
    settings.remove("rope_scaling");
}
