//! Records of a log: the messages of W&B's `wandb_internal.proto` that a run needs, by the numbers
//! of their fields.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use md5::{Digest, Md5};

use crate::logging::MetricValue;
use crate::logging::protobuf::{Field, Fields, put_bytes, put_int, put_text};

use super::json_of;

/// Fields of `Record`.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
const FILES: u32 = 6;
const ARTIFACT: u32 = 8;
const RUN: u32 = 17;
const EXIT: u32 = 18;
const HEADER: u32 = 21;

/// The least version of W&B's client that reads the log, as its own logs have it.
const MIN_CONSUMER: &str = "0.70.0";

/// Metadata of a run.
#[derive(Clone, Debug, Default)]
pub(in crate::logging) struct RunHead {
    /// Identifier, which a resumed run keeps.
    pub id: String,
    /// Owner of the project; empty for the account that uploads.
    pub entity: String,
    /// The project.
    pub project: String,
    /// Name of the run.
    pub name: String,
    /// The group of runs that it is in.
    pub group: String,
    /// Job type of the run.
    pub job_type: String,
    /// Notes of the user.
    pub notes: String,
    /// Tags of the run.
    pub tags: Vec<String>,
    /// Settings, by section: names and JSON.
    pub config: Vec<(String, String)>,
    /// Iterations that it has done before.
    pub starting_step: u64,
    /// True if there was an earlier job of the run.
    pub is_resumed: bool,
    /// Milliseconds since 1970.
    pub time: u64,
    /// Seconds that it took before.
    pub runtime: f64,
}

/// The figures of a step.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::logging) struct Row {
    /// The step.
    pub step: u64,
    /// Seconds since 1970.
    pub timestamp: f64,
    /// Seconds since the run began.
    pub runtime: f64,
    /// Names and values.
    pub values: Vec<(String, MetricValue)>,
}

impl Row {
    /// The fields of a row: what W&B adds, and the figures.
    fn fields(&self) -> impl Iterator<Item = (&str, String)> {
        let own = [
            ("_step", json_of(&self.step.into())),
            ("_timestamp", json_of(&self.timestamp.into())),
            ("_runtime", json_of(&self.runtime.into())),
        ];
        own.into_iter().chain(self.values.iter().map(|(name, value)| (name.as_str(), json_of(value))))
    }
}

/// A record: its number, and one message.
fn record(number: u64, field: u32, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 16);
    put_int(&mut out, 1, number as i64);
    put_bytes(&mut out, field, message);
    out
}

/// A name in levels with its JSON, as history and summary have it.
fn item(path: &[&str], json: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() + 32);
    path.iter().for_each(|name| put_text(&mut out, 2, name));
    put_text(&mut out, 16, json);
    out
}

/// The first record: who writes.
pub(in crate::logging) fn head(number: u64) -> Vec<u8> {
    let (mut version, mut out) = (Vec::new(), Vec::new());
    put_text(&mut version, 1, concat!("bridge-", env!("CARGO_PKG_VERSION")));
    put_text(&mut version, 2, MIN_CONSUMER);
    put_bytes(&mut out, 1, &version);
    record(number, HEADER, &out)
}

/// The run begins, or goes on.
pub(in crate::logging) fn run(number: u64, run: &RunHead) -> Vec<u8> {
    let (mut out, mut config, mut time) = (Vec::new(), Vec::new(), Vec::new());
    for (key, json) in &run.config {
        let mut item = Vec::new();
        put_text(&mut item, 1, key);
        put_text(&mut item, 16, json);
        put_bytes(&mut config, 1, &item);
    }
    put_text(&mut out, 1, &run.id);
    put_text(&mut out, 2, &run.entity);
    put_text(&mut out, 3, &run.project);
    put_bytes(&mut out, 4, &config);
    put_text(&mut out, 6, &run.group);
    put_text(&mut out, 7, &run.job_type);
    put_text(&mut out, 8, &run.name);
    put_text(&mut out, 9, &run.notes);
    run.tags.iter().for_each(|tag| put_text(&mut out, 10, tag));
    put_int(&mut out, 14, run.starting_step as i64);
    put_int(&mut time, 1, (run.time / 1000) as i64);
    put_int(&mut time, 2, (run.time % 1000 * 1_000_000) as i64);
    put_bytes(&mut out, 17, &time);
    put_int(&mut out, 18, run.is_resumed.into());
    put_int(&mut out, 20, run.runtime as i64);
    record(number, RUN, &out)
}

/// The figures of a step.
pub(in crate::logging) fn history(number: u64, row: &Row) -> Vec<u8> {
    let (mut out, mut step) = (Vec::new(), Vec::new());
    row.fields().for_each(|(name, json)| put_bytes(&mut out, 1, &item(&[name], &json)));
    put_int(&mut step, 1, row.step as i64);
    put_bytes(&mut out, 2, &step);
    record(number, HISTORY, &out)
}

