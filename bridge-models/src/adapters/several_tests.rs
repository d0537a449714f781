//! Several adapters on one base: each has the same outputs as alone, and the base is in memory
//! once.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::model::{BuildContext, Initial, ModelChunk, Parallel, Stage};
use bridge_core::testing::LowRank;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use serde_json::{Value, json};

use super::{AdapterRequest, AdapterSet, PeftAdapter};
use crate::decoder::{DecoderConfig, NormConfig, build_decoder};
use crate::generate::{GenerateOptions, GenerateRequest, generate};
use crate::huggingface::HfModel;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peft")
}

/// LoRA, DoRA, and the first with another factor: three adapters of one base.
fn adapters(base: &HfModel, folder: &Path) -> [(&'static str, PeftAdapter); 3] {
    let golden = fixtures().join("lora/adapter");
    std::fs::copy(golden.join("adapter_model.safetensors"), folder.join("adapter_model.safetensors")).unwrap();
    let mut settings: Value =
        serde_json::from_str(&std::fs::read_to_string(golden.join("adapter_config.json")).unwrap()).unwrap();
    settings["lora_alpha"] = json!(97);
    std::fs::write(folder.join("adapter_config.json"), settings.to_string()).unwrap();
    let folders = [golden, fixtures().join("dora/adapter"), folder.to_owned()];
    let [lora, dora, strong] = folders.map(|folder| PeftAdapter::open(&folder, base).unwrap());
    [("lora", lora), ("dora", dora), ("strong", strong)]
}

fn logits(model: &dyn ModelChunk) -> Vec<f32> {
    let ids: Vec<i64> = (0..23).map(|place| place * 7 % 157).collect();
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, 23]), &Device::flex());
    let model = model.inference();
    let logits_btv = model.logits(tokens_bt, &mut model.new_state()).unwrap();
    logits_btv.into_data().try_into_vec().unwrap()
}

#[test]
fn each_adapter_computes_what_it_does_alone() {
    let (base, folder) = (HfModel::open(&fixtures().join("lora/base")).unwrap(), tempfile::tempdir().unwrap());
    let device = Device::flex();
    let plain = base.build(&device.clone().autodiff()).unwrap();
    let mut set = AdapterSet::new(base.config().clone(), plain.as_ref(), &device);
    let adapters = adapters(&base, folder.path());
    for (name, adapter) in &adapters {
        set.add_peft(name, adapter).unwrap();
    }
    assert_eq!(set.names().collect::<Vec<_>>(), ["dora", "lora", "strong"]);
    let mut expected = vec![(None, logits(plain.as_ref()))];
    for (name, adapter) in &adapters {
        expected.push((Some(*name), logits(adapter.build(&base, &device.clone().autodiff()).unwrap().as_ref())));
    }
    for (place, (name, alone)) in expected.iter().enumerate() {
        assert_eq!(&logits(set.model(*name).unwrap()), alone, "{name:?}");
        assert!(expected[..place].iter().all(|(_, other)| other != alone), "{name:?} is another's");
        // Activating one adapter does not change another.
        set.set_adapter(*name).unwrap();
        assert_eq!((set.active(), &logits(set.active_model())), (*name, alone));
    }
    let taken = set.add_peft("lora", &adapters[1].1).unwrap_err().to_string();
    assert!(taken.contains("an adapter `lora` already"), "{taken}");
    set.remove("strong").unwrap();
    assert_eq!(set.active(), None);
    let gone = set.set_adapter(Some("strong")).unwrap_err().to_string();
    assert!(gone.contains("no adapter `strong`") && gone.contains("`dora`, `lora`"), "{gone}");
    assert_eq!(logits(set.model(Some("lora")).unwrap()), expected[1].1);
}

#[test]
fn each_row_is_continued_with_its_adapter() {
    let (base, folder) = (HfModel::open(&fixtures().join("lora/base")).unwrap(), tempfile::tempdir().unwrap());
    let device = Device::flex();
    let plain = base.build(&device.clone().autodiff()).unwrap();
    let mut set = AdapterSet::new(base.config().clone(), plain.as_ref(), &device);
    for (name, adapter) in &adapters(&base, folder.path()) {
        set.add_peft(name, adapter).unwrap();
    }
    let options = GenerateOptions::greedy(base.config(), 11);
    let prompts: [&[i64]; 5] = [&[3, 1, 4, 1, 5], &[9, 2, 6], &[5, 3, 5, 8, 9, 7, 9], &[3, 2, 3], &[8, 4, 6, 2, 6]];
    let names = [Some("dora"), None, Some("strong"), Some("dora"), Some("lora")];
    let rows: Vec<AdapterRequest> = prompts
        .iter()
        .zip(names)
        .map(|(prompt, adapter)| AdapterRequest { adapter, request: GenerateRequest { prompt, options: &options } })
        .collect();
    let mut seen = vec![Vec::new(); rows.len()];
    let texts = set.generate(&rows, &mut |row, token| {
        seen[row].push(token);
        // The third is stopped by its reader.
        if row == 2 && seen[row].len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let texts = texts.unwrap();
    assert_eq!(texts, seen);
    for (row, (prompt, name)) in prompts.iter().zip(names).enumerate() {
        let model = set.model(name).unwrap();
        let mut alone = generate(model, &device, prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        alone.truncate(if row == 2 { 4 } else { 11 });
        assert_eq!(texts[row], alone, "row {row}");
    }
    let unknown = AdapterRequest { adapter: Some("other"), ..rows[0] };
    let (row, error) = set.generate(&[rows[0], unknown], &mut |_, _| panic!("nothing is continued")).unwrap_err();
    assert_eq!((row, error.to_string().contains("no adapter `other`")), (1, true));
}

/// Kilobytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Sixteen copies of the base would be 1.6 GB.
#[test]
fn the_base_is_in_memory_once() {
    let config = DecoderConfig {
        num_layers: 1,
        hidden_size: 64,
        ffn_hidden_size: 96,
        num_attention_heads: 4,
        num_query_groups: 4,
        kv_channels: 16,
        vocab_size: 200_000,
        padded_vocab_size: 200_000,
        max_position_embeddings: 16,
        init_method_std: 0.02,
        embedding_init_method_std: 0.02,
        norm: NormConfig { epsilon: 1e-5, ..NormConfig::neutral() },
        ..DecoderConfig::neutral()
    };
    let context = BuildContext {
        device: Device::flex().autodiff(),
        seed: 5,
        params_dtype: FloatDType::F32,
        padded_vocab_size: config.padded_vocab_size,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    };
    let base = build_decoder(&config, &context, &Stage::whole([1])).unwrap();
    let mut set = AdapterSet::new(config, base.as_ref(), &Device::flex());
    drop(base);
    let before = resident();
    assert!(before > 100_000, "the base is in memory: {before} kB");
    for number in 0..16 {
        let adapter = LowRank { start: Initial::Zeros, ..LowRank::default() };
        let mut chunk = set.blank(Arc::new(adapter)).unwrap();
        let names: Vec<(String, usize)> = chunk
            .parameters()
            .iter()
            .filter(|info| info.of_adapter)
            .map(|info| (info.name.clone(), info.num_elements()))
            .collect();
        assert!(!names.is_empty());
        let zeros = |count: usize| Tensor::<1>::zeros([count], &Device::flex()).into();
        chunk.replace_parameters(names.iter().map(|(name, count)| (name.as_str(), zeros(*count))).collect());
        set.insert(&number.to_string(), chunk.as_ref()).unwrap();
    }
    let more = resident().saturating_sub(before);
    assert!(more < 400_000, "16 adapters hold {more} kB");
}
