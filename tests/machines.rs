//! Runs of several machines under `--max-restarts`, one of which is lost. The machines are names:
//! mpirun reaches them by a stand-in for ssh, which runs its command here, and Slurm's programs are
//! stand-ins too. Only builds with MPI have ranks that are processes.

#![cfg(feature = "mpi")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bridge_tests::{assert_close, last_losses, number_of, process_of, program, recipe, said, wait_for};

const RUN: [&str; 10] = [
    "train.train_iters=400",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "checkpoint.save_interval=10",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.progress=none",
    "logger.plot=false",
];

const PATIENCE: Duration = Duration::from_secs(120);

/// Machines of mpirun: addresses of documentation (RFC 5737), so that no name server is queried.
const FIRST: &str = "198.51.100.1";
const SECOND: &str = "198.51.100.2";
const SPARE: &str = "198.51.100.3";

/// A machine is lost while there is a file `dead-NAME` in the working folder. Each has a folder for
/// temporary files, as machines do: the daemons of one job make files of the same names there, and
/// one that loses the race ends without a word, after which mpirun waits for ever.
const AGENT: &str = r#"#!/bin/sh
machine=$1; shift
[ -e "dead-$machine" ] && { echo "no route to $machine" >&2; exit 255; }
mkdir -p "tmp-$machine"
TMPDIR=$PWD/tmp-$machine; export TMPDIR
exec sh -c "$*"
"#;

/// Writes its arguments down, and runs the ranks under mpirun, as tasks of a step.
const SRUN: &str = r#"#!/bin/sh
echo "$@" >> srun.txt
while [ "${1#--}" != "$1" ]; do
    case $1 in --ntasks=*) ranks=${1#--ntasks=} ;; esac
    shift
done
exec env -u OMPI_MCA_plm_rsh_agent mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" "$@"
"#;

const SCONTROL: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "show hostnames node[1-3]" ] || exit 1
printf 'node1\nnode2\nnode3\n'
"#;

const SINFO: &str = r#"#!/bin/sh
for machine; do :; done
if [ -e "dead-$machine" ]; then echo 'down*'; else echo allocated; fi
"#;

/// A folder with the stand-ins in a folder `programs`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    for (name, text) in [("agent", AGENT), ("srun", SRUN), ("scontrol", SCONTROL), ("sinfo", SINFO)] {
        let path = programs.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn start(folder: &Path, more: &[&str]) -> Child {
    let programs = folder.join("programs");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let error = std::fs::File::create(folder.join("stderr.txt")).unwrap();
    let mut run = Command::new(program());
    run.arg("train").arg(recipe()).args(RUN).args(more).env("PATH", path).current_dir(folder);
    run.env("OMPI_MCA_plm_rsh_agent", programs.join("agent")).env("OMPI_MCA_plm_rsh_no_tree_spawn", "1");
    run.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Over the network of this machine: names are not enough for Open MPI to see that processes
    // share memory.
    run.env("OMPI_MCA_btl", "self,tcp").env("OMPI_MCA_btl_tcp_if_include", "lo");
    run.env("SLURM_JOB_NODELIST", "node[1-3]").env("SLURM_NTASKS_PER_NODE", "2");
    run.stdout(Stdio::null()).stderr(error).spawn().expect("bridge starts")
}

fn end(folder: &Path, mut run: Child) -> (Option<i32>, String) {
    wait_for("end", folder, PATIENCE, || run.try_wait().unwrap().is_some());
    (run.wait().unwrap().code(), said(folder))
}

/// The loss of each iteration that a folder's runs logged last.
fn losses(folder: &Path) -> Vec<f64> {
    last_losses(folder).into_values().collect()
}

