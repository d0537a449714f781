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

#[test]
fn an_export_has_the_bytes_of_the_import() {
    for name in &golden_models() {
        let model = HfModel::open(&golden(name)).unwrap();
        let folder = export_to_temporary(&model, &ExportOptions::default());
        assert_eq!(
            raw_tensors(&folder.path().join("model.safetensors")),
            raw_tensors(&golden(name).join("model.safetensors")),
            "{name}"
        );
        let again = HfModel::open(folder.path()).unwrap();
        assert_eq!(again.config(), model.config(), "{name}");
        assert_eq!(again.family(), model.family());
    }
}

#[test]
fn keys_that_nothing_follows_from_are_told() {
    for name in &golden_models() {
        assert_eq!(HfModel::open(&golden(name)).unwrap().remark(), None, "{name}");
        let folder = changed_copy(name, |_| {});
        let mut settings = settings_of(name);
        settings.insert("attention_sinks_of_its_own".into(), 4.into());
        settings.insert("use_another_way".into(), false.into());
        std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&settings).unwrap()).unwrap();
        let remark = HfModel::open(folder.path()).unwrap().remark().expect(name);
        assert!(
            remark.ends_with("config.json: not read, and without effect here: `attention_sinks_of_its_own` = 4"),
            "{remark}"
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

    let model = HfModel::open(&golden("gpt2")).unwrap();
    let folder = export_to_temporary(&model, &ExportOptions { max_shard_bytes: 4096, ..ExportOptions::default() });
    let index = folder.path().join("model.safetensors.index.json");
    let mut text: Value = serde_json::from_str(&std::fs::read_to_string(&index).unwrap()).unwrap();
    let file = text["weight_map"].as_object().unwrap().values().next().unwrap().clone();
    text["weight_map"]["a.tensor"] = file.clone();
    std::fs::write(&index, text.to_string()).unwrap();
    let error = HfModel::open(folder.path()).unwrap_err().to_string();
    let shard = folder.path().join(file.as_str().unwrap());
    assert_eq!(error, format!("{}: there is no tensor `a.tensor`", shard.display()));
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
                Some(Value::Null) | None => {}
                Some(expected) if expected.is_number() => {
                    assert_eq!(value.as_f64(), expected.as_f64(), "{name}: {key}");
                }
                Some(expected) if key != "rope_parameters" => {
                    assert_eq!(value, expected, "{name}: {key}")
                }
                Some(_) => {}
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

        // What was rounded once is not changed by going through float32 again.
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
        let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
        assert_eq!(bytes(exported.path()), bytes(&golden(name)), "{name}");
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
        let output = tensors.iter_mut().find(|raw| raw.name == "lm_head.weight").unwrap();
        output.name = "embed_out.weight".to_owned();
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
        // What was rounded once stays as it is.
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
    // 64 inputs in two blocks for each of 160 outputs; all ones, but the second input of each output.
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
    assert_eq!(HfModel::open(folder.path()).unwrap().remark(), None);
    let scaled = serde_json::json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": settings["rope_theta"] });
    settings.insert("rope_scaling".into(), scaled.clone());
    settings.insert("rope_parameters".into(), scaled);
    std::fs::write(&path, serde_json::to_vec(&settings).unwrap()).unwrap();
    assert_eq!(HfModel::open(folder.path()).unwrap().remark(), None);
    settings.insert("rope_theta".into(), 77.0.into());
    std::fs::write(&path, serde_json::to_vec(&settings).unwrap()).unwrap();
    let remark = HfModel::open(folder.path()).unwrap().remark().expect("another value");
    assert!(remark.ends_with("`rope_theta` = 77.0"), "{remark}");
}
