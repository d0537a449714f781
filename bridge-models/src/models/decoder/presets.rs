//! Shapes of the benchmark: the same models as the PyTorch peer's, by the same names.

use super::{KIND, MAMBA_KIND};
use bridge_core::config::{
    Activation, AttentionVariant, NormPlacement, Normalization, OneOrMany, PeftConfig, PeftKind, PositionEmbeddingType,
    RouterScoreFunction, TransformerConfig,
};

/// A named model with the batch it is measured at.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Name of the preset.
    pub name: &'static str,
    /// The kind of model.
    pub kind: &'static str,
    /// The `[model]` section; `vocab_size` is used as it is, without padding.
    pub transformer: TransformerConfig,
    /// Sequences a step.
    pub micro_batch_size: usize,
    /// `[peft]`: the adapter that is trained in place of the model.
    pub peft: Option<PeftConfig>,
}

/// The names [`preset`] knows.
pub const NAMES: [&str; 16] = [
    "nano-gpt2",
    "nano-llama",
    "nano-gemma",
    "moe-8x",
    "smol-135m",
    "smol-135m-full",
    "smol-135m-lora",
    "smol-135m-dora",
    "gpt2-124m",
    "llama-1b",
    "llama-8b-4l",
    "mamba2-20m",
    "qwen3-next-20m",
    "lfm2-20m",
    "glm4-moe-8x",
    "gemma4-20m",
];

/// The preset called `name`.
pub fn preset(name: &str) -> Option<Preset> {
    let known = NAMES.into_iter().find(|known| *known == name)?;
    let shape = match name {
        "mamba2-20m" => return Some(mamba2_20m(known)),
        "qwen3-next-20m" => return Some(of_nano(known, KIND, qwen3_next())),
        "lfm2-20m" => return Some(of_nano(known, MAMBA_KIND, lfm2())),
        "gemma4-20m" => return Some(of_nano(known, KIND, gemma4())),
        "glm4-moe-8x" => return Some(of_nano(known, KIND, glm4_moe())),
        "nano-gpt2" => Shape { heads: [6, 6], ..Shape::NANO },
        "nano-llama" => Shape { heads: [6, 2], ffn_hidden_size: 1024, style: Style::Llama, ..Shape::NANO },
        "nano-gemma" => Shape { heads: [6, 2], ffn_hidden_size: 1024, style: Style::Gemma, ..Shape::NANO },
        "moe-8x" => Shape { heads: [6, 2], ffn_hidden_size: 512, style: Style::Mixtral, ..Shape::NANO },
        "smol-135m" | "smol-135m-full" | "smol-135m-lora" | "smol-135m-dora" => Shape {
            style: Style::Llama,
            num_layers: 30,
            hidden_size: 576,
            ffn_hidden_size: 1536,
            heads: [9, 3],
            vocab_size: 49152,
            seq_length: 512,
            micro_batch_size: 1,
            tied: true,
        },
        "gpt2-124m" => Shape {
            style: Style::Gpt2,
            num_layers: 12,
            hidden_size: 768,
            ffn_hidden_size: 3072,
            heads: [12, 12],
            vocab_size: 50257,
            seq_length: 256,
            micro_batch_size: 2,
            tied: true,
        },
        // Llama 3.2 1B.
        "llama-1b" => Shape {
            num_layers: 16,
            hidden_size: 2048,
            ffn_hidden_size: 8192,
            micro_batch_size: 4,
            tied: true,
            ..Shape::LLAMA_3
        },
        // Four layers of Llama 3 8B.
        "llama-8b-4l" => Shape::LLAMA_3,
        _ => return None,
    };
    let (transformer, micro_batch_size) = (shape.transformer(), shape.micro_batch_size);
    let peft = match name {
        "smol-135m-lora" => Some(all_linear(PeftKind::Lora)),
        "smol-135m-dora" => Some(all_linear(PeftKind::Dora)),
        _ => None,
    };
    Some(Preset { name: known, kind: KIND, transformer, micro_batch_size, peft })
}

