//! `[peft]` on a base in 8 or 4 bits: every layout, stopped and resumed, refusals, and plans.

use bridge_core::config::{RawConfig, RunConfig, World};
use bridge_core::plan::{PlanOptions, plan};
use bridge_models::registry;
use bridge_tests::{assert_close, root};

use super::peft::{FULL, STAGES, TENSOR, base, checkpoint, config, figures, of_base, train};

/// Ranks divide the tiny model's 64 inputs.
const BLOCKS: &str = "peft.base_quantization_block_size=32";
const NF4: &str = "peft.base_quantization=nf4";
const INT8: &str = "peft.base_quantization=int8";
const INT8_TABLE: &str = "peft.base_quantization_embedding=int8";

#[test]
fn a_quantised_base_trains_on_every_layout_like_on_one_rank() {
    let base = base();
    let from = of_base(base.path());
    let run = |ranks, overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        train(&config(folder.path(), "tiny-lora.toml", ranks, &[&[from.as_str()], overrides].concat())).unwrap();
        figures(folder.path())
    };
    let (plain, _) = run(1, &[]);
    for kind in [&[NF4, BLOCKS, INT8_TABLE][..], &[INT8, BLOCKS, "peft.kind=dora", "peft.alpha=8"], &[INT8_TABLE]] {
        let of = |overrides: &[&'static str]| [kind, overrides].concat();
        let (losses, norms) = run(1, &of(&[]));
        // A quantized base gives other losses, but similar ones.
        assert_ne!(losses, plain, "{kind:?}");
        assert!(losses.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 0.05 * b), "{losses:?}, in float32 {plain:?}");
        let replicas = "ddp.use_distributed_optimizer=true";
        for (ranks, overrides) in [(2, vec![]), (2, vec![replicas]), (2, vec![TENSOR]), (2, vec![STAGES])] {
            let (found, found_norms) = run(ranks, &of(&overrides));
            assert_close(&found, &losses, &format!("{kind:?} {overrides:?}"));
            for (a, b) in found_norms.iter().zip(&norms) {
                assert!((a - b).abs() <= 1e-4 * b, "{kind:?} {overrides:?}: {found_norms:?}, expected {norms:?}");
            }
        }
    }
}

#[test]
fn a_run_on_a_quantised_base_goes_on_bit_for_bit() {
    let base = base();
    let from = of_base(base.path());
    let of = |more: &[&'static str]| {
        let settings = [from.as_str(), NF4, BLOCKS, INT8_TABLE, "peft.dropout=0.2", "checkpoint.save_interval=2"];
        [&settings[..], more].concat()
    };
    let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(&config(whole.path(), "tiny-lora.toml", 1, &of(&[]))).unwrap();
    train(&config(halves.path(), "tiny-lora.toml", 1, &of(&["train.exit_interval=2"]))).unwrap();
    // Another quantisation is another base.
    for (change, key) in [
        (INT8, "peft.base_quantization"),
        ("peft.base_quantization_block_size=16", "peft.base_quantization_block_size"),
        ("peft.base_quantization_embedding=none", "peft.base_quantization_embedding"),
    ] {
        let error = train(&config(halves.path(), "tiny-lora.toml", 1, &of(&[change]))).unwrap_err();
        assert!(error.contains(key), "{change}: {error}");
    }
    train(&config(halves.path(), "tiny-lora.toml", 1, &of(&[]))).unwrap();
    assert_eq!(figures(halves.path()), figures(whole.path()));
    let [a, b] = [&whole, &halves].map(|folder| checkpoint(folder.path(), 4));
    let names: Vec<&str> = a.names_in("model").collect();
    assert!(!names.is_empty() && names.iter().all(|name| name.contains(".adapter.")), "{names:?}");
    for name in names {
        assert_eq!(a.load_tensor(name).unwrap().bytes(), b.load_tensor(name).unwrap().bytes(), "{name}");
    }
}

#[test]
fn branches_that_see_a_quantised_base_through_dropout_learn_nearly_the_same() {
    let base = base();
    let from = of_base(base.path());
    let run = |overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let common = [from.as_str(), "peft.kind=dora", "peft.dropout=0.3", "peft.lora_B_init_method=normal"];
        train(&config(folder.path(), "tiny-lora.toml", 1, &[&common[..], overrides].concat())).unwrap();
        figures(folder.path())
    };
    let ((losses, norms), (plain, plain_norms)) = (run(&[INT8]), run(&[]));
    for (a, b) in losses.iter().zip(&plain).chain(norms.iter().zip(&plain_norms)) {
        assert!((a - b).abs() <= 0.02 * b, "{losses:?} {norms:?}, in float32 {plain:?} {plain_norms:?}");
    }
}

