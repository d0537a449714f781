//! Memory of CUDA tensors for a library that works on a stream of its own, as NCCL does: addresses,
//! and events that order that stream with those of CubeCL. Feature `cuda`.
//!
//! # Order on the device
//! [`open`] is a task of the device's thread in CubeCL, as a launch is: it resolves the calling
//! thread's stream with all of the memory, so that the stream waits for other streams that made
//! some of it, and records an event there. The library's stream waits for that event, works, and
//! records another one; [`follow`], a task too, makes the calling thread's stream wait for it.
//! Between the two the library is called by the calling thread, not by the device's, which goes on
//! for other threads meanwhile. Until the library's event has passed, the caller holds the
//! [memory](Pinned), so that it is neither reused, nor moved, nor written in place.
//!
//! The library's output must be read by kernels of the calling thread that allocate new memory.
//! CubeCL records the age of memory when it is reserved, so another thread that read memory
//! reserved before the library's work might not wait for that work.

use std::any::TypeId;
use std::sync::Arc;

use burn::backend::Cube;
use burn::cubecl::cuda::CudaRuntime;
use burn::cubecl::device::DeviceId;
use burn::cubecl::device_handle::DeviceHandle;
use burn::cubecl::server::{BufferBinding, ServerError};
use burn::tensor::Tensor;
use cubecl_server::driver::DriverError;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::WriteScoped;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult, CUstream};
use cudarc::driver::{CudaContext, result};

use crate::cube::{Buffer, CubeTensor};

type Server = <CudaRuntime as Runtime>::Server;

/// Why memory could not be opened.
#[derive(Debug)]
pub struct ForeignError(String);

impl std::fmt::Display for ForeignError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ForeignError {}

fn driver(call: &'static str, error: result::DriverError) -> ServerError {
    DriverError::new(call, error.0 as u32).into()
}

fn foreign_error(error: impl std::fmt::Debug) -> ForeignError {
    ForeignError(format!("{error:?}"))
}

/// A point on a stream of a CUDA device.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    /// The primary context, which the event lives in.
    context: Arc<CudaContext>,
}

// SAFETY: the driver lets every thread use an event; nothing here changes it after it was recorded.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn recorded(context: &Arc<CudaContext>, stream: CUstream) -> Result<Self, result::DriverError> {
        let raw = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        let event = Self { raw, context: Arc::clone(context) };
        // SAFETY: both are of the context, which is current, and the stream is alive.
        unsafe { result::event::record(event.raw, stream) }?;
        Ok(event)
    }

    /// Records an event after all work that is on a stream now.
    ///
    /// # Safety
    /// `stream` is a live stream of the device's primary context.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn on(context: &Arc<CudaContext>, stream: CUstream) -> Result<Self, ForeignError> {
        context.bind_to_thread().map_err(foreign_error)?;
        Self::recorded(context, stream).map_err(foreign_error)
    }

    /// Lets a stream go on only when the point has passed.
    ///
    /// # Safety
    /// As [`on`](Self::on).
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn hold_back(&self, stream: CUstream) -> Result<(), ForeignError> {
        self.context.bind_to_thread().map_err(foreign_error)?;
        // SAFETY: the event is alive, and the stream is the caller's.
        unsafe { result::stream::wait_event(stream, self.raw, FLAGS) }.map_err(foreign_error)
    }

    /// True if the device has passed this point of the stream.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn has_passed(&self) -> Result<bool, ForeignError> {
        self.context.bind_to_thread().map_err(foreign_error)?;
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(result::DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(foreign_error(error)),
        }
    }
}

const FLAGS: cudarc::driver::sys::CUevent_wait_flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the event was created here and is not used again; the driver keeps what
            // streams wait for.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

fn cube(x: &Tensor<1>) -> Option<CubeTensor> {
    let tensor = x.clone().without_autodiff().try_into_primitive::<Cube>().ok()?;
    (tensor.client.service_id().service == TypeId::of::<Server>()).then_some(tensor)
}

fn device_of(tensor: &CubeTensor) -> DeviceId {
    tensor.client.service_id().device
}

