//! The `[model]` section in and out, and refusals.

use std::sync::Arc;

use bridge_core::config::{
    Format, Normalization, OneOrMany, PositionEmbeddingType, QkNormScope, TransformerConfig, World, load_text,
};
use bridge_core::model::{Declaration, ModelBuildError, ModelHook, ModelRegistry, ModuleChunk, Workload};
use burn::module::{Module as _, ModuleMapper, Param};

use super::super::model;
use super::reference::compositions;
use super::*;
use crate::models::encoder_decoder::EncoderDecoder;

fn section() -> TransformerConfig {
    TransformerConfig {
        num_layers: 4,
        hidden_size: 24,
        num_attention_heads: 6,
        position_embedding_type: PositionEmbeddingType::Rope,
        seq_length: 32,
        ..TransformerConfig::default()
    }
}

#[test]
fn derived_values_are_filled_in() {
    let config = DecoderConfig::from_transformer(&section(), 128).unwrap();
    assert_eq!((config.ffn_hidden_size, config.num_query_groups, config.kv_channels), (96, 6, 4));
    assert_eq!((config.vocab_size, config.padded_vocab_size), (128, 128));
    assert_eq!(config.softmax_scale, 0.5);
    assert_eq!(config.embedding_init_method_std, 0.02);
    assert!(config.share_embeddings_and_output_weights && config.qkv_bias && config.mlp_bias);
    assert_eq!((config.embedding_dropout, config.hidden_dropout, config.attention_dropout), (0.1, 0.1, 0.1));
    assert_eq!(config.window_layers, LayerPattern::All);
    assert_eq!(config.no_rope_layers, LayerPattern::None);
}

#[test]
fn a_section_made_from_a_decoder_gives_it_back() {
    let everything = DecoderConfig { attention_softcap: None, logit_softcap: None, ..everything() };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.5,
        high_freq_factor: 4.5,
        original_max_position_embeddings: 9,
    };
    let PositionEmbedding::Rope(rope) = llama().position_embedding else { panic!("llama has rotary positions") };
    let scaled = DecoderConfig {
        position_embedding: PositionEmbedding::Rope(RopeConfig { scaling: Some(llama3), ..rope }),
        softmax_scale: 0.7,
        ..llama()
    };
    let rotated = |scaling| {
        let positions = PositionEmbedding::Rope(RopeConfig { scaling: Some(scaling), ..RopeConfig::neutral() });
        DecoderConfig { position_embedding: positions, ..llama() }
    };
    let yarn = rotated(RopeScaling::Yarn(YarnConfig {
        factor: 3.0,
        original_max_position_embeddings: 9,
        beta_fast: 20.0,
        beta_slow: 2.0,
        mscale: Some(0.7),
        mscale_all_dim: Some(0.9),
        attention_factor: None,
        truncate: false,
    }));
    let bare = DecoderConfig { position_embedding: PositionEmbedding::None, ..llama() };
    let whole = DecoderConfig { qk_layernorm: true, qk_layernorm_scope: QkNormScope::Projection, ..llama() };
    let scaled_all = DecoderConfig { embedding_multiplier: 3.0, logit_multiplier: 0.125, ..llama() };
    let biases = [
        DecoderConfig { mlp_bias: true, ..llama() },
        DecoderConfig { qkv_bias: true, mlp_bias: true, ..llama() },
        DecoderConfig { qkv_bias: true, proj_bias: true, ..llama() },
    ];
    let written = compositions().into_iter().map(|config| {
        let residual = ResidualConfig { stream_multiplier: 1.0, ..config.residual };
        DecoderConfig { residual, ..config }
    });
    let ([_, _, local, limited], [.., windowed]) = (factors(), switches());
    let dropped = DecoderConfig { embedding_dropout: 0.1, ..llama() };
    let wide = DecoderConfig { hidden_size: 96, width_multiplier: Some(1.5), softmax_scale: 0.1, ..llama() };
    let some =
        [llama(), gpt2(), everything, scaled, yarn, longrope(), bare, local, limited, wide, whole, scaled_all, dropped]
            .into_iter()
            .chain(biases)
            .chain([windowed])
            .chain(streams());
    for config in some.chain(written) {
        let section = config.to_transformer().unwrap();
        assert_eq!(DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap(), config);
    }
    let residual = ResidualConfig { stream_multiplier: 1.2, ..ResidualConfig::default() };
    DecoderConfig { residual, ..llama() }.to_transformer().unwrap_err();
}

