//! Training runs inside a web service: any number in one process, each started, watched and
//! cancelled over HTTP. The model that a run has trained answers there, too, and is fine-tuned on
//! examples: any number of adapters share its weights.
//!
//! ```text
//! cargo run --release --example service
//! curl localhost:3000/runs --json '{"recipe": {...}, "overrides": ["train.train_iters=100"]}'
//! curl localhost:3000/runs/0/progress -H 'Last-Event-ID: 0'
//! curl localhost:3000/runs/0/checkpoints; curl -X POST localhost:3000/runs/0/cancel
//! curl localhost:3000/runs/0/adapters --json '{"name": "law", "examples": [{"input": "...", "output": "..."}], "overrides": ["optimizer.lr=1e-3"]}'
//! curl localhost:3000/runs/0/adapters; curl -X DELETE localhost:3000/runs/0/adapters/law
//! curl localhost:3000/runs/0/generate --json '{"prompt": "...", "adapter": "law", "max_tokens": 32}'
//! ```
//!
//! Progress is sent as server-sent events. A response has the events after `Last-Event-ID` and
//! waits for the next one if needed; 204 means that no more will come. A browser's `EventSource`
//! reconnects automatically. An adapter is trained by a run of its own, whose number is in the
//! answer; it can be used when that run has ended. Clients are trusted.

#[path = "service/adapters.rs"]
mod adapters;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use adapters::Speaker;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use bridge_core::checkpoint::CheckpointStore;
use bridge_core::config::{ConfigErrors, Format, RawConfig, RunConfig, World};
use bridge_core::train::{
    CancelHandle, Console, LoopRequest, RunContext, RunOptions, StepReport, Subsystem, SubsystemError, pretrain,
};
use bridge_models::registry;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex, sync::watch};

type Failure = (StatusCode, String);
type Answer = Result<Response, Failure>;
/// Action after a run has ended well; an error fails the run.
type Finish = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// The handlers' view of a run. Its events end when the training thread drops their sender.
#[derive(Clone)]
struct Run {
    cancel: CancelHandle,
    checkpoints: PathBuf,
    events: watch::Receiver<Vec<Value>>,
    order: Order,
    config: Arc<RunConfig>,
    /// Adapters of the model, by name, with the runs that train them.
    adapters: Arc<StdMutex<BTreeMap<String, usize>>>,
    /// The model, loaded on the first request.
    speaker: Arc<StdMutex<Option<Speaker>>>,
}

impl Run {
    /// Calls a function with the model, which is loaded first if necessary.
    fn speak<T>(&self, work: impl FnOnce(&mut Speaker) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut speaker = self.speaker.lock().unwrap_or_else(PoisonError::into_inner);
        if speaker.is_none() {
            *speaker = Some(Speaker::load(&self.config, &self.checkpoints)?);
        }
        work(speaker.as_mut().expect("it is loaded"))
    }

    fn adapters(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, usize>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    /// Starts a run. `finish` gets its number, configuration and checkpoints.
    async fn start(
        &self,
        order: Order,
        finish: impl FnOnce(usize, Arc<RunConfig>, PathBuf) -> Finish,
    ) -> Result<usize, Failure> {
        let refused = |errors: ConfigErrors| (StatusCode::UNPROCESSABLE_ENTITY, errors.to_json().to_string());
        let recipe = order.recipe.to_string();
        let mut raw =
            RawConfig::from_text(&recipe, Format::Json, &order.overrides, &registry().kinds()).map_err(refused)?;
        let mut runs = self.runs.lock().await;
        let id = runs.len();
        // The service overrides the output folders of the recipe.
        let checkpoints = self.folder.join(format!("{id}/checkpoints"));
        raw.checkpoint.save = Some(checkpoints.clone());
        raw.logger.log_dir = Some(self.folder.join(format!("{id}/logs")));
        let config = Arc::new(raw.finalize(&World::SINGLE).map_err(refused)?);
        let ((sender, events), cancel) = (watch::channel(Vec::new()), CancelHandle::default());
        let finish = finish(id, Arc::clone(&config), checkpoints.clone());
        tokio::spawn(train(RunConfig::clone(&config), cancel.clone(), finish, Arc::new(sender)));
        let (adapters, speaker) = Default::default();
        runs.push(Run { cancel, checkpoints, events, order, config, adapters, speaker });
        Ok(id)
    }
}

/// Forwards events of the loop. The loop calls it between steps, so it must not take long.
struct Recorder(Arc<watch::Sender<Vec<Value>>>);

impl Subsystem for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let event = json!({ "event": "step", "iteration": step.iteration, "loss": step.loss() });
        self.0.send_modify(|events| events.push(event));
        Ok(LoopRequest::default())
    }
}

/// Trains on a separate thread. The last event says how the run ended.
async fn train(config: RunConfig, cancel: CancelHandle, finish: Finish, events: Arc<watch::Sender<Vec<Value>>>) {
    let mut options = RunOptions { console: Console::Silent, cancel, ..RunOptions::new(registry()) };
    options.subsystems.push(Box::new(Recorder(Arc::clone(&events))));
    let training = tokio::task::spawn_blocking(move || {
        let report = pretrain(config, options).map_err(|error| error.to_string())?;
        finish()?;
        Ok(json!({ "event": "end", "step": report.train_state.step, "reason": report.reason.to_string() }))
    });
    let outcome: Result<Value, String> = training.await.unwrap_or_else(|panic| Err(panic.to_string()));
    let last = outcome.unwrap_or_else(|error| json!({ "event": "failed", "error": error }));
    events.send_modify(|events| events.push(last));
}

