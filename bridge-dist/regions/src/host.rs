//! Tensors to host buffers and back, and what to do when a collective fails.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use bridge_dist::comm::{CommError, HostBuffer};

/// Shape, dtype and device of a tensor, to make another like it.
#[derive(Clone, Debug)]
pub(super) struct Like<const D: usize> {
    pub shape: [usize; D],
    pub dtype: DType,
    pub device: Device,
}

impl<const D: usize> Like<D> {
    pub fn new(x: &Tensor<D>) -> Self {
        Self { shape: x.dims(), dtype: x.dtype(), device: x.device().without_autodiff() }
    }

    /// The same dtype and device with another shape.
    pub fn with_shape<const E: usize>(&self, shape: [usize; E]) -> Like<E> {
        Like { shape, dtype: self.dtype, device: self.device.clone() }
    }

    /// A tensor of this shape and dtype on this device.
    pub fn tensor(&self, buffer: HostBuffer) -> Tensor<D> {
        let data = match buffer {
            HostBuffer::F32(values) => TensorData::new(values, self.shape),
            HostBuffer::Bf16(values) => TensorData::new(values, self.shape),
            HostBuffer::F64(values) => TensorData::new(values, self.shape),
            other => unreachable!("tensors are never moved as {}", other.dtype()),
        };
        Tensor::from_data(data, (&self.device, FloatDType::from(self.dtype).into()))
    }
}

/// The elements of a tensor, row-major. Does not copy if the tensor is the only owner of its
/// memory.
///
/// float16, which no communicator sums, is sent as float32.
pub(super) fn to_host<const D: usize>(x: Tensor<D>) -> HostBuffer {
    let dtype = x.dtype();
    let x = x.without_autodiff();
    let expect = "the data has the dtype that the tensor has";
    match dtype {
        DType::F32 => HostBuffer::F32(x.into_data().try_into_vec().expect(expect)),
        DType::BF16 => HostBuffer::Bf16(x.into_data().try_into_vec().expect(expect)),
        DType::F64 => HostBuffer::F64(x.into_data().try_into_vec().expect(expect)),
        _ => HostBuffer::F32(x.cast(FloatDType::F32).into_data().try_into_vec().expect(expect)),
    }
}

/// The result of a collective.
///
/// # Panics
/// With the [`CommError`] as payload: neither Burn's operations nor its backward can return an
/// error.
pub(super) fn unwrap<T>(result: Result<T, CommError>) -> T {
    result.unwrap_or_else(|error| std::panic::panic_any(error))
}
