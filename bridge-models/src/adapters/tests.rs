//! Adapters of the `peft` library: reference values, and refusals.

use std::path::{Path, PathBuf};

use bridge_core::config::{Format, World, load_text};
use bridge_core::train::check_inputs;
use burn::tensor::Device;
use serde_json::{Value, json};

use super::PeftAdapter;
use super::peft_format::ModuleNames;
use crate::families::with_model_type;
use crate::huggingface::{HfModel, Layout};
use crate::verify_adapter;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peft")
}

#[test]
fn every_golden_adapter_agrees_with_peft() {
    let folders: Vec<_> = std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(folders.len() >= 8, "{folders:?}");
    for folder in folders {
        let (base, adapter) = (folder.join("base"), folder.join("adapter"));
        let reference = folder.join("golden.safetensors");
        let report = verify_adapter(&base, &adapter, &reference, &Device::flex()).unwrap();
        let figures = [
            &report.logits,
            &report.merged_logits,
            &report.loss,
            &report.gradients,
            &report.step_losses,
            &report.step_grad_norms,
        ];
        for figure in figures {
            let figure = figure.as_ref().expect("the reference has every figure");
            assert!(figure.passed, "{}: {figure:?}", folder.display());
        }
        assert!(report.passed && report.losses.len() == 10);
    }
}

/// Error of an adapter whose settings went through `change`.
fn opened(name: &str, change: impl Fn(&mut Value)) -> Result<PeftAdapter, String> {
    let folder = tempfile::tempdir().unwrap();
    let adapter = fixtures().join(name).join("adapter");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapter.join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("adapter_config.json");
    let mut settings: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut settings);
    std::fs::write(&path, settings.to_string()).unwrap();
    let base = HfModel::open(&fixtures().join(name).join("base")).unwrap();
    PeftAdapter::open(folder.path(), &base).map_err(|error| error.to_string())
}

#[test]
fn what_would_change_the_function_is_refused_by_name() {
    let cases = [
        ("peft_type", json!("LOHA")),
        ("bias", json!("all")),
        ("task_type", json!("SEQ_CLS")),
        ("lora_bias", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("layer_replication", json!([[0, 1]])),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["experts.gate_up_proj"])),
        ("alora_invocation_tokens", json!([3])),
        ("use_qalora", json!(true)),
        ("megatron_config", json!({})),
        ("r", json!(0)),
        ("r", Value::Null),
        ("lora_alpha", json!("many")),
        ("use_dora", json!(1)),
        ("target_modules", Value::Null),
        ("target_modules", json!("(q_proj")),
        ("target_modules", json!(["no_such_module"])),
        ("modules_to_save", json!(["no_such_module"])),
        ("modules_to_save", json!(["embed_tokens", "model.no_such_module"])),
        ("modules_to_save", json!(["q_proj"])),
        ("layers_to_transform", json!("first")),
        ("rank_pattern", json!({"q_proj": "two"})),
        ("something_new", json!(true)),
    ];
    for (key, value) in cases {
        let error = opened("lora", |settings| settings[key] = value.clone()).expect_err(key);
        assert!(error.contains(key) && error.contains("adapter_config.json"), "{key}: {error}");
    }
}

#[test]
fn tensors_are_those_of_the_settings() {
    let refused = |key: &str, value: Value| opened("lora", |settings| settings[key] = value.clone()).expect_err(key);
    let error = refused("r", json!(7));
    assert!(error.contains("q_proj.lora_A.weight`: expected shape [7, 64], found [8, 64]"), "{error}");
    let error = refused("target_modules", json!(["q_proj", "down_proj"]));
    assert!(error.contains("v_proj.lora_A.weight`: expected no such tensor"), "{error}");
    let error = refused("layers_to_transform", json!([0]));
    assert!(error.contains("layers.1.self_attn.q_proj.lora_A.weight`: expected no such tensor"), "{error}");
    let error = refused("use_dora", json!(true));
    assert!(error.contains("lora_magnitude_vector`: expected shape [64], found no such tensor"), "{error}");
    // A pattern over which a matcher could go back and forth for ever.
    let endless = refused("target_modules", json!("(.*.*)*(.*.*)*(?=!)x(.*)\\1q_proj"));
    assert!(endless.contains("target_modules") || endless.contains("pattern"), "{endless}");
}

#[test]
fn names_are_those_of_the_whole_path_or_its_end() {
    for targets in [
        json!(["self_attn.q_proj", "v_proj", "mlp.down_proj"]),
        json!(".*(q|v|down)_proj"),
        json!(r"model\.layers\.\d+\.(self_attn\.(q_proj|v_proj)|mlp\.down_proj)"),
    ] {
        opened("lora", |settings| settings["target_modules"] = targets.clone()).unwrap();
    }
    opened("lora", |settings| settings["exclude_modules"] = json!(["q_proj"])).expect_err("q_proj is left out");
}

