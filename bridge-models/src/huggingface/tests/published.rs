//! Names, shapes and bits of published files, which differ from those of a module in memory:
//! `hub.json` of a golden model has what transformers writes.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::*;

/// Shape of each tensor, and the first 16 hexadecimal digits of the SHA-256 of its float32 bytes.
type Listing = BTreeMap<String, (Vec<usize>, String)>;

/// The golden language models that have a list of published tensors. Multimodal folders have tests
/// of their own.
fn published() -> Vec<(String, Listing)> {
    let listing = |name: String| {
        let text = std::fs::read_to_string(golden(&name).join("hub.json")).ok()?;
        let listing: Listing = serde_json::from_str(&text).unwrap();
        // transformers writes back a dense layer of Kimi Linear under a name of its experts, and a
        // norm of OLMo Hybrid's softmax attention under one of linear attention.
        let published = |key: String| match name.as_str() {
            "kimi_linear" => key.replace(".layers.0.block_sparse_moe.", ".layers.0.mlp."),
            "olmo_hybrid" => key.replace(".layers.1.feedforward_layer_norm.", ".layers.1.post_attention_layernorm."),
            _ => key,
        };
        let listing = listing.into_iter().map(|(key, tensor)| (published(key), tensor)).collect();
        (!settings_of(&name).contains_key("text_config")).then_some((name, listing))
    };
    golden_models().into_iter().filter_map(listing).collect()
}

fn export(model: &HfModel, dtype: StorageDtype) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let chunk = model.build(&device()).unwrap();
    let options = ExportOptions { dtype, original: Some(model.settings().clone()), ..ExportOptions::default() };
    to_hf(folder.path(), model.family(), model.config(), &[chunk.as_ref()], &options).unwrap();
    folder
}