#[test]
fn what_a_quantised_base_cannot_be_is_refused_with_its_reason() {
    let base = base();
    let from = of_base(base.path());
    let folder = tempfile::tempdir().unwrap();
    // Blocks of 64 on ranks with 32 inputs.
    let error = train(&config(folder.path(), "tiny-lora.toml", 2, &[&from, NF4, TENSOR])).unwrap_err();
    assert!(error.contains("peft.base_quantization_block_size") && error.contains("32 inputs each"), "{error}");
    let refused = |overrides: &[&str], ranks: usize| {
        let overrides: Vec<String> = [&[from.as_str()], overrides].concat().iter().map(|o| (*o).to_owned()).collect();
        let recipe = root().join("recipes/tiny-lora.toml");
        let raw = RawConfig::from_file(&recipe, &overrides, &registry().kinds()).unwrap();
        raw.finalize(&World { size: ranks }).and_then(RunConfig::strict).unwrap_err().to_string()
    };
    let error = refused(&[&[NF4], &FULL[..]].concat(), 2);
    assert!(error.contains("peft.base_quantization") && error.contains("end inside blocks"), "{error}");
    let error = refused(&[NF4, "mixed_precision=bf16_mixed"], 1);
    assert!(error.contains("peft.base_quantization") && error.contains("float32"), "{error}");
    let error = refused(&[BLOCKS], 1);
    assert!(error.contains("has no effect without peft.base_quantization"), "{error}");
    let error = refused(&[NF4, "peft.base_quantization_block_size=33"], 1);
    assert!(error.contains("must be even"), "{error}");
}

#[test]
fn a_plan_knows_how_many_bytes_a_quantised_base_has() {
    let parameters = |overrides: &[&str]| {
        let overrides = [&["checkpoint.pretrained_checkpoint=ckpt", "train.global_batch_size=4"], overrides].concat();
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let recipe = root().join("recipes/tiny-lora.toml");
        let raw = RawConfig::from_file(&recipe, &overrides, &registry().kinds()).unwrap();
        let config = raw.finalize(&World { size: 1 }).unwrap();
        plan(&config, &registry().models, &PlanOptions::default()).unwrap().stages[0].memory.parameters
    };
    // Matrices of each of two layers: queries, keys and values, projection, gate and up, down.
    let matrices = [[128, 64], [64, 64], [384, 64], [64, 192]];
    let weights: u64 = 2 * matrices.iter().map(|[outputs, inputs]| outputs * inputs).sum::<u64>();
    let plain = parameters(&[]);
    assert_eq!(parameters(&[NF4]), plain - 4 * weights + weights / 2 + 2 * weights / 64);
    assert_eq!(parameters(&[INT8, BLOCKS]), plain - 4 * weights + weights + 2 * weights / 32);
    // The embedding and the head, which are not tied.
    let tables = 2 * 512 * 64;
    assert_eq!(parameters(&[INT8_TABLE]), plain - 4 * tables + tables + 2 * tables / 64);
}

/// FLOPs of a token, forward and backward.
fn flops_per_token(recipe: &str, overrides: &[&str]) -> f64 {
    let base = "checkpoint.pretrained_checkpoint=ckpt";
    let overrides: Vec<String> = overrides.iter().chain([&base]).map(|o| (*o).to_owned()).collect();
    let raw = RawConfig::from_file(&root().join("recipes").join(recipe), &overrides, &registry().kinds()).unwrap();
    let config = raw.finalize(&World { size: 1 }).unwrap();
    plan(&config, &registry().models, &PlanOptions::default()).unwrap().flops.per_token
}

#[test]
fn plans_count_the_products_of_branches_and_no_gradients_of_frozen_weights() {
    let same = ["model.seq_length=64", "train.global_batch_size=4", "train.micro_batch_size=2"];
    let full = flops_per_token("tiny.toml", &same);
    let layer: f64 = [[128, 64], [64, 64], [384, 64], [64, 192]].iter().map(|[o, i]| f64::from(o * i)).sum();
    let head = 512.0 * 64.0;
    // Inputs and outputs of queries, values, projection, gate and up, down; branches of rank 8.
    let branches: f64 =
        [[64, 64], [64, 32], [64, 64], [64, 384], [192, 64]].iter().map(|[i, o]| f64::from(8 * (i + o))).sum();
    let adapted = flops_per_token("tiny-lora.toml", &same);
    let expected = full - 2.0 * (2.0 * layer + head) + 6.0 * 2.0 * branches;
    assert!((adapted - expected).abs() < 1e-6 * expected, "{adapted}, expected {expected} of {full}");
    // The first layer has no backward if only the second one is trained.
    let second = [&same[..], &["peft.target_modules=[\"*.layers.1.mlp.linear_fc2\"]"]].concat();
    let found = flops_per_token("tiny-lora.toml", &second);
    let attention = (full - 6.0 * (2.0 * layer + head)) / 2.0;
    let expected = (6.0 * layer + attention) / 3.0 + 4.0 * (layer + head) + attention + 6.0 * 8.0 * (192.0 + 64.0);
    // The attention of the second layer comes before the first trained segment.
    let cut = (attention + 6.0 * f64::from(128 * 64 + 64 * 64)) / 3.0 - attention - 4.0 * f64::from(128 * 64 + 64 * 64);
    let expected = expected + cut;
    assert!((found - expected).abs() < 1e-6 * expected, "{found}, expected {expected} of {full}");
}
