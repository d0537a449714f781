//! Parts of segments that run again in backward change no bit of loss or gradients: in 32 and 16
//! bits, with dropout, beside adapters, on many ranks.

use bridge_core::config::PeftKind;
use std::sync::Arc;

use bridge_core::model::{Adapter, Declaration, Initial, LinearLayer, Scope};
use bridge_kernels::Philox;

use super::spread::{Model, ONE, Spread, divisible, mixtures, on_one_rank, run_model, sequences};
use super::*;
use crate::adapters::{Branch, Dropout, DropoutPlace, LowRankAdapter, Targets};
use crate::architecture::recompute::RecomputedParts;

const MOE_ACT: RecomputedParts = RecomputedParts { moe_act: true, shared_experts: false, mla_up_proj: false };
const SHARED_EXPERTS: RecomputedParts = RecomputedParts { shared_experts: true, moe_act: false, mla_up_proj: false };
const MLA_UP_PROJ: RecomputedParts = RecomputedParts { mla_up_proj: true, moe_act: false, shared_experts: false };
const ALL: RecomputedParts = RecomputedParts { moe_act: true, shared_experts: true, mla_up_proj: true };

/// Latent attention of odd sizes, with queries from a latent vector of this size or from the
/// stream.
pub fn latent(config: DecoderConfig, q_lora_rank: Option<usize>) -> DecoderConfig {
    let latent = LatentConfig {
        kv_multiplier: Some(1.3),
        q_lora_rank,
        kv_lora_rank: 11,
        qk_head_dim: 5,
        qk_pos_emb_head_dim: 4,
        v_head_dim: 7,
        norm_epsilon: 1e-6,
    };
    DecoderConfig {
        latent: Some(latent),
        qk_layernorm: true,
        qkv_bias: true,
        num_query_groups: config.num_attention_heads,
        kv_channels: 9,
        ..config
    }
}

/// Experts of every sort, with latent attention.
fn models() -> Vec<(String, DecoderConfig)> {
    let mixtures = mixtures().into_iter().map(|(name, config)| {
        let shared = MoeConfig {
            shared_expert_intermediate_size: Some(16),
            shared_gate: !name.contains("narrow"),
            ..config.moe.clone().unwrap()
        };
        let q_lora_rank = name.contains("other").then_some(13);
        (name.to_owned(), DecoderConfig { moe: Some(shared), ..latent(config, q_lora_rank) })
    });
    let plain = DecoderConfig { gated_linear_unit: false, activation: Activation::GeluTanh, ..gpt2() };
    let (_, first) = super::spread::mixtures().remove(0);
    let shared = MoeConfig { shared_expert_intermediate_size: Some(20), linear_bias: true, ..first.moe.unwrap() };
    let plain = DecoderConfig { moe: Some(shared), ..divisible(plain) };
    let (_, first) = super::spread::mixtures().remove(0);
    let gated = DecoderConfig {
        output_gate: Some(OutputGateForm::Head),
        query_scale: Some(QueryScaleConfig { beta: 0.8, length: 3, first: 0, unrotated_only: false }),
        ..latent(first, Some(13))
    };
    mixtures.chain([("plain units".to_owned(), plain), ("gated heads".to_owned(), gated)]).collect()
}

fn recomputing(config: &DecoderConfig, recomputed: RecomputedParts) -> DecoderConfig {
    DecoderConfig { recomputed, ..config.clone() }
}

fn built(config: &DecoderConfig, params_dtype: FloatDType, adapter: Option<Arc<dyn Adapter>>) -> Box<dyn ModelChunk> {
    let context = BuildContext { params_dtype, adapter, ..context(config) };
    build_decoder(config, &context, &Stage::whole([config.num_layers])).unwrap()
}

/// Bits of the loss and of all gradients.
fn results(chunk: &dyn ModelChunk, loss: &Tensor<1>) -> (u32, BTreeMap<String, Vec<u32>>) {
    let bits = |tensor: Tensor<1>| -> Vec<u32> {
        tensor.cast(FloatDType::F32).into_data().iter::<f32>().map(f32::to_bits).collect()
    };
    let mut gradients = loss.backward();
    let mut named = BTreeMap::new();
    chunk.take_gradients(&mut gradients, &mut |name, gradient| {
        named.insert(name.to_owned(), bits(gradient));
    });
    (bits(loss.clone().without_autodiff())[0], named)
}

