//! Runs with random faults: killed, stopped for a while or permanently, slowed down, saves damaged
//! between restarts, full disks, ranks that panic or hang. Ranks are threads and, if the suite was
//! built with MPI, processes, one of which may be killed, stall or be slow. Each run must finish
//! training with the losses of an undisturbed run, bit for bit, or report why it did not. The suite
//! makes a few; `BRIDGE_RANDOM_FAULTS` sets the number, `BRIDGE_RANDOM_SEED` the seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::{faulty_disk, program, recipe};
use serde_json::Value;

const RUN: [&str; 11] = [
    "train.train_iters=150",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "checkpoint.save_interval=20",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.plot=false",
    // A process that stalls is given up after this time.
    "dist.distributed_timeout_seconds_after_init=8",
    "logger.progress=none",
];

const PATIENCE: Duration = Duration::from_secs(240);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Fault of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// All of it is killed.
    Kill,
    /// A process is killed, and a bit of its newest save flipped.
    KillAndFlip,
    /// A process is stopped for half a second.
    Stop,
    /// A process is stopped until another process ends it; only for runs with a monitor.
    StopForGood,
    /// A process gets a fifth of the CPU time for two seconds.
    Slow,
    /// No save succeeds for one and a half seconds.
    FullDisk,
    /// The process of one rank is killed.
    KillRank,
    /// The launcher of the ranks is killed: mpirun, or the program that runs it.
    KillLauncher,
    /// One rank does not answer for two seconds, and its peers wait.
    Stall,
    /// One rank does not answer for longer than its peers wait.
    StallForGood,
    /// One rank gets a fifth of the time for two seconds.
    SlowRank,
}

const FAULTS: [Fault; 5] = [Fault::Kill, Fault::KillAndFlip, Fault::Stop, Fault::Slow, Fault::FullDisk];
const FAULTS_OF_PROCESSES: [Fault; 5] =
    [Fault::KillRank, Fault::KillLauncher, Fault::Stall, Fault::StallForGood, Fault::SlowRank];

/// A run as it is drawn.
#[derive(Debug)]
struct Case {
    ranks: usize,
    is_mpi: bool,
    arguments: Vec<String>,
    faults: Vec<Fault>,
}

/// Start method of ranks.
fn layout(ranks: usize, is_mpi: bool) -> Vec<String> {
    let mut layout = vec![format!("--ranks={ranks}")];
    layout.extend(is_mpi.then(|| "--launcher=mpi".to_owned()));
    layout
}

impl Case {
    fn draw(random: &mut Random) -> Self {
        let is_mpi = cfg!(feature = "mpi") && random.below(2) == 0;
        let ranks = random.one(if is_mpi { &[2, 2, 4] } else { &[1, 2, 4, 8][..] });
        let mut arguments = layout(ranks, is_mpi);
        arguments.push("--max-restarts=40".to_owned());
        let mut add = |texts: &[&str]| arguments.extend(texts.iter().map(|text| (*text).to_owned()));
        match random.below(4) {
            0 => {}
            1 => add(&["checkpoint.non_persistent_save_interval=3", "checkpoint.non_persistent_ckpt_type=global"]),
            _ => {
                add(&["checkpoint.non_persistent_save_interval=3", "checkpoint.non_persistent_ckpt_type=local"]);
                add(&["checkpoint.non_persistent_local_ckpt_dir=local"]);
                if ranks > 1 && random.below(2) == 0 {
                    add(&["checkpoint.replication=true", "checkpoint.replication_jump=1"]);
                }
            }
        }
        if random.below(2) == 0 {
            add(&["checkpoint.async_save=true"]);
        }
        let mut kinds = FAULTS.to_vec();
        match random.below(3) {
            0 if !is_mpi => {
                add(&["inprocess_restart.enabled=true", "inprocess_restart.progress_watchdog_interval=0.2"]);
                add(&["inprocess_restart.soft_timeout=6", "inprocess_restart.hard_timeout=7"]);
                let fault = random.one(&["rank_killed", "rank_hung"]);
                add(&["ft.simulate_fault=true", &format!("ft.simulated_fault_type={fault}")]);
            }
            1 => {
                add(&["ft.enable_ft_package=true", "ft.calc_ft_timeouts=true"]);
                kinds.push(Fault::StopForGood);
            }
            _ => {}
        }
        if is_mpi {
            kinds.extend(FAULTS_OF_PROCESSES);
        }
        let faults = (0..3 + random.below(5)).map(|_| random.one(&kinds)).collect();
        Self { ranks, is_mpi, arguments, faults }
    }

