//! The resolved architecture of a decoder: plain data without defaults to fill in. A row has all of
//! a field: its type, its neutral value, and the codec between it and the config tree's `[model]`
//! section (see `section`). No parsing of `config.json` here.

use bridge_core::config::{
    Activation, AttentionVariant, BlockOrder, LoadBalancing, NormPlacement, Normalization, OutputGateForm, QkNormScope,
    RouterDType, RouterScoreFunction, TokenDispatcher, TokenDropPolicy,
};
use serde::{Deserialize, Serialize};

use super::choices::{KeySource, LayerPattern, RopeScaling};
use super::hybrid::HybridConfig;
use super::moe_codecs;
use super::section::{SettingCodec, codecs, config_table, setting, setting_or, setting_or_omitted, table, table_with};
use crate::architecture::recompute::RecomputedParts;

config_table! {
    /// Everything that decides a decoder's shapes and arithmetic.
    pub struct DecoderConfig {
        /// Number of layers.
        num_layers: usize = 0 => setting!(num_layers);
        /// Width of the residual stream.
        hidden_size: usize = 0 => setting!(hidden_size);
        /// Width of the feed-forward block; with a gated unit, of each half.
        ffn_hidden_size: usize = 0 => setting_or!(ffn_hidden_size, |decoder| 4 * decoder.hidden_size);
        /// Query heads.
        num_attention_heads: usize = 0 => setting!(num_attention_heads);
        /// Key and value heads.
        num_query_groups: usize = 0 => setting_or!(num_query_groups, |decoder| decoder.num_attention_heads);
        /// Size of one head.
        kv_channels: usize = 0 => codecs::HEAD_SIZE;
        /// Size of one head of values; `None` is that of other heads. Latent attention has its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value_channels: Option<usize> = None => SettingCodec {
            read: |section, decoder| Ok(section.value_channels.filter(|size| *size != decoder.kv_channels)),
            write: |size, _, section| section.value_channels = *size,
        };
        /// Factor on values.
        #[serde(default = "one")]
        value_scale: f64 = 1.0 => setting!(attention_value_scale);
        /// Keys and values from a latent vector; `kv_channels` is then the size of a key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latent: Option<LatentConfig> = None => SettingCodec {
            read: |section, _| section.multi_latent_attention.then(|| LatentConfig::read(section)).transpose(),
            write: |latent, decoder, section| {
                section.multi_latent_attention = latent.is_some();
                latent.iter().for_each(|latent| latent.write(section));
                let epsilon = latent.as_ref().map(|latent| latent.norm_epsilon);
                section.latent_layernorm_epsilon = epsilon.filter(|epsilon| *epsilon != decoder.norm.epsilon);
            },
        };
        /// Vocabulary without padding.
        vocab_size: usize = 0 => setting_or!(vocab_size, |_| 0);
        /// Rows of the embedding and output tables, padding included.
        padded_vocab_size: usize = 0;
        /// Longest sequence the position table covers, in tokens.
        max_position_embeddings: usize = 0 => SettingCodec {
            read: |section, _| Ok(section.seq_length),
            write: |positions, decoder, section| {
                if !decoder.has_unlimited_positions() {
                    section.seq_length = *positions;
                }
            },
        };
        /// Form in which positions reach attention.
        position_embedding: PositionEmbedding = PositionEmbedding::None => codecs::POSITIONS;
        /// Layers without rotary embedding.
        no_rope_layers: LayerPattern = LayerPattern::None => codecs::NO_ROPE_LAYERS;
        /// The norms in a layer and at the end.
        norm: NormConfig = NormConfig::neutral() => table!(NormConfig);
        /// Connection of blocks to the residual stream.
        #[serde(default)]
        residual: ResidualConfig = ResidualConfig::neutral() => table!(ResidualConfig);
        /// Several residual streams in place of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        streams: Option<StreamsConfig> = None => SettingCodec {
            read: |section, _| section.enable_mhc_connections.then(|| StreamsConfig::read(section)).transpose(),
            write: |streams, _, section| {
                section.enable_mhc_connections = streams.is_some();
                streams.iter().for_each(|streams| streams.write(section));
            },
        };
        /// Several residual streams of which a layer reads and writes one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        altup: Option<AltUpConfig> = None => table_with!(altup_num_inputs, AltUpConfig);
        /// Share of the gates of each layer's feed-forward block that are zero; `None` is no zeros.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation_sparsity: Option<Vec<f64>> = None => setting!(activation_sparsity_pattern);
        /// True if the residual stream is in float32 with any dtype of the layers. Not stored in
        /// model files.
        #[serde(skip)]
        fp32_residual: bool = false => setting!(fp32_residual_connection);
        /// Norm of the embedding's output.
        #[serde(default)]
        embedding_norm: bool = false => setting!(embedding_layernorm);
        /// Factor on the word embedding's output.
        embedding_multiplier: f64 = 1.0 => setting!(embedding_multiplier);
        /// Vectors of each token for each layer, beside the residual stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        per_layer: Option<PerLayerConfig> = None => SettingCodec {
            read: |section, decoder| {
                let vocab_size = section.vocab_size_per_layer_input.unwrap_or(decoder.vocab_size);
                Ok(section.hidden_size_per_layer_input.map(|size| PerLayerConfig { size, vocab_size }))
            },
            write: |per_layer, _, section| {
                section.hidden_size_per_layer_input = per_layer.map(|per_layer| per_layer.size);
                section.vocab_size_per_layer_input = per_layer.map(|per_layer| per_layer.vocab_size);
            },
        };
        /// Multiply the residual stream at the end of each layer by a number that is not trained.
        #[serde(default)]
        layer_scalar: bool = false => setting!(layer_scalar);
        /// Factor on the logits.
        logit_multiplier: f64 = 1.0 => setting!(logit_multiplier);
        /// Bias in the output projection.
        #[serde(default)]
        output_bias: bool = false => setting!(add_output_layer_bias);
        /// Normalize query and key.
        qk_layernorm: bool = false => setting!(qk_layernorm);
        /// Scope of one of these norms.
        qk_layernorm_scope: QkNormScope = QkNormScope::Head => setting!(qk_layernorm_scope);
        /// Normalize query and key per head by their root mean square, without weights.
        #[serde(default)]
        qk_l2_norm: bool = false => codecs::QK_L2_NORM;
        /// Normalize values per head by their root mean square, without weights.
        #[serde(default)]
        v_l2_norm: bool = false => setting!(v_l2_norm);
        /// Values of layers without a window are their keys, before norm and rotation.
        #[serde(default)]
        keys_as_values: bool = false => setting!(attention_k_eq_v);
        /// Last layers that use the keys and values of the last layer before them with a window, or
        /// without, as they are.
        #[serde(default)]
        num_kv_shared_layers: usize = 0 => setting!(num_kv_shared_layers);
        /// These layers have feed-forward blocks of twice the width.
        #[serde(default)]
        double_wide_mlp: bool = false => setting!(use_double_wide_mlp);
        /// True if these norms follow the rotation; layers without one have none.
        #[serde(default)]
        qk_layernorm_after_rope: bool = false => setting!(qk_layernorm_after_rope);
        /// One more score in the softmax of each head, learned and without a value.
        #[serde(default)]
        attention_sinks: bool = false => setting!(attention_sinks);
        /// Attention of layers with a sliding window, where it differs from that of other layers.
        #[serde(default, skip_serializing_if = "WindowedConfig::is_neutral")]
        windowed: WindowedConfig = WindowedConfig::neutral() => SettingCodec {
            read: |section, decoder| Ok(WindowedConfig::read(section)?.where_not_of(decoder)),
            write: |windowed, _, section| windowed.write(section),
        };
        /// Gates on attention's output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_gate: Option<OutputGateForm> = None => codecs::OUTPUT_GATE;
        /// Limit of queries, keys and values on both sides: after norms that precede the rotation,
        /// and before the rotation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clip_qkv: Option<f64> = None => setting!(clip_qkv);
        /// Factor on queries that grows with the position.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        query_scale: Option<QueryScaleConfig> = None => table_with!(query_scale_beta, QueryScaleConfig);
        /// Bias in the query-key-value projection.
        qkv_bias: bool = false => SettingCodec {
            read: |section, _| Ok(section.add_bias_linear || section.add_qkv_bias),
            write: |bias, decoder, section| {
                section.add_bias_linear = decoder.has_all_biases();
                section.add_qkv_bias = *bias && !decoder.has_all_biases();
            },
        };
        /// Bias in attention's output projection.
        proj_bias: bool = false => SettingCodec {
            read: |section, _| Ok(section.add_bias_linear || section.add_proj_bias),
            write: |bias, decoder, section| section.add_proj_bias = *bias && !decoder.has_all_biases(),
        };
        /// Biases in the feed-forward block.
        mlp_bias: bool = false => SettingCodec {
            read: |section, _| Ok(section.add_bias_linear || section.add_mlp_bias),
            write: |bias, decoder, section| section.add_mlp_bias = *bias && !decoder.has_all_biases(),
        };
        /// Gated feed-forward unit.
        gated_linear_unit: bool = false => setting!(gated_linear_unit);
        /// One block in each layer, and which.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hybrid: Option<HybridConfig> = None => super::hybrid::CODEC;
        /// Linear attention in some or all layers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        linear_attention: Option<LinearAttentionConfig> = None => SettingCodec {
            read: |section, _| {
                let linear = section.experimental_attention_variant.filter(|variant| *variant != AttentionVariant::Dsa);
                linear.map(|_| LinearAttentionConfig::read(section)).transpose()
            },
            write: |linear, _, section| linear.iter().for_each(|linear| linear.write(section)),
        };
        /// Attention to a window and to compressed entries of earlier tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compressed: Option<CompressedConfig> = None => table_with!(compressed_attention_rates, CompressedConfig);
        /// Softmax attention to chosen keys.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        indexer: Option<IndexerConfig> = None => SettingCodec {
            read: |section, _| section.dsa_indexer_topk.map(|_| IndexerConfig::read(section)).transpose(),
            write: |indexer, decoder, section| {
                let Some(indexer) = indexer else { return };
                indexer.write(section);
                section.experimental_attention_variant.get_or_insert(AttentionVariant::Dsa);
                let epsilon = Some(indexer.norm_epsilon);
                section.dsa_indexer_k_norm_epsilon = epsilon.filter(|epsilon| *epsilon != decoder.norm.epsilon);
            },
        };
        /// Keys that queries of each layer attend to, in models with an indexer; `None` if each
        /// layer chooses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_sources: Option<Vec<KeySource>> = None => codecs::KEY_SOURCES;
        /// An encoder, to whose output each layer attends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        encoder: Option<EncoderConfig> = None => table_with!(encoder_num_layers, EncoderConfig);
        /// Experts instead of one feed-forward block, in some or all layers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moe: Option<MoeConfig> = None => table_with!(num_moe_experts, MoeConfig);
        /// Activation of the unit.
        activation: Activation = Activation::Gelu => setting!(activation_func);
        /// Bound of a gated unit's gate from above and of its linear half on both sides.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation_clamp: Option<f64> = None => setting!(activation_func_clamp_value);
        /// Bound, by layer, of the activated gate of a gated unit from above and of its linear half
        /// on both sides; 0 bounds neither. Experts have bounds of their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_limits: Option<Vec<f64>> = None => setting!(glu_output_limits);
        /// Added to the linear half of a gated unit.
        #[serde(default)]
        linear_offset: f64 = 0.0 => setting!(glu_linear_offset);
        /// Dropout before each residual addition.
        hidden_dropout: f64 = 0.0 => setting!(hidden_dropout);
        /// Dropout after the embedding.
        embedding_dropout: f64 = 0.0 => setting_or_omitted!(embedding_dropout, |decoder| decoder.hidden_dropout);
        /// Dropout of attention probabilities.
        attention_dropout: f64 = 0.0 => setting!(attention_dropout);
        /// Ratio of the model's width to that of the model at which its learning rate and initial
        /// values were found: muP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        width_multiplier: Option<f64> = None => codecs::WIDTH_MULTIPLIER;
        /// Factor on attention scores.
        softmax_scale: f64 = 1.0 => codecs::SOFTMAX_SCALE;
        /// Keys seen to the left of a query in windowed layers; `None` is unlimited. `window_size`
        /// counts earlier tokens only; `sliding_window` of Hugging Face includes the query.
        window_size: Option<usize> = None => codecs::WINDOW_SIZE;
        /// Layers with the window.
        window_layers: LayerPattern = LayerPattern::All => codecs::WINDOW_LAYERS;
        /// True if windows do not slide: a query sees earlier tokens of its chunk of `window_size +
        /// 1` positions only.
        #[serde(default)]
        window_chunks: bool = false => setting!(window_chunks);
        /// Soft cap on attention scores.
        attention_softcap: Option<f64> = None => setting!(attn_logit_softcapping);
        /// Soft cap on the logits.
        logit_softcap: Option<f64> = None => setting!(final_logit_softcapping);
        /// The output projection uses the word embedding.
        share_embeddings_and_output_weights: bool = false => setting!(share_embeddings_and_output_weights);
        /// Layers behind the last one, of which each predicts one more token.
        #[serde(default)]
        mtp_num_layers: usize = 0 => setting_or_omitted!(mtp_num_layers, |_| 0);
        /// Weight of the mean of their losses.
        #[serde(default)]
        mtp_loss_scaling_factor: f64 = 0.1 => setting_or!(mtp_loss_scaling_factor, |_| 0.1);
        /// Parts of segments that run again in backward; no file of a model says it.
        #[serde(skip)]
        recomputed: RecomputedParts = RecomputedParts::default() => codecs::RECOMPUTED;
        /// Standard deviation of initial weights.
        init_method_std: f64 = 0.0 => setting!(init_method_std);
        /// Standard deviation of initial embeddings.
        embedding_init_method_std: f64 = 0.0 => setting_or_omitted!(embedding_init_method_std, |decoder| decoder.init_method_std);
        /// Draw initial values; without it weights start at zero, to be loaded.
        perform_initialization: bool = true => setting!(perform_initialization);
    }
}

