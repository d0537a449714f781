//! A small HTTP server on a thread of its own, for pages of a run: one request at a time, and a connection for each. What is answered is the
//! caller's matter.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a client may take to ask, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks for clients, or for the end.
const INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 8192;

/// The first line of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// `GET` and so on.
    pub method: &'a str,
    /// What is asked for, without what follows a question mark.
    pub path: &'a str,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
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

    /// To methods other than `GET` and `HEAD`.
    pub fn not_allowed() -> Self {
        Self { headers: "Allow: GET, HEAD\r\n", ..Self::text("405 Method Not Allowed", "") }
    }
}

/// A server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Server {
    /// Serves `answer` at what `listener` is bound to, on a thread called `name`.
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
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    // A client that leaves early is no concern of the run.
                    Ok((client, _)) => drop(serve(client, &mut answer)),
                    Err(_) => std::thread::sleep(INTERVAL),
                }
            }
        })?;
        Ok(Self { is_over, thread: Some(thread), address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Frees the port.
    pub fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have left half done.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers one request, and closes.
fn serve(mut client: TcpStream, answer: &mut impl FnMut(Request<'_>) -> Answer) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < LONGEST_HEAD {
        match client.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
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
    client.write_all(head.as_bytes())?;
    if method != "HEAD" {
        client.write_all(body.as_bytes())?;
    }
    client.flush()
}
