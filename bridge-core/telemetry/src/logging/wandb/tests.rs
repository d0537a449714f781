//! The log against one of W&B's own client, and against a decoder of its own that shares nothing
//! with the code above.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::datastore::Records;
use super::earlier::logs;
use super::*;
use crate::logging::MetricValue;

/// A log of three steps that W&B's client wrote (version 0.31.0, offline), with a setting that is
/// longer than a block.
const REAL: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/wandb/run.wandb"));

/// A message as it is read: values of fields by number, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::logging) struct Message(Vec<(u64, Found)>);

#[derive(Clone, Debug, PartialEq)]
enum Found {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Message {
    fn read(mut bytes: &[u8]) -> Self {
        fn number(bytes: &mut &[u8]) -> u64 {
            let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("an end of the number") + 1;
            let (digits, rest) = bytes.split_at(length);
            *bytes = rest;
            digits.iter().rev().fold(0, |sum, digit| sum << 7 | u64::from(digit & 0x7f))
        }
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let value = match key % 8 {
                0 => Found::Number(number(&mut bytes)),
                2 => {
                    let length = number(&mut bytes) as usize;
                    let (content, rest) = bytes.split_at(length);
                    bytes = rest;
                    Found::Bytes(content.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key / 8, value));
        }
        Self(fields)
    }

    fn all(&self, field: u64) -> Vec<&[u8]> {
        let mut found = Vec::new();
        for (number, value) in &self.0 {
            match value {
                Found::Bytes(content) if *number == field => found.push(content.as_slice()),
                _ => {}
            }
        }
        found
    }

    pub fn messages(&self, field: u64) -> Vec<Self> {
        self.all(field).into_iter().map(Self::read).collect()
    }

    pub fn message(&self, field: u64) -> Option<Self> {
        self.messages(field).pop()
    }

    pub fn texts(&self, field: u64) -> Vec<String> {
        self.all(field).into_iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
    }

    pub fn text(&self, field: u64) -> String {
        self.texts(field).concat()
    }

    pub fn number(&self, field: u64) -> u64 {
        let of = |(number, value): &(u64, Found)| match value {
            Found::Number(value) if *number == field => Some(*value),
            _ => None,
        };
        self.0.iter().find_map(of).unwrap_or(0)
    }

