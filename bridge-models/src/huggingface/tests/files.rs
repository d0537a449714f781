//! Weights in and out: the same bytes, in every form a folder can have.

use bridge_core::model::{BuildContext, ModelChunk, Parallel, StackPart, Stage};
use burn::tensor::FloatDType;

use super::*;
use crate::decoder::build_decoder;

fn stage(config: &DecoderConfig, stage: &Stage) -> Box<dyn ModelChunk> {
    let context = BuildContext {
        device: device(),
        seed: 1,
        params_dtype: FloatDType::F32,
        padded_vocab_size: config.padded_vocab_size,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    };
    build_decoder(config, &context, stage).unwrap()
}

pub(super) fn export_to_temporary(model: &HfModel, options: &ExportOptions) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let chunk = model.build(&device()).unwrap();
    let options = ExportOptions { experts: model.experts(), ..options.clone() };
    to_hf(folder.path(), model.family(), model.config(), &[chunk.as_ref()], &options).unwrap();
    folder
}

/// The tensors of a golden model as files of its family have them.
pub(super) fn as_in_files(name: &str) -> Vec<Raw> {
    let mut tensors = raw_tensors(&golden(name).join("model.safetensors"));
    for raw in tensors.iter_mut().filter(|raw| name == "gpt_neox" && raw.name == "lm_head.weight") {
        raw.name = "embed_out.weight".to_owned();
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[test]
fn an_export_has_the_bytes_of_the_import() {
    for name in &golden_models() {
        let model = HfModel::open(&golden(name)).unwrap();
        let folder = export_to_temporary(&model, &ExportOptions::default());
        assert_eq!(raw_tensors(&folder.path().join("model.safetensors")), as_in_files(name), "{name}");
        let again = HfModel::open(folder.path()).unwrap();
        assert_eq!(again.config(), model.config(), "{name}");
        assert_eq!(again.family(), model.family());
    }
}

#[test]
fn keys_that_nothing_follows_from_are_told() {
    for name in &golden_models() {
        assert_eq!(HfModel::open(&golden(name)).unwrap().unused_warning(), None, "{name}");
        let folder = changed_copy(name, |_| {});
        let mut settings = settings_of(name);
        settings.insert("attention_sinks_of_its_own".into(), 4.into());
        settings.insert("use_another_way".into(), false.into());
        std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&settings).unwrap()).unwrap();
        let warning = HfModel::open(folder.path()).unwrap().unused_warning().expect(name);
        assert!(
            warning.ends_with("config.json: not read, and without effect here: `attention_sinks_of_its_own` = 4"),
            "{warning}"
        );
    }
}

#[test]
fn weights_may_be_read_by_whoever_may_read_the_settings() {
    use std::os::unix::fs::PermissionsExt;
    let model = HfModel::open(&golden("gpt2")).unwrap();
    for max_shard_bytes in [usize::MAX, 4096] {
        let folder = export_to_temporary(&model, &ExportOptions { max_shard_bytes, ..ExportOptions::default() });
        let probe = folder.path().join("probe");
        std::fs::write(&probe, "made as files usually are").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        let usual = mode(&probe);
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), usual, "{}", path.display());
        }
    }
}

#[test]
fn a_tensor_that_a_file_lacks_is_named_with_the_file() {
    let path = golden("gpt2").join("model.safetensors");
    let file = HfCheckpoint::open_file(&path).unwrap();
    let error = file.read_doubles("train_losses").unwrap_err().to_string();
    assert_eq!(error, format!("{}: there is no tensor `train_losses`", path.display()));
}

/// A golden model in several files, with their index, which `change` is given.
fn in_shards(name: &str, change: impl Fn(&mut Map<String, Value>)) -> tempfile::TempDir {
    let model = HfModel::open(&golden(name)).unwrap();
    let folder = export_to_temporary(&model, &ExportOptions { max_shard_bytes: 4096, ..ExportOptions::default() });
    let index = folder.path().join("model.safetensors.index.json");
    let mut text: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    change(text["weight_map"].as_object_mut().unwrap());
    std::fs::write(&index, text.to_string()).unwrap();
    folder
}

