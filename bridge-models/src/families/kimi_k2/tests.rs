//! Features of Kimi K2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use super::FAMILY;
use crate::families::{has_other_class, with_model_type};

#[test]
fn files_name_deepseeks_class_or_the_familys_own() {
    assert_eq!(with_model_type("kimi_k2"), Some(&FAMILY));
    assert!(has_other_class("kimi_k2", "DeepseekV3ForCausalLM"));
    assert!(!has_other_class("deepseek_v3", "KimiK2ForCausalLM"));
}
