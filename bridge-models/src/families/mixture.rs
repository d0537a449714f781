//! Rows of settings and positions of experts that families with experts share.

use crate::families::prelude::*;
use crate::huggingface::windows::{layers_of_two_types, names_of_layers};

/// The experts of a decoder of a family that has them in every model.
pub(super) fn experts(config: &mut DecoderConfig) -> &mut MoeConfig {
    config.moe.get_or_insert_with(MoeConfig::neutral)
}

/// True if the weights of a token's experts sum to one: then they are the softmax over the chosen
/// experts alone.
pub(super) const fn norm_topk_prob(usual: bool) -> Setting {
    Setting::Flag(
        "norm_topk_prob",
        usual,
        |c| c.moe.as_ref().is_some_and(|moe| !moe.pre_softmax),
        |c, on| experts(c).pre_softmax = !on,
    )
}

/// Gives the experts a router with sigmoids and a bias in the choice. Scores are computed in
/// float32 with any dtype of the parameters.
pub(super) fn sigmoid_router(config: &mut DecoderConfig) -> &mut MoeConfig {
    let moe = experts(config);
    (moe.score_function, moe.expert_bias) = (RouterScoreFunction::Sigmoid, true);
    moe.router_precision = Some(RouterDType::Fp32);
    moe
}

/// A factor on the weights of a token's experts: its key, and its value without the key.
pub(super) struct ExpertFactor(pub &'static str, pub f64);

impl KeyGroup for ExpertFactor {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let factor = fields.number(self.0)?.unwrap_or(self.1);
        experts(config).topk_scaling_factor = Some(factor).filter(|factor| *factor != 1.0);
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let factor = config.moe.as_ref().and_then(|moe| moe.topk_scaling_factor);
        settings.insert(self.0.into(), json!(factor.unwrap_or(1.0)));
    }
}

/// Reads `groups` of experts, of which a token uses `chosen`. A single group has no effect. The
/// score of a group is the sum of its `best` scores, however many a token uses.
pub(super) fn set_groups(
    fields: &Fields,
    config: &mut DecoderConfig,
    key: &str,
    [groups, chosen, best]: [usize; 3],
) -> Result<(), HfError> {
    let moe = experts(config);
    let expected = format!("a divisor of the number of experts ({})", moe.num_experts);
    fields.require(moe.num_experts.is_multiple_of(groups), key, &groups.to_string(), &expected)?;
    if groups > 1 {
        (moe.num_groups, moe.group_topk, moe.group_score_topk) = (Some(groups), Some(chosen), Some(best));
    }
    Ok(())
}

/// A router like DeepSeek-V3's: groups of experts, a bias in the choice, and the weights of the
/// chosen experts. Values are those of absent keys.
pub(super) struct SigmoidRouter {
    /// Keys of the numbers of groups and of those that a token uses, and of `normalizes`.
    pub keys: [&'static str; 3],
    /// Number of groups.
    pub groups: usize,
    /// Groups that a token uses.
    pub chosen: usize,
    /// `routed_scaling_factor`.
    pub factor: f64,
    /// True if the weights of a token's experts sum to one.
    pub normalizes: bool,
}

impl SigmoidRouter {
    /// One group, and weights that sum to one.
    pub const UNGROUPED: Self =
        Self { keys: ["n_group", "topk_group", "norm_topk_prob"], groups: 1, chosen: 1, factor: 1.0, normalizes: true };
}

impl KeyGroup for SigmoidRouter {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let [groups, chosen, normalizes] = self.keys;
        sigmoid_router(config).raw_scores = !fields.bool(normalizes)?.unwrap_or(self.normalizes);
        let counts = [fields.size(groups)?.unwrap_or(self.groups), fields.size(chosen)?.unwrap_or(self.chosen), 2];
        set_groups(fields, config, groups, counts)?;
        ExpertFactor(FACTOR, self.factor).read(fields, config)
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let Some(moe) = &config.moe else { return };
        let [groups, chosen, normalizes] = self.keys;
        settings.insert(groups.into(), json!(moe.num_groups.unwrap_or(1)));
        settings.insert(chosen.into(), json!(moe.group_topk.unwrap_or(1)));
        settings.insert(normalizes.into(), json!(!moe.raw_scores));
        ExpertFactor(FACTOR, 1.0).write(config, settings);
    }
}

/// Key of the factor on the weights of a token's experts.
pub(super) const FACTOR: &str = "routed_scaling_factor";

/// Experts, of one block, that all tokens go through: the key of their number, and their number
/// without the key; `None` requires the key.
pub(super) struct SharedExperts(pub &'static str, pub Option<usize>);

impl KeyGroup for SharedExperts {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let shared = fields.size(self.0)?.or(self.1);
        let shared = shared.ok_or_else(|| fields.missing(self.0, "an integer of at least 1"))?;
        let moe = experts(config);
        moe.shared_expert_intermediate_size = Some(shared.saturating_mul(moe.ffn_hidden_size));
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let Some(moe) = &config.moe else { return };
        // A width that is no multiple of an expert's changes when the export is read back, so that
        // the export is refused.
        let shared = moe.shared_expert_intermediate_size.unwrap_or(0).checked_div(moe.ffn_hidden_size).unwrap_or(0);
        settings.insert(self.0.into(), json!(shared));
    }
}

/// The first layers, which have no experts: the key of their number, and their number without the
/// key.
pub(super) struct FirstDense(pub &'static str, pub usize);

impl KeyGroup for FirstDense {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let dense = fields.count(self.0)?.unwrap_or(self.1);
        let layers = (0..config.num_layers).map(|layer| layer >= dense).collect();
        experts(config).layers = LayerPattern::from_list(layers);
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let first = (0..config.num_layers).find(|layer| config.moe_layer(*layer).is_some());
        settings.insert(self.0.into(), json!(first.unwrap_or(config.num_layers)));
    }
}

/// Key of the number of the first layers without experts in most families.
pub(super) const FIRST_DENSE: &str = "first_k_dense_replace";

const MLP_LAYER_TYPES: &str = "mlp_layer_types";
/// Names of a layer without experts and of one with experts.
const LAYER_TYPES: [&str; 2] = ["dense", "sparse"];

/// Layers with experts: those that `mlp_layer_types` names. Without that key, the layers after the
/// first dense ones; with `None`, all layers but the first.
pub(super) struct MlpLayerTypes(pub Option<FirstDense>);

impl KeyGroup for MlpLayerTypes {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let num_layers = config.num_layers;
        let layers = layers_of_two_types(fields, MLP_LAYER_TYPES, LAYER_TYPES, num_layers)?;
        match (layers, &self.0) {
            (None, Some(first)) => return first.read(fields, config),
            (layers, first) => {
                first.iter().for_each(|first| fields.ask(first.0));
                let layers = layers.unwrap_or_else(|| (0..num_layers).map(|layer| layer > 0).collect());
                experts(config).layers = LayerPattern::from_list(layers);
            }
        }
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let has_experts = |layer| config.moe_layer(layer).is_some();
        settings.insert(MLP_LAYER_TYPES.into(), names_of_layers(LAYER_TYPES, config.num_layers, has_experts));
    }
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