#[test]
fn names_of_no_layer_are_found_when_a_recipe_is_checked() {
    let recipe = include_str!("../../../recipes/tiny.toml");
    let registry = crate::registry();
    let problems = |overrides: &[&str]| {
        let given = ["checkpoint.pretrained_checkpoint=nowhere"];
        let overrides: Vec<String> = given.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
        let config = load_text(recipe, Format::Toml, &overrides, &registry.kinds(), &World::SINGLE).unwrap();
        check_inputs(&config, &registry).expect_err("there is no base").to_string()
    };
    for (overrides, name) in [
        (["peft.target_modules=[\"all-linear\"]"], "peft: `all-linear` names no linear layer"),
        (["peft.target_modules=[\"linear_qkv\", \"linear_vkq\"]"], "peft: `linear_vkq` names no linear layer"),
        (["peft.modules_to_save=[\"nothing\"]"], "peft: `nothing` in modules_to_save"),
        (["model.freeze_parameters=[\"nothing.*\"]"], "model.freeze_parameters: "),
    ] {
        let said = problems(&overrides);
        assert!(said.contains(&format!("error: {name}")), "{overrides:?}: {said}");
    }
    for overrides in [["peft.target_modules=[\"q_proj\"]"], ["model.freeze_parameters=[\"embedding.*\"]"]] {
        let said = problems(&overrides);
        assert!(said.ends_with("1 configuration error"), "{overrides:?}: {said}");
    }
}

/// A copy of a golden adapter for the base in `base`, with these tensors and settings besides.
fn with_tensors(
    base: &Path,
    settings: Value,
    tensors: &[(&str, Vec<usize>, f32)],
) -> Result<(tempfile::TempDir, PeftAdapter), String> {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |shape: &[usize], value: f32| {
        vec![value; shape.iter().product()].iter().flat_map(|v| v.to_le_bytes()).collect()
    };
    let all: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape, value)| (format!("base_model.model.{name}"), shape.clone(), bytes(shape, *value)))
        .collect();
    let views = all.iter().map(|(name, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(folder.path().join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    let mut all = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 3 });
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    std::fs::write(folder.path().join("adapter_config.json"), all.to_string()).unwrap();
    let opened = PeftAdapter::open(folder.path(), &HfModel::open(base).unwrap()).map_err(|error| error.to_string());
    opened.map(|adapter| (folder, adapter))
}

/// The golden base without an adapter.
fn base_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden").join(name)
}

