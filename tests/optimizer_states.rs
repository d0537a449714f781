//! States of the optimizer in less than 32 bits, in whole runs: saving, resuming at the same and at
//! other layouts, and bit-identical results.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::checkpoint::{
    Checkpoint, CheckpointStore, CheckpointWriter, DType, LoadRequest, Resolution, RunFiles, SaveOptions, ShardTensor,
    Snapshot, TensorGroup, Verification,
};
use bridge_tests::{bridge, copy, losses, losses_of, program, run_in};

const AWARE: &str = "optimizer.use_precision_aware_optimizer=true";
const SAVE: &str = "checkpoint.save=checkpoints";
const BF16: &str = "mixed_precision=bf16_mixed";
const ONE: &[&str] = &[];
const DISTRIBUTED: &[&str] = &["--ranks", "2", "ddp.use_distributed_optimizer=true"];
const FULL: &[&str] =
    &["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
const TENSOR_DISTRIBUTED: &[&str] =
    &["--ranks", "4", "model.tensor_model_parallel_size=2", "ddp.use_distributed_optimizer=true"];

/// 8-bit and scaled 16-bit moments of float32 parameters; remainders with bfloat16 moments; float16
/// masters with 8-bit moments.
const KEPT: [&[&str]; 3] = [
    &[AWARE, "optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=float16"],
    &[AWARE, BF16, "optimizer.exp_avg_dtype=bfloat16", "optimizer.exp_avg_sq_dtype=bfloat16"],
    &[
        AWARE,
        BF16,
        "optimizer.main_params_dtype=float16",
        "optimizer.exp_avg_dtype=uint8",
        "optimizer.exp_avg_sq_dtype=uint8",
    ],
];

fn newest(root: &Path) -> Checkpoint {
    let store = CheckpointStore::open(root).expect("a root of checkpoints");
    let Resolution::Found(found) = store.resolve(&LoadRequest::default()).expect("it can be read") else {
        panic!("no checkpoint in {}", root.display());
    };
    found.checkpoint
}

/// The bytes of all tensors.
fn tensors(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = newest(root);
    let names: Vec<String> = checkpoint.names().map(str::to_owned).collect();
    names.into_iter().map(|name| (name.clone(), checkpoint.load_tensor(&name).unwrap().bytes().to_vec())).collect()
}

#[test]
fn what_is_resumed_has_the_bits_of_what_ran_through_and_goes_on_at_other_layouts() {
    for kept in KEPT {
        for layout in [ONE, DISTRIBUTED, FULL] {
            let what = format!("{kept:?} at {layout:?}");
            let arguments = [kept, layout, &[SAVE]].concat();
            let (whole, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            run_in(whole.path(), &arguments);
            run_in(half.path(), &[&arguments[..], &["train.exit_interval=10"]].concat());
            let saved = tempfile::tempdir().unwrap();
            copy(half.path(), saved.path());
            run_in(half.path(), &arguments);
            assert_eq!(losses_of(half.path(), "train"), losses_of(whole.path(), "train"), "{what}");
            let roots = [whole.path(), half.path()].map(|folder| tensors(&folder.join("checkpoints")));
            assert!(roots[0] == roots[1], "{what}: checkpoints differ");
            let expected = losses_of(whole.path(), "train").split_off(10);
            for other in [ONE, DISTRIBUTED, FULL, TENSOR_DISTRIBUTED] {
                if other == layout {
                    continue;
                }
                let folder = tempfile::tempdir().unwrap();
                copy(&saved.path().join("checkpoints"), &folder.path().join("checkpoints"));
                run_in(folder.path(), &[kept, other, &[SAVE]].concat());
                // Sums in another order become other roundings of states; of bfloat16 activations,
                // too.
                for (a, b) in losses_of(folder.path(), "train").iter().zip(&expected) {
                    assert!((a - b).abs() < 2e-3 * b, "{what}, continued at {other:?}: {a}, expected {b}");
                }
            }
        }
    }
}

/// States by blocks are saved in float32, and come back as the codes that they were.
#[test]
fn states_by_blocks_are_resumed_to_the_bit_and_go_on_at_other_layouts() {
    for rule in ["optimizer.optimizer=adamw_8bit", "optimizer.optimizer=adamw_4bit"] {
        for (layout, other) in [(ONE, TENSOR_DISTRIBUTED), (DISTRIBUTED, ONE)] {
            let what = format!("{rule} at {layout:?}");
            let arguments = [&[rule, SAVE], layout].concat();
            let (whole, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            run_in(whole.path(), &arguments);
            run_in(half.path(), &[&arguments[..], &["train.exit_interval=10"]].concat());
            let elsewhere = tempfile::tempdir().unwrap();
            copy(&half.path().join("checkpoints"), &elsewhere.path().join("checkpoints"));
            run_in(half.path(), &arguments);
            assert_eq!(losses_of(half.path(), "train"), losses_of(whole.path(), "train"), "{what}");
            let roots = [whole.path(), half.path()].map(|folder| tensors(&folder.join("checkpoints")));
            assert!(roots[0] == roots[1], "{what}: checkpoints differ");
            run_in(elsewhere.path(), &[&[rule, SAVE], other].concat());
            let expected = losses_of(whole.path(), "train").split_off(10);
            for (a, b) in losses_of(elsewhere.path(), "train").iter().zip(&expected) {
                assert!((a - b).abs() < 5e-3 * b, "{what}, continued at {other:?}: {a}, expected {b}");
            }
        }
    }
}

/// Averages are those of the saved weights of each step, on any layout, and go on after a resume;
/// evaluations use them, and exports write them.
#[test]
fn averages_of_weights_are_saved_evaluated_and_exported() {
    let four = ["train.train_iters=4", "checkpoint.save_interval=1", "validation.eval_interval=2", SAVE];
    for layout in [ONE, DISTRIBUTED, FULL] {
        let (folder, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let arguments = [&["optimizer.ema_decay=0.75"], &four[..], layout].concat();
        run_in(folder.path(), &arguments);
        let store = CheckpointStore::open(folder.path().join("checkpoints")).unwrap();
        let at = |step| store.open_iteration(step, Verification::Sizes).unwrap();
        let floats = |checkpoint: &Checkpoint, name: &str| -> Vec<f64> {
            let rows = 0..checkpoint.tensor(name).unwrap().shape[0];
            checkpoint.load_float_rows(name, rows).unwrap().into_iter().map(f64::from).collect()
        };
        let last = at(4);
        for name in last.names_in("model") {
            let mut average = floats(&at(1), name);
            for step in 2..=4 {
                let weights = floats(&at(step), name);
                average.iter_mut().zip(weights).for_each(|(average, weight)| *average += 0.25 * (weight - *average));
            }
            for (found, expected) in floats(&last, &format!("optimizer.average.{name}")).iter().zip(&average) {
                assert!((found - expected).abs() < 1e-6, "{name} at {layout:?}: {found}, expected {expected}");
            }
        }
        run_in(half.path(), &[&arguments[..], &["train.exit_interval=2"]].concat());
        run_in(half.path(), &arguments);
        let roots = [&folder, &half].map(|folder| tensors(&folder.path().join("checkpoints")));
        assert!(roots[0] == roots[1], "{layout:?}: checkpoints differ after a resume");
    }
    let with = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        run_in(folder.path(), &[&four[..], more].concat());
        (losses_of(folder.path(), "train"), losses_of(folder.path(), "valid"), folder)
    };
    let (plain, newest_only, averaged) =
        (with(&[]), with(&["optimizer.ema_decay=0"]), with(&["optimizer.ema_decay=0.75"]));
    assert!(plain.0 == newest_only.0 && plain.0 == averaged.0, "averages change no step");
    assert_eq!(plain.1, newest_only.1);
    assert!(plain.1 != averaged.1 && !plain.1.is_empty(), "evaluations use averages");
    let commands = |folder: &Path| {
        let folder = folder.to_owned();
        move |arguments: &[&str]| {
            std::process::Command::new(program()).args(arguments).current_dir(&folder).output().expect("bridge starts")
        }
    };
    let run = commands(averaged.2.path());
    assert!(run(&["convert", "export", "checkpoints", "exported", "--ema"]).status.success());
    assert!(run(&["convert", "import", "exported", "imported"]).status.success());
    let (imported, saved) =
        (tensors(&averaged.2.path().join("imported")), tensors(&averaged.2.path().join("checkpoints")));
    for (name, bytes) in &imported {
        assert!(saved[&format!("optimizer.average.{name}")] == *bytes, "{name}");
    }
    let refused = commands(plain.2.path())(&["convert", "export", "checkpoints", "exported", "--ema"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("optimizer.ema_decay"));
}

/// Schedule-free runs are resumed from the weights that they trained; others take the average that
/// they evaluate.
#[test]
fn averages_of_schedule_free_runs_are_their_weights() {
    let arguments = [
        "optimizer.optimizer=schedule_free_adamw",
        "optimizer.min_lr=null",
        "scheduler.lr_decay_style=constant",
        "scheduler.lr_warmup_iters=0",
        "train.train_iters=4",
        SAVE,
    ];
    let run_on = |layout: &[&str]| {
        let (folder, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run_in(folder.path(), &[&arguments[..], layout].concat());
        run_in(half.path(), &[&arguments[..], layout, &["train.exit_interval=2"]].concat());
        run_in(half.path(), &[&arguments[..], layout].concat());
        let roots = [&folder, &half].map(|folder| tensors(&folder.path().join("checkpoints")));
        assert!(roots[0] == roots[1], "{layout:?}: checkpoints differ after a resume");
        folder
    };
    run_on(FULL);
    let folder = run_on(ONE);
    let bridge = |arguments: &[&str]| {
        let output = std::process::Command::new(program()).args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    bridge(&["convert", "export", "checkpoints", "exported"]);
    bridge(&["convert", "import", "exported", "imported"]);
    let [imported, saved] = ["imported", "checkpoints"].map(|root| tensors(&folder.path().join(root)));
    for (name, bytes) in &imported {
        assert!(saved[&format!("optimizer.average.{name}")] == *bytes, "{name}");
        assert!(saved[name] != *bytes, "{name}: the run goes on from other weights");
    }
    // A new run begins with the average: without steps it evaluates as the finished one did.
    let losses = losses_of(folder.path(), "test");
    let other = tempfile::tempdir().unwrap();
    let start = format!("checkpoint.pretrained_checkpoint={}", folder.path().join("checkpoints").display());
    run_in(
        other.path(),
        &[
            "train.train_iters=4",
            "optimizer.lr=0",
            "scheduler.lr_warmup_iters=0",
            "optimizer.min_lr=0",
            "optimizer.weight_decay=0",
            &start,
        ],
    );
    assert_eq!(losses_of(other.path(), "test"), losses);
    // An adapter knows the average as its base when it resumes, too.
    let (whole, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let adapter = ["peft.kind=lora", "peft.dim=4", "train.train_iters=4", SAVE, &start];
    run_in(whole.path(), &adapter);
    run_in(half.path(), &[&adapter[..], &["train.exit_interval=2"]].concat());
    run_in(half.path(), &adapter);
    let [whole, half] = [whole, half].map(|folder| tensors(&folder.path().join("checkpoints")));
    assert!(whole == half, "an adapter's checkpoints differ after a resume");
}

#[test]
fn remainders_change_no_bit_of_a_run() {
    let figures = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        run_in(folder.path(), &[&[BF16, SAVE][..], more].concat());
        (losses(folder.path()), tensors(&folder.path().join("checkpoints")))
    };
    for layout in [ONE, DISTRIBUTED, FULL] {
        let plain = figures(layout);
        let masters = plain.1.iter().filter(|(name, _)| name.starts_with("optimizer.master."));
        assert!(masters.count() > 0);
        assert!(figures(&[layout, &[AWARE]].concat()) == plain, "{layout:?}: remainders");
        let whole = figures(&[layout, &[AWARE, "optimizer.store_param_remainders=false"]].concat());
        assert!(whole == plain, "{layout:?}: whole masters");
    }
}

#[test]
fn checkpoints_have_codes_scales_and_float32_masters() {
    let dtypes = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        run_in(folder.path(), &[&[SAVE, "train.train_iters=3"][..], more].concat());
        let checkpoint = newest(&folder.path().join("checkpoints"));
        let mut found: BTreeMap<String, Vec<DType>> = BTreeMap::new();
        for name in checkpoint.names_in("optimizer").map(str::to_owned) {
            let kind = name.split('.').nth(1).unwrap().to_owned();
            let record = checkpoint.tensor(&name).unwrap();
            assert_eq!(record.shape == [1], kind.ends_with("_scale"), "{name}");
            found.entry(kind).or_default().push(record.dtype);
        }
        let count = found["exp_avg"].len();
        found
            .into_iter()
            .map(|(kind, dtypes)| {
                assert!(dtypes.len() == count && dtypes.iter().all(|dtype| *dtype == dtypes[0]), "{kind}: {dtypes:?}");
                (kind, dtypes[0])
            })
            .collect::<BTreeMap<_, _>>()
    };
    let expected = |kinds: &[(&str, DType)]| kinds.iter().map(|(kind, dtype)| ((*kind).to_owned(), *dtype)).collect();
    for layout in [ONE, DISTRIBUTED, TENSOR_DISTRIBUTED] {
        let scaled: BTreeMap<String, DType> = expected(&[
            ("exp_avg", DType::U8),
            ("exp_avg_scale", DType::F32),
            ("exp_avg_sq", DType::F16),
            ("exp_avg_sq_scale", DType::F32),
        ]);
        assert_eq!(dtypes(&[KEPT[0], layout].concat()), scaled, "{layout:?}");
        let remainders = expected(&[("exp_avg", DType::BF16), ("exp_avg_sq", DType::BF16), ("master", DType::F32)]);
        assert_eq!(dtypes(&[KEPT[1], layout].concat()), remainders, "{layout:?}");
        let halves: BTreeMap<String, DType> = expected(&[
            ("exp_avg", DType::U8),
            ("exp_avg_scale", DType::F32),
            ("exp_avg_sq", DType::U8),
            ("exp_avg_sq_scale", DType::F32),
            ("master", DType::F16),
            ("master_scale", DType::F32),
        ]);
        assert_eq!(dtypes(&[KEPT[2], layout].concat()), halves, "{layout:?}");
    }
}

#[test]
fn a_run_goes_on_with_states_in_other_dtypes() {
    let plain: &[&str] = &[BF16];
    for (from, to) in [(plain, KEPT[1]), (KEPT[1], plain), (plain, KEPT[2]), (KEPT[2], KEPT[1]), (KEPT[2], plain)] {
        let (whole, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run_in(whole.path(), &[from, &[SAVE]].concat());
        run_in(folder.path(), &[from, &[SAVE, "train.exit_interval=10"]].concat());
        run_in(folder.path(), &[to, &[SAVE]].concat());
        let [expected, found] = [whole, folder].map(|folder| losses_of(folder.path(), "train").split_off(10));
        assert_eq!(found[0], expected[0], "from {from:?} to {to:?}: parameters are those that were saved");
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 3e-2 * b, "from {from:?} to {to:?}: {a}, expected {b}");
        }
    }
}

#[test]
fn damaged_scales_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [KEPT[0], &[SAVE]].concat();
    run_in(folder.path(), &[&arguments[..], &["train.exit_interval=3"]].concat());
    // Codes without a scale cannot be decoded.
    let root = folder.path().join("checkpoints");
    without_scales(&root);
    let output = bridge(folder.path(), &arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("exp_avg_scale."), "{told}");
}

/// Writes the newest checkpoint again, without the scales of its states.
fn without_scales(root: &Path) {
    let checkpoint = newest(root);
    let group = |name: &str| {
        let names = checkpoint.names_in(name).filter(|name| !name.contains("_scale."));
        let tensors = names.map(|tensor| ShardTensor::whole(tensor, checkpoint.load_tensor(tensor).unwrap()));
        TensorGroup { name: name.into(), tensors: tensors.collect() }
    };
    let run = RunFiles {
        train_state: checkpoint.train_state().unwrap(),
        run_config: checkpoint.run_config().unwrap(),
        ..RunFiles::default()
    };
    let snapshot = Snapshot { run, groups: vec![group("model"), group("optimizer")] };
    CheckpointWriter::open(root, SaveOptions::default()).unwrap().save(&snapshot).unwrap();
}
