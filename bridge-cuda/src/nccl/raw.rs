//! The only calls into NCCL. Communicators here are non-blocking: a call may return while it is
//! still in progress, and is then polled, so that nothing waits forever for a lost rank.

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::nccl::sys::{
    self, cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

use super::carrier::CarrierError;
use bridge_dist::comm::transport::Pace;
use bridge_dist::comm::{DType, ReduceOp};

/// Bytes of a unique id.
pub(super) const ID_BYTES: usize = 128;

/// Time limit of finalizing a communicator before it is aborted, and of an abort.
pub(super) const GOODBYE: Duration = Duration::from_secs(5);

/// An NCCL communicator, for one thread at a time.
pub(super) struct RawComm {
    /// Null after it was aborted.
    comm: ncclComm_t,
    timeout: Duration,
}

// SAFETY: NCCL does not bind a communicator to a thread; it only requires one call at a time, and
// every call here needs `&mut`.
unsafe impl Send for RawComm {}

/// The address and number of the elements of a call on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub pointer: CUdeviceptr,
    pub dtype: DType,
    pub len: usize,
}

impl Span {
    fn input(self) -> *const c_void {
        self.pointer as *const c_void
    }

    fn output(self) -> *mut c_void {
        self.pointer as *mut c_void
    }
}

/// The unique id by which the ranks of a new communicator find each other; rank 0 creates it.
pub(super) fn unique_id() -> Result<[u8; ID_BYTES], CarrierError> {
    let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: `id` is a valid place for the result.
    check(ptr::null_mut(), unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
    Ok(id.internal.map(|byte| byte as u8))
}

impl RawComm {
    /// Joins the communicator `id`, on the device whose context is current. Returns when all ranks
    /// have.
    pub fn join(id: [u8; ID_BYTES], rank: c_int, size: c_int, timeout: Duration) -> Result<Self, CarrierError> {
        let id = ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut config = configuration();
        let mut made = Self { comm: ptr::null_mut(), timeout };
        // SAFETY: the places are valid; the library copies the configuration.
        let result = unsafe { sys::ncclCommInitRankConfig(&raw mut made.comm, size, id, rank, &raw mut config) };
        match made.settle(result) {
            Ok(()) => Ok(made),
            Err(error) => {
                // The communicator was never completely created, so it cannot be finalized.
                made.abort();
                Err(error)
            }
        }
    }

    /// Waits until a call is no longer in progress.
    fn settle(&mut self, mut result: ncclResult_t) -> Result<(), CarrierError> {
        let (start, mut pace) = (Instant::now(), Pace::default());
        while result == ncclResult_t::ncclInProgress {
            if start.elapsed() >= self.timeout {
                return Err(CarrierError::Stalled(self.timeout));
            }
            pace.pause();
            result = self.state()?;
        }
        check(self.comm, result)
    }

    fn state(&mut self) -> Result<ncclResult_t, CarrierError> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: `comm` is a live communicator, and `state` a valid place.
        check(self.comm, unsafe { sys::ncclCommGetAsyncError(self.comm, &raw mut state) })?;
        Ok(state)
    }

    /// Checks whether the library has detected a failure, its own or a peer's.
    pub fn check_health(&mut self) -> Result<(), CarrierError> {
        if self.comm.is_null() {
            return Err(CarrierError::library("NCCL", "the communicator was aborted after an earlier failure"));
        }
        match self.state()? {
            ncclResult_t::ncclInProgress => Ok(()),
            state => check(self.comm, state),
        }
    }

    /// Groups several calls into one operation, which ends when all of them have.
    pub fn grouped(
        &mut self,
        calls: impl FnOnce(&mut GroupedCalls) -> Result<(), CarrierError>,
    ) -> Result<(), CarrierError> {
        if self.comm.is_null() {
            return Err(CarrierError::library("NCCL", "the communicator was aborted after an earlier failure"));
        }
        // SAFETY: grouping is a state of the calling thread; the end below is always reached.
        check(self.comm, unsafe { sys::ncclGroupStart() })?;
        let called = calls(&mut GroupedCalls { comm: self.comm });
        // SAFETY: as above.
        let ended = unsafe { sys::ncclGroupEnd() };
        called?;
        self.settle(ended)
    }

    /// Aborts all operations on the device and in the library.
    pub fn abort(&mut self) {
        let comm = std::mem::replace(&mut self.comm, ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: `comm` was live and is not used again. A failure cannot be reported.
            let _ = unsafe { sys::ncclCommAbort(comm) };
        }
    }

    fn finalize(&mut self) -> Result<(), CarrierError> {
        self.timeout = self.timeout.min(GOODBYE);
        // SAFETY: `comm` is a live communicator.
        let result = unsafe { sys::ncclCommFinalize(self.comm) };
        self.settle(result)
    }
}

impl Drop for RawComm {
    fn drop(&mut self) {
        if self.comm.is_null() {
            return;
        }
        if self.finalize().is_err() {
            self.abort();
            return;
        }
        // SAFETY: `comm` has been finalized and is not used again. A failure cannot be reported.
        let _ = unsafe { sys::ncclCommDestroy(self.comm) };
    }
}

/// The calls that may be made within a group.
pub(super) struct GroupedCalls {
    comm: ncclComm_t,
}

