//! Settings of Hunyuan models with experts; absent ones have the values of `HunYuanMoEV1Config`.

use crate::families::hunyuan_v1_dense;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(hunyuan_v1_dense::config::SETTINGS),
    Setting::Always(|c| {
        let size = c.ffn_hidden_size;
        let moe = experts(c);
        (moe.ffn_hidden_size, moe.shared_expert_intermediate_size) = (size, Some(size));
        moe.router_precision = Some(RouterDType::Fp32);
    }),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(1)),
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
