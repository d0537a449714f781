//! [`DecoderConfig`] from and to the config tree's `[model]` section. What the section can say and the decoder cannot do is
//! refused here, by key.

use bridge_core::config::{
    Activation as ActivationChoice, Normalization, OneOrMany, PositionEmbeddingType, RouterDType, RouterScoreFunction,
    TokenDispatcher, TransformerConfig,
};
use bridge_core::model::ModelBuildError;
use bridge_kernels::Activation;

use super::config::{
    DecoderConfig, Dispatcher, LayerPattern, MoeConfig, NormConfig, NormKind, PositionEmbedding, ResidualConfig,
    RopeConfig, RopeScaling, invalid,
};

impl DecoderConfig {
    /// Resolves a `[model]` section: fills in the derived sizes and refuses what this decoder does not do.
    ///
    /// # Errors
    /// With the first key that cannot be built, what it is and what was expected.
    pub fn from_transformer(config: &TransformerConfig, padded_vocab_size: usize) -> Result<Self, ModelBuildError> {
        refuse_unsupported(config)?;
        let heads = config.num_attention_heads;
        let kv_channels = match config.kv_channels {
            Some(size) => size,
            None if heads == 0 => {
                return Err(invalid("model.num_attention_heads", "expected at least 1, found 0".into()));
            }
            None => config.hidden_size / heads,
        };
        let decoder = Self {
            num_layers: config.num_layers,
            hidden_size: config.hidden_size,
            ffn_hidden_size: config.ffn_hidden_size.unwrap_or(4 * config.hidden_size),
            num_attention_heads: heads,
            num_query_groups: config.num_query_groups.unwrap_or(heads),
            kv_channels,
            vocab_size: config.vocab_size.unwrap_or(padded_vocab_size),
            padded_vocab_size,
            max_position_embeddings: config.seq_length,
            position_embedding: position_embedding(config)?,
            no_rope_layers: no_rope_layers(config)?,
            residual: ResidualConfig::default(),
            norm: NormConfig {
                kind: match config.normalization {
                    Normalization::LayerNorm => NormKind::LayerNorm,
                    Normalization::RmsNorm => NormKind::RmsNorm,
                },
                epsilon: config.layernorm_epsilon,
                zero_centered_gamma: config.layernorm_zero_centered_gamma,
            },
            qk_layernorm: config.qk_layernorm,
            qkv_bias: config.add_bias_linear || config.add_qkv_bias,
            proj_bias: config.add_bias_linear,
            mlp_bias: config.add_bias_linear,
            gated_linear_unit: config.gated_linear_unit,
            moe: moe(config)?,
            activation: activation_from_choice(config.activation_func),
            embedding_dropout: config.hidden_dropout,
            hidden_dropout: config.hidden_dropout,
            attention_dropout: config.attention_dropout,
            softmax_scale: config.softmax_scale.unwrap_or(1.0 / (kv_channels as f64).sqrt()),
            window_size: window_size(config)?,
            window_layers: window_layers(config)?,
            attention_softcap: None,
            logit_softcap: None,
            share_embeddings_and_output_weights: config.share_embeddings_and_output_weights,
            init_method_std: config.init_method_std,
            embedding_init_method_std: config.embedding_init_method_std.unwrap_or(config.init_method_std),
            perform_initialization: config.perform_initialization,
        };
        decoder.validate()?;
        Ok(decoder)
    }

    /// The `[model]` section that resolves to this decoder.
    ///
    /// # Errors
    /// If the section has no words for it: biases in some linear layers only, soft caps, other than pre-norm blocks one after the other, a dropout of its
    /// own for the embedding.
    pub fn to_transformer(&self) -> Result<TransformerConfig, ModelBuildError> {
        let mut config = TransformerConfig {
            num_layers: self.num_layers,
            hidden_size: self.hidden_size,
            num_attention_heads: self.num_attention_heads,
            num_query_groups: Some(self.num_query_groups),
            ffn_hidden_size: Some(self.ffn_hidden_size),
            kv_channels: Some(self.kv_channels),
            seq_length: self.max_position_embeddings,
            vocab_size: Some(self.vocab_size),
            share_embeddings_and_output_weights: self.share_embeddings_and_output_weights,
            normalization: match self.norm.kind {
                NormKind::LayerNorm => Normalization::LayerNorm,
                NormKind::RmsNorm => Normalization::RmsNorm,
            },
            layernorm_epsilon: self.norm.epsilon,
            layernorm_zero_centered_gamma: self.norm.zero_centered_gamma,
            qk_layernorm: self.qk_layernorm,
            gated_linear_unit: self.gated_linear_unit,
            activation_func: choice_from_activation(self.activation),
            hidden_dropout: self.hidden_dropout,
            attention_dropout: self.attention_dropout,
            softmax_scale: Some(self.softmax_scale).filter(|scale| *scale != 1.0 / (self.kv_channels as f64).sqrt()),
            window_size: self.window_size.map(|left| [i64::try_from(left).unwrap_or(i64::MAX), 0]),
            window_attn_skip_freq: marks(&self.window_layers, self.num_layers, LayerPattern::All),
            no_rope_freq: marks(&self.no_rope_layers, self.num_layers, LayerPattern::None),
            init_method_std: self.init_method_std,
            embedding_init_method_std: Some(self.embedding_init_method_std).filter(|std| *std != self.init_method_std),
            perform_initialization: self.perform_initialization,
            ..TransformerConfig::default()
        };
        self.write_biases(&mut config)?;
        self.write_positions(&mut config);
        self.write_experts(&mut config);
        if self.attention_softcap.is_some() || self.logit_softcap.is_some() {
            return Err(invalid("model", "soft caps have no setting in the [model] section".into()));
        }
        if self.residual != ResidualConfig::default() {
            let message = format!("{:?} has no setting in the [model] section", self.residual);
            return Err(invalid("model", message));
        }
        if self.embedding_dropout != self.hidden_dropout {
            let message = format!(
                "expected the same dropout after the embedding and in the layers, found {} and {}",
                self.embedding_dropout, self.hidden_dropout
            );
            return Err(invalid("model.hidden_dropout", message));
        }
        Ok(config)
    }

