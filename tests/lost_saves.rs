//! Runs that are killed at any moment of their saves, and saves with a flipped bit, for every kind
//! of save: published saves are never lost, and damaged ones are never loaded. The suite does a few
//! of each; `BRIDGE_KILLS` and `BRIDGE_FLIPS` set the numbers, `BRIDGE_RANDOM_SEED` the seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_core::checkpoint::CheckpointManager;
use bridge_core::config::{RawConfig, World};
use bridge_core::train::{RunOptions, pretrain};
use bridge_models::registry;
use bridge_tests::{bridge, copy, program, recipe};
use serde_json::Value;

#[path = "ranks/elsewhere.rs"]
mod elsewhere;

use elsewhere::Elsewhere;

const RUN: [&str; 9] = [
    "train.train_iters=100000",
    "train.global_batch_size=2",
    "train.micro_batch_size=1",
    "train.num_threads=1",
    "checkpoint.most_recent_k=3",
    "validation.eval_iters=0",
    "model.num_layers=1",
    "logger.plot=false",
    "logger.progress=none",
];

const PATIENCE: Duration = Duration::from_secs(60);

/// Base of adapters in the folder of a run.
const BASE: &str = "base/saved";
/// Says to [`a_process_with_a_manager`] that it is one, with its overrides.
const CHILD: &str = "BRIDGE_LOST_SAVES_CHILD";

/// A kind of save.
struct Kind {
    name: &'static str,
    ranks: usize,
    overrides: &'static [&'static str],
    /// True if a copy may replace damaged files.
    has_copies: bool,
}

const fn kind(name: &'static str, ranks: usize, overrides: &'static [&'static str]) -> Kind {
    Kind { name, ranks, overrides, has_copies: false }
}

const EACH: &str = "checkpoint.save_interval=1";
const SELDOM: &str = "checkpoint.save_interval=40";
const TEMPORARY: &str = "checkpoint.non_persistent_save_interval=1";
const MANAGER: &str = "manager";

const KINDS: [Kind; 8] = [
    kind("persistent", 1, &[EACH]),
    kind("persistent, two ranks", 2, &[EACH, "optimizer.use_distributed_optimizer=true"]),
    kind("in the background", 1, &[EACH, "checkpoint.async_save=true"]),
    kind("temporary, global", 1, &[SELDOM, TEMPORARY, "checkpoint.non_persistent_ckpt_type=global"]),
    Kind {
        has_copies: true,
        ..kind(
            "temporary, local, with copies",
            2,
            &[
                SELDOM,
                TEMPORARY,
                "checkpoint.non_persistent_ckpt_type=local",
                "checkpoint.non_persistent_local_ckpt_dir=local",
                "checkpoint.replication=true",
                "checkpoint.replication_jump=1",
            ],
        )
    },
    kind("temporary, in memory", 1, &[SELDOM, TEMPORARY, "checkpoint.non_persistent_ckpt_type=in_memory"]),
    kind("adapters", 1, &[EACH, "peft.kind=lora", "checkpoint.pretrained_checkpoint=base/saved"]),
    kind(MANAGER, 1, &[EACH, "checkpoint.custom_manager_class=elsewhere"]),
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % bound as u64) as usize
    }
}

/// A number from the environment, for instance of how many times something is done.
fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A program with a checkpoint manager, which `bridge` is not: this test in a process of its own.
#[test]
fn a_process_with_a_manager() {
    let Ok(overrides) = std::env::var(CHILD) else { return };
    let overrides: Vec<String> = overrides.split('\n').map(str::to_owned).collect();
    let raw = RawConfig::from_file(&recipe(), &overrides, &registry().kinds()).unwrap();
    let manager: Arc<dyn CheckpointManager> = Arc::new(Elsewhere("elsewhere".into()));
    let managers = BTreeMap::from([("elsewhere".to_owned(), manager)]);
    let options = RunOptions { managers, ..RunOptions::new(registry()) };
    if let Err(error) = pretrain(raw.finalize(&World { size: 1 }).unwrap(), options) {
        println!("error: {error}");
        std::process::exit(1);
    }
}