/// A branch of rank 16 at each linear layer of a Llama but the head, as the peer has it: queries,
/// keys, values, gate and its other half apart.
fn all_linear(kind: PeftKind) -> PeftConfig {
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let target_modules = targets.map(str::to_owned).to_vec();
    PeftConfig { kind, dim: 16, alpha: Some(32), target_modules, ..PeftConfig::default() }
}

/// Mamba-2 with twelve layers.
fn mamba2_20m(name: &'static str) -> Preset {
    let transformer = TransformerConfig {
        num_layers: 12,
        hidden_size: 384,
        num_attention_heads: 1,
        seq_length: 256,
        vocab_size: Some(8192),
        share_embeddings_and_output_weights: false,
        position_embedding_type: PositionEmbeddingType::None,
        normalization: Normalization::RmsNorm,
        layernorm_epsilon: 1e-5,
        hidden_dropout: 0.0,
        attention_dropout: 0.0,
        hybrid_override_pattern: Some("M".repeat(12)),
        mamba_state_dim: 64,
        mamba_num_groups: 1,
        ..TransformerConfig::default()
    };
    Preset { name, kind: MAMBA_KIND, transformer, micro_batch_size: 8, peft: None }
}

/// A preset of kind `kind` with the batch of the nano models.
fn of_nano(name: &'static str, kind: &'static str, transformer: TransformerConfig) -> Preset {
    Preset { name, kind, transformer, micro_batch_size: Shape::NANO.micro_batch_size, peft: None }
}

/// A Llama as wide as the nano models, with a feed-forward width of 1024.
fn nano_llama() -> TransformerConfig {
    Shape { heads: [6, 2], ffn_hidden_size: 1024, style: Style::Llama, ..Shape::NANO }.transformer()
}

/// Qwen3-Next, two of eight experts a token.
fn qwen3_next() -> TransformerConfig {
    TransformerConfig {
        layernorm_epsilon: 1e-6,
        layernorm_zero_centered_gamma: true,
        qk_layernorm: true,
        rotary_percent: 0.25,
        attention_output_gate: true,
        experimental_attention_variant: Some(AttentionVariant::GatedDeltaNet),
        linear_attention_freq: Some(OneOrMany::Many(vec![1, 1, 1, 0, 1, 1])),
        linear_key_head_dim: 32,
        linear_value_head_dim: 32,
        linear_num_key_heads: 6,
        linear_num_value_heads: 12,
        moe_shared_expert_intermediate_size: Some(256),
        moe_shared_expert_gate: true,
        ..with_experts(256, nano_llama())
    }
}

/// LFM2: two layers with short convolutions to one with attention.
fn lfm2() -> TransformerConfig {
    TransformerConfig {
        num_layers: 12,
        rotary_base: 1_000_000.0,
        qk_layernorm: true,
        hybrid_override_pattern: Some("C-C-*-".repeat(2)),
        ..nano_llama()
    }
}

/// GLM-4.5, two of eight experts a token behind a dense layer.
fn glm4_moe() -> TransformerConfig {
    TransformerConfig {
        qk_layernorm: true,
        rotary_percent: 0.5,
        moe_layer_freq: OneOrMany::Many(vec![0, 1, 1, 1, 1, 1]),
        moe_router_score_function: RouterScoreFunction::Sigmoid,
        moe_router_enable_expert_bias: true,
        moe_router_bias_update_rate: 0.0,
        moe_shared_expert_intermediate_size: Some(384),
        ..with_experts(384, nano_llama())
    }
}

