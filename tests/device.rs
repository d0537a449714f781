//! A short training run on the device that the build is for, against the same run on the CPU. `cargo xtask test --device wgpu` runs
//! it; a build without a GPU feature has nothing here.
#![cfg(any(feature = "cuda", feature = "vulkan", feature = "wgpu"))]

use bridge_tests::{bridge, figures_in, losses_of, run_in};

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
    check_on(DEVICE, arguments);
}

fn check_on(device: &str, arguments: &[&str]) {
    let (found, expected) = (losses(device, arguments), losses("flex", arguments));
    println!("{device}: {found:?}\nflex: {expected:?}");
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

/// Bytes of activations that the steps of a run moved.
fn moved_bytes(arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let device = format!("device={DEVICE}");
    run_in(folder.path(), &[arguments, &[device.as_str(), "train.train_iters=2", "validation.eval_iters=0"]].concat());
    figures_in(&folder.path().join("runs/tiny"), "train", "offloaded_activation_bytes")
}

/// Activations of modules on the host between forward and backward, on one stage and on two: the losses are those of a run that keeps them.
#[test]
fn activations_on_the_host_change_no_loss() {
    let moved = [
        "model.fine_grained_activation_offloading=true",
        "model.offload_modules=['attn_norm', 'qkv_linear', 'core_attn', 'attn_proj', 'mlp_norm']",
    ];
    check(&moved);
    assert!(moved_bytes(&moved).into_iter().all(|bytes| bytes > 0.0));
    let first = format!("{DEVICE}:0");
    check_on(&first, &[&moved[..], &["--ranks", "2", "model.pipeline_model_parallel_size=2"]].concat());
    let experts = ["model.num_moe_experts=4", "model.moe_ffn_hidden_size=32", "model.moe_router_topk=2"];
    let modules = ["model.fine_grained_activation_offloading=true", "model.offload_modules=['expert_fc1', 'moe_act']"];
    check(&[&modules[..], &experts].concat());
    // Streams of 2^20 elements, which move with their layer.
    let large =
        ["model.seq_length=128", "train.micro_batch_size=64", "train.global_batch_size=64", "model.hidden_size=128"];
    check(&[&large[..], &["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1"]].concat());
}

/// Ranks that are threads, all on the first device: losses are those of one rank on the CPU.
#[test]
fn ranks_that_share_a_device_train_as_on_the_cpu() {
    let first = format!("{DEVICE}:0");
    let two = ["--ranks", "2"];
    check_on(&first, &two);
    check_on(&first, &[&two[..], &["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]].concat());
    check_on(&first, &[&two[..], &["model.pipeline_model_parallel_size=2"]].concat());
    check_on(&first, &[&two[..], &["ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true"]].concat());
}

/// Without a number each rank takes a device of its own.
#[test]
fn ranks_that_outnumber_devices_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let device = format!("device={DEVICE}");
    let output = bridge(folder.path(), &[device.as_str(), "--ranks", "33", "train.global_batch_size=33"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("device of its own") && error.contains(&format!("`{DEVICE}:0`")), "{error}");
}