config_table! {
    /// Residual streams that blocks read and write with learned weights: hyper-connections.
    #[derive(Copy)]
    pub struct StreamsConfig {
        /// Number of streams.
        count: usize = 4 => setting!(mhc_num_residual_streams);
        /// Iterations of Sinkhorn's algorithm on the weights that mix streams; 0 does not mix them.
        sinkhorn_iterations: usize = 20 => setting!(mhc_sinkhorn_iterations);
        /// Added to weights.
        epsilon: f64 = 1e-6 => setting!(mhc_epsilon);
        /// Bound of the weights of a block's output.
        output_magnitude: f64 = 2.0 => setting!(mhc_output_magnitude);
        /// Initial factor on the products that weights are made of. Not stored in model files.
        #[serde(skip)]
        initial_scale: f64 = 0.01 => setting!(mhc_init_gating_factor);
    }
}

config_table! {
    /// Residual streams of which a layer reads and writes one (AltUp), with a branch beside
    /// attention (LAuReL).
    #[derive(Copy)]
    pub struct AltUpConfig {
        /// Number of streams.
        count: usize = 4 => setting_or!(altup_num_inputs, |_| 4);
        /// The stream that layers read and write.
        active: usize = 0 => setting!(altup_active_idx);
        /// Size between the two matrices of the branch beside attention.
        laurel_rank: usize = 64 => setting!(laurel_rank);
    }
}