/// Gemma 4: two windowed layers to a full one, whose heads are twice as large; the last two layers
/// use keys and values of those before.
fn gemma4() -> TransformerConfig {
    let gemma = Shape { heads: [6, 1], ffn_hidden_size: 1024, style: Style::Gemma, tied: true, ..Shape::NANO };
    TransformerConfig {
        layernorm_zero_centered_gamma: false,
        kv_channels: Some(128),
        window_kv_channels: Some(64),
        window_num_query_groups: Some(2),
        window_attn_skip_freq: Some(OneOrMany::One(3)),
        v_l2_norm: true,
        attention_k_eq_v: true,
        num_kv_shared_layers: 2,
        use_double_wide_mlp: true,
        softmax_scale: Some(1.0),
        rope_proportional_share: Some(0.25),
        hidden_size_per_layer_input: Some(32),
        layer_scalar: true,
        final_logit_softcapping: Some(30.0),
        ..gemma.transformer()
    }
}

/// Eight experts of this width, two a token.
fn with_experts(width: usize, model: TransformerConfig) -> TransformerConfig {
    TransformerConfig {
        num_moe_experts: Some(8),
        moe_ffn_hidden_size: Some(width),
        moe_router_topk: 2,
        moe_grouped_gemm: true,
        ..model
    }
}

/// Whose layers a model has.
#[derive(Clone, Copy)]
enum Style {
    Gpt2,
    Llama,
    /// Gemma 3, with windows of 128 tokens.
    Gemma,
    /// Mixtral, two of eight experts a token.
    Mixtral,
}

/// A row of the peer's table.
struct Shape {
    style: Style,
    num_layers: usize,
    hidden_size: usize,
    ffn_hidden_size: usize,
    /// Query heads, key/value heads.
    heads: [usize; 2],
    vocab_size: usize,
    seq_length: usize,
    micro_batch_size: usize,
    tied: bool,
}

impl Shape {
    const NANO: Self = Self {
        style: Style::Gpt2,
        num_layers: 6,
        hidden_size: 384,
        ffn_hidden_size: 1536,
        heads: [6, 6],
        vocab_size: 8192,
        seq_length: 256,
        micro_batch_size: 8,
        tied: false,
    };

    const LLAMA_3: Self = Self {
        style: Style::Llama,
        num_layers: 4,
        hidden_size: 4096,
        ffn_hidden_size: 14336,
        heads: [32, 8],
        vocab_size: 128_256,
        seq_length: 2048,
        micro_batch_size: 2,
        tied: false,
    };

    fn transformer(&self) -> TransformerConfig {
        let common = TransformerConfig {
            num_layers: self.num_layers,
            hidden_size: self.hidden_size,
            ffn_hidden_size: Some(self.ffn_hidden_size),
            num_attention_heads: self.heads[0],
            num_query_groups: Some(self.heads[1]),
            seq_length: self.seq_length,
            vocab_size: Some(self.vocab_size),
            share_embeddings_and_output_weights: self.tied,
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            layernorm_epsilon: 1e-5,
            ..TransformerConfig::default()
        };
        let llama = |common| TransformerConfig {
            position_embedding_type: PositionEmbeddingType::Rope,
            normalization: Normalization::RmsNorm,
            add_bias_linear: false,
            gated_linear_unit: true,
            activation_func: Activation::Silu,
            ..common
        };
        match self.style {
            Style::Gpt2 => TransformerConfig {
                position_embedding_type: PositionEmbeddingType::LearnedAbsolute,
                normalization: Normalization::LayerNorm,
                add_bias_linear: true,
                activation_func: Activation::GeluTanh,
                ..common
            },
            Style::Llama => llama(common),
            Style::Mixtral => with_experts(self.ffn_hidden_size, llama(common)),
            Style::Gemma => TransformerConfig {
                rotary_base: 1_000_000.0,
                rotary_base_local: Some(10_000.0),
                layernorm_epsilon: 1e-6,
                layernorm_zero_centered_gamma: true,
                norm_placement: NormPlacement::Sandwich,
                qk_layernorm: true,
                embedding_multiplier: (self.hidden_size as f64).sqrt(),
                activation_func: Activation::GeluTanh,
                window_size: Some([127, 0]),
                window_attn_skip_freq: Some(OneOrMany::One(6)),
                ..llama(common)
            },
        }
    }
}
