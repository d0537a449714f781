//! Runs drawn at random: kind of data, ranks, layout, batch, and stops, signals, kills and full
//! disks on the way, resumed at other layouts. Each is refused at set-up, and then for a reason
//! that the configuration alone gives, or ends trained with the losses that one rank has without
//! any of this.
//!
//! `BRIDGE_RANDOM_RUNS` is their number, `BRIDGE_RANDOM_SEED` the first seed; a failure names its
//! seed.

mod draw;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bridge_core::config::{World, load};
use bridge_data::indexed::{IndexedDatasetBuilder, TokenDtype};
use bridge_models::registry;
use bridge_tests::recipe as tiny;
use draw::{Case, Data, Draw, Event, ITERATIONS, Layout, Recipe};

/// Relative difference of losses that layouts may make in float32.
const TOLERANCE: f64 = 1e-5;

/// Time limit of a part of a run.
const LIMIT: Duration = Duration::from_secs(120);

/// Losses by kind (`train`, `valid`, `test`) and iteration.
type Losses = BTreeMap<(String, u64), f64>;

#[test]
fn runs_end_trained_or_are_refused_at_set_up() {
    let from_environment = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let num_runs = from_environment("BRIDGE_RANDOM_RUNS").unwrap_or(8);
    let first = from_environment("BRIDGE_RANDOM_SEED").unwrap_or(1);
    let mut failures = Vec::new();
    let mut refused = 0;
    for seed in first..first + num_runs {
        let case = Case::draw(seed);
        match run(&case) {
            Ok(true) => {}
            Ok(false) => refused += 1,
            Err(why) => failures.push(format!("seed {seed}: {why}\n{case}")),
        }
    }
    if !disks_can_be_mounted() {
        println!("skipped: full disks, which need user namespaces; such parts stop instead");
    }
    println!("{num_runs} runs, {refused} of them refused at set-up, {} failed", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(refused <= num_runs / 2, "{refused} of {num_runs} runs were refused: they show nothing");
}

/// Overrides of every run of a recipe, wherever it runs.
fn common(recipe: &Recipe) -> Vec<String> {
    let settings = [
        "train.num_threads=1",
        "logger.progress=none",
        "logger.plot=false",
        "logger.log_interval=1",
        "validation.eval_interval=4",
        "validation.eval_iters=1",
        "train.exit_signal_handler=true",
        "checkpoint.save=saved",
        "checkpoint.save_interval=3",
    ];
    let iterations = format!("train.train_iters={ITERATIONS}");
    settings.into_iter().map(str::to_owned).chain([iterations]).chain(recipe.overrides.iter().cloned()).collect()
}

/// True if the configuration alone tells that a layout cannot run this recipe.
fn is_refused(recipe: &Recipe, layout: &Layout) -> bool {
    let overrides = [common(recipe), layout.overrides.clone()].concat();
    load(&tiny(), &overrides, &registry().kinds(), &World { size: layout.ranks as usize }).is_err()
}

/// Runs a case; false if it is refused at set-up, as its configuration alone says.
fn run(case: &Case) -> Result<bool, String> {
    let one = Layout { ranks: 1, overrides: Vec::new() };
    let expected = {
        let folder = folder_of(&case.recipe);
        expect_end(start(folder.path(), &Part::plain(&case.recipe, &one))?, &[0])?;
        losses(folder.path(), "log")
    };
    let folder = folder_of(&case.recipe);
    let folder = folder.path();
    let mut has_run = false;
    let mut unlogged = 0;
    for (part, (layout, event)) in case.parts.iter().enumerate() {
        if is_refused(&case.recipe, layout) {
            refuses(folder, &case.recipe, layout, has_run)?;
            continue;
        }
        has_run = true;
        let stop = |iteration: u64| vec![format!("train.exit_interval={iteration}")];
        let part_of = |extra| Part { recipe: &case.recipe, layout, extra, signal: None, full_disk: None };
        let (run, codes): (Part<'_>, &[i32]) = match *event {
            Event::Stop(at) => (part_of(stop(at)), &[0]),
            Event::FullDisk { stop: at, .. } if !disks_can_be_mounted() => (part_of(stop(at)), &[0]),
            Event::Terminate(after) => (Part { signal: Some(("-TERM", after)), ..part_of(Vec::new()) }, &[0, 143]),
            Event::Kill(after) => (Part { signal: Some(("-KILL", after)), ..part_of(Vec::new()) }, &[0, 137]),
            Event::FullDisk { stop: at, kib } => {
                unlogged = ITERATIONS;
                let logs = [format!("logger.log_dir={FULL_DISK}")];
                (Part { full_disk: Some(kib), ..part_of([&stop(at)[..], &logs].concat()) }, &[0])
            }
        };
        expect_end(start(folder, &run)?, codes).map_err(|why| format!("part {part}: {why}"))?;
    }
    if is_refused(&case.recipe, &case.last) {
        refuses(folder, &case.recipe, &case.last, has_run)?;
        return Ok(false);
    }
    expect_end(start(folder, &Part::plain(&case.recipe, &case.last))?, &[0])?;
    compare(&losses(folder, "log"), &expected, unlogged)?;
    Ok(true)
}

/// A folder with the data of a recipe.
fn folder_of(recipe: &Recipe) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut draw = Draw(7);
    match recipe.data {
        Data::Mock => {}
        Data::Indexed => {
            let mut builder = IndexedDatasetBuilder::create(folder.path().join("tokens"), TokenDtype::U16).unwrap();
            for _ in 0..400 {
                let mut tokens: Vec<i64> = (0..10 + draw.below(200)).map(|_| draw.below(499) as i64).collect();
                tokens.push(499);
                let length = tokens.len();
                builder.add_document(&tokens, &[length]).unwrap();
            }
            builder.finalize().unwrap();
        }
        Data::Text => {
            std::fs::create_dir(folder.path().join("text")).unwrap();
            for file in 0..60 {
                let words: Vec<String> = (0..300 + draw.below(300)).map(|_| word(&mut draw)).collect();
                std::fs::write(folder.path().join(format!("text/{file}.txt")), words.join(" ")).unwrap();
            }
        }
    }
    folder
}