config_table! {
    /// Sizes of latent attention.
    pub struct LatentConfig {
        /// Size of the latent vector of queries; `None` projects them from the residual stream.
        q_lora_rank: Option<usize> = None => setting!(q_lora_rank);
        /// Size of the latent vector of keys and values.
        kv_lora_rank: usize = 0 => setting!(kv_lora_rank);
        /// Elements of a head that are not rotated.
        qk_head_dim: usize = 0 => setting!(qk_head_dim);
        /// Elements of a head that are rotated.
        qk_pos_emb_head_dim: usize = 0 => setting!(qk_pos_emb_head_dim);
        /// Elements of a head's values.
        v_head_dim: usize = 0 => setting!(v_head_dim);
        /// Epsilon of the norms of latent vectors.
        norm_epsilon: f64 = 1e-6 => SettingCodec {
            read: |section, _| Ok(section.latent_layernorm_epsilon.unwrap_or(section.layernorm_epsilon)),
            write: |_, _, _| {},
        };
        /// Factor on the latent vector of keys and values, behind its norm; `None` is 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kv_multiplier: Option<f64> = None => setting!(latent_kv_multiplier);
    }
}

/// Per-layer embeddings: each token has a vector for each layer, from a table and from the
/// embedding, which gates a branch at the layer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerConfig {
    /// Size of the vector of one layer.
    pub size: usize,
    /// Rows of the table. Tokens beyond them have the vectors of token 0.
    pub vocab_size: usize,
}