#[test]
fn an_export_has_the_tensors_of_published_files_and_is_read_back() {
    let cases = published();
    assert!(cases.len() >= 10, "{} cases", cases.len());
    for (name, expected) in cases {
        let model = HfModel::open(&golden(&name)).unwrap();
        let folder = export(&model, StorageDtype::F32);
        let raws = raw_tensors(&folder.path().join("model.safetensors"));
        let found = raws.into_iter().map(|raw| {
            let is_table = raw.name.ends_with(".tid2eid");
            assert_eq!(raw.dtype, if is_table { Dtype::I64 } else { Dtype::F32 }, "{name}: {}", raw.name);
            // Digests are those of float32.
            let number = |bytes: &[u8]| (i64::from_le_bytes(bytes.try_into().unwrap()) as f32).to_le_bytes();
            let bytes = if is_table { raw.bytes.chunks(8).flat_map(number).collect() } else { raw.bytes };
            (raw.name, (raw.shape, sha256(&bytes)[..16].to_owned()))
        });
        let found: Listing = found.collect();
        // transformers cuts OLMo Hybrid's convolution into thirds, though it has fewer keys than
        // values.
        let is_cut_otherwise = |key: &str| name == "olmo_hybrid" && key.contains("_conv1d.");
        let differs = |key: &&String| found.get(*key) != expected.get(*key) && !is_cut_otherwise(key);
        let wrong: Vec<&String> = found.keys().chain(expected.keys()).filter(differs).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        let again = HfModel::open(folder.path()).unwrap();
        assert_eq!((again.config(), again.family()), (model.config(), model.family()), "{name}");
        assert_eq!(again.settings()["architectures"], model.settings()["architectures"], "{name}");
        for entry in model.weight_map().entries() {
            let bits = |model: &HfModel| {
                let entry = model.weight_map().entry(&entry.parameter).unwrap();
                let values = model.rows(entry, 0..entry.shape[0]).unwrap();
                values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(bits(&again) == bits(&model), "{name}: {}", entry.parameter);
        }
    }
}

#[test]
fn biases_in_the_choice_of_experts_stay_in_float32() {
    for (name, _) in published() {
        let model = HfModel::open(&golden(&name)).unwrap();
        let folder = export(&model, StorageDtype::Bf16);
        for raw in raw_tensors(&folder.path().join("model.safetensors")) {
            if raw.name.ends_with("correction_bias") || raw.name.ends_with("expert_bias") {
                assert_eq!(raw.dtype, Dtype::F32, "{name}: {}", raw.name);
            }
        }
    }
}

#[test]
fn other_names_of_a_family_are_kept() {
    for (name, model_type, class) in [
        ("kimi_k2", "kimi_k2", "DeepseekV3ForCausalLM"),
        ("kimi_k2", "kimi_k2", "KimiK2ForCausalLM"),
        ("sarvam_mla", "sarvam_mla", "DeepseekV3ForCausalLM"),
        ("bailing_moe_v2", "bailing_moe", "BailingMoeV2ForCausalLM"),
    ] {
        let folder = changed_copy(name, |_| {});
        let mut settings = settings_of(name);
        settings.insert("model_type".into(), model_type.into());
        settings.insert("architectures".into(), serde_json::json!([class]));
        std::fs::write(folder.path().join("config.json"), Value::Object(settings.clone()).to_string()).unwrap();
        let model = HfModel::open(folder.path()).unwrap();
        assert_eq!(model.family(), family(name));
        let exported = export(&model, StorageDtype::F32);
        let again = HfModel::open(exported.path()).unwrap();
        for key in ["model_type", "architectures"] {
            assert_eq!(again.settings()[key], settings[key]);
        }
        settings.insert("architectures".into(), serde_json::json!(["BailingMoeForCausalLM"]));
        std::fs::write(folder.path().join("config.json"), Value::Object(settings).to_string()).unwrap();
        assert!(HfModel::open(folder.path()).is_err(), "another class");
    }
}

/// SHA-256 (FIPS 180-4) as hexadecimal digits.
fn sha256(message: &[u8]) -> String {
    // The first 32 bits of the fractional parts of roots of the first 64 primes.
    let primes = (2_u64..).filter(|n| (2..*n).all(|divisor| n % divisor != 0)).take(64);
    let roots: Vec<(u32, u32)> = primes.map(|prime| (root_fraction(prime, 2), root_fraction(prime, 3))).collect();
    let mut state: Vec<u32> = roots[..8].iter().map(|(square, _)| *square).collect();
    let mut padded = [message, &[0x80]].concat();
    padded.resize((message.len() + 9).next_multiple_of(64) - 8, 0);
    padded.extend((8 * message.len() as u64).to_be_bytes());
    for block in padded.as_chunks::<64>().0 {
        let mut w: Vec<u32> = block.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        for t in 16..64 {
            let (x, y) = (w[t - 15], w[t - 2]);
            let small_0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
            let small_1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
            w.push(w[t - 16].wrapping_add(small_0).wrapping_add(w[t - 7]).wrapping_add(small_1));
        }
        let mut v = state.clone();
        for t in 0..64 {
            let large_1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = (v[4] & v[5]) ^ (!v[4] & v[6]);
            let terms = [v[7], large_1, choice, roots[t].1, w[t]];
            let first = terms.into_iter().fold(0, u32::wrapping_add);
            let large_0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(first);
            v[0] = first.wrapping_add(large_0).wrapping_add(majority);
        }
        state.iter_mut().zip(v).for_each(|(sum, v)| *sum = sum.wrapping_add(v));
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// The first 32 bits of the fractional part of a root of `prime`: the largest `x` with
/// `x^degree <= prime * 2^(32 * degree)`, without the bits above.
fn root_fraction(prime: u64, degree: u32) -> u32 {
    let root = (0..36).rev().fold(0_u128, |root, bit| {
        let larger = root | (1 << bit);
        if larger.pow(degree) <= u128::from(prime) << (32 * degree) { larger } else { root }
    });
    root as u32
}

#[test]
fn digests_are_those_of_the_standard() {
    assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert!(sha256(&[b'a'; 1_000_000]).starts_with("cdc76e5c9914fb92"));
}
