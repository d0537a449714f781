//! Secrets in texts and settings: which they are, and texts without them. Recipes are written to
//! checkpoints, logs and trackers without secrets; a reference `${NAME}` to an environment variable
//! is not a secret and stays.

use std::borrow::Cow;

use super::node::{Data, Entry, Node};

/// Text in the place of a secret.
pub const REDACTED: &str = "***";

/// Ends of names of settings that hold a secret.
const SECRET_NAMES: [&str; 19] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "api_key",
    "apikey",
    "access_key",
    "secret_key",
    "private_key",
    "account_key",
    "access_token",
    "auth_token",
    "api_token",
    "hf_token",
    "bearer_token",
    "refresh_token",
    "session_token",
    "credentials",
    "authorization",
];

/// Parts of names of query parameters whose values are secrets.
const SECRET_PARAMETERS: [&str; 9] =
    ["token", "key", "secret", "password", "passwd", "pwd", "sig", "auth", "credential"];

/// True if `text` is a reference to an environment variable, `${NAME}`.
fn is_reference(text: &str) -> bool {
    text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).is_some_and(|name| !name.contains(['$', '{', '}']))
}

/// True if a setting of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or_default().to_lowercase().replace('-', "_");
    SECRET_NAMES.iter().any(|secret| name.ends_with(secret)) || name == "token"
}

/// `text` without the credentials and secret parameters of the URLs in it.
pub fn redacted(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, url) = rest.split_at(start + 3);
        safe.push_str(before);
        let end = url.find(|c: char| c.is_whitespace() || "\"'`<>".contains(c)).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        push_redacted_url(url, &mut safe);
        rest = after;
    }
    safe.push_str(rest);
    if safe == text { Cow::Borrowed(text) } else { Cow::Owned(safe) }
}

/// Appends the part of a URL after `://` without secrets.
fn push_redacted_url(url: &str, safe: &mut String) {
    let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    safe.push_str(&match split_credentials(place) {
        Some((credentials, place)) if !is_public(credentials) => format!("{REDACTED}@{place}"),
        _ => place.to_owned(),
    });
    let Some(query) = query else { return };
    let parameter = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if !is_reference(value) && is_secret_parameter(name) => format!("{name}={REDACTED}"),
        _ => parameter.to_owned(),
    };
    safe.push('?');
    safe.push_str(&query.split('&').map(parameter).collect::<Vec<_>>().join("&"));
}

fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_PARAMETERS.iter().any(|secret| name.contains(secret))
}

/// Splits the part of an address after `://` into credentials and the rest.
pub fn split_credentials(place: &str) -> Option<(&str, &str)> {
    let authority = &place[..place.find(['/', '#']).unwrap_or(place.len())];
    if let Some(at) = authority.rfind('@') {
        return Some((&place[..at], &place[at + 1..]));
    }
    // A password may hold a slash that its user has not encoded. Then the part before the slash is
    // not a host and port.
    let (_, port) = authority.rsplit_once(':')?;
    let is_port = port.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit()) || authority.ends_with(']');
    let at = place.rfind('@').filter(|_| !is_port)?;
    Some((&place[..at], &place[at + 1..]))
}

/// True if credentials hold no secret: a reference to a variable, or a user with one as password.
fn is_public(credentials: &str) -> bool {
    is_reference(credentials) || credentials.split_once(':').is_some_and(|(_, password)| is_reference(password))
}

/// `text` with the values of the environment variables that it refers to as `${NAME}`.
///
/// # Errors
/// The name of a variable that is not set.
pub fn with_variables(text: &str) -> Result<String, String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        let Some((name, after)) = behind.split_once('}') else { break };
        whole.push_str(before);
        whole.push_str(&std::env::var(name).map_err(|_| name.to_owned())?);
        rest = after;
    }
    Ok(whole + rest)
}

/// An argument of a command line without secrets: `key=value`, or a text with URLs.
pub fn redacted_argument(argument: &str) -> Cow<'_, str> {
    match argument.split_once('=') {
        Some((key, value)) => Cow::Owned(format!("{key}={}", redacted_value(key.trim(), value))),
        None => redacted(argument),
    }
}

/// The text `value` of the setting with the dotted key `key` without secrets.
pub fn redacted_value<'v>(key: &str, value: &'v str) -> Cow<'v, str> {
    if is_secret_key(key) && !is_reference(value.trim()) { Cow::Borrowed(REDACTED) } else { redacted(value) }
}

