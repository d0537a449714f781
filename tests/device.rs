//! A short training run on the device that the build is for, against the same run on the CPU.
//! `cargo xtask test --device wgpu` runs it; a build without a GPU feature has nothing here.
#![cfg(any(feature = "cuda", feature = "vulkan", feature = "wgpu"))]

#[path = "device/graphs.rs"]
mod graphs;

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{CheckpointStore, LoadRequest, Resolution};
use bridge_core::config::{World, load};
use bridge_core::plan::{PlanOptions, plan};
use bridge_core::train::{Console, HeldBytes, RunOptions, pretrain};
use bridge_models::registry;
use bridge_tests::{bridge, figures_in, losses_of, recipe, run_in};

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

/// Sums have another order on each device; six steps of Adam let a difference of 1e-7 grow to less
/// than this.
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

/// Overrides that turn the tiny recipe's Llama into a GPT-2.
const GPT_2: [&str; 7] = [
    "model.normalization=LayerNorm",
    "model.position_embedding_type=learned_absolute",
    "model.gated_linear_unit=false",
    "model.activation_func=gelu",
    "model.add_bias_linear=true",
    "model.num_query_groups=8",
    "model.share_embeddings_and_output_weights=true",
];

#[test]
fn a_gpt_2_trains_as_on_the_cpu() {
    check(&GPT_2);
}

/// Bytes of activations that the steps of a run moved.
fn moved_bytes(arguments: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let device = format!("device={DEVICE}");
    run_in(folder.path(), &[arguments, &[device.as_str(), "train.train_iters=2", "validation.eval_iters=0"]].concat());
    figures_in(&folder.path().join("runs/tiny"), "train", "offloaded_activation_bytes")
}

/// Activations of modules on the host between forward and backward, on one stage and on two: the
/// losses are those of a run that keeps them.
#[test]
fn activations_on_the_host_change_no_loss() {
    let moved = [
        "model.fine_grained_activation_offloading=true",
        "model.offload_modules=['attn_norm', 'qkv_linear', 'core_attn', 'attn_proj', 'mlp_norm']",
    ];
    let check_moved = |arguments: &[&str]| {
        check(arguments);
        assert!(moved_bytes(arguments).into_iter().all(|bytes| bytes > 0.0), "{arguments:?}");
    };
    check_moved(&moved);
    let first = format!("{DEVICE}:0");
    check_on(&first, &[&moved[..], &["--ranks", "2", "model.pipeline_model_parallel_size=2"]].concat());
    let experts = ["model.num_moe_experts=4", "model.moe_ffn_hidden_size=32", "model.moe_router_topk=2"];
    let modules = ["model.fine_grained_activation_offloading=true", "model.offload_modules=['expert_fc1', 'moe_act']"];
    check_moved(&[&modules[..], &experts].concat());
    // Streams of 2^20 elements, which move with their layer.
    let large =
        ["model.seq_length=128", "train.micro_batch_size=64", "train.global_batch_size=64", "model.hidden_size=128"];
    check_moved(&[&large[..], &["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1"]].concat());
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

/// Weights of sharded parameters that are gathered as 8-bit codes, from one rank's memory of the
/// device to the other's: losses are those of weights that are gathered without a cast, to the bit.
#[test]
fn weights_that_travel_as_codes_on_a_device_change_no_bit() {
    let first = format!("{DEVICE}:0");
    let layout = [
        "--ranks",
        "2",
        "ddp.use_megatron_fsdp=true",
        "ddp.data_parallel_sharding_strategy=optim_grads_params",
        "model.fp8=hybrid",
    ];
    for recipe in ["tensorwise", "delayed"] {
        let recipe = format!("model.fp8_recipe={recipe}");
        // Sizes that two ranks do not divide equally.
        let all = [&layout[..], &[recipe.as_str(), "model.ffn_hidden_size=191"]].concat();
        let expected = losses(&first, &all);
        assert_eq!(losses(&first, &[&all[..], &["ddp.fp8_param_gather=true"]].concat()), expected, "{recipe}");
    }
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

const OFFLOAD: &str = "optimizer.optimizer_cpu_offload=true";
const AHEAD: &str = "optimizer.overlap_cpu_optimizer_d2h_h2d=true";

fn fraction(fraction: f64) -> String {
    format!("optimizer.optimizer_offload_fraction={fraction:?}")
}

fn assert_near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= TOLERANCE * expected, "{what}, step {step}: {found}, expected {expected}");
    }
}

