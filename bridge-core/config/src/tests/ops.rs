//! Show, compare, describe, summarise.

use super::super::{Data, Detail, Format, Kinds, Node, RecipeConfig, diff, diff_from_defaults, json_schema};
use super::{tiny, tiny_raw};

#[test]
fn show_writes_only_what_differs() {
    let raw = tiny_raw();
    let text = raw.recipe().to_text(Format::Toml, Detail::NonDefault);
    assert!(text.contains("num_layers = 2\n") && !text.contains("adam_eps"), "{text}");
    assert!(!text.contains("[ddp]"), "{text}");
    let all = raw.recipe().to_text(Format::Toml, Detail::All);
    assert!(all.contains("adam_eps = 1e-8\n") && all.contains("[ddp]"), "{all}");
    let empty = RecipeConfig::default();
    assert_eq!(empty.to_text(Format::Toml, Detail::NonDefault), "");
    assert_eq!(empty.to_text(Format::Yaml, Detail::NonDefault), "{}\n");
}

#[test]
fn diff_lists_keys_with_both_values() {
    let left = tiny(&[]).expect("accepted");
    let right = tiny(&["optimizer.lr=0.5", "mixed_precision=bf16_mixed", "ft={}"]).expect("accepted");
    let differences = diff(left.recipe(), right.recipe());
    let find = |key: &str| differences.iter().find(|d| d.key == key).expect("listed");
    assert_eq!(find("optimizer.lr").left, Some(Data::Float(0.001).into()));
    assert_eq!(find("optimizer.lr").right, Some(Data::Float(0.5).into()));
    assert_eq!(find("mixed_precision").left, Some(Data::Null.into()));
    assert_eq!(find("ft.simulated_fault_type").left, None);
    assert!(diff(left.recipe(), left.recipe()).is_empty());
    let json = serde_json::to_value(find("optimizer.lr")).expect("serialises");
    assert_eq!(json, serde_json::json!({"key": "optimizer.lr", "left": 0.001, "right": 0.5}));
    let json = serde_json::to_value(find("mixed_precision")).expect("serialises");
    assert_eq!(json, serde_json::json!({"key": "mixed_precision", "left": null, "right": "bf16_mixed"}));
    let from_defaults = diff_from_defaults(tiny_raw().recipe());
    assert!(from_defaults.iter().any(|d| d.key == "dataset.kind" && d.left == Some(Node::string("gpt"))));
}

#[test]
fn the_schema_describes_every_field() {
    let schema = json_schema(&Kinds::builtin());
    let model = &schema["properties"]["model"];
    assert_eq!(model["additionalProperties"], false);
    assert_eq!(model["properties"]["kind"]["enum"][0], "gpt");
    let heads = &model["properties"]["num_attention_heads"];
    assert_eq!((&heads["type"], &heads["default"]), (&"integer".into(), &0.into()));
    assert!(heads["description"].as_str().is_some_and(|d| d.contains("Query heads")));
    let beta = &schema["properties"]["optimizer"]["properties"]["adam_beta1"];
    assert_eq!((&beta["minimum"], &beta["exclusiveMaximum"]), (&0.0.into(), &1.0.into()));
    let style = &schema["properties"]["scheduler"]["properties"]["lr_decay_style"];
    assert_eq!(style["enum"][4], "WSD");
    let undescribed: Vec<_> = schema["properties"]
        .as_object()
        .expect("an object")
        .values()
        .flat_map(|section| section["properties"].as_object().into_iter().flatten())
        .filter(|(_, property)| property["description"].as_str().is_none_or(str::is_empty))
        .collect();
    assert!(undescribed.is_empty(), "{undescribed:?}");
}

#[test]
fn the_summary_has_upstreams_form() {
    let text = tiny(&["model.bf16=true"]).expect("accepted").log_non_default_values();
    let rule = "=".repeat(70);
    assert!(text.starts_with(&format!("\n{rule}\nConfiguration Summary (Non-Default Values vs Defaults)\n{rule}\n\n[optimizer] Non-default values (vs defaults):\n  bf16: true  (default: false)\n")), "{text}");
    assert!(text.contains("\n  hidden_size: 64  (default: 0)\n"), "{text}");
    let other = format!("{0}\nOther Configuration Values:\n{0}\n[train]:\n", "-".repeat(70));
    assert!(text.contains(&other), "{text}");
    assert!(text.ends_with(&format!("[rng]:\n  data_parallel_random_init: false\n  inference_rng_tracker: false\n  seed: 1234\n  te_rng_tracker: false\n{rule}")), "{text}");
}
