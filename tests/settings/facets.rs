//! Visible results of a run, cut into named facets. No facet is an echo of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitStatus;

use bridge_core::checkpoint::{Checkpoint, CheckpointStore, Verification};
use bridge_core::logging::flight::FlightRecord;
use bridge_core::logging::tensorboard::{EventKind, read_events};
use bridge_core::logging::trace::Trace;
use serde_json::Value;

use super::run::{Program, Watched};

/// Facets by name. A facet that a run does not have is empty.
#[derive(Debug, Default)]
pub struct Facets {
    texts: BTreeMap<String, String>,
    /// Measurements that differ between any two runs: only large differences are significant.
    measures: BTreeMap<&'static str, f64>,
}

/// Curves whose values `metrics.jsonl` has as well.
const CURVES: [&str; 8] = [
    "batch-size",
    "grad-norm",
    "learning-rate",
    "decoupled-learning-rate",
    "lm loss",
    "loss-scale",
    "num-zeros",
    "params-norm",
];

/// Figures of time and memory, which no two runs have in common.
fn is_volatile(figure: &str) -> bool {
    ["seconds", "per_second", "per_sec", "tflops", "memory", "time", "bytes_in_use"]
        .iter()
        .any(|part| figure.contains(part))
}

impl Facets {
    /// Facets of a run from its `folder`, and from observations meanwhile.
    pub fn observe(folder: &Path, status: ExitStatus, program: &Program, watched: Watched) -> Self {
        let mut facets = Self::default();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        facets.add("exit", status.code().map_or_else(|| format!("{status}"), |code| code.to_string()));
        facets.add("stderr", shapes_of_lines(&read("main.err")));
        match program {
            Program::Train | Program::Library => facets.training(folder, &read("main.out")),
            Program::Plan { .. } | Program::Linked | Program::OnGpu(_) => facets.plan(&read("main.out")),
            Program::Schedule => facets.add("output", read("main.out")),
            Program::Samples(_) => {
                facets.add("output", read("main.out"));
                facets.add("indices", sizes_of_indices(folder).join("\n"));
            }
        }
        if !watched.threads.is_empty() {
            facets.add("threads", format!("{:?}", watched.threads));
            facets.add("maps", watched.maps_tokens.to_string());
            facets.add("early", watched.writes_early.to_string());
            facets.measures.insert("peak", watched.peak_kilobytes as f64);
        }
        facets
    }

    /// The text of a facet.
    pub fn get(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }

