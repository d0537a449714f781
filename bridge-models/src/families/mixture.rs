//! Rows of settings and positions of experts that families with experts share.

use crate::families::prelude::*;

/// The experts of a decoder of a family that has them in every model.
pub(super) fn experts(config: &mut DecoderConfig) -> &mut MoeConfig {
    config.moe.get_or_insert_with(MoeConfig::neutral)
}

/// True if the weights of a token's experts sum to one: then they are the softmax over the chosen
/// experts alone.
pub(super) const NORM_TOPK_PROB: Setting = Setting::Keys {
    read: |fields, c| {
        experts(c).pre_softmax = !fields.bool("norm_topk_prob")?.unwrap_or(false);
        Ok(())
    },
    write: write_norm_topk_prob,
};

/// Writes [`NORM_TOPK_PROB`], for families in which its absence means true too.
pub(super) fn write_norm_topk_prob(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_normalized = config.moe.as_ref().is_some_and(|moe| !moe.pre_softmax);
    settings.insert("norm_topk_prob".into(), json!(is_normalized));
}

/// Gives the experts a router with sigmoids and a bias in the choice. Scores are computed in
/// float32 with any dtype of the parameters.
pub(super) fn sigmoid_router(config: &mut DecoderConfig) -> &mut MoeConfig {
    let moe = experts(config);
    (moe.score_function, moe.expert_bias) = (RouterScoreFunction::Sigmoid, true);
    moe.router_precision = Some(RouterDType::Fp32);
    moe
}

/// Reads a factor on the weights of a token's experts.
pub(super) fn read_factor(fields: &Fields, config: &mut DecoderConfig, key: &str, absent: f64) -> Result<(), HfError> {
    let factor = fields.number(key)?.unwrap_or(absent);
    experts(config).topk_scaling_factor = Some(factor).filter(|factor| *factor != 1.0);
    Ok(())
}

/// Writes the factor on the weights of a token's experts.
pub(super) fn write_factor(config: &DecoderConfig, settings: &mut Map<String, Value>, key: &str) {
    let factor = config.moe.as_ref().and_then(|moe| moe.topk_scaling_factor);
    settings.insert(key.into(), json!(factor.unwrap_or(1.0)));
}

/// Defaults of absent settings of a router with sigmoids.
pub(super) struct SigmoidRouter {
    /// `n_group`.
    pub groups: usize,
    /// `topk_group`.
    pub chosen: usize,
    /// `routed_scaling_factor`.
    pub factor: f64,
    /// `norm_topk_prob`.
    pub normalizes: bool,
}

impl SigmoidRouter {
    /// One group, and weights that sum to one.
    pub const UNGROUPED: Self = Self { groups: 1, chosen: 1, factor: 1.0, normalizes: true };

    /// Reads a router like DeepSeek-V3's: groups of experts (a single group has no effect), a bias
    /// in the choice, and the weights of the chosen experts.
    pub fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let groups = fields.size("n_group")?.unwrap_or(self.groups);
        let chosen = fields.size("topk_group")?.unwrap_or(self.chosen);
        let moe = sigmoid_router(config);
        let divides = moe.num_experts.is_multiple_of(groups);
        let expected = format!("a divisor of n_routed_experts ({})", moe.num_experts);
        fields.require(divides, "n_group", &groups.to_string(), &expected)?;
        if groups > 1 {
            // Groups are compared by their best two experts, however many a token uses.
            (moe.num_groups, moe.group_topk, moe.group_score_topk) = (Some(groups), Some(chosen), Some(2));
        }
        moe.raw_scores = !fields.bool("norm_topk_prob")?.unwrap_or(self.normalizes);
        read_factor(fields, config, FACTOR, self.factor)
    }

    /// Writes the router's settings.
    pub fn write(config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let Some(moe) = &config.moe else { return };
        settings.insert("n_group".into(), json!(moe.num_groups.unwrap_or(1)));
        settings.insert("topk_group".into(), json!(moe.group_topk.unwrap_or(1)));
        settings.insert("norm_topk_prob".into(), json!(!moe.raw_scores));
        write_factor(config, settings, FACTOR);
    }
}

/// Key of the factor on the weights of a token's experts.
pub(super) const FACTOR: &str = "routed_scaling_factor";

