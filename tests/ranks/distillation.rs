//! `[distillation]`: ten steps of PyTorch, on all layouts, stopped and resumed, from the cache,
//! from damaged caches, and refusals.

use std::path::{Path, PathBuf};

use bridge_tests::{figures_in, records_in};
use serde_json::Value;

use super::objectives::{self, fixture};

const FIGURES: [&str; 3] = ["ce_loss", "kd_loss", "hidden_loss"];
const SOFTENED: [&str; 2] = ["distillation.temperature=2.0", "distillation.alpha=0.7"];

/// Runs the model of the fixture with a teacher, with logs and checkpoints in `folder`.
fn train(folder: &Path, ranks: usize, teacher: &Path, overrides: &[&str]) -> Result<(), String> {
    let teacher = format!("distillation.teacher={teacher:?}");
    objectives::train(folder, ranks, "distillation", &[&[teacher.as_str()], overrides].concat())
}

/// Losses, then those of [`FIGURES`] that are logged.
fn run(ranks: usize, teacher: &str, overrides: &[&str]) -> Vec<Vec<f64>> {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), ranks, &fixture(teacher), overrides).unwrap();
    figures(folder.path())
}

fn figures(folder: &Path) -> Vec<Vec<f64>> {
    let logs = folder.join("logs");
    let text = std::fs::read_to_string(logs.join("metrics.jsonl")).unwrap();
    let there = FIGURES.iter().filter(|name| text.contains(&format!("\"{name}\"")));
    let parts = there.map(|name| figures_in(&logs, "train", name));
    [records_in(&logs, "train")].into_iter().chain(parts).collect()
}

/// Values computed by PyTorch, in the order of [`figures`].
fn expected(name: &str, parts: &[&str]) -> Vec<Vec<f64>> {
    let made: Value = serde_json::from_slice(&std::fs::read(fixture("distillation.json")).unwrap()).unwrap();
    let of = |key: &&str| made[name].as_array().unwrap().iter().map(|step| step[*key].as_f64().unwrap()).collect();
    ["loss"].iter().chain(parts).map(of).collect()
}

fn assert_same(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
    let mut worst = 0.0_f64;
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (a, b) in found.iter().zip(expected) {
            worst = worst.max((a - b).abs() / b.abs());
        }
    }
    println!("{what}: largest relative difference {worst:.2e}");
    assert!(worst <= 1e-5, "{what}: {worst:e} apart: {found:?}, expected {expected:?}");
}

#[test]
fn a_model_learns_from_a_teacher_as_in_pytorch() {
    let softened = expected("softened", &["ce_loss", "kd_loss"]);
    assert_eq!(softened[0].len(), 10);
    assert_same(&run(1, "teacher", &SOFTENED), &softened, "temperature 2, alpha 0.7");
    let plain = expected("plain", &["ce_loss", "kd_loss"]);
    assert_same(&run(1, "teacher", &["distillation.alpha=1.0"]), &plain, "the teacher alone");
    let top_k = [&SOFTENED[..], &["distillation.top_k=5"]].concat();
    assert_same(&run(1, "teacher", &top_k), &expected("top_k", &["ce_loss", "kd_loss"]), "five tokens and the rest");
    let mse = ["distillation.temperature=1.5", "distillation.alpha=0.4", "distillation.hidden_weight=0.3"];
    assert_same(&run(1, "narrow_teacher", &mse), &expected("mse", &FIGURES), "hidden states");
    let cosine = ["distillation.alpha=0.0", "distillation.hidden_weight=2.0", "distillation.hidden_loss=cosine"];
    let of_cosine = expected("cosine", &["ce_loss", "hidden_loss"]);
    assert_same(&run(1, "narrow_teacher", &cosine), &of_cosine, "directions of hidden states");
}

