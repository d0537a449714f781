//! Hunyuan with experts (A13B): the dense model's attention, experts in every layer and a shared
//! one of the same size.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{hunyuan_v1_dense, llama, mixture};

pub(super) static FAMILY: Family = Family {
    model_type: "hunyuan_v1_moe",
    architecture: "HunYuanMoEV1ForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, hunyuan_v1_dense::QK_NORMS, mixture::APART, mixture::STACKED, llama::WEIGHTS],
    aliases: &[("num_experts_per_tok", "moe_topk"), ("num_local_experts", "num_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `HunYuanMoEV1Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(hunyuan_v1_dense::SETTINGS),
    Setting::Always(|c| {
        let size = c.ffn_hidden_size;
        let moe = experts(c);
        (moe.ffn_hidden_size, moe.shared_expert_intermediate_size) = (size, Some(size));
        moe.router_precision = Some(RouterDType::Fp32);
    }),
    size_or("num_experts", |c| &mut experts(c).num_experts, 1),
    Setting::Keys {
        read: read_chosen,
        write: |c, settings| {
            settings.insert(CHOSEN.into(), json!(c.moe.as_ref().map(|moe| moe.topk)));
        },
    },
    Setting::Unused(&["sep_token_id"]),
];

const CHOSEN: &str = "moe_topk";

/// Experts a token goes to: a number, or a list with the same number for each layer.
fn read_chosen(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let chosen = match fields.get(CHOSEN) {
        Some(Value::Array(numbers)) => {
            let first = numbers.first().filter(|first| numbers.iter().all(|number| number == *first));
            let first = first.filter(|_| numbers.len() >= config.num_layers).and_then(Value::as_u64);
            first.and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0)
        }
        _ => Some(fields.size(CHOSEN)?.unwrap_or(1)),
    };
    let found = || fields.peek(CHOSEN).map_or_else(String::new, Value::to_string);
    let expected = "the same number for each layer: others are not implemented";
    experts(config).topk = chosen.ok_or_else(|| fields.error(CHOSEN, &found(), expected))?;
    Ok(())
}

/// Names of the router and of the shared expert.
const OWN: &[WeightRule] = &[
    ROUTER,
    ROUTER.stacked(),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_mlp.gate_proj.weight", "mlp.shared_mlp.up_proj.weight")
        .fused(Fusion::GateUp),
    layer!("mlp.shared_experts.linear_fc2.weight", "mlp.shared_mlp.down_proj.weight"),
];

const ROUTER: WeightRule = layer!("mlp.router.weight", "mlp.gate.wg.weight");
