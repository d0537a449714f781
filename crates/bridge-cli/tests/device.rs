//! A short training run on the device that the build is for, against the same run on the CPU. `cargo xtask test --device wgpu` runs
//! it; a build without a GPU feature has nothing here.
#![cfg(any(feature = "cuda", feature = "vulkan", feature = "wgpu"))]

mod support;

use support::{losses_of, run_in};

const DEVICE: &str = if cfg!(feature = "cuda") {
    "cuda"
} else if cfg!(feature = "vulkan") {
    "vulkan"
} else {
    "wgpu"
};

/// Training losses of the tiny recipe, in float32.
fn losses(device: &str, arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let device = format!("device={device}");
    run_in(folder.path(), &[arguments, &[device.as_str(), "train.train_iters=6", "validation.eval_iters=0"]].concat());
    losses_of(folder.path(), "train")
}

/// Sums have another order on each device; six steps of Adam let a difference of 1e-7 grow to less than this.
const TOLERANCE: f64 = 2e-5;

fn check(arguments: &[&str]) {
    let (found, expected) = (losses(DEVICE, arguments), losses("flex", arguments));
    println!("{DEVICE}: {found:?}\nflex: {expected:?}");
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= TOLERANCE * expected, "step {step}: {found}, on the CPU {expected}");
    }
}

#[test]
fn a_llama_trains_as_on_the_cpu() {
    check(&[]);
}

#[test]
fn a_gpt_2_trains_as_on_the_cpu() {
    check(&[
        "model.normalization=LayerNorm",
        "model.position_embedding_type=learned_absolute",
        "model.gated_linear_unit=false",
        "model.activation_func=gelu",
        "model.add_bias_linear=true",
        "model.num_query_groups=8",
        "model.share_embeddings_and_output_weights=true",
    ]);
}
