//! `bridge runs`: a list of runs, a comparison, and a common plot, from their files.

use std::path::{Path, PathBuf};

use bridge_core::logging::chart::{CAN_DRAW, PlotError};
use bridge_core::logging::losses::Losses;
use bridge_core::logging::numbers::{duration, significant, with_prefix};
#[cfg(feature = "trackers")]
use bridge_core::logging::runs::RunState;
use bridge_core::logging::runs::{Run, differences, find};
use bridge_core::logging::terminal::complain;
#[cfg(feature = "trackers")]
use bridge_core::logging::tracker::send_left;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{line, table};

/// Action on runs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List runs: state, iterations, losses, tokens, time.
    List(Folders),
    /// Compare runs: the settings in which they differ, and their losses and speeds side by side.
    Compare(Folders),
    /// Send what runs have left for their trackers, because a server was not there.
    Send {
        /// Log folders of runs, or folders with such folders in them.
        #[arg(default_value = "runs")]
        folders: Vec<PathBuf>,
        /// Print JSON: an object for each run and tracker.
        #[arg(long)]
        json: bool,
    },
    /// Draw the losses of several runs in one picture.
    Plot {
        #[command(flatten)]
        folders: Folders,
        /// Output files: PATH.svg and PATH.png.
        #[arg(long, short, default_value = "runs-loss")]
        output: PathBuf,
    },
}

/// Folder in which runs are looked for by name.
const RUNS: &str = "runs";

/// Folders of runs.
#[derive(Debug, Args)]
pub struct Folders {
    /// Log folders of runs, folders with such folders in them, or names of runs below `runs`.
    #[arg(default_value = RUNS)]
    folders: Vec<PathBuf>,
    /// Print JSON: an object a line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::List(folders) => list(folders, &folders.runs()?),
        Command::Compare(folders) => compare(folders, &folders.runs()?),
        Command::Send { folders, json } => return send(folders, *json),
        Command::Plot { .. } if !CAN_DRAW => return Err(Failure::input(PlotError::NotCompiledIn)),
        Command::Plot { folders, output } => plot(folders, &folders.runs()?, output),
    }
    .map(|()| 0)
}

impl Folders {
    /// The runs, each once. Damaged runs are reported and left out.
    fn runs(&self) -> Result<Vec<Run>, Failure> {
        let mut runs: Vec<Run> = Vec::new();
        let mut damaged = Vec::new();
        for folder in &self.folders {
            if !folder.exists() && Path::new(RUNS).is_dir() {
                runs.extend(named(&folder.to_string_lossy())?);
                continue;
            }
            let found = find(folder);
            runs.extend(found.runs);
            damaged.extend(found.damaged);
        }
        let mut seen = std::collections::BTreeSet::new();
        runs.retain(|run| seen.insert(run.folder.canonicalize().unwrap_or_else(|_| run.folder.clone())));
        for problem in &damaged {
            complain(&format!("warning: {problem}; left out"));
        }
        if runs.is_empty() {
            let folders: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            return Err(Failure::input(format!(
                "no run in {}: a run's log folder has metrics.jsonl",
                folders.join(", ")
            )));
        }
        Ok(runs)
    }
}

/// The run below `runs` with a name: that of its folder, its recipe or its identity, the first of
/// these that any run has.
fn named(name: &str) -> Result<Option<Run>, Failure> {
    let mut runs = find(Path::new(RUNS)).runs;
    let keys: [fn(&Run, &str) -> bool; 3] = [
        |run, name| run.folder.ends_with(name),
        |run, name| run.name == name,
        |run, name| run.id.as_deref() == Some(name),
    ];
    if let Some(is_named) = keys.into_iter().find(|is_named| runs.iter().any(|run| is_named(run, name))) {
        runs.retain(|run| is_named(run, name));
    } else {
        let known: Vec<String> = runs.iter().map(|run| run.folder.display().to_string()).collect();
        let known = if known.is_empty() { "no run".into() } else { known.join(", ") };
        return Err(Failure::input(format!(
            "{name}: no such folder, and no run of that name below {RUNS}; found {known}"
        )));
    }
    if runs.len() > 1 {
        let folders: Vec<String> = runs.iter().map(|run| run.folder.display().to_string()).collect();
        return Err(Failure::input(format!(
            "{name}: {} runs have that name: give one of {}",
            runs.len(),
            folders.join(", ")
        )));
    }
    Ok(runs.pop())
}

/// Not supported by this build.
#[cfg(not(feature = "trackers"))]
fn send(_folders: &[PathBuf], _json: bool) -> Result<u8, Failure> {
    Err(Failure::without_feature("bridge runs send", "trackers"))
}

