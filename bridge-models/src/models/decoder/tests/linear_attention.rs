//! Models with linear attention in some layers: ranks, stages, generation, documents, initial
//! values. Reference values are those of the families that have it.

use bridge_core::config::{AttentionVariant, NormPlacement};

use super::hybrid::{check_documents, check_states};
use super::spread::{ONE, Spread, check, divisible};
use super::*;
use crate::decoder::LinearAttentionConfig;

/// Gated DeltaNet in the first of two layers.
pub fn gated_delta_net() -> DecoderConfig {
    let linear = LinearAttentionConfig {
        layers: LayerPattern::Listed(vec![true, false]),
        conv_kernel: 3,
        // Heads of few channels, which the norm may divide by next to nothing, are ill-conditioned.
        key_head_size: 13,
        value_head_size: 7,
        num_key_heads: 4,
        num_value_heads: 8,
        ..LinearAttentionConfig::neutral()
    };
    let config = DecoderConfig { linear_attention: Some(linear), ..divisible(llama()) };
    DecoderConfig { window_size: None, window_layers: LayerPattern::All, ..config }
}

/// Kimi Delta Attention, with a matrix for gates and decays each or with two, and other norms than
/// in layers with softmax attention.
fn kimi_delta_attention(gate_rank: Option<usize>) -> DecoderConfig {
    let mut config = gated_delta_net();
    config.residual.norms = NormPlacement::Output;
    config.linear_attention = config.linear_attention.map(|linear| LinearAttentionConfig {
        variant: AttentionVariant::KimiDeltaAttention,
        num_value_heads: 4,
        gate_rank,
        doubles_beta: gate_rank.is_none(),
        decay_bound: gate_rank.is_none().then_some(-3.0),
        norm_epsilon: Some(1e-3),
        norms: Some(NormPlacement::Before),
        ..linear
    });
    config
}

fn models() -> Vec<(&'static str, DecoderConfig)> {
    vec![
        ("one decay a token", gated_delta_net()),
        ("a decay a channel", kimi_delta_attention(None)),
        ("a decay a channel, by narrow vectors", kimi_delta_attention(Some(3))),
    ]
}

#[test]
fn ranks_compute_what_one_does() {
    let two = Spread { tensor: 2, ..ONE };
    let four = Spread { tensor: 4, ..ONE };
    let parallel = [Spread { sequence_parallel: true, ..two }, Spread { sequence_parallel: true, ..four }];
    let context = Spread { context: 2, ..ONE };
    check(
        models(),
        &[two, four, parallel[0], parallel[1], Spread { data: 2, ..two }, context, Spread { context: 2, ..two }],
    );
}

#[test]
fn stages_in_a_row_are_the_whole_model() {
    for (_, config) in models() {
        let whole = build(&config);
        let first = build_stage(&config, &Stage::from(StackPart { layers: 0..1, start: true, end: false }));
        let last = build_stage(&config, &Stage::from(StackPart { layers: 1..2, start: false, end: true }));
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let loss = |chunks: &[&dyn ModelChunk]| loss_sum(chunks, &batch, Mode::Evaluate).into_scalar::<f32>();
        assert_eq!(loss(&[first.as_ref(), last.as_ref()]), loss(&[whole.as_ref()]));
    }
}

#[test]
fn logits_with_state_are_those_without() {
    models().iter().for_each(|(_, config)| check_states(config));
}

#[test]
fn states_begin_anew_in_each_document() {
    models().iter().for_each(|(_, config)| check_documents(config));
}

#[test]
fn sections_and_serialisation_keep_linear_attention() {
    for (name, config) in models() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<DecoderConfig>(&text).unwrap(), config);
        let section = DecoderConfig { kv_channels: 10, ..config.clone() }.to_transformer().unwrap();
        let read = DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap();
        assert_eq!(read.linear_attention, config.linear_attention, "{name}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let with = |change: fn(&mut LinearAttentionConfig)| {
        let mut config = gated_delta_net();
        change(config.linear_attention.as_mut().unwrap());
        config.validate().unwrap_err().to_string()
    };
    assert!(with(|linear| linear.num_value_heads = 6).contains("linear_num_value_heads"));
    assert!(with(|linear| linear.conv_kernel = 0).contains("linear_conv_kernel_dim"));
    assert!(with(|linear| linear.layers = LayerPattern::Listed(vec![true])).contains("linear_attention_freq"));
}
