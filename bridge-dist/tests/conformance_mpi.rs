//! Drives the conformance suite on MPI. The program starts itself under `mpirun` with 2, 3 and 4
//! ranks; each rank reports on standard output, and the driver expects every rank's report. The
//! program does not use the libtest harness, because MPI needs the main thread.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use bridge_dist::comm::mpi::{MpiInitError, MpiOptions, MpiWorld};

mod suite;

use suite::LONG;

/// Names the role of a process that `mpirun` started.
const ROLE: &str = "BRIDGE_DIST_MPI_ROLE";
/// Names a folder in which each rank leaves a file when it has reported.
const MEETING: &str = "BRIDGE_DIST_MPI_MEETING";
/// Time limit of the cases that wait for one: ranks give up at times that are a quarter of it
/// apart.
const LIMIT: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    match env::var(ROLE) {
        Ok(role) => rank(&role),
        Err(_) => drive(),
    }
    ExitCode::SUCCESS
}

fn report(rank: usize, what: &str) {
    println!("rank {rank}: {what}");
    std::io::stdout().flush().expect("standard output takes the report");
}

fn join(timeout: Duration) -> MpiWorld {
    MpiWorld::init(MpiOptions { timeout, expected_size: None }).expect("MPI starts")
}

fn rank(role: &str) {
    match role {
        "suite" => {
            let world = join(LONG);
            let comm = world.communicator();
            for (name, case) in suite::CASES {
                case(&comm).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            report(comm.rank(), "all cases passed");
        }
        "panic" => {
            let world = join(LONG);
            let comm = world.communicator();
            assert!(comm.rank() != 1, "rank 1 is out of luck");
            // Without the abort this would last until the time limit.
            let _ = comm.barrier();
        }
        "size" => {
            let options = MpiOptions { timeout: LONG, expected_size: Some(7) };
            let error = MpiWorld::init(options).expect_err("there are fewer ranks");
            assert!(matches!(error, MpiInitError::WorldSize { expected: 7, .. }), "{error}");
            report(0, "refused");
        }
        failure => {
            let (_, case) = suite::failures::CASES.iter().find(|(name, _)| *name == failure).expect("a case");
            suite::failures::LIMIT.set(LIMIT).expect("it is set once");
            let world = join(LONG);
            let comm = world.communicator();
            case(&comm).unwrap_or_else(|error| panic!("{failure}: {error}"));
            report(comm.rank(), "failed as it should");
            // A process that ends without finalising MPI ends all other processes, which have to
            // report first.
            let folder = PathBuf::from(env::var_os(MEETING).expect("the driver names it"));
            std::fs::write(folder.join(comm.rank().to_string()), "").expect("the folder is there");
            let end = Instant::now() + LONG;
            while std::fs::read_dir(&folder).expect("a folder").count() < comm.size() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn launch(ranks: usize, role: &str) -> Output {
    let program = env::current_exe().expect("the test knows its own path");
    let meeting = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("meeting-{}-{role}-{ranks}", std::process::id()));
    std::fs::create_dir_all(&meeting).expect("a folder");
    let output = Command::new("mpirun")
        .args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-np"])
        .arg(ranks.to_string())
        .arg(program)
        .env(ROLE, role)
        .env(MEETING, &meeting)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // All ranks run on this machine, so no remote shell is needed.
        .env("OMPI_MCA_plm_rsh_agent", "/bin/false")
        .output()
        .expect("mpirun is installed");
    std::fs::remove_dir_all(&meeting).expect("it is ours");
    output
}

fn expect_reports(output: &Output, ranks: usize, text: &str, what: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    for rank in 0..ranks {
        let line = format!("rank {rank}: {text}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stdout.contains(&line), "{what}: no `{line}`\n{stdout}\n{stderr}");
    }
}

fn drive() {
    for ranks in [2, 3, 4] {
        let what = format!("suite on {ranks} ranks");
        let output = launch(ranks, "suite");
        expect_reports(&output, ranks, "all cases passed", &what);
        assert!(output.status.success(), "{what}: {output:?}");
        println!("{what} ... ok");
    }
    for (name, _) in suite::failures::CASES {
        let what = format!("{name} on 3 ranks");
        expect_reports(&launch(3, name), 3, "failed as it should", &what);
        println!("{what} ... ok");
    }
    let output = launch(2, "panic");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("rank 1 panicked"), "{stderr}");
    println!("a panic ends the job ... ok");
    expect_reports(&launch(2, "size"), 1, "refused", "another world size");
    println!("another world size is refused ... ok");
}
