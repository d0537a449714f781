//! Phi-3 and Phi-4: a Llama whose queries, keys and values are one matrix, and gate and up another.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    architecture: "Phi3ForCausalLM",
    settings: SETTINGS,
    weights: &[FUSED, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Phi3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(4096),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, 0.0),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, 0.0),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];

/// If the original length is not beside the table, `Phi3Config` uses 4096 and ignores the table.
const FORM: RopeForm =
    RopeForm { percent: Some(1.0), original_length: OriginalLength::BesideOr(4096), ..RopeForm::USUAL };

/// Plain frequencies or LongRoPE's: `Phi3Config` refuses all others.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, FORM)?;
    let PositionEmbedding::Rope(read) = &config.position_embedding else { return Ok(()) };
    let is_known = matches!(read.scaling, None | Some(RopeScaling::LongRope { .. }));
    fields.require(is_known, "rope_scaling.rope_type", "another scaling", "longrope or default, as Phi3Config does")
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    if let PositionEmbedding::Rope(rope) = &config.position_embedding
        && let Some(RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_position_embeddings,
            attention_factor,
        }) = &rope.scaling
    {
        settings.insert(rope::ORIGINAL_LENGTH.into(), json!(original_max_position_embeddings));
        // Phi3Config of transformers 4 takes three fields and no other, and has the usual factor.
        // Another one only transformers 5 can read.
        let table = json!({ "type": "longrope", "short_factor": short_factor, "long_factor": long_factor });
        let usual = rope::usual_longrope_factor(*original_max_position_embeddings, config.max_position_embeddings);
        if *attention_factor == usual {
            settings.insert("rope_scaling".into(), table);
        }
    }
}

/// Names of the parameters that Llama has in parts.
const FUSED: &[WeightRule] = &[
    layer!("self_attention.linear_qkv.weight", "self_attn.qkv_proj.weight").fused(Fusion::PackedQkv),
    // The gate's rows come first there too.
    layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"),
];
