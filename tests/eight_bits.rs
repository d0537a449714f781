//! Training with products of 8-bit operands: near the run without them, the same on any ranks that
//! cut no operand, exact to resume.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{CheckpointStore, Verification};
use bridge_tests::{assert_close, bridge, bridge_on, copy, figures_in, losses_of, recipe, root, run, run_in};

const CURRENT: [&str; 2] = ["model.fp8=hybrid", "model.fp8_recipe=tensorwise"];
const DELAYED: [&str; 4] =
    ["model.fp8=hybrid", "model.fp8_recipe=delayed", "model.fp8_amax_history_len=4", "model.fp8_amax_compute_algo=max"];
const MICROSCALING: [&str; 2] = ["model.fp8=e4m3", "model.fp8_recipe=mxfp8"];
const BLOCKWISE: [&str; 2] = ["model.fp8=hybrid", "model.fp8_recipe=blockwise"];
const ALL: [&[&str]; 4] = [&CURRENT, &DELAYED, &MICROSCALING, &BLOCKWISE];

const MAMBA: [&str; 6] = [
    "model.kind=mamba",
    "model.position_embedding_type=none",
    "model.mamba_head_dim=16",
    "model.mamba_num_groups=2",
    "model.gated_linear_unit=false",
    "model.activation_func=gelu",
];

/// The largest relative distance of losses.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
}

#[test]
fn losses_are_near_those_of_32_bits_and_others() {
    let exact = run(&[]);
    let mut seen = vec![exact.clone()];
    for eight_bits in ALL {
        let found = run(eight_bits);
        let distance = distance(&found, &exact);
        assert!(distance > 1e-6 && distance < 0.01, "{eight_bits:?}: {distance:e} from float32");
        assert!(!seen.contains(&found), "{eight_bits:?} trains as another recipe does");
        seen.push(found);
    }
}

/// The same losses until sums in another order tip a value over to the next one of 8 bits, and near
/// ones from then on.
fn assert_alike(found: &[f64], single: &[f64], what: &str) {
    assert_close(&found[..4], &single[..4], what);
    let distance = distance(found, single);
    assert!(distance < 1e-3, "{what}: {distance:e}");
}

