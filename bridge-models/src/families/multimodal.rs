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
    sized("step3p5", "step3p5", [128_815, 4096, 11_264, 45, 64, 8], &[]),
    sized("llama", "llama", [32_000, 4096, 11_008, 32, 32, 0], &[]),
    sized("llama4_text", "llama4_text", [202_048, 5120, 0, 48, 40, 0], &[]),
    sized("mistral", "mistral", [32_000, 4096, 14_336, 32, 32, 8], &[]),
    sized("gemma", "gemma", [256_000, 3072, 24_576, 28, 16, 16], &[("head_dim", "256")]),
    sized("gemma2", "gemma2", [256_000, 2304, 9216, 26, 8, 4], &[]),
    sized("gemma3_text", "gemma3_text", [262_208, 2304, 9216, 26, 8, 4], &[]),
    sized("gemma4_text", "gemma4_text", [262_144, 2304, 9216, 30, 8, 0], &[]),
    sized("qwen2", "qwen2", [151_936, 4096, 22_016, 32, 32, 32], &[]),
    sized("qwen3", "qwen3", [151_936, 4096, 22_016, 32, 32, 32], &[("head_dim", "128")]),
    sized(
        "qwen2_vl_text",
        "qwen2",
        [152_064, 8192, 29_568, 80, 64, 8],
        &[("rms_norm_eps", "1e-5"), ("rope_theta", "1000000.0"), ("max_window_layers", "80")],
    ),
    sized(
        "qwen2_5_vl_text",
        "qwen2",
        [152_064, 8192, 29_568, 80, 64, 8],
        &[("rms_norm_eps", "1e-5"), ("rope_theta", "1000000.0"), ("max_window_layers", "80")],
    ),
    sized(
        "qwen3_vl_text",
        "qwen3",
        [151_936, 4096, 22_016, 32, 32, 32],
        &[("head_dim", "128"), ("max_position_embeddings", "128000"), ("rope_theta", "500000.0")],
    ),
    sized(
        "qwen3_vl_moe_text",
        "qwen3_moe",
        [151_936, 2048, 5632, 24, 16, 16],
        &[
            ("max_position_embeddings", "128000"),
            ("moe_intermediate_size", "1408"),
            ("num_experts_per_tok", "4"),
            ("rope_theta", "500000.0"),
        ],
    )
    .always(&[("norm_topk_prob", "true"), ("use_sliding_window", "false")]),
    sized("ministral3", "ministral3", [131_072, 4096, 14_336, 34, 32, 8], &[]),
    sized("minimax_m3_vl_text", "minimax_m3_vl_text", [200_064, 6144, 3072, 60, 64, 4], &[]),
    sized("qwen3_moe", "qwen3_moe", [151_936, 2048, 6144, 24, 32, 4], &[]),
    sized("qwen3_5_text", "qwen3_5_text", [248_320, 4096, 12_288, 32, 16, 4], &[("head_dim", "256")]),
    sized("qwen3_5_moe_text", "qwen3_5_moe_text", [248_320, 2048, 0, 40, 16, 2], &[("head_dim", "256")]),
    sized("deepseek_v3", "deepseek_v3", [129_280, 7168, 18_432, 61, 128, 128], &[]),
    text("kimi_k2", "deepseek_v3", &[]),
    sized("exaone4", "exaone4", [102_400, 4096, 16_384, 32, 32, 32], &[]),
    sized("exaone4_5_text", "exaone4", [102_400, 4096, 16_384, 32, 32, 32], &[]),
    sized(
        "glm4v_text",
        "glm4",
        [151_552, 4096, 13_696, 40, 32, 2],
        &[("max_position_embeddings", "32768"), ("rms_norm_eps", "1e-5"), ("partial_rotary_factor", "1.0")],
    )
    .always(&[("attention_bias", "true")])
    .sharing_width(),
    sized(
        "glm4v_moe_text",
        "glm4_moe",
        [151_424, 4096, 10_944, 46, 96, 8],
        &[
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

/// [`text`] with the sizes that [`TextClass`] names; zero for a size that the class has under
/// no such key.
const fn sized(
    model_type: &'static str,
    family: &'static str,
    sizes: [usize; 6],
    absent: &'static [(&'static str, &'static str)],
) -> TextClass {
    TextClass::new(model_type, family, absent).with_sizes(sizes)
}
