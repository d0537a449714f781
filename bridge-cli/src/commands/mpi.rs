//! Ranks as MPI processes: detecting that mpirun or srun started this program, starting mpirun, joining the world, and ending.
//!
//! Without the cargo feature `mpi`, the functions fail with the feature to build with.

use std::time::Duration;

use bridge_dist::comm::Group;

use crate::failure::Failure;
use crate::speech::ErrorForm;

/// Environment variables with the number of ranks that a launcher started: Open MPI, MPICH and PMI, srun.
const SIZE_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Number of ranks that a launcher started, if one did.
pub fn started_ranks() -> Option<usize> {
    SIZE_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Runs this program again, with its arguments, on `ranks` ranks under mpirun; returns the job's exit code.
#[cfg(feature = "mpi")]
pub fn start_this_program(ranks: usize) -> Result<u8, Failure> {
    let program = std::env::current_exe().map_err(Failure::run)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut mpirun = std::process::Command::new("mpirun");
    mpirun.arg("-np").arg(ranks.to_string()).arg(program).args(std::env::args_os().skip(1));
    // Ranks share this machine: each gets its part of the cores as threads, not one core. With more ranks than cores, waiting ranks must
    // yield, or collectives take milliseconds. These are Open MPI's names; other libraries do not read them.
    let settings = [
        ("OMPI_MCA_hwloc_base_binding_policy", "none".to_owned()),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".to_owned()),
        ("OMPI_MCA_mpi_yield_when_idle", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
        ("RAYON_NUM_THREADS", (cores / ranks).max(1).to_string()),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            mpirun.env(name, value);
        }
    }
    match mpirun.status() {
        Ok(status) => Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::input(
            "--launcher mpi: `mpirun` was not found (Debian and Ubuntu: apt-get install openmpi-bin); \
             `--launcher threads` needs nothing",
        )),
        Err(error) => Err(Failure::run(format!("mpirun could not be started: {error}"))),
    }
}

/// Joins the MPI world as one of its ranks and runs `program`. `expected_size` is the requested number of ranks, if any.
///
/// A rank that fails ends its process without waiting for the others, and mpirun ends the job.
#[cfg(feature = "mpi")]
pub fn as_rank(
    expected_size: Option<usize>,
    timeout: Duration,
    form: ErrorForm,
    program: impl FnOnce(Group) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    use bridge_dist::comm::mpi::{MpiOptions, MpiWorld};

    let expected_size = expected_size.or_else(started_ranks);
    let world = MpiWorld::init(MpiOptions { timeout, expected_size }).map_err(Failure::input)?;
    tell_when_ended(world.communicator().rank(), world.watch())?;
    program(world.communicator()).map_err(|failure| {
        if form == ErrorForm::Text {
            eprint!("rank {}: ", world.communicator().rank());
        }
        failure.print(form);
        std::process::exit(i32::from(failure.exit_code()))
    })
}

/// Prints what this rank is waiting for when it is told to end. After a rank was killed, mpirun signals all others, and kills them soon
/// after, while they still wait for the killed rank.
#[cfg(feature = "mpi")]
fn tell_when_ended(rank: usize, watch: bridge_dist::comm::mpi::Watch) -> Result<(), Failure> {
    use bridge_core::resilience::{Signal, SignalWatcher};

    const INTERVAL: Duration = Duration::from_millis(50);
    let signals = SignalWatcher::install(&[Signal::Term]).map_err(Failure::run)?;
    let tell = move || {
        loop {
            std::thread::sleep(INTERVAL);
            let waiting = signals.received().and_then(|signal| Some((signal, watch.waiting().into_iter().next()?)));
            if let Some((signal, waiting)) = waiting {
                let seconds = waiting.since.elapsed().as_secs_f64();
                let (operation, group) = (waiting.operation, waiting.group);
                eprintln!("rank {rank}: {signal} after {seconds:.1} s of waiting in {operation} of group `{group}`");
                return;
            }
        }
    };
    // Ends with the process.
    std::thread::Builder::new().name("signals".into()).spawn(tell).map_err(Failure::run)?;
    Ok(())
}

/// Not supported by this build.
#[cfg(not(feature = "mpi"))]
pub fn start_this_program(_ranks: usize) -> Result<u8, Failure> {
    Err(without_feature())
}

/// Not supported by this build.
#[cfg(not(feature = "mpi"))]
pub fn as_rank(
    _expected_size: Option<usize>,
    _timeout: Duration,
    _form: ErrorForm,
    _program: impl FnOnce(Group) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    Err(without_feature())
}

#[cfg(not(feature = "mpi"))]
fn without_feature() -> Failure {
    Failure::input(
        "this build of bridge has no MPI, so each process would train alone: build with `--features bridge-cli/mpi` \
         (`cargo xtask train RECIPE --launcher mpi` does it), or use `--launcher threads`",
    )
}
