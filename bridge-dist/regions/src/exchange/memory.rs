//! Tensors as parts that communicators move, marks that order the streams of threads, and copies.

use std::any::Any;
use std::sync::Arc;

use burn::tensor::{DType as TensorDType, Device, Tensor};

use super::wire;
use bridge_dist::comm::DType;
use bridge_dist::comm::device::{DeviceMemory, DevicePart, Extent};

/// A flat tensor for communication.
#[derive(Clone, Debug)]
pub struct TensorMemory {
    tensor: Tensor<1>,
    named: DType,
    /// Set if another thread will use the memory: an allocation that was reserved after every
    /// launch that fills the tensor.
    mark: Option<Tensor<1>>,
}

impl DeviceMemory for TensorMemory {
    fn empty(&self, elements: usize) -> Arc<dyn DeviceMemory> {
        let dtype = self.tensor.dtype();
        let len = elements * self.named.size() / dtype.size();
        Arc::new(Self::new(Tensor::empty([len], (&self.tensor.device(), dtype)), self.named, None))
    }
}

impl TensorMemory {
    /// A tensor whose elements are communicated under the type `named`.
    pub fn new(tensor: Tensor<1>, named: DType, mark: Option<Tensor<1>>) -> Self {
        Self { tensor, named, mark }
    }

    /// A tensor as a part.
    pub fn part(tensor: Tensor<1>, mark: Option<Tensor<1>>) -> DevicePart {
        let Extent { dtype, len } = Self::extent(&tensor);
        DevicePart { dtype, len, memory: Arc::new(Self::new(tensor, dtype, mark)) }
    }

    /// A tensor as a part that another thread is to use.
    pub fn marked(tensor: Tensor<1>) -> DevicePart {
        let mark = mark(&tensor.device());
        Self::part(tensor, Some(mark))
    }

    /// Type and number of the elements of a communicated tensor.
    pub fn extent(tensor: &Tensor<1>) -> Extent {
        Extent { dtype: wire(tensor.dtype()), len: tensor.dims()[0] }
    }

    /// Memory for a message of another rank with this type and number of elements, on the device of
    /// `like`.
    pub fn place_of(dtype: DType, len: usize, like: &DevicePart) -> Tensor<1> {
        let (dtype, len) = match dtype {
            DType::U8 => (TensorDType::F16, len / 2),
            DType::Bf16 => (TensorDType::BF16, len),
            DType::F64 => (TensorDType::F64, len),
            _ => (TensorDType::F32, len),
        };
        Tensor::empty([len], (&Self::behind(like).tensor.device(), dtype))
    }

    /// The same memory under another type.
    pub fn named(self, named: DType) -> Self {
        Self { named, ..self }
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor<1> {
        &self.tensor
    }

    /// The memory of a part.
    ///
    /// # Panics
    /// If it was not made here.
    pub fn behind(part: &DevicePart) -> &Self {
        let memory: &dyn Any = part.memory.as_ref();
        memory.downcast_ref().expect("parts are made of tensors")
    }
}

/// Memory of a device, reserved after all that this thread has launched.
pub(super) fn mark(device: &Device) -> Tensor<1> {
    Tensor::empty([1], (device, TensorDType::F32))
}

/// Orders all later launches of this thread after the launches that came before `mark` was made.
pub(super) fn follow(mark: &Tensor<1>) {
    // An operation that reads the mark makes the stream wait for it.
    drop(mark.clone() + 1.0);
}

/// The tensor of a part that this thread has made.
pub(super) fn read(part: &DevicePart) -> Tensor<1> {
    TensorMemory::behind(part).tensor.clone()
}

/// The tensor of a part, ready to be read by this thread.
pub(super) fn arrived(part: &DevicePart) -> Tensor<1> {
    if let Some(mark) = &TensorMemory::behind(part).mark {
        follow(mark);
    }
    read(part)
}

/// The same elements in memory of this thread's own, on the same device.
pub fn copied<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    let empty = Tensor::empty(shape, (&x.device(), x.dtype()));
    // No kernel is launched for nothing.
    if shape.contains(&0) { empty } else { empty.slice_assign(shape.map(|size| 0..size), x) }
}
