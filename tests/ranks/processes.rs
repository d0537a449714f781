//! Ranks as processes under mpirun, with the binary that this suite was built with: the losses of
//! one rank, and the end of a run in which one process is killed, is stopped or has another recipe.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bridge_tests::{assert_close, losses_in, number_of, process_of, recipe, run};

/// Time limit for events that take seconds.
const LONG: Duration = Duration::from_secs(300);

const RUN: [&str; 9] = [
    "train.global_batch_size=6",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "train.train_iters=4000",
    "dist.distributed_timeout_seconds_after_init=15",
    "validation.eval_iters=0",
    "checkpoint.save=saved",
    "checkpoint.save_interval=5",
    "logger.progress=none",
];

#[test]
fn processes_train_like_threads() {
    let sharded = "optimizer.use_distributed_optimizer=true";
    let fully = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    for setting in [&[][..], &[sharded], &fully] {
        let threads = run(&[&["--ranks", "2"], setting].concat());
        let processes = run(&[&["--ranks", "2", "--launcher", "mpi"], setting].concat());
        assert_eq!(processes, threads, "{setting:?}");
    }
}

#[test]
fn processes_that_share_a_model_train_like_one() {
    let (tensor, pipeline) = ("model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2");
    let single = run(&[]);
    let layouts: &[(&str, &[&str])] = &[
        ("2", &[tensor, "model.sequence_parallel=true"]),
        ("2", &[pipeline]),
        ("2", &["model.context_parallel_size=2"]),
        ("4", &[tensor, pipeline]),
    ];
    for (ranks, layout) in layouts {
        let found = run(&[&["--ranks", ranks, "--launcher", "mpi"], *layout].concat());
        assert_close(&found, &single, &layout.join(" "));
    }
    let experts = [
        "model.num_moe_experts=4",
        "model.moe_router_topk=2",
        "model.moe_ffn_hidden_size=96",
        "model.moe_token_dispatcher_type=alltoall",
    ];
    let spread = ["--ranks", "2", "--launcher", "mpi", "model.expert_model_parallel_size=2"];
    assert_close(&run(&[&spread[..], &experts].concat()), &run(&experts), "experts");
}

/// mpirun with `--launcher mpi` ranks in `folder`: for each entry the number of ranks, and their
/// further arguments.
fn start(folder: &Path, programs: &[(&str, &[&str])]) -> Child {
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    for (index, (ranks, more)) in programs.iter().enumerate() {
        mpirun.args((index > 0).then_some(":")).args(["-np", ranks]).arg(bridge_tests::program()).arg("train");
        mpirun.arg(recipe()).args(RUN).args(*more).args(["--launcher", "mpi"]);
    }
    let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    mpirun.envs(allowed.map(|name| (name, "1"))).env("OMPI_MCA_plm_rsh_agent", "/bin/false");
    // Output goes to files, so that no pipe has to be read while the job runs.
    let file = |name: &str| std::fs::File::create(folder.join(name)).map(Stdio::from).unwrap();
    mpirun.current_dir(folder).stdout(file("out.txt")).stderr(file("err.txt")).spawn().expect("mpirun is installed")
}

/// Waits until the job has ended on its own; returns its exit code, its output, and the time.
fn end(folder: &Path, mut job: Child) -> (Option<i32>, String, Duration) {
    let started = Instant::now();
    while started.elapsed() < LONG {
        if let Some(status) = job.try_wait().unwrap() {
            let said = ["out.txt", "err.txt"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
            return (status.code(), said.concat(), started.elapsed());
        }
        sleep(Duration::from_millis(20));
    }
    job.kill().unwrap();
    job.wait().unwrap();
    panic!("the job did not end in {LONG:?}");
}

/// Disturbs rank 1 of three after the first checkpoint; the job's end is returned, and that it can
/// go on is checked.
fn disturb(signal: &str) -> (Option<i32>, String, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let job = start(&path, &[("3", &[])]);
    let started = Instant::now();
    while !path.join("saved/latest_checkpointed_iteration.txt").exists() {
        assert!(started.elapsed() < LONG, "no checkpoint: {}", std::fs::read_to_string(path.join("err.txt")).unwrap());
        sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args([signal, &number_of(&process_of(&path, 1))]).status().unwrap();
    assert!(killed.success());
    let ended = end(&path, job);
    let pointer = std::fs::read_to_string(path.join("saved/latest_checkpointed_iteration.txt")).unwrap();
    let saved: usize = pointer.trim().parse().unwrap();
    let target = format!("train.exit_interval={}", saved + 3);
    let (code, said, _) = end(&path, start(&path, &[("3", &[&target])]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(losses_in(&path.join("runs/tiny")).len(), saved + 3, "{said}");
    ended
}

#[test]
fn a_killed_process_ends_the_job() {
    let (code, said, took) = disturb("-KILL");
    assert!(code != Some(0) && took < Duration::from_secs(60), "{code:?} after {took:?}: {said}");
    // mpirun names the rank, and other ranks name the operation in which they waited.
    assert!(said.contains("rank 1"), "{said}");
    assert!(said.contains("SIGTERM after") && said.contains("of group"), "{said}");
}

#[test]
fn a_process_that_stands_still_is_found_out() {
    let (code, said, took) = disturb("-STOP");
    assert!(code != Some(0) && took < Duration::from_secs(90), "{code:?} after {took:?}: {said}");
    // A rank that was moving data with the stopped rank also names other ranks.
    let waited = said.split_once("waited 15s for").unwrap_or_else(|| panic!("nobody says for whom it waited: {said}"));
    assert!(waited.1.lines().next().unwrap().contains("rank 1"), "{said}");
}

#[test]
fn a_process_with_another_recipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = start(folder.path(), &[("2", &[]), ("1", &["optimizer.lr=0.5"])]);
    let (code, said, _) = end(folder.path(), job);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("rank 2 of 3 has another"), "{said}");
    assert!(!folder.path().join("saved").exists() && !folder.path().join("runs").exists(), "{said}");
}