/// Table with free names, such as `token` or `key` for what a tracker should show.
const FREE_TABLE: &str = "mlflow_tags";

/// True if the value of a setting with this dotted key is a secret. In a free table any name with
/// `token`, `key`, `secret` or `password` in it is the name of a secret.
fn is_secret_key(key: &str) -> bool {
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    is_secret_name(name) || table.ends_with(FREE_TABLE) && is_secret_parameter(name)
}

impl Node {
    /// The tree of a recipe without secrets: those of URLs, and strings under the names of secrets.
    #[must_use]
    pub fn redacted(&self) -> Self {
        self.redacted_at("")
    }

    /// The value of the setting `key` without secrets.
    pub(crate) fn redacted_at(&self, key: &str) -> Self {
        let data = match &self.data {
            Data::String(text) => Data::String(redacted_value(key, text).into_owned()),
            Data::List(items) => Data::List(items.iter().map(|item| item.redacted_at(key)).collect()),
            Data::Table(entries) => {
                let inner = |entry: &Entry| entry.node.redacted_at(&format!("{key}.{}", entry.key));
                Data::Table(entries.iter().map(|entry| Entry { node: inner(entry), ..entry.clone() }).collect())
            }
            other => other.clone(),
        };
        Self { data, location: self.location.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_their_secrets_and_nothing_else() {
        for (text, safe) in [
            ("http://user:pw@host:5000/a", "http://***@host:5000/a"),
            ("https://TOKEN@host", "https://***@host"),
            ("http://u:p@ss@host/x", "http://***@host/x"),
            ("http://u:p/w@host/x", "http://***@host/x"),
            (
                "see \"http://u:p@h\" and https://v:q@i/j?token=t&page=2.",
                "see \"http://***@h\" and https://***@i/j?token=***&page=2.",
            ),
            ("s3://bucket/a?X-Amz-Signature=abc&region=x", "s3://bucket/a?X-Amz-Signature=***&region=x"),
        ] {
            assert_eq!(redacted(text), safe);
        }
        for same in [
            "http://127.0.0.1:9",
            "http://[::1]:9/a@b",
            "https://host/@user/x",
            "http://user:${PASSWORD}@host",
            "https://${TOKEN}@host?key=${KEY}",
            "no url: user:pw@host",
            "http://",
            "://@",
        ] {
            assert_eq!(redacted(same), if same == "://@" { "://***@" } else { same });
        }
    }

    #[test]
    fn names_of_secrets_are_not_names_of_settings() {
        for secret in ["password", "comet_api_key", "a.hf_token", "AWS_SECRET_ACCESS_KEY", "client-secret", "token"] {
            assert!(is_secret_name(secret), "{secret}");
        }
        for (section, setting) in
            [("dataset", "label_key"), ("dataset", "source_jsonl_key"), ("tokenizer", "pad_token")]
        {
            assert!(!is_secret_name(setting), "{section}.{setting}");
        }
    }

    #[test]
    fn recipes_lose_their_secrets_and_nothing_else() {
        let text = |key: &str, value: &str| Entry::new(key, Node::string(value));
        let table = |entries| Node::from(Data::Table(entries));
        let tags = |token: &str| table(vec![text("my_token", token), text("team", "a")]);
        let recipe = |token: &str, key: &str, url: &str| {
            let logger = vec![text("comet_api_key", key), Entry::new("mlflow_tags", tags(token)), text("uri", url)];
            table(vec![Entry::new("logger", table(logger)), text("label_key", "output")])
        };
        let safe = recipe("***", "***", "http://***@host");
        assert_eq!(recipe("t", "k", "http://a:b@host").redacted(), safe);
        assert_eq!(safe.redacted(), safe);
        let references = recipe("${A}", "${B}", "http://a:${C}@host");
        assert_eq!(references.redacted(), references);
        assert_eq!(redacted_argument("logger.comet_api_key=k"), "logger.comet_api_key=***");
        assert_eq!(redacted_argument("logger.x=http://a:b@host"), "logger.x=http://***@host");
    }

    #[test]
    fn variables_are_filled_in() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(with_variables("a${PATH}b").unwrap(), format!("a{path}b"));
        assert_eq!(with_variables("${BRIDGE_NOT_SET_HERE}").unwrap_err(), "BRIDGE_NOT_SET_HERE");
        assert_eq!(with_variables("$a {b} ${").unwrap(), "$a {b} ${");
    }
}