    fn write_biases(&self, config: &mut TransformerConfig) -> Result<(), ModelBuildError> {
        (config.add_bias_linear, config.add_qkv_bias) = match (self.qkv_bias, self.proj_bias, self.mlp_bias) {
            (true, true, true) => (true, false),
            (true, false, false) => (false, true),
            (false, false, false) => (false, false),
            (qkv, proj, mlp) => {
                let message = format!(
                    "expected biases in all linear layers, in none, or in the query-key-value projection only; found \
                     query-key-value {qkv}, attention output {proj}, feed-forward {mlp}"
                );
                return Err(invalid("model.add_bias_linear", message));
            }
        };
        Ok(())
    }

    fn write_experts(&self, config: &mut TransformerConfig) {
        let Some(moe) = &self.moe else {
            return;
        };
        config.num_moe_experts = Some(moe.num_experts);
        if let Some(layers) = marks(&moe.layers, self.num_layers, LayerPattern::All) {
            config.moe_layer_freq = layers;
        }
        config.moe_ffn_hidden_size = Some(moe.ffn_hidden_size);
        config.moe_shared_expert_intermediate_size = moe.shared_expert_intermediate_size;
        config.moe_router_topk = moe.topk;
        config.moe_router_pre_softmax = moe.pre_softmax;
        config.moe_router_topk_scaling_factor = moe.topk_scaling_factor;
        config.moe_router_dtype = moe.router_in_float32.then_some(RouterDType::Fp32);
        config.moe_aux_loss_coeff = OneOrMany::One(moe.aux_loss_coeff);
        config.moe_z_loss_coeff = Some(moe.z_loss_coeff).filter(|coefficient| *coefficient != 0.0);
        config.moe_token_dispatcher_type = match moe.dispatcher {
            Dispatcher::AllToAll => TokenDispatcher::AllToAll,
            Dispatcher::AllGather => TokenDispatcher::AllGather,
        };
    }

    fn write_positions(&self, config: &mut TransformerConfig) {
        let rope = match &self.position_embedding {
            PositionEmbedding::LearnedAbsolute => {
                config.position_embedding_type = PositionEmbeddingType::LearnedAbsolute;
                return;
            }
            PositionEmbedding::None => {
                config.position_embedding_type = PositionEmbeddingType::None;
                return;
            }
            PositionEmbedding::Rope(rope) => rope,
        };
        config.position_embedding_type = PositionEmbeddingType::Rope;
        config.rotary_base = rope.base;
        config.rotary_percent = rope.percent;
        config.rotary_interleaved = rope.interleaved;
        match rope.scaling {
            None => {}
            Some(RopeScaling::Linear { factor }) => config.seq_len_interpolation_factor = Some(factor),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                config.rope_scaling = true;
                config.rope_scaling_factor = factor;
                config.rope_scaling_low_freq_factor = low_freq_factor;
                config.rope_scaling_high_freq_factor = high_freq_factor;
                config.rope_scaling_original_max_position_embeddings = original_max_position_embeddings;
            }
        }
    }
}

