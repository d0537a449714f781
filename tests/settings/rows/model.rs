//! `[model]`: the shape of a dense model, its arithmetic and its precision.

use super::super::contexts::{tiny, tiny_with, watched};
use super::super::row::{AS_IT_IS, Row, row, switch, switch_off};

pub fn rows() -> Vec<Row> {
    [
        sizes(),
        positions(),
        layers(),
        attention(),
        linear_attention(),
        latent(),
        state_space(),
        initial(),
        precision(),
        eight_bits(),
        recompute(),
        offload(),
        graphs(),
    ]
    .concat()
}

const MAMBA: &str = "mamba & model.mamba_head_dim=16 & model.mamba_num_groups=2 & model.gated_linear_unit=false & model.activation_func=gelu";

fn sizes() -> Vec<Row> {
    let derived = tiny_with(&["model.vocab_size=null", "tokenizer.vocab_size=515"]);
    vec![
        row("model.kind", &tiny_with(&["model.position_embedding_type=none"]), &[AS_IT_IS, MAMBA])
            .moves("loss_1 flops shapes slices console"),
        row("model.num_layers", &tiny(), &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        row("model.hidden_size", &tiny(), &[AS_IT_IS, "48"]).moves("loss_1 flops shapes slices"),
        row("model.num_attention_heads", &tiny(), &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        row("model.num_query_groups", &tiny(), &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.ffn_hidden_size", &tiny(), &[AS_IT_IS, "64"]).moves("loss_1 flops shapes slices"),
        row("model.kv_channels", &tiny(), &[AS_IT_IS, "16"]).moves("loss_1 flops shapes slices"),
        row("model.value_channels", &tiny(), &[AS_IT_IS, "12"]).moves("loss_1 flops shapes slices"),
        row("model.seq_length", &tiny(), &[AS_IT_IS, "16"]).moves("loss_1 flops"),
        row("model.vocab_size", &tiny(), &[AS_IT_IS, "640"]).moves("loss_1 flops shapes slices"),
        row("model.make_vocab_size_divisible_by", &derived, &[AS_IT_IS, "100"]).moves("loss_1 flops shapes slices"),
        switch("model.should_pad_vocab", &tiny_with(&["model.vocab_size=515"]))
            .moves("loss_1 flops shapes slices state"),
        switch("model.share_embeddings_and_output_weights", &tiny()).moves("loss_1 shapes slices"),
        row("model.freeze_parameters", &tiny(), &["[]", "['embedding.*', '*.layers.0.*']"])
            .moves("grad_norm_1 flops shapes slices"),
    ]
}

const YARN: &str = "yarn & model.yarn_rotary_scaling_factor=4 & model.yarn_original_max_position_embeddings=256";
/// LongRoPE for heads of eight elements, and samples longer than the original length.
const LONGROPE: &str = "longrope & model.longrope_short_factor=[1.0, 1.5, 2.0, 2.5] & model.longrope_long_factor=[1.0, 2.0, 3.0, 4.0] \
                        & model.longrope_original_max_position_embeddings=4";

fn positions() -> Vec<Row> {
    let scaled = tiny_with(&[
        "model.rope_scaling=true",
        "model.rope_scaling_factor=8",
        "model.rope_scaling_original_max_position_embeddings=16",
    ]);
    let window = tiny_with(&["model.window_size=[3, 0]", "model.window_attn_skip_freq=2"]);
    let of_type = |positions: &str| {
        let settings: Vec<String> =
            format!("model.position_embedding_type={positions}").split(" & ").map(str::to_owned).collect();
        // Scores large enough for a small change of the angles to show.
        let run = tiny_with(&["model.rotary_base=100", "model.init_method_std=0.2"]);
        run.with(&settings.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (yarn, long) = (of_type(YARN), of_type(LONGROPE));
    let short = long.with(&["model.longrope_original_max_position_embeddings=512"]);
    vec![
        row("model.position_embedding_type", &tiny(), &["rope", "learned_absolute", "none", YARN, LONGROPE])
            .moves("loss_1 shapes slices"),
        row("model.rotary_base", &tiny(), &[AS_IT_IS, "500"]).moves("loss_1"),
        row("model.rotary_base_local", &window, &[AS_IT_IS, "500"]).moves("loss_1"),
        row("model.rotary_percent", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.rotary_percent_local", &window.with(&["model.rotary_base_local=500"]), &[AS_IT_IS, "0.5"])
            .moves("loss_1"),
        switch("model.rotary_interleaved", &tiny()).moves("loss_1"),
        switch("model.rotary_reversed", &tiny()).moves("loss_1"),
        row(
            "model.rope_scaling",
            &tiny(),
            &[AS_IT_IS, "true & model.rope_scaling_factor=8 & model.rope_scaling_original_max_position_embeddings=16"],
        )
        .moves("loss_1"),
        row("model.rope_scaling_factor", &scaled, &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.rope_scaling_low_freq_factor", &scaled, &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.rope_scaling_high_freq_factor", &scaled, &[AS_IT_IS, "8"]).moves("loss_1"),
        row("model.rope_scaling_original_max_position_embeddings", &scaled, &[AS_IT_IS, "64"]).moves("loss_1"),
        row("model.seq_len_interpolation_factor", &tiny(), &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.rope_ntk_alpha", &tiny(), &[AS_IT_IS, "8"]).moves("loss_1"),
        row("model.rope_proportional_share", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.yarn_rotary_scaling_factor", &yarn, &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.yarn_original_max_position_embeddings", &yarn, &[AS_IT_IS, "64"]).moves("loss_1"),
        row("model.yarn_beta_fast", &yarn, &[AS_IT_IS, "4"]).moves("loss_1"),
        row("model.yarn_beta_slow", &yarn, &[AS_IT_IS, "4"]).moves("loss_1"),
        row("model.yarn_mscale", &yarn, &["1 & model.yarn_mscale_all_dim=1", "2 & model.yarn_mscale_all_dim=1"])
            .moves("loss_1"),
        row("model.yarn_mscale_all_dim", &yarn, &["1 & model.yarn_mscale=1", "2 & model.yarn_mscale=1"])
            .moves("loss_1"),
        row("model.yarn_correction_range_round_to_int", &yarn, &["true", "false"]).moves("loss_1"),
        row("model.yarn_attention_factor", &yarn, &[AS_IT_IS, "1.5"]).moves("loss_1"),
        row("model.longrope_short_factor", &short, &[AS_IT_IS, "[1.0, 1.0, 1.0, 9.0]"]).moves("loss_1"),
        row("model.longrope_long_factor", &long, &[AS_IT_IS, "[1.0, 1.0, 1.0, 9.0]"]).moves("loss_1"),
        row("model.longrope_original_max_position_embeddings", &long, &[AS_IT_IS, "512"]).moves("loss_1"),
        row("model.longrope_attention_factor", &long, &[AS_IT_IS, "1.5"]).moves("loss_1"),
        row("model.no_rope_freq", &tiny(), &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.no_rope_freq", &tiny(), &["[0, 1]", "[1, 0]"]).moves("loss_1"),
    ]
}

fn state_space() -> Vec<Row> {
    let hybrid = tiny_with(&[
        "model.kind=mamba",
        "model.num_layers=4",
        "model.hybrid_override_pattern=M*--",
        "model.position_embedding_type=none",
        "model.mamba_state_dim=8",
        "model.mamba_head_dim=16",
        "model.mamba_num_groups=2",
    ]);
    let selective = tiny_with(&[
        "model.kind=mamba",
        "model.hybrid_override_pattern=S-",
        "model.position_embedding_type=none",
        "model.mamba_state_dim=8",
        "model.mamba_head_dim=16",
        "model.mamba_num_groups=1",
    ]);
    let short =
        tiny_with(&["model.kind=mamba", "model.hybrid_override_pattern=C-", "model.position_embedding_type=none"]);
    let shared = selective.with(&["model.hybrid_override_pattern=ZZ", "model.shared_adapter_rank=4"]);
    let shared = shared.with(&["model.num_query_groups=4"]);
    vec![
        row("model.hybrid_override_pattern", &hybrid, &[AS_IT_IS, "S*-P", "C*-M", "Z*-Z"])
            .moves("loss_1 flops shapes slices"),
        row("model.hybrid_override_pattern", &hybrid, &[AS_IT_IS, "M*-M", "M**-"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_state_dim", &hybrid, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_head_dim", &hybrid, &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_num_heads", &hybrid, &[AS_IT_IS, "2"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_num_groups", &hybrid, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_conv_kernel", &hybrid, &[AS_IT_IS, "3"]).moves("loss_1 shapes slices"),
        row("model.mamba_conv_bias", &hybrid, &[AS_IT_IS, "false"]).moves("loss_1 shapes slices"),
        switch("model.mamba_proj_bias", &hybrid).moves("grad_norm_1 shapes slices"),
        row("model.mamba_chunk_size", &hybrid, &[AS_IT_IS, "4"]).moves("params"),
        row("model.mamba_time_step_min", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mamba_time_step_max", &hybrid, &[AS_IT_IS, "0.001"]).moves("loss_1"),
        row("model.mamba_out_proj_bias", &hybrid, &["false", "true"]).moves("grad_norm_1 shapes slices"),
        switch_off("model.mamba_rms_norm", &hybrid).moves("loss_1 shapes slices"),
        switch("model.mamba_norm_before_gate", &hybrid).moves("loss_1"),
        row("model.mamba_norm_epsilon", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.shared_num_blocks", &shared, &[AS_IT_IS, "2"]).moves("loss_1 shapes slices"),
        row("model.shared_adapter_rank", &shared, &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        switch("model.shared_attention_adapters", &shared).moves("loss_1 flops shapes slices"),
        row("model.mamba_dt_rank", &selective, &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        row("model.mamba_input_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mamba_output_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mamba_projection_multipliers", &hybrid, &[AS_IT_IS, "[1.0, 2.0, 0.5, 1.0, 1.0]"]).moves("loss_1"),
        row("model.attention_input_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.attention_output_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mlp_gate_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mlp_output_multiplier", &hybrid, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.short_conv_kernel", &short, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        switch("model.short_conv_bias", &short).moves("loss_1 shapes slices"),
    ]
}

fn layers() -> Vec<Row> {
    let ungated = tiny_with(&["model.gated_linear_unit=false"]);
    let streams = tiny_with(&["model.enable_mhc_connections=true", "model.mhc_num_residual_streams=2"]);
    let with_altup = tiny_with(&[
        "model.altup_num_inputs=2",
        "model.hidden_size_per_layer_input=4",
        "model.norm_placement=sandwich",
        "model.laurel_rank=3",
    ]);
    let quick = tiny_with(&["model.activation_func=quick_gelu"]);
    vec![
        row("model.normalization", &tiny(), &["RMSNorm", "LayerNorm"]).moves("loss_1 shapes slices"),
        row("model.normalization", &tiny(), &["RMSNorm", "LayerNormNoBias"]).moves("loss_1"),
        row("model.layernorm_affine", &tiny(), &[AS_IT_IS, "false"]).moves("grad_norm_1 shapes slices"),
        switch("model.embedding_layernorm", &tiny()).moves("loss_1 shapes slices"),
        switch("model.add_output_layer_bias", &tiny()).moves("grad_norm_1 shapes slices"),
        row("model.norm_placement", &tiny(), &["before", "output", "sandwich", "sum"]).moves("loss_1 shapes slices"),
        row("model.block_order", &tiny(), &["sequential", "parallel"]).moves("loss_1"),
        row("model.block_order", &tiny(), &["sequential", "parallel_shared_norm"]).moves("loss_1 shapes slices"),
        row("model.residual_multiplier", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.altup_num_inputs", &with_altup, &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        row("model.altup_active_idx", &with_altup, &[AS_IT_IS, "1"]).moves("loss_1"),
        row("model.laurel_rank", &with_altup, &[AS_IT_IS, "5"]).moves("loss_1 flops shapes slices"),
        row("model.activation_sparsity_pattern", &tiny(), &[AS_IT_IS, "[0.9, 0.0]"]).moves("loss_1"),
        switch("model.enable_mhc_connections", &tiny()).moves("loss_1 flops shapes slices"),
        row("model.mhc_num_residual_streams", &streams, &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        row("model.mhc_sinkhorn_iterations", &streams, &[AS_IT_IS, "0"]).moves("grad_norm_1 flops shapes slices"),
        row("model.mhc_init_gating_factor", &streams, &[AS_IT_IS, "1.0"]).moves("loss_1"),
        row("model.mhc_epsilon", &streams, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.mhc_output_magnitude", &streams, &[AS_IT_IS, "1.0"]).moves("loss_1"),
        switch("model.apply_residual_connection_post_layernorm", &tiny()).moves("loss_1"),
        row("model.embedding_multiplier", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.hidden_size_per_layer_input", &tiny(), &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row(
            "model.vocab_size_per_layer_input",
            &tiny_with(&["model.hidden_size_per_layer_input=4"]),
            &[AS_IT_IS, "100"],
        )
        .moves("loss_1 shapes slices"),
        switch("model.layer_scalar", &tiny()).moves("params shapes slices"),
        row("model.logit_multiplier", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.layernorm_epsilon", &tiny(), &[AS_IT_IS, "1e-2"]).moves("loss_1"),
        switch("model.layernorm_zero_centered_gamma", &tiny()).moves("params"),
        switch("model.add_bias_linear", &tiny()).moves("grad_norm_1 shapes slices"),
        switch("model.add_qkv_bias", &tiny()).moves("grad_norm_1 shapes slices"),
        switch("model.add_proj_bias", &tiny()).moves("grad_norm_1 shapes slices"),
        switch("model.add_mlp_bias", &tiny()).moves("grad_norm_1 shapes slices"),
        row("model.gated_linear_unit", &tiny(), &[AS_IT_IS, "false"]).moves("loss_1 flops shapes slices"),
        row("model.activation_func", &ungated, &["gelu", "gelu_tanh", "silu", "relu", "quick_gelu", "squared_relu"])
            .moves("loss_1"),
        row("model.activation_func", &ungated, &["gelu", "xielu"]).moves("loss_1 shapes slices"),
        // The first product's outputs are about 0.1 large.
        row("model.activation_func_clamp_value", &quick, &[AS_IT_IS, "0.05"]).moves("loss_1"),
        row("model.glu_output_limits", &tiny_with(&["model.activation_func=silu"]), &[AS_IT_IS, "[0.02, 0.0]"])
            .moves("loss_1"),
        row("model.glu_linear_offset", &quick, &[AS_IT_IS, "1"]).moves("loss_1"),
        row("model.mtp_num_layers", &tiny(), &[AS_IT_IS, "1", "2"])
            .moves("grad_norm_1 keys console events flops shapes slices"),
        row("model.mtp_loss_scaling_factor", &tiny_with(&["model.mtp_num_layers=1"]), &[AS_IT_IS, "0.5"])
            .moves("grad_norm_1"),
        row("model.hidden_dropout", &tiny(), &[AS_IT_IS, "0.1"]).moves("loss_1"),
        row("model.embedding_dropout", &tiny(), &[AS_IT_IS, "0.1"]).moves("loss_1"),
        switch("model.calculate_per_token_loss", &tiny().with(&["dataset.eod_mask_loss=true"])).moves("params"),
    ]
}

fn latent() -> Vec<Row> {
    let on = "true & model.num_query_groups=4 & model.q_lora_rank=12 & model.kv_lora_rank=10 & model.qk_head_dim=6 & model.qk_pos_emb_head_dim=4 \
              & model.v_head_dim=8";
    let latent = tiny_with(&[
        "model.multi_latent_attention=true",
        "model.num_query_groups=4",
        "model.q_lora_rank=12",
        "model.kv_lora_rank=10",
        "model.qk_head_dim=6",
        "model.qk_pos_emb_head_dim=4",
        "model.v_head_dim=8",
        // So large that changes of the attention scores alone show in the loss.
        "model.init_method_std=0.2",
    ]);
    let sparse = latent.with(&[
        "model.experimental_attention_variant=dsa",
        "model.dsa_indexer_topk=4",
        "model.dsa_indexer_n_heads=2",
        "model.dsa_indexer_head_dim=8",
    ]);
    let blocks = tiny_with(&[
        "model.experimental_attention_variant=dsa",
        "model.dsa_indexer_topk=4",
        "model.dsa_indexer_n_heads=2",
        "model.dsa_indexer_head_dim=8",
        "model.dsa_indexer_block_size=2",
        "model.init_method_std=0.2",
    ]);
    vec![
        row("model.multi_latent_attention", &tiny_with(&["model.num_query_groups=4"]), &[AS_IT_IS, on])
            .moves("loss_1 flops shapes slices"),
        row("model.q_lora_rank", &latent, &[AS_IT_IS, "16", "null"]).moves("loss_1 flops shapes slices"),
        row("model.kv_lora_rank", &latent, &[AS_IT_IS, "16"]).moves("loss_1 flops shapes slices"),
        row("model.qk_head_dim", &latent, &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        row("model.qk_pos_emb_head_dim", &latent, &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        row("model.v_head_dim", &latent, &[AS_IT_IS, "12"]).moves("loss_1 flops shapes slices"),
        row("model.latent_layernorm_epsilon", &latent.with(&["model.qk_layernorm=true"]), &[AS_IT_IS, "0.5"])
            .moves("loss_1"),
        row("model.latent_kv_multiplier", &latent, &[AS_IT_IS, "2.0"]).moves("loss_1"),
        row("model.experimental_attention_variant", &latent, &[AS_IT_IS, DSA]).moves("loss_1 flops shapes slices"),
        row("model.dsa_indexer_topk", &sparse, &[AS_IT_IS, "6"]).moves("loss_1 flops"),
        row("model.dsa_indexer_n_heads", &sparse, &[AS_IT_IS, "3"]).moves("loss_1 flops shapes slices"),
        row("model.dsa_indexer_head_dim", &sparse, &[AS_IT_IS, "10"]).moves("loss_1 flops shapes slices"),
        row("model.dsa_indexer_loss_coeff", &sparse, &[AS_IT_IS, "1.0"]).moves("grad_norm_1 flops shapes slices"),
        switch("model.dsa_indexer_use_sparse_loss", &sparse.with(&["model.dsa_indexer_loss_coeff=1.0"]))
            .moves("grad_norm_1"),
        switch("model.dsa_indexer_rope_interleaved", &sparse).moves("loss_1"),
        switch("model.dsa_indexer_rope_last", &sparse).moves("loss_1"),
        row("model.dsa_indexer_topk_freq", &sparse, &[AS_IT_IS, "2", "[1, 2]"]).moves("loss_1 flops shapes slices"),
        row("model.dsa_indexer_skip_topk_offset", &sparse.with(&["model.dsa_indexer_topk_freq=2"]), &[AS_IT_IS, "2"])
            .moves("loss_1 flops shapes slices"),
        row("model.dsa_indexer_block_size", &blocks, &[AS_IT_IS, "4"]).moves("loss_1"),
        row("model.dsa_indexer_local_blocks", &blocks, &[AS_IT_IS, "0"]).moves("loss_1"),
        row("model.dsa_indexer_k_norm_epsilon", &sparse, &[AS_IT_IS, "0.5"]).moves("loss_1"),
    ]
}

const DSA: &str = "dsa & model.dsa_indexer_topk=4 & model.dsa_indexer_n_heads=2 & model.dsa_indexer_head_dim=8";

fn attention() -> Vec<Row> {
    let compressed = tiny_with(&[
        "model.num_query_groups=1",
        "model.window_size=[3, 0]",
        "model.compressed_attention_rates=[0, 4]",
        "model.q_lora_rank=12",
        "model.attention_output_rank=6",
        "model.init_method_std=0.2",
    ]);
    let window = tiny_with(&["model.window_size=[3, 0]"]);
    let large = tiny_with(&["model.init_method_std=0.2", "model.query_scale_length=4"]);
    let scaled = large.with(&["model.query_scale_beta=0.5"]);
    vec![
        switch("model.qk_layernorm", &tiny()).moves("loss_1 shapes slices"),
        row("model.qk_layernorm_scope", &tiny_with(&["model.qk_layernorm=true"]), &["head", "projection", "each_head"])
            .moves("loss_1 shapes slices"),
        switch(
            "model.qk_layernorm_after_rope",
            &tiny_with(&["model.qk_layernorm=true", "model.normalization=LayerNorm", "model.init_method_std=0.2"]),
        )
        .moves("loss_1"),
        row("model.compressed_attention_rates", &compressed, &[AS_IT_IS, "[4, 0]", "[2, 2]"])
            .moves("loss_1 flops shapes slices"),
        row("model.attention_output_groups", &compressed, &[AS_IT_IS, "2"]).moves("loss_1 flops shapes slices"),
        row("model.attention_output_rank", &compressed, &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        switch("model.attention_output_gate", &tiny()).moves("loss_1 flops shapes slices"),
        row(
            "model.attention_output_gate_form",
            &tiny_with(&["model.attention_output_gate=true"]),
            &["fused", "element", "head"],
        )
        .moves("loss_1 flops shapes slices"),
        row("model.clip_qkv", &tiny(), &[AS_IT_IS, "0.01"]).moves("loss_1"),
        row("model.query_scale_beta", &large, &[AS_IT_IS, "0.5"]).moves("loss_1 console"),
        row("model.query_scale_length", &scaled, &[AS_IT_IS, "2"]).moves("loss_1"),
        row("model.query_scale_first_position", &scaled, &[AS_IT_IS, "1"]).moves("loss_1"),
        switch("model.query_scale_unrotated_only", &scaled).moves("loss_1"),
        switch("model.qk_l2_norm", &tiny()).moves("loss_1"),
        switch("model.v_l2_norm", &tiny()).moves("loss_1"),
        switch("model.attention_k_eq_v", &tiny()).moves("loss_1 flops shapes slices"),
        row("model.num_kv_shared_layers", &tiny(), &[AS_IT_IS, "1"]).moves("loss_1 flops shapes slices"),
        switch("model.use_double_wide_mlp", &tiny_with(&["model.num_kv_shared_layers=1"]))
            .moves("loss_1 flops shapes slices"),
        switch("model.attention_sinks", &tiny()).moves("loss_1 shapes slices"),
        row("model.attention_value_scale", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.window_num_attention_heads", &window, &[AS_IT_IS, "8"]).moves("loss_1 flops shapes slices"),
        row("model.window_num_query_groups", &window, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.window_kv_channels", &window, &[AS_IT_IS, "16"]).moves("loss_1 flops shapes slices"),
        row("model.window_value_channels", &window, &[AS_IT_IS, "12"]).moves("loss_1 flops shapes slices"),
        row("model.window_attention_sinks", &window, &[AS_IT_IS, "true"]).moves("loss_1 shapes slices"),
        row("model.window_attention_sinks", &window.with(&["model.attention_sinks=true"]), &[AS_IT_IS, "false"])
            .moves("loss_1 shapes slices"),
        row("model.attention_dropout", &tiny(), &[AS_IT_IS, "0.1"]).moves("loss_1"),
        row("model.softmax_scale", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.attn_logit_softcapping", &tiny(), &[AS_IT_IS, "0.01"]).moves("loss_1"),
        row("model.final_logit_softcapping", &tiny(), &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.window_size", &tiny(), &[AS_IT_IS, "[3, 0]"]).moves("loss_1 flops"),
        switch("model.window_chunks", &window).moves("loss_1"),
        row("model.window_attn_skip_freq", &window, &[AS_IT_IS, "2", "[0, 1]"]).moves("loss_1 flops"),
    ]
}

const DELTA: &str = "gated_delta_net & model.linear_attention_freq=2 & model.linear_key_head_dim=8 & model.linear_value_head_dim=8 \
                     & model.linear_num_key_heads=2 & model.linear_num_value_heads=4";

fn linear_attention() -> Vec<Row> {
    let of = |variant: &str| {
        tiny_with(&[
            &format!("model.experimental_attention_variant={variant}"),
            "model.linear_attention_freq=2",
            "model.linear_key_head_dim=8",
            "model.linear_value_head_dim=8",
            "model.linear_num_key_heads=2",
            "model.linear_num_value_heads=4",
        ])
    };
    let (delta, kimi) = (of("gated_delta_net"), of("kimi_delta_attention"));
    vec![
        row("model.experimental_attention_variant", &tiny(), &[AS_IT_IS, DELTA]).moves("loss_1 flops shapes slices"),
        row("model.experimental_attention_variant", &delta, &["gated_delta_net", "kimi_delta_attention"])
            .moves("loss_1 flops shapes slices"),
        row("model.linear_attention_freq", &delta, &[AS_IT_IS, "[0, 1]", "[1, 1]"]).moves("loss_1 flops shapes slices"),
        row("model.linear_conv_kernel_dim", &delta, &[AS_IT_IS, "3"]).moves("loss_1 shapes slices"),
        row("model.linear_key_head_dim", &delta, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.linear_value_head_dim", &delta, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.linear_num_key_heads", &delta, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.linear_num_value_heads", &delta, &[AS_IT_IS, "2"]).moves("loss_1 flops shapes slices"),
        switch("model.linear_allow_neg_eigval", &delta).moves("loss_1"),
        row("model.linear_gate_rank", &kimi, &[AS_IT_IS, "4"]).moves("loss_1 flops shapes slices"),
        row("model.linear_decay_bound", &kimi, &[AS_IT_IS, "-2.0"]).moves("loss_1"),
        row("model.linear_norm_epsilon", &delta, &[AS_IT_IS, "0.1"]).moves("loss_1"),
        row("model.linear_norm_placement", &delta, &["before", "output", "sandwich", "sum"])
            .moves("loss_1 shapes slices"),
    ]
}

fn initial() -> Vec<Row> {
    let mup = tiny_with(&["model.use_mup=true"]);
    vec![
        switch("model.use_mup", &tiny()).moves("loss_1"),
        row("model.mup_base_hidden_size", &mup, &[AS_IT_IS, "8"]).moves("loss_1"),
        row("model.mup_base_head_dim", &mup, &[AS_IT_IS, "4"]).moves("loss_1"),
        row("model.mup_attn_scale_power", &mup, &[AS_IT_IS, "0.5"]).moves("loss_1"),
        row("model.init_method_std", &tiny(), &[AS_IT_IS, "0.05"]).moves("loss_1"),
        row("model.embedding_init_method_std", &tiny(), &[AS_IT_IS, "0.05"]).moves("loss_1"),
        row("model.perform_initialization", &tiny(), &[AS_IT_IS, "false"]).moves("loss_1"),
    ]
}

fn precision() -> Vec<Row> {
    vec![
        switch("model.bf16", &tiny()).moves("loss_1 shapes slices"),
        switch("model.fp32_residual_connection", &tiny_with(&["mixed_precision=bf16_mixed"])).moves("loss_1"),
        switch("model.fp32_residual_connection", &tiny_with(&["mixed_precision=fp16_mixed"])).moves("loss_1"),
        switch("model.fp16", &tiny()).moves("loss_1 console files learning_rate loss_scale shapes skipped slices"),
        row(
            "model.params_dtype",
            &tiny(),
            &["float32", "bfloat16 & model.bf16=true", "float16 & model.fp16=true", "bfloat16", "uint8"],
        )
        .moves("exit"),
    ]
}

/// The same settings of `[model]` and of `[mixed_precision]`.
macro_rules! eight_bits {
    ($section:literal) => {{
        let off = tiny_with(&["model.num_layers=3"]);
        let on = off.with(&[concat!($section, ".fp8=hybrid"), concat!($section, ".fp8_recipe=tensorwise")]);
        let delayed = off.with(&[concat!($section, ".fp8=hybrid"), concat!($section, ".fp8_recipe=delayed")]);
        let longer = delayed.with(&[concat!($section, ".fp8_amax_history_len=2")]);
        let edges = on.with(&[
            concat!($section, ".first_last_layers_bf16=true"),
            concat!($section, ".num_layers_at_start_in_bf16=1"),
            concat!($section, ".num_layers_at_end_in_bf16=1"),
        ]);
        vec![
            row(
                concat!($section, ".fp8"),
                &off,
                &[
                    "null",
                    concat!("e4m3 & ", $section, ".fp8_recipe=tensorwise"),
                    concat!("hybrid & ", $section, ".fp8_recipe=mxfp8"),
                ],
            )
            .moves("loss_1"),
            row(concat!($section, ".fp8_recipe"), &on, &[AS_IT_IS, "mxfp8", "blockwise", "delayed"])
                .moves("loss_1 shapes slices"),
            row(concat!($section, ".fp8_margin"), &delayed, &[AS_IT_IS, "9"]).moves("params"),
            row(concat!($section, ".fp8_amax_history_len"), &delayed, &[AS_IT_IS, "3"]).moves("params shapes slices"),
            row(concat!($section, ".fp8_amax_compute_algo"), &longer, &[AS_IT_IS, "max"]).moves("params"),
            switch_off(concat!($section, ".fp8_wgrad"), &on).moves("grad_norm_1"),
            row(
                concat!($section, ".first_last_layers_bf16"),
                &on,
                &[AS_IT_IS, concat!("true & ", $section, ".num_layers_at_start_in_bf16=1")],
            )
            .moves("loss_1"),
            row(concat!($section, ".num_layers_at_start_in_bf16"), &edges, &[AS_IT_IS, "0"]).moves("loss_1"),
            row(concat!($section, ".num_layers_at_end_in_bf16"), &edges, &[AS_IT_IS, "0"]).moves("loss_1"),
        ]
    }};
}

/// Products of 8-bit operands.
pub fn eight_bits() -> Vec<Row> {
    [eight_bits!("model"), eight_bits!("mixed_precision")].concat()
}

/// On a CPU offloading only prints a warning; `tests/device` runs the moves.
fn offload() -> Vec<Row> {
    let three = tiny_with(&["model.num_layers=3"]);
    let layers = three.with(&["model.cpu_offloading=true"]);
    let modules = three.with(&["model.fine_grained_activation_offloading=true"]);
    vec![
        row("model.cpu_offloading", &three, &[AS_IT_IS, "true & model.cpu_offloading_num_layers=1"])
            .moves("console")
            .holds(1, "console", "the first layer keeps is in host memory anyway"),
        row("model.cpu_offloading_num_layers", &layers, &["1", "2"]).moves("console").holds(
            1,
            "console",
            "layers keep is in host memory anyway",
        ),
        row(
            "model.fine_grained_activation_offloading",
            &three,
            &[AS_IT_IS, "true & model.offload_modules=['core_attn']"],
        )
        .moves("console")
        .holds(1, "console", "what core_attn keep is in host memory anyway"),
        row("model.offload_modules", &modules, &["['core_attn']", "['core_attn', 'attn_proj']"])
            .moves("console")
            .holds(1, "console", "core_attn, attn_proj"),
    ]
}

/// A CPU records no kernels, so graphs are refused there; `tests/device` runs them.
fn graphs() -> Vec<Row> {
    let without = "has no effect without model.cuda_graph_impl";
    vec![
        row("model.cuda_graph_impl", &tiny(), &["none", "local & model.cuda_graph_scope=full_iteration"])
            .moves("exit")
            .holds(1, "stderr", "needs a GPU"),
        row("model.cuda_graph_scope", &tiny(), &[AS_IT_IS, "full_iteration"])
            .moves("console")
            .holds(1, "console", without),
        row("model.cuda_graph_warmup_steps", &tiny(), &[AS_IT_IS, "5"]).moves("console").holds(1, "console", without),
    ]
}

/// Recompute changes no bit of a result; a run holds less while it trains.
fn recompute() -> Vec<Row> {
    let large = watched(&tiny_with(&["model.seq_length=512", "model.num_layers=8", "train.micro_batch_size=4"]));
    let large = large.with(&["train.train_iters=1", "scheduler.lr_warmup_iters=0", "validation.eval_iters=0"]);
    let full = large.with(&["model.recompute_granularity=full", "model.recompute_num_layers=2"]);
    let block = full.with(&["model.recompute_method=block"]);
    let granularity = "model.recompute_granularity=selective";
    let selective = large.with(&[granularity, "model.ffn_hidden_size=256"]);
    let experts = selective.with(&[
        "model.num_moe_experts=4",
        "model.moe_ffn_hidden_size=256",
        "model.moe_shared_expert_intermediate_size=256",
    ]);
    let latent = large.with(&[
        granularity,
        "model.multi_latent_attention=true",
        "model.num_query_groups=4",
        "model.q_lora_rank=8",
        "model.kv_lora_rank=8",
        "model.qk_head_dim=48",
        "model.qk_pos_emb_head_dim=16",
        "model.v_head_dim=64",
    ]);
    vec![
        row(
            "model.recompute_granularity",
            &large,
            &[AS_IT_IS, "full & model.recompute_method=uniform & model.recompute_num_layers=1"],
        )
        .lowers("peak"),
        row(
            "model.recompute_granularity",
            &large.with(&["model.ffn_hidden_size=256"]),
            &[AS_IT_IS, "selective & model.recompute_modules=['mlp']"],
        )
        .lowers("peak"),
        row("model.recompute_method", &full, &["block", "uniform"]).lowers("peak"),
        row("model.recompute_num_layers", &block, &["1", "8"]).lowers("peak"),
        row("model.recompute_modules", &selective, &["['core_attn']", "['core_attn', 'mlp']"]).lowers("peak"),
        row("model.recompute_modules", &experts, &["['core_attn']", "['core_attn', 'moe_act']"]).lowers("peak"),
        row("model.recompute_modules", &experts, &["['core_attn']", "['core_attn', 'shared_experts']"]).lowers("peak"),
        row("model.recompute_modules", &latent, &["['mlp']", "['mlp', 'mla_up_proj']"]).lowers("peak"),
    ]
}
