//! The only place that calls the MPI library: environment, communicator handles, and transfers that
//! own their memory.
//!
//! Every transfer is non-blocking and polled. Its buffers are on the heap and owned by the
//! [`Transfer`]. If it is dropped before it is complete, the buffers are leaked, because the
//! library may still write to them.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::thread::{self, ThreadId};

use mpi::ffi;

use crate::comm::buffer::HostBuffer;

/// An error message of the library.
#[derive(Clone, Debug)]
pub(super) struct RawError(pub String);

type Result<T> = std::result::Result<T, RawError>;

fn check(code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; 512];
    let mut len: c_int = 0;
    // SAFETY: the buffer is as long as MPI_MAX_ERROR_STRING or longer in the implementations we
    // build with (256 and 512).
    let explained = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    let message = match explained {
        0 => String::from_utf8_lossy(&text[..(len.max(0) as usize).min(text.len())]).into_owned(),
        _ => format!("error code {code}"),
    };
    Err(RawError(message))
}

/// The initialized library. Dropped after everything that uses it.
#[derive(Debug)]
pub(super) struct Environment {
    thread: ThreadId,
}

/// The result of `MPI_Init_thread`.
pub(super) enum Started {
    Yes(Environment),
    /// MPI was already initialized, by this or other code.
    Already,
    /// MPI is initialized, but does not support concurrent calls from several threads.
    NoThreads(Environment),
}

impl Environment {
    pub fn start() -> Result<Started> {
        let (mut initialized, mut provided): (c_int, c_int) = (0, 0);
        // SAFETY: may be called at any time; the pointer is to a live integer.
        check(unsafe { ffi::MPI_Initialized(&mut initialized) })?;
        if initialized != 0 {
            return Ok(Started::Already);
        }
        // SAFETY: MPI is not initialised yet; null arguments are allowed since MPI 2.
        let code = unsafe {
            ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), ffi::RSMPI_THREAD_MULTIPLE, &mut provided)
        };
        check(code)?;
        let environment = Self { thread: thread::current().id() };
        // SAFETY: constants of the bindings' C part, never written.
        let multiple = unsafe { ffi::RSMPI_THREAD_MULTIPLE };
        Ok(if provided < multiple { Started::NoThreads(environment) } else { Started::Yes(environment) })
    }

    /// Finalizes MPI. Only the thread that initialized it may do this. On another thread, or after
    /// a failure, this is left to `mpirun`, which ends the job when a process exits without
    /// finalizing.
    pub fn finish(&self) {
        if thread::current().id() == self.thread {
            // SAFETY: MPI is initialised, this is the initialising thread, and this runs once, when
            // nothing uses MPI any more.
            let _ = unsafe { ffi::MPI_Finalize() };
        }
    }
}

/// Ends all processes of the job.
pub(super) fn abort_job(code: c_int) {
    // SAFETY: called after initialisation; MPI_Abort may be called from any thread at any time.
    unsafe {
        ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
    }
}

/// A communicator of the library.
#[derive(Debug)]
pub(super) struct RawComm {
    handle: ffi::MPI_Comm,
}

// SAFETY: MPI runs with MPI_THREAD_MULTIPLE, under which a handle may be used from any thread. (It
// is a pointer in some libraries.)
unsafe impl Send for RawComm {}
// SAFETY: as above; this crate never runs two collectives at once on one handle.
unsafe impl Sync for RawComm {}