/// The experts of a `[model]` section, if it has any.
fn moe(config: &TransformerConfig) -> Result<Option<MoeConfig>, ModelBuildError> {
    let Some(num_experts) = config.num_moe_experts else {
        return Ok(None);
    };
    let is_balanced = match &config.moe_router_load_balancing_type {
        OneOrMany::One(kind) if kind == "aux_loss" => true,
        OneOrMany::One(kind) if kind == "none" => false,
        other => {
            let message = format!("expected aux_loss or none, found {other:?}, which is not implemented");
            return Err(invalid("model.moe_router_load_balancing_type", message));
        }
    };
    let OneOrMany::One(aux_loss_coeff) = config.moe_aux_loss_coeff else {
        return Err(invalid("model.moe_aux_loss_coeff", "expected one number, found a list".into()));
    };
    if config.moe_router_score_function != RouterScoreFunction::Softmax {
        return Err(invalid("model.moe_router_score_function", "expected softmax; others are not implemented".into()));
    }
    if config.moe_router_dtype == Some(RouterDType::Fp64) {
        return Err(invalid("model.moe_router_dtype", "expected fp32 or nothing; fp64 is not implemented".into()));
    }
    let dispatcher = match config.moe_token_dispatcher_type {
        TokenDispatcher::AllGather => Dispatcher::AllGather,
        TokenDispatcher::AllToAll => Dispatcher::AllToAll,
        TokenDispatcher::Flex => {
            let message = "expected allgather or alltoall, found flex, which is not implemented";
            return Err(invalid("model.moe_token_dispatcher_type", message.into()));
        }
    };
    Ok(Some(MoeConfig {
        num_experts,
        layers: moe_layers(config)?,
        ffn_hidden_size: config
            .moe_ffn_hidden_size
            .or(config.ffn_hidden_size)
            .unwrap_or_else(|| config.hidden_size.saturating_mul(4)),
        shared_expert_intermediate_size: config.moe_shared_expert_intermediate_size,
        topk: config.moe_router_topk,
        pre_softmax: config.moe_router_pre_softmax,
        topk_scaling_factor: config.moe_router_topk_scaling_factor,
        router_in_float32: config.moe_router_dtype == Some(RouterDType::Fp32),
        aux_loss_coeff: if is_balanced { aux_loss_coeff } else { 0.0 },
        z_loss_coeff: config.moe_z_loss_coeff.unwrap_or(0.0),
        dispatcher,
    }))
}

/// N: layers 0, N, 2 N and so on have experts; a list: 1 has.
fn moe_layers(config: &TransformerConfig) -> Result<LayerPattern, ModelBuildError> {
    let key = "model.moe_layer_freq";
    Ok(LayerPattern::from_list(match &config.moe_layer_freq {
        OneOrMany::One(n @ 1..) => (0..config.num_layers).map(|index| index.is_multiple_of(*n)).collect(),
        frequency => every_nth(frequency, key, config.num_layers)?,
    }))
}

/// Refuses settings that would change the arithmetic and that this decoder does not have.
fn refuse_unsupported(config: &TransformerConfig) -> Result<(), ModelBuildError> {
    let refused = [
        (config.qk_l2_norm, "model.qk_l2_norm", "L2 normalization of query and key"),
        (config.multi_latent_attention, "model.multi_latent_attention", "multi-latent attention"),
        (config.mtp_num_layers.is_some(), "model.mtp_num_layers", "multi-token prediction"),
        (config.activation_func_clamp_value.is_some(), "model.activation_func_clamp_value", "a clamp in the MLP"),
        (config.glu_linear_offset != 0.0, "model.glu_linear_offset", "an offset in the gated unit"),
        (config.fp32_residual_connection, "model.fp32_residual_connection", "a residual stream of its own dtype"),
        (
            config.apply_residual_connection_post_layernorm,
            "model.apply_residual_connection_post_layernorm",
            "a residual taken after the norm",
        ),
        (
            config.apply_query_key_layer_scaling,
            "model.apply_query_key_layer_scaling",
            "scaling of scores by the layer number",
        ),
        (config.use_mup, "model.use_mup", "width-transfer parametrization"),
        (config.fp16_lm_cross_entropy, "model.fp16_lm_cross_entropy", "a loss in 16 bits"),
    ];
    match refused.iter().find(|(set, ..)| *set) {
        Some((_, key, what)) => Err(invalid(key, format!("{what} is not implemented in the gpt model"))),
        None => Ok(()),
    }
}

fn position_embedding(config: &TransformerConfig) -> Result<PositionEmbedding, ModelBuildError> {
    match config.position_embedding_type {
        PositionEmbeddingType::LearnedAbsolute => Ok(PositionEmbedding::LearnedAbsolute),
        PositionEmbeddingType::None => Ok(PositionEmbedding::None),
        PositionEmbeddingType::Rope => Ok(PositionEmbedding::Rope(RopeConfig {
            base: config.rotary_base,
            percent: config.rotary_percent,
            interleaved: config.rotary_interleaved,
            scaling: rope_scaling(config)?,
        })),
        other => {
            let message = format!("expected learned_absolute, rope or none, found {other}, which is not implemented");
            Err(invalid("model.position_embedding_type", message))
        }
    }
}