/// Sends the remaining items, and ends with an error if some could not be sent.
#[cfg(feature = "trackers")]
fn send(folders: &[PathBuf], json: bool) -> Result<u8, Failure> {
    let folders = Folders { folders: folders.to_vec(), json };
    let mut is_left = false;
    for run in folders.runs()? {
        let folder = run.folder.display();
        if run.state == RunState::Training {
            complain(&format!("warning: {folder}: the run trains, and sends by itself; left alone"));
            continue;
        }
        for sent in send_left(&run.folder).map_err(Failure::input)? {
            is_left |= sent.left.is_some();
            if json {
                line(&json!({ "folder": run.folder, "sent": sent }).to_string());
                continue;
            }
            line(&format!("{folder}: {} items sent to {}", sent.sent, sent.tracker));
            if let (refused @ 1.., why) = &sent.refused {
                let why = why.as_deref().unwrap_or_default();
                complain(&format!("warning: {folder}: {refused} items were refused by {}: {why}", sent.tracker));
            }
            if let Some(why) = &sent.left {
                complain(&format!("error: {folder}: the rest is not sent: {why}"));
            }
        }
    }
    Ok(u8::from(is_left))
}

fn list(folders: &Folders, runs: &[Run]) -> Result<(), Failure> {
    if folders.json {
        for run in runs {
            line(&serde_json::to_string(run).map_err(Failure::run)?);
        }
        return Ok(());
    }
    let head = ["run", "state", "iterations", "loss", "best valid", "tokens", "time", "id", "folder"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let mut row = vec![run.name.clone()];
        row.extend(figures(run));
        row.extend([run.id.clone().unwrap_or_else(|| "-".into()), run.folder.display().to_string()]);
        row
    }));
    table(&rows, &[99, 90, 80, 85, 84, 50, 60, 20, 30]);
    Ok(())
}

/// State, iterations, last loss, best validation loss, tokens, time.
fn figures(run: &Run) -> [String; 6] {
    let of = run.train_iters.map_or(String::new(), |total| format!("/{total}"));
    let best = run.best_valid_loss.zip(run.best_valid_iteration);
    [
        run.state.to_string(),
        format!("{}{of}", run.iterations),
        run.last_loss.as_ref().map_or("-".into(), loss),
        best.map_or("-".into(), |(loss, iteration)| format!("{} at {iteration}", significant(loss, 5))),
        with_prefix(run.tokens as f64),
        duration(run.seconds),
    ]
}

fn loss(value: &Value) -> String {
    match (value.as_f64(), value.as_str()) {
        (Some(loss), _) => significant(loss, 5),
        (None, Some(text)) => text.to_owned(),
        (None, None) => "-".to_owned(),
    }
}

fn compare(folders: &Folders, runs: &[Run]) -> Result<(), Failure> {
    let differences = differences(runs);
    if folders.json {
        line(&json!({ "runs": runs, "differences": differences }).to_string());
        return Ok(());
    }
    for run in runs.iter().filter(|run| run.config.is_none()) {
        let folder = run.folder.display();
        complain(&format!("warning: {folder}: has no run.json, so its settings are not known"));
    }
    let names = ["state", "iterations", "loss", "best valid", "tokens", "time", "last valid", "tokens/s"];
    let mut rows = vec![
        std::iter::once(String::new())
            .chain(runs.iter().map(|run| run.folder.display().to_string()))
            .collect::<Vec<_>>(),
    ];
    let more = |run: &Run| {
        let last = run.last_valid_loss.map_or("-".into(), |loss| significant(loss, 5));
        [last, run.tokens_per_second.map_or("-".into(), with_prefix)]
    };
    let all: Vec<Vec<String>> = runs.iter().map(|run| figures(run).into_iter().chain(more(run)).collect()).collect();
    for (place, name) in names.iter().enumerate() {
        rows.push(
            std::iter::once((*name).to_owned()).chain(all.iter().map(|figures| figures[place].clone())).collect(),
        );
    }
    for difference in &differences {
        let values = difference.values.iter().map(|value| value.clone().unwrap_or_else(|| "-".into()));
        rows.push(std::iter::once(difference.key.clone()).chain(values).collect());
    }
    // If there is no room for all runs, the first ones are kept.
    let weights: Vec<u8> =
        (0..rows[0].len()).map(|column| u8::try_from(200_usize.saturating_sub(column)).unwrap_or(0)).collect();
    table(&rows, &weights);
    match runs.len() {
        1 => line("one run: name another one to compare it with"),
        _ if differences.is_empty() => line("no setting differs"),
        _ => {}
    }
    Ok(())
}

fn plot(folders: &Folders, runs: &[Run], output: &Path) -> Result<(), Failure> {
    let mut names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    // Runs of one recipe are distinguished by their folders.
    for (place, run) in runs.iter().enumerate() {
        if runs.iter().filter(|other| other.name == run.name).count() > 1 {
            names[place] = run.folder.display().to_string();
        }
    }
    let curves: Vec<(String, Losses)> = names.into_iter().zip(runs.iter().map(|run| run.losses.clone())).collect();
    let stem = if output.extension().is_some_and(|end| end == "svg" || end == "png") {
        output.with_extension("")
    } else {
        output.to_owned()
    };
    Losses::chart_of_runs("loss", &curves).write(&stem).map_err(Failure::run)?;
    let files = ["svg", "png"].map(|end| stem.with_extension(end).display().to_string());
    if folders.json {
        line(&json!({ "runs": runs.len(), "files": files }).to_string());
    } else {
        line(&format!("wrote {} and {}: {} runs", files[0], files[1], runs.len()));
    }
    Ok(())
}
