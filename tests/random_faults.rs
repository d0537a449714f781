//! Runs with random faults: killed, stopped for a while, their saves damaged while they are dead, ranks that panic or hang. Each must end trained, with
//! the losses of an undisturbed run, bit for bit. The suite makes a few; `BRIDGE_RANDOM_FAULTS` says how many, `BRIDGE_RANDOM_SEED` where to begin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::{program, recipe};
use serde_json::Value;

const RUN: [&str; 9] = [
    "train.train_iters=150",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.save=saved",
    "checkpoint.save_interval=20",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.plot=false",
];

const PATIENCE: Duration = Duration::from_secs(180);

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

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

fn start(folder: &Path, arguments: &[String]) -> Child {
    let log = std::fs::File::create(folder.join("stderr.txt")).unwrap();
    Command::new(program())
        .arg("train")
        .arg(recipe())
        .args(RUN)
        .args(arguments)
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

/// How many steps a folder's runs have logged, those that were repeated more than once.
fn logged(folder: &Path) -> usize {
    let step = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default();
    step.lines().count()
}

/// The process that a supervisor runs.
fn run_of(supervisor: &Child) -> Option<String> {
    let id = supervisor.id();
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

fn signal(name: &str, process: &str) {
    // It may have ended meanwhile.
    let _ = Command::new("kill").args([name, process]).stderr(Stdio::null()).status();
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

/// Flips a bit of some file of the newest save in each place, persistent and temporary.
fn flip(folder: &Path, random: &mut Random) -> Option<PathBuf> {
    let mut files = Vec::new();
    ["saved", "local"].iter().for_each(|place| files_below(&folder.join(place), &mut files));
    let iteration = |path: &PathBuf| {
        let parts = path.iter().filter_map(|part| part.to_str());
        parts.filter_map(|part| part.strip_prefix("iter_")?.parse::<u64>().ok()).next_back()
    };
    // A run whose only save is damaged has nothing to go on from, and says so.
    let persistent = files.iter().filter(|path| path.starts_with(folder.join("saved"))).filter_map(iteration);
    let newest = files.iter().filter_map(iteration).max()?;
    if persistent.collect::<std::collections::BTreeSet<u64>>().len() < 2 {
        return None;
    }
    let files: Vec<PathBuf> = files.into_iter().filter(|path| iteration(path) == Some(newest)).collect();
    let path = files[random.below(files.len())].clone();
    let mut bytes = std::fs::read(&path).ok().filter(|bytes| !bytes.is_empty())?;
    let place = random.below(bytes.len());
    bytes[place] ^= 1 << random.below(8);
    std::fs::write(&path, bytes).ok()?;
    Some(path)
}

/// How a run is drawn.
fn arguments(random: &mut Random, ranks: usize) -> Vec<String> {
    let mut arguments = vec![format!("--ranks={ranks}"), "--max-restarts=40".to_owned()];
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
    if random.below(2) == 0 {
        add(&["inprocess_restart.enabled=true", "inprocess_restart.progress_watchdog_interval=0.2"]);
        add(&["inprocess_restart.soft_timeout=3", "inprocess_restart.hard_timeout=4"]);
        let fault = random.one(&["rank_killed", "rank_hung"]);
        add(&["ft.simulate_fault=true", &format!("ft.simulated_fault_type={fault}")]);
    }
    arguments
}

/// One run; returns how many faults it had.
fn one(seed: u64, undisturbed: &mut BTreeMap<usize, BTreeMap<u64, u64>>) -> usize {
    let mut random = Random(seed);
    let ranks = [1, 2, 4, 8][random.below(4)];
    let arguments = arguments(&mut random, ranks);
    let expected = undisturbed.entry(ranks).or_insert_with(|| {
        let folder = tempfile::tempdir().unwrap();
        assert!(start(folder.path(), &[format!("--ranks={ranks}")]).wait().unwrap().success());
        losses(folder.path())
    });
    let folder = tempfile::tempdir().unwrap();
    let mut run = start(folder.path(), &arguments);
    let began = Instant::now();
    let mut faults = vec![arguments.iter().find(|text| text.contains("fault_type")).cloned().unwrap_or_default()];
    faults.retain(|fault| !fault.is_empty());
    for _ in 0..2 + random.below(4) {
        // A run that comes to no newer save in three starts is given up, as it should be.
        let (steps, before) = (25 + random.below(25), logged(folder.path()));
        while logged(folder.path()) < before + steps && run.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let Some(process) = run_of(&run) else { continue };
        match random.below(3) {
            0 => {
                signal("-KILL", &process);
                faults.push("killed".to_owned());
            }
            1 => {
                signal("-KILL", &process);
                let path = flip(folder.path(), &mut random);
                faults.push(format!("killed, and a bit flipped in {path:?}"));
            }
            _ => {
                signal("-STOP", &process);
                std::thread::sleep(Duration::from_millis(500));
                signal("-CONT", &process);
                faults.push("stopped for half a second".to_owned());
            }
        }
    }
    let mut status = None;
    while status.is_none() {
        status = run.try_wait().unwrap();
        if began.elapsed() > PATIENCE {
            run_of(&run).iter().for_each(|process| signal("-KILL", process));
            run.kill().unwrap();
            panic!("seed {seed}: {arguments:?}, {faults:?}: no end in three minutes");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = std::fs::read_to_string(folder.path().join("stderr.txt")).unwrap();
    assert!(status.unwrap().success(), "seed {seed}: {arguments:?}, {faults:?}: {said}");
    assert_eq!(&losses(folder.path()), expected, "seed {seed}: {arguments:?}, {faults:?}: {said}");
    faults.len()
}

#[test]
fn runs_outlive_random_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, first) = (number("BRIDGE_RANDOM_FAULTS").unwrap_or(2), number("BRIDGE_RANDOM_SEED").unwrap_or(7));
    let mut undisturbed = BTreeMap::new();
    let faults: usize = (first..first + count).map(|seed| one(seed, &mut undisturbed)).sum();
    println!("{faults} faults in {count} runs");
}