impl Kind {
    /// A folder for a run.
    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        if self.name == MANAGER {
            std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
        }
        if self.overrides.iter().any(|text| text.contains(BASE)) {
            let base = folder.path().join("base");
            std::fs::create_dir(&base).unwrap();
            let overrides =
                ["train.train_iters=2", "model.num_layers=1", "validation.eval_iters=0", "checkpoint.save=saved"];
            assert!(bridge(&base, &overrides).status.success());
        }
        folder
    }

    /// Starts a run that ends after step `last`.
    fn start(&self, folder: &Path, last: u64, more: &[&str]) -> Child {
        let end = format!("train.exit_interval={last}");
        let file = |name: &str| std::fs::File::create(folder.join(name)).unwrap();
        let overrides = RUN.iter().chain(self.overrides).chain(more).copied().chain([end.as_str()]);
        let mut command = if self.name == MANAGER {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let overrides = overrides.collect::<Vec<_>>().join("\n");
            command.args(["--exact", "a_process_with_a_manager", "--nocapture"]).env(CHILD, overrides);
            command
        } else {
            let mut command = Command::new(program());
            command.arg("train").arg(recipe()).arg(format!("--ranks={}", self.ranks)).args(overrides);
            command
        };
        command.current_dir(folder).stdout(file("out.txt")).stderr(file("err.txt")).spawn().expect("the run starts")
    }

    /// Runs to step `last`; returns whether it succeeded, and its output.
    fn run(&self, folder: &Path, last: u64, more: &[&str]) -> (bool, String) {
        let mut run = self.start(folder, last, more);
        let began = Instant::now();
        while run.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                run.kill().unwrap();
                panic!("{}: no end: {}", self.name, said(folder));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        (run.wait().unwrap().success(), said(folder))
    }

    /// The folders where saves appear under their final names: those of each rank, if each has its
    /// own.
    fn places(&self, folder: &Path) -> Vec<Vec<PathBuf>> {
        let identity = std::fs::read_to_string(folder.join("saved/run_identity.txt")).unwrap_or_default();
        let of_ranks = |root: PathBuf| (0..self.ranks).map(|rank| root.join(format!("rank-{rank:05}"))).collect();
        let local = std::fs::read_dir(folder.join("local")).ok().and_then(|mut entries| entries.next()?.ok());
        let mut places = vec![vec![folder.join("saved")], vec![folder.join("saved/non_persistent")]];
        places.extend(local.map(|entry| of_ranks(entry.path())));
        if self.overrides.iter().any(|text| text.ends_with("in_memory")) && !identity.is_empty() {
            places.push(of_ranks(format!("/dev/shm/bridge-{}", identity.trim()).into()));
        }
        places
    }

    /// The newest save that is there on all ranks, with where it is.
    fn newest(&self, folder: &Path) -> Option<(u64, Vec<PathBuf>)> {
        let newest_in = |place: &PathBuf| {
            let names = std::fs::read_dir(place).ok()?.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.strip_prefix("iter_")?.parse::<u64>().ok()).max()
        };
        let of_place = |ranks: &Vec<PathBuf>| {
            let newest = ranks.iter().map(newest_in).min().flatten()?;
            Some((newest, ranks.iter().map(|rank| rank.join(format!("iter_{newest:07}"))).collect()))
        };
        self.places(folder).iter().filter_map(of_place).max_by_key(|(iteration, _)| *iteration)
    }
}

fn said(folder: &Path) -> String {
    ["out.txt", "err.txt"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap_or_default()).concat()
}

/// The loss of each iteration that a folder's runs logged last.
fn losses(folder: &Path) -> BTreeMap<u64, u64> {
    let text = std::fs::read_to_string(folder.join("runs/tiny/metrics.jsonl")).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let losses = records.filter(|of| of["kind"] == "train");
    losses.filter_map(|of| Some((of["iteration"].as_u64()?, of["loss"].as_f64()?.to_bits()))).collect()
}

/// Iteration that a run says it resumes from; 0 if it starts anew.
fn resumed_from(said: &str) -> u64 {
    let line = said.lines().rev().find_map(|line| line.split_once("resuming from ")?.1.split_once("(iteration "));
    line.map_or(0, |(_, rest)| rest.split([')', ',']).next().unwrap().parse().unwrap())
}

/// The losses of an undisturbed run up to step `last`.
fn undisturbed(kind: &Kind, last: u64) -> BTreeMap<u64, u64> {
    let folder = kind.folder();
    let plain = ["checkpoint.save=null", "checkpoint.save_interval=null", "checkpoint.most_recent_k=-1"];
    let plain_kind = Kind { name: "undisturbed", overrides: &[], ..*kind };
    let peft: Vec<&str> =
        kind.overrides.iter().filter(|text| text.contains("peft") || text.contains(BASE)).copied().collect();
    let sharded = kind.overrides.iter().filter(|text| text.starts_with("optimizer.")).copied();
    let more: Vec<&str> = plain.into_iter().chain(peft).chain(sharded).collect();
    let (is_done, said) = plain_kind.run(folder.path(), last, &more);
    assert!(is_done, "{}: {said}", kind.name);
    losses(folder.path())
}

