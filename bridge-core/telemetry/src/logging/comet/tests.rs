//! Archives, read by a reader of the tests' own that takes nothing from the code above.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::logging::MetricValue;
use crate::logging::wandb::tests::crc32;

/// The files of an archive by name, checked against directory and headers.
pub(in crate::logging) fn unpack(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let end = bytes.len() - 22;
    assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
    let (count, size, mut at) = (number(end + 10, 2), number(end + 12, 4), number(end + 16, 4));
    assert_eq!((number(end + 8, 2), at + size), (count, end));
    let mut files = BTreeMap::new();
    for _ in 0..count {
        assert_eq!(&bytes[at..at + 4], b"PK\x01\x02");
        let (method, sum, size) = (number(at + 10, 2), number(at + 16, 4), number(at + 24, 4));
        let (length, local) = (number(at + 28, 2), number(at + 42, 4));
        assert_eq!((method, number(at + 20, 4)), (0, size), "stored");
        let name = &bytes[at + 46..at + 46 + length];
        assert_eq!(&bytes[local..local + 4], b"PK\x03\x04");
        assert_eq!((number(local + 26, 2), &bytes[local + 30..local + 30 + length]), (length, name));
        assert_eq!(number(local + 6, 2), number(at + 8, 2), "flags");
        let content = bytes[local + 30 + length..local + 30 + length + size].to_vec();
        assert_eq!(crc32(content.iter().copied()) as usize, sum);
        // Sizes and checksum are before the data, or after it.
        let told = if number(local + 6, 2) & 8 == 0 { local + 14 } else { local + 30 + length + size + 4 };
        assert_eq!((number(told, 4), number(told + 4, 4), number(told + 8, 4)), (sum, size, size));
        assert_eq!(files.insert(String::from_utf8(name.to_vec()).unwrap(), content), None);
        at += 46 + length;
    }
    assert_eq!(at, end);
    files
}

fn asset(name: &str, content: &str) -> Asset {
    Asset { name: name.into(), content: content.into() }
}

#[test]
fn messages_are_those_of_comets_client() {
    let mut messages = Messages::default();
    messages.other("Name", "the name");
    messages.parameter(5, "model|layers", 2.into());
    messages.metric(6, 3, "lm loss", &MetricValue::F32(1.5));
    messages.metric(6, 3, "grad-norm", &f64::NEG_INFINITY.into());
    messages.file(7, 3, "key", "tokenizer/tokenizer.json", "tokenizer-tokenizer.json");
    messages.file(8, 3, "key", "loss.png", "loss.png");
    let text = String::from_utf8(messages.lines).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<Value> = lines.iter_mut().map(|line| line["payload"]["message_id"].take()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    // As comet_ml 3.58.8 writes them, but for their numbers.
    let metric = |name: &str, value: Value| {
        json!({
            "payload": { "local_timestamp": 6, "message_id": null, "metric": { "epoch": null, "metricName": name, "metricValue": value, "step": 3 } },
            "type": "metric_msg",
        })
    };
    let param = json!({ "paramName": "model|layers", "paramValue": 2, "source": "manual", "step": null });
    assert_eq!(
        lines[0],
        json!({ "payload": { "key": "Name", "message_id": null, "value": "the name" }, "type": "log_other" })
    );
    assert_eq!(
        lines[1],
        json!({ "payload": { "local_timestamp": 5, "message_id": null, "param": param }, "type": "parameter_msg" })
    );
    assert_eq!(lines[2], metric("lm loss", 1.5.into()));
    assert_eq!(lines[3], metric("grad-norm", "-Infinity".into()));
    let id = lines[4]["payload"]["additional_params"]["assetId"].take();
    assert_eq!(id.as_str().unwrap().len(), 32);
    let params = json!({
        "assetId": null, "context": null, "extension": "json", "fileName": "tokenizer/tokenizer.json", "overwrite": false, "runId": null,
        "step": 3,
    });
    let file = json!({
        "additional_params": params, "clean": true, "file_path": "tokenizer-tokenizer.json", "local_timestamp": 7, "message_id": null,
        "metadata": {}, "upload_type": "asset",
    });
    assert_eq!(lines[4], json!({ "payload": file, "type": "file_upload" }));
    let picture = &lines[5]["payload"];
    assert_eq!(
        (&picture["upload_type"], &picture["additional_params"]["figName"]),
        (&json!("visualization"), &json!("loss.png"))
    );
    let steps: Vec<Option<u64>> = text.lines().map(step_of_line).collect();
    assert_eq!(steps, [None, None, Some(3), Some(3), None, None]);
}

#[test]
fn an_experiment_says_what_it_is() {
    let experiment =
        Experiment { key: key_of("a"), project: "p".into(), tags: vec!["t".into()], start: 5, ..Experiment::default() };
    assert!(experiment.key.len() == 32 && experiment.key.chars().all(|c| c.is_ascii_alphanumeric()));
    assert_ne!(experiment.key, key_of("b"));
    let json: Value = serde_json::from_str(&experiment.json(9)).unwrap();
    assert_eq!((&json["start_time"], &json["stop_time"], &json["workspace"]), (&json!(5), &json!(9), &Value::Null));
    assert_eq!((&json["offline_id"], &json["resume_strategy"]), (&json!(experiment.key), &json!("get_or_create")));
    assert_eq!(json["customer_error_reported"], json!(false));
    let failed = Experiment { failure: Some("why".into()), ..experiment };
    assert!(failed.json(9).contains("\"customer_error_message\":\"why\""));
}

#[test]
fn an_archive_that_cannot_grow_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    let mut archive = Archive::create(&path, &[asset("r", "x")], "{}").unwrap();
    archive.add(b"1\n", &[], "{}").unwrap();
    let before = std::fs::read(&path).unwrap();
    let file = std::mem::replace(&mut archive.file, OpenOptions::new().write(true).open("/dev/full").unwrap());
    assert!(archive.add(b"2\n", &[], "{}").unwrap_err().to_string().contains("space"));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    archive.file = file;
    archive.add(b"3\n", &[], "{}").unwrap();
    assert_eq!(unpack(&path)["messages.json"], b"1\n3\n");
    assert!(Archive::create(&path, &[], "{}").is_err(), "an archive is not overwritten");
}

