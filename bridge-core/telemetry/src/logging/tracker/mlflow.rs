//! MLflow, by its REST interface (mlflow.org/docs/latest/rest-api.html, version 2.0) and the
//! artifact proxy of its server.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine};
use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::http::{Body, Client};
use super::service::{Item, Known, SendError, Service};

/// Name for messages and the spool's folder.
pub(in crate::logging) const NAME: &str = "mlflow";

/// Largest number of metrics in a request.
const METRICS: usize = 1000;
const PARAMETERS: usize = 100;

/// Characters of a parameter's value that a server keeps.
const LONGEST_VALUE: usize = 6000;

/// Bytes of an artifact: a request is given up after some seconds.
const LARGEST_FILE: u64 = 64 << 20;

/// Destination of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::logging) struct Target {
    pub uri: String,
    pub experiment: String,
    pub run_name: String,
    pub tags: BTreeMap<String, String>,
}

/// The client of a server.
pub(in crate::logging) struct MlFlow {
    target: Target,
    client: Client,
}

impl MlFlow {
    /// A client, which contacts the server only when there is something to send. Credentials come
    /// from the environment, as in MLflow's own client: `MLFLOW_TRACKING_TOKEN`, or
    /// `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
    pub fn new(target: Target) -> Self {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let token = of("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let user = of("MLFLOW_TRACKING_USERNAME").map(|user| {
            let password = of("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
            format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
        });
        let client = Client::new(&target.uri, token.or(user), Vec::new());
        Self { target, client }
    }

    fn post(&self, call: &str, content: &Value) -> Result<Value, SendError> {
        self.client.ask(&format!("api/2.0/mlflow/{call}"), Body::Json(content))
    }

    /// Identifier of the experiment, which is created if it does not exist.
    fn experiment(&self) -> Result<String, SendError> {
        let name = self.target.experiment.as_str();
        let get = || self.client.ask("api/2.0/mlflow/experiments/get-by-name", Body::Query("experiment_name", name));
        let id = |answer: &Value| answer["experiment"]["experiment_id"].as_str().map(str::to_owned);
        match get() {
            Ok(answer) => id(&answer).ok_or_else(|| unexpected("an experiment", &answer)),
            Err(SendError::Later(why)) => Err(SendError::Later(why)),
            Err(SendError::Never(_)) => match self.post("experiments/create", &json!({ "name": name })) {
                Ok(answer) => {
                    let made = answer["experiment_id"].as_str().map(str::to_owned);
                    made.ok_or_else(|| unexpected("a new experiment", &answer))
                }
                // Another run may have made it meanwhile.
                Err(why) => get().ok().and_then(|answer| id(&answer)).ok_or(why),
            },
        }
    }

    /// The run begins at the server, or goes on there.
    fn begin(&self, known: &mut Known, time: u64, settings: &[(String, String)]) -> Result<(), SendError> {
        if let Some(run) = known.ids.get("run_id") {
            let going_on = json!({ "run_id": run, "status": "RUNNING" });
            return self.post("runs/update", &going_on).map(drop);
        }
        let experiment = self.experiment()?;
        let own = [("mlflow.runName", &self.target.run_name), ("mlflow.source.name", &known.run)];
        let tags = own.into_iter().chain(self.target.tags.iter().map(|(key, value)| (key.as_str(), value)));
        let tags: Vec<Value> = tags.map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let run = json!({
            "experiment_id": experiment, "start_time": time, "run_name": self.target.run_name, "tags": tags,
        });
        let answer = self.post("runs/create", &run)?;
        let info = &answer["run"]["info"];
        let id = info["run_id"].as_str().ok_or_else(|| unexpected("a new run", &answer))?;
        known.ids.insert("run_id".into(), id.to_owned());
        known.ids.insert("artifacts".into(), info["artifact_uri"].as_str().unwrap_or_default().to_owned());
        let pair = |(key, value): &(String, String)| json!({ "key": name(key), "value": value.chars().take(LONGEST_VALUE).collect::<String>() });
        for some in settings.chunks(PARAMETERS) {
            let params: Vec<Value> = some.iter().map(pair).collect();
            // Settings that a server does not take, because of their length, say, cost no figure.
            match self.post("runs/log-batch", &json!({ "run_id": id, "params": params })) {
                Ok(_) | Err(SendError::Never(_)) => {}
                // The run exists; its remaining settings are not sent.
                Err(SendError::Later(_)) => break,
            }
        }
        Ok(())
    }

