//! Sequences of kernels that a device records once and replays: a launch costs the host some
//! microseconds, a replay one launch for all.
//!
//! A recorded sequence reads and writes the memory that it was recorded with. So inputs that change
//! are written into tensors at fixed addresses before a replay ([`write_into`],
//! [`write_ints_into`]); scalar arguments of kernels keep their values. Recording does not compute:
//! tensors must not be read, and memory must not be allocated beyond the device's pool. That is why
//! [`KernelGraph::record`] runs the sequence before recording it.
//!
//! On CUDA a replay is one call of the driver. CubeCL's runtime of wgpu encodes the recorded
//! launches again, with resources that are already resolved.

use burn::tensor::{Int, Tensor};

#[cfg(feature = "cube")]
mod cube;

/// Why a sequence was not recorded or replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphError {
    /// Not a device of CubeCL.
    NoGraphs,
    /// Message of the device.
    Device(String),
    /// A replay on another thread than that which recorded: launches of threads are not ordered
    /// among each other.
    OtherThread,
}

impl std::fmt::Display for GraphError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoGraphs => f.write_str("this device does not record kernels"),
            Self::Device(error) => f.write_str(error),
            Self::OtherThread => f.write_str("kernels are replayed by the thread that recorded them"),
        }
    }
}

impl std::error::Error for GraphError {}

/// A recorded sequence of kernels.
#[derive(Debug)]
pub struct KernelGraph(Recorded);

#[cfg(feature = "cube")]
type Recorded = cube::Recorded;
#[cfg(not(feature = "cube"))]
type Recorded = std::convert::Infallible;

impl KernelGraph {
    /// Runs `sequence` twice on the device of `near`, then records it without computing it. Each
    /// run must launch the same kernels on the same memory, except for memory that the sequence
    /// itself allocates and frees.
    ///
    /// The graph reserves the memory of the sequence while it lives: memory that the sequence freed
    /// is not reused, so a graph holds the memory of one run of the sequence.
    ///
    /// # Errors
    /// Errors of `sequence`, and of the device: if it does not support recording, or if the
    /// sequence has operations that cannot be recorded.
    pub fn record<E: From<GraphError>>(
        near: &Tensor<1>,
        sequence: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        #[cfg(feature = "cube")]
        return Ok(Self(cube::Recorded::new(near, sequence)?));
        #[cfg(not(feature = "cube"))]
        {
            let _ = (near, sequence);
            Err(GraphError::NoGraphs.into())
        }
    }

    /// Launches the recorded kernels after the work that this thread has launched. Tensors that the
    /// sequence wrote have other values then, also for who holds a clone.
    ///
    /// # Errors
    /// If the device refuses, or another thread has recorded.
    pub fn replay(&self) -> Result<(), GraphError> {
        #[cfg(feature = "cube")]
        return self.0.replay();
        #[cfg(not(feature = "cube"))]
        match self.0 {}
    }
}

/// Memory of a tensor. While it is held, the memory is not reused, but the owner of the tensor may
/// still change it in place.
#[derive(Clone, Debug)]
pub struct MemoryAddress(
    #[cfg(feature = "cube")] cube::MemoryAddress,
    #[cfg(not(feature = "cube"))] std::convert::Infallible,
);

impl MemoryAddress {
    /// Memory of `x`; `None` unless `x` is contiguous on a device that records.
    pub fn from_tensor(x: &Tensor<1>) -> Option<Self> {
        #[cfg(feature = "cube")]
        return cube::MemoryAddress::from_tensor(x).map(Self);
        #[cfg(not(feature = "cube"))]
        {
            let _ = x;
            None
        }
    }
}

impl PartialEq for MemoryAddress {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// True if `x` is on a device that records, and this thread allocated its memory. A recorded
/// sequence may use no other memory: CubeCL orders the launches of threads by driver events, which
/// are not recorded.
pub fn is_made_here(x: &Tensor<1>) -> bool {
    #[cfg(feature = "cube")]
    return cube::is_made_here(x);
    #[cfg(not(feature = "cube"))]
    {
        let _ = x;
        false
    }
}

/// Runs the form for devices that record.
macro_rules! on_device {
    ($call:expr, $($unused:expr),*) => {{
        #[cfg(feature = "cube")]
        {
            $call
        }
        #[cfg(not(feature = "cube"))]
        {
            let _ = ($($unused),*);
            panic!("no device of this build records kernels")
        }
    }};
}

/// A copy in memory of its own.
///
/// # Panics
/// If `x` is not on a device that records.
pub fn copy_of<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    on_device!(cube::copy_of(x), x)
}

/// [`copy_of`] of integers.
///
/// # Panics
/// If `x` is not on a device that records.
pub fn copy_of_ints<const D: usize>(x: &Tensor<D, Int>) -> Tensor<D, Int> {
    on_device!(cube::copy_of_ints(x), x)
}

/// Writes the elements of `source` to those of `target`, in place: clones of `target` change, too.
///
/// # Panics
/// If they are not on one device that records, or differ in shape or dtype.
pub fn write_into<const D: usize>(target: &Tensor<D>, source: &Tensor<D>) {
    assert_eq!((target.dims(), target.dtype()), (source.dims(), source.dtype()), "write_into: tensors differ");
    on_device!(cube::write_into(target, source), target, source)
}

/// [`write_into`] of integers.
///
/// # Panics
/// If they are not on one device that records, or differ in shape or dtype.
pub fn write_ints_into<const D: usize>(target: &Tensor<D, Int>, source: &Tensor<D, Int>) {
    assert_eq!((target.dims(), target.dtype()), (source.dims(), source.dtype()), "write_ints_into: tensors differ");
    on_device!(cube::write_ints_into(target, source), target, source)
}

/// Writes `sum + gradient` to `sum` in place, as [`crate::optim::accumulate`] computes it, or
/// `gradient` if the one element of `keeps` is zero. Clones of `sum` change, too.
///
/// # Panics
/// If they are not on one device that records, outside any graph of autodiff, or differ in size.
pub fn add_into(sum: &Tensor<1>, gradient: &Tensor<1>, keeps: &Tensor<1>) {
    assert_eq!(sum.dims(), gradient.dims(), "add_into: the sizes differ");
    on_device!(cube::add_into(sum, gradient, keeps), sum, gradient, keeps)
}
