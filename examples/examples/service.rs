//! Training runs inside a web service: any number in one process, each started, watched and cancelled over HTTP.
//!
//! ```text
//! cargo run --release --example service
//! curl localhost:3000/runs --json '{"recipe": {...}, "overrides": ["train.train_iters=100"]}'
//! curl localhost:3000/runs/0/progress -H 'Last-Event-ID: 0'
//! curl localhost:3000/runs/0/checkpoints; curl -X POST localhost:3000/runs/0/cancel
//! ```
//!
//! Progress is sent as server-sent events. A response has the events after `Last-Event-ID` and waits for one if there are none
//! yet; 204 means that no more will come. A browser's `EventSource` reconnects automatically. Clients are trusted.
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bridge_core::checkpoint::CheckpointStore;
use bridge_core::config::{ConfigErrors, Format, RawConfig, RunConfig, World};
use bridge_core::train::{
    CancelHandle, Console, RunContext, RunOptions, StepReport, Subsystem, TrainError, Verdict, pretrain,
};
use bridge_models::registry;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex, sync::watch};

type Failure = (StatusCode, String);
type Answer = Result<Response, Failure>;

/// The handlers' view of a run. Its events end when the training thread drops their sender.
#[derive(Clone)]
struct Run {
    cancel: CancelHandle,
    checkpoints: PathBuf,
    events: watch::Receiver<Vec<Value>>,
}

/// The runs, whose ids are their indices, and the folder that they write to.
#[derive(Clone)]
struct Service {
    runs: Arc<Mutex<Vec<Run>>>,
    folder: PathBuf,
}

impl Service {
    async fn run(&self, id: usize) -> Result<Run, Failure> {
        let run = self.runs.lock().await.get(id).cloned();
        run.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no run {id}")))
    }
}

/// Forwards events of the loop. The loop calls it between steps, so it must not take long.
struct Recorder(Arc<watch::Sender<Vec<Value>>>);

impl Subsystem for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<Verdict, TrainError> {
        let event = json!({ "event": "step", "iteration": step.iteration, "loss": step.loss() });
        self.0.send_modify(|events| events.push(event));
        Ok(Verdict::default())
    }
}

/// Trains on a separate thread. The last event says how the run ended.
async fn train(config: RunConfig, cancel: CancelHandle, events: Arc<watch::Sender<Vec<Value>>>) {
    let mut options = RunOptions { console: Console::Silent, cancel, ..RunOptions::new(registry()) };
    options.subsystems.push(Box::new(Recorder(Arc::clone(&events))));
    let training = tokio::task::spawn_blocking(move || {
        let report = pretrain(config, options).map_err(|error| error.to_string())?;
        Ok(json!({ "event": "end", "step": report.train_state.step, "reason": report.reason.to_string() }))
    });
    let outcome: Result<Value, String> = training.await.unwrap_or_else(|panic| Err(panic.to_string()));
    let last = outcome.unwrap_or_else(|error| json!({ "event": "failed", "error": error }));
    events.send_modify(|events| events.push(last));
}

/// Body of `POST /runs`: a recipe as JSON, and `key=value` overrides.
#[derive(serde::Deserialize)]
struct Order {
    recipe: Value,
    #[serde(default)]
    overrides: Vec<String>,
}

async fn start(State(service): State<Service>, Json(order): Json<Order>) -> Answer {
    let refused = |errors: ConfigErrors| (StatusCode::UNPROCESSABLE_ENTITY, errors.to_json().to_string());
    let recipe = order.recipe.to_string();
    let mut raw =
        RawConfig::from_text(&recipe, Format::Json, &order.overrides, &registry().kinds()).map_err(refused)?;
    let mut runs = service.runs.lock().await;
    let id = runs.len();
    // The service decides where a run writes, whatever the recipe says.
    let checkpoints = service.folder.join(format!("{id}/checkpoints"));
    raw.checkpoint.save = Some(checkpoints.clone());
    raw.logger.log_dir = Some(service.folder.join(format!("{id}/logs")));
    let config = raw.finalize(&World::SINGLE).map_err(refused)?;
    let ((sender, events), cancel) = (watch::channel(Vec::new()), CancelHandle::default());
    tokio::spawn(train(config, cancel.clone(), Arc::new(sender)));
    runs.push(Run { cancel, checkpoints, events });
    Ok((StatusCode::CREATED, Json(json!({ "id": id }))).into_response())
}

async fn progress(State(service): State<Service>, Path(id): Path<usize>, headers: HeaderMap) -> Answer {
    let mut events = service.run(id).await?.events;
    let seen = headers.get("last-event-id").map_or(Some(0), |id| id.to_str().ok()?.parse().ok());
    let seen: usize = seen.ok_or((StatusCode::BAD_REQUEST, "Last-Event-ID: expected an event's number".to_owned()))?;
    let Ok(events) = events.wait_for(|events| events.len() > seen).await else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let body = (seen + 1..).zip(&events[seen..]).map(|(id, event)| format!("retry: 0\nid: {id}\ndata: {event}\n\n"));
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body.collect::<String>()).into_response())
}

async fn cancel(State(service): State<Service>, Path(id): Path<usize>) -> Result<StatusCode, Failure> {
    service.run(id).await?.cancel.cancel();
    Ok(StatusCode::ACCEPTED)
}

async fn checkpoints(State(service): State<Service>, Path(id): Path<usize>) -> Result<Json<Value>, Failure> {
    let root = service.run(id).await?.checkpoints;
    let list = CheckpointStore::open(root).and_then(|store| store.list());
    let list = list.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(list.iter().map(|c| json!({ "iteration": c.iteration, "complete": c.is_complete() })).collect()))
}

/// Serves until `shutdown` ends, then cancels the remaining runs. Runs write below `folder`.
pub async fn serve<F>(listener: TcpListener, folder: PathBuf, shutdown: F) -> std::io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let runs = Arc::<Mutex<Vec<Run>>>::default();
    let router = Router::new()
        .route("/runs", post(start))
        .route("/runs/{id}/progress", get(progress))
        .route("/runs/{id}/cancel", post(cancel))
        .route("/runs/{id}/checkpoints", get(checkpoints))
        .with_state(Service { folder, runs: Arc::clone(&runs) });
    let stop = async move {
        shutdown.await;
        runs.lock().await.iter().for_each(|run| run.cancel.cancel());
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let folder = format!("runs/service-{}", std::process::id()).into();
    Ok(serve(listener, folder, async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?)
}