#[test]
fn scores_of_latent_attention_grow_with_yarn() {
    let scale = |section: TransformerConfig| DecoderConfig::from_transformer(&section, 128).unwrap().softmax_scale;
    let latent = TransformerConfig {
        multi_latent_attention: true,
        num_query_groups: None,
        kv_channels: None,
        qk_head_dim: 6,
        qk_pos_emb_head_dim: 4,
        position_embedding_type: PositionEmbeddingType::Yarn,
        yarn_rotary_scaling_factor: Some(40.0),
        yarn_original_max_position_embeddings: Some(16),
        yarn_mscale: Some(1.0),
        yarn_mscale_all_dim: Some(0.7),
        ..section()
    };
    let growth = 0.1 * 0.7 * 40.0_f64.ln() + 1.0;
    assert!((scale(latent.clone()) * 10.0_f64.sqrt() - growth * growth).abs() < 1e-12);
    let written = DecoderConfig::from_transformer(&latent, 128).unwrap().to_transformer().unwrap();
    assert_eq!(written.softmax_scale, None, "it is the usual one");
    assert_eq!(scale(TransformerConfig { softmax_scale: Some(0.25), ..latent.clone() }), 0.25);
    let shorter = TransformerConfig { yarn_rotary_scaling_factor: Some(0.5), ..latent.clone() };
    let without = TransformerConfig { yarn_mscale: None, yarn_mscale_all_dim: None, ..latent.clone() };
    for section in [shorter, without] {
        assert_eq!(scale(section), 1.0 / 10.0_f64.sqrt());
    }
}

#[test]
fn layer_patterns_follow_the_frequencies() {
    let section = TransformerConfig {
        window_size: Some([5, 0]),
        window_attn_skip_freq: Some(OneOrMany::One(2)),
        no_rope_freq: Some(OneOrMany::One(4)),
        ..section()
    };
    let config = DecoderConfig::from_transformer(&section, 128).unwrap();
    assert_eq!(config.window_size, Some(5));
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, true, false]));
    assert_eq!(config.no_rope_layers, LayerPattern::Listed(vec![false, false, false, true]));
    let section = TransformerConfig {
        window_size: Some([-1, -1]),
        window_attn_skip_freq: Some(OneOrMany::Many(vec![1, 0, 0, 1])),
        ..section
    };
    let config = DecoderConfig::from_transformer(&section, 128).unwrap();
    assert_eq!(config.window_size, None);
    assert_eq!(config.window_layers, LayerPattern::Listed(vec![true, false, false, true]));
}

