//! `[model]`: settings that only the kind `t5` has, and that the table refuses for all other kinds.

use super::super::row::{AS_IT_IS, Row, row, switch};
use super::super::run::{Program, Run};

/// Three steps of an encoder and a decoder of few thousand parameters on generated spans, with a
/// checkpoint at the end.
fn small() -> Run {
    Run::new(
        Program::Train,
        "tiny-t5.toml",
        &[
            "model.seq_length=32",
            "model.seq_length_dec=16",
            "model.hidden_size=32",
            "model.kv_channels=8",
            "model.ffn_hidden_size=48",
            "train.train_iters=3",
            "train.num_threads=1",
            "validation.eval_iters=1",
            "validation.eval_interval=null",
            "logger.log_interval=1",
            "logger.log_dir=logs",
            "logger.plot=false",
            "checkpoint.save=ckpt",
        ],
    )
}

pub fn rows() -> Vec<Row> {
    // Large initial values, so that the loss shows changes of scores.
    let large = small().with(&["model.init_method_std=0.5"]);
    let tied = small().with(&["model.share_embeddings_and_output_weights=true"]);
    vec![
        row("model.encoder_num_layers", &small(), &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        // Spans of few tokens fill neither length: the padding after them does not count, but takes
        // part in sums.
        row("model.seq_length_dec", &small(), &[AS_IT_IS, "24"]).moves("flops params"),
        row("model.relative_attention_num_buckets", &small(), &[AS_IT_IS, "16"]).moves("loss_1 shapes slices"),
        row("model.relative_attention_max_distance", &large, &[AS_IT_IS, "20"]).moves("loss_1"),
        row("model.decoder_start_token_id", &small(), &[AS_IT_IS, "7"]).moves("loss_1"),
        switch("model.scale_decoder_outputs", &tied).moves("loss_1"),
        row("model.position_embedding_type", &small(), &["relative", "rope"]).moves("exit").holds(
            1,
            "stderr",
            "expected relative",
        ),
    ]
}
