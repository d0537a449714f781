//! Settings of Nemotron-H; absent ones have the values of `NemotronHConfig`.

use crate::families::mamba2::config::{BLOCK, mamba, silu};
use crate::families::mixture::SigmoidRouter;
use crate::families::prelude::*;
use crate::huggingface::settings::groups_divide_heads;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.position_embedding = PositionEmbedding::None;
    }),
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    Setting::Keys { read: read_blocks, write: write_blocks },
    size_or("intermediate_size", |c| &mut c.ffn_hidden_size, |_, _| Ok(21_504)),
    size_or("num_attention_heads", |c| &mut c.num_attention_heads, |_, _| Ok(32)),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, |_, _| Ok(8)),
    Setting::Rule(groups_divide_heads),
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
    Setting::Keys { read: read_experts, write: write_experts },
    Setting::Rule(|fields, _| silu(fields, "mamba_hidden_act")),
    Setting::Rows(BLOCK),
    // `tie_word_embeddings` ties nothing in this family: its folders have both tensors.
    Setting::Always(|c| c.share_embeddings_and_output_weights = false),
    // The lower bound of a new model's time steps is the default and does not depend on
    // `time_step_limit`.
    Setting::Number("time_step_min", |c| &mut mamba(c).least_time_step, |_, _| Ok(1e-3)),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    // transformers has no multi-token prediction in this family and ignores its tensors.
    Setting::Keys {
        read: |fields, _| {
            fields.ask("num_nextn_predict_layers");
            Ok(())
        },
        write: |_, settings| {
            settings.insert("num_nextn_predict_layers".into(), json!(0));
        },
    },
    Setting::Unused(&[
        "mtp_hybrid_override_pattern",
        "expand",
        "mtp_layers_block_type",
        "n_shared_experts",
        "time_step_limit",
        "tie_word_embeddings",
        // Without layers of experts.
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "n_group",
        "n_routed_experts",
        "norm_topk_prob",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "topk_group",
    ]),
];

/// Defaults of absent settings of the router.
const ROUTER: SigmoidRouter = SigmoidRouter::UNGROUPED;

/// Reads the experts, which never have biases, unlike feed-forward blocks and shared experts.
fn read_experts(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    if !config.has_block(HybridBlock::Moe) {
        return Ok(());
    }
    let layers = config.hybrid.iter().flat_map(|hybrid| &hybrid.layers);
    let layers = layers.map(|block| *block == HybridBlock::Moe).collect();
    let moe = experts(config);
    moe.layers = LayerPattern::from_list(layers);
    moe.num_experts = fields.size("n_routed_experts")?.unwrap_or(8);
    moe.topk = fields.size("num_experts_per_tok")?.unwrap_or(2);
    moe.ffn_hidden_size = fields.size("moe_intermediate_size")?.unwrap_or(7688);
    moe.latent_size = fields.size("moe_latent_size")?;
    moe.shared_expert_intermediate_size = Some(fields.size("moe_shared_expert_intermediate_size")?.unwrap_or(7688));
    ROUTER.read(fields, config)
}

fn write_experts(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    for (key, size) in [
        ("n_routed_experts", Some(moe.num_experts)),
        ("num_experts_per_tok", Some(moe.topk)),
        ("moe_intermediate_size", Some(moe.ffn_hidden_size)),
        ("moe_latent_size", moe.latent_size),
        // Without shared experts the usual ones are read back, and refused so.
        ("moe_shared_expert_intermediate_size", moe.shared_expert_intermediate_size),
    ] {
        settings.extend(size.map(|size| (key.to_owned(), json!(size))));
    }
    ROUTER.write(config, settings);
}

/// The blocks by letter and by the names that they have in lists; the first name is the one
/// written.
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
    config.hybrid = Some(HybridConfig::new(layers));
    Ok(())
}

fn write_blocks(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = config.hybrid.as_ref().map_or(&[][..], |hybrid| &hybrid.layers);
    // A block without a name is read back as another, and refused so.
    let of = |block: &HybridBlock| BLOCKS.into_iter().find(|(known, ..)| known == block).unwrap_or(BLOCKS[0]);
    let names: Vec<&str> = layers.iter().map(|block| of(block).2[0]).collect();
    let letters: String = layers.iter().map(|block| of(block).1).collect();
    settings.insert("layers_block_type".into(), json!(names));
    settings.insert("hybrid_override_pattern".into(), json!(letters));
    settings.insert("num_hidden_layers".into(), json!(layers.len()));
}
