//! Features of Bailing Hybrid beyond Kimi Linear. Import, export and reference values are tested
//! for all families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::read_back;

#[test]
fn decays_have_a_bound_unless_a_switch_is_off() {
    let bound = |more: serde_json::Value| {
        let mut all = json!({ "num_key_value_heads": 6, "num_expert_group": 8 });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read_back(&FAMILY, all).linear_attention.unwrap().decay_bound
    };
    assert_eq!(bound(json!({})), Some(-5.0));
    assert_eq!(bound(json!({ "kda_lower_bound": -3.0 })), Some(-3.0));
    assert_eq!(bound(json!({ "kda_safe_gate": false, "kda_lower_bound": -3.0 })), None);
}