    /// Names and JSON of items: of `key`, or of the levels of a nested one.
    pub fn items(&self, field: u64) -> BTreeMap<String, String> {
        let name = |item: &Self| if item.text(1).is_empty() { item.texts(2).join("/") } else { item.text(1) };
        self.messages(field).iter().map(|item| (name(item), item.text(16))).collect()
    }
}

/// The checksum of zlib, bit by bit.
pub(in crate::logging) fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.into_iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

/// The records of a log, which has to be whole.
fn payloads(log: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(&log[..7], b":W&B\xe1\xbe\0");
    let (mut at, mut records, mut open) = (7, Vec::new(), None::<Vec<u8>>);
    while at < log.len() {
        let left = 32768 - at % 32768;
        if left < 7 {
            assert!(log[at..at + left].iter().all(|byte| *byte == 0));
            at += left;
            continue;
        }
        let length = usize::from(log[at + 4]) + 256 * usize::from(log[at + 5]);
        let kind = log[at + 6];
        assert!(length + 7 <= left, "a frame stays in its block");
        let data = &log[at + 7..at + 7 + length];
        let sum =
            [0, 8, 16, 24].iter().zip(&log[at..at + 4]).fold(0, |sum, (shift, byte)| sum | u32::from(*byte) << shift);
        assert_eq!(sum, crc32([kind].into_iter().chain(data.iter().copied())), "at {at}");
        match (kind, open.take()) {
            (1, None) => records.push(data.to_vec()),
            (2, None) => open = Some(data.to_vec()),
            (3, Some(begun)) => open = Some([&begun, data].concat()),
            (4, Some(begun)) => records.push([&begun, data].concat()),
            (kind, open) => panic!("kind {kind} at {at}, open: {}", open.is_some()),
        }
        at += 7 + length;
    }
    assert_eq!(open, None);
    records
}

/// The messages of a log's records.
pub(in crate::logging) fn decode(log: &[u8]) -> Vec<Message> {
    payloads(log).iter().map(|record| Message::read(record)).collect()
}

/// The last log of a run.
pub(in crate::logging) fn last_log(place: &Path, id: &str) -> Vec<u8> {
    std::fs::read(logs(place, id).unwrap().last().expect("a log")).unwrap()
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut records = Records::open(path).unwrap().expect("a log");
    std::iter::from_fn(|| records.next().unwrap()).collect()
}

fn row(step: u64, runtime: f64) -> Row {
    let values = vec![("lm loss".into(), MetricValue::F32(1.5)), ("grad-norm".into(), f64::NAN.into())];
    Row { step, timestamp: 1e9, runtime, values }
}

fn run_head() -> RunHead {
    RunHead {
        id: "abcd1234".into(),
        entity: "ent".into(),
        project: "proj".into(),
        name: "the name".into(),
        group: "grp".into(),
        job_type: "train".into(),
        notes: "a note".into(),
        tags: vec!["a".into(), "b".into()],
        config: vec![
            ("model".into(), "{\"layers\":2}".into()),
            ("text".into(), format!("{:?}", "0123456789".repeat(4000))),
        ],
        time: 5_017,
        ..RunHead::default()
    }
}

#[test]
fn records_have_the_fields_of_the_real_ones() {
    let real = decode(REAL);
    let find = |field| real.iter().find_map(|record| record.message(field)).expect("a record");
    let ours = |bytes: Vec<u8>, field| Message::read(&bytes).message(field).expect("a message");
    let (theirs, own) = (find(17), ours(run(2, &run_head()), 17));
    for field in [1, 2, 3, 6, 7, 8, 9, 10] {
        assert_eq!(own.texts(field), theirs.texts(field), "field {field} of the run");
        assert!(!own.text(field).is_empty());
    }
    let config = |run: &Message| {
        let mut items = run.message(4).unwrap().items(1);
        items.remove("_wandb");
        items
    };
    assert_eq!(config(&own), config(&theirs));
    assert!(theirs.message(17).unwrap().number(1) > 1_700_000_000, "seconds since 1970");
    let time = own.message(17).unwrap();
    assert_eq!((time.number(1), time.number(2)), (5, 17_000_000));
    let theirs = find(2).items(1);
    let own = ours(history(5, &row(1, 0.5)), 2);
    let names: Vec<&String> = theirs.keys().filter(|name| *name != "learning-rate").collect();
    assert_eq!(own.items(1).keys().collect::<Vec<_>>(), names);
    assert_eq!((own.items(1)["_step"].as_str(), own.items(1)["lm loss"].as_str()), ("1", "1.5"));
    assert_eq!((own.items(1)["grad-norm"].as_str(), theirs["grad-norm"].as_str()), ("NaN", "NaN"));
    assert_eq!((theirs["learning-rate"].as_str(), json_of(&f64::INFINITY.into()).as_str()), ("Infinity", "Infinity"));
    assert_eq!(own.message(2).unwrap().number(1), find(2).message(2).unwrap().number(1));
    assert_eq!(ours(exit(9, 1, 7.9), 18), Message(vec![(1, Found::Number(1)), (2, Found::Number(7))]));
    assert_eq!(ours(exit(9, 0, 0.0), 18), find(18), "an exit without fields is one");
    let own = ours(files(3, ["recipe.toml"]), 6).message(1).unwrap();
    assert_eq!((own.text(1), find(6).message(1).unwrap().text(1)), ("recipe.toml".into(), "requirements.txt".into()));
    assert_eq!(Message::read(&history(5, &row(1, 0.5))).number(1), 5);
}

#[test]
fn the_real_log_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.wandb");
    std::fs::write(&path, REAL).unwrap();
    assert_eq!(read(&path), payloads(REAL));
    let steps: Vec<u64> = payloads(REAL).iter().filter_map(|record| Some(records::step_of(record)?.step)).collect();
    assert_eq!(steps, [1, 2, 3]);
    let last =
        records::step_of(payloads(REAL).iter().rfind(|record| records::step_of(record).is_some()).unwrap()).unwrap();
    assert!(last.runtime > 0.1 && last.runtime < 10.0, "{last:?}");
}

