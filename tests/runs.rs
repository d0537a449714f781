//! Results of runs besides their model: the best checkpoint, an early end, the learning-rate
//! finder, and `bridge runs` over their files.

use std::path::Path;
use std::process::{Command, Output};

use bridge_tests::{bridge, figures_in, losses, program, recipe, run_in};
use serde_json::Value;

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn command(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().expect("bridge starts")
}

fn checkpoints(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder.join("saved")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<u64> = names.filter_map(|name| name.strip_prefix("iter_")?.parse().ok()).collect();
    found.sort_unstable();
    found
}

fn best(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("saved/best_checkpointed_iteration.txt")).unwrap();
    text.trim().parse().unwrap()
}

/// The loss falls for a while, and then rises: the learning rate only grows.
const WORSE: &[&str] = &[
    "train.train_iters=40",
    "optimizer.lr=2.0",
    "optimizer.min_lr=0",
    "scheduler.lr_warmup_iters=39",
    "validation.eval_interval=2",
    "validation.eval_iters=1",
    "checkpoint.save=saved",
];

const RANKS: [&[&str]; 3] = [&[], &["--ranks", "2"], &["--ranks", "2", "model.pipeline_model_parallel_size=2"]];

/// The iteration with the lowest validation loss while training.
fn lowest(folder: &Path) -> u64 {
    let log = folder.join("runs/tiny");
    let (losses, iterations) = (figures_in(&log, "valid", "loss"), figures_in(&log, "valid", "iteration"));
    let place = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap();
    iterations[place] as u64
}

#[test]
fn the_best_checkpoint_stays_and_can_be_named() {
    for ranks in RANKS {
        let folder = tempfile::tempdir().unwrap();
        let keep = ["checkpoint.keep_best=true", "checkpoint.save_interval=4", "checkpoint.most_recent_k=1"];
        run_in(folder.path(), &[WORSE, &keep, ranks].concat());
        let best = best(folder.path());
        assert_eq!(best, lowest(folder.path()), "{ranks:?}");
        assert!(best < 40, "the run got worse");
        assert_eq!(checkpoints(folder.path()), [best, 40], "{ranks:?}");
        let generate = |name: &str| {
            let path = format!("saved/{name}");
            let output =
                command(folder.path(), &["generate", &path, "--prompt", "1 2 3", "--max-tokens", "4", "--greedy"]);
            assert!(output.status.success(), "{}", text(&output));
            output.stdout
        };
        assert_eq!(generate("best"), generate(&format!("iter_{best:07}")));
        assert_eq!(generate("latest"), generate("iter_0000040"));
    }
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), &["train.train_iters=2", "checkpoint.save=saved"]);
    let output = command(folder.path(), &["eval", "saved/best"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("best_checkpointed_iteration.txt") && text(&output).contains("keep_best"),
        "{}",
        text(&output)
    );
}

#[test]
fn early_stopping_ends_a_run_for_good_and_stops_and_resumes_bit_for_bit() {
    let stop = ["train.early_stopping_patience=3", "train.early_stopping_min_delta=0.01", "checkpoint.keep_best=true"];
    for ranks in RANKS {
        let whole = tempfile::tempdir().unwrap();
        let output = bridge(whole.path(), &[WORSE, &stop, ranks].concat());
        assert!(output.status.success(), "{}", text(&output));
        let said = text(&output);
        assert!(
            said.contains("training is done: early stopping: no better validation loss in 3 evaluations"),
            "{said}"
        );
        let iterations = figures_in(&whole.path().join("runs/tiny"), "train", "loss").len() as u64;
        assert!(iterations < 40, "{said}");
        assert_eq!(*checkpoints(whole.path()).last().unwrap(), iterations);
        // Again: there is nothing left to train.
        let before = losses(whole.path()).len();
        let again = bridge(whole.path(), &[WORSE, &stop, ranks].concat());
        assert!(again.status.success() && text(&again).contains("early stopping"), "{}", text(&again));
        assert_eq!(figures_in(&whole.path().join("runs/tiny"), "train", "loss").len() as u64, iterations, "{before}");

        // Stopped between two evaluations without improvement, and continued.
        let parts = tempfile::tempdir().unwrap();
        let cut = format!("train.exit_interval={}", iterations - 1);
        run_in(parts.path(), &[WORSE, &stop, ranks, &[cut.as_str()]].concat());
        run_in(parts.path(), &[WORSE, &stop, ranks].concat());
        let of = |folder: &Path| figures_in(&folder.join("runs/tiny"), "train", "loss");
        assert_eq!(of(parts.path()), of(whole.path()));
        assert_eq!(best(parts.path()), best(whole.path()));
    }
}

#[test]
fn the_learning_rate_finder_suggests_and_leaves_everything_as_it_was() {
    for ranks in RANKS {
        let folder = tempfile::tempdir().unwrap();
        run_in(folder.path(), &["train.train_iters=2", "checkpoint.save=saved"]);
        let files = |folder: &Path| {
            let names = ["saved/latest_checkpointed_iteration.txt", "runs/tiny/metrics.jsonl"];
            names.map(|name| std::fs::read(folder.join(name)).unwrap())
        };
        let before = files(folder.path());
        let output = bridge(folder.path(), &[&["--find-lr", "checkpoint.save=saved"][..], ranks].concat());
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("suggested: optimizer.lr=") && said.contains("falls fastest"), "{said}");
        assert_eq!(files(folder.path()), before);
        assert_eq!(checkpoints(folder.path()), [2]);
        let log = folder.path().join("runs/tiny/find-lr");
        let found: Value = serde_json::from_slice(&std::fs::read(log.join("find-lr.json")).unwrap()).unwrap();
        let rate = found["suggestion"].as_f64().unwrap();
        assert!((1e-5..1.0).contains(&rate), "{rate}");
        assert!(found["points"].as_array().unwrap().len() > 50);
        assert!(log.join("find-lr.svg").is_file() && log.join("find-lr.png").is_file());
    }
}

