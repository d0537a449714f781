//! Settings of Kimi Linear; absent ones have the values of `KimiLinearConfig`.

use bridge_core::config::AttentionVariant;

use crate::families::deepseek_v3::config::LatentSizes;
use crate::families::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;
use crate::families::qwen3_next::{convolution_has_silu, linear, read_linear_layers, write_linear_layers};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("model_max_length", |c| &mut c.max_position_embeddings, 1 << 20),
    Setting::Group(&LATENT),
    Setting::Keys { read: read_linear, write: write_linear },
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1024),
    size_or("num_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_token", |c| &mut experts(c).topk, 8),
    Setting::Group(&ROUTER),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 1)))),
    Setting::Only("moe_router_activation_func", || json!("sigmoid")),
    Setting::Only("moe_layer_freq", || json!(1)),
    Setting::Only("mla_use_nope", || json!(true)),
    Setting::Only("num_nextn_predict_layers", || json!(0)),
    Setting::Rows(BLOCKS),
    Setting::Rule(convolution_has_silu),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    // Nothing is rotated.
    Setting::Unused(&["head_dim", "qk_head_dim", "rope_theta", "rope_scaling", "rope_parameters", "use_grouped_topk"]),
];

/// Latent attention, which projects queries without a latent vector if no key says otherwise.
pub(crate) const LATENT: LatentSizes =
    LatentSizes { query: None, key_value: 512, rotated: 64, plain: 128, value: Some(128) };

/// Heads of one size for keys and values, each with a decay a channel.
pub(crate) fn set_kimi_heads(config: &mut DecoderConfig, heads: usize, size: usize) {
    let linear = linear(config);
    linear.variant = AttentionVariant::KimiDeltaAttention;
    (linear.num_key_heads, linear.num_value_heads) = (heads, heads);
    (linear.key_head_size, linear.value_head_size) = (size, size);
}

/// Sizes in a table, as published files have them, or in keys of their own, as transformers writes
/// them. Layers of the table are counted from 1.
fn read_linear(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let table = fields.table("linear_attn_config", "linear_attn_config.")?;
    let size = |inner: &str, beside: &str, absent: usize| -> Result<usize, HfError> {
        let own = fields.size(beside)?;
        Ok(table.as_ref().map_or(Ok(None), |table| table.size(inner))?.or(own).unwrap_or(absent))
    };
    let heads = size("num_heads", "linear_num_heads", 32)?;
    let head_size = size("head_dim", "linear_head_dim", 128)?;
    set_kimi_heads(config, heads, head_size);
    linear(config).gate_rank = Some(head_size);
    linear(config).conv_kernel = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?;
    let numbers = |key| -> Option<Vec<u64>> {
        let numbers = table.as_ref()?.get(key)?.as_array()?;
        Some(numbers.iter().filter_map(Value::as_u64).collect())
    };
    // One list alone says nothing to transformers.
    match (numbers("full_attn_layers"), numbers("kda_layers"), &table) {
        (Some(full), Some(kda), Some(table)) if fields.get("layer_types").is_none() => {
            let all = 1..=config.num_layers as u64;
            let named_once = all.clone().all(|number| full.contains(&number) != kda.contains(&number));
            let expected = "each layer, counted from 1, in one of full_attn_layers and kda_layers";
            table.require(named_once, "kda_layers", &format!("{kda:?}"), expected)?;
            linear(config).layers = LayerPattern::from_list(all.map(|number| kda.contains(&number)).collect());
            Ok(())
        }
        _ => read_linear_layers(fields, config, |layer| layer == 0 || layer % 4 != 0),
    }
}

fn write_linear(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(linear) = &config.linear_attention else { return };
    write_linear_layers(config, settings);
    settings.insert("linear_num_heads".into(), json!(linear.num_key_heads));
    settings.insert("linear_head_dim".into(), json!(linear.key_head_size));
    settings.insert("linear_conv_kernel_dim".into(), json!(linear.conv_kernel));
    let of = |is_linear: bool| -> Vec<usize> {
        (1..=config.num_layers).filter(|number| linear.layers.includes(number - 1) == is_linear).collect()
    };
    let table = json!({
        "num_heads": linear.num_key_heads,
        "head_dim": linear.key_head_size,
        "short_conv_kernel_size": linear.conv_kernel,
        "full_attn_layers": of(false),
        "kda_layers": of(true),
    });
    settings.insert("linear_attn_config".into(), table);
}

/// DeepSeek-V3's router under other names.
pub(crate) const ROUTER: SigmoidRouter = SigmoidRouter {
    keys: ["num_expert_group", "topk_group", "moe_renormalize"],
    factor: 2.446,
    ..SigmoidRouter::UNGROUPED
};