#[test]
fn shards_are_read_whole_whatever_their_index_says_of_tensors() {
    let folder = in_shards("llama_tied", |places| {
        let file = places["model.norm.weight"].clone();
        places.insert("lm_head.weight".into(), file);
        // Names without a tensor, so that the index still names each file.
        for name in ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"] {
            let file = places[name].clone();
            places.insert(format!("{name}.other"), file);
        }
        let other = places.values().find(|file| **file != places["model.embed_tokens.weight"]).unwrap().clone();
        places.insert("model.embed_tokens.weight".into(), other);
        places.remove("model.layers.0.mlp.up_proj.weight");
    });
    let exported = export_to_temporary(&HfModel::open(folder.path()).unwrap(), &ExportOptions::default());
    let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
    assert_eq!(bytes(exported.path()), bytes(&golden("llama_tied")));
}

#[test]
fn one_file_counts_before_an_index() {
    let folder = in_shards("llama", |_| {});
    let whole = changed_copy("llama", |tensors| tensors[0].bytes.rotate_left(4));
    let single = folder.path().join("model.safetensors");
    std::fs::copy(whole.path().join("model.safetensors"), &single).unwrap();
    let exported = export_to_temporary(&HfModel::open(folder.path()).unwrap(), &ExportOptions::default());
    assert_eq!(raw_tensors(&exported.path().join("model.safetensors")), raw_tensors(&single));
    // The folder can be opened with the shards and without them.
    for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("model-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    HfModel::open(folder.path()).unwrap();
}

#[test]
fn a_tensor_in_two_shards_is_the_same_in_both() {
    let folder = in_shards("llama", |_| {});
    let index = folder.path().join("model.safetensors.index.json");
    let mut text: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    let norm = raw_tensors(&golden("llama").join("model.safetensors"));
    let mut norm: Vec<Raw> = norm.into_iter().filter(|raw| raw.name == "model.norm.weight").collect();
    text["weight_map"]["again"] = "again.safetensors".into();
    std::fs::write(&index, text.to_string()).unwrap();
    write_raw(&folder.path().join("again.safetensors"), &norm);
    HfModel::open(folder.path()).unwrap();
    norm[0].bytes.rotate_left(4);
    write_raw(&folder.path().join("again.safetensors"), &norm);
    let error = HfModel::open(folder.path()).unwrap_err();
    assert!(matches!(&error, HfError::Twice { name, .. } if name == "model.norm.weight"), "{error}");
}

#[test]
fn a_table_may_be_in_the_files_under_any_of_its_names() {
    let cases = [
        ("llama_tied", "model.embed_tokens.weight", "lm_head.weight"),
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("t5", "shared.weight", "encoder.embed_tokens.weight"),
        ("t5", "shared.weight", "decoder.embed_tokens.weight"),
    ];
    for (name, own, other) in cases {
        let place = |tensors: &[Raw]| tensors.iter().position(|raw| raw.name == own).unwrap();
        let alone = changed_copy(name, |tensors| {
            let at = place(tensors);
            tensors[at].name = other.into();
        });
        let exported = export_to_temporary(&HfModel::open(alone.path()).unwrap(), &ExportOptions::default());
        let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
        assert_eq!(bytes(exported.path()), bytes(&golden(name)), "{name}: {other}");
        let with_copy = |turned: usize| {
            changed_copy(name, |tensors| {
                let mut copy = Raw { name: other.into(), ..tensors[place(tensors)].clone() };
                copy.bytes.rotate_left(turned);
                tensors.push(copy);
            })
        };
        HfModel::open(with_copy(0).path()).unwrap();
        let error = HfModel::open(with_copy(4).path()).unwrap_err().to_string();
        assert!(error.contains(&format!("`{other}`: expected the values of `{own}`")), "{error}");
    }
}

#[test]
fn names_that_a_wrapper_has_changed_are_shown() {
    for (before, after) in
        [("", "_orig_mod."), ("", "module."), ("", "language_model."), ("model.", "model._orig_mod.")]
    {
        let folder = changed_copy("llama_tied", |tensors| {
            tensors.iter_mut().for_each(|raw| raw.name = raw.name.replacen(before, after, 1).replace("..", "."));
        });
        let error = HfModel::open(folder.path()).unwrap_err();
        assert!(matches!(&error, HfError::Wrapped { expected, .. } if expected.starts_with("model.")), "{error}");
        assert!(error.to_string().contains(after.trim_start_matches("model.")), "{error}");
    }
}

#[test]
fn an_adapter_beside_a_base_is_refused() {
    let folder = changed_copy("llama", |_| {});
    std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
    let error = HfModel::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json") && error.contains("--adapter"), "{error}");
}

#[test]
fn weights_in_other_files_are_named_with_what_to_do() {
    let cases = [
        ("consolidated.safetensors", "of another program"),
        ("consolidated.00.pth", "of another program"),
        ("adapter_model.safetensors", "--adapter"),
        ("model.fp16.safetensors", "call it model.safetensors"),
        ("weights.pth", "save_pretrained"),
    ];
    for (file, words) in cases {
        let folder = changed_copy("llama", |_| {});
        std::fs::rename(folder.path().join("model.safetensors"), folder.path().join(file)).unwrap();
        let error = HfModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(words), "{error}");
    }
    let folder = changed_copy("llama", |_| {});
    let mut settings = settings_of("llama");
    settings.insert("transformers_weights".into(), "other.safetensors".into());
    std::fs::write(folder.path().join("config.json"), Value::Object(settings).to_string()).unwrap();
    let error = HfModel::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("other.safetensors"), "{error}");
    std::fs::rename(folder.path().join("model.safetensors"), folder.path().join("other.safetensors")).unwrap();
    HfModel::open(folder.path()).unwrap();
}