#[test]
fn ranks_that_cut_no_operand_train_like_one() {
    let sharded = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    // The micro-batches must be the same, because scales depend on their content.
    let one = |eight_bits: &[&str]| run(&[eight_bits, &["train.micro_batch_size=1"]].concat());
    for eight_bits in ALL {
        let single = one(eight_bits);
        let on = |ranks: &'static str, more: &[&str]| {
            run(&[eight_bits, &["--ranks", ranks, "train.micro_batch_size=1"], more].concat())
        };
        assert_alike(&on("2", &[]), &single, &format!("{eight_bits:?}, 2 replicas"));
        assert_alike(&on("2", &sharded), &single, &format!("{eight_bits:?}, fully sharded"));
        let stages = ["model.pipeline_model_parallel_size=2"];
        assert_close(&on("2", &stages), &single, &format!("{eight_bits:?}, 2 stages"));
        // Each rank casts its own part.
        let cut = on("2", &["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]);
        let distance = distance(&cut, &single);
        assert!(distance < 0.01, "{eight_bits:?}, tensor-parallel: {distance:e}");
    }
}

/// Sharded parameters, and weights that are gathered as 8-bit codes.
const SHARDED: [&str; 2] = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
const CODES: [&str; 1] = ["ddp.fp8_param_gather=true"];

#[test]
fn weights_that_travel_as_codes_change_no_bit() {
    let moe = root().join("recipes/tiny-moe.toml");
    let losses = |recipe: &Path, arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let output = bridge_on(recipe, folder.path(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let logs = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
        figures_in(&logs, "train", "loss")
    };
    for (recipe, eight_bits, layout) in [
        (&recipe(), &CURRENT[..], &["--ranks", "2"][..]),
        (&recipe(), &DELAYED, &["--ranks", "3", "train.global_batch_size=6", "train.micro_batch_size=1"]),
        (&recipe(), &CURRENT, &["--ranks", "2", "mixed_precision=bf16_mixed", "ddp.overlap_param_gather=true"]),
        (&recipe(), &DELAYED, &["--ranks", "2", "mixed_precision=bf16_mixed", "ddp.overlap_param_gather=true"]),
        (&recipe(), &DELAYED, &["--ranks", "4", "model.tensor_model_parallel_size=2", "mixed_precision=fp16_mixed"]),
        (&recipe(), &CURRENT, &["--ranks", "4", "model.pipeline_model_parallel_size=2"]),
        (&moe, &DELAYED, &["--ranks", "4", "model.expert_model_parallel_size=2"]),
        (&moe, &CURRENT, &["--ranks", "4", "model.expert_model_parallel_size=2"]),
    ] {
        let all = [eight_bits, layout, &SHARDED].concat();
        let expected = losses(recipe, &all);
        assert!(expected.len() > 5, "{all:?}");
        assert_eq!(losses(recipe, &[&all[..], &CODES].concat()), expected, "{all:?}");
    }
}

#[test]
fn runs_go_on_with_values_where_codes_travelled() {
    for eight_bits in [&CURRENT[..], &DELAYED] {
        let all = [eight_bits, &["--ranks", "2", "mixed_precision=bf16_mixed"], &SHARDED].concat();
        let whole = tempfile::tempdir().unwrap();
        run_in(whole.path(), &all);
        let expected = losses_of(whole.path(), "train");
        let folder = tempfile::tempdir().unwrap();
        let saved = ["checkpoint.save=checkpoints"];
        run_in(folder.path(), &[&all[..], &saved, &CODES, &["train.exit_interval=10"]].concat());
        run_in(folder.path(), &[&all[..], &saved].concat());
        assert_eq!(losses_of(folder.path(), "train"), expected, "{eight_bits:?}");
    }
}

/// Scales and newest magnitudes of a run of one step, by parameter.
fn magnitudes(arguments: &[&str]) -> BTreeMap<String, Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    let one = ["checkpoint.save=checkpoints", "train.exit_interval=1", "train.micro_batch_size=1"];
    let recipe = root().join("recipes/tiny-moe.toml");
    let output = bridge_on(&recipe, folder.path(), &[&DELAYED[..], &one, arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let store = CheckpointStore::open(folder.path().join("checkpoints")).unwrap();
    let checkpoint = store.open_iteration(1, Verification::Sizes).unwrap();
    let names: Vec<String> =
        checkpoint.names_in("model").filter(|name| name.contains(".fp8_")).map(str::to_owned).collect();
    names.into_iter().map(|name| (name.clone(), checkpoint.load_float_rows(&name, 0..3).unwrap())).collect()
}

#[test]
fn ranks_that_share_a_layer_share_its_magnitudes() {
    let single = magnitudes(&[]);
    assert!(single.len() > 20, "{:?}", single.keys());
    for layout in [
        &["--ranks", "2", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"][..],
        &["--ranks", "2", "model.expert_model_parallel_size=2"],
        &["--ranks", "2"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
    ] {
        let found = magnitudes(layout);
        assert_eq!(found.keys().collect::<Vec<_>>(), single.keys().collect::<Vec<_>>(), "{layout:?}");
        for (name, expected) in &single {
            for (a, b) in found[name].iter().zip(expected) {
                assert!((a - b).abs() <= 0.02 * b.abs(), "{layout:?}: {name}: {a}, expected {b}");
            }
        }
    }
}

/// Half of the steps, and the other half from the checkpoint.
fn resumed(folder: &Path, arguments: &[&str]) -> Vec<f64> {
    let saved = ["checkpoint.save=checkpoints"];
    run_in(folder, &[arguments, &saved, &["train.exit_interval=10"]].concat());
    assert_eq!(losses_of(folder, "train").len(), 10);
    run_in(folder, &[arguments, &saved].concat());
    losses_of(folder, "train")
}

#[test]
fn a_resumed_run_has_the_scales_of_the_uninterrupted_one() {
    let uninterrupted = tempfile::tempdir().unwrap();
    run_in(uninterrupted.path(), &DELAYED);
    let expected = losses_of(uninterrupted.path(), "train");
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(resumed(folder.path(), &DELAYED), expected);
    let split = [&DELAYED[..], &["--ranks", "2", "model.pipeline_model_parallel_size=2"]].concat();
    let stages = tempfile::tempdir().unwrap();
    assert_close(&resumed(stages.path(), &split), &expected, "2 stages");
}

#[test]
fn runs_go_from_32_bits_to_8_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let run_to = |to: &str, more: &[&str]| {
        run_in(folder.path(), &[&["checkpoint.save=checkpoints", to], more].concat());
        losses_of(folder.path(), "train").len()
    };
    assert_eq!(run_to("train.exit_interval=5", &[]), 5);
    assert_eq!(run_to("train.exit_interval=10", &DELAYED), 10);
    assert_eq!(run_to("train.exit_interval=15", &[]), 15);
    // Sharded, and with another history.
    let sharded =
        ["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    assert_eq!(run_to("train.exit_interval=17", &[&DELAYED[..], &sharded].concat()), 17);
    assert_eq!(run_to("train.exit_interval=18", &[&DELAYED[..2], &sharded].concat()), 18);
    assert_eq!(run_to("train.exit_interval=20", &MICROSCALING), 20);
}

#[test]
fn layers_at_the_ends_can_be_left_out() {
    let four = |more: &[&str]| run(&[&CURRENT[..], &["model.num_layers=4"], more].concat());
    let edges = four(&["model.first_last_layers_bf16=true"]);
    assert_ne!(edges, four(&[]));
    let stages = ["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.first_last_layers_bf16=true"];
    assert_close(&four(&stages), &edges, "2 stages");
    let folder = tempfile::tempdir().unwrap();
    let refused = bridge(folder.path(), &[&CURRENT[..], &["model.first_last_layers_bf16=true"]].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("leaves none of the 2 layers to model.fp8"), "{said}");
}

/// Norms of gradients and losses are finite and the loss falls.
fn assert_trains(recipe: &Path, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge_on(recipe, folder.path(), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let logs = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let losses = figures_in(&logs, "train", "loss");
    assert!(losses.len() > 5 && losses[losses.len() - 1] < losses[0], "{recipe:?} {arguments:?}: {losses:?}");
}

#[test]
fn every_kind_of_model_has_them() {
    for (name, kind) in [("tiny-moe.toml", &[][..]), ("tiny.toml", &MAMBA), ("tiny-t5.toml", &[])] {
        let recipe = root().join("recipes").join(name);
        for eight_bits in [&DELAYED[..], &BLOCKWISE] {
            assert_trains(&recipe, &[kind, eight_bits].concat());
        }
    }
    assert_trains(
        &root().join("recipes/tiny-moe.toml"),
        &[&DELAYED[..], &["--ranks", "2", "model.expert_model_parallel_size=2"]].concat(),
    );
    assert_trains(&recipe(), &["mixed_precision=bf16_with_fp8_delayed_scaling_mixed"]);
    assert_trains(
        &recipe(),
        &[
            "mixed_precision=bf16_with_mxfp8_mixed",
            "model.recompute_granularity=full",
            "model.recompute_method=uniform",
            "model.recompute_num_layers=1",
        ],
    );
}

#[test]
fn runs_that_only_try_have_them_too() {
    let folder = tempfile::tempdir().unwrap();
    for eight_bits in ALL {
        let output = bridge(folder.path(), &[eight_bits, &["--dry-run"]].concat());
        assert!(output.status.success(), "{eight_bits:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn what_was_trained_so_is_read_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), &[&DELAYED[..], &["checkpoint.save=checkpoints"]].concat());
    let command = |arguments: &[&str]| {
        let output = std::process::Command::new(bridge_tests::program())
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    command(&["checkpoint", "verify", "checkpoints"]);
    command(&["convert", "export", "checkpoints", "exported"]);
    command(&["convert", "import", "exported", "imported"]);
    // A model of its own begins with these weights.
    let other = tempfile::tempdir().unwrap();
    copy(&folder.path().join("checkpoints"), &other.path().join("base"));
    run_in(other.path(), &["checkpoint.pretrained_checkpoint=base"]);
}
