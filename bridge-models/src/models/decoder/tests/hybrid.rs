//! Models whose layers have one block each, with Mamba's and short convolutions among them: ranks,
//! stages, generation, documents, initial values.

use bridge_core::config::NormPlacement;

use super::spread::{ONE, Spread, check, run, sequences};
use super::*;

/// Mamba, attention and feed-forward layers.
pub fn hybrid() -> DecoderConfig {
    let mamba = MambaConfig {
        state_size: 6,
        head_size: 5,
        num_heads: 8,
        num_groups: 4,
        conv_kernel: 3,
        chunk_size: 3,
        proj_bias: true,
        ..MambaConfig::neutral()
    };
    let layers = vec![HybridBlock::Mamba, HybridBlock::Attention, HybridBlock::Mlp, HybridBlock::Mamba];
    DecoderConfig {
        num_layers: 4,
        num_attention_heads: 8,
        num_query_groups: 4,
        ffn_hidden_size: 28,
        padded_vocab_size: 40,
        position_embedding: PositionEmbedding::None,
        hybrid: Some(HybridConfig { mamba, ..HybridConfig::new(layers) }),
        ..llama()
    }
}

/// The first Mamba, a short convolution, Mamba-2 beside attention, and factors on all of them.
fn mixed() -> DecoderConfig {
    let mut config = DecoderConfig { hidden_size: 24, ..hybrid() };
    let hybrid = config.hybrid.as_mut().unwrap();
    hybrid.layers = vec![HybridBlock::Selective, HybridBlock::ShortConv, HybridBlock::MambaAttention, HybridBlock::Mlp];
    hybrid.short_conv = ShortConvConfig { kernel: 4, bias: true };
    hybrid.factors = BlockFactors {
        attention_input: 1.1,
        attention_output: 0.9,
        mamba_input: 1.3,
        mamba_output: 0.8,
        mamba_parts: [0.7, 1.2, 0.9, 1.4, 0.6],
        mlp_gate: 0.8,
        mlp_output: 1.2,
    };
    hybrid.mamba = MambaConfig { norm_before_gate: true, out_bias: Some(false), dt_rank: Some(4), ..hybrid.mamba };
    config
}

/// Short convolutions and attention in a window, with norms around each block.
fn sandwich() -> DecoderConfig {
    let mut config = DecoderConfig {
        residual: ResidualConfig { norms: NormPlacement::Sandwich, ..ResidualConfig::default() },
        window_size: Some(2),
        window_layers: LayerPattern::Listed(vec![false, true, false, false]),
        hidden_size: 24,
        ..hybrid()
    };
    let hybrid = config.hybrid.as_mut().unwrap();
    hybrid.layers = vec![HybridBlock::ShortConv, HybridBlock::Attention, HybridBlock::Mlp, HybridBlock::Mamba];
    config
}

/// [`mixed`] without the norm of the scan's output, and without biases.
fn mixed_without_norm() -> DecoderConfig {
    let mut config = mixed();
    let hybrid = config.hybrid.as_mut().unwrap();
    hybrid.short_conv.bias = false;
    hybrid.mamba = MambaConfig {
        has_norm: false,
        norm_before_gate: false,
        proj_bias: false,
        conv_bias: false,
        out_bias: None,
        ..hybrid.mamba
    };
    config
}

/// Three layers that use two shared blocks in turn, with rotary embedding.
pub fn shared(num_blocks: usize) -> DecoderConfig {
    let mut config = DecoderConfig {
        num_layers: 5,
        kv_channels: 6,
        position_embedding: llama().position_embedding,
        activation: Activation::Gelu,
        num_query_groups: 8,
        init_method_std: 0.1,
        ..hybrid()
    };
    let hybrid = config.hybrid.as_mut().unwrap();
    let (mamba, shared) = (HybridBlock::Mamba, HybridBlock::SharedMamba);
    hybrid.layers = vec![mamba, shared, shared, mamba, shared];
    hybrid.shared = SharedConfig { num_blocks, adapter_rank: 3, attention_adapters: true };
    hybrid.mamba.norm_epsilon = Some(1e-3);
    config
}