#[test]
fn an_export_names_no_file_that_it_lacks_and_no_token_beyond_its_vocabulary() {
    let model = HfModel::open(&golden("phi3")).unwrap();
    let more = serde_json::json!({
        "auto_map": { "AutoConfig": "configuration_phi3.Phi3Config" }, "transformers_weights": "other.safetensors",
        "pad_token_id": 32_000, "eos_token_id": -1,
    });
    let original = settings_of("phi3").into_iter().chain(more.as_object().unwrap().clone()).collect();
    let options = ExportOptions { original: Some(original), ..ExportOptions::default() };
    let folder = export_to_temporary(&model, &options);
    let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let written: Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(!written.contains_key("auto_map") && !written.contains_key("transformers_weights"), "{text}");
    assert_eq!((&written["pad_token_id"], &written["eos_token_id"]), (&Value::Null, &Value::Null));
}

#[test]
fn named_chat_templates_are_copied_and_remote_code_is_not() {
    let folder = changed_copy("llama", |_| {});
    let templates = folder.path().join("additional_chat_templates");
    std::fs::create_dir(&templates).unwrap();
    std::fs::write(templates.join("tool_use.jinja"), "tools").unwrap();
    let tokenizer = serde_json::json!({
        "tokenizer_class": "OwnTokenizer", "auto_map": { "AutoTokenizer": ["tokenization_own.OwnTokenizer", null] },
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), tokenizer.to_string()).unwrap();
    let model = HfModel::open(folder.path()).unwrap();
    let options = ExportOptions { companions: model.companions().unwrap(), ..ExportOptions::default() };
    let exported = export_to_temporary(&model, &options);
    let read = |name: &str| std::fs::read_to_string(exported.path().join(name)).unwrap();
    assert_eq!(read("additional_chat_templates/tool_use.jinja"), "tools");
    let tokenizer: Map<String, Value> = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    assert_eq!(tokenizer.len(), 1);
    assert_eq!(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
}

#[test]
fn keys_that_stand_for_others_are_read_as_these() {
    let spellings = [("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")];
    let folder = changed_copy("gpt2", |_| {});
    let write = |settings: &Map<String, Value>| {
        std::fs::write(folder.path().join("config.json"), Value::Object(settings.clone()).to_string()).unwrap();
    };
    let mut settings = settings_of("gpt2");
    for (key, alias) in spellings {
        let value = settings.remove(key).unwrap();
        settings.insert(alias.into(), value);
    }
    write(&settings);
    let model = HfModel::open(folder.path()).unwrap();
    assert_eq!(model.config(), HfModel::open(&golden("gpt2")).unwrap().config());
    assert_eq!(model.unused_warning(), None);
    settings.insert("n_layer".into(), 77.into());
    write(&settings);
    let error = HfModel::open(folder.path()).unwrap_err();
    assert!(matches!(&error, HfError::Setting { key, .. } if key == "num_hidden_layers"), "{error}");
}

#[test]
fn attention_to_later_tokens_is_refused_and_negative_tokens_are_none() {
    for value in [Value::Null, false.into()] {
        let settings = settings_of("llama").into_iter().chain([("is_causal".to_owned(), value)]).collect();
        assert!(matches!(parse(&settings), Err(HfError::Setting { key, .. }) if key == "is_causal"));
    }
    let with = |eos: Value| {
        let settings = settings_of("llama").into_iter().chain([("eos_token_id".to_owned(), eos)]).collect();
        let architecture = described::Architecture::new(&fields::Fields::new(&settings));
        architecture.map(|architecture| architecture.eos_token_ids)
    };
    assert_eq!(with((-1).into()).unwrap(), Vec::<i64>::new());
    assert_eq!(with(vec![3, -1].into()).unwrap(), [3]);
    assert!(with("a".into()).is_err());
}

#[test]
fn a_class_that_takes_no_null_has_a_first_token() {
    for (name, expected) in [("cwm", Value::from(128_000)), ("llama", Value::Null)] {
        let model = HfModel::open(&golden(name)).unwrap();
        let folder = export_to_temporary(&model, &ExportOptions::default());
        let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
        let written: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(written["bos_token_id"], expected);
    }
}

#[test]
fn exported_settings_are_those_of_transformers() {
    for name in &golden_models() {
        let model = HfModel::open(&golden(name)).unwrap();
        let options = ExportOptions { bos_token_id: Some(0), eos_token_ids: vec![1], ..ExportOptions::default() };
        let folder = export_to_temporary(&model, &options);
        let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
        let written: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let original = settings_of(name);
        for (key, value) in &written {
            match original.get(key) {
                // Several keys together say the width of the feed-forward block.
                Some(_) if name == "lfm2" && ["intermediate_size", "block_auto_adjust_ff_dim"].contains(&&**key) => {}
                Some(Value::Null) | None => {}
                // Tokens for padding are those of the tokenizer, which these have not.
                Some(_) if key == "pad_token_id" => {}
                // Several periods mean the same layers.
                Some(_) if key.ends_with("_layer_period") => {}
                Some(expected) if expected.is_number() => {
                    assert_eq!(value.as_f64(), expected.as_f64(), "{name}: {key}");
                }
                Some(_) if key == "rope_parameters" => {}
                // Tables have defaults of transformers besides.
                Some(Value::Object(table)) => {
                    for (inner, value) in value.as_object().unwrap() {
                        assert_eq!(Some(value), table.get(inner), "{name}: {key}.{inner}");
                    }
                }
                Some(expected) => assert_eq!(value, expected, "{name}: {key}"),
            }
        }
        assert_eq!(HfModel::open(folder.path()).unwrap().eos_token_ids(), [1]);
    }
}

#[test]
fn shards_of_sixteen_bits_are_read_and_written() {
    for (name, dtype) in
        [("gpt2", StorageDtype::Bf16), ("llama", StorageDtype::F16), ("llama_tied", StorageDtype::Bf16)]
    {
        let original = HfModel::open(&golden(name)).unwrap();
        let options = ExportOptions { dtype, max_shard_bytes: 50_000, ..ExportOptions::default() };
        let folder = export_to_temporary(&original, &options);
        let files = std::fs::read_dir(folder.path()).unwrap();
        let mut shards: Vec<_> = files
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
            .collect();
        shards.sort();
        assert!(shards.len() > 2, "{name}: {shards:?}");
        assert!(!folder.path().join("model.safetensors").exists());
        let tensors: Vec<Raw> = shards.iter().flat_map(|path| raw_tensors(path)).collect();
        assert!(tensors.iter().all(|raw| raw.dtype != safetensors::Dtype::F32));

        // Rounded values do not change in another conversion to float32 and back.
        let model = HfModel::open(folder.path()).unwrap();
        let again = export_to_temporary(&model, &ExportOptions { dtype, ..ExportOptions::default() });
        let mut sorted = tensors;
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(raw_tensors(&again.path().join("model.safetensors")), sorted, "{name}");

        let report = crate::verify(folder.path(), &golden(name).join("golden.safetensors"), &device()).unwrap();
        let difference = report.logits.unwrap().difference.unwrap();
        assert!(difference > 1e-5 && difference < 0.1, "{name}: rounding to 16 bits shows, a little: {difference}");
    }
}

#[test]
fn the_prefix_may_be_missing() {
    for name in &golden_models() {
        let prefix = HfModel::open(&golden(name)).unwrap().family().prefix;
        let folder = changed_copy(name, |tensors| {
            for raw in tensors {
                raw.name = raw.name.trim_start_matches(prefix).to_owned();
            }
        });
        let model = HfModel::open(folder.path()).unwrap();
        let exported = export_to_temporary(&model, &ExportOptions::default());
        assert_eq!(raw_tensors(&exported.path().join("model.safetensors")), as_in_files(name), "{name}");
    }
}

#[test]
fn buffers_and_repeated_tied_weights_are_not_unexpected() {
    let folder = changed_copy("gpt2", |tensors| {
        let extra = |name: &str, from: &Raw| Raw { name: name.into(), ..from.clone() };
        let embedding = tensors.iter().find(|raw| raw.name == "transformer.wte.weight").unwrap().clone();
        tensors.push(extra("lm_head.weight", &embedding));
        tensors.push(extra("transformer.h.0.attn.bias", &embedding));
        tensors.push(extra("transformer.h.1.attn.masked_bias", &embedding));
    });
    HfModel::open(folder.path()).unwrap();
}

#[test]
fn every_wrong_tensor_is_named() {
    let folder = changed_copy("llama", |tensors| {
        tensors.retain(|raw| raw.name != "model.layers.1.mlp.up_proj.weight");
        for raw in tensors.iter_mut() {
            match raw.name.as_str() {
                "model.layers.0.self_attn.k_proj.weight" => raw.shape = vec![64, 32],
                "model.norm.weight" => raw.name = "model.final_norm.weight".into(),
                _ => {}
            }
        }
    });
    let error = HfModel::open(folder.path()).unwrap_err();
    let text = error.to_string();
    let HfError::Tensors { mut problems, .. } = error else { panic!("{text}") };
    problems.sort_by_key(|problem| format!("{problem:?}"));
    let expected = [
        TensorProblem::Missing { name: "model.layers.1.mlp.up_proj.weight".into(), expected: vec![112, 64] },
        TensorProblem::Missing { name: "model.norm.weight".into(), expected: vec![64] },
        TensorProblem::Shape {
            name: "model.layers.0.self_attn.k_proj.weight".into(),
            expected: vec![32, 64],
            found: vec![64, 32],
        },
        TensorProblem::Unexpected { name: "model.final_norm.weight".into(), found: vec![64] },
    ];
    assert_eq!(problems, expected);
    for part in ["up_proj", "expected shape [32, 64], found [64, 32]", "final_norm"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_tied_model_with_another_output_is_refused() {
    let folder = changed_copy("llama_tied", |tensors| {
        let embedding = tensors.iter().find(|raw| raw.name == "model.embed_tokens.weight").unwrap();
        let mut output = Raw { name: "lm_head.weight".into(), ..embedding.clone() };
        output.bytes.rotate_left(4);
        tensors.push(output);
    });
    let error = HfModel::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, HfError::Tensors { problems, .. }
        if matches!(problems.as_slice(), [TensorProblem::NotTied { .. }])),
        "{error}"
    );
}

#[test]
fn integers_are_no_weights() {
    let folder = changed_copy("gpt2", |tensors| {
        let raw = tensors.iter_mut().find(|raw| raw.name == "transformer.ln_f.weight").unwrap();
        raw.dtype = safetensors::Dtype::I32;
    });
    let error = HfModel::open(folder.path()).unwrap().build(&device()).unwrap_err();
    assert!(
        matches!(&error, HfError::Dtype { name, found, .. } if name == "transformer.ln_f.weight" && found == "I32")
    );
}

#[test]
fn missing_and_damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = HfModel::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    std::fs::copy(golden("gpt2").join("config.json"), folder.path().join("config.json")).unwrap();
    let error = HfModel::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    std::fs::write(folder.path().join("model.safetensors"), "not safetensors at all").unwrap();
    assert!(matches!(HfModel::open(folder.path()).unwrap_err(), HfError::Safetensors { .. }));
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(matches!(HfModel::open(folder.path()).unwrap_err(), HfError::Json { .. }));
}