    /// Faults that the run does itself.
    fn faults_of_its_own(&self) -> usize {
        usize::from(self.arguments.iter().any(|text| text.contains("fault_type")))
    }
}

fn start(folder: &Path, arguments: &[String]) -> Child {
    let log = std::fs::File::create(folder.join("stderr.txt")).unwrap();
    Command::new(program())
        .arg("train")
        .arg(recipe())
        .args(RUN)
        .args(arguments)
        .env("LD_PRELOAD", faulty_disk(folder))
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("bridge starts")
}

/// The loss of each iteration that a folder's runs logged last.
fn losses(folder: &Path) -> BTreeMap<u64, u64> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let losses = records.filter(|of| of["kind"] == "train");
    losses.filter_map(|of| Some((of["iteration"].as_u64()?, of["loss"].as_f64()?.to_bits()))).collect()
}

/// Number of steps that a folder's runs have logged; repeated steps count each time.
fn logged(folder: &Path) -> usize {
    let step = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default();
    step.lines().count()
}

/// A process of a run.
#[derive(Debug)]
struct Process {
    id: String,
    /// The rank that it is, under MPI.
    rank: Option<usize>,
    is_bridge: bool,
}

/// The processes that work in `folder`, by rank, but the supervisor.
fn processes_in(folder: &Path, supervisor: u32) -> Vec<Process> {
    let folder = folder.canonicalize().unwrap();
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
        let is_here = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder);
        let id = process.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !is_here || id == supervisor.to_string() {
            continue;
        }
        let is_bridge = std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.starts_with(program()));
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        let rank = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"OMPI_COMM_WORLD_RANK="));
        let rank = rank.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        found.push(Process { id: id.to_owned(), rank, is_bridge });
    }
    found.sort_by_key(|process| process.rank);
    found
}

/// Processes that hold ranks.
fn ranks_in(folder: &Path, supervisor: u32) -> Vec<String> {
    let mut found = processes_in(folder, supervisor);
    // The launcher of an MPI run is `bridge` too, and has no rank.
    let is_mpi = found.iter().any(|process| process.rank.is_some());
    found.retain(|process| process.is_bridge && (process.rank.is_some() || !is_mpi));
    found.into_iter().map(|process| process.id).collect()
}

