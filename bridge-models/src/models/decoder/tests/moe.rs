//! Mixture of experts on one rank: against a dense block, and its metrics.

use bridge_core::config::TokenDispatcher;
use bridge_core::model::LayerMetrics;
use bridge_kernels::Philox;

use super::*;

pub fn mixture(num_experts: usize, topk: usize) -> DecoderConfig {
    let moe = MoeConfig {
        num_experts,
        layers: LayerPattern::Listed(vec![true, false, true]),
        ffn_hidden_size: llama().ffn_hidden_size,
        shared_expert_intermediate_size: None,
        topk,
        pre_softmax: topk == 1,
        topk_scaling_factor: None,
        router_precision: None,
        aux_loss_coeff: 0.1,
        z_loss_coeff: 0.1,
        dispatcher: TokenDispatcher::AllToAll,
        ..MoeConfig::neutral()
    };
    DecoderConfig { moe: Some(moe), ..llama() }
}

/// Experts beside the dense block of the first of three layers, one of them the identity.
pub fn shortcut() -> DecoderConfig {
    let moe = MoeConfig {
        layers: LayerPattern::Listed(vec![true, false, false]),
        shortcut: true,
        num_identity_experts: 1,
        ..mixture(4, 2).moe.unwrap()
    };
    DecoderConfig { moe: Some(moe), ..llama() }
}

#[test]
fn experts_beside_a_dense_block_are_added_a_layer_later() {
    // The experts are alike, so that they are one dense block.
    let moe = MoeConfig { num_identity_experts: 0, aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..shortcut().moe.unwrap() };
    let (with_experts, plain) = (DecoderConfig { moe: Some(moe), ..shortcut() }, llama());
    let (mut chunk, mut one, mut other) = (build(&with_experts), build(&plain), build(&plain));
    let (dense, mut alike) = (values(one.as_ref()), values(chunk.as_ref()));
    let first = |name: &str| name.starts_with("decoder.layers.0.mlp.linear");
    let expert = |name: &str| name.replace(".mlp.", ".mlp.experts.local_experts.0.");
    for (name, value) in &mut alike {
        match name.split_once("experts.local_experts.") {
            Some((_, rest)) => {
                *value = dense[&format!("decoder.layers.1.mlp.{}", rest.split_once('.').unwrap().1)].clone()
            }
            None if !name.contains(".router.") => *value = dense[name].clone(),
            None => {}
        }
    }
    let swapped = dense.iter().map(|(name, value)| {
        let value = if first(name) { &dense[&name.replace(".0.", ".1.")] } else { value };
        (name.clone(), value.clone())
    });
    set_values(other.as_mut(), &swapped.collect());
    set_values(chunk.as_mut(), &alike);
    set_values(one.as_mut(), &dense);
    let batch = Batch::new(&micro_batch(37), &device());
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let until = |chunk: &dyn ModelChunk, segments: usize| {
        let output = run_segments(chunk, 0..segments, Boundary::default(), &context).unwrap();
        let SegmentOutput::Boundary(boundary) = output else { panic!("the head comes later") };
        boundary
    };
    // After attention, after the dense block, after the next layer.
    let [attention, block, layer] = [2, 3, 5].map(|segments| until(one.as_ref(), segments).take_hidden_states());
    let of_experts = until(other.as_ref(), 3).take_hidden_states() - attention;
    let mut found = until(chunk.as_ref(), 3);
    assert_close(&floats(found.take("shortcut")), &floats(of_experts.clone()), 1e-5);
    assert_close(&floats(found.take_hidden_states()), &floats(block), 1e-5);
    let mut found = until(chunk.as_ref(), 5);
    assert!(found.get("shortcut").is_none());
    let found = found.take_hidden_states();
    assert_close(&floats(found.clone()), &floats(layer + of_experts.clone()), 1e-5);
    let seed = Tensor::from_data(
        TensorData::new(Philox::new(2).normal(found.dims().iter().product(), 1.0), found.dims()),
        &device(),
    );
    let gradients = |chunk: &dyn ModelChunk, y: Tensor<3>| {
        let mut named = Values::new();
        let mut gradients = (y * seed.clone()).sum().backward();
        chunk.take_gradients(&mut gradients, &mut |name, gradient| {
            drop(named.insert(name.to_owned(), floats(gradient)))
        });
        named
    };
    let (found, expected) = (gradients(chunk.as_ref(), found), gradients(other.as_ref(), of_experts));
    for name in expected.keys().filter(|name| first(name)) {
        let mut sum = vec![0.0_f32; expected[name].len()];
        for number in 0..4 {
            let of_one = &found[&expert(name).replace("experts.0.", &format!("experts.{number}."))];
            sum.iter_mut().zip(of_one).for_each(|(sum, g)| *sum += g);
        }
        assert_close(&sum, &expected[name], 1e-4);
    }
}