config_table! {
    /// Attention of layers with a sliding window; `None` is as in other layers.
    #[derive(Copy, Default)]
    pub struct WindowedConfig {
        /// Query heads.
        num_attention_heads: Option<usize> = None => setting!(window_num_attention_heads);
        /// Key and value heads.
        num_query_groups: Option<usize> = None => setting!(window_num_query_groups);
        /// Size of one head.
        kv_channels: Option<usize> = None => setting!(window_kv_channels);
        /// Size of one head of values.
        value_channels: Option<usize> = None => setting!(window_value_channels);
        /// One more score in the softmax of each head.
        attention_sinks: Option<bool> = None => setting!(window_attention_sinks);
    }
}

config_table! {
    /// Factor on queries at a position: `1 + beta * log(1 + floor((first + position) / length))`.
    #[derive(Copy)]
    pub struct QueryScaleConfig {
        /// Growth of the factor.
        beta: f64 = 0.0 => setting_or!(query_scale_beta, |_| 0.0);
        /// Positions between two values of the factor.
        length: usize = 8192 => setting!(query_scale_length);
        /// Position of the first token.
        first: usize = 0 => setting!(query_scale_first_position);
        /// True if only layers without rotary embedding have the factor.
        unrotated_only: bool = false => setting!(query_scale_unrotated_only);
    }
}

