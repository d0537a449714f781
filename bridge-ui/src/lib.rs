//! The page of `bridge ui`: a server of three files and of the figures of runs, and a reader that
//! follows the runs' files in the background. It needs neither Burn nor the training loop.

mod api;
mod details;
mod index;
mod library;
mod request;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::Response;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

pub use crate::library::Library;
use crate::request::{Answer, Ask, is_own_host};

/// Security policy of all answers: only the page's own files may run or be loaded, and no other
/// page may read or frame them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Maximum number of open connections; further ones wait.
const CONNECTIONS: usize = 256;
/// Time for the head of a request, and between two requests of a connection.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Total time of a connection. Clients open another one.
const CONNECTION_LIMIT: Duration = Duration::from_secs(120);
/// Bytes of a request's head.
const LARGEST_HEAD: usize = 64 << 10;
/// Time until the next connection is accepted after one that could not be.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Server {
    library: Arc<Library>,
    address: SocketAddr,
}

/// Serves the page until the process receives a signal. Fails if the server cannot be set up.
pub fn serve(listener: TcpListener, library: &Arc<Library>) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let reader = Arc::clone(library);
    // The thread ends with the process.
    std::thread::Builder::new().name("reader".to_owned()).spawn(move || reader.follow())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server { library: Arc::clone(library), address };
    let result = runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            ended = answer(listener, Router::new().fallback(handle).with_state(server)) => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    });
    // A request that is being answered is not waited for.
    runtime.shutdown_background();
    result
}

/// Serves connections for ever, a bounded number at a time.
async fn answer(listener: tokio::net::TcpListener, router: Router) -> std::io::Result<()> {
    let open = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&open).acquire_owned().await else { return Ok(()) };
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            // Too many open files, or a client that has left already.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(LARGEST_HEAD);
            // A client that disconnects early is not an error.
            let _ = tokio::time::timeout(CONNECTION_LIMIT, http.serve_connection(TokioIo::new(client), service)).await;
            drop(place);
        });
    }
}

async fn handle(State(server): State<Server>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let host = text(header::HOST).or_else(|| uri.authority().map(ToString::to_string)).unwrap_or_default();
    let known = text(header::IF_NONE_MATCH);
    let is_head = method == Method::HEAD;
    let work = move || {
        if !is_own_host(&host, server.address) {
            let text = format!("this server is no {host:?}: open the address that `bridge ui` printed");
            return Answer::refused(403, &text);
        }
        if !matches!(method, Method::GET | Method::HEAD) {
            return Answer::refused(405, "only GET and HEAD are answered");
        }
        api::answer(&server.library, &Ask::new(uri.path(), uri.query().unwrap_or_default()))
    };
    let failed = |_| Answer::refused(500, "the answer could not be made");
    let answer = tokio::task::spawn_blocking(work).await.unwrap_or_else(failed);
    let is_known = answer.status == 200 && known.is_some_and(|known| answer.tag.as_deref() == Some(known.as_str()));
    let mut response = Response::builder()
        .status(if is_known { 304 } else { answer.status })
        .header(header::CONTENT_TYPE, answer.kind)
        .header(header::CONTENT_SECURITY_POLICY, POLICY)
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header(header::REFERRER_POLICY, "no-referrer")
        .header("cross-origin-resource-policy", "same-origin")
        .header(header::CACHE_CONTROL, "no-cache");
    if let Some(tag) = &answer.tag {
        response = response.header(header::ETAG, tag);
    }
    if let Some(name) = &answer.download {
        response = response.header(header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\""));
    }
    let body = if is_known || is_head { Body::empty() } else { Body::from(answer.body) };
    // The parts of the head are texts of this program and names that were checked.
    response.body(body).unwrap_or_default()
}