/// Dense parameter whose values the parameter `name` of a mixture gets: the same for all experts.
fn dense_name(name: &str) -> String {
    match name.split_once("experts.local_experts.") {
        Some((before, rest)) => format!("{before}{}", rest.split_once('.').unwrap().1),
        None => name.to_owned(),
    }
}

#[test]
fn experts_that_are_all_alike_are_one_dense_block() {
    let dense = build(&llama());
    let dense_values = values(dense.as_ref());
    let batch = Batch::new(&micro_batch(37), &device());
    let (expected, expected_gradients) = loss_and_gradients(dense.as_ref(), &batch, Mode::Evaluate);
    for (num_experts, topk) in [(1, 1), (5, 2), (3, 3)] {
        // Without the router's losses, which have gradients of their own.
        let moe = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..mixture(num_experts, topk).moe.unwrap() };
        let config = DecoderConfig { moe: Some(moe), ..llama() };
        let mut chunk = build(&config);
        let mut alike = values(chunk.as_ref());
        for (name, value) in &mut alike {
            if !name.contains(".router.") {
                *value = dense_values[&dense_name(name)].clone();
            }
        }
        set_values(chunk.as_mut(), &alike);
        let (loss, gradients) = loss_and_gradients(chunk.as_ref(), &batch, Mode::Evaluate);
        assert!((loss / expected - 1.0).abs() < 1e-5, "{num_experts} experts: {loss}, expected {expected}");
        // Experts share the dense gradient out among them, the weights of a token summing to one.
        for (name, expected) in &expected_gradients {
            let is_mlp = name.contains(".0.mlp.linear") || name.contains(".2.mlp.linear");
            if !is_mlp {
                continue;
            }
            let mut sum = vec![0.0_f32; expected.len()];
            for (_, gradient) in gradients.iter().filter(|(own, _)| dense_name(own) == *name) {
                sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
            assert_close(&sum, expected, 1e-4);
        }
    }
}

/// ReLU lets positive factors through, and so do experts without a gate that have it.
#[test]
fn weights_of_inputs_are_weights_of_outputs_where_the_unit_lets_them_through() {
    let batch = Batch::new(&micro_batch(37), &device());
    let results = |activation, gated_linear_unit, weighted_inputs, output_multiplier: f64| {
        let moe = MoeConfig { weighted_inputs, output_multiplier, ..mixture(5, 2).moe.unwrap() };
        let config = DecoderConfig { moe: Some(moe), activation, gated_linear_unit, ..llama() };
        let mut chunk = build(&config);
        let scaled = values(chunk.as_ref()).into_iter().map(|(name, mut value)| {
            // A factor on all outputs is one on the last matrix.
            if output_multiplier == 1.0 && name.contains("local_experts") && name.ends_with("fc2.weight") {
                value.iter_mut().for_each(|value| *value *= 0.5);
            }
            (name, value)
        });
        let scaled: Values = scaled.collect();
        set_values(chunk.as_mut(), &scaled);
        loss_and_gradients(chunk.as_ref(), &batch, Mode::Evaluate)
    };
    let (expected, gradients) = results(Activation::Relu, false, false, 0.5);
    for (weighted_inputs, multiplier) in [(true, 0.5), (true, 1.0), (false, 1.0)] {
        let (loss, found) = results(Activation::Relu, false, weighted_inputs, multiplier);
        assert!((loss / expected - 1.0).abs() < 1e-6, "{loss}, expected {expected}");
        for (name, expected) in &gradients {
            let is_scaled = multiplier == 1.0 && name.contains("local_experts") && name.ends_with("fc2.weight");
            let expected: Vec<f32> = expected.iter().map(|g| if is_scaled { 2.0 * g } else { *g }).collect();
            assert_close(&found[name], &expected, 1e-5);
        }
    }
    let [inputs, outputs] = [true, false].map(|weighted| results(Activation::Silu, true, weighted, 0.5).0);
    assert!((inputs - outputs).abs() > 1e-3, "{inputs} and {outputs}");
}