#[test]
fn gradients_of_a_shared_block_are_the_sum_over_its_layers() {
    let (shared_by_all, one_each) = (shared(1), shared(3));
    let (one, mut other) = (build(&shared_by_all), build(&one_each));
    let weights = values(one.as_ref());
    // The layer of a name, and the same name in the layer that holds the block of all.
    let of_holder = |name: &str| {
        let (layer, rest) = name.strip_prefix("decoder.layers.").and_then(|rest| rest.split_once('.'))?;
        (rest.starts_with("shared_block") || rest.starts_with("adapters"))
            .then(|| (layer.to_owned(), format!("decoder.layers.1.{rest}")))
    };
    let alike = values(other.as_ref()).into_keys().map(|name| {
        let value = weights[&of_holder(&name).map_or(name.clone(), |(_, name)| name)].clone();
        (name, value)
    });
    set_values(other.as_mut(), &alike.collect());
    let batch = Batch::new(&micro_batch(37), &device());
    let (loss, found) = loss_and_gradients(one.as_ref(), &batch, Mode::Evaluate);
    let (expected, apart) = loss_and_gradients(other.as_ref(), &batch, Mode::Evaluate);
    assert_eq!(loss, expected);
    assert!(found.len() < apart.len());
    for (name, gradient) in &found {
        let mut sum = vec![0.0_f32; gradient.len()];
        let is_of = |own: &str| own == name || of_holder(own).is_some_and(|(_, own)| own == *name);
        for (_, part) in apart.iter().filter(|(own, _)| is_of(own)) {
            sum.iter_mut().zip(part).for_each(|(sum, g)| *sum += g);
        }
        assert_close(gradient, &sum, 1e-4);
    }
}

#[test]
fn stages_do_not_divide_the_layers_of_a_shared_block() {
    let config = shared(2);
    let stage = |layers: std::ops::Range<usize>| {
        let (start, end) = (layers.start == 0, layers.end == 5);
        build_decoder(&config, &context(&config), &Stage::from(StackPart { layers, start, end }))
    };
    let refused = stage(2..5).unwrap_err().to_string();
    assert!(refused.contains("layers 1 and 4 share a block"), "{refused}");
    assert!(stage(0..4).is_ok() && stage(0..1).is_ok());
    let (whole, first, last) = (stage(0..5).unwrap(), stage(0..1).unwrap(), stage(1..5).unwrap());
    let batch = Batch::new(&micro_batch(37), &device());
    let loss = |chunks: &[&dyn ModelChunk]| loss_sum(chunks, &batch, Mode::Evaluate).into_scalar::<f32>();
    assert_eq!(loss(&[first.as_ref(), last.as_ref()]), loss(&[whole.as_ref()]));
}

/// Mamba layers alone.
pub fn pure() -> DecoderConfig {
    let mut config = DecoderConfig { num_layers: 2, ..hybrid() };
    let hybrid = config.hybrid.as_mut().unwrap();
    hybrid.layers = vec![HybridBlock::Mamba; 2];
    hybrid.mamba =
        MambaConfig { conv_bias: false, least_time_step: 0.02, largest_time_step: Some(0.9), ..hybrid.mamba };
    config.without_unused()
}

/// With experts in place of the feed-forward block.
fn with_experts() -> DecoderConfig {
    let (_, mixture) = super::spread::mixtures().remove(0);
    let mut config = DecoderConfig { moe: mixture.moe, ..hybrid() };
    config.hybrid.as_mut().unwrap().layers[2] = HybridBlock::Moe;
    let layers = LayerPattern::Listed(vec![false, false, true, false]);
    config.moe = config.moe.map(|moe| MoeConfig { layers, ..moe });
    config
}