#[test]
fn stages_load_and_write_their_part() {
    for name in ["gpt2", "llama", "llama_tied"] {
        let model = HfModel::open(&golden(name)).unwrap();
        let config = model.config();
        let mut first = stage(config, &Stage::from(StackPart { layers: 0..1, start: true, end: false }));
        let mut last = stage(config, &Stage::from(StackPart { layers: 1..2, start: false, end: true }));
        model.load_into(first.as_mut()).unwrap();
        model.load_into(last.as_mut()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let chunks = [first.as_ref(), last.as_ref()];
        let options = ExportOptions { experts: model.experts(), ..ExportOptions::default() };
        to_hf(folder.path(), model.family(), config, &chunks, &options).unwrap();
        let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
        assert_eq!(bytes(folder.path()), bytes(&golden(name)), "{name}");
        let error = to_hf(folder.path(), model.family(), config, &chunks[..1], &options);
        assert!(matches!(error, Err(HfError::MissingParameter { .. })));
    }
}

#[test]
fn a_padded_vocabulary_is_filled_with_zeros_and_cut_off_again() {
    for name in ["gpt2", "llama"] {
        let model = HfModel::open(&golden(name)).unwrap();
        let padded = DecoderConfig { padded_vocab_size: 192, ..model.config().clone() };
        let mut chunk = stage(&padded, &Stage::whole([2]));
        model.load_into(chunk.as_mut()).unwrap();
        chunk.visit_parameters(&mut |name, value| {
            if name == "embedding.word_embeddings.weight" || name == "output_layer.weight" {
                let values: Vec<f32> = value.into_data().try_into_vec().unwrap();
                assert!(values[160 * 64..].iter().all(|v| *v == 0.0) && values[..160 * 64].iter().all(|v| *v != 0.0));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let options = ExportOptions { experts: model.experts(), ..ExportOptions::default() };
        to_hf(folder.path(), model.family(), &padded, &[chunk.as_ref()], &options).unwrap();
        let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
        assert_eq!(bytes(folder.path()), bytes(&golden(name)), "{name}");
    }
}

#[test]
fn the_hook_loads_every_chunk() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let config = model.config();
    let chunks = vec![
        stage(config, &Stage::from(StackPart { layers: 0..2, start: true, end: false })),
        stage(config, &Stage::from(StackPart { layers: 2..2, start: false, end: true })),
    ];
    let chunks = import_hook(golden("llama"))(chunks).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let chunks: Vec<&dyn ModelChunk> = chunks.iter().map(AsRef::as_ref).collect();
    to_hf(folder.path(), family("llama"), config, &chunks, &ExportOptions::default()).unwrap();
    let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
    assert_eq!(bytes(folder.path()), bytes(&golden("llama")));
    let error = import_hook(folder.path().join("nowhere"))(Vec::new()).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_chunk_of_another_model_is_refused() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let other = DecoderConfig { hidden_size: 32, ..model.config().clone() };
    let error = model.load_into(stage(&other, &Stage::whole([2])).as_mut()).unwrap_err();
    assert!(matches!(&error, HfError::Parameter { name, .. } if name == "embedding.word_embeddings.weight"), "{error}");
    let other = DecoderConfig { num_layers: 3, ..model.config().clone() };
    let error = model.load_into(stage(&other, &Stage::whole([3])).as_mut()).unwrap_err();
    assert!(matches!(&error, HfError::Parameter { name, .. } if name.starts_with("decoder.layers.2.")), "{error}");
}

#[test]
fn names_of_earlier_versions_are_known() {
    let folder = changed_copy("gpt_neox", |tensors| {
        for raw in tensors {
            raw.name = match raw.name.as_str() {
                "lm_head.weight" => "embed_out.weight".to_owned(),
                "embed_out.weight" => "lm_head.weight".to_owned(),
                name => name.to_owned(),
            };
        }
    });
    let output = |folder: &Path| {
        let chunk = HfModel::open(folder).unwrap().build(&device()).unwrap();
        let mut values = Vec::new();
        chunk.visit_parameters(&mut |name, value| {
            if name == "output_layer.weight" {
                values = value.into_data().try_into_vec::<f32>().unwrap();
            }
        });
        values
    };
    let expected = output(&golden("gpt_neox"));
    assert!(!expected.is_empty());
    assert_eq!(output(folder.path()), expected);
}

#[test]
fn weights_of_eight_bits_are_read_and_written_with_their_scales() {
    for name in ["llama", "llama_tied"] {
        let original = HfModel::open(&golden(name)).unwrap();
        let folder =
            export_to_temporary(&original, &ExportOptions { dtype: StorageDtype::F8, ..ExportOptions::default() });
        let raws = raw_tensors(&folder.path().join("model.safetensors"));
        let dtype = |wanted: &str| raws.iter().find(|raw| raw.name == wanted).unwrap().dtype;
        assert_eq!(dtype("model.layers.0.mlp.up_proj.weight"), safetensors::Dtype::F8_E4M3);
        assert_eq!(dtype("model.layers.0.mlp.up_proj.weight_scale_inv"), safetensors::Dtype::F32);
        assert_eq!(dtype("model.embed_tokens.weight"), safetensors::Dtype::BF16);
        let model = HfModel::open(folder.path()).unwrap();
        let report = crate::verify(folder.path(), &golden(name).join("golden.safetensors"), &device()).unwrap();
        let difference = report.logits.unwrap().difference.unwrap();
        assert!(difference > 1e-4 && difference < 0.5, "{name}: {difference}");
        // Values that were rounded once do not change again.
        let again = export_to_temporary(&model, &ExportOptions { dtype: StorageDtype::F8, ..ExportOptions::default() });
        let bits =
            |raws: Vec<Raw>| raws.into_iter().filter(|raw| raw.dtype != safetensors::Dtype::F32).collect::<Vec<_>>();
        assert_eq!(bits(raw_tensors(&again.path().join("model.safetensors"))), bits(raws));
        let plain = export_to_temporary(&model, &ExportOptions::default());
        HfModel::open(plain.path()).unwrap();
    }
}

/// A copy of a model with `quantization_config`, whose tensors went through `change`.
fn quantized_copy(name: &str, table: Value, change: impl Fn(&mut Vec<Raw>)) -> tempfile::TempDir {
    let folder = changed_copy(name, change);
    let mut settings = settings_of(name);
    settings.insert("quantization_config".into(), table);
    std::fs::write(folder.path().join("config.json"), Value::Object(settings).to_string()).unwrap();
    folder
}

#[test]
fn blocks_of_four_bits_are_the_transpose_of_what_they_stand_for() {
    // 64 inputs in two blocks for each of 160 outputs; all ones, but the second input of each
    // output.
    let folder = quantized_copy("llama", serde_json::json!({ "quant_method": "mxfp4" }), |tensors| {
        let at = tensors.iter().position(|raw| raw.name == "model.embed_tokens.weight").unwrap();
        let blocks = [vec![0x42], vec![0x22; 15], vec![0x22; 16]].concat().repeat(160);
        let raw = |name: &str, shape: Vec<usize>, bytes: Vec<u8>| Raw {
            name: format!("model.embed_tokens.weight_{name}"),
            dtype: safetensors::Dtype::U8,
            shape,
            bytes,
        };
        tensors.splice(
            at..=at,
            [raw("blocks", vec![160, 2, 16], blocks), raw("scales", vec![160, 2], [127, 128].repeat(160))],
        );
    });
    let problem = HfModel::open(folder.path()).unwrap_err().to_string();
    assert!(problem.contains("expected shape [160, 64], found [64, 160]"), "{problem}");
    let source = HfCheckpoint::open(folder.path()).unwrap().dequantized(Quantization::Mxfp4).unwrap();
    let values = source.read("model.embed_tokens.weight").unwrap();
    let expected = |input: usize| match input {
        1 => 2.0,
        0..32 => 1.0,
        _ => 2.0,
    };
    assert_eq!(values.shape, [64, 160]);
    assert!(values.values.iter().enumerate().all(|(index, value)| *value == expected(index / 160)));
    assert_eq!(source.storage("model.embed_tokens.weight").as_deref(), Some("MXFP4"));
}

#[test]
fn quantized_weights_without_their_scales_are_named() {
    let table = serde_json::json!({ "quant_method": "fp8", "weight_block_size": [2, 64] });
    let name = "model.layers.0.mlp.up_proj.weight";
    let to_f8 = |tensors: &mut Vec<Raw>, scales: Option<Vec<usize>>| {
        let raw = tensors.iter_mut().find(|raw| raw.name == name).unwrap();
        raw.dtype = safetensors::Dtype::F8_E4M3;
        raw.bytes = vec![0x38; 112 * 64];
        tensors.extend(scales.map(|shape| {
            let bytes = 2.0_f32.to_le_bytes().repeat(shape.iter().product());
            Raw { name: format!("{name}_scale_inv"), dtype: safetensors::Dtype::F32, shape, bytes }
        }));
    };
    let folder = quantized_copy("llama", table.clone(), |tensors| to_f8(tensors, Some(vec![56, 1])));
    assert!(HfModel::open(folder.path()).unwrap().build(&device()).is_ok());
    // A scale of any shape for the whole matrix, and the divisor of activations.
    let whole = serde_json::json!({ "quant_method": "fp8", "weight_block_size": null, "activation_scheme": "static" });
    for (table, shape) in [(&whole, vec![]), (&whole, vec![1]), (&whole, vec![1, 1]), (&table, vec![1])] {
        let folder = quantized_copy("llama", table.clone(), |tensors| {
            to_f8(tensors, Some(shape.clone()));
            let scale = tensors.iter().find(|raw| raw.name.ends_with("_scale_inv")).unwrap();
            let name = name.replace("weight", "activation_scale");
            tensors.push(Raw { name, ..scale.clone() });
        });
        HfModel::open(folder.path()).unwrap();
        let quantization = described::Architecture::new(&fields::Fields::new(
            &settings_of("llama").into_iter().chain([("quantization_config".to_owned(), table.clone())]).collect(),
        ));
        let source =
            HfCheckpoint::open(folder.path()).unwrap().dequantized(quantization.unwrap().quantization).unwrap();
        assert!(source.read(name).unwrap().values.iter().all(|value| *value == 2.0), "{shape:?}");
    }
    for (scales, words) in
        [(None, "found no such tensor"), (Some(vec![1, 56]), "expected shape [56, 1], found [1, 56]")]
    {
        let folder = quantized_copy("llama", table.clone(), |tensors| to_f8(tensors, scales.clone()));
        let error = HfModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}_scale_inv")) && error.contains(words), "{error}");
    }
    for (table, words) in [
        (serde_json::json!({ "quant_method": "gptq" }), "fp8 or mxfp4"),
        (serde_json::json!({}), "quant_method"),
        (serde_json::json!({ "quant_method": "fp8", "weight_block_size": [0, 1] }), "weight_block_size"),
    ] {
        let folder = quantized_copy("llama", table, |_| {});
        let error = HfModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn pickled_weights_are_refused_by_name() {
    for file in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(golden("llama").join("config.json"), folder.path().join("config.json")).unwrap();
        std::fs::write(folder.path().join(file), "x").unwrap();
        let error = HfModel::open(folder.path()).expect_err("no safetensors").to_string();
        assert!(error.contains("pytorch_model.bin is not read") && error.contains("safe_serialization"), "{error}");
        std::fs::copy(golden("llama").join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        HfModel::open(folder.path()).unwrap();
    }
}

#[test]
fn what_an_export_writes_twice_is_no_unread_key() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let folder = export_to_temporary(&model, &ExportOptions::default());
    let path = folder.path().join("config.json");
    let mut settings: Map<String, Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(settings["rope_parameters"]["rope_theta"], settings["rope_theta"], "written twice");
    assert_eq!(HfModel::open(folder.path()).unwrap().unused_warning(), None);
    let scaled = serde_json::json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": settings["rope_theta"] });
    settings.insert("rope_scaling".into(), scaled.clone());
    settings.insert("rope_parameters".into(), scaled);
    std::fs::write(&path, serde_json::to_vec(&settings).unwrap()).unwrap();
    assert_eq!(HfModel::open(folder.path()).unwrap().unused_warning(), None);
    settings.insert("rope_theta".into(), 77.0.into());
    std::fs::write(&path, serde_json::to_vec(&settings).unwrap()).unwrap();
    let warning = HfModel::open(folder.path()).unwrap().unused_warning().expect("another value");
    assert!(warning.ends_with("`rope_theta` = 77.0"), "{warning}");
}