/// Reads the number of experts, of one block, that all tokens go through. The key is required if
/// there is no default.
pub(super) fn read_shared(
    fields: &Fields,
    config: &mut DecoderConfig,
    key: &str,
    absent: Option<usize>,
) -> Result<(), HfError> {
    let shared = fields.size(key)?.or(absent);
    let shared = shared.ok_or_else(|| fields.error(key, "no value", "an integer of at least 1"))?;
    let moe = experts(config);
    moe.shared_expert_intermediate_size = Some(shared.saturating_mul(moe.ffn_hidden_size));
    Ok(())
}

/// Writes the number of experts that all tokens go through.
pub(super) fn write_shared(config: &DecoderConfig, settings: &mut Map<String, Value>, key: &str) {
    let Some(moe) = &config.moe else { return };
    // Another width than a multiple of an expert's is read back as another, and refused so.
    let shared = moe.shared_expert_intermediate_size.unwrap_or(0).checked_div(moe.ffn_hidden_size).unwrap_or(0);
    settings.insert(key.into(), json!(shared));
}

/// Reads the number of the first layers that have no experts.
pub(super) fn read_first_dense(fields: &Fields, config: &mut DecoderConfig, absent: u64) -> Result<(), HfError> {
    let key = "first_k_dense_replace";
    let dense = fields.get(key).map_or(Some(absent), Value::as_u64);
    let dense = dense.ok_or_else(|| fields.error(key, "something else", "an integer of at least 0"))?;
    let layers = (0..config.num_layers).map(|layer| layer as u64 >= dense).collect();
    experts(config).layers = LayerPattern::from_list(layers);
    Ok(())
}

/// Writes the number of the first layers that have no experts.
pub(super) fn write_first_dense(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let first = (0..config.num_layers).find(|layer| config.moe_layer(*layer).is_some());
    settings.insert("first_k_dense_replace".into(), json!(first.unwrap_or(config.num_layers)));
}

const MLP_LAYER_TYPES: &str = "mlp_layer_types";
/// Names of a layer without experts and of one with experts.
const LAYER_TYPES: [&str; 2] = ["dense", "sparse"];

/// Reads the layers that have experts: those that `mlp_layer_types` names, else the layers of
/// `absent`.
pub(super) fn read_mlp_layer_types(
    fields: &Fields,
    config: &mut DecoderConfig,
    absent: impl Fn(&Fields, &mut DecoderConfig) -> Result<(), HfError>,
) -> Result<(), HfError> {
    let Some(types) = fields.get(MLP_LAYER_TYPES) else { return absent(fields, config) };
    let is_sparse = |name: &Value| LAYER_TYPES.iter().position(|known| name == known).map(|index| index == 1);
    let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(is_sparse).collect());
    let layers = layers.filter(|layers| layers.len() == config.num_layers).ok_or_else(|| {
        let expected = format!("{} or {} for each of {} layers", LAYER_TYPES[0], LAYER_TYPES[1], config.num_layers);
        fields.error(MLP_LAYER_TYPES, &types.to_string(), &expected)
    })?;
    experts(config).layers = LayerPattern::from_list(layers);
    Ok(())
}

/// Gives all layers but the first experts.
pub(super) fn first_is_dense(_: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    experts(config).layers = LayerPattern::from_list((0..config.num_layers).map(|layer| layer > 0).collect());
    Ok(())
}

/// Writes which layers have experts.
pub(super) fn write_mlp_layer_types(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let name = |layer| LAYER_TYPES[usize::from(config.moe_layer(layer).is_some())];
    let names: Vec<&str> = (0..config.num_layers).map(name).collect();
    settings.insert(MLP_LAYER_TYPES.into(), json!(names));
}

/// The bias in the choice of experts, and the block of experts that all tokens go through.
pub(super) const SHARED: &[WeightRule] = &SHARED_RULES;

/// [`SHARED`] for families whose files have other names than the state of a module.
pub(super) const SHARED_IN_MODULE: &[WeightRule] = &stacked(SHARED_RULES);

const SHARED_RULES: [WeightRule; 5] = [
    layer!("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.gate_proj.weight",
        "mlp.shared_experts.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!(
        "mlp.shared_experts.linear_fc1.bias",
        "mlp.shared_experts.gate_proj.bias",
        "mlp.shared_experts.up_proj.bias"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight"),
    layer!("mlp.shared_experts.linear_fc2.bias", "mlp.shared_experts.down_proj.bias"),
];

/// Router and experts, each expert with three matrices of its own: gate, up and down.
pub(super) const APART: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.gate.weight"),
    layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.{}.down_proj.weight"),
];

/// Names of a mixture with all experts of a layer in two tensors.
pub(super) const STACKED: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.gate.weight").stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj").stacked(),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj").stacked(),
];