impl RawComm {
    /// A private copy of the world.
    pub fn world() -> Result<Self> {
        // SAFETY: a constant of the bindings' C part.
        Self::duplicate_of(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    pub fn duplicate(&self) -> Result<Self> {
        Self::duplicate_of(self.handle)
    }

    fn duplicate_of(original: ffi::MPI_Comm) -> Result<Self> {
        let mut handle = original;
        // SAFETY: the original is a valid communicator, the pointer is to a live handle.
        check(unsafe { ffi::MPI_Comm_dup(original, &mut handle) })?;
        Self::returning_errors(handle)
    }

    /// `None` for a rank without a color.
    pub fn split(&self, color: Option<c_int>, key: c_int) -> Result<Option<Self>> {
        let mut handle = self.handle;
        // SAFETY: constants of the bindings' C part.
        let (undefined, null) = unsafe { (ffi::RSMPI_UNDEFINED, ffi::RSMPI_COMM_NULL) };
        // SAFETY: the handle is a valid communicator, the pointer is to a live handle.
        check(unsafe { ffi::MPI_Comm_split(self.handle, color.unwrap_or(undefined), key, &mut handle) })?;
        if handle == null {
            return Ok(None);
        }
        Self::returning_errors(handle).map(Some)
    }

    fn returning_errors(handle: ffi::MPI_Comm) -> Result<Self> {
        // SAFETY: the handle is a valid communicator, the error handler a constant.
        check(unsafe { ffi::MPI_Comm_set_errhandler(handle, ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(Self { handle })
    }

    pub fn rank(&self) -> Result<usize> {
        let mut rank: c_int = 0;
        // SAFETY: the handle is a valid communicator, the pointer is to a live integer.
        check(unsafe { ffi::MPI_Comm_rank(self.handle, &mut rank) })?;
        Ok(rank as usize)
    }

    pub fn size(&self) -> Result<usize> {
        let mut size: c_int = 0;
        // SAFETY: the handle is a valid communicator, the pointer is to a live integer.
        check(unsafe { ffi::MPI_Comm_size(self.handle, &mut size) })?;
        Ok(size as usize)
    }

    /// The ranks of this communicator as ranks of `MPI_COMM_WORLD`.
    pub fn world_ranks(&self) -> Result<Vec<usize>> {
        let ranks: Vec<c_int> = (0..self.size()? as c_int).collect();
        let mut world_ranks = vec![0; ranks.len()];
        let (mut own, mut world) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both communicators are valid; each pointer is to room for a handle.
        check(unsafe { ffi::MPI_Comm_group(self.handle, own.as_mut_ptr()) })?;
        // SAFETY: as above.
        check(unsafe { ffi::MPI_Comm_group(ffi::RSMPI_COMM_WORLD, world.as_mut_ptr()) })?;
        // SAFETY: the two calls above have written the handles.
        let (mut own, mut world) = unsafe { (own.assume_init(), world.assume_init()) };
        let (count, to) = (ranks.len() as c_int, world_ranks.as_mut_ptr());
        // SAFETY: both groups are valid; `ranks` and `world_ranks` have `count` elements.
        let translated = unsafe { ffi::MPI_Group_translate_ranks(own, count, ranks.as_ptr(), world, to) };
        for group in [&mut own, &mut world] {
            // SAFETY: a valid group that is not used again.
            check(unsafe { ffi::MPI_Group_free(group) })?;
        }
        check(translated)?;
        Ok(world_ranks.into_iter().map(|rank| rank as usize).collect())
    }

    /// Frees the communicator; the handle is not used again. Transfers in progress still complete.
    pub fn free(&mut self) {
        // SAFETY: the handle is valid, and the owner drops it right after this.
        let _ = unsafe { ffi::MPI_Comm_free(&mut self.handle) };
    }
}

/// The kind of a transfer; counts are in bytes.
pub(super) enum Kind {
    Send {
        to: usize,
        tag: u32,
    },
    Recv {
        from: usize,
        tag: u32,
    },
    Broadcast {
        root: usize,
    },
    /// Equal parts: each rank contributes as many bytes as `input` has.
    AllGather,
    /// Equal parts: `input` is as long as `output`.
    AllToAll,
    AllToAllUneven {
        send: Vec<c_int>,
        recv: Vec<c_int>,
    },
}

/// A transfer in progress, with the memory that it reads and writes.
pub(super) struct Transfer {
    request: ffi::MPI_Request,
    input: ManuallyDrop<HostBuffer>,
    output: ManuallyDrop<HostBuffer>,
    /// Counts and offsets of an uneven exchange, which the library reads until the end.
    tables: ManuallyDrop<[Vec<c_int>; 4]>,
    complete: bool,
}

// SAFETY: MPI runs with MPI_THREAD_MULTIPLE, under which a request may be tested from any thread,
// one at a time (`&mut self`).
unsafe impl Send for Transfer {}

fn offsets(counts: &[c_int]) -> Vec<c_int> {
    let running = counts.iter().scan(0, |next, count| {
        let start = *next;
        *next += count;
        Some(start)
    });
    running.collect()
}

impl Transfer {
    /// Starts a transfer. `input` is sent, `output` receives; a broadcast uses only `output`. The
    /// length of each must fit a `c_int`.
    pub fn start(comm: &RawComm, kind: Kind, input: HostBuffer, output: HostBuffer) -> Result<Self> {
        let tables = match &kind {
            Kind::AllToAllUneven { send, recv } => [send.clone(), offsets(send), recv.clone(), offsets(recv)],
            _ => [const { Vec::new() }; 4],
        };
        let mut transfer = Self {
            // SAFETY: a constant of the bindings' C part.
            request: unsafe { ffi::RSMPI_REQUEST_NULL },
            input: ManuallyDrop::new(input),
            output: ManuallyDrop::new(output),
            tables: ManuallyDrop::new(tables),
            complete: true,
        };
        let code = transfer.call(comm, &kind);
        check(code)?;
        transfer.complete = false;
        Ok(transfer)
    }

    fn call(&mut self, comm: &RawComm, kind: &Kind) -> c_int {
        let mut view = self.output.view_mut();
        let output = view.bytes_mut();
        // The address of an empty Rust buffer can be 1, which is MPI_IN_PLACE in Open MPI.
        let out = if output.is_empty() { ptr::null_mut() } else { output.as_mut_ptr().cast::<c_void>() };
        let out_len = output.len() as c_int;
        let input = self.input.view().bytes();
        let inp = if input.is_empty() { ptr::null() } else { input.as_ptr().cast::<c_void>() };
        let in_len = input.len() as c_int;
        let request = &mut self.request;
        let [send, send_at, recv, recv_at] = &*self.tables;
        let handle = comm.handle;
        // SAFETY: the pointers are to heap memory owned by `self`, which `Drop` keeps until the
        // request is complete; the byte counts match that memory (callers give matching lengths on
        // all ranks after agreeing on them); the datatype is a constant.
        unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            match *kind {
                Kind::Send { to, tag } => ffi::MPI_Isend(inp, in_len, byte, to as c_int, tag as c_int, handle, request),
                Kind::Recv { from, tag } => {
                    ffi::MPI_Irecv(out, out_len, byte, from as c_int, tag as c_int, handle, request)
                }
                Kind::Broadcast { root } => ffi::MPI_Ibcast(out, out_len, byte, root as c_int, handle, request),
                Kind::AllGather => ffi::MPI_Iallgather(inp, in_len, byte, out, in_len, byte, handle, request),
                Kind::AllToAll => {
                    let part = comm.size().map_or(0, |size| in_len / size as c_int);
                    ffi::MPI_Ialltoall(inp, part, byte, out, part, byte, handle, request)
                }
                Kind::AllToAllUneven { .. } => ffi::MPI_Ialltoallv(
                    inp,
                    send.as_ptr(),
                    send_at.as_ptr(),
                    byte,
                    out,
                    recv.as_ptr(),
                    recv_at.as_ptr(),
                    byte,
                    handle,
                    request,
                ),
            }
        }
    }

    /// Lets the library make progress, and returns whether the transfer is complete.
    pub fn poll(&mut self) -> Result<bool> {
        if self.complete {
            return Ok(true);
        }
        let mut flag: c_int = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: the request is active; the status is written only.
        let code = unsafe { ffi::MPI_Test(&mut self.request, &mut flag, status.as_mut_ptr()) };
        // After an error (such as a message that is too long) the request is no longer active
        // either.
        self.complete = flag != 0 || code != 0;
        check(code)?;
        Ok(self.complete)
    }

    /// The buffers of a complete transfer. Panics if it is not complete.
    pub fn into_buffers(mut self) -> (HostBuffer, HostBuffer) {
        assert!(self.complete, "the library still uses the buffers");
        // SAFETY: taken once: `self` is forgotten, so that `Drop` does not see them again.
        let buffers = unsafe { (ManuallyDrop::take(&mut self.input), ManuallyDrop::take(&mut self.output)) };
        // SAFETY: as above.
        drop(unsafe { ManuallyDrop::take(&mut self.tables) });
        std::mem::forget(self);
        buffers
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.complete {
            // SAFETY: dropped once, and the library no longer uses the memory.
            unsafe {
                ManuallyDrop::drop(&mut self.input);
                ManuallyDrop::drop(&mut self.output);
                ManuallyDrop::drop(&mut self.tables);
            }
        }
        // Otherwise the memory stays allocated: the library may write to it at any time.
    }
}