#[test]
fn runs_are_listed_compared_and_drawn_together() {
    let folder = tempfile::tempdir().unwrap();
    let runs: [(&str, &[&str]); 3] = [
        ("a", &["optimizer.lr=2e-3"]),
        ("b", &["train.exit_interval=12"]),
        (
            "c",
            &[
                "train.max_consecutive_skipped_iterations=1",
                "optimizer.lr=1000",
                "optimizer.clip_grad=0",
                "optimizer.optimizer=sgd",
                "optimizer.adam_beta2=null",
                "rerun_state_machine.check_for_nan_in_loss=false",
            ],
        ),
    ];
    for (name, overrides) in runs {
        let log_dir = format!("logger.log_dir=runs/{name}");
        let output = bridge(folder.path(), &[&[log_dir.as_str()], overrides].concat());
        assert_eq!(output.status.success(), name != "c", "{}", text(&output));
    }
    std::fs::create_dir_all(folder.path().join("runs/torn")).unwrap();
    std::fs::write(folder.path().join("runs/torn/metrics.jsonl"), "nonsense\n{}\n").unwrap();

    let output = command(folder.path(), &["runs", "list", "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("torn/metrics.jsonl, line 1"), "{}", text(&output));
    let listed: Vec<Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| listed.iter().map(|run| run[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("state"), ["finished", "stopped", "failed"]);
    assert_eq!(of("folder"), ["runs/a", "runs/b", "runs/c"]);
    assert_eq!(of("iterations")[..2], [20.into(), Value::from(12)]);
    assert_eq!(listed[0]["tokens"], 20 * 8 * 64);
    assert!(listed[0]["best_valid_loss"].as_f64().is_some() && listed[0]["last_loss"].as_f64().is_some());

    let list = text(&command(folder.path(), &["runs", "list", "runs/a", "runs/b", "runs/a"]));
    assert_eq!(list.lines().count(), 3, "a run is listed once: {list}");
    assert!(list.contains("finished") && list.contains("12/20"), "{list}");
    let compared = text(&command(folder.path(), &["runs", "compare", "runs/a", "runs/b"]));
    for row in ["optimizer.lr ", "train.exit_interval ", "best valid "] {
        assert!(compared.contains(row), "{row} in {compared}");
    }
    assert!(!compared.contains("model.num_layers"), "{compared}");
    // Runs are compared by name too, also as JSON; for an unknown name the error lists the existing
    // names.
    assert_eq!(text(&command(folder.path(), &["runs", "compare", "a", "b"])), compared);
    let json: Value =
        serde_json::from_slice(&command(folder.path(), &["runs", "compare", "a", "b", "--json"]).stdout).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let (tokens, seconds) = (run["tokens"].as_f64().unwrap(), run["seconds"].as_f64().unwrap());
        assert!((run["tokens_per_second"].as_f64().unwrap() * seconds - tokens).abs() < 1.0, "{run}");
        assert!(run["last_valid_loss"].as_f64().unwrap() >= run["best_valid_loss"].as_f64().unwrap(), "{run}");
    }
    let differing = json["differences"].as_array().unwrap();
    assert!(differing.iter().any(|difference| difference["key"] == "optimizer.lr"), "{json}");
    let unknown = command(folder.path(), &["runs", "compare", "a", "z"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    assert!(text(&unknown).contains("no run of that name") && text(&unknown).contains("runs/b"), "{}", text(&unknown));
    let recipe = command(folder.path(), &["runs", "compare", "tiny", "a"]);
    assert!(text(&recipe).contains("3 runs have that name"), "{}", text(&recipe));
    let plotted = command(folder.path(), &["runs", "plot", "runs/a", "runs/b", "--output", "both"]);
    assert!(plotted.status.success(), "{}", text(&plotted));
    let svg = std::fs::read_to_string(folder.path().join("both.svg")).unwrap();
    assert!(svg.contains("runs/a") && svg.contains("runs/b"), "runs of one recipe are told apart");
    assert!(folder.path().join("both.png").is_file());

    let nothing = command(folder.path(), &["runs", "list", "nowhere"]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text(&nothing));
}

#[test]
fn a_run_that_was_killed_is_told_from_one_that_trains() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(program())
        .arg("train")
        .arg(recipe())
        .args([
            "train.train_iters=1000000",
            "train.num_threads=1",
            "logger.progress=none",
            "validation.eval_interval=null",
        ])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("bridge starts");
    let state = || {
        let output = command(folder.path(), &["runs", "list", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines()
            .next()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["state"].as_str().unwrap().to_owned())
    };
    let metrics = folder.path().join("runs/tiny/metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it trains");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state().as_deref(), Some("training"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(state().as_deref(), Some("killed"));
}

#[test]
fn energy_is_logged_where_it_is_counted_and_an_error_where_not() {
    let folder = tempfile::tempdir().unwrap();
    let output = bridge(folder.path(), &["train.train_iters=3", "logger.log_energy=true", "logger.log_interval=1"]);
    let counter = std::fs::read_to_string("/sys/class/powercap/intel-rapl:0/energy_uj");
    if counter.is_ok() {
        assert!(output.status.success() && text(&output).contains("power per rank (W/rank)"), "{}", text(&output));
    } else {
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("logger.log_energy") && text(&output).contains("powercap"), "{}", text(&output));
    }
}
