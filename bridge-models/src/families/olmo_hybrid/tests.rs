//! Features of OLMo Hybrid beyond OLMo 2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::PositionEmbedding;
use crate::families::testing::read_back;

#[test]
fn sizes_of_linear_attention_follow_from_those_of_the_model() {
    let linear = read_back(&FAMILY, json!({})).linear_attention.unwrap();
    assert_eq!((linear.num_key_heads, linear.num_value_heads), (6, 6));
    assert_eq!((linear.key_head_size, linear.value_head_size), (3, 6));
    assert!(linear.doubles_beta && !linear.layers.includes(3));
    let short = read_back(&FAMILY, json!({ "num_hidden_layers": 2 }));
    assert!(short.linear_layer(0).is_some() && short.linear_layer(1).is_none());
}

#[test]
fn without_a_base_nothing_is_rotated() {
    let positions = |more| read_back(&FAMILY, more).position_embedding;
    let unrotated = json!({ "rope_parameters": { "rope_theta": null, "rope_type": "default" } });
    for more in [json!({ "rope_theta": null }), unrotated] {
        assert_eq!(positions(more), PositionEmbedding::None);
    }
    // transformers rotates without the key.
    for more in
        [json!({}), json!({ "rope_parameters": null }), json!({ "rope_parameters": { "rope_type": "default" } })]
    {
        assert!(matches!(positions(more), PositionEmbedding::Rope(rope) if rope.base == 1e4));
    }
    let rotated = json!({ "rope_parameters": { "rope_theta": 5e5, "rope_type": "default" } });
    assert!(matches!(positions(rotated), PositionEmbedding::Rope(rope) if rope.base == 5e5));
}
