//! A small HTTP server on a thread of its own, for pages of a run. One thread polls all
//! connections, so that no client delays another client or the end of the run. Each connection has
//! a total deadline, a bounded request head and one answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Total time of a connection: request and answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Sleep between two polls.
const INTERVAL: Duration = Duration::from_millis(20);
/// Limit of a request head in bytes.
const LONGEST_HEAD: usize = 8192;
/// Limit of open connections. Beyond it the oldest connection is closed.
const MOST_CONNECTIONS: usize = 64;

/// The first line of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// `GET` and so on.
    pub method: &'a str,
    /// Requested path, without the query string.
    pub path: &'a str,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number and words of the status.
    pub status: &'static str,
    /// The content's type.
    pub kind: &'static str,
    /// Further header lines, each with its end.
    pub headers: &'static str,
    /// The content; of a `HEAD` request only its length is sent.
    pub body: String,
}

impl Answer {
    /// Plain text.
    pub fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", headers: "", body: body.into() }
    }
}

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Server {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Server {
    /// Serves `answer` on the address of `listener`, on a thread called `name`.
    ///
    /// # Errors
    /// If the listener or the thread cannot be set up.
    pub fn start(
        listener: TcpListener,
        name: &str,
        mut answer: impl FnMut(Request<'_>) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut connections: Vec<Connection> = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                // A client beyond the limit waits for the next poll, after the oldest connection is
                // closed.
                for _ in 0..MOST_CONNECTIONS {
                    let Ok((client, _)) = listener.accept() else { break };
                    connections.extend(Connection::new(client));
                }
                let excess = connections.len().saturating_sub(MOST_CONNECTIONS);
                connections.drain(..excess);
                connections.retain_mut(|connection| connection.advance(&mut answer));
                std::thread::sleep(INTERVAL);
            }
        })?;
        Ok(Self { is_over, thread: Some(thread), address })
    }

    /// Address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Frees the port.
    pub fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread holds no state that a panic could have left incomplete.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An open connection of one request.
struct Connection {
    client: TcpStream,
    deadline: Instant,
    /// Bytes of the request head so far.
    head: Vec<u8>,
    /// The answer's bytes, and how many of them are sent.
    answer: Option<(Vec<u8>, usize)>,
    /// True if the answer is sent and the client has not closed its side yet.
    is_draining: bool,
}

impl Connection {
    /// A connection to `client`; none if the client has left already.
    fn new(client: TcpStream) -> Option<Self> {
        client.set_nonblocking(true).ok()?;
        let deadline = Instant::now() + DEADLINE;
        Some(Self { client, deadline, head: Vec::new(), answer: None, is_draining: false })
    }

    /// Reads and writes without blocking. False if the connection is over.
    fn advance(&mut self, answer: &mut impl FnMut(Request<'_>) -> Answer) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        match self.try_advance(answer) {
            Ok(is_open) => is_open,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    fn try_advance(&mut self, answer: &mut impl FnMut(Request<'_>) -> Answer) -> io::Result<bool> {
        let mut part = [0; 1024];
        while self.answer.is_none() {
            let count = self.client.read(&mut part)?;
            self.head.extend_from_slice(&part[..count]);
            let is_whole = self.head.windows(4).any(|end| end == b"\r\n\r\n");
            if is_whole || count == 0 || self.head.len() >= LONGEST_HEAD {
                self.answer = Some((reply(&self.head, answer), 0));
            }
        }
        while let Some((bytes, sent)) = self.answer.as_mut().filter(|(bytes, sent)| *sent < bytes.len()) {
            match self.client.write(&bytes[*sent..])? {
                0 => return Ok(false),
                count => *sent += count,
            }
        }
        if !self.is_draining {
            self.client.shutdown(std::net::Shutdown::Write)?;
            self.is_draining = true;
        }
        // Closing with unread bytes would reset the connection before the client has read the
        // answer. A client that sends without end is given up at the deadline; each poll reads a
        // bounded part.
        for _ in 0..64 {
            if self.client.read(&mut part)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The bytes of the answer to a request head.
fn reply(head: &[u8], answer: &mut impl FnMut(Request<'_>) -> Answer) -> Vec<u8> {
    let head = String::from_utf8_lossy(head);
    let words: Vec<&str> = head.lines().next().unwrap_or_default().split(' ').collect();
    let (method, answer) = match words.as_slice() {
        [method, target, _version, ..] => {
            let path = target.split('?').next().unwrap_or_default();
            (*method, answer(Request { method, path }))
        }
        _ => ("", Answer::text("400 Bad Request", "")),
    };
    let Answer { status, kind, headers, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n"
    );
    let body = if method == "HEAD" { String::new() } else { body };
    [head.into_bytes(), body.into_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server::start(listener, "test", |request| Answer::text("200 OK", request.path)).unwrap()
    }

    fn ask(address: SocketAddr) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(b"GET /page?x HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn clients_that_never_finish_delay_neither_others_nor_the_end() {
        let mut server = serving();
        let mut slow: Vec<TcpStream> =
            (0..3 * MOST_CONNECTIONS).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        // Some are dropped already, beyond the bound.
        slow.iter_mut().for_each(|client| drop(client.write_all(b"G")));
        let begun = Instant::now();
        assert!(ask(server.address()).ends_with("\r\n\r\n/page"));
        server.stop();
        assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_request_that_dribbles_is_closed_at_its_deadline() {
        let server = serving();
        let mut client = TcpStream::connect(server.address()).unwrap();
        let begun = Instant::now();
        while client.write_all(b"G").is_ok() {
            assert!(begun.elapsed() < 3 * DEADLINE);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    #[test]
    fn heads_are_bounded() {
        let server = serving();
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.write_all(&[b'G'; LONGEST_HEAD]).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    }
}
