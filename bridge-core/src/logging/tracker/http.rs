//! Requests to a tracker's server.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::StatusCode;

use super::service::SendError;

/// The longest time that a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of an answer that are read.
const LONGEST_ANSWER: u64 = 1 << 20;

/// A server at a base address.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    base: String,
    authorization: Option<String>,
    headers: Vec<(String, String)>,
}

/// What a request sends.
pub(super) enum Body<'a> {
    /// Nothing, with what follows the question mark.
    Query(&'a str, &'a str),
    /// JSON.
    Json(&'a Value),
    /// A file's bytes, by PUT.
    File(&'a [u8]),
}

impl Client {
    pub fn new(base: &str, authorization: Option<String>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
        Self { agent: config.into(), base: base.trim_end_matches('/').to_owned(), authorization, headers: Vec::new() }
    }

    /// The same, which sends these headers too.
    pub fn with_headers(self, headers: Vec<(String, String)>) -> Self {
        Self { headers, ..self }
    }

    /// The answer of a request, if it is one of success.
    pub fn ask(&self, path: &str, body: Body<'_>) -> Result<Value, SendError> {
        let address = format!("{}/{path}", self.base);
        let own = self.authorization.iter().map(|value| ("Authorization", value.as_str()));
        let more = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers: Vec<(&str, &str)> = own.chain(more).collect();
        let answer = match body {
            Body::Query(name, value) => {
                let request = self.agent.get(&address).query(name, value);
                with(request, &headers).call()
            }
            Body::Json(value) => {
                let request = self.agent.post(&address).header("Content-Type", "application/json");
                with(request, &headers).send(value.to_string().as_bytes())
            }
            Body::File(bytes) => with(self.agent.put(&address), &headers).send(bytes),
        };
        // What the library says names no address.
        let mut answer = answer.map_err(|error| SendError::Later(format!("{}: {error}", self.base)))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        let text = text.map_err(|error| SendError::Later(format!("{}: {error}", self.base)))?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(json);
        }
        let said = json["message"].as_str().map_or_else(|| text.trim().chars().take(200).collect(), str::to_owned);
        let message = format!("{address} answers {status}: {said}");
        // A server that is busy or broken may be whole again; one that understands and refuses will refuse again.
        let is_passing = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT, StatusCode::UNAUTHORIZED].contains(&status);
        Err(if is_passing { SendError::Later(message) } else { SendError::Never(message) })
    }
}

fn with<B>(request: ureq::RequestBuilder<B>, headers: &[(&str, &str)]) -> ureq::RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}
