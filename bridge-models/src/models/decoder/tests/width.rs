//! muP: settings that change with the width, and a coordinate check that the scale of activations
//! does not depend on the width.

use bridge_core::config::{
    Activation as ActivationChoice, Normalization, PositionEmbeddingType, TransformerConfig as Section,
};
use bridge_core::optim::{GroupSettings, OverrideProvider, StandardOverrides};

use super::*;

const BASE: usize = 64;
const VOCABULARY: usize = 37;
const LEARNING_RATE: f64 = 0.01;

/// Four heads, which grow with the width, and an output table of its own.
fn section(width: usize, use_mup: bool) -> Section {
    Section {
        num_layers: 2,
        hidden_size: width,
        num_attention_heads: 4,
        ffn_hidden_size: Some(2 * width),
        vocab_size: Some(VOCABULARY),
        seq_length: 16,
        position_embedding_type: PositionEmbeddingType::Rope,
        normalization: Normalization::RmsNorm,
        gated_linear_unit: true,
        activation_func: ActivationChoice::Silu,
        add_bias_linear: false,
        share_embeddings_and_output_weights: false,
        hidden_dropout: 0.0,
        attention_dropout: 0.0,
        init_method_std: 0.125,
        embedding_init_method_std: Some(1.0),
        use_mup,
        mup_base_hidden_size: use_mup.then_some(BASE),
        mup_base_head_dim: use_mup.then_some(BASE / 4),
        ..Section::default()
    }
}

fn root_mean_square(values: &[f32]) -> f64 {
    (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// Root mean squares of the residual stream and of the logits after some steps of Adam.
fn trained(width: usize, use_mup: bool) -> [f64; 2] {
    let section = section(width, use_mup);
    let hidden_matrices = GroupSettings {
        max_lr: use_mup.then_some(LEARNING_RATE / section.width_multiplier()),
        ..GroupSettings::default()
    };
    let overrides = StandardOverrides { hidden_matrices, ..StandardOverrides::default() };
    let config = DecoderConfig::from_transformer(&section, VOCABULARY).unwrap();
    let mut chunk = build_decoder(&config, &context(&config), &Stage::whole([config.num_layers])).unwrap();
    let rate_of: BTreeMap<_, _> = chunk
        .parameters()
        .iter()
        .map(|info| (info.name.clone(), overrides.override_for(info).max_lr.unwrap_or(LEARNING_RATE)))
        .collect();
    let batch = Batch::new(&micro_batch(VOCABULARY), &device());
    let mut moments: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    for step in 1..=5 {
        let (_, gradients) = loss_and_gradients(chunk.as_ref(), &batch, Mode::Evaluate);
        let mut now = values(chunk.as_ref());
        for (name, value) in &mut now {
            let moments = moments.entry(name.clone()).or_insert_with(|| vec![[0.0; 2]; value.len()]);
            for ((value, gradient), [first, second]) in value.iter_mut().zip(&gradients[name]).zip(moments) {
                let gradient = f64::from(*gradient);
                *first = 0.9 * *first + 0.1 * gradient;
                *second = 0.95 * *second + 0.05 * gradient * gradient;
                let (mean, square) = (*first / (1.0 - 0.9_f64.powi(step)), *second / (1.0 - 0.95_f64.powi(step)));
                *value -= (rate_of[name] * mean / (square.sqrt() + 1e-8)) as f32;
            }
        }
        set_values(chunk.as_mut(), &now);
    }
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let layers = 0..chunk.segments().len() - 1;
    let SegmentOutput::Boundary(mut boundary) =
        run_segments(chunk.as_ref(), layers, Boundary::default(), &context).unwrap()
    else {
        panic!("the head is left out")
    };
    let stream = floats(boundary.take_hidden_states());
    [root_mean_square(&stream), root_mean_square(&logits(chunk.as_ref(), &tokens(11, VOCABULARY)))]
}

#[test]
fn activations_are_as_large_at_every_width_with_mup_and_grow_without() {
    let [with, without] = [true, false].map(|use_mup| [64, 128, 256].map(|width| trained(width, use_mup)));
    println!("stream and logits by width, with muP {with:.3?}, without {without:.3?}");
    for coordinate in 0..2 {
        let [small, middle, large] = with.map(|scales| scales[coordinate]);
        let spread = small.max(middle).max(large) / small.min(middle).min(large);
        assert!(spread < 1.4, "coordinate {coordinate} with muP: {with:?}");
        let [small, middle, large] = without.map(|scales| scales[coordinate]);
        assert!(middle > 1.4 * small && large > 1.4 * middle, "coordinate {coordinate} without: {without:?}");
    }
}

#[test]
fn matrices_scores_and_logits_go_with_the_width() {
    let read = |section: &Section| DecoderConfig::from_transformer(section, VOCABULARY).unwrap();
    let wide = section(256, true);
    assert_eq!(wide.width_multiplier(), 4.0);
    let config = read(&wide);
    assert_eq!(config.softmax_scale, 16_f64.sqrt() / 64.0);
    assert_eq!(
        read(&Section { mup_attn_scale_power: 0.5, mup_base_head_dim: None, ..wide.clone() }).softmax_scale,
        0.125
    );
    assert_eq!(read(&Section { mup_base_head_dim: None, ..wide.clone() }).softmax_scale, 1.0 / 64.0);
    // At the base width, initial values and logits equal those without muP.
    let based = read(&Section { mup_base_hidden_size: None, ..wide.clone() });
    assert_eq!((based.width_multiplier, based.factor_on_logits()), (Some(1.0), 1.0));
    let spread = |config: &DecoderConfig, name: &str| {
        let chunk = build_decoder(config, &context(config), &Stage::whole([2])).unwrap();
        root_mean_square(&values(chunk.as_ref())[name])
    };
    let plain = read(&section(256, false));
    for (name, divisor) in [
        ("decoder.layers.0.self_attention.linear_qkv.weight", 2.0),
        ("decoder.layers.1.mlp.linear_fc2.weight", 2.0),
        ("embedding.word_embeddings.weight", 1.0),
        ("output_layer.weight", 1.0),
    ] {
        let found = spread(&plain, name) / spread(&config, name);
        assert!((found - divisor).abs() < 1e-5, "{name}: {found}");
    }
    let hybrid = Section { hybrid_override_pattern: Some("M*".into()), ..wide };
    let refused = DecoderConfig::from_transformer(&hybrid, VOCABULARY).unwrap_err();
    assert!(refused.to_string().contains("use_mup"), "{refused}");
}