#[test]
fn ranks_compute_what_one_does() {
    let two = Spread { tensor: 2, ..ONE };
    let four = Spread { tensor: 4, ..ONE };
    let parallel = [Spread { sequence_parallel: true, ..two }, Spread { sequence_parallel: true, ..four }];
    let mixed = [("mixed", mixed()), ("without norm", mixed_without_norm()), ("sandwich", sandwich())];
    let shared = [("shared", shared(2)), ("shared by all", shared(1))];
    for (name, config) in [("hybrid", hybrid()), ("pure", pure())].into_iter().chain(mixed).chain(shared) {
        check(vec![(name, config)], &[two, four, parallel[0], parallel[1], Spread { data: 2, ..two }]);
    }
    check(vec![("experts", with_experts())], &[two, Spread { expert: 2, data: 2, ..ONE }]);
}

#[test]
fn stages_in_a_row_are_the_whole_model() {
    for config in [hybrid(), with_experts()] {
        let whole = build(&config);
        let first = build_stage(&config, &Stage::from(StackPart { layers: 0..1, start: true, end: false }));
        let last = build_stage(&config, &Stage::from(StackPart { layers: 1..4, start: false, end: true }));
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let loss = |chunks: &[&dyn ModelChunk]| loss_sum(chunks, &batch, Mode::Evaluate).into_scalar::<f32>();
        assert_eq!(loss(&[first.as_ref(), last.as_ref()]), loss(&[whole.as_ref()]));
        let segments: Vec<_> = [first, last].iter().flat_map(|stage| stage.segments()).collect();
        assert_eq!(segments, whole.segments());
    }
}

#[test]
fn logits_with_state_are_those_without() {
    [hybrid(), pure(), with_experts(), mixed(), mixed_without_norm(), shared(2), sandwich()]
        .iter()
        .for_each(check_states);
}

/// Checks that logits of tokens in several parts, with a state, are those of all at once.
pub fn check_states(config: &DecoderConfig) {
    let chunk = build(config);
    let ids = tokens(17, config.vocab_size);
    let expected = logits(chunk.as_ref(), &ids);
    for lengths in [vec![1; 17], vec![4, 1, 1, 7, 3, 1]] {
        let model = chunk.inference();
        let (mut state, mut found, mut start) = (model.new_state(), Vec::new(), 0);
        for length in lengths {
            found.extend(logits_after(model.as_ref(), &mut state, &ids[start..start + length]));
            start += length;
        }
        assert_close(&found, &expected, 2e-5);
    }
}

#[test]
fn states_begin_anew_in_each_document() {
    [hybrid(), pure(), mixed(), shared(2)].iter().for_each(check_documents);
}

/// Checks that the loss of several documents in a sequence is that of each on its own.
pub fn check_documents(config: &DecoderConfig) {
    let documents = vec![0, 0, 0, 1, 1, 2, 2, 2];
    let batch =
        MicroBatch { document_ids: Some([documents.clone(), documents].concat()), ..sequences(config.vocab_size, 0) };
    let found = run(config, ONE, &|_| batch.clone(), Mode::Evaluate);
    let plain = run(config, ONE, &|_| sequences(config.vocab_size, 0), Mode::Evaluate);
    assert!(found.loss != plain.loss, "boundaries matter");
    // Each document as a sequence of its own.
    let chunk = build_spread_alone(config);
    let mut sum = 0.0;
    for row in 0..2 {
        for places in [0..3, 3..5, 5..8] {
            let places: Vec<usize> = places.map(|place| row * 8 + place).collect();
            let pick = |values: &[i64]| places.iter().map(|place| values[*place]).collect::<Vec<_>>();
            let document = MicroBatch {
                tokens: pick(&batch.tokens),
                labels: pick(&batch.labels),
                loss_mask: places.iter().map(|place| batch.loss_mask[*place]).collect(),
                position_ids: (0..places.len() as i64).collect(),
                batch_size: 1,
                seq_length: places.len(),
                ..MicroBatch::default()
            };
            let document = Batch::new(&document, &device());
            sum += loss_sum(&[chunk.as_ref()], &document, Mode::Evaluate).into_scalar::<f32>();
        }
    }
    assert!((f64::from(sum) / found.loss - 1.0).abs() < 1e-5, "{sum} and {}", found.loss);
}

