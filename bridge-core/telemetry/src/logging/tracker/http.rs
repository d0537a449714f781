//! Requests to a tracker's server.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use ureq::Agent;
use ureq::http::StatusCode;

use super::service::SendError;
use crate::logging::terminal::printable;
use bridge_config::{REDACTED, redacted, split_credentials, with_variables};

/// The longest time that a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of an answer that are read.
const LONGEST_ANSWER: u64 = 1 << 20;

/// A server at a base address.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Address without credentials and query, or the reason that there is no address.
    base: Result<String, String>,
    /// The query of the address, which every request has.
    query: String,
    authorization: Option<String>,
    headers: Vec<(String, String)>,
}

/// Body of a request.
pub(super) enum Body<'a> {
    /// No body; a query string follows the question mark.
    Query(&'a str, &'a str),
    /// JSON.
    Json(&'a Value),
    /// A file's bytes, by PUT.
    File(&'a [u8]),
}

impl Client {
    /// A client of the server at `address`, in which `${NAME}` is an environment variable.
    /// Credentials in it, `user:password@`, count if no `authorization` is given. None of it is in
    /// messages.
    pub fn new(address: &str, authorization: Option<String>, headers: Vec<(String, String)>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
        let agent = config.into();
        let whole = match with_variables(address) {
            Ok(whole) => whole,
            Err(name) => {
                let why = format!("{}: the environment variable {name} is not set", redacted(address));
                return Self { agent, base: Err(why), query: String::new(), authorization, headers };
            }
        };
        let (scheme, place) = whole.split_once("://").unwrap_or(("http", &whole));
        let (place, query) = place.split_once('?').unwrap_or((place, ""));
        let (credentials, place) = split_credentials(place).map_or((None, place), |(c, place)| (Some(c), place));
        // A recipe that Bridge has written has its credentials in the environment.
        let credentials = credentials.filter(|credentials| *credentials != REDACTED).map(|credentials| {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let decoded =
                percent_decode_str(user).chain([b':']).chain(percent_decode_str(password)).collect::<Vec<u8>>();
            format!("Basic {}", BASE64_STANDARD.encode(decoded))
        });
        let base = Ok(format!("{scheme}://{}", place.trim_end_matches('/')));
        let is_known = |parameter: &&str| parameter.split_once('=').is_none_or(|(_, value)| value != REDACTED);
        let query = query.split('&').filter(is_known).collect::<Vec<_>>().join("&");
        Self { agent, base, query, authorization: authorization.or(credentials), headers }
    }

    /// The answer of a request, if it is one of success.
    pub fn ask(&self, path: &str, body: Body<'_>) -> Result<Value, SendError> {
        let base = self.base.as_ref().map_err(|why| SendError::Later(why.clone()))?;
        let shown = format!("{base}/{path}");
        let address = if self.query.is_empty() { shown.clone() } else { format!("{shown}?{}", self.query) };
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
        // Messages of the library name no address.
        let mut answer = answer.map_err(|error| SendError::Later(format!("{base}: {error}")))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        let text = text.map_err(|error| SendError::Later(format!("{base}: {error}")))?;
        let json = if text.trim().is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text) };
        let start = || printable(&text.trim().chars().take(200).collect::<String>()).into_owned();
        if status.is_success() {
            // A proxy or a page of logging in answers anything with success, and takes nothing.
            return json.map_err(|_| SendError::Later(format!("{shown} answers {status} without JSON: {}", start())));
        }
        let said = json.ok().and_then(|json| json["message"].as_str().map(|said| said.chars().take(1000).collect()));
        let said: String = said.map_or_else(start, |said: String| printable(&said).into_owned());
        let message = format!("{shown} answers {status}: {said}");
        // A server that is busy or broken may be whole again; one that understands and refuses will
        // refuse again.
        let is_passing = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT, StatusCode::UNAUTHORIZED].contains(&status);
        Err(if is_passing { SendError::Later(message) } else { SendError::Never(message) })
    }
}

fn with<B>(request: ureq::RequestBuilder<B>, headers: &[(&str, &str)]) -> ureq::RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}
