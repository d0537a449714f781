//! Models whose queries choose their keys: ranks, stages, generation, documents, losses. Reference
//! values are those of the families that have it.

use super::hybrid::{check_documents, check_states};
use super::recompute::latent;
use super::spread::{ONE, Spread, check, divisible, run, sequences};
use super::*;
use crate::decoder::{CompressedConfig, IndexerConfig, KeySource};

/// Latent attention to few keys, with queries from latent vectors or from the stream.
fn sparse(loss_coeff: f64, q_lora_rank: Option<usize>) -> DecoderConfig {
    let indexer = IndexerConfig {
        heads: 3,
        head_size: 14,
        topk: 3,
        loss_coeff,
        sparse_loss: q_lora_rank.is_none(),
        interleaved: q_lora_rank.is_none(),
        norm_epsilon: 1e-3,
        ..IndexerConfig::neutral()
    };
    let config = latent(divisible(llama()), q_lora_rank);
    let config = DecoderConfig { window_size: None, window_layers: LayerPattern::All, ..config };
    DecoderConfig { indexer: Some(indexer), ..config }
}

fn models() -> Vec<(&'static str, DecoderConfig)> {
    let mut windowed = sparse(0.0, None);
    windowed.window_size = Some(4);
    let mut shared = sparse(0.8, Some(13));
    shared.key_sources = Some(vec![KeySource::Chosen, KeySource::Shared]);
    (shared.attention_sinks, shared.indexer.as_mut().unwrap().rotates_last) = (true, true);
    let blocks = |heads, sources: [KeySource; 2]| {
        let indexer = IndexerConfig { heads, head_size: 14, topk: 4, block_size: Some(2), ..IndexerConfig::neutral() };
        DecoderConfig { indexer: Some(indexer), key_sources: Some(sources.to_vec()), ..divisible(llama()) }
    };
    let compressed = |rates: [usize; 2], source| {
        let indexer = IndexerConfig {
            heads: 3,
            head_size: 14,
            topk: 1,
            rotates_last: true,
            interleaved: true,
            ..IndexerConfig::neutral()
        };
        let rope = RopeConfig { percent: 0.4, interleaved: true, windowed_base: Some(700.0), ..RopeConfig::neutral() };
        DecoderConfig {
            compressed: Some(CompressedConfig {
                rates: rates.to_vec(),
                q_lora_rank: 13,
                output_groups: 4,
                output_rank: 6,
            }),
            position_embedding: PositionEmbedding::Rope(rope),
            indexer: Some(indexer),
            key_sources: Some(vec![source, KeySource::All]),
            attention_sinks: true,
            num_query_groups: 1,
            window_size: Some(2),
            window_layers: LayerPattern::All,
            num_attention_heads: 8,
            ..DecoderConfig { num_query_groups: 1, ..divisible(llama()) }
        }
    };
    vec![
        ("chosen entries", compressed([2, 3], KeySource::Chosen)),
        ("windows and all entries", DecoderConfig { num_query_groups: 1, ..compressed([0, 2], KeySource::All) }),
        ("shared choices", shared),
        ("blocks", blocks(4, [KeySource::All, KeySource::Chosen])),
        ("blocks of one head", blocks(1, [KeySource::Chosen, KeySource::Shared])),
        ("frozen", sparse(0.0, Some(13))),
        ("trained on all keys", sparse(0.8, Some(13))),
        ("trained on chosen keys", sparse(0.8, None)),
        ("windows", windowed),
    ]
}

#[test]
fn ranks_compute_what_one_does() {
    let two = Spread { tensor: 2, ..ONE };
    let both = Spread { context: 2, ..two };
    check(
        models(),
        &[
            two,
            Spread { sequence_parallel: true, ..two },
            Spread { data: 2, ..two },
            Spread { context: 2, ..ONE },
            Spread { sequence_parallel: true, ..both },
        ],
    );
}

#[test]
fn logits_with_state_are_those_without() {
    models().iter().for_each(|(_, config)| check_states(config));
}

#[test]
fn choices_stay_in_a_document() {
    models().iter().for_each(|(_, config)| check_documents(config));
}

#[test]
fn only_the_loss_trains_indexers() {
    let gradients = |config: &DecoderConfig| {
        let found = run(config, ONE, &|rank| sequences(config.vocab_size, rank), Mode::Evaluate);
        let (of_indexers, others): (Vec<_>, Vec<_>) =
            found.gradients.into_iter().partition(|(name, _)| name.contains(".indexer."));
        (of_indexers, others)
    };
    let (frozen, others) = gradients(&sparse(0.0, Some(13)));
    let (trained, same) = gradients(&sparse(0.8, Some(13)));
    assert!(frozen.is_empty() && others == same, "other gradients do not depend on the loss");
    assert!(!trained.is_empty() && trained.iter().all(|(_, gradient)| gradient.iter().any(|value| *value != 0.0)));
    let (double, _) = gradients(&sparse(1.6, Some(13)));
    for ((name, one), (_, two)) in trained.iter().zip(&double) {
        assert!(one.iter().zip(two).all(|(one, two)| (2.0 * one - two).abs() < 1e-5), "{name}");
    }
}

#[test]
fn all_keys_are_full_attention() {
    let mut config = sparse(0.0, Some(13));
    config.indexer.as_mut().unwrap().topk = 8;
    let logits_of = |config: &DecoderConfig| logits(build(config).as_ref(), &tokens(8, config.vocab_size));
    assert_close(&logits_of(&config), &logits_of(&DecoderConfig { indexer: None, ..config.clone() }), 1e-6);
}

#[test]
fn sections_and_serialisation_keep_indexers() {
    for (name, config) in models() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<DecoderConfig>(&text).unwrap(), config);
        let section = config.to_transformer().unwrap();
        let read = DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap();
        assert_eq!(read.indexer, config.indexer, "{name}");
    }
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let with = |change: fn(&mut DecoderConfig)| {
        let mut config = sparse(0.8, None);
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert!(with(|config| config.indexer.as_mut().unwrap().topk = 0).contains("dsa_indexer_topk"));
    assert!(with(|config| config.indexer.as_mut().unwrap().head_size = 1).contains("dsa_indexer_head_dim"));
    assert!(with(|config| config.indexer.as_mut().unwrap().loss_coeff = -1.0).contains("dsa_indexer_loss_coeff"));
    assert!(with(|config| config.recomputed.mla_up_proj = true).contains("dsa_indexer_loss_coeff"));
    assert!(with(|config| (config.latent, config.kv_channels) = (None, 10)).contains("dsa_indexer_topk"));
}