#[test]
fn layouts_agree_with_one_rank() {
    let tensor = "model.tensor_model_parallel_size=2";
    let hidden = ["distillation.temperature=1.5", "distillation.alpha=0.4", "distillation.hidden_weight=0.3"];
    let top_k = [&SOFTENED[..], &["distillation.top_k=5"]].concat();
    for (teacher, objective) in [("teacher", &SOFTENED[..]), ("teacher", &top_k), ("narrow_teacher", &hidden)] {
        let single = run(1, teacher, objective);
        for (ranks, layout) in [
            (2, &[tensor][..]),
            (2, &[tensor, "model.sequence_parallel=true"]),
            (3, &["model.pipeline_model_parallel_size=3"]),
            (2, &[]),
            (
                2,
                &[
                    "optimizer.use_distributed_optimizer=true",
                    "ddp.overlap_grad_reduce=true",
                    "ddp.overlap_param_gather=true",
                ],
            ),
            (2, &["model.context_parallel_size=2", "model.calculate_per_token_loss=true"]),
            (2, &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"]),
            (
                1,
                &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
            ),
        ] {
            let single = match layout.contains(&"model.calculate_per_token_loss=true") {
                true => &run(1, teacher, &[objective, &["model.calculate_per_token_loss=true"]].concat()),
                false => &single,
            };
            let what = format!("{ranks} ranks, {layout:?}, {objective:?}");
            assert_same(&run(ranks, teacher, &[objective, layout].concat()), single, &what);
        }
    }
}

#[test]
fn packed_samples_are_as_samples_one_by_one() {
    let per_token = [&SOFTENED[..], &["model.calculate_per_token_loss=true"]].concat();
    let whole = run(1, "teacher", &per_token);
    let sizes = ["model.seq_length=120", "dataset.dataset_kwargs.pack_on_the_fly=true"];
    let epoch = ["train.global_batch_size=1", "train.train_iters=2"];
    let packed = run(1, "teacher", &[&per_token[..], &sizes, &epoch].concat());
    // All six samples are in one row.
    assert_same(
        &packed.iter().map(|values| values[..1].to_vec()).collect::<Vec<_>>(),
        &whole.iter().map(|values| values[..1].to_vec()).collect::<Vec<_>>(),
        "packed",
    );
}

#[test]
fn a_run_with_a_teacher_goes_on_bit_for_bit() {
    let short = [&SOFTENED[..], &["train.train_iters=6"]].concat();
    let adapter = [&short[..], &["peft.kind=lora", "peft.dim=4", "peft.alpha=8", "optimizer.lr=1e-2"]].concat();
    for kind in [short, adapter] {
        let whole = run(1, "teacher", &kind);
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), 1, &fixture("teacher"), &[&kind[..], &["train.exit_interval=3"]].concat()).unwrap();
        train(folder.path(), 1, &fixture("teacher"), &kind).unwrap();
        assert_eq!(figures(folder.path()), whole, "{kind:?}");
        assert!(whole[0][5] < whole[0][0], "{whole:?}");
    }
}

#[test]
fn a_model_that_bridge_has_trained_may_teach_and_evaluation_is_plain_cross_entropy() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    train(&first, 1, &fixture("teacher"), &["train.train_iters=1", "optimizer.lr=1e-2"]).unwrap();
    let second = folder.path().join("second");
    let data = format!("dataset.dataset_root={:?}", folder.path().join("data"));
    std::fs::create_dir(folder.path().join("data")).unwrap();
    for name in ["training.jsonl", "validation.jsonl"] {
        std::fs::copy(fixture("distillation/training.jsonl"), folder.path().join("data").join(name)).unwrap();
    }
    let evaluated = [
        data.as_str(),
        "dataset.do_validation=true",
        "validation.eval_iters=1",
        "validation.eval_interval=1",
        "train.train_iters=2",
        "optimizer.lr=1e-30",
    ];
    train(&second, 1, &first.join("saved"), &[&SOFTENED[..], &evaluated].concat()).unwrap();
    let logs = second.join("logs");
    let (valid, plain) = (records_in(&logs, "valid"), figures_in(&logs, "train", "ce_loss"));
    // The same six samples, and a model that does not move.
    assert!((valid[0] - plain[1]).abs() <= 1e-6 * plain[1], "{valid:?} {plain:?}");
    assert!(figures_in(&logs, "train", "kd_loss")[0] > 0.0);
}