#[test]
fn a_tied_embedding_is_trained_in_full_with_its_head() {
    let base = base_of("llama_tied");
    let config = HfModel::open(&base).unwrap().config().clone();
    let rows = vec![config.vocab_size, config.hidden_size];
    let heads = config.num_attention_heads * config.kv_channels;
    let a = ("model.layers.0.self_attn.q_proj.lora_A.weight", vec![2, config.hidden_size], 0.5);
    let b = ("model.layers.0.self_attn.q_proj.lora_B.weight", vec![heads, 2], 0.25);
    let embedding = |value| ("model.embed_tokens.weight", rows.clone(), value);
    let head = |value| ("lm_head.weight", rows.clone(), value);
    let opened = |saved: &[&str], ties: bool, more: &[(&'static str, Vec<usize>, f32)]| {
        let settings = json!({
            "target_modules": ["q_proj"], "layers_to_transform": 0, "modules_to_save": saved, "ensure_weight_tying": ties,
        });
        with_tensors(&base, settings, &[&[a.clone(), b.clone()], more].concat())
    };
    let both = ["model.embed_tokens", "lm_head"];
    let (_folder, adapter) = opened(&both, false, &[embedding(0.75), head(0.75)]).unwrap();
    let values = adapter.values().unwrap();
    assert!(values["embedding.word_embeddings.weight"].values.iter().all(|value| *value == 0.75));
    // `peft` saves the tied pair like this, with either name.
    for saved in ["embed_tokens", "lm_head"] {
        opened(&[saved], true, &[embedding(0.75), head(0.75)]).unwrap();
    }
    // `peft` adds the whole name of a module to the one that was asked for.
    opened(&["embed_tokens", "model.embed_tokens"], true, &[embedding(0.75), head(0.75)]).unwrap();
    let error = opened(&both, false, &[embedding(0.75), head(0.5)]).unwrap_err();
    assert!(
        error.contains("found \"lm_head.weight\"") && error.contains("with the values of the embedding"),
        "{error}"
    );
    for (saved, tensor) in [("embed_tokens", embedding(0.75)), ("lm_head", head(0.75))] {
        let error = opened(&[saved], false, &[tensor]).unwrap_err();
        assert!(error.contains("the embedding and the head together"), "{error}");
    }
    let error = opened(&both, false, &[embedding(0.75)]).unwrap_err();
    assert!(error.contains("lm_head.weight`: expected shape"), "{error}");
}

#[test]
fn targets_without_a_branch_here_are_named() {
    for (base, module) in [
        ("llama", "lm_head"),
        ("llama_tied", "lm_head"),
        ("llama", "model.embed_tokens"),
        ("gpt2", "lm_head"),
        ("gpt_neox", "embed_out"),
    ] {
        let base = base_of(base);
        let names = ["base_layer.weight", "lora_A.weight", "lora_B.weight"].map(|end| format!("{module}.{end}"));
        let tensors = names.each_ref().map(|name| (name.as_str(), vec![2, 3], 0.5));
        for targets in [json!([module]), json!(["q_proj", "c_attn", "query_key_value", module]), json!(module)] {
            let error = with_tensors(&base, json!({ "target_modules": targets }), &tensors).unwrap_err();
            let parts = ["adapter_config.json: target_modules: ", "output layer", &format!("found \"{module}\"")];
            assert!(parts.iter().all(|part| error.contains(part)), "{targets}: {error}");
        }
    }
}

#[test]
fn modules_are_named_as_transformers_does_or_as_files_do() {
    let base = base_of("nemotron_h");
    let model = HfModel::open(&base).unwrap();
    let name = |end: &str| {
        let stored = model.weight_map().entries().iter().flat_map(|entry| &entry.tensors);
        let found = stored.map(|stored| &stored.name).find(|name| name.ends_with(end)).unwrap();
        found.split_once('.').unwrap().1.strip_suffix(".weight").unwrap().to_owned()
    };
    let (projection, last) = (name(".in_proj.weight"), name("norm_f.weight"));
    let config = model.config();
    let width = config.hidden_size;
    let listed = config.linear_layers();
    let outputs = listed.iter().find(|listed| listed.layer.name.ends_with("in_proj")).unwrap().layer.outputs;
    for (prefix, other) in [("model", "backbone"), ("backbone", "model")] {
        let names = [format!("{prefix}.{projection}.lora_A.weight"), format!("{prefix}.{projection}.lora_B.weight")];
        let norm = format!("{prefix}.{last}.weight");
        let tensors =
            [(names[0].as_str(), vec![2, width], 0.5), (&names[1], vec![outputs, 2], 0.25), (&norm, vec![width], 0.75)];
        let opened = |prefix: &str| {
            let pattern = format!("{prefix}.{projection}").replace('.', r"\.");
            let settings = json!({ "target_modules": pattern, "modules_to_save": [format!("{prefix}.{last}")] });
            with_tensors(&base, settings, &tensors)
        };
        let (_folder, adapter) = opened(prefix).unwrap();
        assert!(adapter.values().unwrap()["decoder.final_layernorm.weight"].values.iter().all(|value| *value == 0.75));
        let error = opened(other).unwrap_err();
        assert!(error.contains("target_modules") && error.contains(&format!("such as {prefix}.")), "{error}");
    }
}

#[test]
fn names_in_files_are_changed_where_transformers_has_others() {
    let changed = |family: &str, name: &str| {
        let names = ModuleNames::new(with_model_type(family).unwrap(), None);
        names.module_name(name)
    };
    assert_eq!(changed("nemotron_h", "backbone.embeddings.weight"), "model.embeddings.weight");
    assert_eq!(changed("nemotron_h", "lm_head.weight"), "lm_head.weight");
    assert_eq!(changed("mamba2", "backbone.embeddings.weight"), "backbone.embeddings.weight");
    assert_eq!(changed("mixtral", "model.layers.3.block_sparse_moe.gate.weight"), "model.layers.3.mlp.gate.weight");
}

#[test]
fn modules_of_a_multimodal_base_have_the_names_of_either_version() {
    let family = with_model_type("gemma3_text").unwrap();
    let module = "model.layers.0.self_attn.q_proj";
    for (layout, name) in [
        (Layout::Inside, "model.language_model.layers.0.self_attn.q_proj"),
        (Layout::Whole, "language_model.model.layers.0.self_attn.q_proj"),
    ] {
        let tensor = format!("base_model.model.{name}.lora_A.weight");
        let names = ModuleNames::in_folder(family, Some(Layout::Inside), [tensor.as_str()].into_iter());
        assert_eq!(names.module_name(module), name);
        assert_eq!(ModuleNames::new(family, Some(layout)).module_name(module), name);
    }
}