fn rope_scaling(config: &TransformerConfig) -> Result<Option<RopeScaling>, ModelBuildError> {
    match (config.rope_scaling, config.seq_len_interpolation_factor) {
        (true, Some(_)) => Err(invalid(
            "model.seq_len_interpolation_factor",
            "cannot be combined with rope_scaling = true: both scale the rotary frequencies".into(),
        )),
        (false, None) => Ok(None),
        (false, Some(factor)) => Ok(Some(RopeScaling::Linear { factor })),
        (true, None) => Ok(Some(RopeScaling::Llama3 {
            factor: config.rope_scaling_factor,
            low_freq_factor: config.rope_scaling_low_freq_factor,
            high_freq_factor: config.rope_scaling_high_freq_factor,
            original_max_position_embeddings: config.rope_scaling_original_max_position_embeddings,
        })),
    }
}

fn window_size(config: &TransformerConfig) -> Result<Option<usize>, ModelBuildError> {
    let Some([left, right]) = config.window_size else {
        return Ok(None);
    };
    if !(-1..=0).contains(&right) {
        let message = format!("expected 0 or -1 to the right, because attention is causal, found [{left}, {right}]");
        return Err(invalid("model.window_size", message));
    }
    match left {
        -1 => Ok(None),
        _ => match usize::try_from(left) {
            Ok(left) => Ok(Some(left)),
            Err(_) => Err(invalid("model.window_size", format!("expected -1 or more to the left, found {left}"))),
        },
    }
}

/// N: every N-th layer attends fully; a list: 1 is windowed; nothing: all layers are.
fn window_layers(config: &TransformerConfig) -> Result<LayerPattern, ModelBuildError> {
    let frequency = config.window_attn_skip_freq.as_ref();
    let Some(frequency) = frequency else {
        return Ok(LayerPattern::All);
    };
    let full = every_nth(frequency, "model.window_attn_skip_freq", config.num_layers)?;
    Ok(LayerPattern::from_list(match frequency {
        OneOrMany::One(_) => full.into_iter().map(|full| !full).collect(),
        OneOrMany::Many(_) => full,
    }))
}

/// N: every N-th layer has no rotary embedding; a list: 1 is without.
fn no_rope_layers(config: &TransformerConfig) -> Result<LayerPattern, ModelBuildError> {
    match &config.no_rope_freq {
        None => Ok(LayerPattern::None),
        Some(frequency) => {
            let marked = every_nth(frequency, "model.no_rope_freq", config.num_layers)?;
            Ok(LayerPattern::from_list(marked))
        }
    }
}

/// Marks every N-th layer, or those a list marks.
fn every_nth(frequency: &OneOrMany<usize>, key: &str, num_layers: usize) -> Result<Vec<bool>, ModelBuildError> {
    match frequency {
        OneOrMany::One(0) => Err(invalid(key, "expected at least 1, found 0".into())),
        OneOrMany::One(n) => Ok((1..=num_layers).map(|number| number % n == 0).collect()),
        OneOrMany::Many(marks) if marks.len() != num_layers => {
            Err(invalid(key, format!("expected one entry a layer ({num_layers}), found {}", marks.len())))
        }
        OneOrMany::Many(marks) => match marks.iter().find(|mark| **mark > 1) {
            Some(mark) => Err(invalid(key, format!("expected entries 0 or 1, found {mark}"))),
            None => Ok(marks.iter().map(|mark| *mark == 1).collect()),
        },
    }
}

/// A pattern as the setting's list; nothing for the pattern that the setting's absence means.
fn marks(pattern: &LayerPattern, num_layers: usize, absent: LayerPattern) -> Option<OneOrMany<usize>> {
    if *pattern == absent {
        return None;
    }
    Some(OneOrMany::Many((0..num_layers).map(|index| usize::from(pattern.includes(index))).collect()))
}

fn activation_from_choice(choice: ActivationChoice) -> Activation {
    match choice {
        ActivationChoice::Gelu => Activation::Gelu,
        ActivationChoice::GeluTanh => Activation::GeluTanh,
        ActivationChoice::Silu => Activation::Silu,
        ActivationChoice::Relu => Activation::Relu,
        ActivationChoice::QuickGelu => Activation::QuickGelu,
        ActivationChoice::SquaredRelu => Activation::SquaredRelu,
    }
}

fn choice_from_activation(activation: Activation) -> ActivationChoice {
    match activation {
        Activation::Gelu => ActivationChoice::Gelu,
        Activation::GeluTanh => ActivationChoice::GeluTanh,
        Activation::Silu => ActivationChoice::Silu,
        Activation::Relu => ActivationChoice::Relu,
        Activation::QuickGelu => ActivationChoice::QuickGelu,
        Activation::SquaredRelu => ActivationChoice::SquaredRelu,
    }
}