#[test]
fn what_is_cached_trains_the_same_and_what_is_damaged_is_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let cache = format!("distillation.cache={store:?}");
    let top_k = [&SOFTENED[..], &["distillation.top_k=5"]].concat();
    let uncached = run(1, "teacher", &top_k);
    let cached = |name: &str, ranks: usize, more: &[&str]| -> (Vec<Vec<f64>>, Vec<f64>) {
        let folder = folder.path().join(name);
        train(&folder, ranks, &fixture("teacher"), &[&top_k[..], &[cache.as_str()], more].concat()).unwrap();
        (figures(&folder), figures_in(&folder.join("logs"), "train", "kd_cached"))
    };
    let (losses, share) = cached("first", 1, &[]);
    assert_eq!((&losses, share[0], &share[1..]), (&uncached, 0.0, &[1.0; 9][..]), "{share:?}");
    let (losses, share) = cached("second", 1, &[]);
    assert_eq!((&losses, share), (&uncached, vec![1.0; 10]));
    let files = files_of(&store);
    assert_eq!(files.len(), 6);
    // A changed bit, a file that is cut, one that is empty, and another sample's.
    let mut bytes = std::fs::read(&files[0]).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 4;
    std::fs::write(&files[0], &bytes).unwrap();
    std::fs::write(&files[1], &std::fs::read(&files[1]).unwrap()[..100]).unwrap();
    std::fs::write(&files[2], "").unwrap();
    std::fs::copy(&files[4], &files[3]).unwrap();
    let (losses, share) = cached("damaged", 1, &[]);
    assert_eq!(losses, uncached);
    assert!((share[0] - 2.0 / 6.0).abs() < 1e-9 && share[1..] == [1.0; 9], "{share:?}");
    // Another temperature is another entry.
    let (_, share) = cached("warmer", 1, &["distillation.temperature=3.0", "train.train_iters=1"]);
    assert_eq!(share, [0.0]);
    // Ranks that share a model agree on the missing entries.
    std::fs::write(&files_of(&store)[0], "").unwrap();
    let tensor = "model.tensor_model_parallel_size=2";
    let (losses, _) = cached("tensor", 2, &[tensor]);
    assert_same(&losses, &uncached, "two tensor-parallel ranks");
    let (losses, share) = cached("pipeline", 3, &["model.pipeline_model_parallel_size=3"]);
    assert_same(&losses, &uncached, "three stages");
    assert_eq!(share[1..], [1.0; 9]);
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_of(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[test]
fn teachers_that_do_not_fit_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        |teacher: &Path, overrides: &[&str]| train(&folder.path().join("run"), 1, teacher, overrides).unwrap_err();
    for (overrides, reasons) in [
        (&["distillation.hidden_weight=1.0"][..], &["another width", "32", "24"][..]),
        (&["model.vocab_size=64"], &["another vocabulary", "62", "64"]),
        (&["distillation.top_k=62"], &["distillation.top_k", "no token for the rest"]),
    ] {
        let without_base = [&["checkpoint.pretrained_checkpoint=null"], overrides].concat();
        let error = refused(&fixture("teacher"), &without_base);
        assert!(reasons.iter().all(|reason| error.contains(reason)), "{overrides:?}: {error}");
    }
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let error = refused(&empty, &[]);
    assert!(error.contains("distillation.teacher") && error.contains("no checkpoint"), "{error}");
    let error = train(
        &folder.path().join("layers"),
        2,
        &fixture("model"),
        &["model.pipeline_model_parallel_size=2", "model.num_layers=4", "checkpoint.pretrained_checkpoint=null"],
    )
    .unwrap_err();
    assert!(error.contains("distillation.teacher") && error.contains("layers"), "{error}");
}
