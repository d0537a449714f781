//! The shared settings of `[model]`: names, defaults, ranges. Derived values are in
//! `finalize::model`.

use super::super::choice::{
    Activation, AmaxAlgo, AttentionVariant, BlockOrder, CudaGraphImpl, DType, Fp8Format, Fp8Recipe, LoadBalancing,
    NormPlacement, Normalization, OutputGateForm, PipelineSchedule, PositionEmbeddingType, QkNormScope,
    RecomputeGranularity, RecomputeMethod, RouterDType, RouterScoreFunction, TokenDispatcher, TokenDropPolicy,
};
use super::super::field::{AnyValue, OneOrMany};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::refused_values::{one_of, one_or_null};
use super::super::rule::{excludes, given_with, idle_unless, needs};
use super::super::section::section;
use super::super::spec::Group;
use super::experts::with_experts;

/// Heads, layers and ranks: a larger number is a mistake.
const COUNT: Limits = Limits::between(1.0, 65_536.0);
const COUNT_OR_ZERO: Limits = Limits::between(0.0, 65_536.0);

/// Attention without a softmax in some layers.
const LINEAR: &str = "model.experimental_attention_variant = gated_delta_net | = kimi_delta_attention";

/// Position embeddings that rotate queries and keys.
const ROTATED: &str = "model.position_embedding_type = rope | = yarn | = longrope | = mrope";

const ROPE: &str = "model.position_embedding_type = rope";
const YARN: &str = "model.position_embedding_type = yarn";
const LONGROPE: &str = "model.position_embedding_type = longrope";