/// Kills runs of a kind at random moments; each resumes from the newest save that existed, or a
/// newer one.
fn kill(kind: &Kind, times: usize, random: &mut Random) {
    let folder = kind.folder();
    let at = folder.path();
    let mut before = 0;
    for turn in 0..times {
        // The previous run may have saved again between the check of its saves and its kill.
        let at_start = kind.newest(at).map_or(0, |(iteration, _)| iteration);
        let mut run = kind.start(at, 1_000_000, &["checkpoint.save=saved"]);
        let began = Instant::now();
        // Somewhere in the saves that come next.
        while kind.newest(at).is_none_or(|(iteration, _)| iteration <= at_start) {
            assert!(began.elapsed() < PATIENCE, "{}, kill {turn}: no save: {}", kind.name, said(at));
            assert!(run.try_wait().unwrap().is_none(), "{}, kill {turn}: {}", kind.name, said(at));
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000) as u64));
        let there = kind.newest(at).expect("it has saved").0;
        run.kill().unwrap();
        run.wait().unwrap();
        let from = resumed_from(&said(at));
        assert!(turn == 0 || from >= before, "{}, kill {turn}: {before} was there, but: {}", kind.name, said(at));
        before = there;
    }
    let last = before + 3;
    let (is_done, said) = kind.run(at, last, &["checkpoint.save=saved"]);
    assert!(is_done && resumed_from(&said) >= before, "{}: {before} was there, but: {said}", kind.name);
    let found = losses(at);
    assert_eq!(found.len() as u64, last, "{}: each step once", kind.name);
    assert_eq!(found, undisturbed(kind, last), "{}", kind.name);
}

#[test]
fn kills_lose_nothing_that_was_saved() {
    let (kills, seed) = (number("BRIDGE_KILLS", 16), number("BRIDGE_RANDOM_SEED", 3));
    let mut random = Random(seed as u64);
    for kind in &KINDS {
        let times = kills.div_ceil(KINDS.len());
        kill(kind, times, &mut random);
        println!("{}: {times} kills", kind.name);
    }
}

/// Flips a bit of a save: the run resumes from the one before, or from a copy, and reaches the same
/// losses.
fn flip(kind: &Kind, times: usize, random: &mut Random) {
    let folder = kind.folder();
    let at = folder.path();
    let mut run = kind.start(at, 1_000_000, &["checkpoint.save=saved"]);
    let began = Instant::now();
    // More than one save of the sort that is damaged, and a persistent one.
    while kind.newest(at).is_none_or(|(iteration, _)| iteration < 43) {
        assert!(began.elapsed() < PATIENCE && run.try_wait().unwrap().is_none(), "{}: {}", kind.name, said(at));
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let (newest, saves) = kind.newest(at).unwrap();
    let memory = kind.places(at).into_iter().flatten().find(|place| place.starts_with("/dev/shm"));
    let memory = memory.and_then(|place| place.parent().map(Path::to_owned));
    let intact = tempfile::tempdir().unwrap();
    copy(at, intact.path());
    memory.iter().for_each(|memory| copy(memory, &intact.path().join("memory")));
    let expected = undisturbed(kind, newest + 2);
    for turn in 0..times {
        for entry in std::fs::read_dir(at).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
        copy(intact.path(), at);
        if let Some(memory) = &memory {
            let _ = std::fs::remove_dir_all(memory);
            copy(&intact.path().join("memory"), memory);
        }
        let save = &saves[random.below(saves.len())];
        let mut files: Vec<PathBuf> = std::fs::read_dir(save).unwrap().flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0));
        files.sort();
        let path = &files[random.below(files.len())];
        let mut bytes = std::fs::read(path).unwrap();
        let place = random.below(bytes.len() * 8);
        bytes[place / 8] ^= 1 << (place % 8);
        std::fs::write(path, bytes).unwrap();
        let (is_done, said) = kind.run(at, newest + 2, &["checkpoint.save=saved"]);
        let what = format!("{}, flip {turn}, bit {place} of {}", kind.name, path.display());
        assert!(is_done, "{what}: {said}");
        let from = resumed_from(&said);
        // A manager has the same checkpoint once more.
        let has_copies = kind.has_copies || kind.name == MANAGER;
        assert!(from > 0 && (has_copies || from < newest), "{what}: taken all the same: {said}");
        assert_eq!(losses(at), expected, "{what}: {said}");
    }
    memory.iter().for_each(|memory| drop(std::fs::remove_dir_all(memory)));
}

#[test]
fn no_flipped_bit_is_taken() {
    let (flips, seed) = (number("BRIDGE_FLIPS", 16), number("BRIDGE_RANDOM_SEED", 3));
    let mut random = Random(seed as u64 + 1);
    for kind in &KINDS {
        let times = flips.div_ceil(KINDS.len());
        flip(kind, times, &mut random);
        println!("{}: {times} flips", kind.name);
    }
}