#[test]
fn names_and_shapes_are_those_of_the_configuration() {
    let config = mixture(5, 2);
    let shared = MoeConfig { shared_expert_intermediate_size: Some(13), ..config.moe.clone().unwrap() };
    for config in [config.clone(), DecoderConfig { moe: Some(shared), ..config }] {
        let chunk = build(&config);
        let mut found: Vec<_> = chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        let table = config.declarations();
        let mut expected: Vec<_> =
            table.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(found.iter().any(|(name, _)| name == "decoder.layers.2.mlp.experts.local_experts.4.linear_fc2.weight"));
        assert!(found.iter().any(|(name, _)| name == "decoder.layers.0.mlp.router.weight"));
        assert!(found.iter().any(|(name, _)| name == "decoder.layers.1.mlp.linear_fc1.weight"));
    }
}

#[test]
fn layers_report_to_the_collector_of_the_caller() {
    let config = mixture(5, 2);
    let chunk = build(&config);
    let batch = Batch::new(&micro_batch(37), &device());
    let metrics = LayerMetrics::default();
    let auxiliary = Auxiliary { metrics: Some(&metrics), ..Auxiliary::default() };
    let context = ForwardContext { auxiliary, ..ForwardContext::new(&batch, Mode::Evaluate) };
    run_segments(chunk.as_ref(), 0..chunk.segments().len() - 1, Boundary::default(), &context).unwrap();
    let reported = metrics.take();
    for layer in [0, 2] {
        let tokens = &reported[&("tokens_per_expert", layer)];
        assert_eq!((tokens.len(), tokens.iter().sum::<f64>()), (5, 28.0), "two choices of fourteen tokens");
        // The least the balancing loss can be is 1, when all experts have equal shares (and it is
        // at most the number of experts).
        let balance = reported[&("load_balancing_loss", layer)][0];
        assert!((0.9..5.0).contains(&balance), "{balance}");
        assert!(reported[&("z_loss", layer)][0] > 0.0);
    }
    assert_eq!(reported.len(), 6, "a dense layer has nothing to report");
}

#[test]
fn the_scale_of_auxiliary_losses_scales_their_gradients_alone() {
    let config = mixture(5, 2);
    let chunk = build(&config);
    let batch = Batch::new(&micro_batch(37), &device());
    let router_gradient = |gradient_scale: f64| {
        let auxiliary = Auxiliary { gradient_scale, metrics: None };
        let context = ForwardContext { auxiliary, ..ForwardContext::new(&batch, Mode::Train(Philox::new(1))) };
        let mut gradients = bridge_core::model::loss_sum(chunk.as_ref(), &context).unwrap().backward();
        let mut found = Vec::new();
        chunk.take_gradients(&mut gradients, &mut |name, gradient| {
            if name == "decoder.layers.2.mlp.router.weight" {
                found = floats(gradient);
            }
        });
        found
    };
    let (none, one, two) = (router_gradient(0.0), router_gradient(1.0), router_gradient(2.0));
    let part = |with: &[f32]| -> Vec<f32> { with.iter().zip(&none).map(|(a, b)| a - b).collect() };
    let doubled: Vec<f32> = part(&one).iter().map(|g| 2.0 * g).collect();
    assert!(part(&one).iter().any(|g| g.abs() > 1e-4), "the losses have gradients");
    assert_close(&part(&two), &doubled, 1e-5);
}

#[test]
fn settings_of_experts_are_checked_by_key() {
    let base = mixture(5, 2).moe.unwrap();
    let groups = MoeConfig { num_experts: 6, topk: 3, num_groups: Some(3), group_topk: Some(2), ..base.clone() };
    let cases = [
        ("model.moe_router_group_topk", groups),
        ("model.moe_router_topk", MoeConfig { topk: 6, ..base.clone() }),
        ("model.num_moe_experts", MoeConfig { num_experts: 0, ..base.clone() }),
        ("model.moe_apply_probs_on_input", MoeConfig { weighted_inputs: true, linear_bias: true, ..base.clone() }),
        ("model.moe_z_loss_coeff", MoeConfig { z_loss_coeff: f64::NAN, ..base.clone() }),
        ("model.moe_layer_freq", MoeConfig { layers: LayerPattern::Listed(vec![true]), ..base }),
    ];
    for (key, moe) in cases {
        let message = DecoderConfig { moe: Some(moe), ..llama() }.validate().unwrap_err().to_string();
        assert!(message.starts_with(key), "{message}");
    }
}

#[test]
fn the_model_section_says_what_the_mixture_is() {
    for config in [mixture(5, 2), mixture(4, 1)] {
        let section = config.to_transformer().unwrap();
        assert_eq!(DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap(), config);
    }
}