    /// A measure.
    pub fn measure(&self, name: &str) -> f64 {
        self.measures[name]
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str)
    }

    fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.texts.insert(name.into(), text.into());
    }

    fn training(&mut self, folder: &Path, output: &str) {
        self.add("console", counted_lines(output));
        self.add("files", names_of_files(folder).join("\n"));
        self.metrics(folder);
        self.events(folder);
        self.checkpoint(folder);
        self.traces(folder);
        self.flight(folder);
        self.add("tracked", super::tracked::names(&names_of_paths(folder), folder).join("\n"));
        for (facet, file) in [("svg", "logs/loss.svg"), ("progress", "ckpt/progress.txt")] {
            let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
            self.add(facet, shapes_of_lines(&text));
        }
    }

    /// The figures of `metrics.jsonl`: `loss` and so on of training, `valid` and `test` of
    /// evaluations. Of losses and gradient norms the first stands apart, because it depends on
    /// neither optimizer nor schedule.
    fn metrics(&mut self, folder: &Path) {
        let text = std::fs::read_to_string(folder.join("logs/metrics.jsonl")).unwrap_or_default();
        let mut keys = BTreeSet::new();
        let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text.lines() {
            let record: Value = serde_json::from_str(line).expect("a whole line");
            let kind = record["kind"].as_str().expect("of a kind").to_owned();
            for (figure, value) in record.as_object().expect("an object") {
                keys.insert(format!("{kind}.{figure}"));
                // The perplexity is the loss in other words.
                if matches!(figure.as_str(), "kind" | "iteration" | "run" | "perplexity") || is_volatile(figure) {
                    continue;
                }
                let name = if kind == "train" { figure.clone() } else { format!("{kind}.{figure}") };
                series.entry(name).or_default().push(value.to_string());
            }
        }
        self.add("keys", keys.into_iter().collect::<Vec<_>>().join("\n"));
        for (name, mut values) in series {
            if matches!(name.as_str(), "loss" | "grad_norm") {
                let rest = values.split_off(1);
                self.add(format!("{name}_1"), values.concat());
                values = rest;
            }
            self.add(name, values.join(" "));
        }
    }

    /// Tags of TensorBoard events with their steps, and their values except times.
    fn events(&mut self, folder: &Path) {
        let (mut tags, mut values) = (BTreeMap::<String, Vec<i64>>::new(), Vec::new());
        let mut names: Vec<String> =
            names_of_paths(folder).into_iter().filter(|name| name.contains("tfevents")).collect();
        // A run that starts again in its process has several files, whose names do not tell their
        // order.
        names.sort_by_key(|name| std::fs::metadata(folder.join(name)).and_then(|file| file.modified()).ok());
        for name in &names {
            for event in read_events(&folder.join(name)).expect("whole events") {
                let EventKind::Scalar { tag, value } = event.kind else { continue };
                let is_known = CURVES.iter().any(|curve| tag.starts_with(curve));
                let is_time = is_volatile(&tag) || tag.contains("mem-") || tag.contains("throughput");
                if !is_time && !is_known {
                    values.push(format!("{tag}[{}]={value}", event.step));
                }
                if tag == "time/total" {
                    self.measures.insert("time_total", f64::from(value));
                }
                tags.entry(tag).or_default().push(event.step);
            }
        }
        self.add("events", tags.iter().map(|(tag, steps)| format!("{tag} {steps:?}")).collect::<Vec<_>>().join("\n"));
        self.add("scalars", values.join("\n"));
    }

    /// The steps of each rank's trace, and the names of its events' arguments.
    fn traces(&mut self, folder: &Path) {
        let mut all = Vec::new();
        for name in names_of_paths(folder).into_iter().filter(|name| name.contains("/trace/rank_")) {
            let trace = Trace::read(&folder.join(&name)).expect("a whole trace");
            let steps: Vec<u64> = trace.events.iter().filter_map(|event| event.number("iteration")).collect();
            let arguments: BTreeSet<&String> = trace.events.iter().flat_map(|event| event.args.keys()).collect();
            all.push(format!("{name} {steps:?} {arguments:?}"));
        }
        all.sort();
        self.add("trace", all.join("\n"));
    }

    /// Facets of the flight recorder for each rank: number of calls, their states, with backtraces
    /// or without.
    fn flight(&mut self, folder: &Path) {
        let records = names_of_paths(folder).into_iter().filter(|name| name.starts_with("flight/"));
        let mut all: Vec<String> = records
            .map(|name| {
                let record = FlightRecord::read(&folder.join(&name)).expect("a whole record");
                let states: BTreeSet<String> =
                    record.entries.iter().map(|entry| format!("{:?}", entry.state)).collect();
                let stacks = record.entries.iter().filter(|entry| entry.stack.is_some()).count();
                format!("{name} {} {states:?} {stacks}", record.entries.len())
            })
            .collect();
        all.sort();
        self.add("flight", all.join("\n"));
    }

    /// The newest checkpoint of the run.
    fn checkpoint(&mut self, folder: &Path) {
        let Ok(store) = CheckpointStore::open(folder.join("ckpt")) else { return };
        let Some(step) = store.list().unwrap().into_iter().filter_map(|summary| summary.iteration).max() else {
            return;
        };
        let checkpoint = store.open_iteration(step, Verification::Sizes).expect("a whole checkpoint");
        self.add("iteration", step.to_string());
        for (facet, group) in [("params", "model"), ("moments", "optimizer")] {
            let digests = checkpoint.names_in(group).map(|name| format!("{name} {:x}", digest(&checkpoint, name)));
            self.add(facet, digests.collect::<Vec<_>>().join("\n"));
        }
        let tensors = &checkpoint.metadata().tensors;
        let shapes = tensors.iter().map(|(name, tensor)| format!("{name} {:?} {:?}", tensor.dtype, tensor.shape));
        self.add("shapes", shapes.collect::<Vec<_>>().join("\n"));
        let slices = tensors.iter().flat_map(|(name, tensor)| {
            tensor
                .slices
                .iter()
                .map(move |slice| format!("{name} {} {:?} {:?}", slice.file, slice.slice.offset, slice.slice.extent))
        });
        self.add("slices", slices.collect::<Vec<_>>().join("\n"));
        let state = checkpoint.train_state().expect("a train state");
        self.add("flops", state.floating_point_operations_so_far.to_string());
        let counts =
            (state.step, state.consumed_train_samples, state.skipped_train_samples, state.consumed_valid_samples);
        self.add("counts", format!("{counts:?}"));
        self.add("state", state.extra.keys().cloned().collect::<Vec<_>>().join(" "));
    }

    /// The parts of a plan.
    fn plan(&mut self, output: &str) {
        let Ok(Value::Object(parts)) = serde_json::from_str::<Value>(output) else { return };
        // A recipe that is refused has errors instead.
        if let Some(errors) = parts.get("errors") {
            return self.add("errors", errors.to_string());
        }
        for name in ["parameters", "active_parameters", "flops", "pipeline", "estimate"] {
            self.add(format!("plan.{name}"), parts[name].to_string());
        }
        let stages = parts["stages"].as_array().expect("stages");
        for name in ["num_layers", "embedding", "head", "memory", "traffic"] {
            let of_stages: Vec<String> = stages.iter().map(|stage| stage[name].to_string()).collect();
            self.add(format!("plan.{name}"), of_stages.join("\n"));
        }
        if let Some(measured) = parts.get("measured") {
            let overlap = measured["gradient_overlap"].as_array().into_iter().flatten();
            if let Some(hidden) = overlap.rev().find_map(|stage| stage["hidden"].as_f64()) {
                self.measures.insert("exposed", 1.0 - hidden);
            }
            for name in ["traffic", "parameters", "optimizer"] {
                let found = figures_in(measured, name, "measured");
                self.add(format!("measured.{name}"), found.join("\n"));
            }
        }
    }
}