fn signal<'a>(name: &str, processes: impl IntoIterator<Item = &'a String>) {
    // Errors are ignored: processes may have ended meanwhile.
    let _ = Command::new("kill").arg(name).args(processes).stderr(Stdio::null()).status();
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

/// Flips a bit of some file of the newest save in each place, persistent and temporary.
fn flip(folder: &Path, random: &mut Random) {
    let mut files = Vec::new();
    ["saved", "local"].iter().for_each(|place| files_below(&folder.join(place), &mut files));
    let iteration = |path: &PathBuf| {
        let parts = path.iter().filter_map(|part| part.to_str());
        parts.filter_map(|part| part.strip_prefix("iter_")?.parse::<u64>().ok()).next_back()
    };
    // A run whose only save is damaged cannot resume, and ends with an error.
    let persistent = files.iter().filter(|path| path.starts_with(folder.join("saved"))).filter_map(iteration);
    let Some(newest) = files.iter().filter_map(iteration).max() else { return };
    if persistent.collect::<std::collections::BTreeSet<u64>>().len() < 2 {
        return;
    }
    let files: Vec<PathBuf> = files.into_iter().filter(|path| iteration(path) == Some(newest)).collect();
    let path = files[random.below(files.len())].clone();
    let Some(mut bytes) = std::fs::read(&path).ok().filter(|bytes| !bytes.is_empty()) else { return };
    let place = random.below(bytes.len());
    bytes[place] ^= 1 << random.below(8);
    // The file may be a link that other places share; all of them are damaged then, as by one bad
    // block.
    std::fs::write(&path, bytes).expect("the folder can be written");
}

/// Gives processes a fifth of the time for two seconds.
fn slow_down(processes: &[String]) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        signal("-STOP", processes);
        std::thread::sleep(Duration::from_millis(40));
        signal("-CONT", processes);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stops processes for so long.
fn stop(processes: &[String], seconds: f64) {
    signal("-STOP", processes);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    signal("-CONT", processes);
}

/// Injects a fault; false if no process is running.
fn do_to(run: &Child, fault: Fault, folder: &Path, random: &mut Random) -> bool {
    let all = ranks_in(folder, run.id());
    let Some(one) = all.get(random.below(all.len().max(1))).cloned() else { return false };
    let one = [one];
    match fault {
        Fault::Kill => signal("-KILL", &all),
        Fault::KillAndFlip => {
            signal("-KILL", &all);
            flip(folder, random);
        }
        Fault::Stop => stop(&all, 0.5),
        Fault::StopForGood => signal("-STOP", &all),
        Fault::Slow => slow_down(&all),
        Fault::FullDisk => {
            std::fs::write(folder.join("full"), "").unwrap();
            std::thread::sleep(Duration::from_millis(1500));
            std::fs::remove_file(folder.join("full")).unwrap();
        }
        Fault::KillRank => signal("-KILL", &one),
        Fault::KillLauncher => {
            let mut launchers = processes_in(folder, run.id());
            launchers.retain(|process| process.rank.is_none());
            let Some(one) = launchers.get(random.below(launchers.len().max(1))) else { return false };
            signal("-KILL", [&one.id]);
        }
        Fault::Stall => stop(&one, 2.0),
        Fault::StallForGood => signal("-STOP", &one),
        Fault::SlowRank => slow_down(&one),
    }
    true
}

/// One run; returns how many faults it had.
fn one(seed: u64, undisturbed: &mut BTreeMap<(usize, bool), BTreeMap<u64, u64>>) -> usize {
    let mut random = Random(seed);
    let case = Case::draw(&mut random);
    let expected = undisturbed.entry((case.ranks, case.is_mpi)).or_insert_with(|| {
        let folder = tempfile::tempdir().unwrap();
        let ended = start(folder.path(), &layout(case.ranks, case.is_mpi)).wait().unwrap();
        let said = std::fs::read_to_string(folder.path().join("stderr.txt")).unwrap();
        assert!(ended.success(), "undisturbed: {said}");
        losses(folder.path())
    });
    let folder = tempfile::tempdir().unwrap();
    let limits = r#"{ "setup": 60, "step": 4, "checkpointing": 10, "out_of_section": 4 }"#;
    std::fs::create_dir(folder.path().join("saved")).unwrap();
    std::fs::write(folder.path().join("saved/ft_state.json"), limits).unwrap();
    let mut run = start(folder.path(), &case.arguments);
    let (began, mut count) = (Instant::now(), case.faults_of_its_own());
    for fault in &case.faults {
        // A run that comes to no newer save in three starts is given up, as it should be.
        let (steps, before) = (22 + random.below(25), logged(folder.path()));
        while logged(folder.path()) < before + steps && run.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        count += usize::from(do_to(&run, *fault, folder.path(), &mut random));
    }
    let mut status = None;
    let said = || std::fs::read_to_string(folder.path().join("stderr.txt")).unwrap();
    while status.is_none() {
        status = run.try_wait().unwrap();
        if began.elapsed() > PATIENCE {
            signal("-KILL", processes_in(folder.path(), run.id()).iter().map(|process| &process.id));
            run.kill().unwrap();
            panic!("seed {seed}: {case:?}: no end in {PATIENCE:?}: {}", said());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = said();
    // If the disk is full for longer than three starts take, the run ends with an error.
    let is_full = case.faults.contains(&Fault::FullDisk) && said.contains("No space left on device");
    let is_given_up = is_full && said.contains("so it is not started again");
    assert!(status.unwrap().success() || is_given_up, "seed {seed}: {case:?}: {said}");
    if is_given_up {
        println!("seed {seed}: given up on a full disk");
        return count;
    }
    assert_eq!(&losses(folder.path()), expected, "seed {seed}: {case:?}: {said}");
    count
}

#[test]
fn runs_outlive_random_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, first) = (number("BRIDGE_RANDOM_FAULTS").unwrap_or(2), number("BRIDGE_RANDOM_SEED").unwrap_or(7));
    let mut undisturbed = BTreeMap::new();
    let mut faults = 0;
    for seed in first..first + count {
        let began = Instant::now();
        let of_this = one(seed, &mut undisturbed);
        faults += of_this;
        println!("seed {seed}: {of_this} faults, {:.1} s", began.elapsed().as_secs_f64());
    }
    println!("{faults} faults in {count} runs");
}
