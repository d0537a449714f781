//! Non-blocking operations in progress. Implementations do not belong here.

use super::buffer::HostBuffer;
use super::error::CommError;

/// An implementation's handle to an operation that it has started, with a result `T`.
pub trait Pending<T = HostBuffer>: Send {
    /// True if [`Pending::wait`] would return at once.
    fn test(&mut self) -> Result<bool, CommError>;
    /// Blocks until the operation is complete.
    fn wait(self: Box<Self>) -> Result<T, CommError>;
}

/// A non-blocking operation with a result `T`, a buffer of host memory unless memory of a device is
/// moved. It owns its buffer until [`wait`](Self::wait) returns the result.
///
/// A dropped request still completes in the background, as other ranks need it, but its result is
/// lost.
#[must_use = "the result of the operation is returned by `wait`"]
pub struct Request<T = HostBuffer> {
    pending: Box<dyn Pending<T>>,
}

impl<T: Send + 'static> Request<T> {
    /// A request of an operation that has started.
    pub fn new(pending: impl Pending<T> + 'static) -> Self {
        Self { pending: Box::new(pending) }
    }

    /// A request that is complete already.
    pub fn ready(result: T) -> Self {
        Self::new(Ready(result))
    }

    /// True if the operation is complete or has failed, so that [`wait`](Self::wait) returns at
    /// once. Never blocks.
    ///
    /// # Errors
    /// If the operation has failed; `wait` then returns an error too.
    pub fn test(&mut self) -> Result<bool, CommError> {
        self.pending.test()
    }

    /// Blocks until the operation is complete and returns its result: for `start_send` the buffer
    /// that was sent, for the others the output of the blocking form.
    ///
    /// # Errors
    /// Errors of the blocking form.
    pub fn wait(self) -> Result<T, CommError> {
        self.pending.wait()
    }
}

impl<T> std::fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

struct Ready<T>(T);

impl<T: Send> Pending<T> for Ready<T> {
    fn test(&mut self) -> Result<bool, CommError> {
        Ok(true)
    }

    fn wait(self: Box<Self>) -> Result<T, CommError> {
        Ok(self.0)
    }
}