/// Figures called `figure` under `name` of each stage, each with its subject.
fn figures_in(measured: &Value, name: &str, figure: &str) -> Vec<String> {
    let stages = measured["stages"].as_array().expect("stages").iter().map(|stage| &stage[name]);
    let rows = stages.flat_map(|part| part.as_array().map_or_else(|| vec![part], |rows| rows.iter().collect()));
    rows.map(|row| format!("{} {} {}", row["group"], row["operation"], row[figure])).collect()
}

fn digest(checkpoint: &Checkpoint, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    checkpoint.load_tensor(name).expect("a tensor").bytes().hash(&mut hasher);
    hasher.finish()
}

/// The different lines of a text, numbers left out, each with how often it is there.
fn counted_lines(text: &str) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in without_summary(text) {
        *counts.entry(without_numbers(line)).or_default() += 1;
    }
    counts.into_iter().map(|(line, count)| format!("{count} x {line}")).collect::<Vec<_>>().join("\n")
}

/// The lines of a run's output without the summary of its configuration, between its title and the
/// rule that ends it.
fn without_summary(text: &str) -> Vec<&str> {
    let mut rules_to_come = 0;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("Configuration Summary") {
            rules_to_come = 2;
        } else if rules_to_come == 0 {
            lines.push(line);
        } else if line.starts_with("======") {
            rules_to_come -= 1;
        }
    }
    assert_eq!(rules_to_come, 0, "a summary of the configuration without an end");
    lines
}

/// The different lines of a text, numbers left out.
fn shapes_of_lines(text: &str) -> String {
    let shapes: BTreeSet<String> = text.lines().map(without_numbers).collect();
    shapes.into_iter().collect::<Vec<_>>().join("\n")
}

/// Line with `#` for each number and one space for several. The number of progress lines depends on
/// time.
fn without_numbers(line: &str) -> String {
    if let Some(what) = line.split_once(": ").filter(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return format!("{}: progress", what.0);
    }
    let mut shape = String::new();
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        if character.is_ascii_digit() {
            while characters.next_if(|next| next.is_ascii_digit() || matches!(next, '.' | 'E' | 'e' | ':')).is_some() {}
            shape.push('#');
        } else if !(character == ' ' && shape.ends_with(' ')) {
            shape.push(character);
        }
    }
    // The sign of an exponent is between two numbers.
    let shape = shape.replace("#+#", "#").replace("#-#", "#");
    // How long something takes may need one unit or two.
    ["# d # h", "# h # min", "# min # s"].iter().fold(shape, |shape, time| shape.replace(time, "# s"))
}

/// The files of a run, below its folder, sorted, in names that runs share.
fn names_of_files(folder: &Path) -> Vec<String> {
    let shared = |name: String| match (name.find("events.out.tfevents"), name.find("GPTDataset_indices/")) {
        (Some(at), _) => format!("{}events", &name[..at]),
        // The rest of the name is a digest of the request, including samples and seed.
        (_, Some(at)) => name[..at].to_owned(),
        _ if name.contains("/metrics-") => "metrics of another run".to_owned(),
        _ => name.split('/').map(shared_name).collect::<Vec<_>>().join("/"),
    };
    let names: BTreeSet<String> = names_of_paths(folder).into_iter().map(shared).collect();
    names.into_iter().collect()
}

/// A part of a path, without the name that a run gave itself.
fn shared_name(part: &str) -> &str {
    match part.rsplit_once('.') {
        _ if part.starts_with("offline-run-") => "offline-run-JOB",
        Some((_, "wandb")) => "run.wandb",
        Some((key, "zip")) if key.len() == 32 => "KEY.zip",
        _ if is_name_of_run(part) => "RUN",
        _ => part,
    }
}

/// True if a folder's name is one that a run gave itself.
fn is_name_of_run(part: &str) -> bool {
    part.len() == 16 && part.chars().all(|letter| letter.is_ascii_hexdigit())
}

/// Kinds and sizes of the index files.
fn sizes_of_indices(folder: &Path) -> Vec<String> {
    let paths = names_of_paths(folder).into_iter().filter(|name| name.ends_with(".npy"));
    let mut sizes: Vec<String> = paths
        .map(|name| {
            let kind = name.rsplit('-').next().unwrap_or_default();
            format!("{kind} {}", std::fs::metadata(folder.join(&name)).map_or(0, |file| file.len()))
        })
        .collect();
    sizes.sort();
    sizes
}

fn names_of_paths(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                names.push(entry.path().strip_prefix(folder).expect("inside").to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    names
}
