//! Stops by a signal with a deadline (`train.exit_signal_deadline_s`): long steps, slow disks,
//! ranks as threads and as processes, synchronous and background saves. A save in time is kept; a
//! late one is reported, and costs only itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::{faulty_disk, last_losses, program, recipe, said, wait_for};

const RUN: [&str; 9] = [
    "train.train_iters=400",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.progress=none",
    "logger.plot=false",
];

/// Steps of many seconds, of which a micro-batch takes a few milliseconds.
const LONG_STEPS: [&str; 2] = ["train.global_batch_size=16000", "checkpoint.save_interval=1000"];

const PATIENCE: Duration = Duration::from_secs(180);

/// Start method of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ranks {
    One,
    Threads,
    #[cfg(feature = "mpi")]
    Processes,
}

impl Ranks {
    #[cfg(feature = "mpi")]
    const ALL: [Self; 3] = [Self::One, Self::Threads, Self::Processes];
    #[cfg(not(feature = "mpi"))]
    const ALL: [Self; 2] = [Self::One, Self::Threads];

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::One => &["--ranks=1"],
            Self::Threads => &["--ranks=2"],
            #[cfg(feature = "mpi")]
            Self::Processes => &["--ranks=2", "--launcher=mpi"],
        }
    }
}

/// Starts a run in a folder, on a disk that a file `slow` there slows down.
fn start(folder: &Path, ranks: Ranks, more: &[&str]) -> Child {
    let library = folder.join("libfaulty_disk.so");
    let library = if library.exists() { library } else { faulty_disk(folder) };
    let error = std::fs::File::create(folder.join("stderr.txt")).unwrap();
    let mut run = Command::new(program());
    run.arg("train").arg(recipe()).args(RUN).args(more).args(ranks.arguments()).env("LD_PRELOAD", library);
    run.current_dir(folder).stdout(Stdio::null()).stderr(error).spawn().expect("bridge starts")
}

