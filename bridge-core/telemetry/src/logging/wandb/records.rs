//! Records of a log: the messages of W&B's `wandb_internal.proto` that a run needs, by the numbers
//! of their fields.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use md5::{Digest, Md5};

use crate::logging::MetricValue;
use crate::logging::protobuf::{Field, Fields, Message};

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
    pub project: String,
    pub name: String,
    pub group: String,
    pub job_type: String,
    pub notes: String,
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
    pub step: u64,
    /// Seconds since 1970.
    pub timestamp: f64,
    /// Seconds since the run began.
    pub runtime: f64,
    pub values: Vec<(String, MetricValue)>,
}

impl Row {
    /// The fields of a row: W&B's own fields, and the figures.
    fn fields(&self) -> impl Iterator<Item = (&str, String)> {
        let own = [
            ("_step", json_of(&self.step.into())),
            ("_timestamp", json_of(&self.timestamp.into())),
            ("_runtime", json_of(&self.runtime.into())),
        ];
        own.into_iter().chain(self.values.iter().map(|(name, value)| (name.as_str(), json_of(value))))
    }
}

fn message() -> Message {
    Message::default()
}

/// A record: its number, and one message.
fn record(number: u64, field: u32, content: Message) -> Vec<u8> {
    message().int(1, number as i64).message(field, content).0
}

/// The figures of a row, as history and summary have them.
fn items(row: &Row) -> Message {
    row.fields().fold(message(), |items, (name, json)| items.message(1, message().text(2, name).text(16, &json)))
}

/// The first record: who writes.
pub(in crate::logging) fn head(number: u64) -> Vec<u8> {
    let version = message().text(1, concat!("bridge-", env!("CARGO_PKG_VERSION"))).text(2, MIN_CONSUMER);
    record(number, HEADER, message().message(1, version))
}

/// The run begins, or goes on.
pub(in crate::logging) fn run(number: u64, run: &RunHead) -> Vec<u8> {
    let setting = |(key, json): &(String, String)| message().text(1, key).text(16, json);
    let config = run.config.iter().fold(message(), |config, pair| config.message(1, setting(pair)));
    let time = message().int(1, (run.time / 1000) as i64).int(2, (run.time % 1000 * 1_000_000) as i64);
    let run = message()
        .text(1, &run.id)
        .text(2, &run.entity)
        .text(3, &run.project)
        .message(4, config)
        .text(6, &run.group)
        .text(7, &run.job_type)
        .text(8, &run.name)
        .text(9, &run.notes)
        .texts(10, &run.tags)
        .int(14, run.starting_step as i64)
        .message(17, time)
        .int(18, run.is_resumed.into())
        .int(20, run.runtime as i64);
    record(number, RUN, run)
}

/// The figures of a step.
pub(in crate::logging) fn history(number: u64, row: &Row) -> Vec<u8> {
    record(number, HISTORY, items(row).message(2, message().int(1, row.step as i64)))
}

/// The last value of each figure.
pub(in crate::logging) fn summary(number: u64, row: &Row) -> Vec<u8> {
    let runtime = message().texts(2, ["_wandb", "runtime"]).text(16, &json_of(&(row.runtime as u64).into()));
    record(number, SUMMARY, items(row).message(1, runtime))
}

/// Files in the folder `files` beside the log.
pub(in crate::logging) fn files<'a>(number: u64, names: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let files = names.into_iter().fold(message(), |files, name| files.message(1, message().text(1, name)));
    record(number, FILES, files)
}

/// The run is over.
pub(in crate::logging) fn exit(number: u64, code: i64, runtime: f64) -> Vec<u8> {
    record(number, EXIT, message().int(1, code).int(2, runtime as i64))
}

/// A saved checkpoint, which W&B knows by its place.
#[derive(Clone, Copy, Debug)]
pub(in crate::logging) struct Checkpoint<'a> {
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
        let Self { run, name, uri, iteration } = *self;
        let digest = Md5::digest(format!("wandb-artifact-manifest-v1\n{name}:{uri}\n"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let manifest = message()
            .int(1, 1)
            .text(2, "wandb-storage-policy-v1")
            .message(3, message().text(1, "storageLayout").text(2, "\"V2\""))
            // As W&B's own client does it where it is not to compute checksums: the reference
            // stands for its content.
            .message(4, message().text(1, name).text(2, uri).text(3, uri));
        let artifact = message()
            .text(1, &run.id)
            .text(2, &run.project)
            .text(3, &run.entity)
            .text(4, "model")
            .text(5, &format!("{}-checkpoint", run.id))
            .text(6, &digest)
            .text(8, &format!("{{\"iteration\":{iteration}}}"))
            .texts(11, ["latest", name])
            .message(12, manifest)
            .int(14, 1)
            .text(15, &identifier(&format!("{} {name}", run.id)))
            .text(16, &identifier(&run.id));
        record(number, ARTIFACT, artifact)
    }
}

/// 128 letters and digits derived from `text`.
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
    let history = Fields(record).find_map(|field| match field {
        (number, Field::Bytes(history)) if number == u64::from(HISTORY) => Some(history),
        _ => None,
    })?;
    let mut of = StepOf::default();
    for field in Fields(history) {
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
    let Some((2, Field::Bytes(b"_runtime"))) = fields.next() else { return None };
    match fields.next() {
        Some((16, Field::Bytes(json))) => std::str::from_utf8(json).ok()?.parse().ok(),
        _ => None,
    }
}
