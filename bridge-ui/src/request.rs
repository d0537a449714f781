//! Requests of the page and their answers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

/// A path and its query.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub path: String,
    values: BTreeMap<String, String>,
}

impl Ask {
    pub fn new(path: &str, query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Self { path: path.to_owned(), values: pairs.map(|(key, value)| (decoded(key), decoded(value))).collect() }
    }

    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// A finite number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.text(name).parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// Percent-decodes a text. Bytes that are not UTF-8 become replacement characters.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| bytes.get(at + 1..at + 3)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        let (byte, length) = match (bytes[at], code) {
            (_, Some(byte)) => (byte, 3),
            (b'+', None) => (b' ', 1),
            (byte, None) => (byte, 1),
        };
        found.push(byte);
        at += length;
    }
    String::from_utf8_lossy(&found).into_owned()
}

/// True if a request names this server: by an address, or as `localhost`. A name of the network
/// that was made to point here is refused, since a page of that name could read the answers. A
/// server on the loopback interface has only its own addresses.
pub fn is_own_host(host: &str, own: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()),
        _ => (host, Some(80)),
    };
    if port != Some(own.port()) {
        return false;
    }
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback() || address == own.ip() || own.ip().is_unspecified())
}

/// Answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub body: Vec<u8>,
    /// Entity tag of the content.
    pub tag: Option<String>,
    /// Name of the file that it becomes.
    pub download: Option<String>,
}

impl Answer {
    pub fn content(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let tag = Some(format!("\"{:016x}\"", hasher.finish()));
        Self { status: 200, kind, body, tag, download: None }
    }

    pub fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::content("application/json", body),
            Err(error) => Self::refused(500, &error.to_string()),
        }
    }

    pub fn refused(status: u16, why: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n").into(), tag: None, download: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read() {
        let ask = Ask::new("/a", "name=losses%2Flm+loss&from=1.5&to=inf&odd=%zz%4&none&x=%ff");
        assert_eq!((ask.text("name"), ask.number("from"), ask.number("to")), ("losses/lm loss", Some(1.5), None));
        assert_eq!((ask.text("odd"), ask.text("none"), ask.text("x")), ("%zz%4", "", "\u{fffd}"));
    }

    #[test]
    fn only_own_hosts_are_served() {
        let own: SocketAddr = "127.0.0.1:8501".parse().unwrap();
        for host in ["127.0.0.1:8501", "localhost:8501", "LOCALHOST:8501", "[::1]:8501", "127.0.0.2:8501"] {
            assert!(is_own_host(host, own), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8501", "127.0.0.1", "127.0.0.1:1", "10.0.0.1:8501", "a@b:8501"] {
            assert!(!is_own_host(host, own), "{host}");
        }
        let all: SocketAddr = "0.0.0.0:8501".parse().unwrap();
        assert!(is_own_host("10.0.0.1:8501", all) && !is_own_host("evil.example:8501", all));
        assert!(is_own_host("localhost", "127.0.0.1:80".parse().unwrap()));
    }
}
