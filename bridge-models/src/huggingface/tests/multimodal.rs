//! Multimodal folders: their language models, and all that is carried along.

use serde_json::json;

use super::*;

/// One with the names of modules of transformers 5, and one with those of published files.
const MODELS: [&str; 2] = ["gemma3_vl_text", "mistral3_text"];

/// The folder after import and export.
fn exported(folder: &Path) -> tempfile::TempDir {
    let bridge = AutoBridge::from_hf(folder).unwrap();
    let chunk = bridge.build(&device()).unwrap();
    let output = tempfile::tempdir().unwrap();
    bridge.to_hf(output.path(), &[chunk.as_ref()], &ExportOptions::default()).unwrap();
    output
}

fn settings_in(folder: &Path) -> Map<String, Value> {
    json::parse_table(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

/// A copy of a golden model with other settings and tensors.
fn copy_with(name: &str, settings: &Map<String, Value>, change: impl Fn(&mut Vec<Raw>)) -> tempfile::TempDir {
    let folder = changed_copy(name, change);
    std::fs::write(folder.path().join("config.json"), serde_json::to_vec(settings).unwrap()).unwrap();
    folder
}

fn error_with(name: &str, settings: &Map<String, Value>) -> String {
    HfModel::open(copy_with(name, settings, |_| {}).path()).unwrap_err().to_string()
}

#[test]
fn a_language_model_agrees_with_transformers() {
    for name in MODELS {
        let report = crate::verify(&golden(name), &golden(name).join("golden.safetensors"), &device()).unwrap();
        assert!(report.passed && report.gradients.is_some() && report.step_losses.is_some(), "{name}: {report:?}");
    }
}

#[test]
fn an_export_has_all_tensors_and_settings_of_the_folder() {
    for name in MODELS {
        let output = exported(&golden(name));
        let bytes = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
        assert_eq!(bytes(output.path()), bytes(&golden(name)), "{name}");
        let (before, after) = (settings_of(name), settings_in(output.path()));
        for (key, value) in before.iter().filter(|(key, _)| !["text_config", "dtype"].contains(&key.as_str())) {
            assert_eq!(after.get(key), Some(value), "{name}: {key}");
        }
        let (before, after) = (&before["text_config"], &after["text_config"]);
        for (key, value) in before.as_object().unwrap() {
            let is_same = match value.as_f64() {
                Some(number) => after[key].as_f64() == Some(number),
                None => after[key] == *value,
            };
            assert!(is_same || ["rope_parameters", "dtype"].contains(&key.as_str()), "{name}: {key}: {}", after[key]);
        }
        let [before, after] = [&golden(name), output.path()].map(|folder| HfModel::open(folder).unwrap());
        assert_eq!((before.config(), before.unused_warning()), (after.config(), None));
    }
}

#[test]
fn published_names_are_kept() {
    for name in MODELS {
        let hub = std::fs::read_to_string(golden(name).join("hub.json")).unwrap();
        let hub = json::parse_table(&hub).unwrap();
        let folder = changed_copy(name, |tensors| {
            for raw in tensors {
                let inside = raw.name.replace("model.language_model.", "language_model.model.");
                let outside = inside.replace("model.vision", "vision").replace("model.multi", "multi");
                raw.name = outside;
            }
        });
        let tensors = raw_tensors(&exported(folder.path()).path().join("model.safetensors"));
        let names: Vec<&str> = tensors.iter().map(|raw| raw.name.as_str()).collect();
        let mut expected: Vec<&str> = hub.keys().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(names, expected, "{name}");
        let shapes = tensors.iter().map(|raw| json!(raw.shape));
        assert!(shapes.eq(names.iter().map(|name| hub[*name][0].clone())), "{name}");
    }
}

#[test]
fn other_tensors_keep_their_bits_and_their_type() {
    let tower = Raw {
        name: "vision_tower.odd".into(),
        dtype: safetensors::Dtype::BF16,
        shape: vec![3],
        bytes: vec![0xff, 0xff, 1, 0, 0x80, 0x7f],
    };
    let counts = Raw { name: "steps".into(), dtype: safetensors::Dtype::I64, shape: vec![], bytes: vec![7; 8] };
    let folder = changed_copy("mistral3_text", |tensors| tensors.extend([tower.clone(), counts.clone()]));
    let tensors = raw_tensors(&exported(folder.path()).path().join("model.safetensors"));
    assert!(tensors.contains(&tower) && tensors.contains(&counts));

    let snapshot = AutoBridge::from_hf(folder.path()).unwrap().snapshot().unwrap();
    let carried = snapshot.groups.iter().find(|group| group.name == CARRIED_GROUP).unwrap();
    assert!(carried.tensors.iter().any(|tensor| tensor.name == "steps"));
    assert!(carried.tensors.iter().all(|tensor| !tensor.name.starts_with("language_model.")));
    assert!(snapshot.run.files.contains_key(LAYOUT));

    let eight = Raw { name: "tower".into(), dtype: safetensors::Dtype::F8_E4M3, shape: vec![1], bytes: vec![1] };
    let folder = changed_copy("mistral3_text", |tensors| tensors.push(eight.clone()));
    let error = HfModel::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("`tower`") && error.contains("F8_E4M3"), "{error}");
}

#[test]
fn a_language_model_of_no_family_is_named() {
    let mut settings = settings_of("gemma3_vl_text");
    settings["text_config"]["model_type"] = "qwen9_text".into();
    let error = error_with("gemma3_vl_text", &settings);
    assert!(error.contains("text_config.model_type") && error.contains("qwen9_text"), "{error}");
    settings.insert("text_config".into(), Value::Null);
    assert!(error_with("gemma3_vl_text", &settings).contains("text_config: expected a table"));

    // The class computes logits without the cap.
    let mut settings = settings_of("gemma3_vl_text");
    settings["text_config"]["final_logit_softcapping"] = json!(30.0);
    let error = error_with("gemma3_vl_text", &settings);
    assert!(error.contains("text_config.final_logit_softcapping") && error.contains("30.0"), "{error}");

    let mut settings = settings_of("gemma3_vl_text");
    settings["text_config"]["hidden_size"] = json!("wide");
    assert!(error_with("gemma3_vl_text", &settings).contains("text_config.hidden_size"));
    settings["text_config"]["hidden_size"] = json!(32);
    settings["text_config"]["attention_sinks_of_its_own"] = json!(4);
    let folder = copy_with("gemma3_vl_text", &settings, |_| {});
    let warning = HfModel::open(folder.path()).unwrap().unused_warning().unwrap();
    assert!(warning.contains("`text_config.attention_sinks_of_its_own` = 4"), "{warning}");
    // A key that only the whole model has.
    settings.insert("quantization_config".into(), json!({ "quant_method": "gptq" }));
    let error = error_with("gemma3_vl_text", &settings);
    assert!(error.contains("config.json: quantization_config.quant_method"), "{error}");
}

#[test]
fn absent_settings_have_the_values_of_the_class() {
    let mut settings = settings_of("gemma3_vl_text");
    let text = settings["text_config"].as_object_mut().unwrap();
    for key in ["num_attention_heads", "num_key_value_heads", "head_dim"] {
        text.remove(key);
    }
    let multimodal = crate::huggingface::multimodal::Multimodal::new(&settings).unwrap().unwrap();
    let config = parse(&multimodal.text(true)).unwrap();
    assert_eq!((config.num_attention_heads, config.num_query_groups, config.kv_channels), (8, 4, 256));
}

#[test]
fn a_head_is_tied_as_the_whole_model_says() {
    let is_tied = |settings: &Map<String, Value>| {
        let model = HfModel::open(copy_with("mistral3_text", settings, |_| {}).path());
        model.map(|model| model.config().share_embeddings_and_output_weights)
    };
    let mut settings = settings_of("mistral3_text");
    settings["text_config"].as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(!is_tied(&settings).unwrap());
    // The class ties by default, but not a head with values of its own.
    settings.remove("tie_word_embeddings");
    assert!(!is_tied(&settings).unwrap());
    settings.insert("tie_word_embeddings".into(), json!(true));
    assert!(is_tied(&settings).unwrap_err().to_string().contains("language_model.lm_head.weight"));
}

#[test]
fn a_flat_file_has_the_settings_of_both() {
    let mut settings = settings_of("qwen2");
    let theta = settings["rope_parameters"]["rope_theta"].clone();
    settings.remove("rope_parameters");
    let axes = json!({ "type": "mrope", "mrope_section": [2, 1, 1] });
    settings.extend(
        [
            ("model_type", json!("qwen2_vl")),
            ("architectures", json!(["Qwen2VLForConditionalGeneration"])),
            ("vision_config", json!({ "depth": 2 })),
            ("image_token_id", json!(3)),
            ("rope_theta", theta),
            ("rope_scaling", axes.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let tower = Raw { name: "visual.a".into(), dtype: safetensors::Dtype::F32, shape: vec![1], bytes: vec![1; 4] };
    let folder = copy_with("qwen2", &settings, |tensors| tensors.push(tower.clone()));
    let report = crate::verify(folder.path(), &golden("qwen2").join("golden.safetensors"), &device()).unwrap();
    assert!(report.passed, "{report:?}");
    assert_eq!(HfModel::open(folder.path()).unwrap().unused_warning(), None);
    let output = exported(folder.path());
    let bytes = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
    assert_eq!(bytes(output.path()), bytes(folder.path()));
    let after = settings_in(output.path());
    for key in ["model_type", "architectures", "vision_config", "image_token_id", "rope_scaling", "hidden_size"] {
        assert_eq!(after[key], settings[key], "{key}");
    }
    assert_eq!(after["rope_parameters"]["mrope_section"], axes["mrope_section"]);
}

#[test]
fn experts_stay_in_one_tensor_if_transformers_has_no_other_names() {
    let mut text = settings_of("qwen3_moe");
    text.insert("model_type".into(), json!("qwen3_vl_moe_text"));
    let settings = json!({
        "model_type": "qwen3_vl_moe",
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
    });
    let folder = copy_with("qwen3_moe", settings.as_object().unwrap(), |tensors| {
        for raw in tensors.iter_mut() {
            raw.name = raw.name.replace("model.", "model.language_model.");
        }
    });
    let model = HfModel::open(folder.path()).unwrap();
    let chunk = model.build(&device()).unwrap();
    let original = Some(model.settings().clone());
    let options = ExportOptions { original, carried: model.carried().cloned(), ..ExportOptions::default() };
    let output = tempfile::tempdir().unwrap();
    to_hf(output.path(), model.family(), model.config(), &[chunk.as_ref()], &options).unwrap();
    let bytes = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
    assert_eq!(bytes(output.path()), bytes(folder.path()));
}
