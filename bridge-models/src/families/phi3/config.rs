//! Settings of Phi-3; absent ones have the values of `Phi3Config`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, |_, _| Ok(0.0)),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, |_, _| Ok(0.0)),
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
