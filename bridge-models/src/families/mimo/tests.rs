//! Features of MiMo beyond Qwen 2. Import, export and reference values are tested for all families
//! in `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::families::testing::{read_back, wrong_key};

#[test]
fn layers_of_multi_token_prediction_are_left_out() {
    let config = read_back(&FAMILY, json!({ "num_nextn_predict_layers": 1, "attention_bias": true }));
    assert!(config.qkv_bias && !config.proj_bias);
    assert_eq!(config.mtp_num_layers, 0);
    assert_eq!(wrong_key(&FAMILY, json!({ "attention_bias": false })), "attention_bias");
}