/// The number of the CUDA device that a tensor is on; `None` if it is elsewhere.
pub fn cuda_device(x: &Tensor<1>) -> Option<usize> {
    cube(x).map(|tensor| usize::from(device_of(&tensor).index_id))
}

/// The same tensor with its elements side by side; `None` if it is on no CUDA device, empty, or has
/// 2^32 elements or more.
pub fn side_by_side(x: &Tensor<1>) -> Option<Tensor<1>> {
    cube(x).and_then(Buffer::side_by_side).map(Buffer::tensor)
}

/// Memory that a library may use.
#[derive(Debug)]
pub struct Opened {
    /// Address of each tensor's first byte.
    pub addresses: Vec<u64>,
    /// Event after all earlier work on the tensors.
    pub ready: Event,
    /// Keeps the memory in place; hold it until the library is done.
    pub memory: Pinned,
}

/// Tensors whose memory stays in place: CubeCL may move memory without a binding to other pages
/// when it needs room.
pub struct Pinned {
    tensors: Vec<Tensor<1>>,
    _bindings: Vec<BufferBinding>,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

/// Opens tensors of one CUDA device, whose elements are [side by side](side_by_side), to a library
/// that is called by this thread. The host waits until the device's thread has launched all earlier
/// work on its streams, but not for the device.
///
/// # Errors
/// If the device has failed, or a graph is recorded.
///
/// # Panics
/// If there are no tensors, or one is not on a CUDA device.
pub fn open(tensors: &[Tensor<1>]) -> Result<Opened, ForeignError> {
    let primitives: Vec<CubeTensor> = tensors.iter().map(|x| cube(x).expect("a tensor on a CUDA device")).collect();
    let device = device_of(&primitives[0]);
    let context = CudaContext::new(usize::from(device.index_id)).map_err(foreign_error)?;
    let bindings: Vec<BufferBinding> = primitives.iter().map(|tensor| tensor.handle.clone().binding()).collect();
    // Memory of the calling thread, for the name of its stream.
    let place = primitives[0].client.empty(size_of::<f32>()).binding();
    let memory = Pinned { tensors: tensors.to_vec(), _bindings: bindings.clone() };
    let opened = DeviceHandle::<Server>::new(device).submit_blocking(move |server| {
        context.bind_to_thread().map_err(|error| driver("cuCtxSetCurrent", error))?;
        let mut streams = server.write_streams().resolve(place.stream, bindings.iter())?;
        if streams.current().capturing.is_recording() {
            return Err(ServerError::graph_state("exchanges between ranks are not recorded into graphs"));
        }
        let address = |binding: &BufferBinding| -> Result<u64, ServerError> {
            let BufferBinding { memory, offset_start, offset_end, stream, .. } = binding.clone();
            let pool = &mut streams.get(&stream).memory_management_gpu;
            Ok(pool.get_resource(memory, offset_start, offset_end)?.ptr)
        };
        let addresses = bindings.iter().map(address).collect::<Result<_, _>>()?;
        let stream = streams.current().sys;
        let ready = Event::recorded(&context, stream).map_err(|error| driver("cuEventRecord", error))?;
        Ok((addresses, ready))
    });
    let (addresses, ready) = opened.map_err(foreign_error)?.map_err(foreign_error)?;
    Ok(Opened { addresses, ready, memory })
}

/// Orders all later work of this thread on the device of `x` after an event.
///
/// # Panics
/// If the tensor is on no CUDA device.
pub fn follow(x: &Tensor<1>, event: Arc<Event>) {
    let tensor = cube(x).expect("a tensor on a CUDA device");
    let place = tensor.client.empty(size_of::<f32>()).binding();
    DeviceHandle::<Server>::new(device_of(&tensor)).submit(move |server| {
        let mut streams = match server.write_streams().resolve(place.stream, [&place].into_iter()) {
            Ok(streams) => streams,
            // A device without its stream has failed; a later read reports the failure.
            Err(_) => return,
        };
        let stream = streams.current().sys;
        // SAFETY: CubeCL's stream is alive as long as its server, on whose thread this is. A driver
        // that refuses has failed.
        let _ = unsafe { event.hold_back(stream) };
    });
}