#[test]
fn no_bit_changes_on_one_rank() {
    let batch = Batch::new(&micro_batch(37), &device());
    for (name, config) in models() {
        let config = DecoderConfig { attention_dropout: 0.2, hidden_dropout: 0.1, ..config };
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            for mode in [Mode::Evaluate, Mode::Train(Philox::new(3))] {
                let of = |parts| {
                    let chunk = built(&recomputing(&config, parts), dtype, None);
                    results(chunk.as_ref(), &loss_sum(&[chunk.as_ref()], &batch, mode))
                };
                let expected = of(RecomputedParts::default());
                assert!(expected.1.values().filter(|g| g.iter().any(|bits| *bits << 1 != 0)).count() > 20);
                for parts in [MOE_ACT, SHARED_EXPERTS, MLA_UP_PROJ, ALL] {
                    assert!(of(parts) == expected, "{name}, {dtype:?}, {mode:?}: {parts:?}");
                }
            }
        }
    }
}

#[test]
fn no_bit_changes_on_many_ranks() {
    let tensor = Spread { tensor: 2, ..ONE };
    let sequence = Spread { sequence_parallel: true, ..tensor };
    let own_tokens = Spread { expert_tensor: Some(1), expert: 2, context: 2, ..sequence };
    let spreads = [tensor, sequence, Spread { context: 2, ..ONE }, Spread { expert: 2, data: 2, ..ONE }, own_tokens];
    let mode = Mode::Evaluate;
    for (name, config) in models() {
        for spread in spreads {
            let of = |parts| {
                let model = Model { config: recomputing(&config, parts), adapter: None };
                run_model(&model, spread, &|rank| sequences(config.vocab_size, rank), mode)
            };
            let (expected, found) = (of(RecomputedParts::default()), of(ALL));
            assert!(found.values == expected.values && found.loss == expected.loss, "{name} on {spread:?}");
            assert!(found.gradients == expected.gradients, "{name} on {spread:?}");
        }
        // Several ranks agree with one rank, not only with themselves.
        let one = on_one_rank(&Model { config: config.clone(), adapter: None }, 1, mode);
        let model = Model { config: recomputing(&config, ALL), adapter: None };
        let found = run_model(&model, sequence, &|rank| sequences(config.vocab_size, rank), mode);
        super::spread::assert_same(&found, &one, &name);
    }
}

/// Branches on every linear layer; the norms are trained in full.
#[derive(Debug)]
struct Everywhere;

impl Targets for Everywhere {
    fn branches(&self, _: &LinearLayer, _: &Scope) -> Vec<Branch> {
        vec![Branch { part: None, rank: 3, scale: 0.9 }]
    }

    fn trains(&self, declaration: &Declaration) -> bool {
        declaration.name.contains("norm")
    }
}

/// Relative distance of two vectors of floats, given by their bits.
fn distance(found: &[u32], expected: &[u32]) -> f64 {
    let floats = |bits: &[u32]| -> Vec<f64> { bits.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect() };
    let (found, expected) = (floats(found), floats(expected));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    difference / norm(&mut expected.iter().copied()).max(1e-12)
}

/// Backward of a micro-batch whose forward is not the last one: a pipeline has several in flight. A
/// branch reads its layer's input as another input of the sum, so that gradients of a recomputed
/// part's inputs are summed in another order.
#[test]
fn branches_drop_again_what_they_dropped() {
    let batch = Batch::new(&micro_batch(37), &device());
    let dropout = Dropout { rate: 0.3, place: DropoutPlace::Input };
    for (name, config) in models() {
        for method in [PeftKind::Lora, PeftKind::Dora] {
            let of = |parts| {
                let normal = |_: usize, _: usize| Initial::Normal(0.2);
                let adapter = LowRankAdapter::new(Arc::new(Everywhere), method, [normal, normal], dropout);
                let chunk = built(&recomputing(&config, parts), FloatDType::F32, Some(Arc::new(adapter)));
                let chunk = chunk.as_ref();
                let loss = |stream| loss_sum(&[chunk], &batch, Mode::Train(Philox::new(stream)));
                let (first, second) = (loss(3), loss(4));
                [results(chunk, &first), results(chunk, &second)]
            };
            let expected = of(RecomputedParts::default());
            assert_ne!(expected[0], expected[1], "masks are drawn");
            for ((loss, gradients), (expected_loss, expected)) in of(ALL).iter().zip(&expected) {
                assert_eq!(loss, expected_loss, "{name}, {method:?}");
                assert_eq!(gradients.len(), expected.len());
                for (parameter, gradient) in gradients {
                    let distance = distance(gradient, &expected[parameter]);
                    assert!(distance < 1e-6, "{name}, {method:?}: gradient of {parameter} is off by {distance}");
                }
            }
        }
    }
}