with_experts! {
    /// Architecture and parallel layout of a transformer. Usable on its own: set fields, then
    /// [`finalize`](TransformerConfig::finalize).
    pub struct TransformerConfig {
        /// Transformer layers. Required.
        num_layers: usize = 0, COUNT_OR_ZERO, Group::EveryKind;
        /// Width of the residual stream. Required.
        hidden_size: usize = 0, Limits::between(0.0, 16_777_216.0), Group::EveryKind;
        /// Query heads. Required.
        num_attention_heads: usize = 0, COUNT_OR_ZERO;
        /// Key and value heads; null means `num_attention_heads`.
        num_query_groups: Option<usize> = None, COUNT;
        /// Width of the dense MLP; null means 4 x `hidden_size`.
        ffn_hidden_size: Option<usize> = None, Limits::between(1.0, 67_108_864.0);
        /// Size of one head; null means `hidden_size / num_attention_heads`.
        kv_channels: Option<usize> = None, Limits::between(1.0, 16_777_216.0);
        /// Size of one head of values; null means `kv_channels` (ours).
        value_channels: Option<usize> = None, Limits::between(1.0, 16_777_216.0);
        /// Training sequence length, in tokens.
        @training seq_length: usize = 1024, Limits::SIZE, Group::EveryKind;
        /// Vocabulary before padding; null takes the tokenizer's, padded.
        @training vocab_size: Option<usize> = None, Limits::SIZE, Group::EveryKind;
        /// The vocabulary is padded to a multiple of this.
        @training make_vocab_size_divisible_by: usize = 128, Limits::between(1.0, 1_048_576.0),
            idle_unless("model.vocab_size = null | model.should_pad_vocab: a given size is padded on request alone"), Group::EveryKind;
        /// Pad the vocabulary.
        @training should_pad_vocab: bool = false,
            idle_unless("model.vocab_size: a vocabulary that comes from the tokenizer is always padded"), Group::EveryKind;
        /// Tie input and output embeddings.
        share_embeddings_and_output_weights: bool = true;
        /// Position embedding.
        position_embedding_type: PositionEmbeddingType = PositionEmbeddingType::LearnedAbsolute
            => not_built("mrope, three positions a token for images and video, which no kind of model reads (on text alone mrope is rope), and relative, of models with an encoder").built(&["rope", "none", "yarn", "longrope"]);
        /// Base of the rotary frequencies.
        rotary_base: f64 = 10_000.0, Limits::between(1.0, 1e12), idle_unless(ROTATED);
        /// Base of the rotary frequencies in windowed layers, which are not scaled; null is as in
        /// other layers (upstream: in its Gemma 3 provider).
        rotary_base_local: Option<f64> = None, Limits::between(1.0, 1e12), idle_unless(ROTATED),
            idle_unless("model.window_size: it is the base in layers with a window");
        /// Fraction of the head that is rotated.
        rotary_percent: f64 = 1.0, Limits::SHARE, idle_unless(ROTATED);
        /// This fraction in windowed layers; null means `rotary_percent` (ours).
        rotary_percent_local: Option<f64> = None, Limits::SHARE, idle_unless(ROTATED), needs("model.rotary_base_local");
        /// Pair even and odd dimensions instead of halves.
        rotary_interleaved: bool = false, idle_unless(ROTATED);
        /// Rotate by negative angles (ours).
        rotary_reversed: bool = false, idle_unless(ROTATED);
        /// Llama 3 frequency scaling.
        rope_scaling: bool = false, needs(ROPE);
        /// Factor of Llama 3's RoPE scaling.
        rope_scaling_factor: f64 = 1.0, Limits::at_least(1.0), idle_unless("model.rope_scaling");
        /// Low-frequency factor of Llama 3's RoPE scaling (ours; upstream hard-codes it).
        rope_scaling_low_freq_factor: f64 = 1.0, Limits::ABOVE_ZERO, idle_unless("model.rope_scaling");
        /// High-frequency factor of Llama 3's RoPE scaling (ours; upstream hard-codes it).
        rope_scaling_high_freq_factor: f64 = 4.0, Limits::ABOVE_ZERO, idle_unless("model.rope_scaling");
        /// Sequence length at which the unscaled model was trained (ours; upstream hard-codes it).
        rope_scaling_original_max_position_embeddings: usize = 8192, Limits::SIZE, idle_unless("model.rope_scaling");
        /// Linear interpolation of positions.
        seq_len_interpolation_factor: Option<f64> = None, Limits::ABOVE_ZERO, needs(ROPE),
            excludes("model.rope_scaling: both scale the rotary frequencies");
        /// Growth of the rotary base by this to the power of d / (d - 2), for d rotated elements of
        /// a head (ours).
        rope_ntk_alpha: Option<f64> = None, Limits::ABOVE_ZERO, needs(ROPE),
            excludes("model.rope_scaling | model.seq_len_interpolation_factor: both change the rotary frequencies");
        /// Share of the pairs of a head that turn, the first ones, by the frequencies of the whole
        /// head; windowed layers with a base of their own turn all (ours).
        rope_proportional_share: Option<f64> = None, Limits::SHARE, needs(ROPE),
            excludes("model.rope_scaling | model.seq_len_interpolation_factor | model.rope_ntk_alpha: all change the rotary frequencies");
        /// Factor by which yarn extends the context.
        yarn_rotary_scaling_factor: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN), given_with(YARN);
        /// Sequence length at which the model was trained before yarn.
        yarn_original_max_position_embeddings: Option<usize> = None, Limits::SIZE, needs(YARN), given_with(YARN);
        /// Frequencies that turn more often than this within the original length are kept; null is
        /// 32.
        yarn_beta_fast: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN);
        /// Frequencies that turn less often than this are divided by the factor; null is 1.
        yarn_beta_slow: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN);
        /// Growth of cosines and sines with the factor's logarithm; only together with
        /// `yarn_mscale_all_dim`.
        yarn_mscale: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN), idle_unless("model.yarn_mscale_all_dim");
        /// The growth that is divided out again.
        yarn_mscale_all_dim: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN);
        /// Round the ends of the interpolated band to whole pairs; null is true.
        yarn_correction_range_round_to_int: Option<bool> = None, needs(YARN);
        /// Factor on yarn's cosines and sines; null is what follows from the other settings (ours).
        yarn_attention_factor: Option<f64> = None, Limits::ABOVE_ZERO, needs(YARN),
            excludes("model.yarn_mscale: the factor follows from it");
        /// Divisors of longrope's frequencies, one a rotated pair, in sequences up to the original
        /// length (ours).
        longrope_short_factor: Option<Vec<f64>> = None, Limits::ABOVE_ZERO, needs(LONGROPE), given_with(LONGROPE);
        /// The divisors in longer sequences (ours).
        longrope_long_factor: Option<Vec<f64>> = None, Limits::ABOVE_ZERO, needs(LONGROPE), given_with(LONGROPE);
        /// Sequence length at which the model was trained before longrope (ours).
        longrope_original_max_position_embeddings: Option<usize> = None, Limits::SIZE, needs(LONGROPE),
            given_with(LONGROPE);
        /// Factor on longrope's cosines and sines; null is 1 (ours).
        longrope_attention_factor: Option<f64> = None, Limits::ABOVE_ZERO, needs(LONGROPE);
        /// Normalization layer.
        normalization: Normalization = Normalization::LayerNorm;
        /// Epsilon of the norm.
        layernorm_epsilon: f64 = 1e-5, Limits::above_zero_to(1.0);
        /// Store norm weights minus one.
        layernorm_zero_centered_gamma: bool = false;
        /// Trained weights, and biases in LayerNorm, in norms (ours).
        layernorm_affine: bool = true;
        /// Norm of the embedding's output (ours).
        embedding_layernorm: bool = false;
        /// Place of the norms in a layer (ours).
        norm_placement: NormPlacement = NormPlacement::Before;
        /// The order of a layer's blocks (ours).
        block_order: BlockOrder = BlockOrder::Sequential;
        /// Factor on the output of a block before it is added to the residual stream (ours).
        residual_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Several residual streams, which blocks read and write with learned weights:
        /// hyper-connections.
        enable_mhc_connections: bool = false;
        /// Residual streams.
        mhc_num_residual_streams: usize = 4, Limits::between(2.0, 1024.0), needs("model.enable_mhc_connections");
        /// Iterations of Sinkhorn's algorithm on the weights that mix streams; 0 does not mix them.
        mhc_sinkhorn_iterations: usize = 20, Limits::between(0.0, 1024.0), needs("model.enable_mhc_connections");
        /// Initial factor on the products with the streams that weights are made of.
        @training mhc_init_gating_factor: f64 = 0.01, Limits::NON_NEGATIVE, needs("model.enable_mhc_connections");
        /// Added to the weights of streams (ours).
        mhc_epsilon: f64 = 1e-6, Limits::above_zero_to(1.0), needs("model.enable_mhc_connections");
        /// Bound of the weights with which a block's output is added to streams (ours).
        mhc_output_magnitude: f64 = 2.0, Limits::ABOVE_ZERO, needs("model.enable_mhc_connections");
        refused @execution mhc_recompute_layer_num = None::<usize>, "Layers whose streams are recomputed together."
            => not_built("recompute of streams over several layers; a block's weights and sums are always recomputed");
        /// Residual streams of which a layer reads and writes one, with a branch beside attention
        /// (AltUp and LAuReL); null is one stream without the branch (ours).
        altup_num_inputs: Option<usize> = None, Limits::between(2.0, 1024.0),
            excludes("model.enable_mhc_connections: its blocks read all streams"),
            needs("model.hidden_size_per_layer_input");
        /// The stream that layers read and write (ours).
        altup_active_idx: usize = 0, COUNT_OR_ZERO, idle_unless("model.altup_num_inputs");
        /// Size between the two matrices of the branch beside attention (ours).
        laurel_rank: usize = 64, Limits::SIZE, idle_unless("model.altup_num_inputs");
        /// Share of gates that each layer's feed-forward block sets to zero, by their mean and
        /// deviation (ours).
        activation_sparsity_pattern: Option<Vec<f64>> = None, Limits::between(0.0, 0.999_999);
        /// Factor on the word embedding's output (upstream: in its Gemma providers).
        embedding_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Size of the embedding of each token that each layer has of its own (ours).
        hidden_size_per_layer_input: Option<usize> = None, Limits::SIZE;
        /// Rows of the table of these vectors; null is `vocab_size`. Tokens beyond it have those of
        /// token 0 (ours).
        vocab_size_per_layer_input: Option<usize> = None, Limits::SIZE, needs("model.hidden_size_per_layer_input");
        /// Multiply the residual stream at the end of each layer by a number that is not trained
        /// (ours).
        layer_scalar: bool = false;
        /// Factor on the logits (ours).
        logit_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Normalize query and key.
        qk_layernorm: bool = false;
        /// Scope of one norm of queries or keys (ours).
        qk_layernorm_scope: QkNormScope = QkNormScope::Head, idle_unless("model.qk_layernorm");
        /// Normalize query and key by their root mean square, without weights.
        qk_l2_norm: bool = false;
        /// Normalize values by their root mean square, without weights (ours).
        v_l2_norm: bool = false;
        /// Values of layers without a window are their keys, before norm and rotation (ours).
        attention_k_eq_v: bool = false;
        /// Last layers that use keys and values of the last layer before them that has a window, or
        /// none, as they do (ours).
        num_kv_shared_layers: usize = 0, COUNT_OR_ZERO;
        /// MLPs of these layers are twice as wide (ours).
        use_double_wide_mlp: bool = false, needs("model.num_kv_shared_layers");
        /// Normalize query and key after the rotation, only in layers with rotary embedding (ours).
        qk_layernorm_after_rope: bool = false, needs("model.qk_layernorm | model.qk_l2_norm"), needs(ROTATED);
        /// One more score in the softmax of each head, learned and without a value (ours; upstream
        /// `softmax_type = "learnable"`).
        attention_sinks: bool = false;
        /// Factor on values (ours).
        attention_value_scale: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Multiply attention's output by the sigmoid of gates before the output projection.
        attention_output_gate: bool = false;
        /// Form of these gates (ours).
        attention_output_gate_form: OutputGateForm = OutputGateForm::Fused, idle_unless("model.attention_output_gate");
        /// Limit of queries, keys and values on both sides, before the rotation (ours).
        clip_qkv: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Factor on queries by position: 1 + this * log(1 + floor(position /
        /// `query_scale_length`)) (ours).
        query_scale_beta: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Positions between two values of this factor (ours).
        query_scale_length: usize = 8192, Limits::SIZE, idle_unless("model.query_scale_beta");
        /// Position of the first token for this factor (ours).
        query_scale_first_position: usize = 0, Limits::SIZE_OR_ZERO, idle_unless("model.query_scale_beta");
        /// Have this factor only in layers without rotary embedding (ours).
        query_scale_unrotated_only: bool = false, idle_unless("model.query_scale_beta");
        /// Biases in all linear layers.
        add_bias_linear: bool = true;
        /// Bias in the query-key-value projection.
        add_qkv_bias: bool = false, idle_unless("model.add_bias_linear != true: it gives every linear layer a bias");
        /// Bias in attention's output projection (ours).
        add_proj_bias: bool = false, idle_unless("model.add_bias_linear != true: it gives every linear layer a bias");
        /// Biases in the MLP (ours).
        add_mlp_bias: bool = false, idle_unless("model.add_bias_linear != true: it gives every linear layer a bias");
        /// Bias in the output projection (ours).
        add_output_layer_bias: bool = false;
        /// Gated MLP.
        gated_linear_unit: bool = false;
        /// The MLP's non-linearity.
        activation_func: Activation = Activation::Gelu;
        /// Bound of the gated unit's two halves: of the gate from above, of the linear half on both
        /// sides; for quick_gelu and silu.
        activation_func_clamp_value: Option<f64> = None, Limits::ABOVE_ZERO, needs("model.gated_linear_unit"),
            needs("model.activation_func = quick_gelu | = silu");
        /// Added to the linear half of the gated unit; for quick_gelu.
        glu_linear_offset: f64 = 0.0, needs("model.gated_linear_unit"), needs("model.activation_func = quick_gelu");
        /// Bound, by layer, of the activated gate from above and of the linear half on both sides;
        /// 0 bounds neither. Experts have their own (ours).
        glu_output_limits: Option<Vec<f64>> = None, Limits::at_least(0.0), needs("model.gated_linear_unit"),
            needs("model.activation_func = silu");
        /// Dropout of the residual stream.
        @training hidden_dropout: f64 = 0.1, Limits::BELOW_ONE;
        /// Dropout after the embedding; null is `hidden_dropout`.
        @training embedding_dropout: Option<f64> = None, Limits::BELOW_ONE;
        /// Dropout of attention probabilities.
        @training attention_dropout: f64 = 0.1, Limits::BELOW_ONE;
        /// Scale of attention scores; null is 1 / sqrt(`kv_channels`).
        softmax_scale: Option<f64> = None, Limits::at_least(0.0);
        /// Soft cap on attention scores: c tanh(score / c) (upstream: in its Gemma 2 provider).
        attn_logit_softcapping: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Soft cap on the logits (upstream: in its Gemma 2 provider).
        final_logit_softcapping: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Sliding window: tokens to the left (-1 for all) and to the right (0 or -1, since
        /// attention is causal).
        window_size: Option<[i64; 2]> = None, Limits::at_least(-1.0);
        /// N: every N-th layer has full attention; list: 1 means windowed.
        window_attn_skip_freq: Option<OneOrMany<usize>> = None, needs("model.window_size");
        /// Query heads of windowed layers; null means `num_attention_heads` (ours).
        window_num_attention_heads: Option<usize> = None, COUNT, needs("model.window_size");
        /// Key and value heads of windowed layers; null means `num_query_groups` (ours).
        window_num_query_groups: Option<usize> = None, COUNT, needs("model.window_size");
        /// Size of one head in windowed layers; null means `kv_channels` (ours).
        window_kv_channels: Option<usize> = None, Limits::between(1.0, 16_777_216.0), needs("model.window_size");
        /// Size of one head of values in windowed layers; null means `value_channels`, or the size
        /// of the layers' other heads (ours).
        window_value_channels: Option<usize> = None, Limits::between(1.0, 16_777_216.0), needs("model.window_size");
        /// Sinks in windowed layers; null means `attention_sinks` (ours).
        window_attention_sinks: Option<bool> = None, needs("model.window_size");
        /// Windows do not slide: attention stays inside chunks of as many positions as a window has
        /// tokens (ours).
        window_chunks: bool = false, needs("model.window_size");
        /// N: every N-th layer has no rotary embedding; list: 1 means without.
        no_rope_freq: Option<OneOrMany<usize>> = None, idle_unless(ROTATED);
        /// Residual stream in 32 bits between layers of 16 bits; stages of a pipeline send it so.
        @training fp32_residual_connection: bool = false,
            idle_unless("model.params_dtype != float32: without 16-bit layers (mixed_precision) everything is in 32 bits");
        /// Blocks are added to the norm that they read, not to the stream before it.
        apply_residual_connection_post_layernorm: bool = false;
        /// Multi-latent attention.
        multi_latent_attention: bool = false;
        /// Size of the latent vector of queries; null projects queries from the residual stream
        /// (upstream: in its MLA configuration).
        q_lora_rank: Option<usize> = Some(512), Limits::SIZE,
            needs("model.multi_latent_attention | model.compressed_attention_rates");
        /// Tokens that an entry compresses, by layer: one head of keys, which are the values too,
        /// and attention to a window of them and to these entries; 0 is the window alone. With
        /// `dsa_*` an indexer chooses entries of the layers that choose keys, of which two
        /// overlap (ours).
        compressed_attention_rates: Option<Vec<usize>> = None, COUNT_OR_ZERO,
            excludes("model.multi_latent_attention: it has keys of other forms"),
            needs("model.window_size");
        /// Groups of heads that project compressed attention's output first, each for itself
        /// (ours).
        attention_output_groups: usize = 1, COUNT, needs("model.compressed_attention_rates");
        /// Elements that a group's first projection makes (ours).
        attention_output_rank: usize = 1024, Limits::SIZE, needs("model.compressed_attention_rates");
        /// Size of the latent vector of keys and values (upstream: in its MLA configuration).
        kv_lora_rank: usize = 512, Limits::SIZE, needs("model.multi_latent_attention");
        /// Elements of a head that are not rotated (upstream: in its MLA configuration).
        qk_head_dim: usize = 128, Limits::SIZE, needs("model.multi_latent_attention");
        /// Elements of a head that are rotated; those of keys are the same for all heads (upstream:
        /// in its MLA configuration).
        qk_pos_emb_head_dim: usize = 64, Limits::SIZE, needs("model.multi_latent_attention");
        /// Elements of a head's values (upstream: in its MLA configuration).
        v_head_dim: usize = 128, Limits::SIZE, needs("model.multi_latent_attention");
        /// Added to the mean square in the norms of latent vectors; null is `layernorm_epsilon`
        /// (ours).
        latent_layernorm_epsilon: Option<f64> = None, Limits::above_zero_to(1.0), needs("model.multi_latent_attention");
        /// Factor on the latent vector of keys and values, behind its norm; null is 1 (ours).
        latent_kv_multiplier: Option<f64> = None, Limits::ABOVE_ZERO, needs("model.multi_latent_attention");
        /// Attention of the layers that `linear_attention_freq` names, or `dsa`: attention to the
        /// keys that an indexer chooses.
        experimental_attention_variant: Option<AttentionVariant> = None;
        /// Keys that a query attends to: those with the best scores of an indexer; null is all.
        dsa_indexer_topk: Option<usize> = None, Limits::SIZE,
            needs("model.experimental_attention_variant"),
            given_with("model.experimental_attention_variant = dsa");
        /// Heads of the indexer.
        dsa_indexer_n_heads: Option<usize> = None, COUNT,
            needs("model.dsa_indexer_topk"),
            given_with("model.dsa_indexer_topk");
        /// Size of a head of the indexer.
        dsa_indexer_head_dim: Option<usize> = None, Limits::between(1.0, 65_536.0),
            needs("model.dsa_indexer_topk"),
            given_with("model.dsa_indexer_topk");
        /// N: after `dsa_indexer_skip_topk_offset` layers every N-th chooses keys, and layers
        /// between share its choice; list: 1 chooses, 0 shares the choice of the last layer that
        /// chooses, 2 sees all keys.
        dsa_indexer_topk_freq: OneOrMany<usize> = OneOrMany::One(1), needs("model.dsa_indexer_topk");
        /// First layers, which choose for themselves.
        dsa_indexer_skip_topk_offset: usize = 0, COUNT_OR_ZERO, needs("model.dsa_indexer_topk");
        /// Keys are chosen in blocks of this many by their largest score, by an index head for each
        /// group of query heads, or by one for all; null chooses single keys by the weighted sum
        /// over index heads (ours).
        dsa_indexer_block_size: Option<usize> = None, Limits::SIZE, needs("model.dsa_indexer_topk"),
            excludes("model.multi_latent_attention: it chooses single keys");
        /// Blocks before a query that are always chosen, its own included (ours).
        dsa_indexer_local_blocks: usize = 1, COUNT_OR_ZERO, needs("model.dsa_indexer_block_size");
        /// Weight of the loss that trains the indexer to score keys as attention does; null or 0
        /// freezes it.
        dsa_indexer_loss_coeff: Option<f64> = None, Limits::between(0.0, 1e6), needs("model.dsa_indexer_topk");
        /// The indexer's loss is over the chosen keys, not over all.
        dsa_indexer_use_sparse_loss: bool = false, needs("model.dsa_indexer_loss_coeff");
        /// Pair even with odd elements in the rotation of the indexer.
        dsa_indexer_rope_interleaved: bool = false, needs("model.dsa_indexer_topk");
        /// Rotate the last elements of a head of the indexer, not the first (ours).
        dsa_indexer_rope_last: bool = false, needs("model.dsa_indexer_topk");
        /// Epsilon of the norm of the indexer's keys; null is `layernorm_epsilon`.
        dsa_indexer_k_norm_epsilon: Option<f64> = None, Limits::above_zero_to(1.0), needs("model.dsa_indexer_topk");
        /// N: every N-th layer has softmax attention; list: 1 means linear attention.
        linear_attention_freq: Option<OneOrMany<usize>> = None, needs(LINEAR),
            given_with(LINEAR);
        /// Taps of the convolution of queries, keys and values in layers with linear attention.
        linear_conv_kernel_dim: usize = 4, Limits::between(1.0, 1024.0), needs(LINEAR);
        /// Size of a key head of linear attention.
        linear_key_head_dim: usize = 128, Limits::between(1.0, 65_536.0), needs(LINEAR);
        /// Size of a value head of linear attention.
        linear_value_head_dim: usize = 128, Limits::between(1.0, 65_536.0), needs(LINEAR);
        /// Query and key heads of linear attention.
        linear_num_key_heads: usize = 16, COUNT, needs(LINEAR);
        /// Value heads of linear attention: a multiple of the key heads.
        linear_num_value_heads: usize = 32, COUNT, needs(LINEAR);
        /// A token may erase twice the old value of its key, so that states can change sign (ours).
        linear_allow_neg_eigval: bool = false, needs(LINEAR);
        /// Size between the two matrices that make decays, and between those that make gates, from
        /// the stream; null is one matrix each (ours).
        linear_gate_rank: Option<usize> = None, Limits::SIZE,
            needs("model.experimental_attention_variant = kimi_delta_attention");
        /// Least logarithm of a decay; null is no bound (ours).
        linear_decay_bound: Option<f64> = None, Limits::between(-1e3, -1e-3),
            needs("model.experimental_attention_variant = kimi_delta_attention");
        /// Epsilon of the norm of linear attention's output; null is `layernorm_epsilon` (ours).
        linear_norm_epsilon: Option<f64> = None, Limits::above_zero_to(1.0), needs(LINEAR);
        /// Place of the norms in layers with linear attention; null is `norm_placement` (ours).
        linear_norm_placement: Option<NormPlacement> = None, needs(LINEAR);
        /// Multi-token-prediction depth.
        mtp_num_layers: Option<usize> = None, COUNT_OR_ZERO, excludes("dpo: its loss is of whole answers"),
            excludes("distillation: a teacher predicts only the next token");
        /// Layers of the encoder (kind t5), where `num_layers` counts the decoder's; null means as
        /// many.
        encoder_num_layers: Option<usize> = None, COUNT => not_built("an encoder, which only kinds of model with two stacks have");
        /// Tokens of the decoder's sequences (kind t5), where `seq_length` counts the encoder's.
        @training seq_length_dec: usize = 128, Limits::SIZE => not_built("the length of a decoder's own sequences, behind an encoder");
        /// Distances that relative positions tell apart.
        relative_attention_num_buckets: usize = 32, COUNT => not_built("the distances of relative positions, which only kinds of model with an encoder have");
        /// Distance from which on all are one to relative positions.
        relative_attention_max_distance: usize = 128, Limits::SIZE => not_built("the longest distance of relative positions, which only kinds of model with an encoder have");
        /// Token that a decoder behind an encoder begins with (ours).
        @training decoder_start_token_id: usize = 0, Limits::SIZE_OR_ZERO => not_built("the first token of a decoder behind an encoder");
        /// Divide the decoder's output by the square root of `hidden_size` before the tied output
        /// projection (ours).
        scale_decoder_outputs: bool = false => not_built("the scale of T5's tied output projection");
        /// Weight of the multi-token loss.
        @training mtp_loss_scaling_factor: Option<f64> = Some(0.1), Limits::NON_NEGATIVE,
            idle_unless("model.mtp_num_layers");
        /// Divide gradients by all unmasked tokens of the step instead of averaging micro-batches.
        @training calculate_per_token_loss: bool = false, Group::EveryKind;
        refused @execution attention_backend = one_of("auto", &["flash", "fused", "unfused", "local", "auto"]),
            "Attention implementation."
            => no_counterpart("a choice of CUDA libraries; each device has one attention implementation here").inert(&["local"]);
        refused transformer_impl = one_of("local", &["local", "transformer_engine", "inference_optimized"]),
            "Layer implementation. Upstream's default is transformer_engine, which does not exist here."
            => no_counterpart("Transformer Engine's layers and Megatron's inference layers; Bridge's own are \"local\"");
        refused fp16_lm_cross_entropy = false, "Loss in 16 bits."
            => not_built("a loss in 16 bits; it is computed in 32 bits");
        refused parallel_output = true, "Keep logits split over tensor-parallel ranks."
            => no_counterpart("logits gathered over tensor-parallel ranks; the loss works on each rank's shard and never gathers them");
        refused hf_model_id = None::<String>, "Associated hub model: for information, not loaded."
            => not_built("models of the Hugging Face hub by name; import its folder and set checkpoint.pretrained_checkpoint").execution_only();
        /// Tensor-parallel size.
        @execution tensor_model_parallel_size: usize = 1, COUNT, Group::Layout;
        /// Pipeline-parallel size.
        @execution pipeline_model_parallel_size: usize = 1, COUNT, Group::Layout;
        /// Model chunks per pipeline rank.
        @execution virtual_pipeline_model_parallel_size: Option<usize> = None, COUNT, Group::Layout;
        /// Context-parallel size.
        @execution context_parallel_size: usize = 1, COUNT,
            excludes("dpo: an answer is judged by the likelihood of all its tokens, of which ranks have parts"),
            excludes("distillation.cache: files are found by all tokens of a sample, of which ranks have parts"), Group::Layout;
        /// Expert-parallel size.
        @execution expert_model_parallel_size: usize = 1, COUNT, Group::Layout;
        /// Tensor-parallel size inside experts; null means `tensor_model_parallel_size`.
        @execution expert_tensor_parallel_size: Option<usize> = None, COUNT, Group::Layout;
        /// Shard norms and dropout along the sequence.
        @execution sequence_parallel: bool = false, needs("model.tensor_model_parallel_size > 1"), Group::Layout;
        refused hierarchical_context_parallel_sizes = None::<Vec<usize>>, "Context-parallel group sizes per level.", COUNT, Group::Ranks
            => not_built("hierarchical context parallelism, for a2a+p2p; there is one level, which gathers keys and values").execution_only();
        refused @execution cp_comm_type = None::<OneOrMany<String>>,
            "Context-parallel communication: p2p, all_gather, a2a, a2a+p2p."
            => not_built("keys and values passed around a ring (p2p) or heads exchanged (a2a); keys and values are gathered").inert(&["all_gather"]).execution_only();
        /// Layers of the first stage.
        @execution num_layers_in_first_pipeline_stage: Option<usize> = None, COUNT,
            excludes("model.pipeline_model_parallel_layout"),
            needs("model.pipeline_model_parallel_size > 1"), Group::EveryKind, Group::Layout;
        /// Layers of the last stage.
        @execution num_layers_in_last_pipeline_stage: Option<usize> = None, COUNT,
            excludes("model.pipeline_model_parallel_layout"),
            needs("model.pipeline_model_parallel_size > 1"), Group::EveryKind, Group::Layout;
        /// Count the embedding as one layer.
        @execution account_for_embedding_in_pipeline_split: bool = false,
            excludes("model.pipeline_model_parallel_layout"),
            excludes("model.num_layers_in_first_pipeline_stage | model.num_layers_in_last_pipeline_stage"),
            needs("model.pipeline_model_parallel_size > 1"), Group::EveryKind, Group::Layout;
        /// Count the loss as one layer.
        @execution account_for_loss_in_pipeline_split: bool = false, excludes("model.pipeline_model_parallel_layout"),
            excludes("model.num_layers_in_first_pipeline_stage | model.num_layers_in_last_pipeline_stage"),
            needs("model.pipeline_model_parallel_size > 1"), Group::EveryKind, Group::Layout;
        /// Explicit layer placement.
        @execution pipeline_model_parallel_layout: Option<OneOrMany<String>> = None,
            needs("model.pipeline_model_parallel_size > 1"), Group::EveryKind, Group::Layout;
        /// Pipeline schedule; null means 1f1b (ours).
        @execution pipeline_schedule: Option<PipelineSchedule> = None, Group::EveryKind, Group::Ranks;
        /// Dtype between pipeline stages; null means `params_dtype`. A single stage sends nothing.
        @execution pipeline_dtype: Option<DType> = None, Group::EveryKind, Group::Ranks;
        refused variable_seq_lengths = false, "Exchange shapes between stages."
            => not_built("samples of different lengths in a pipeline; all have seq_length tokens, so no shapes are exchanged").execution_only();
        /// Contiguous micro-batches per chunk; null means the pipeline size.
        @execution microbatch_group_size_per_vp_stage: Option<usize> = None, COUNT, Group::EveryKind, Group::Ranks;
        refused @execution overlap_p2p_comm = false, "Overlap stage transfers.", Group::Ranks
            => no_counterpart("stage transfers that do not overlap; receives are posted early and sends overlap with computation").inert(&["true"]);
        refused @execution batch_p2p_comm = true, "Batch sends and receives."
            => no_counterpart("sends and receives in one NCCL call; each transfer is a separate call").inert(&["false"]);
        refused @execution overlap_p2p_comm_warmup_flush = false, "Overlap also in warm-up and flush.", Group::Ranks
            => not_built("a separate choice for warm-up and flush").inert(&["true"]).execution_only();
        refused deallocate_pipeline_outputs = true, "Free outputs after sending."
            => no_counterpart("outputs kept after they were sent; sending takes ownership of them");
        refused defer_embedding_wgrad_compute = false, "Embedding weight gradient during the flush."
            => not_built("the output layer's weight gradient deferred to the flush; pipeline_schedule = \"zb_h1\" defers those of all layers").execution_only();
        refused wgrad_deferral_limit = 0_i64, "Deferred micro-batches; 0 means all."
            => not_built("how many micro-batches defer_embedding_wgrad_compute defers").execution_only();
        refused scatter_embedding_sequence_parallel = true, "Scatter the embedding's output under sequence parallelism."
            => not_built("unsharded embeddings under sequence_parallel, for models that change them first").execution_only();
        refused tp_comm_overlap = false, "Overlap tensor-parallel collectives.", Group::Ranks
            => not_built("tensor-parallel collectives overlapped with parts of their matrix multiplications").execution_only();
        refused tp_comm_overlap_cfg = None::<AnyValue>, "User-buffer settings.", Group::Ranks
            => no_counterpart("the table of Transformer Engine's user buffers for tp_comm_overlap");
        refused tp_comm_bootstrap_backend = one_of("nccl", &["nccl", "mpi", "gloo"]), "Start-up backend of the above."
            => no_counterpart("the start-up of Transformer Engine's user buffers for tp_comm_overlap");

        /// 16-bit IEEE compute.
        @training fp16: bool = false, Group::EveryKind;
        /// bfloat16 compute.
        @training bf16: bool = false, Group::EveryKind;
        /// Parameter dtype at creation.
        @training params_dtype: DType = DType::Float32, Group::EveryKind;
        refused enable_autocast = false, "Autocast."
            => not_built("PyTorch's autocast, which chooses a dtype for each operation; mixed_precision fixes them");
        refused @execution autocast_dtype = None::<DType>, "Autocast dtype; null means `params_dtype`."
            => no_counterpart("the dtype of PyTorch's autocast").same_as("model.params_dtype");
        refused attention_softmax_in_fp32 = false, "Softmax in 32 bits."
            => no_counterpart("a choice of the softmax's precision; it is always computed in 32 bits").inert(&["true"]);
        refused apply_query_key_layer_scaling = false, "Divide scores by the layer number."
            => no_counterpart("scores divided by the number of the layer before the softmax and multiplied by it inside, which 16 bits need; scores have 32").inert(&["true"]);
        /// 8-bit format of the operands of linear layers' products: "e4m3", or "hybrid" with e5m2
        /// for gradients.
        @training fp8: Option<Fp8Format> = None,
            excludes("peft: 8-bit products of adapted layers are not implemented: use peft.base_quantization, or no fp8"),
            excludes("model.pipeline_schedule = zb_h1: a schedule which defers weight gradients of 16 or 32 bits"), Group::EveryKind;
        /// Source of the fp8 scales: the tensor ("tensorwise"), earlier steps ("delayed"), blocks
        /// of 32 elements ("mxfp8"), blocks of 128 ("blockwise").
        @training fp8_recipe: Option<Fp8Recipe> = Some(Fp8Recipe::Delayed), Group::EveryKind
            => not_built("scales of fp8 from a factory in code")
                .built(&["tensorwise", "delayed", "mxfp8", "blockwise"]).inert(&["null"]);
        refused fp8_param = false, "Weights in 8 bits."
            => not_built("weights kept in the 8 bits of fp8").execution_only();
        /// Powers of two by which scales of `fp8_recipe = "delayed"` stay below what would fit.
        @training fp8_margin: i64 = 0, Limits::between(-64.0, 64.0), Group::EveryKind;
        /// Steps whose largest magnitudes scales of `fp8_recipe = "delayed"` are made of.
        @training fp8_amax_history_len: usize = 1, Limits::between(1.0, 65_536.0), Group::EveryKind;
        /// Value of the magnitude history that sets the scales of `fp8_recipe = "delayed"`: the
        /// newest or the largest.
        @training fp8_amax_compute_algo: AmaxAlgo = AmaxAlgo::MostRecent, Group::EveryKind;
        /// Make weight gradients in fp8 too.
        @training fp8_wgrad: bool = true, Group::EveryKind;
        /// Keep the products of the first and last layers in the parameters' dtype.
        @training first_last_layers_bf16: bool = false, Group::EveryKind;
        /// Layers at the start that `first_last_layers_bf16` leaves out of fp8.
        @training num_layers_at_start_in_bf16: usize = 1, COUNT_OR_ZERO, Group::EveryKind;
        /// Layers at the end that `first_last_layers_bf16` leaves out of fp8.
        @training num_layers_at_end_in_bf16: usize = 1, COUNT_OR_ZERO, Group::EveryKind;
        refused fp4 = one_or_null(None, &["e2m1"]), "4-bit format."
            => not_built("4-bit matrix multiplications; numbers have 32 or 16 bits (mixed_precision)");
        refused fp4_recipe = one_or_null(Some("nvfp4"), &["nvfp4", "custom"]), "4-bit scaling."
            => not_built("how the scales of fp4 are chosen");
        refused fp4_param = false, "Weights in 4 bits."
            => not_built("weights kept in the 4 bits of fp4").execution_only();
        refused masked_softmax_fusion = true, "Fused masked softmax."
            => no_counterpart("attention without a fused softmax; attention is one operation, including mask and softmax");
        refused cross_entropy_loss_fusion = true, "Fused loss."
            => no_counterpart("an unfused loss; it is one operation with the output layer");
        refused cross_entropy_fusion_impl = one_of("native", &["native", "te"]), "Backend of the fused loss."
            => no_counterpart("Transformer Engine's loss; the fused loss is Bridge's own, \"native\"");
        refused @execution gradient_accumulation_fusion = false, "Fuse weight-gradient accumulation."
            => not_built("weight gradients accumulated into their buffer by the matrix multiplication itself").execution_only();
        /// Fused bias and activation.
        @execution bias_activation_fusion: bool = false
            => no_counterpart("bias and activation separate from the matrix multiplication; they are one operation with it").inert(&["true"]);
        refused @execution bias_dropout_fusion = false, "Fused bias and dropout."
            => not_built("one kernel of bias, dropout and residual").execution_only();
        refused @execution apply_rope_fusion = false, "Fused rotary embedding.", idle_unless(ROTATED)
            => no_counterpart("unfused rotary embedding; it is one operation, fused with attention where possible").inert(&["true"]);
        /// Activation recompute.
        @execution recompute_granularity: Option<RecomputeGranularity> = None, Group::EveryKind;
        /// Layer choice of full recompute.
        @execution recompute_method: Option<RecomputeMethod> = None, needs("model.recompute_granularity = full"),
            given_with("model.recompute_granularity = full"), Group::EveryKind;
        /// Chunk size (uniform) or number of layers (block).
        @execution recompute_num_layers: Option<usize> = None, COUNT, needs("model.recompute_granularity = full"),
            given_with("model.recompute_granularity = full"), Group::EveryKind;
        /// Modules of selective recompute; null is `["core_attn"]`.
        @execution recompute_modules: Option<Vec<String>> = None,
            needs("model.recompute_granularity = selective"), Group::EveryKind;
        refused distribute_saved_activations = false, "Shard saved inputs over tensor-parallel ranks."
            => not_built("the saved inputs of full recompute sharded over tensor-parallel ranks; sequence_parallel shards them").execution_only();
        /// Move what the first `cpu_offloading_num_layers` layers keep for backward to the host,
        /// where the device has memory of its own.
        @execution cpu_offloading: bool = false,
            excludes("model.pipeline_model_parallel_size > 1: layers are counted on one stage"),
            excludes("model.recompute_granularity: what runs again is not kept, so there is nothing to move"),
            excludes("ddp.data_parallel_sharding_strategy = optim_grads_params: every layer is recomputed from its input");
        /// Layers that `cpu_offloading` moves: fewer than there are.
        @execution cpu_offloading_num_layers: usize = 0, idle_unless("model.cpu_offloading"),
            given_with("model.cpu_offloading = true: without layers nothing is moved");
        /// Move what `offload_modules` keep for backward to the host, where the device has memory
        /// of its own.
        @execution fine_grained_activation_offloading: bool = false,
            excludes("model.cpu_offloading: it moves whole layers"),
            excludes("model.recompute_granularity = full: a layer that runs again keeps its input alone"),
            excludes("ddp.data_parallel_sharding_strategy = optim_grads_params: every layer is recomputed from its input");
        /// Modules that are moved: attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm,
        /// expert_fc1, moe_act.
        @execution offload_modules: Vec<String> = Vec::new(), idle_unless("model.fine_grained_activation_offloading");
        /// Standard deviation of initial weights.
        @training init_method_std: f64 = 0.02, Limits::above_zero_to(1000.0),
            idle_unless("model.perform_initialization");
        /// Standard deviation of the initial embedding; null means `init_method_std`.
        @training embedding_init_method_std: Option<f64> = None, Limits::above_zero_to(1000.0),
            idle_unless("model.perform_initialization");
        /// Draw initial weights; false saves time if a checkpoint is loaded.
        @training perform_initialization: bool = true;
        refused @execution use_cpu_initialization = false, "Draw on the host, the same at any tensor-parallel size."
            => no_counterpart("weights drawn on the device; they are drawn on the host, the same in any layout").inert(&["true"]);
        refused init_model_with_meta_device = false, "Allocate lazily."
            => no_counterpart("PyTorch's meta device; sharded parameters are always created one after the other");
        /// Width-transfer parametrization.
        use_mup: bool = false;
        /// Width that learning rate and initial values were found at; null is `hidden_size`.
        mup_base_hidden_size: Option<usize> = None, Limits::SIZE, idle_unless("model.use_mup");
        /// Size of a head at that width, whose root the attention scale is multiplied by; null
        /// multiplies by 1.
        mup_base_head_dim: Option<usize> = None, Limits::SIZE, idle_unless("model.use_mup"),
            idle_unless("model.softmax_scale = null: it is the scale of attention scores");
        /// Power of `kv_channels` that the attention scale is divided by.
        mup_attn_scale_power: f64 = 1.0, Limits::between(0.0, 8.0), idle_unless("model.use_mup"),
            idle_unless("model.softmax_scale = null: it is the scale of attention scores");
        /// Deterministic kernels only.
        @execution deterministic_mode: bool = false
            => no_counterpart("nondeterministic kernels; on the CPU all are deterministic").inert(&["true"]);
        refused use_te_rng_tracker = false, "Transformer Engine's RNG tracker."
            => no_counterpart("Transformer Engine's random states; random numbers are functions of seed and position");
        /// Record forward and backward of a micro-batch once, and replay its kernels: on GPUs, one
        /// launch instead of many.
        @execution cuda_graph_impl: CudaGraphImpl = CudaGraphImpl::None,
            excludes("device = flex | = cpu: it needs a GPU, whose kernels are recorded"),
            excludes("rerun_state_machine.check_for_nan_in_loss: it is true unless it is set to false, upstream's rule"),
            excludes("model.tensor_model_parallel_size > 1: what ranks exchange within a micro-batch is not recorded"),
            excludes("model.pipeline_model_parallel_size > 1: what ranks exchange within a micro-batch is not recorded"),
            excludes("model.context_parallel_size > 1: what ranks exchange within a micro-batch is not recorded"),
            excludes("model.expert_model_parallel_size > 1: what ranks exchange within a micro-batch is not recorded"),
            excludes("ddp.data_parallel_sharding_strategy = optim_grads | = optim_grads_params: what ranks exchange within a micro-batch is not recorded"),
            excludes("model.hidden_dropout > 0: kernels are recorded with the seeds of their masks, so each replay would drop the same"),
            excludes("model.embedding_dropout > 0: kernels are recorded with the seeds of their masks, so each replay would drop the same"),
            excludes("model.attention_dropout > 0: kernels are recorded with the seeds of their masks, so each replay would drop the same"),
            excludes("peft.dropout > 0: kernels are recorded with the seeds of their masks, so each replay would drop the same"),
            excludes("model.num_moe_experts: how many tokens an expert has is read from the device for each micro-batch"),
            excludes("model.mtp_num_layers: its losses are read beside that of the model"),
            excludes("model.fp8: products in 8 bits are not recorded yet"),
            excludes("model.cpu_offloading | model.fine_grained_activation_offloading: a graph moves nothing to the host"),
            excludes("logger.log_max_attention_logit: layers report it beside their output"),
            excludes("tensor_inspect | checkpoint.save_dgrads_interval: a graph hands no tensor out"),
            excludes("dpo | distillation: the host prepares their losses for each micro-batch")
            => not_built("graphs by Transformer Engine; \"local\" records CubeCL's kernels").built(&["local"]).execution_only();
        /// Scope of a recorded graph: full_iteration, which is forward and backward of a
        /// micro-batch.
        @execution cuda_graph_scope: OneOrMany<String> = OneOrMany::One("full".into());
        /// Steps of a run before it records.
        @execution cuda_graph_warmup_steps: usize = 3, idle_unless("model.cuda_graph_impl = local");
        refused restore_modelopt_state = false, "Restore quantization state."
            => not_built("a model quantized by NVIDIA's ModelOpt");

        /// The block of each layer of model.kind = "mamba": M (Mamba-2), S (Mamba), C (short
        /// convolution), * (attention), P (M and * side by side), Z (M whose input a shared
        /// transformer block adds to), - (MLP), E (experts); null means M throughout.
        hybrid_override_pattern: Option<String> = None;
        /// Numbers of a Mamba layer's state for each channel.
        mamba_state_dim: usize = 128, Limits::between(1.0, 65_536.0);
        /// Channels of a head of a Mamba layer.
        mamba_head_dim: usize = 64, Limits::between(1.0, 65_536.0);
        /// Heads of a Mamba layer; null means 2 x `hidden_size` / `mamba_head_dim`.
        mamba_num_heads: Option<usize> = None, COUNT;
        /// Groups of heads that share the inputs and outputs of a state.
        mamba_num_groups: usize = 8, COUNT;
        /// Taps of a Mamba layer's convolution (ours; upstream: an argument of its layer).
        mamba_conv_kernel: usize = 4, Limits::between(1.0, 1024.0);
        /// Bias of that convolution (ours; upstream: an argument of its layer).
        mamba_conv_bias: bool = true;
        /// Biases of a Mamba layer's projections (ours; upstream: an argument of its layer).
        mamba_proj_bias: bool = false;
        /// Tokens that the scan of a Mamba layer works on at once (ours; upstream: an argument of
        /// its layer).
        @execution mamba_chunk_size: usize = 128, Limits::between(1.0, 65_536.0);
        /// Least time step of a Mamba layer (ours; Hugging Face: time_step_limit).
        mamba_time_step_min: f64 = 0.0, Limits::NON_NEGATIVE;
        /// Largest time step of a Mamba layer; null means unlimited (ours; Hugging Face:
        /// time_step_limit).
        mamba_time_step_max: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Bias of the projection out of a Mamba layer; null means `mamba_proj_bias` (ours; Hugging
        /// Face: projectors_bias).
        mamba_out_proj_bias: Option<bool> = None;
        /// A norm of the output of a Mamba layer's scan (ours; upstream: an argument of its layer).
        mamba_rms_norm: bool = true;
        /// Take that norm before its output is gated, not after (ours; upstream: an argument of
        /// its layer).
        mamba_norm_before_gate: bool = false, needs("model.mamba_rms_norm");
        /// Epsilon of that norm; null is `layernorm_epsilon` (ours).
        mamba_norm_epsilon: Option<f64> = None, Limits::above_zero_to(1.0), needs("model.mamba_rms_norm");
        /// Size of the vector that makes the time steps of a layer S; null means a sixteenth of
        /// `hidden_size` (ours).
        mamba_dt_rank: Option<usize> = None, Limits::SIZE;
        /// Factor on the input of a Mamba-2 layer (ours).
        mamba_input_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Factor on the output of a Mamba-2 layer (ours).
        mamba_output_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Factors on the parts of a Mamba-2 layer's projection: gate, values, inputs and outputs
        /// of states, time steps; null means 1 each (ours).
        mamba_projection_multipliers: Option<[f64; 5]> = None, Limits::ABOVE_ZERO;
        /// Factor on attention's input, with model.kind = "mamba" (ours).
        attention_input_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Factor on attention's output, with model.kind = "mamba" (ours).
        attention_output_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Factor on the gate of a feed-forward block, with model.kind = "mamba" (ours).
        mlp_gate_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Factor on the output of a feed-forward block, with model.kind = "mamba" (ours).
        mlp_output_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Taps of a short convolution, layer C (ours; Hugging Face: conv_L_cache).
        short_conv_kernel: usize = 3, Limits::between(1.0, 1024.0);
        /// Biases of a short convolution and of its projections (ours; Hugging Face: conv_bias).
        short_conv_bias: bool = false;

        /// Shared transformer blocks, which layers Z use in turn (ours; Hugging Face:
        /// num_mem_blocks).
        shared_num_blocks: usize = 1, COUNT;
        /// Size between the two matrices of a branch that a layer Z has beside the projections of
        /// its shared block (ours; Hugging Face: adapter_rank).
        shared_adapter_rank: usize = 128, Limits::SIZE;
        /// Such branches beside queries, keys and values too, not only in the MLP (ours; Hugging
        /// Face: use_shared_attention_adapter).
        shared_attention_adapters: bool = false;
    }
}