/// The last value of each figure.
pub(in crate::logging) fn summary(number: u64, row: &Row) -> Vec<u8> {
    let mut out = Vec::new();
    row.fields().for_each(|(name, json)| put_bytes(&mut out, 1, &item(&[name], &json)));
    put_bytes(&mut out, 1, &item(&["_wandb", "runtime"], &json_of(&(row.runtime as u64).into())));
    record(number, SUMMARY, &out)
}

/// Files in the folder `files` beside the log.
pub(in crate::logging) fn files<'a>(number: u64, names: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        let mut file = Vec::new();
        put_text(&mut file, 1, name);
        put_bytes(&mut out, 1, &file);
    }
    record(number, FILES, &out)
}

/// The run is over.
pub(in crate::logging) fn exit(number: u64, code: i64, runtime: f64) -> Vec<u8> {
    let mut out = Vec::new();
    put_int(&mut out, 1, code);
    put_int(&mut out, 2, runtime as i64);
    record(number, EXIT, &out)
}

/// A saved checkpoint, which W&B knows by its place.
#[derive(Clone, Copy, Debug)]
pub(in crate::logging) struct Checkpoint<'a> {
    /// The run.
    pub run: &'a RunHead,
    /// Name of its folder.
    pub name: &'a str,
    /// Address of its folder.
    pub uri: &'a str,
    /// Iterations completed in it.
    pub iteration: u64,
}

impl Checkpoint<'_> {
    /// A version of the artifact of the run's checkpoints.
    pub fn record(&self, number: u64) -> Vec<u8> {
        let (mut out, mut manifest, mut entry) = (Vec::new(), Vec::new(), Vec::new());
        put_text(&mut entry, 1, self.name);
        // As W&B's own client does it where it is not to compute checksums: the reference stands
        // for its content.
        put_text(&mut entry, 2, self.uri);
        put_text(&mut entry, 3, self.uri);
        put_int(&mut manifest, 1, 1);
        put_text(&mut manifest, 2, "wandb-storage-policy-v1");
        let mut layout = Vec::new();
        put_text(&mut layout, 1, "storageLayout");
        put_text(&mut layout, 2, "\"V2\"");
        put_bytes(&mut manifest, 3, &layout);
        put_bytes(&mut manifest, 4, &entry);
        let digest = Md5::digest(format!("wandb-artifact-manifest-v1\n{}:{}\n", self.name, self.uri));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        put_text(&mut out, 1, &self.run.id);
        put_text(&mut out, 2, &self.run.project);
        put_text(&mut out, 3, &self.run.entity);
        put_text(&mut out, 4, "model");
        put_text(&mut out, 5, &format!("{}-checkpoint", self.run.id));
        put_text(&mut out, 6, &digest);
        put_text(&mut out, 8, &format!("{{\"iteration\":{}}}", self.iteration));
        ["latest", self.name].iter().for_each(|alias| put_text(&mut out, 11, alias));
        put_bytes(&mut out, 12, &manifest);
        put_int(&mut out, 14, 1);
        put_text(&mut out, 15, &identifier(&format!("{} {}", self.run.id, self.name)));
        put_text(&mut out, 16, &identifier(&self.run.id));
        record(number, ARTIFACT, &out)
    }
}

/// 128 letters and digits that stand for `text`.
fn identifier(text: &str) -> String {
    let parts = (0..8).map(|part| Md5::digest(format!("{part} {text}")));
    let letters: String = parts.map(|digest| BASE64_URL_SAFE_NO_PAD.encode(digest)).collect();
    letters.to_lowercase().replace(['-', '_'], "0").chars().take(128).collect()
}

/// The step of a history record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepOf {
    pub step: u64,
    pub runtime: f64,
}

/// Step of a record of history; `None` for all other records.
pub(super) fn step_of(record: &[u8]) -> Option<StepOf> {
    let mut fields = Fields(record);
    let history = std::iter::from_fn(|| fields.next()).find_map(|field| match field {
        (number, Field::Bytes(history)) if number == u64::from(HISTORY) => Some(history),
        _ => None,
    })?;
    let (mut of, mut fields) = (StepOf::default(), Fields(history));
    while let Some(field) = fields.next() {
        match field {
            (1, Field::Bytes(item)) => of.runtime = runtime(item).unwrap_or(of.runtime),
            (2, Field::Bytes(step)) => {
                if let Some((1, Field::Varint(number))) = Fields(step).next() {
                    of.step = number;
                }
            }
            _ => {}
        }
    }
    Some(of)
}

/// The value of an item named `_runtime`.
fn runtime(item: &[u8]) -> Option<f64> {
    let mut fields = Fields(item);
    let Some((2, Field::Bytes(b"_runtime"))) = fields.next() else {
        return None;
    };
    match fields.next() {
        Some((16, Field::Bytes(json))) => std::str::from_utf8(json).ok()?.parse().ok(),
        _ => None,
    }
}
