//! Settings of Nemotron-H; absent ones have the values of `NemotronHConfig`.

use bridge_kernels::Activation;
use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, HybridBlock, HybridConfig, MambaConfig, NormKind, PositionEmbedding};
use crate::families::mamba2::config::{BLOCK, mamba, silu};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::settings::{Setting, USUAL_SOFTMAX_SCALE, size, size_or};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Always(|c| {
        c.norm.kind = NormKind::RmsNorm;
        c.position_embedding = PositionEmbedding::None;
    }),
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    Setting::Keys { read: read_blocks, write: write_blocks },
    size_or("intermediate_size", |c| &mut c.ffn_hidden_size, |_, _| Ok(21_504)),
    size_or("num_attention_heads", |c| &mut c.num_attention_heads, |_, _| Ok(32)),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, |_, _| Ok(8)),
    Setting::Rule(|fields, c| {
        let (heads, groups) = (c.num_attention_heads, c.num_query_groups);
        let expected = format!("a divisor of num_attention_heads ({heads})");
        fields.require(heads.is_multiple_of(groups), "num_key_value_heads", &groups.to_string(), &expected)
    }),
    size_or("head_dim", |c| &mut c.kv_channels, |fields, _| Ok(fields.size("attention_head_dim")?.unwrap_or(128))),
    USUAL_SOFTMAX_SCALE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Only("sliding_window", || json!(null)),
    Setting::Activation("mlp_hidden_act", |c| &mut c.activation, Activation::SquaredRelu),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    size_or("ssm_state_size", |c| &mut mamba(c).state_size, |_, _| Ok(128)),
    size_or("mamba_num_heads", |c| &mut mamba(c).num_heads, |_, _| Ok(128)),
    size_or("mamba_head_dim", |c| &mut mamba(c).head_size, |_, _| Ok(64)),
    size_or("chunk_size", |c| &mut mamba(c).chunk_size, |_, _| Ok(128)),
    Setting::Rule(|fields, _| silu(fields, "mamba_hidden_act")),
    Setting::Rows(BLOCK),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Only("num_nextn_predict_layers", || json!(0)),
];

/// The blocks by letter and by the names that they have in lists; the first name is the one written.
const BLOCKS: [(HybridBlock, char, [&str; 2]); 4] = [
    (HybridBlock::Mamba, 'M', ["linear_attention", "mamba"]),
    (HybridBlock::Attention, '*', ["full_attention", "attention"]),
    (HybridBlock::Mlp, '-', ["mlp", "mlp"]),
    (HybridBlock::Moe, 'E', ["moe", "moe"]),
];

/// The block of each layer: a list of names, or a letter a layer.
fn read_blocks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let pattern = fields.string("hybrid_override_pattern")?;
    let layers: Option<Vec<HybridBlock>> = match (fields.get("layers_block_type"), pattern) {
        (Some(names), _) => {
            let block = |name: &Value| {
                let known = BLOCKS.into_iter().find(|(.., names)| names.iter().any(|known| name == known));
                known.map(|(block, ..)| block)
            };
            let layers = names.as_array().and_then(|names| names.iter().map(block).collect());
            Some(layers.ok_or_else(|| {
                let expected = "a list of linear_attention, full_attention, mlp and moe";
                fields.error("layers_block_type", &names.to_string(), expected)
            })?)
        }
        (None, Some(letters)) => {
            let block = |letter| BLOCKS.into_iter().find(|(_, known, _)| *known == letter).map(|(block, ..)| block);
            let layers = letters.chars().map(block).collect::<Option<_>>();
            let expected = "a letter for each layer: M, *, - or E";
            Some(layers.ok_or_else(|| fields.error("hybrid_override_pattern", &format!("\"{letters}\""), expected))?)
        }
        (None, None) => None,
    };
    let usual = || vec![HybridBlock::Mamba, HybridBlock::Moe, HybridBlock::Attention, HybridBlock::Mlp];
    let layers = layers.unwrap_or_else(usual);
    fields.require(!layers.is_empty(), "layers_block_type", "no layer", "a block for each layer")?;
    config.num_layers = layers.len();
    config.hybrid = Some(HybridConfig { layers, mamba: MambaConfig::neutral() });
    Ok(())
}

fn write_blocks(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = config.hybrid.as_ref().map_or(&[][..], |hybrid| &hybrid.layers);
    let of =
        |block: &HybridBlock| BLOCKS.into_iter().find(|(known, ..)| known == block).expect("every block is listed");
    let names: Vec<&str> = layers.iter().map(|block| of(block).2[0]).collect();
    let letters: String = layers.iter().map(|block| of(block).1).collect();
    settings.insert("layers_block_type".into(), json!(names));
    settings.insert("hybrid_override_pattern".into(), json!(letters));
    settings.insert("num_hidden_layers".into(), json!(layers.len()));
}