config_table! {
    /// Settings of the layers that have the gated delta rule in place of softmax attention.
    pub struct LinearAttentionConfig {
        /// The layers.
        layers: LayerPattern = LayerPattern::All => codecs::LINEAR_LAYERS;
        /// One decay a token, or one a token and channel.
        variant: AttentionVariant = AttentionVariant::GatedDeltaNet => SettingCodec {
            read: |section, _| Ok(section.experimental_attention_variant.unwrap_or(AttentionVariant::GatedDeltaNet)),
            write: |variant, _, section| section.experimental_attention_variant = Some(*variant),
        };
        /// Taps of the convolution of queries, keys and values.
        conv_kernel: usize = 4 => setting!(linear_conv_kernel_dim);
        /// Size of a query or key head.
        key_head_size: usize = 128 => setting!(linear_key_head_dim);
        /// Size of a value head.
        value_head_size: usize = 128 => setting!(linear_value_head_dim);
        /// Query and key heads.
        num_key_heads: usize = 16 => setting!(linear_num_key_heads);
        /// Value heads, of which equal runs share a key head.
        num_value_heads: usize = 32 => setting!(linear_num_value_heads);
        /// A token may erase twice the old value of its key.
        doubles_beta: bool = false => setting!(linear_allow_neg_eigval);
        /// Size between the two matrices that make decays, and between those that make gates;
        /// `None` is one matrix each.
        gate_rank: Option<usize> = None => setting!(linear_gate_rank);
        /// Least logarithm of a decay.
        decay_bound: Option<f64> = None => setting!(linear_decay_bound);
        /// Epsilon of the norm of the output, where it is not the model's.
        norm_epsilon: Option<f64> = None => setting!(linear_norm_epsilon);
        /// Place of these layers' norms, where it is not the model's.
        norms: Option<NormPlacement> = None => setting!(linear_norm_placement);
    }
}

config_table! {
    /// Attention to one head of keys, which are the values too, in a window, and to entries.
    pub struct CompressedConfig {
        /// Tokens that an entry compresses, by layer; 0 for a layer without entries.
        rates: Vec<usize> = Vec::new() => SettingCodec {
            read: |section, _| Ok(section.compressed_attention_rates.clone().unwrap_or_default()),
            write: |rates, _, section| section.compressed_attention_rates = Some(rates.clone()),
        };
        /// Size of the latent vector of queries.
        q_lora_rank: usize = 1024 => setting_or!(q_lora_rank, |_| 0);
        /// Groups of heads that project the output first, each for itself.
        output_groups: usize = 8 => setting!(attention_output_groups);
        /// Elements that a group's first projection makes.
        output_rank: usize = 1024 => setting!(attention_output_rank);
    }
}

config_table! {
    /// Choice of the keys that queries attend to.
    #[derive(Copy)]
    pub struct IndexerConfig {
        /// Heads of the indexer.
        heads: usize = 64 => setting_or!(dsa_indexer_n_heads, |_| 0);
        /// Elements of a head.
        head_size: usize = 128 => setting_or!(dsa_indexer_head_dim, |_| 0);
        /// Keys of a query.
        topk: usize = 2048 => setting_or!(dsa_indexer_topk, |_| 0);
        /// Weight of the loss of the indexer; 0 freezes it.
        loss_coeff: f64 = 0.0 => setting_or_omitted!(dsa_indexer_loss_coeff, |_| 0.0);
        /// The loss is over the chosen keys.
        sparse_loss: bool = false => setting!(dsa_indexer_use_sparse_loss);
        /// Pair even with odd elements in rotation instead of the two halves.
        interleaved: bool = false => setting!(dsa_indexer_rope_interleaved);
        /// The last elements of a head are rotated instead of the first.
        #[serde(default)]
        rotates_last: bool = false => setting!(dsa_indexer_rope_last);
        /// Keys in a block: each head of the indexer chooses whole blocks for an equal share of the
        /// query heads. `None` chooses single keys, by the weighted sum over heads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block_size: Option<usize> = None => setting!(dsa_indexer_block_size);
        /// Last blocks that are always chosen.
        #[serde(default)]
        local_blocks: usize = 1 => setting!(dsa_indexer_local_blocks);
        /// Epsilon of the norm of keys.
        norm_epsilon: f64 = 1e-6 => SettingCodec {
            read: |section, _| Ok(section.dsa_indexer_k_norm_epsilon.unwrap_or(section.layernorm_epsilon)),
            write: |_, _, _| {},
        };
    }
}