#[test]
fn what_is_no_archive_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    let mut archive = Archive::create(&path, &[asset("r", "x")], "{}").unwrap();
    archive.add(b"1\n2\n", &[asset("s", "y")], "{}").unwrap();
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(Archive::cut(&path, |_| true).unwrap_err().to_string().contains("damaged"), "{length}");
    }
    for at in whole.len() - 22..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            // An error, or the archive: no panic.
            let _ = Archive::cut(&path, |line| line != "2\n");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After each write the archive has all written lines; a truncated archive has the lines before
    /// the cut, and the earlier content.
    #[test]
    fn an_archive_is_whole_at_any_time(parts in prop::collection::vec(prop::collection::vec(0_u64..100, 0..5), 1..8), cut in 0_u64..120) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.zip");
        let mut archive = Archive::create(&path, &[asset("recipe.toml", "a = 1")], "{\"n\":0}").unwrap();
        prop_assert_eq!(unpack(&path)["messages.json"].len(), 0);
        let (mut written, mut number) = (String::new(), 0);
        for (index, part) in parts.iter().enumerate() {
            let line = |_: &u64| { number += 1; format!("{number}\n") };
            let lines: String = part.iter().map(line).collect();
            let is_last = index + 1 == parts.len();
            let assets = if is_last { vec![asset("loss.png", "picture")] } else { Vec::new() };
            archive.add(lines.as_bytes(), &assets, &format!("{{\"n\":{number}}}")).unwrap();
            written.push_str(&lines);
            let files = unpack(&path);
            prop_assert_eq!(&files["messages.json"][..], written.as_bytes());
            prop_assert_eq!(&files["recipe.toml"][..], b"a = 1");
            prop_assert_eq!(files.contains_key("loss.png"), is_last);
            prop_assert_eq!(String::from_utf8_lossy(&files["experiment.json"]), format!("{{\"n\":{number}}}"));
        }
        Archive::cut(&path, |line| line.trim().parse::<u64>().unwrap() <= cut).unwrap();
        let files = unpack(&path);
        let kept: String = written.lines().filter(|line| line.parse::<u64>().unwrap() <= cut).map(|line| format!("{line}\n")).collect();
        prop_assert_eq!(&files["messages.json"][..], kept.as_bytes());
        prop_assert_eq!(files.contains_key("loss.png"), kept == written);
        prop_assert_eq!(&files["recipe.toml"][..], b"a = 1");
        prop_assert_eq!(String::from_utf8_lossy(&files["experiment.json"]), format!("{{\"n\":{number}}}"));
    }
}