#[test]
fn errors_name_the_key() {
    type Case = (&'static str, Box<dyn Fn(&mut TransformerConfig)>);
    let cases: Vec<Case> = vec![
        ("model.num_layers", Box::new(|c| c.num_layers = 0)),
        ("model.num_attention_heads", Box::new(|c| c.num_attention_heads = 0)),
        ("model.num_query_groups", Box::new(|c| c.num_query_groups = Some(4))),
        ("model.rotary_percent", Box::new(|c| c.rotary_percent = 0.3)),
        ("model.num_moe_experts", Box::new(|c| c.num_moe_experts = Some(0))),
        (
            "model.moe_aux_loss_coeff",
            Box::new(|c| {
                c.num_moe_experts = Some(4);
                c.moe_aux_loss_coeff = OneOrMany::Many(vec![0.1]);
            }),
        ),
        ("model.fp16_lm_cross_entropy", Box::new(|c| c.refused.set("fp16_lm_cross_entropy", true))),
        (
            "model.qk_layernorm_scope",
            Box::new(|c| {
                (c.multi_latent_attention, c.num_query_groups, c.kv_channels) = (true, None, None);
                c.normalization = Normalization::RmsNorm;
                (c.qk_layernorm, c.qk_layernorm_scope) = (true, QkNormScope::Projection);
            }),
        ),
        (
            "model.attention_output_gate_form",
            Box::new(|c| {
                (c.multi_latent_attention, c.num_query_groups, c.kv_channels) = (true, None, None);
                c.attention_output_gate = true;
            }),
        ),
        (
            "model.enable_mhc_connections",
            Box::new(|c| {
                c.enable_mhc_connections = true;
                c.mtp_num_layers = Some(1);
            }),
        ),
        (
            "model.clip_qkv",
            Box::new(|c| {
                (c.multi_latent_attention, c.num_query_groups, c.kv_channels) = (true, None, None);
                c.clip_qkv = Some(1.0);
            }),
        ),
        ("model.position_embedding_type", Box::new(|c| c.position_embedding_type = PositionEmbeddingType::Mrope)),
        ("model.yarn_rotary_scaling_factor", Box::new(|c| c.position_embedding_type = PositionEmbeddingType::Yarn)),
        ("model.longrope_short_factor", Box::new(|c| c.position_embedding_type = PositionEmbeddingType::LongRope)),
        (
            "model.longrope_long_factor",
            Box::new(|c| {
                c.position_embedding_type = PositionEmbeddingType::LongRope;
                c.longrope_original_max_position_embeddings = Some(8);
                (c.longrope_short_factor, c.longrope_long_factor) = (Some(vec![1.0, 2.0]), Some(vec![1.0]));
            }),
        ),
        ("model.window_size", Box::new(|c| c.window_size = Some([4, 2]))),
        ("model.no_rope_freq", Box::new(|c| c.no_rope_freq = Some(OneOrMany::Many(vec![0, 1])))),
        ("model.window_attn_skip_freq", Box::new(|c| c.window_attn_skip_freq = Some(OneOrMany::One(0)))),
        (
            "model.seq_len_interpolation_factor",
            Box::new(|c| (c.rope_scaling, c.seq_len_interpolation_factor) = (true, Some(2.0))),
        ),
        ("model.hidden_dropout", Box::new(|c| c.hidden_dropout = 1.0)),
    ];
    for (expected, change) in cases {
        let mut section = section();
        change(&mut section);
        match DecoderConfig::from_transformer(&section, 128) {
            Err(ModelBuildError::Invalid { key, message }) => {
                assert_eq!(key, expected, "{message}");
                assert!(message.len() > 20, "{key}: {message}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn the_builder_refuses_what_does_not_fit_the_configuration() {
    let config = llama();
    let wrong_vocabulary = BuildContext { padded_vocab_size: 64, ..context(&config) };
    build_decoder(&config, &wrong_vocabulary, &Stage::whole([3])).unwrap_err();
    build_decoder(&config, &context(&config), &Stage::whole([4])).unwrap_err();
}

#[test]
fn the_registry_builds_the_gpt_kind() {
    let mut registry = ModelRegistry::default();
    register_builtin(&mut registry);
    let recipe = include_str!("../../../../../recipes/tiny.toml");
    let kinds = bridge_core::config::Kinds::builtin();
    let world = bridge_core::config::World::SINGLE;
    let run = bridge_core::config::load_text(recipe, bridge_core::config::Format::Toml, &[], &kinds, &world).unwrap();
    let config = registry.config(&run.model).unwrap();
    assert_eq!(config.kind(), "gpt");
    assert_eq!(config.transformer().hidden_size, 64);
    let context = BuildContext { padded_vocab_size: 512, ..context(&llama()) };
    let chunks = config.builder().build_models(config.as_ref(), &context, &[Stage::whole([2])]).unwrap();
    assert_eq!(chunks[0].segments().len(), 6);
    let unknown = ModelRegistry::default().config(&run.model).unwrap_err();
    assert!(unknown.to_string().contains("`gpt`"), "{unknown}");
}

#[test]
fn hooks_run_in_order_on_the_chunks() {
    use std::sync::{Arc, Mutex};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = |name: &'static str| -> ModelHook {
        let seen = Arc::clone(&seen);
        Arc::new(move |chunks| {
            seen.lock().unwrap().push((name, chunks.len()));
            Ok(chunks)
        })
    };
    let config = GptModelConfig::new(section())
        .with_post_wrap_hook(hook("post"))
        .with_pre_wrap_hook(hook("first"))
        .with_pre_wrap_hook(hook("second"));
    let context = BuildContext { padded_vocab_size: 53, ..context(&llama()) };
    use bridge_core::model::ModelConfig as _;
    config.builder().build_models(&config, &context, &[Stage::whole([4])]).unwrap();
    assert_eq!(*seen.lock().unwrap(), [("first", 1), ("second", 1), ("post", 1)]);
}

/// Multiplies the rows of all tables and matrices.
struct Doubled;

impl ModuleMapper for Doubled {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D == 2 { param.map(|tensor| tensor.without_autodiff().mul_scalar(2.0).autodiff()) } else { param }
    }
}

/// Takes the place of all vectors by others.
struct Replaced;

impl ModuleMapper for Replaced {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D == 1 { Param::from_tensor(param.val()) } else { param }
    }
}

#[test]
fn hooks_change_whole_modules() {
    use bridge_core::model::ModelConfig as _;
    let build = |hook: ModelHook| {
        let config = GptModelConfig::new(section()).with_pre_wrap_hook(hook);
        let context = BuildContext { padded_vocab_size: 53, ..context(&llama()) };
        config.builder().build_models(&config, &context, &[Stage::whole([4])]).map(|mut chunks| chunks.remove(0))
    };
    let changing = |f: fn(Decoder) -> Decoder| -> ModelHook {
        Arc::new(move |chunks| {
            let changed = chunks.into_iter().map(|chunk| {
                let chunk = ModuleChunk::<Decoder>::downcast(chunk).expect("the chunk of a decoder");
                Ok(Box::new(chunk.map_module(f)?) as Box<dyn ModelChunk>)
            });
            changed.collect()
        })
    };
    let plain = build(Arc::new(Ok)).unwrap();
    // Values that are changed in place of the old ones are frozen, unless the hook says otherwise.
    let doubled = build(changing(|decoder| decoder.map(&mut Doubled))).unwrap();
    let expected = values(plain.as_ref());
    let found = values(doubled.as_ref());
    assert_eq!(found.len(), doubled.parameters().len());
    for declaration in doubled.parameters() {
        let name = &declaration.name;
        let (factor, trainable) = if declaration.shape.len() == 2 { (2.0, false) } else { (1.0, true) };
        assert_eq!(declaration.trainable, trainable, "{name}");
        let pairs = found[name].iter().zip(&expected[name]);
        pairs.for_each(|(found, expected)| assert_eq!(*found, factor * expected, "{name}"));
    }
    let refused = build(changing(|decoder| decoder.map(&mut Replaced))).unwrap_err().to_string();
    assert!(refused.contains("expected a declaration"), "{refused}");
    let other = ModuleChunk::<EncoderDecoder>::downcast(plain).unwrap_err();
    assert_eq!(other.segments().len(), 2 * 4 + 2);
}

#[test]
fn presets_have_the_peers_sizes() {
    // Parameter counts that bench/peer_torch.py and bench/peer_hf.py print.
    let counts: [usize; presets::NAMES.len()] = [
        17_037_312,
        15_733_632,
        15_739_008,
        36_985_728,
        134_515_008,
        134_515_008,
        134_515_008,
        134_515_008,
        123_849_984,
        1_235_814_400,
        1_923_125_248,
        17_621_808,
        25_794_072,
        16_524_928,
        // With the 40 biases in the choice of experts, which are buffers there.
        29_758_120,
        // With the six factors at the end of layers, which are buffers there.
        17_093_094,
    ];
    for (name, expected) in presets::NAMES.into_iter().zip(counts) {
        let preset = presets::preset(name).unwrap();
        let vocab_size = preset.transformer.vocab_size.unwrap();
        let config = DecoderConfig::from_transformer(&preset.transformer, vocab_size).unwrap();
        assert_eq!(config.num_parameters(), expected, "{name}");
    }
    // Numbers of parameters that peft trains.
    for (name, expected) in [("smol-135m-lora", 4_884_480), ("smol-135m-dora", 5_040_000)] {
        let preset = presets::preset(name).unwrap();
        let adapter =
            crate::adapters::low_rank_adapter(&preset.peft.unwrap(), &preset.transformer.finalize().unwrap()).unwrap();
        let config = DecoderConfig::from_transformer(&preset.transformer, 49152).unwrap();
        let outline =
            model::outline(&config, &Workload::sequence(1, 49152), &Stage::whole([30]), Some(Arc::new(adapter)));
        let trained = outline.declarations.parameters().iter().filter(|parameter| parameter.trainable);
        assert_eq!(trained.map(Declaration::num_elements).sum::<usize>(), expected, "{name}");
    }
    assert!(presets::preset("nano").is_none());
}

#[test]
fn configurations_survive_serialisation() {
    for config in [llama(), gpt2(), everything()] {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<DecoderConfig>(&text).unwrap(), config);
    }
}

#[test]
fn rules_of_the_decoder_are_heard_when_a_recipe_is_checked() {
    let recipe = include_str!("../../../../../recipes/tiny.toml");
    let check = |overrides: &[&str], size: usize| {
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        load_text(recipe, Format::Toml, &overrides, &crate::registry().kinds(), &World { size })
    };
    check(&["model.qk_l2_norm=true"], 1).unwrap();
    let mamba = [
        "model.kind=mamba",
        "model.mamba_head_dim=16",
        "model.mamba_num_groups=2",
        "model.position_embedding_type=none",
        "model.gated_linear_unit=false",
        "model.activation_func=gelu",
    ];
    check(&mamba, 1).unwrap();
    // Without attention heads need not divide.
    let hybrid = |pattern: &'static str, more: &[&'static str]| -> Vec<&'static str> {
        mamba.iter().copied().chain([pattern]).chain(more.iter().copied()).collect()
    };
    let three = ["model.num_attention_heads=1", "model.num_query_groups=null", "model.tensor_model_parallel_size=2"];
    check(&hybrid("model.hybrid_override_pattern=M-", &three), 2).unwrap();
    for (pattern, more, size, key) in [
        ("model.hybrid_override_pattern=M*M", &[][..], 1, "model.hybrid_override_pattern"),
        ("model.hybrid_override_pattern=Mx", &[], 1, "model.hybrid_override_pattern"),
        ("model.hybrid_override_pattern=ME", &[], 1, "model.hybrid_override_pattern"),
        ("model.hybrid_override_pattern=M*", &["model.num_moe_experts=4"], 1, "model.hybrid_override_pattern"),
        ("model.hybrid_override_pattern=*-", &[], 1, "model.mamba_head_dim"),
        ("model.hybrid_override_pattern=MM", &["model.mamba_num_groups=3"], 1, "model.mamba_num_groups"),
        (
            "model.hybrid_override_pattern=MM",
            &["model.mamba_time_step_min=1", "model.mamba_time_step_max=0.5"],
            1,
            "model.mamba_time_step_max",
        ),
        ("model.hybrid_override_pattern=MM", &["model.tensor_model_parallel_size=4"], 4, "model.mamba_num_groups"),
        ("model.hybrid_override_pattern=M*", &["model.context_parallel_size=2"], 2, "model.context_parallel_size"),
        ("model.hybrid_override_pattern=M*", &["model.gated_linear_unit=true"], 1, "model.gated_linear_unit"),
        ("model.hybrid_override_pattern=M-", &["model.qk_layernorm=true"], 1, "model.qk_layernorm"),
        ("model.hybrid_override_pattern=MM", &["model.kind=gpt"], 1, "model.hybrid_override_pattern"),
        (
            "model.hybrid_override_pattern=MM",
            &["model.position_embedding_type=rope"],
            1,
            "model.position_embedding_type",
        ),
    ] {
        let errors = check(&hybrid(pattern, more), size).expect_err(pattern);
        assert!(errors.names(key), "{pattern} {more:?}: {errors}");
    }
    assert!(check(&["model.mamba_state_dim=64"], 1).unwrap_err().names("model.mamba_state_dim"));
    for (overrides, size, key) in [
        (["model.qk_l2_norm=true", "model.qk_layernorm=true"], 1, "model.qk_l2_norm"),
        (["model.clip_qkv=1", "model.attention_output_gate=true"], 1, "model.clip_qkv"),
        (["model.vocab_size=513", "model.tensor_model_parallel_size=2"], 2, "model.vocab_size"),
    ] {
        let errors = check(&overrides, size).unwrap_err();
        assert!(errors.names(key), "{errors}");
    }
}
