//! HTTP for the store's client by the blocking client that the workspace has, so that there is one
//! of them, with one TLS library. Bodies are bounded: uploads go in parts and downloads in ranges,
//! so an answer is read as a whole.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use ureq::{Agent, Error};

/// The longest answer that is read: a range of a file, or a page of a list.
const LONGEST_ANSWER: u64 = 256 << 20;

/// Makes clients whose requests end after `timeout`.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) timeout: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|allowed| allowed == "true");
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(!plain)
            .max_redirects(0)
            .timeout_connect(Some(self.timeout.min(Duration::from_secs(10))))
            .timeout_global(Some(self.timeout));
        Ok(HttpClient::new(Service(config.build().into())))
    }
}

#[derive(Debug)]
struct Service(Agent);

/// Type that the trait's macro makes of an asynchronous method.
type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'life0, 'async_trait>(&'life0 self, request: HttpRequest) -> Answer<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let agent = self.0.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let request = http::Request::from_parts(parts, body);
            let answer = tokio::task::spawn_blocking(move || exchange(&agent, request));
            answer.await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?
        })
    }
}

fn exchange(agent: &Agent, request: http::Request<bytes::Bytes>) -> Result<HttpResponse, HttpError> {
    let without_body = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    let answer = if without_body {
        agent.run(request.map(drop))
    } else {
        let (parts, body) = request.into_parts();
        agent.run(http::Request::from_parts(parts, &body[..]))
    };
    let (parts, mut body) = answer.map_err(failed)?.into_parts();
    let bytes = body.with_config().limit(LONGEST_ANSWER).read_to_vec().map_err(failed)?;
    Ok(HttpResponse::from_parts(parts, bytes.into()))
}

/// The kind says whether the request is sent again.
fn failed(error: Error) -> HttpError {
    let kind = match &error {
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::ConnectionFailed | Error::HostNotFound => HttpErrorKind::Connect,
        Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
            ErrorKind::TimedOut => HttpErrorKind::Timeout,
            _ => HttpErrorKind::Interrupted,
        },
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