/// The model that [`run`] runs, on one rank.
fn build_spread_alone(config: &DecoderConfig) -> Box<dyn ModelChunk> {
    let groups = bridge_dist::mesh::ProcessGroups::single();
    super::spread::build_spread(&super::spread::Model { config: config.clone(), adapter: None }, groups, ONE)
}

#[test]
fn parameters_begin_as_upstream_has_them() {
    let mut config = pure();
    let mamba = &mut config.hybrid.as_mut().unwrap().mamba;
    (mamba.num_heads, mamba.head_size, mamba.conv_bias) = (400, 2, true);
    let found = values(build_decoder(&config, &context(&config), &Stage::whole([2])).unwrap().as_ref());
    let of = |name: &str| &found[&format!("decoder.layers.0.mixer.{name}")];
    assert!(of("D").iter().all(|d| *d == 1.0) && of("norm.weight").iter().all(|w| *w == 1.0));
    let range = |values: Vec<f32>| {
        values.iter().fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(*value), high.max(*value)))
    };
    let (low, high) = range(of("A_log").iter().map(|a| a.exp()).collect());
    assert!((1.0..1.5).contains(&low) && (15.5..16.0).contains(&high), "decay rates from {low} to {high}");
    let (low, high) = range(of("dt_bias").iter().map(|bias| bias.exp().ln_1p()).collect());
    assert!((0.00099..0.0012).contains(&low) && (0.09..0.1001).contains(&high), "time steps from {low} to {high}");
    let bound = 1.0 / 3_f32.sqrt();
    for name in ["conv1d.weight", "conv1d.bias"] {
        let (low, high) = range(of(name).clone());
        assert!(low < -0.98 * bound && low >= -bound && high > 0.98 * bound && high <= bound, "{name}");
    }
    let deviation = |values: &[f32]| (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt();
    assert!((deviation(of("in_proj.weight")) / 0.3 - 1.0).abs() < 0.05);
    assert!((deviation(of("out_proj.weight")) / (0.3 / 2_f32.sqrt()) - 1.0).abs() < 0.05, "one block a layer");
}

#[test]
fn sections_and_serialisation_keep_hybrids() {
    for config in [hybrid(), pure(), with_experts(), mixed(), mixed_without_norm(), shared(2)] {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<DecoderConfig>(&text).unwrap(), config);
    }
    let section = DecoderConfig { kv_channels: 10, mlp_bias: false, ..hybrid() }.to_transformer().unwrap();
    assert_eq!(section.hybrid_override_pattern.as_deref(), Some("M*-M"));
    for config in [mixed(), mixed_without_norm()] {
        let config = DecoderConfig { mlp_bias: false, ..config }.without_unused();
        let section = config.to_transformer().unwrap();
        assert_eq!(section.hybrid_override_pattern.as_deref(), Some("SCP-"));
        assert_eq!(DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap(), config);
    }
    let shared = DecoderConfig { mlp_bias: false, ..shared(2) }.without_unused();
    let section = shared.to_transformer().unwrap();
    assert_eq!(section.hybrid_override_pattern.as_deref(), Some("MZZMZ"));
    assert_eq!(DecoderConfig::from_transformer(&section, shared.padded_vocab_size).unwrap(), shared);
    let pure = pure().to_transformer().unwrap();
    assert_eq!((pure.num_attention_heads, pure.seq_length), (1, 1024));
    assert_eq!(DecoderConfig::from_transformer(&pure, 40).unwrap().kind(), "mamba");
}
