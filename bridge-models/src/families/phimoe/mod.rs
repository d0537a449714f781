//! Phi-3.5-MoE: a Mixtral with LayerNorm, biases of attention and of the output projection, and
//! a router that weighs two experts one after the other. In training transformers samples
//! experts; here they are always chosen as in evaluation.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{llama, mixtral, mixture, phi};

pub(super) static FAMILY: Family = Family {
    model_type: "phimoe",
    architecture: "PhimoeForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, mixtral::APART, mixture::STACKED, phi::OUTPUT_BIAS, llama::WEIGHTS],
    module_names: &[(".block_sparse_moe.gate.", ".mlp.router."), (".block_sparse_moe.", ".mlp.")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `PhimoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    positions(131_072),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        experts(c).ffn_hidden_size = c.ffn_hidden_size;
        experts(c).score_function = RouterScoreFunction::SparseMixer;
    }),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Switch("lm_head_bias", |c| &mut c.output_bias, false),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 16),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 2),
    Setting::Rule(|fields, c| {
        let topk = c.moe.as_ref().map_or(0, |moe| moe.topk);
        fields.require(topk == 2, "num_experts_per_tok", &topk.to_string(), "2: the family's router chooses two")
    }),
    Setting::Number("router_jitter_noise", |c| &mut experts(c).sparsemixer_jitter, 0.01),
    // Noise in training: `model.moe_input_jitter_eps` of a recipe.
    Setting::Unused(&["input_jitter_noise"]),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];

const FORM: RopeForm = RopeForm { theta: 1_000_000.0, original_length: OriginalLength::InTable, ..RopeForm::USUAL };

/// Names of the factors on cosines and sines in short and in long sequences.
const FACTORS: [&str; 2] = ["short_mscale", "long_mscale"];

/// Plain frequencies, or LongRoPE's with one factor for sequences of all lengths.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, FORM)?;
    let PositionEmbedding::Rope(rope) = &mut config.position_embedding else { return Ok(()) };
    match &mut rope.scaling {
        None => Ok(()),
        Some(RopeScaling::LongRope { attention_factor, .. }) => {
            let table = rope::table(fields)?.unwrap_or(*fields);
            let (short, long) = (table.required_number(FACTORS[0])?, table.required_number(FACTORS[1])?);
            let expected = format!("{short}, which is {}: one factor for sequences of all lengths", FACTORS[0]);
            table.require(short == long, FACTORS[1], &long.to_string(), &expected)?;
            *attention_factor = short;
            Ok(())
        }
        Some(_) => Err(fields.error("rope_scaling.rope_type", "another scaling", "longrope or default")),
    }
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { return };
    let Some(RopeScaling::LongRope { attention_factor, .. }) = &rope.scaling else { return };
    for table in ["rope_scaling", "rope_parameters"] {
        for key in FACTORS {
            settings[table][key] = json!(attention_factor);
        }
    }
}

/// Names of the parameters that Mixtral does not have, or names otherwise.
const OWN: &[WeightRule] = &[
    layer!("mlp.router.weight", "mlp.router.weight").stacked(),
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("pre_mlp_layernorm.bias", "post_attention_layernorm.bias"),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
