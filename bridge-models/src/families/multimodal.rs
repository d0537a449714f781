//! Multimodal models whose language model is one of the families: their classes, and those of
//! their `text_config` that a family stands for.

use crate::huggingface::multimodal::{Layout, MultimodalClass, TextClass};

/// Classes of transformers with a `text_config`. Absent values are those of the configuration's
/// class.
pub(crate) const CLASSES: &[MultimodalClass] = &[
    class("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text").tied(),
    class("gemma3n", "Gemma3nForConditionalGeneration", "gemma3n_text").tied().scaling_logits(),
    class("gemma4", "Gemma4ForConditionalGeneration", "gemma4_text").tied().scaling_logits(),
    // A text is the answer to an empty prompt, and so it is causal.
    class("paligemma", "PaliGemmaForConditionalGeneration", "gemma")
        .tied()
        .scaling_logits()
        .ignoring(&["use_bidirectional_attention", "num_image_tokens"]),
    class("mistral3", "Mistral3ForConditionalGeneration", "mistral").tied(),
    class("llava", "LlavaForConditionalGeneration", "llama").tied_as_text(),
    class("llava_next", "LlavaNextForConditionalGeneration", "llama"),
    class("llava_onevision", "LlavaOnevisionForConditionalGeneration", "qwen2").tied_as_text(),
    class("internvl", "InternVLForConditionalGeneration", "qwen2").tied(),
    class("idefics3", "Idefics3ForConditionalGeneration", "llama").called(Layout::TextModel),
    class("smolvlm", "SmolVLMForConditionalGeneration", "llama").called(Layout::TextModel),
    class("qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_text").tied_as_text().maybe_flat(),
    class("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text").tied_as_text().maybe_flat(),
    class("qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    class("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text").with_stacked_experts(),
    class("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    class("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    class("kimi_k25", "Kimi_K25ForConditionalGeneration", "deepseek_v3")
        .tied()
        .also_named(&["KimiK25ForConditionalGeneration"]),
    class("glm4v", "Glm4vForConditionalGeneration", "glm4v_text").tied_as_text(),
    class("glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text").tied_as_text(),
    class("exaone4_5", "Exaone4_5_ForConditionalGeneration", "exaone4"),
    class("llama4", "Llama4ForConditionalGeneration", "llama4_text").tied_as_text().called(Layout::Whole),
    class("step3p7", "Step3p7ForConditionalGeneration", "step3p5"),
    class("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl_text").tied_as_text(),
    class("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_vl_moe_text").tied(),
];

/// Classes of `text_config` with the family that computes the same for text, and with their values
/// of absent keys. `text_config` lacks all keys that have these values, sizes too; a class that is
/// not here has the name of its family and all keys.
pub(crate) const TEXT_CLASSES: &[TextClass] = &[
    text(
        "llama",
        "llama",
        &[
            ("vocab_size", "32000"),
            ("hidden_size", "4096"),
            ("intermediate_size", "11008"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "32"),
        ],
    ),
    text(
        "mistral",
        "mistral",
        &[
            ("vocab_size", "32000"),
            ("hidden_size", "4096"),
            ("intermediate_size", "14336"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "8"),
        ],
    ),
    text(
        "gemma",
        "gemma",
        &[
            ("vocab_size", "256000"),
            ("hidden_size", "3072"),
            ("intermediate_size", "24576"),
            ("num_hidden_layers", "28"),
            ("num_attention_heads", "16"),
            ("num_key_value_heads", "16"),
            ("head_dim", "256"),
        ],
    ),
    text(
        "gemma2",
        "gemma2",
        &[
            ("vocab_size", "256000"),
            ("hidden_size", "2304"),
            ("intermediate_size", "9216"),
            ("num_hidden_layers", "26"),
            ("num_attention_heads", "8"),
            ("num_key_value_heads", "4"),
        ],
    ),
    text(
        "gemma3_text",
        "gemma3_text",
        &[
            ("vocab_size", "262208"),
            ("hidden_size", "2304"),
            ("intermediate_size", "9216"),
            ("num_hidden_layers", "26"),
            ("num_attention_heads", "8"),
            ("num_key_value_heads", "4"),
        ],
    ),
    text(
        "qwen2",
        "qwen2",
        &[
            ("vocab_size", "151936"),
            ("hidden_size", "4096"),
            ("intermediate_size", "22016"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "32"),
        ],
    ),
    text(
        "qwen3",
        "qwen3",
        &[
            ("vocab_size", "151936"),
            ("hidden_size", "4096"),
            ("intermediate_size", "22016"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "32"),
            ("head_dim", "128"),
        ],
    ),
    text("qwen2_vl_text", "qwen2", QWEN2_VL),
    text("qwen2_5_vl_text", "qwen2", QWEN2_VL),
    text(
        "qwen3_vl_text",
        "qwen3",
        &[
            ("vocab_size", "151936"),
            ("hidden_size", "4096"),
            ("intermediate_size", "22016"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "32"),
            ("head_dim", "128"),
            ("max_position_embeddings", "128000"),
            ("rope_theta", "500000.0"),
        ],
    ),
    text(
        "qwen3_vl_moe_text",
        "qwen3_moe",
        &[
            ("vocab_size", "151936"),
            ("hidden_size", "2048"),
            ("intermediate_size", "5632"),
            ("num_hidden_layers", "24"),
            ("num_attention_heads", "16"),
            ("num_key_value_heads", "16"),
            ("max_position_embeddings", "128000"),
            ("moe_intermediate_size", "1408"),
            ("num_experts_per_tok", "4"),
            ("rope_theta", "500000.0"),
        ],
    )
    .always(&[("norm_topk_prob", "true"), ("use_sliding_window", "false")]),
    text(
        "ministral3",
        "ministral3",
        &[
            ("vocab_size", "131072"),
            ("hidden_size", "4096"),
            ("intermediate_size", "14336"),
            ("num_hidden_layers", "34"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "8"),
        ],
    ),
    text(
        "qwen3_moe",
        "qwen3_moe",
        &[
            ("vocab_size", "151936"),
            ("hidden_size", "2048"),
            ("intermediate_size", "6144"),
            ("num_hidden_layers", "24"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "4"),
        ],
    ),
    text(
        "qwen3_5_text",
        "qwen3_5_text",
        &[
            ("vocab_size", "248320"),
            ("hidden_size", "4096"),
            ("intermediate_size", "12288"),
            ("num_hidden_layers", "32"),
            ("num_attention_heads", "16"),
            ("num_key_value_heads", "4"),
            ("head_dim", "256"),
        ],
    ),
    text(
        "qwen3_5_moe_text",
        "qwen3_5_moe_text",
        &[
            ("vocab_size", "248320"),
            ("hidden_size", "2048"),
            ("num_hidden_layers", "40"),
            ("num_attention_heads", "16"),
            ("num_key_value_heads", "2"),
            ("head_dim", "256"),
        ],
    ),
    text(
        "deepseek_v3",
        "deepseek_v3",
        &[
            ("vocab_size", "129280"),
            ("hidden_size", "7168"),
            ("intermediate_size", "18432"),
            ("num_hidden_layers", "61"),
            ("num_attention_heads", "128"),
            ("num_key_value_heads", "128"),
        ],
    ),
    text("kimi_k2", "deepseek_v3", &[]),
    text("exaone4", "exaone4", EXAONE4),
    text("exaone4_5_text", "exaone4", EXAONE4),
    text(
        "glm4v_text",
        "glm4",
        &[
            ("vocab_size", "151552"),
            ("hidden_size", "4096"),
            ("intermediate_size", "13696"),
            ("num_hidden_layers", "40"),
            ("num_attention_heads", "32"),
            ("num_key_value_heads", "2"),
            ("max_position_embeddings", "32768"),
            ("rms_norm_eps", "1e-5"),
            ("partial_rotary_factor", "1.0"),
        ],
    )
    .always(&[("attention_bias", "true")])
    .sharing_width(),
    text(
        "glm4v_moe_text",
        "glm4_moe",
        &[
            ("vocab_size", "151424"),
            ("hidden_size", "4096"),
            ("intermediate_size", "10944"),
            ("num_hidden_layers", "46"),
            ("num_attention_heads", "96"),
            ("num_key_value_heads", "8"),
            ("max_position_embeddings", "65536"),
            ("rms_norm_eps", "1e-5"),
            ("attention_bias", "true"),
            ("n_routed_experts", "128"),
            ("n_shared_experts", "1"),
            ("num_experts_per_tok", "8"),
            ("moe_intermediate_size", "1408"),
            ("routed_scaling_factor", "1.0"),
            ("first_k_dense_replace", "1"),
            ("n_group", "1"),
            ("topk_group", "1"),
            ("norm_topk_prob", "true"),
        ],
    )
    .always(&[("use_qk_norm", "false")]),
];

const QWEN2_VL: &[(&str, &str)] = &[
    ("vocab_size", "152064"),
    ("hidden_size", "8192"),
    ("intermediate_size", "29568"),
    ("num_hidden_layers", "80"),
    ("num_attention_heads", "64"),
    ("num_key_value_heads", "8"),
    ("rms_norm_eps", "1e-5"),
    ("rope_theta", "1000000.0"),
    ("max_window_layers", "80"),
];

const EXAONE4: &[(&str, &str)] = &[
    ("vocab_size", "102400"),
    ("hidden_size", "4096"),
    ("intermediate_size", "16384"),
    ("num_hidden_layers", "32"),
    ("num_attention_heads", "32"),
    ("num_key_value_heads", "32"),
];

const fn class(model_type: &'static str, architecture: &'static str, text: &'static str) -> MultimodalClass {
    MultimodalClass::new(model_type, architecture, text)
}

const fn text(
    model_type: &'static str,
    family: &'static str,
    absent: &'static [(&'static str, &'static str)],
) -> TextClass {
    TextClass::new(model_type, family, absent)
}