/// Memory of a run on the device at its end, and the optimizer states of its plan.
fn held(more: &[&str]) -> (HeldBytes, [u64; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let mut overrides: Vec<String> = more.iter().map(|text| (*text).to_owned()).collect();
    overrides.extend([
        format!("logger.log_dir={:?}", folder.path().join("logs")),
        format!("device={DEVICE}"),
        "train.train_iters=2".into(),
        "validation.eval_iters=0".into(),
    ]);
    let config = load(&recipe(), &overrides, &registry().kinds(), &World { size: 1 }).unwrap();
    let memory = plan(&config, &registry().models, &PlanOptions::default()).unwrap().stages[0].memory;
    let options = RunOptions { console: Console::Silent, ..RunOptions::new(registry()) };
    let report = pretrain(config, options).unwrap();
    (report.run.held_bytes(), [memory.optimizer, memory.host_optimizer])
}

#[test]
fn offloaded_states_are_in_host_memory() {
    let (plain, planned) = held(&[]);
    assert_eq!((plain.optimizer, plain.host_optimizer), (2 * plain.parameters, 0), "two moments of each parameter");
    assert_eq!([plain.optimizer, plain.host_optimizer], planned);
    for share in [0.3, 1.0] {
        for more in [&[][..], &[AHEAD]] {
            let (moved, planned) = held(&[&[OFFLOAD, fraction(share).as_str()][..], more].concat());
            assert_eq!([moved.optimizer, moved.host_optimizer], planned, "{share}");
            assert_eq!(moved.optimizer + moved.host_optimizer, plain.optimizer, "{share}");
            assert!(moved.host_optimizer as f64 >= share * plain.optimizer as f64, "{share}: {moved:?}");
            assert_eq!(moved.optimizer == 0, share == 1.0, "{moved:?}");
        }
    }
}

#[test]
fn offloaded_states_train_as_those_on_the_device() {
    let rules: [&[&str]; 4] = [
        &[],
        &["optimizer.optimizer=sgd", "optimizer.adam_beta2=null"],
        &["optimizer.optimizer=lion", "optimizer.adam_beta2=null", "optimizer.lr=1e-4", "optimizer.min_lr=1e-5"],
        &["optimizer.use_precision_aware_optimizer=true", "optimizer.exp_avg_dtype=fp8"],
    ];
    for rule in rules {
        let expected = losses(DEVICE, rule);
        for (share, more) in [(0.4, &[][..]), (1.0, &[AHEAD])] {
            let share = fraction(share);
            let found = losses(DEVICE, &[rule, &[OFFLOAD, share.as_str()], more].concat());
            assert_near(&format!("{rule:?} {share} {more:?}"), &found, &expected);
        }
    }
    let all = fraction(1.0);
    let first = format!("{DEVICE}:0");
    let two = ["--ranks", "2", "ddp.use_distributed_optimizer=true"];
    let found = losses(&first, &[&two[..], &[OFFLOAD, all.as_str(), AHEAD]].concat());
    assert_near("two ranks", &found, &losses(&first, &two));
}

/// The newest checkpoint's tensors: names with shapes and dtypes.
fn saved(folder: &Path) -> BTreeMap<String, String> {
    let store = CheckpointStore::open(folder.join("checkpoints")).unwrap();
    let Resolution::Found(found) = store.resolve(&LoadRequest::default()).unwrap() else { panic!("no checkpoint") };
    let names: Vec<String> = found.checkpoint.names().map(str::to_owned).collect();
    let record = |name: &String| {
        let record = found.checkpoint.tensor(name).unwrap();
        (name.clone(), format!("{:?} {:?}", record.dtype, record.shape))
    };
    names.iter().map(record).collect()
}

#[test]
fn runs_go_on_with_states_in_the_other_memory() {
    let all = fraction(1.0);
    let moved = [OFFLOAD, all.as_str()];
    let device = format!("device={DEVICE}");
    let run = |folder: &Path, more: &[&str]| {
        let usual = [device.as_str(), "train.train_iters=6", "validation.eval_iters=0", "checkpoint.save=checkpoints"];
        run_in(folder, &[&usual[..], more].concat());
    };
    let whole = tempfile::tempdir().unwrap();
    run(whole.path(), &[]);
    let expected = losses_of(whole.path(), "train");
    for (first, then) in [(&moved[..], &[][..]), (&[], &moved)] {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), &[first, &["train.exit_interval=3"]].concat());
        run(folder.path(), then);
        assert_near(&format!("{first:?}, then {then:?}"), &losses_of(folder.path(), "train"), &expected);
        assert_eq!(saved(folder.path()), saved(whole.path()), "{first:?}, then {then:?}");
    }
}

#[test]
fn states_that_the_host_has_no_memory_for_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Llama 3 405B: states of 3 TB.
    let sizes = ["hidden_size=16384", "num_attention_heads=128", "ffn_hidden_size=53248", "num_layers=126"];
    let sizes = sizes.map(|size| format!("model.{size}"));
    let (device, all) = (format!("device={DEVICE}"), fraction(1.0));
    let arguments: Vec<&str> = sizes.iter().map(String::as_str).chain([device.as_str(), OFFLOAD, &all]).collect();
    let output = bridge(folder.path(), &arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("optimizer states in host memory") && error.contains("optimizer_offload_fraction"),
        "{error}"
    );
}