/// Process ID of the parent of a process.
fn parent_of(process: &Path) -> String {
    let status = std::fs::read_to_string(process.join("status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
}

fn kill(processes: &[&str]) {
    assert!(Command::new("kill").arg("-KILL").args(processes).status().unwrap().success());
}

/// The losses of a run that nothing happened to.
fn undisturbed() -> Vec<f64> {
    let folder = folder();
    let (code, said) = end(folder.path(), start(folder.path(), &["--ranks=4"]));
    assert_eq!(code, Some(0), "{said}");
    losses(folder.path())
}

/// Loses the machine of ranks 2 and 3: all its processes die at once, and it does not answer any
/// more.
fn lose(folder: &Path, machine: &str) {
    std::fs::write(folder.join(format!("dead-{machine}")), "").unwrap();
    let [second, third] = [2, 3].map(|rank| process_of(folder, rank));
    kill(&[&parent_of(&second), &number_of(&second), &number_of(&third)]);
}

#[test]
fn a_lost_machine_is_replaced_by_a_spare_one_or_by_fewer_ranks() {
    let expected = undisturbed();
    let fewer = format!("the run has 2 ranks instead of 4, on {FIRST}:2");
    for (hosts, told) in [
        (format!("--hosts={FIRST}:2,{SECOND}:2,{SPARE}:2"), "restart 1 of 3"),
        (format!("--hosts={FIRST}:2,{SECOND}:2"), fewer.as_str()),
    ] {
        let folder = folder();
        let run = start(folder.path(), &["--launcher=mpi", "--ranks=4", &hosts, "--max-restarts=3"]);
        wait_for("checkpoint", folder.path(), PATIENCE, || folder.path().join("saved/iter_0000020").exists());
        lose(folder.path(), SECOND);
        let (code, said) = end(folder.path(), run);
        assert_eq!(code, Some(0), "{hosts}: {said}");
        assert!(said.contains(&format!("{SECOND} is left out: ")) && said.contains(told), "{hosts}: {said}");
        assert_eq!(said.contains("instead of 4"), told.contains("instead of 4"), "{hosts}: {said}");
        assert_close(&losses(folder.path()), &expected, &hosts);
    }
}

#[test]
fn a_run_that_no_world_is_left_for_stays_ended() {
    let folder = folder();
    let tensor = "model.tensor_model_parallel_size=4";
    let hosts = format!("--hosts={FIRST}:2,{SECOND}:2");
    let run = start(folder.path(), &["--launcher=mpi", "--ranks=4", &hosts, "--max-restarts=3", tensor]);
    wait_for("checkpoint", folder.path(), PATIENCE, || folder.path().join("saved/iter_0000010").exists());
    lose(folder.path(), SECOND);
    let (code, said) = end(folder.path(), run);
    assert!(code.is_some_and(|code| code != 0), "{said}");
    let why = "the machines that answer have places for 2 ranks, and the recipe allows no world of so few, so it is not started again";
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_job_of_slurm_goes_on_without_a_lost_machine() {
    let expected = undisturbed();
    let folder = folder();
    let run = start(folder.path(), &["--launcher=slurm", "--ranks=4", "--max-restarts=3"]);
    wait_for("checkpoint", folder.path(), PATIENCE, || folder.path().join("saved/iter_0000020").exists());
    std::fs::write(folder.path().join("dead-node1"), "").unwrap();
    kill(&[&number_of(&process_of(folder.path(), 1))]);
    let (code, said) = end(folder.path(), run);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("node1 is left out: its state is down*"), "{said}");
    assert_close(&losses(folder.path()), &expected, "slurm");
    let asked = std::fs::read_to_string(folder.path().join("srun.txt")).unwrap();
    let asked: Vec<&str> = asked.lines().collect();
    let options = "--ntasks=4 --kill-on-bad-exit=1 --cpu-bind=none --nodes=2 --ntasks-per-node=2";
    let command = format!("{} train {}", program().display(), recipe().display());
    for (line, nodes) in asked.iter().zip(["node1,node2", "node2,node3"]) {
        assert!(line.starts_with(&format!("{options} --nodelist={nodes} --mpi=pmix {command} ")), "{line}");
    }
    assert_eq!(asked.len(), 2, "{asked:?}");
}

#[test]
fn machines_that_make_no_sense_are_refused() {
    let refused = |more: &[&str]| {
        let folder = folder();
        let (code, said) = end(folder.path(), start(folder.path(), more));
        assert_eq!(code, Some(2), "{said}");
        said
    };
    assert!(refused(&["--hosts=node1:2", "--ranks=2"]).contains("--hosts: threads are all on this machine"));
    assert!(refused(&["--hosts=node1:0", "--ranks=2", "--launcher=mpi"]).contains("HOST:RANKS"));
    assert!(refused(&["--launcher=slurm"]).contains("--ranks N"));
    assert!(refused(&["--launcher=slurm", "--max-restarts=2"]).contains("--ranks N"));
}