/// The loss of each iteration that a folder's runs logged last, bit by bit.
fn losses(folder: &Path) -> BTreeMap<u64, u64> {
    last_losses(folder).into_iter().map(|(iteration, loss)| (iteration, loss.to_bits())).collect()
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// The newest checkpoint in a folder, by the pointer.
fn newest(folder: &Path) -> Option<u64> {
    std::fs::read_to_string(folder.join("saved/latest_checkpointed_iteration.txt")).ok()?.trim().parse().ok()
}

/// True if a run that saves every twenty steps has saved, and has taken some steps since: a state
/// that no pointer names yet.
fn is_between_checkpoints(folder: &Path) -> bool {
    newest(folder) >= Some(20) && (1..12).contains(&(losses(folder).len() % 20))
}

/// Stops a run by SIGTERM; returns its exit code, its output, and the time until its end.
fn stop(folder: &Path, mut run: Child) -> (Option<i32>, String, Duration) {
    let sent = Instant::now();
    signal("-TERM", run.id());
    let mut code = None;
    wait_for("end", folder, PATIENCE, || {
        let status = run.try_wait().unwrap();
        code = status.and_then(|status| status.code());
        status.is_some()
    });
    (code, said(folder), sent.elapsed())
}

/// A run in `folder` that goes on to iteration `last` has the losses of one that was never stopped.
fn goes_on(folder: &Path, ranks: Ranks, more: &[&str], last: u64) {
    let _ = std::fs::remove_file(folder.join("slow"));
    let end = format!("train.exit_interval={last}");
    let more = [more, &[&end]].concat();
    assert!(start(folder, ranks, &more).wait().unwrap().success(), "{}", said(folder));
    let undisturbed = tempfile::tempdir().unwrap();
    assert!(start(undisturbed.path(), ranks, &more).wait().unwrap().success(), "{}", said(undisturbed.path()));
    assert_eq!(losses(folder), losses(undisturbed.path()), "{ranks:?} {more:?}: {}", said(folder));
}

#[test]
fn a_long_step_is_left_and_the_state_before_it_saved() {
    for ranks in Ranks::ALL {
        let folder = tempfile::tempdir().unwrap();
        let more = [&LONG_STEPS[..], &["train.exit_signal_deadline_s=60"]].concat();
        let run = start(folder.path(), ranks, &more);
        wait_for("step", folder.path(), PATIENCE, || losses(folder.path()).len() == 1);
        // In the middle of a step.
        std::thread::sleep(Duration::from_millis(1500));
        let (code, said, took) = stop(folder.path(), run);
        assert_eq!((code, newest(folder.path())), (Some(143), Some(1)), "{ranks:?}: {said}");
        assert!(took < Duration::from_secs(30), "{ranks:?}: {took:?}");
        assert!(said.contains("the process ends in 60 s at the latest"), "{ranks:?}: {said}");
        goes_on(folder.path(), ranks, &LONG_STEPS, 2);
    }
}

/// One micro-batch that takes longer than there is time cannot be left.
#[test]
fn a_state_that_cannot_be_saved_in_time_is_told_of() {
    const SLOW: [&str; 3] =
        ["train.global_batch_size=4000", "train.micro_batch_size=2000", "checkpoint.save_interval=1000"];
    for ranks in Ranks::ALL {
        let folder = tempfile::tempdir().unwrap();
        let run = start(folder.path(), ranks, &[&SLOW[..], &["train.exit_signal_deadline_s=0.5"]].concat());
        wait_for("step", folder.path(), PATIENCE, || losses(folder.path()).len() == 1);
        std::thread::sleep(Duration::from_millis(200));
        let (code, said, took) = stop(folder.path(), run);
        assert_eq!((code, newest(folder.path())), (Some(18), None), "{ranks:?}: {said}");
        assert!(took < Duration::from_secs(6), "{ranks:?}: {took:?}");
        let expected = "SIGTERM: the 0.5 s of train.exit_signal_deadline_s are over; iteration 1 could not be saved in time: the run was still \
                        in a step; there is no checkpoint of this run";
        assert!(said.contains(&expected["SIGTERM".len()..]), "{ranks:?}: {said}");
    }
}

/// The save that the signal asks for takes too long, synchronously and in the background; the next
/// run resumes from the one before.
#[test]
fn a_slow_disk_costs_the_last_save_and_no_other() {
    for ranks in Ranks::ALL {
        for save in ["checkpoint.async_save=false", "checkpoint.async_save=true"] {
            let folder = tempfile::tempdir().unwrap();
            let more = ["checkpoint.save_interval=20", save];
            let run = start(folder.path(), ranks, &[&more[..], &["train.exit_signal_deadline_s=2"]].concat());
            wait_for("checkpoint", folder.path(), PATIENCE, || is_between_checkpoints(folder.path()));
            std::fs::write(folder.path().join("slow"), "1500").unwrap();
            let (code, said, took) = stop(folder.path(), run);
            assert_eq!(code, Some(18), "{ranks:?} {save}: {said}");
            assert!(took < Duration::from_secs(7), "{ranks:?} {save}: {took:?}");
            let kept = newest(folder.path()).unwrap();
            let told = said.split_once("could not be saved in time: the run was still ").expect("it says so").1;
            let newest = format!("the newest checkpoint is of iteration {kept}\n");
            assert!(told.contains(&newest), "{ranks:?} {save}: {said}");
            let done = losses(folder.path()).len() as u64;
            goes_on(folder.path(), ranks, &more, done + 3);
        }
    }
}

/// Within the deadline a background save in progress is waited for, and the last state is saved
/// after it.
#[test]
fn a_save_in_the_background_and_the_last_one_are_both_waited_for() {
    for ranks in Ranks::ALL {
        let folder = tempfile::tempdir().unwrap();
        let more = ["checkpoint.save_interval=20", "checkpoint.async_save=true"];
        let run = start(folder.path(), ranks, &[&more[..], &["train.exit_signal_deadline_s=60"]].concat());
        wait_for("checkpoint", folder.path(), PATIENCE, || newest(folder.path()) >= Some(20));
        std::fs::write(folder.path().join("slow"), "100").unwrap();
        let before = losses(folder.path()).len();
        wait_for("save", folder.path(), PATIENCE, || losses(folder.path()).len() > before / 20 * 20 + 21);
        let (code, said, _) = stop(folder.path(), run);
        let done = losses(folder.path()).len() as u64;
        assert_eq!((code, newest(folder.path())), (Some(143), Some(done)), "{ranks:?}: {said}");
        goes_on(folder.path(), ranks, &more, done + 3);
    }
}

/// A supervisor forwards the signal, and does not restart a run that was asked to stop.
#[test]
fn a_supervised_run_that_misses_its_deadline_stays_ended() {
    for ranks in Ranks::ALL {
        let folder = tempfile::tempdir().unwrap();
        let more = ["checkpoint.save_interval=20", "train.exit_signal_deadline_s=1", "--max-restarts=3"];
        let run = start(folder.path(), ranks, &more);
        wait_for("checkpoint", folder.path(), PATIENCE, || is_between_checkpoints(folder.path()));
        std::fs::write(folder.path().join("slow"), "1500").unwrap();
        let (code, said, _) = stop(folder.path(), run);
        assert_eq!(code, Some(18), "{ranks:?}: {said}");
        assert!(said.contains("could not be saved in time") && !said.contains("restart"), "{ranks:?}: {said}");
    }
}