fn word(draw: &mut Draw) -> String {
    let syllables = ["ka", "to", "mi", "ren", "sul", "o", "vab", "ti"];
    (0..1 + draw.below(3)).map(|_| syllables[draw.below(8) as usize]).collect()
}

/// True if this machine lets a test mount a file system of its own.
fn disks_can_be_mounted() -> bool {
    static CAN: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let script = format!("mount -t tmpfs -o size=4k tmpfs {}", std::env::temp_dir().display());
        let tried = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    *CAN
}

/// Mount point of the disk that fills up.
const FULL_DISK: &str = "full";

/// One start of `bridge train`.
struct Part<'a> {
    recipe: &'a Recipe,
    layout: &'a Layout,
    /// More overrides.
    extra: Vec<String>,
    /// A signal as `kill` names it, and the milliseconds before it is sent.
    signal: Option<(&'static str, u64)>,
    /// File system of this many KiB at [`FULL_DISK`].
    full_disk: Option<u64>,
}

impl<'a> Part<'a> {
    /// A start that nothing disturbs.
    fn plain(recipe: &'a Recipe, layout: &'a Layout) -> Self {
        Self { recipe, layout, extra: Vec::new(), signal: None, full_disk: None }
    }

    fn command(&self, folder: &Path) -> Command {
        let bridge = bridge_tests::program();
        let mut command = match self.full_disk {
            None => Command::new(bridge),
            Some(kib) => {
                std::fs::create_dir_all(folder.join(FULL_DISK)).unwrap();
                let mount = format!("mount -t tmpfs -o size={kib}k tmpfs {FULL_DISK} && exec \"$0\" \"$@\"");
                let mut command = Command::new("unshare");
                command.args(["--map-root-user", "--mount", "sh", "-c", &mount]).arg(bridge);
                command
            }
        };
        command.arg("train").arg(tiny()).args(["--ranks", &self.layout.ranks.to_string(), "logger.log_dir=log"]);
        command.args(common(self.recipe)).args(&self.layout.overrides).args(&self.extra).current_dir(folder);
        command
    }
}

/// Runs a part to its end.
fn start(folder: &Path, part: &Part<'_>) -> Result<Output, String> {
    let output = |name: &str| Stdio::from(std::fs::File::create(folder.join(name)).unwrap());
    let mut child = part.command(folder).stdout(output("stdout")).stderr(output("stderr")).spawn().expect("it starts");
    if let Some((signal, milliseconds)) = part.signal {
        std::thread::sleep(Duration::from_millis(milliseconds));
        // Errors are ignored, because the run may be over.
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
    }
    let started = Instant::now();
    let status = loop {
        match child.try_wait().expect("bridge can be waited for") {
            Some(status) => break status,
            None if started.elapsed() > LIMIT => {
                child.kill().and_then(|()| child.wait()).expect("bridge can be killed");
                return Err(format!("no end after {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    Ok(Output { status, stdout: read("stdout"), stderr: read("stderr") })
}

/// The exit code, as shells number it.
fn code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0))
}

fn expect_end(output: Output, codes: &[i32]) -> Result<(), String> {
    let found = code(&output);
    let text = String::from_utf8_lossy(&output.stderr);
    if codes.contains(&found) { Ok(()) } else { Err(format!("exit code {found}, expected one of {codes:?}\n{text}")) }
}

/// Fails unless a run is refused with exit code 2 and leaves nothing behind.
fn refuses(folder: &Path, recipe: &Recipe, layout: &Layout, has_run: bool) -> Result<(), String> {
    expect_end(start(folder, &Part::plain(recipe, layout))?, &[2])?;
    let left = ["saved", "log"].into_iter().find(|name| !has_run && folder.join(name).exists());
    left.map_or(Ok(()), |name| Err(format!("a run that was refused left {name} behind")))
}

/// The losses that the runs of a folder logged; of an iteration that ran more than once those of
/// the last time.
fn losses(folder: &Path, log_dir: &str) -> Losses {
    let text = std::fs::read_to_string(folder.join(log_dir).join("metrics.jsonl")).unwrap_or_default();
    let records =
        text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line is an object"));
    let loss = |record: serde_json::Value| {
        let kind = record["kind"].as_str()?.to_owned();
        Some(((kind, record["iteration"].as_u64()?), record["loss"].as_f64()?))
    };
    records.filter_map(loss).collect()
}

/// Compares with the losses of one rank. Records up to iteration `unlogged` may be missing because
/// of a full disk.
fn compare(found: &Losses, expected: &Losses, unlogged: u64) -> Result<(), String> {
    for ((kind, iteration), loss) in expected {
        match found.get(&(kind.clone(), *iteration)) {
            Some(other) if (other - loss).abs() <= TOLERANCE * loss.abs() => {}
            Some(other) => return Err(format!("{kind} loss of iteration {iteration}: {other}, on one rank {loss}")),
            None if *iteration <= unlogged => {}
            None => return Err(format!("{kind} loss of iteration {iteration} is missing")),
        }
    }
    let more = found.keys().find(|key| !expected.contains_key(key));
    more.map_or(Ok(()), |(kind, iteration)| Err(format!("there is a {kind} loss of iteration {iteration} too many")))
}