config_table! {
    /// An encoder before the decoder. Its layers are as wide as the decoder's.
    #[derive(Copy)]
    pub struct EncoderConfig {
        /// Number of layers.
        num_layers: usize = 0 => setting_or!(encoder_num_layers, |_| 0);
        /// Tokens of the decoder's sequences in training; those of the encoder's have the model's
        /// sequence length.
        target_length: usize = 128 => setting!(seq_length_dec);
        /// The token that the decoder begins with.
        start_token: usize = 0 => setting!(decoder_start_token_id);
        /// The decoder's output is divided by the square root of the hidden size before the output
        /// projection.
        scale_outputs: bool = false => setting!(scale_decoder_outputs);
    }
}

config_table! {
    /// A learned number for each head and bucket of distances, added to attention scores.
    #[derive(Copy, Eq)]
    pub struct RelativeConfig {
        /// Buckets of distances.
        num_buckets: usize = 32 => setting!(relative_attention_num_buckets);
        /// The distance from which on all are in the last bucket.
        max_distance: usize = 128 => setting!(relative_attention_max_distance);
    }
}

config_table! {
    /// Mixture of experts.
    pub struct MoeConfig {
        /// Experts of a layer.
        num_experts: usize = 0 => setting_or!(num_moe_experts, |_| 0);
        /// Experts beside these whose output is their input.
        #[serde(default)]
        num_identity_experts: usize = 0 => setting!(moe_num_identity_experts);
        /// Matrices of these experts, which no computation reads: files of transformers have them.
        #[serde(default)]
        identity_weights: bool = false => setting!(moe_identity_expert_weights);
        /// Experts stand beside the dense block of a layer; their output is added at the end of the
        /// next layer.
        #[serde(default)]
        shortcut: bool = false => setting!(moe_shortcut);
        /// The layers that have them.
        layers: LayerPattern = LayerPattern::All => codecs::MOE_LAYERS;
        /// Width of one expert; with a gated unit, of each half.
        ffn_hidden_size: usize = 0 => SettingCodec {
            read: |section, _| Ok(moe_codecs::expert_size(section)),
            write: |size, _, section| section.moe_ffn_hidden_size = Some(*size),
        };
        /// Bounds of the experts' units by layer, as `output_limits` of other blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_limits: Option<Vec<f64>> = None => setting!(moe_glu_output_limits);
        /// Bound of the gates of the experts' units from above and of their linear halves on both
        /// sides; `None` is as in other blocks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation_clamp: Option<f64> = None => setting!(moe_activation_func_clamp_value);
        /// Width that experts read and write, with linear layers from and to the residual stream;
        /// `None` is that of the stream.
        #[serde(default)]
        latent_size: Option<usize> = None => setting!(moe_latent_size);
        /// Width of a block that every token goes through beside its experts.
        shared_expert_intermediate_size: Option<usize> = None => setting!(moe_shared_expert_intermediate_size);
        /// Experts a token goes to.
        topk: usize = 0 => setting!(moe_router_topk);
        /// Factor on the sum of the experts' and shared experts' outputs.
        #[serde(default = "one")]
        output_multiplier: f64 = 1.0 => setting!(moe_output_multiplier);
        /// Function that turns the router's product into scores.
        #[serde(default)]
        score_function: RouterScoreFunction = RouterScoreFunction::Softmax => setting!(moe_router_score_function);
        /// With SparseMixer: half the relative distance from the best score within which a score
        /// counts.
        #[serde(default = "sparsemixer_jitter")]
        sparsemixer_jitter: f64 = 0.01 => setting!(moe_router_sparsemixer_jitter);
        /// First layers that send a token to the experts of a table.
        #[serde(default)]
        hash_layers: usize = 0 => setting!(moe_num_hash_layers);
        /// True if an expert's input is multiplied by its weight, not its output.
        #[serde(default)]
        weighted_inputs: bool = false => setting!(moe_apply_probs_on_input);
        /// Biases of the experts that tokens are sent to.
        #[serde(default)]
        linear_bias: bool = false => SettingCodec {
            read: |section, _| Ok(section.moe_linear_bias.unwrap_or(section.add_bias_linear || section.add_mlp_bias)),
            write: |bias, _, section| {
                let usual = section.add_bias_linear || section.add_mlp_bias;
                section.moe_linear_bias = (*bias != usual).then_some(*bias);
            },
        };
        /// Bias of the router.
        #[serde(default)]
        router_bias: bool = false => setting!(moe_router_bias);
        /// With sigmoid scores: weights are not divided by their sum.
        #[serde(default)]
        raw_scores: bool = false => setting!(moe_router_raw_scores);
        /// With sigmoid scores: added to the sum of the chosen ones.
        #[serde(default = "smallest_sum")]
        sum_epsilon: f64 = 1e-20 => setting!(moe_router_sum_epsilon);
        /// Equal groups of experts, of which a token uses a few.
        #[serde(default)]
        num_groups: Option<usize> = None => setting!(moe_router_num_groups);
        /// Groups that a token uses.
        #[serde(default)]
        group_topk: Option<usize> = None => setting!(moe_router_group_topk);
        /// Experts whose scores add up to that of their group; without it as many as a token would
        /// use of each.
        #[serde(default)]
        group_score_topk: Option<usize> = None => setting!(moe_router_group_score_topk);
        /// A bias of each expert that counts in the choice only and is not trained.
        #[serde(default)]
        expert_bias: bool = false => SettingCodec {
            read: |section, _| Ok(section.moe_router_enable_expert_bias),
            write: |has_bias, _, section| moe_codecs::write_expert_bias(*has_bias, section),
        };
        /// A dense block beside the experts of a layer, as wide as that of other layers. Both have
        /// norms of their own before and behind them, and the router reads the stream itself.
        #[serde(default)]
        dense_beside: bool = false => setting!(moe_dense_beside);
        /// The router's input is divided by its root mean square and multiplied by learned factors
        /// over the root of its size; the weights of experts have learned factors too.
        #[serde(default)]
        scaled_router: bool = false => setting!(moe_router_scales);
        /// A gate on the block that every token goes through.
        #[serde(default)]
        shared_gate: bool = false => setting!(moe_shared_expert_gate);
        /// The router's parameters are frozen.
        #[serde(default)]
        freeze_router: bool = false => setting!(freeze_moe_router);
        /// Weights are the softmax over all experts, not over the chosen ones.
        pre_softmax: bool = false => setting!(moe_router_pre_softmax);
        /// Scaling factor of the top-k routing weights; `None` is 1.
        topk_scaling_factor: Option<f64> = None => setting!(moe_router_topk_scaling_factor);
        /// In what the router computes.
        #[serde(default)]
        router_precision: Option<RouterDType> = None => setting!(moe_router_dtype);
        /// In training each element of the router's input is multiplied by a number from within so
        /// much of one.
        #[serde(default)]
        input_jitter: f64 = 0.0 => setting_or_omitted!(moe_input_jitter_eps, |_| 0.0);
        /// In training scores are random numbers: for measuring speed.
        #[serde(default)]
        force_balancing: bool = false => setting!(moe_router_force_load_balancing);
        /// Tokens that an expert takes in training, as a multiple of the mean over experts; `None`
        /// drops none.
        #[serde(default)]
        capacity_factor: Option<f64> = None => setting!(moe_expert_capacity_factor);
        /// Tokens that an expert drops.
        #[serde(default)]
        drop_policy: TokenDropPolicy = TokenDropPolicy::Probs => setting!(moe_token_drop_policy);
        /// In training experts are chosen by scores that Sinkhorn's algorithm has evened out.
        #[serde(default)]
        sinkhorn: bool = false => SettingCodec { read: |section, _| Ok(moe_codecs::is_sinkhorn(section)), write: |_, _, _| {} };
        /// Weight of the load-balancing loss of a micro-batch.
        aux_loss_coeff: f64 = 0.0 => SettingCodec {
            read: |section, _| moe_codecs::balancing_weight(section, LoadBalancing::AuxLoss),
            write: |_, _, _| {},
        };
        /// Weight of the load-balancing loss of each sequence.
        #[serde(default)]
        seq_aux_loss_coeff: f64 = 0.0 => SettingCodec {
            read: |section, _| moe_codecs::balancing_weight(section, LoadBalancing::SeqAuxLoss),
            write: |_, _, _| {},
        };
        /// Weight of the load-balancing loss of the global batch.
        #[serde(default)]
        global_aux_loss_coeff: f64 = 0.0 => SettingCodec {
            read: |section, _| moe_codecs::balancing_weight(section, LoadBalancing::GlobalAuxLoss),
            write: |_, moe, section| {
                let weights = [moe.aux_loss_coeff, moe.seq_aux_loss_coeff, moe.global_aux_loss_coeff];
                moe_codecs::write_balancing(weights, moe.sinkhorn, section);
            },
        };
        /// Weight of the router's z-loss.
        z_loss_coeff: f64 = 0.0 => setting_or_omitted!(moe_z_loss_coeff, |_| 0.0);
        /// Dispatch of tokens to the ranks of their experts.
        dispatcher: TokenDispatcher = TokenDispatcher::AllGather => setting!(moe_token_dispatcher_type);
        /// The experts of a rank are one operation. The result is the same.
        #[serde(default)]
        grouped_gemm: bool = false => setting!(moe_grouped_gemm);
    }
}