/// Body of `POST /runs`: a recipe as JSON, and `key=value` overrides.
#[derive(Clone, serde::Deserialize)]
struct Order {
    recipe: Value,
    #[serde(default)]
    overrides: Vec<String>,
}

async fn start(State(service): State<Service>, Json(order): Json<Order>) -> Answer {
    let id = service.start(order, |_, _, _| Box::new(|| Ok(()))).await?;
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

/// Body of `POST /runs/{id}/adapters`: name of the adapter, its examples, and overrides of the
/// run's recipe.
#[derive(serde::Deserialize)]
struct Lesson {
    name: String,
    examples: Vec<Value>,
    #[serde(default)]
    overrides: Vec<String>,
}

/// Fine-tunes an adapter of the newest checkpoint of a run, with the run's recipe but for the data.
async fn teach(State(service): State<Service>, Path(id): Path<usize>, Json(lesson): Json<Lesson>) -> Answer {
    let base = service.run(id).await?;
    let Lesson { name, examples, overrides } = lesson;
    if base.adapters().contains_key(&name) {
        return Err((StatusCode::CONFLICT, format!("run {id} has an adapter `{name}`")));
    }
    let failed = |error: std::io::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    std::fs::create_dir_all(&service.folder).map_err(failed)?;
    let data = tempfile::Builder::new().prefix("examples-").tempdir_in(&service.folder).map_err(failed)?;
    let lines: String = examples.iter().map(|example| format!("{example}\n")).collect();
    std::fs::write(data.path().join("training.jsonl"), lines).map_err(failed)?;
    let mut order = base.order.clone();
    order.overrides.extend([
        "dataset.kind=finetuning".to_owned(),
        format!("dataset.dataset_root={}", json!(data.path())),
        format!("checkpoint.pretrained_checkpoint={}", json!(base.checkpoints)),
        "peft.kind=lora".to_owned(),
        "validation.eval_iters=0".to_owned(),
    ]);
    order.overrides.extend(overrides);
    let (own, learned) = (base.clone(), name.clone());
    let finish = move |_, config: Arc<RunConfig>, checkpoints: PathBuf| -> Finish {
        Box::new(move || {
            // The examples are gone with the run.
            drop(data);
            let added = own.speak(|speaker| speaker.add(&learned, &config, &checkpoints));
            added.map_err(|error| format!("{error:#}"))
        })
    };
    let run = service.start(order, finish).await?;
    base.adapters().insert(name, run);
    Ok((StatusCode::CREATED, Json(json!({ "id": run }))).into_response())
}

async fn adapters(State(service): State<Service>, Path(id): Path<usize>) -> Result<Json<Value>, Failure> {
    let base = service.run(id).await?;
    let named = base.adapters().clone();
    let list = blocking(move || {
        base.speak(|speaker| {
            let state =
                |(name, run): (&String, &usize)| json!({ "name": name, "run": run, "ready": speaker.has(name) });
            Ok(named.iter().map(state).collect::<Value>())
        })
    });
    Ok(Json(list.await?))
}

async fn forget(
    State(service): State<Service>,
    Path((id, name)): Path<(usize, String)>,
) -> Result<StatusCode, Failure> {
    let base = service.run(id).await?;
    let missing = || (StatusCode::NOT_FOUND, format!("run {id} has no adapter `{name}` that is ready"));
    let is_ready = |name: String| {
        let base = base.clone();
        blocking(move || {
            base.speak(|speaker| Ok(speaker.has(&name).then(|| speaker.remove(&name)).transpose()?.is_some()))
        })
    };
    if !is_ready(name.clone()).await? {
        return Err(missing());
    }
    base.adapters().remove(&name);
    Ok(StatusCode::NO_CONTENT)
}

/// Body of `POST /runs/{id}/generate`. Without an adapter the model answers as its run has trained
/// it.
#[derive(serde::Deserialize)]
struct Question {
    prompt: String,
    adapter: Option<String>,
    max_tokens: usize,
}

async fn generate(State(service): State<Service>, Path(id): Path<usize>, Json(asked): Json<Question>) -> Answer {
    let base = service.run(id).await?;
    let answer = blocking(move || {
        base.speak(|speaker| {
            let missing = asked.adapter.as_ref().filter(|name| !speaker.has(name));
            if let Some(name) = missing {
                return Ok(Err((StatusCode::NOT_FOUND, format!("run {id} has no adapter `{name}` that is ready"))));
            }
            let answer = speaker.answer(asked.adapter.as_deref(), &asked.prompt, asked.max_tokens);
            Ok(answer.map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, format!("{error:#}"))))
        })
    });
    Ok(Json(json!({ "text": answer.await?? })).into_response())
}

/// Runs long work on a blocking thread of tokio.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    let failed = |error: String| (StatusCode::INTERNAL_SERVER_ERROR, error);
    done.map_err(|panic| failed(panic.to_string()))?.map_err(|error| failed(format!("{error:#}")))
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
        .route("/runs/{id}/adapters", get(adapters).post(teach))
        .route("/runs/{id}/adapters/{name}", delete(forget))
        .route("/runs/{id}/generate", post(generate))
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