#[test]
fn a_checkpoint_is_a_version_of_an_artifact() {
    let (name, uri) = ("iter_0000003", "file:///c/iter_0000003");
    let saved = Checkpoint { run: &run_head(), name, uri, iteration: 3 }.record(7);
    let artifact = Message::read(&saved).message(8).unwrap();
    let text = |field| artifact.text(field);
    assert_eq!(
        [text(1), text(2), text(3), text(4), text(5)],
        ["abcd1234", "proj", "ent", "model", "abcd1234-checkpoint"]
    );
    // `echo -en 'wandb-artifact-manifest-v1\niter_0000003:file:///c/iter_0000003\n' | md5sum`
    assert_eq!(text(6), "62319c4898e5ff551416c47d2bc128dd");
    assert_eq!((text(8), artifact.texts(11)), ("{\"iteration\":3}".into(), vec!["latest".into(), name.to_owned()]));
    let entry = artifact.message(12).unwrap().message(4).unwrap();
    assert_eq!([entry.text(1), entry.text(2), entry.text(3)], [name, uri, uri]);
    for field in [15, 16] {
        assert!(text(field).len() == 128 && text(field).chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
    }
    assert_eq!(artifact.number(14), 1);
}

#[test]
fn a_job_that_goes_on_cuts_what_it_does_again() {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("offline-run-20260101_000000-abcd1234");
    std::fs::create_dir(&job).unwrap();
    let path = job.join("run-abcd1234.wandb");
    let mut store = DataStore::create(&path).unwrap();
    store.add(&[head(1), run(2, &run_head())]).unwrap();
    for step in 1..=6 {
        store
            .add(&[history(2 * step + 1, &row(step, step as f64)), summary(2 * step + 2, &row(step, step as f64))])
            .unwrap();
    }
    drop(store);
    let look = |iteration| look_at_earlier(folder.path(), "abcd1234", iteration).unwrap();
    assert_eq!(look_at_earlier(folder.path(), "other", 3).unwrap(), Earlier::default());
    assert_eq!(look(6), Earlier { jobs: 1, runtime: 6.0, sent: None });
    assert_eq!(decode(&std::fs::read(&path).unwrap()).len(), 14, "all is left");
    let marker = path.with_extension("wandb.synced");
    std::fs::write(&marker, "").unwrap();
    assert_eq!(look(4), Earlier { jobs: 1, runtime: 6.0, sent: Some(6) });
    assert_eq!(decode(&std::fs::read(&path).unwrap()).len(), 14, "what was sent stays");
    std::fs::remove_file(marker).unwrap();
    assert_eq!(look(4), Earlier { jobs: 1, runtime: 4.0, sent: None });
    let left = decode(&std::fs::read(&path).unwrap());
    let steps: Vec<u64> = left.iter().filter_map(|record| Some(record.message(2)?.message(2)?.number(1))).collect();
    assert_eq!((left.len(), steps), (10, vec![1, 2, 3, 4]));
}

#[test]
fn a_disk_that_is_full_is_an_error_and_changes_nothing() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut store = DataStore { file: full, length: 7 };
    assert!(store.add(&[head(1)]).unwrap_err().to_string().contains("space"));
    assert_eq!(store.length, 7);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Records of any lengths, at block ends too, are read by both decoders; a log that is cut
    /// gives those that are whole.
    #[test]
    fn records_are_framed(lengths in prop::collection::vec(prop_oneof![0_usize..40, 32_700_usize..32_780, 0_usize..100_000], 1..8), cut in 0.0..1.0_f64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.wandb");
        let records: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(number, length)| vec![number as u8; *length]).collect();
        let mut store = DataStore::create(&path).unwrap();
        let mut ends = vec![7];
        for record in &records {
            store.add(std::slice::from_ref(record)).unwrap();
            ends.push(store.length);
        }
        let log = std::fs::read(&path).unwrap();
        prop_assert_eq!(&payloads(&log), &records);
        prop_assert_eq!(&read(&path), &records);
        let cut = 7 + (cut * (log.len() - 7) as f64) as usize;
        std::fs::write(&path, &log[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut as u64).count() - 1;
        prop_assert_eq!(&read(&path), &records[..whole]);
    }

    /// A log in which a byte changed gives the records before it, and no others.
    #[test]
    fn damage_ends_a_log(at in 7_usize..REAL.len(), bit in 0_u8..8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.wandb");
        let mut log = REAL.to_vec();
        log[at] ^= 1 << bit;
        std::fs::write(&path, &log).unwrap();
        let (found, all) = (read(&path), payloads(REAL));
        prop_assert!(found.len() < all.len());
        prop_assert_eq!(&found[..], &all[..found.len()]);
    }
}