/// Form in which positions reach attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionEmbedding {
    /// A learned vector a position, added to the word embedding.
    LearnedAbsolute,
    /// Rotation of query and key.
    Rope(RopeConfig),
    /// A bias of attention scores by distance.
    Relative(RelativeConfig),
    /// No position embedding.
    None,
}

config_table! {
    /// Rotary position embedding.
    pub struct RopeConfig {
        /// Base of the frequencies.
        base: f64 = 10_000.0 => setting!(rotary_base);
        /// Base of the frequencies in windowed layers, which are not scaled; `None` is as in other
        /// layers.
        windowed_base: Option<f64> = None => setting!(rotary_base_local);
        /// Rotated share of the head in windowed layers with a base of their own; `None` is as in
        /// other layers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        windowed_percent: Option<f64> = None => SettingCodec {
            read: |section, _| Ok(section.rotary_percent_local.filter(|share| *share != section.rotary_percent)),
            write: |share, _, section| section.rotary_percent_local = *share,
        };
        /// Share of the head that is rotated, in `(0, 1]`.
        percent: f64 = 1.0 => setting!(rotary_percent);
        /// Pair even with odd elements instead of the two halves.
        interleaved: bool = false => setting!(rotary_interleaved);
        /// Rotate by negative angles.
        #[serde(default)]
        reversed: bool = false => setting!(rotary_reversed);
        /// Change of the frequencies for longer contexts.
        scaling: Option<RopeScaling> = None => codecs::ROPE_SCALING;
    }
}

