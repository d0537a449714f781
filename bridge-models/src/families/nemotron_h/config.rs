//! Settings of Nemotron-H; absent ones have the values of `NemotronHConfig`.

use crate::architecture::hybrid::letters;
use crate::families::mamba2::{BLOCK, mamba, silu};
use crate::families::mixture::SigmoidRouter;
use crate::families::pairs::{self, MixerNames};
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
    size_or("intermediate_size", |c| &mut c.ffn_hidden_size, 21_504),
    size_or("num_attention_heads", |c| &mut c.num_attention_heads, 32),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, 8),
    Setting::Rule(groups_divide_heads),
    size_from("head_dim", |c| &mut c.kv_channels, |fields, _| Ok(fields.size("attention_head_dim")?.unwrap_or(128))),
    USUAL_SOFTMAX_SCALE,
    positions(4096),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Only("sliding_window", || json!(null)),
    Setting::Activation("mlp_hidden_act", |c| &mut c.activation, Activation::SquaredRelu),
    MLP_BIAS,
    size_or("ssm_state_size", |c| &mut mamba(c).state_size, 128),
    size_or("mamba_num_heads", |c| &mut mamba(c).num_heads, 128),
    size_or("mamba_head_dim", |c| &mut mamba(c).head_size, 64),
    size_or("chunk_size", |c| &mut mamba(c).chunk_size, 128),
    Setting::Keys { read: read_experts, write: write_experts },
    Setting::Rule(|fields, _| silu(fields, "mamba_hidden_act")),
    Setting::Rows(BLOCK),
    // `tie_word_embeddings` ties nothing in this family: its folders have both tensors.
    Setting::Always(|c| c.share_embeddings_and_output_weights = false),
    // The lower bound of a new model's time steps is the default and does not depend on
    // `time_step_limit`.
    Setting::Number("time_step_min", |c| &mut mamba(c).least_time_step, 1e-3),
    initializer_range(0.02),
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

/// Names of the blocks. Letters are ours.
const BLOCKS: MixerNames =
    &[pairs::MAMBA, pairs::ATTENTION, (HybridBlock::Mlp, &["mlp"]), (HybridBlock::Moe, &["moe"])];

/// The block of each layer: a list of names, or a letter a layer.
fn read_blocks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let pattern = fields.string("hybrid_override_pattern")?;
    let layers = match (pairs::listed_blocks(fields, "layers_block_type", BLOCKS)?, pattern) {
        (Some(named), _) => named,
        (None, Some(letters)) => {
            let is_known = |block: &HybridBlock| BLOCKS.iter().any(|(known, _)| known == block);
            let block = |letter| HybridBlock::from_letter(letter).filter(is_known);
            let expected = "a letter for each layer: M, *, - or E";
            let error = || fields.error("hybrid_override_pattern", &format!("\"{letters}\""), expected);
            letters.chars().map(block).collect::<Option<_>>().ok_or_else(error)?
        }
        (None, None) => vec![HybridBlock::Mamba, HybridBlock::Moe, HybridBlock::Attention, HybridBlock::Mlp],
    };
    fields.require(!layers.is_empty(), "layers_block_type", "no layer", "a block for each layer")?;
    config.num_layers = layers.len();
    config.hybrid = Some(HybridConfig::new(layers));
    Ok(())
}

fn write_blocks(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = config.hybrid.as_ref().map_or(&[][..], |hybrid| &hybrid.layers);
    settings.insert("layers_block_type".into(), pairs::block_names(layers.iter().copied(), BLOCKS));
    settings.insert("hybrid_override_pattern".into(), json!(letters(layers)));
    settings.insert("num_hidden_layers".into(), json!(layers.len()));
}
