//! CubeCL's graphs, and the kernels that write in place.

use std::thread::{self, ThreadId};

use burn::cubecl;
use burn::cubecl::client::{Client, Graph};
use burn::cubecl::prelude::*;
use burn::cubecl::server::BufferBinding;
use burn::tensor::{Int, Tensor};

use super::GraphError;
use crate::cube::Buffer;

/// Runs of a sequence before it is recorded: one may take memory that is divided otherwise when it
/// is there from the start.
const RUNS_BEFORE: usize = 2;

/// A recorded sequence, and who may replay it.
#[derive(Debug)]
pub struct Recorded {
    graph: Graph,
    thread: ThreadId,
}

/// From the preparation of a recording to its end, which a panic comes to as well: a device that
/// records refuses all else.
struct Window {
    client: Client,
    is_open: bool,
}

impl Window {
    fn prepare(client: &Client) -> Result<Self, GraphError> {
        client.graph_prepare().map_err(error)?;
        Ok(Self { client: client.clone(), is_open: true })
    }

    fn close(mut self) -> Result<Graph, GraphError> {
        self.is_open = false;
        self.client.stop_capture().map_err(error)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.is_open {
            // The partial recording is discarded.
            let _ = self.client.stop_capture();
        }
    }
}

fn error(error: impl std::fmt::Display) -> GraphError {
    GraphError::Device(error.to_string())
}

impl Recorded {
    pub fn new<E: From<GraphError>>(near: &Tensor<1>, sequence: &mut dyn FnMut() -> Result<(), E>) -> Result<Self, E> {
        let buffer = Buffer::from_tensor(near).ok_or(GraphError::NoGraphs)?;
        let client = &buffer.0.client;
        let window = Window::prepare(client)?;
        for _ in 0..RUNS_BEFORE {
            sequence()?;
        }
        client.start_capture().map_err(error)?;
        sequence()?;
        Ok(Self { graph: window.close()?, thread: thread::current().id() })
    }

    pub fn replay(&self) -> Result<(), GraphError> {
        if thread::current().id() != self.thread {
            return Err(GraphError::OtherThread);
        }
        // SAFETY: CubeCL guards every page that the recorded kernels were given memory on until the
        // graph is dropped, so the memory is valid and not reused, even if its tensor was dropped.
        // It is on the stream of this thread, on which all that this thread launches before and
        // after is ordered with it.
        unsafe { self.graph.replay() }.map_err(error)
    }
}

/// The memory of a tensor, without a share in the tensor.
#[derive(Clone)]
pub struct MemoryAddress(BufferBinding);

impl std::fmt::Debug for MemoryAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.memory.id())
    }
}

impl MemoryAddress {
    pub fn from_tensor(x: &Tensor<1>) -> Option<Self> {
        Some(Self(Buffer::as_it_is(x)?.0.handle.binding()))
    }
}

impl PartialEq for MemoryAddress {
    fn eq(&self, other: &Self) -> bool {
        // Ids of memory are not used twice.
        let key = |address: &Self| (address.0.memory.id(), address.0.offset_start, address.0.offset_end);
        key(self) == key(other)
    }
}

pub fn is_made_here(x: &Tensor<1>) -> bool {
    // Memory that is taken now is of this thread's stream.
    Buffer::from_tensor(x)
        .is_some_and(|buffer| buffer.0.handle.stream == buffer.0.client.empty(size_of::<f32>()).stream)
}

/// `target = source`: a unit a vector.
#[cube(launch)]
fn copy<T: Numeric, N: Size>(source: &[Vector<T, N>], target: &mut [Vector<T, N>], #[define(T)] _storage: ElemType) {
    let i = ABSOLUTE_POS;
    if i < target.len() {
        target[i] = source[i];
    }
}

/// `sum + gradient` in place, or the gradient alone: a unit a vector.
#[cube(launch)]
fn add<S: Float, G: Float, N: Size>(
    sum: &mut [Vector<S, N>],
    gradient: &[Vector<G, N>],
    keeps: &[f32],
    #[define(S, G)] _storage: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i < sum.len() {
        let mut value = Vector::<f32, N>::cast_from(gradient[i]);
        if keeps[0] != 0.0f32 {
            value = Vector::<f32, N>::cast_from(sum[i]) + value;
        }
        sum[i] = Vector::cast_from(value);
    }
}

fn floats<const D: usize>(x: &Tensor<D>) -> Buffer {
    Buffer::from_tensor(x).expect("a tensor on a device that records")
}

fn ints<const D: usize>(x: &Tensor<D, Int>) -> Buffer {
    Buffer::from_integers(x).expect("a tensor on a device that records")
}

/// # Panics
/// If the elements of `x` are not side by side: writing to a copy of them would leave `x` as it is.
fn target<const D: usize>(x: &Tensor<D>) -> Buffer {
    Buffer::as_it_is(x).expect("a tensor on a device that records, with its elements side by side")
}

fn copy_to(source: &Buffer, target: &Buffer) {
    let lanes = target.lanes_of(target.0.dtype.size(), target.len());
    let (count, dim) = target.grid(target.len() / lanes);
    copy::launch(&target.0.client, count, dim, lanes, source.arg(), target.arg(), target.storage());
}

pub fn copy_of<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    let source = floats(x);
    let copy = source.uninitialised_like();
    copy_to(&source, &copy);
    copy.tensor()
}

pub fn copy_of_ints<const D: usize>(x: &Tensor<D, Int>) -> Tensor<D, Int> {
    let source = ints(x);
    let copy = source.uninitialised_like();
    copy_to(&source, &copy);
    Tensor::from_primitive::<burn::backend::Cube>(copy.0)
}

pub fn write_into<const D: usize>(target: &Tensor<D>, source: &Tensor<D>) {
    copy_to(&floats(source), &self::target(target));
}

pub fn write_ints_into<const D: usize>(target: &Tensor<D, Int>, source: &Tensor<D, Int>) {
    let target = ints(target);
    assert!(target.0.is_contiguous(), "what is written in place has its elements side by side");
    copy_to(&ints(source), &target);
}

pub fn add_into(sum: &Tensor<1>, gradient: &Tensor<1>, keeps: &Tensor<1>) {
    let (sum, gradient, keeps) = (target(sum), floats(gradient), floats(keeps));
    let lanes = sum.lanes(sum.len());
    let (count, dim) = sum.grid(sum.len() / lanes);
    let storage = [sum.storage(), gradient.storage()];
    add::launch(&sum.0.client, count, dim, lanes, sum.arg(), gradient.arg(), keeps.arg(), storage);
}