/// # Safety
/// All methods require memory of the communicator's device that stays valid until the stream has
/// completed the call, that nothing else reads (outputs) or writes meanwhile, and that is as long
/// as the call says.
impl GroupedCalls {
    /// `output` may be `input`; both are equally long.
    pub unsafe fn all_reduce(
        &mut self,
        input: Span,
        output: Span,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<(), CarrierError> {
        let (dtype, op) = (data_type(input.dtype), reduction(op));
        // SAFETY: upheld by the caller.
        let result =
            unsafe { sys::ncclAllReduce(input.input(), output.output(), input.len, dtype, op, self.comm, raw(stream)) };
        self.check(result)
    }

    /// `input` is as many times longer than `output` as there are ranks.
    pub unsafe fn reduce_scatter(
        &mut self,
        input: Span,
        output: Span,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<(), CarrierError> {
        let (dtype, op) = (data_type(input.dtype), reduction(op));
        // SAFETY: upheld by the caller.
        let result = unsafe {
            sys::ncclReduceScatter(input.input(), output.output(), output.len, dtype, op, self.comm, raw(stream))
        };
        self.check(result)
    }

    /// `output` is as many times longer than `input` as there are ranks.
    pub unsafe fn all_gather(&mut self, input: Span, output: Span, stream: &CudaStream) -> Result<(), CarrierError> {
        let dtype = data_type(input.dtype);
        // SAFETY: upheld by the caller.
        let result =
            unsafe { sys::ncclAllGather(input.input(), output.output(), input.len, dtype, self.comm, raw(stream)) };
        self.check(result)
    }

    /// In place: the root reads `data`, other ranks write it.
    pub unsafe fn broadcast(&mut self, data: Span, root: usize, stream: &CudaStream) -> Result<(), CarrierError> {
        let (dtype, root) = (data_type(data.dtype), root as c_int);
        // SAFETY: upheld by the caller.
        let result =
            unsafe { sys::ncclBroadcast(data.input(), data.output(), data.len, dtype, root, self.comm, raw(stream)) };
        self.check(result)
    }

    /// Needs the other rank's [`recv`](Self::recv) of the same length. A group may send to its own
    /// rank if it receives from it too.
    pub unsafe fn send(&mut self, data: Span, to: usize, stream: &CudaStream) -> Result<(), CarrierError> {
        let dtype = data_type(data.dtype);
        // SAFETY: upheld by the caller.
        let result = unsafe { sys::ncclSend(data.input(), data.len, dtype, to as c_int, self.comm, raw(stream)) };
        self.check(result)
    }

    /// The other end of [`send`](Self::send).
    pub unsafe fn recv(&mut self, data: Span, from: usize, stream: &CudaStream) -> Result<(), CarrierError> {
        let dtype = data_type(data.dtype);
        // SAFETY: upheld by the caller.
        let result = unsafe { sys::ncclRecv(data.output(), data.len, dtype, from as c_int, self.comm, raw(stream)) };
        self.check(result)
    }

    /// Within a group, calls are only recorded, or are in progress.
    fn check(&self, result: ncclResult_t) -> Result<(), CarrierError> {
        match result {
            ncclResult_t::ncclInProgress => Ok(()),
            result => check(self.comm, result),
        }
    }
}

/// The bindings of NCCL have a separate stream type for the same pointer.
fn raw(stream: &CudaStream) -> cudaStream_t {
    stream.cu_stream().cast()
}

/// A non-blocking communicator, with the library's defaults otherwise.
fn configuration() -> ncclConfig_t {
    // The configuration of NCCL 2.18: libraries read the fields that they know, and later fields
    // are absent. SAFETY: integers and pointers may be zero.
    let mut config: ncclConfig_t = unsafe { std::mem::zeroed() };
    config.size = offset_of!(ncclConfig_t, trafficClass);
    config.magic = 0xcafe_beef;
    config.version = 21_800;
    config.blocking = 0;
    // NCCL's marker for a value that is not set.
    config.cgaClusterSize = c_int::MIN;
    config.minCTAs = c_int::MIN;
    config.maxCTAs = c_int::MIN;
    config.splitShare = c_int::MIN;
    config
}

fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U8 => ncclDataType_t::ncclUint8,
    }
}

fn reduction(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
    }
}

fn check(comm: ncclComm_t, result: ncclResult_t) -> Result<(), CarrierError> {
    if result == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: the library gives static strings, or the calling thread's last message.
    let (what, detail) = unsafe { (text(sys::ncclGetErrorString(result)), text(sys::ncclGetLastError(comm))) };
    let detail = detail.trim();
    let message = if detail.is_empty() { what } else { format!("{what} ({detail})") };
    Err(CarrierError::library("NCCL", message))
}

/// # Safety
/// `pointer` is null or a C string.
unsafe fn text(pointer: *const std::ffi::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: upheld by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_ends_where_version_2_18_did() {
        let config = configuration();
        // A size, two words, four integers, a pointer, an integer.
        assert_eq!(config.size, 44);
        assert_eq!((config.magic, config.blocking), (0xcafe_beef, 0));
        assert!(config.netName.is_null());
    }

    #[test]
    fn every_type_and_reduction_has_its_own_code() {
        let mut codes = DType::ALL.map(|dtype| data_type(dtype) as u32).to_vec();
        codes.dedup();
        assert_eq!(codes, [7, 9, 8, 4, 2, 1]);
        let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
        assert_eq!(ops.map(|op| reduction(op) as u32), [0, 2, 3, 4]);
    }
}
