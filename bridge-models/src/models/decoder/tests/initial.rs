//! Initial values, names and shapes of parameters.

use bridge_core::model::ParameterRole;

use super::*;

fn initial(config: &DecoderConfig, stage: &Stage) -> Values {
    values(build_decoder(config, &context(config), stage).unwrap().as_ref())
}

#[test]
fn names_and_shapes_are_those_of_the_configuration() {
    for config in [llama(), gpt2(), everything()] {
        let chunk = build(&config);
        let found: Vec<_> = chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        let table = config.declarations();
        let mut expected: Vec<_> =
            table.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        expected.sort();
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, expected);
        let count: usize = chunk.parameters().iter().map(|info| info.num_elements()).sum();
        assert_eq!(config.num_parameters(), count);
        assert!(chunk.parameters().iter().all(|info| info.trainable));
    }
}

#[test]
fn names_are_megatrons() {
    let chunk = build(&gpt2());
    let found: Vec<String> = chunk.parameters().iter().map(|info| info.name.clone()).collect();
    for name in [
        "embedding.word_embeddings.weight",
        "embedding.position_embeddings.weight",
        "decoder.layers.2.input_layernorm.bias",
        "decoder.layers.2.self_attention.linear_qkv.weight",
        "decoder.layers.2.self_attention.linear_proj.bias",
        "decoder.layers.2.pre_mlp_layernorm.weight",
        "decoder.layers.2.mlp.linear_fc1.bias",
        "decoder.layers.2.mlp.linear_fc2.weight",
        "decoder.final_layernorm.weight",
    ] {
        assert!(found.iter().any(|found| found == name), "{name} is not among {found:?}");
    }
    let roles: BTreeMap<_, _> =
        build(&llama()).parameters().iter().map(|info| (info.name.clone(), info.role)).collect();
    assert_eq!(roles["embedding.word_embeddings.weight"], ParameterRole::Embedding);
    assert_eq!(roles["output_layer.weight"], ParameterRole::Output);
    assert_eq!(roles["decoder.layers.0.mlp.linear_fc1.weight"], ParameterRole::Weight);
}

#[test]
fn initial_values_do_not_depend_on_the_stage() {
    for config in [llama(), gpt2()] {
        let whole = initial(&config, &Stage::whole([3]));
        let mut staged = initial(&config, &Stage::from(StackPart { layers: 0..2, start: true, end: false }));
        let last = initial(&config, &Stage::from(StackPart { layers: 2..3, start: false, end: true }));
        let tied = config.share_embeddings_and_output_weights;
        assert_eq!(last.contains_key("embedding.word_embeddings.weight"), tied, "a tied head has its own copy");
        for (name, value) in last {
            if let Some(first) = staged.insert(name, value.clone()) {
                assert_eq!(first, value, "both copies of the tied table start equal");
            }
        }
        assert_eq!(staged, whole);
    }
}

#[test]
fn standard_deviations_are_megatrons() {
    let config = DecoderConfig {
        hidden_size: 127,
        ffn_hidden_size: 251,
        vocab_size: 257,
        padded_vocab_size: 257,
        init_method_std: 0.02,
        embedding_init_method_std: 0.05,
        ..llama()
    };
    let values = initial(&config, &Stage::whole([3]));
    let scaled = 0.02 / 6_f64.sqrt();
    for (name, value) in &values {
        let expected = match name.as_str() {
            "embedding.word_embeddings.weight" => 0.05,
            "output_layer.weight" => 0.02,
            name if name.contains("layernorm") => {
                assert!(value.iter().all(|v| *v == 1.0), "{name}");
                continue;
            }
            name if name.contains("linear_proj") || name.contains("linear_fc2") => scaled,
            _ => 0.02,
        };
        let n = value.len() as f64;
        let deviation = (value.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
        // Five standard errors of a standard deviation.
        assert!(
            (deviation / expected - 1.0).abs() < 5.0 / (2.0 * n).sqrt(),
            "{name}: {deviation}, expected {expected}"
        );
    }
    let (a, b) = ("decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.1.mlp.linear_fc1.weight");
    assert_ne!(values[a], values[b]);
}

#[test]
fn seeds_differ_and_drawing_can_be_skipped() {
    let config = llama();
    let seeded = |seed| {
        let context = BuildContext { seed, ..context(&config) };
        values(build_decoder(&config, &context, &Stage::whole([3])).unwrap().as_ref())
    };
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
    let skipped = DecoderConfig { perform_initialization: false, ..gpt2() };
    for (name, value) in initial(&skipped, &Stage::whole([3])) {
        let expected = if name.ends_with("layernorm.weight") { 1.0 } else { 0.0 };
        assert!(value.iter().all(|v| *v == expected), "{name}");
    }
    let centred = initial(&everything(), &Stage::whole([3]));
    assert!(centred["decoder.final_layernorm.weight"].iter().all(|v| *v == 0.0));
}
