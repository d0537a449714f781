//! The machines that the processes of a run are spread over: which there are, which of them answer,
//! and how many ranks a world of those can have.

use std::fmt::Display;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use bridge_core::logging::host_name;

use crate::failure::Failure;

/// Time limit for a machine's answer.
const PATIENCE: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(20);

/// A machine, and how many ranks it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    pub slots: usize,
}

/// `NAME` or `NAME:SLOTS`.
impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, slots) = text.split_once(':').unwrap_or((text, "1"));
        let slots = slots.parse().ok().filter(|slots| *slots > 0);
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        match slots {
            Some(slots) if is_name && !name.starts_with('-') => Ok(Self { name: name.to_owned(), slots }),
            _ => Err("expected HOST or HOST:RANKS, with at least one rank".to_owned()),
        }
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.slots)
    }
}

/// Launcher of processes on machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// mpirun, over ssh.
    Mpirun,
    /// srun, inside of a job.
    Srun,
}

/// The machines of the Slurm job that this process is in, as `sbatch --ntasks-per-node` has divided
/// them.
pub fn of_slurm_job() -> Result<Vec<Machine>, Failure> {
    let variable = |name: &str| {
        std::env::var(name)
            .map_err(|_| Failure::input(format!("--launcher slurm: {name} is not set, so this is not a Slurm job")))
    };
    let list = variable("SLURM_JOB_NODELIST")?;
    let slots = std::env::var("SLURM_NTASKS_PER_NODE").ok().and_then(|text| text.parse().ok());
    let slots = slots.ok_or_else(|| {
        Failure::input(
            "--launcher slurm: say how many ranks a machine has, by `sbatch --ntasks-per-node` or by --hosts",
        )
    })?;
    let output = Command::new("scontrol").args(["show", "hostnames", &list]).output();
    let output = output.map_err(|error| Failure::run(format!("scontrol cannot be started: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::run(format!("scontrol show hostnames {list}: {}", said.trim())));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split_whitespace().map(|name| Machine { name: name.to_owned(), slots }).collect())
}

/// The machines that answer, and warnings about all others.
pub fn answering(machines: &[Machine], starter: Starter) -> (Vec<Machine>, Vec<String>) {
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let asked: Vec<_> = machines.iter().map(|machine| scope.spawn(|| ask(&machine.name, starter))).collect();
        // A thread that only waits does not panic.
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("was not asked".into()))).collect()
    });
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    for (machine, outcome) in machines.iter().zip(outcomes) {
        match outcome {
            Ok(()) => found.push(machine.clone()),
            Err(why) => lost.push(format!("{} is left out: {why}", machine.name)),
        }
    }
    (found, lost)
}

/// Asks a machine whether it is there.
fn ask(name: &str, starter: Starter) -> Result<(), String> {
    match starter {
        Starter::Mpirun if is_this_machine(name) => Ok(()),
        Starter::Mpirun => {
            // Interfaces that Open MPI is configured to use; the first existing one of several
            // counts.
            let agents = std::env::var("OMPI_MCA_plm_rsh_agent").unwrap_or_else(|_| "ssh".to_owned());
            let mut words = agents.split(':').next().unwrap_or_default().split_whitespace();
            let agent = words.next().unwrap_or("ssh");
            let mut command = Command::new(agent);
            command.args(words).arg(name).arg("true");
            let (is_there, said) = within_patience(&mut command)?;
            let said = said.trim().lines().last().unwrap_or_default().to_owned();
            if is_there { Ok(()) } else { Err(format!("{agent} does not reach it {said}").trim_end().to_owned()) }
        }
        Starter::Srun => {
            let mut command = Command::new("sinfo");
            let (_, said) = within_patience(command.args(["--noheader", "--Node", "--format=%T", "--nodes", name]))?;
            let state = said.trim().lines().next().unwrap_or("not known").to_owned();
            if is_usable(&state) { Ok(()) } else { Err(format!("its state is {state}")) }
        }
    }
}

/// True if Slurm's state of a machine of a running job allows steps to be started there. A `*`
/// marks a machine that does not respond.
fn is_usable(state: &str) -> bool {
    let plain = state.trim_end_matches(|c: char| !c.is_ascii_alphabetic() && c != '*');
    ["allocated", "mixed", "completing", "idle", "draining", "reserved"].contains(&plain.to_ascii_lowercase().as_str())
}

fn is_this_machine(name: &str) -> bool {
    name == "localhost" || name == host_name()
}

/// Runs a command that must end in time; returns whether it succeeded, and its output.
fn within_patience(command: &mut Command) -> Result<(bool, String), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
    let began = Instant::now();
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if began.elapsed() > PATIENCE {
            // The process may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{program} has no answer in {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(INTERVAL);
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((output.status.success(), said.concat()))
}

/// The most ranks, at most those `wanted`, that `machines` have places for and that `allows` a run.
pub fn world_on(machines: &[Machine], wanted: usize, allows: impl Fn(usize) -> bool) -> Option<usize> {
    let places: usize = machines.iter().map(|machine| machine.slots).sum();
    (1..=wanted.min(places)).rev().find(|ranks| allows(*ranks))
}

/// The first machines of `machines` that have slots for `ranks` ranks; the rest are spare.
pub fn first_of(machines: &[Machine], ranks: usize) -> Vec<Machine> {
    let mut places = 0;
    let first = machines.iter().take_while(|machine| {
        let is_needed = places < ranks;
        places += machine.slots;
        is_needed
    });
    first.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(texts: &[&str]) -> Vec<Machine> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn machines_are_read_with_their_places() {
        assert_eq!(machines(&["a", "b-2.x:8"])[1], Machine { name: "b-2.x".into(), slots: 8 });
        for bad in ["", ":2", "a:0", "a:x", "-o:2", "a b:1"] {
            assert!(bad.parse::<Machine>().is_err(), "{bad}");
        }
        assert_eq!(machines(&["a"])[0].to_string(), "a:1");
    }

    #[test]
    fn a_world_is_as_large_as_machines_and_recipe_allow() {
        let all = machines(&["a:4", "b:4", "c:4"]);
        let even = |ranks: usize| ranks.is_multiple_of(2) && ranks != 6;
        assert_eq!(world_on(&all, 8, even), Some(8), "four are spare");
        assert_eq!(first_of(&all, 8), all[..2]);
        assert_eq!(world_on(&all[1..], 8, even), Some(8));
        assert_eq!(world_on(&machines(&["a:4", "b:3"]), 8, even), Some(4));
        assert_eq!(first_of(&all, 5), all[..2]);
        assert_eq!(world_on(&all[..1], 8, |ranks| ranks == 8), None);
        assert_eq!(world_on(&[], 8, even), None);
    }

    #[test]
    fn only_machines_that_answer_are_usable() {
        for state in ["allocated", "mixed", "idle", "draining", "allocated+"] {
            assert!(is_usable(state), "{state}");
        }
        for state in ["down", "down*", "allocated*", "drained", "fail", "not known", ""] {
            assert!(!is_usable(state), "{state}");
        }
    }
}
