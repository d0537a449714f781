//! Messages in the format of Comet's own client: a JSON object a line, with its type and a number.

use serde_json::{Value, json};
use twox_hash::XxHash3_128;

use crate::logging::MetricValue;

/// The key of an experiment, for the run of this name: 32 letters and digits.
pub(in crate::logging) fn key_of(run: &str) -> String {
    identifier(&["run", run])
}

fn identifier(parts: &[&str]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(parts.join("\n").as_bytes()))
}

/// Content of `experiment.json`.
#[derive(Clone, Debug, Default)]
pub(in crate::logging) struct Experiment {
    /// Key of the experiment, which a resumed run keeps.
    pub key: String,
    pub project: String,
    /// The workspace; the default one where it is not given.
    pub workspace: Option<String>,
    pub tags: Vec<String>,
    /// Milliseconds since 1970.
    pub start: u64,
    /// Why it failed.
    pub failure: Option<String>,
}

impl Experiment {
    /// The file, for a run that was alive at `stop`.
    pub fn json(&self, stop: u64) -> String {
        json!({
            "offline_id": self.key,
            "project_name": self.project,
            "start_time": self.start,
            "stop_time": stop,
            "tags": self.tags,
            "workspace": self.workspace,
            // The first uploaded archive creates the experiment; later ones add to it.
            "resume_strategy": "get_or_create",
            "customer_error_reported": self.failure.is_some(),
            "customer_error_message": self.failure,
            "user_provided_experiment_key": true,
            "comet_start_sourced": false,
        })
        .to_string()
    }
}

/// Lines that are not written yet.
#[derive(Clone, Debug, Default)]
pub(in crate::logging) struct Messages {
    /// The lines.
    pub lines: Vec<u8>,
    /// Number of messages so far.
    number: u64,
}

impl Messages {
    fn put(&mut self, kind: &str, mut payload: Value) {
        self.number += 1;
        payload["message_id"] = self.number.into();
        let line = json!({ "payload": payload, "type": kind }).to_string();
        self.lines.extend_from_slice(line.as_bytes());
        self.lines.push(b'\n');
    }

    /// A key and value of the run.
    pub fn other(&mut self, key: &str, value: impl Into<Value>) {
        self.put("log_other", json!({ "key": key, "value": value.into() }));
    }

    /// A setting.
    pub fn parameter(&mut self, time: u64, name: &str, value: Value) {
        let param = json!({ "paramName": name, "paramValue": value, "source": "manual", "step": null });
        self.put("parameter_msg", json!({ "local_timestamp": time, "param": param }));
    }

    /// A figure. NaN and infinity are texts, as Comet expects.
    pub fn metric(&mut self, time: u64, step: u64, name: &str, value: &MetricValue) {
        // The number is converted from its text, so that a float32 is as short as in
        // `metrics.jsonl`.
        let value: Value =
            serde_json::to_string(value).and_then(|text| serde_json::from_str(&text)).unwrap_or_default();
        let metric = json!({ "epoch": null, "metricName": name, "metricValue": value, "step": step });
        self.put("metric_msg", json!({ "local_timestamp": time, "metric": metric }));
    }

    /// A file, which is in the archive as `place`: pictures show among the graphics.
    pub fn file(&mut self, time: u64, step: u64, key: &str, name: &str, place: &str) {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        let mut params = json!({
            "context": null, "extension": extension, "overwrite": false, "runId": null, "step": step,
        });
        let id = identifier(&[key, name, &time.to_string()]);
        let kind = if extension == Some("png") {
            (params["figCounter"], params["figName"], params["imageId"]) = (0.into(), name.into(), id.into());
            "visualization"
        } else {
            (params["assetId"], params["fileName"]) = (id.into(), name.into());
            "asset"
        };
        let payload = json!({
            "additional_params": params, "clean": true, "file_path": place, "local_timestamp": time, "metadata": {},
            "upload_type": kind,
        });
        self.put("file_upload", payload);
    }
}

/// The step that a line is about, if it has a figure.
pub(in crate::logging) fn step_of_line(line: &str) -> Option<u64> {
    let message: Value = serde_json::from_str(line).ok()?;
    message["payload"]["metric"]["step"].as_u64()
}