    /// As many figures as fit into a request.
    fn figures(&self, run: &str, items: &[Item]) -> Result<usize, SendError> {
        let (mut metrics, mut count) = (Vec::new(), 0);
        for item in items {
            let Item::Figures { time, step, values } = item else { break };
            if count > 0 && metrics.len() + values.len() > METRICS {
                break;
            }
            let metric = |(key, value): &(String, Value)| json!({ "key": name(key), "value": value, "timestamp": time, "step": step });
            metrics.extend(values.iter().map(metric));
            count += 1;
        }
        for some in metrics.chunks(METRICS) {
            self.post("runs/log-batch", &json!({ "run_id": run, "metrics": some }))?;
        }
        Ok(count)
    }

    /// A file among the run's artifacts.
    fn artifact(&self, known: &Known, file: &str, content: &[u8]) -> Result<(), SendError> {
        let place = known.ids.get("artifacts").map_or("", String::as_str);
        let Some(path) = place.strip_prefix("mlflow-artifacts:/") else {
            let message = format!(
                "{file}: the server keeps artifacts in {place:?}, which only its clients can write; start it with --serve-artifacts"
            );
            return Err(SendError::Never(message));
        };
        let path = path.trim_start_matches('/');
        let call = format!("api/2.0/mlflow-artifacts/artifacts/{path}/{file}");
        self.client.ask(&call, Body::File(content)).map(drop)
    }
}

impl Service for MlFlow {
    fn send(&mut self, known: &mut Known, items: &[Item]) -> Result<usize, SendError> {
        let run = known.ids.get("run_id").cloned();
        let run = || run.clone().ok_or_else(|| SendError::Never("the run was not begun".into()));
        match &items[0] {
            Item::Begin { time, settings } => self.begin(known, *time, settings).map(|()| 1),
            Item::Figures { .. } => self.figures(&run()?, items),
            Item::Tag { name, value } => {
                self.post("runs/set-tag", &json!({ "run_id": run()?, "key": name, "value": value })).map(|_| 1)
            }
            Item::Span { .. } => Err(SendError::Never("MLflow has no place for spans".into())),
            Item::Text { name, content } => {
                run()?;
                self.artifact(known, name, content.as_bytes()).map(|()| 1)
            }
            Item::File { name, path } => {
                run()?;
                let refused = |error| SendError::Never(format!("{}: {error}", path.display()));
                let content = untrusted_io::read(path, LARGEST_FILE).map_err(refused)?;
                self.artifact(known, name, &content).map(|()| 1)
            }
            Item::End { time, state } => {
                let status = match state.as_str() {
                    "finished" => "FINISHED",
                    "failed" => "FAILED",
                    _ => "KILLED",
                };
                let over = json!({ "run_id": run()?, "status": status, "end_time": time });
                self.post("runs/update", &over).map(|_| 1)
            }
        }
    }
}

fn unexpected(what: &str, answer: &Value) -> SendError {
    let answer: String = answer.to_string().chars().take(200).collect();
    SendError::Later(format!("expected {what}, the server answers {answer}"))
}

/// A name as MLflow takes it: `@` as `_at_`, one slash at the most, and letters, digits, `_ . - : `
/// and space besides.
pub(in crate::logging) fn name(name: &str) -> String {
    let clean = |text: &str| text.replace(|c: char| !(c.is_alphanumeric() || "_.-: ".contains(c)), "_");
    let mut name = name.replace('@', "_at_");
    while name.contains("//") {
        name = name.replace("//", "/");
    }
    name.split_once('/').map_or_else(|| clean(&name), |(head, rest)| format!("{}/{}", clean(head), clean(rest)))
}