config_table! {
    /// Connection of the blocks of a layer to the residual stream: by default `x + block(norm(x))`,
    /// one block after the other.
    #[derive(Copy)]
    pub struct ResidualConfig {
        /// Place of the norms of a layer.
        norms: NormPlacement = NormPlacement::Before => setting!(norm_placement);
        /// Order of attention and the feed-forward block.
        blocks: BlockOrder = BlockOrder::Sequential => setting!(block_order);
        /// Factor on the output of a block before it is added.
        branch_multiplier: f64 = 1.0 => setting!(residual_multiplier);
        /// Factor on the stream before outputs are added to it.
        stream_multiplier: f64 = 1.0;
        /// True if a block's output is added to the norm that the block reads, not to the stream
        /// before that norm.
        #[serde(default)]
        adds_to_norm: bool = false => setting!(apply_residual_connection_post_layernorm);
    }
}

impl Default for ResidualConfig {
    fn default() -> Self {
        Self::neutral()
    }
}

/// The norms that a layer has.
pub(crate) struct LayerNorms {
    pub before_attention: bool,
    pub after_attention: bool,
    pub before_mlp: bool,
    pub after_mlp: bool,
}

impl ResidualConfig {
    pub(crate) fn layer_norms(&self) -> LayerNorms {
        let before = matches!(self.norms, NormPlacement::Before | NormPlacement::Sandwich);
        let after = self.norms != NormPlacement::Before;
        LayerNorms {
            before_attention: before,
            // Blocks side by side are added up before the one norm of the sum.
            after_attention: after && (self.norms != NormPlacement::Sum || self.blocks == BlockOrder::Sequential),
            before_mlp: before && self.blocks != BlockOrder::ParallelSharedNorm,
            after_mlp: after,
        }
    }
}

config_table! {
    /// Kind, epsilon and parametrization of the norms.
    #[derive(Copy)]
    pub struct NormConfig {
        /// LayerNorm or RMSNorm.
        kind: Normalization = Normalization::LayerNorm => setting!(normalization);
        /// Added to variance or mean square.
        epsilon: f64 = 0.0 => setting!(layernorm_epsilon);
        /// The stored weight is the factor minus one.
        zero_centered_gamma: bool = false => setting!(layernorm_zero_centered_gamma);
        /// Weights and biases.
        #[serde(default = "affine")]
        affine: bool = true => setting!(layernorm_affine);
    }
}

/// Factor of files without the field.
fn one() -> f64 {
    1.0
}

/// Norms of files without the field have weights.
fn affine() -> bool {
    true
}

/// Value of files without the field, which have another router.
fn sparsemixer_jitter() -> f64 {
    0.01
}

/// Value of files without the field.
fn smallest_sum() -> f64 {
    1e-20
}
