//! Ranks as MPI processes: detecting that mpirun or srun started this program, starting mpirun,
//! joining the world, and ending.
//!
//! Without the cargo feature `mpi`, the functions fail with the feature to build with.

#[cfg(feature = "mpi")]
use std::process::{Child, Command};
use std::time::Duration;

#[cfg(feature = "mpi")]
use bridge_core::logging::terminal::complain;
#[cfg(feature = "mpi")]
use bridge_core::resilience::{Signal, SignalWatcher};
use bridge_dist::comm::Group;

use super::machines::{Machine, Starter};
use crate::failure::Failure;
use crate::speech::ErrorForm;

/// Environment variables with the number of ranks that a launcher started: Open MPI, MPICH and PMI,
/// srun.
const SIZE_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Number of ranks that a launcher started, if one did.
pub fn started_ranks() -> Option<usize> {
    SIZE_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Runs this program again, with its arguments, on `ranks` ranks, on `machines` if there are any;
/// returns the job's exit code.
#[cfg(feature = "mpi")]
pub fn start_this_program(ranks: usize, starter: Starter, machines: &[Machine]) -> Result<u8, Failure> {
    let program = std::env::current_exe().map_err(Failure::run)?;
    let mut job = match starter {
        Starter::Mpirun => by_mpirun(ranks, machines),
        Starter::Srun => by_srun(ranks, machines),
    };
    job.arg(program).args(std::env::args_os().skip(1)).stdout(crate::output::for_child());
    let signals = SignalWatcher::install_all().map_err(Failure::run)?;
    match end_with_this_process(&mut job).spawn() {
        Ok(child) => wait(child, &signals),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::input(match starter {
            Starter::Mpirun => {
                "--launcher mpi: `mpirun` was not found (Debian and Ubuntu: apt-get install openmpi-bin); \
                 `--launcher threads` needs nothing"
            }
            Starter::Srun => {
                "--launcher slurm: `srun` was not found; outside of Slurm there are `--launcher mpi` and `threads`"
            }
        })),
        Err(error) => Err(Failure::run(format!("{} could not be started: {error}", job.get_program().display()))),
    }
}

/// mpirun with its options.
#[cfg(feature = "mpi")]
fn by_mpirun(ranks: usize, machines: &[Machine]) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut mpirun = Command::new("mpirun");
    mpirun.arg("-np").arg(ranks.to_string());
    if !machines.is_empty() {
        mpirun.arg("--host").arg(list(machines, Machine::to_string)).args(["-x", "RAYON_NUM_THREADS"]);
    }
    // Ranks share this machine: each gets its part of the cores as threads, not one core. With more
    // ranks than cores, waiting ranks must yield, or collectives take milliseconds. These are Open
    // MPI's names; other libraries do not read them.
    let settings = [
        ("OMPI_MCA_hwloc_base_binding_policy", "none".to_owned()),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".to_owned()),
        ("OMPI_MCA_mpi_yield_when_idle", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
        ("RAYON_NUM_THREADS", (cores / per_machine(ranks, machines)).max(1).to_string()),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            mpirun.env(name, value);
        }
    }
    mpirun
}

/// srun with its options: a step of the job on these machines, which ends when a rank dies.
#[cfg(feature = "mpi")]
fn by_srun(ranks: usize, machines: &[Machine]) -> Command {
    let mut srun = Command::new("srun");
    srun.arg(format!("--ntasks={ranks}")).args(["--kill-on-bad-exit=1", "--cpu-bind=none"]);
    if !machines.is_empty() {
        srun.arg(format!("--nodes={}", machines.len()));
        srun.arg(format!("--ntasks-per-node={}", per_machine(ranks, machines)));
        srun.arg(format!("--nodelist={}", list(machines, |machine| machine.name.clone())));
    }
    if std::env::var_os("SLURM_MPI_TYPE").is_none() {
        srun.arg("--mpi=pmix");
    }
    srun
}

/// The most ranks that a machine has.
#[cfg(feature = "mpi")]
fn per_machine(ranks: usize, machines: &[Machine]) -> usize {
    machines.iter().map(|machine| machine.slots).max().unwrap_or(ranks).min(ranks)
}

#[cfg(feature = "mpi")]
fn list(machines: &[Machine], text: impl Fn(&Machine) -> String) -> String {
    machines.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Has the system kill mpirun, and with it all ranks, when this process is killed.
#[cfg(feature = "mpi")]
fn end_with_this_process(mpirun: &mut Command) -> &mut Command {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        let ask = || {
            // SAFETY: this `prctl` reads its arguments only.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: only one system call runs between fork and exec.
        unsafe { mpirun.pre_exec(ask) };
    }
    mpirun
}

/// Waits for mpirun and passes signals on to the ranks: as SIGUSR1, because mpirun kills ranks
/// within a second of a signal to itself.
#[cfg(feature = "mpi")]
fn wait(mut mpirun: Child, signals: &SignalWatcher) -> Result<u8, Failure> {
    use std::os::unix::process::ExitStatusExt;

    const INTERVAL: Duration = Duration::from_millis(20);
    let mut stopped_by = None;
    loop {
        if let Some(status) = mpirun.try_wait().map_err(Failure::run)? {
            // A signal may reach it before it is ready to hand signals on.
            let is_stopped =
                status.code() == Some(Signal::Usr1.exit_code()) || status.signal() == Some(Signal::Usr1.number());
            let code = stopped_by.filter(|_| is_stopped).map(Signal::exit_code).or(status.code()).unwrap_or(1);
            return Ok(u8::try_from(code).unwrap_or(1));
        }
        if let Some(signal) = signals.received().filter(|_| stopped_by.is_none()) {
            complain(&format!("{signal}: handed on to the ranks as {}", Signal::Usr1));
            crate::process::hand_on(&mpirun, "mpirun", signal, Signal::Usr1);
            stopped_by = Some(signal);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Joins the MPI world as one of its ranks and runs `program`. `expected_size` is the requested
/// number of ranks, if any.
///
/// A rank that fails ends its process without waiting for other ranks, and mpirun ends the job.
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

/// Prints the operation that this rank waits for when it receives the signal to end. After a rank
/// was killed, mpirun signals all others, and kills them soon after, while they still wait for the
/// killed rank.
#[cfg(feature = "mpi")]
fn tell_when_ended(rank: usize, watch: bridge_dist::comm::mpi::Watch) -> Result<(), Failure> {
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
pub fn start_this_program(_ranks: usize, _starter: Starter, _machines: &[Machine]) -> Result<u8, Failure> {
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
