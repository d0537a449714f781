//! Tensors of the backends: identity of their memory, download to the host, and upload.

#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, DispatchTensorKind, Flex, TensorMetadata,
};
#[cfg(feature = "cube")]
use burn::tensor::Bytes;
use burn::tensor::{DType, Shape, TensorData};

#[cfg(feature = "cube")]
use crate::cube::{Buffer, CubeTensor};
use crate::vjp::Lift;

/// Identity of a tensor's values while a handle to them exists: memory with two handles is not
/// written in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The allocation and its bytes that belong to the tensor.
    memory: (usize, u64, u64),
    dtype: DType,
    /// Shape and strides, unless the elements lie side by side: then any shape is a view of the
    /// same values.
    layout: Option<(Shape, Vec<isize>)>,
    /// False if nothing is known of the memory; then no two tensors are the same.
    is_known: bool,
}

impl Identity {
    pub fn from_tensor(tensor: &DispatchTensor) -> Self {
        let unknown = Self { memory: (0, 0, 0), dtype: tensor.dtype(), layout: None, is_known: false };
        #[cfg(feature = "cube")]
        if let Some(tensor) = on::<Cube>(tensor) {
            let (id, start, end) = tensor.handle.clone().binding().claim_key();
            let strides = tensor.meta.strides().iter().map(|stride| *stride as isize).collect();
            let layout = (!tensor.is_contiguous()).then(|| (tensor.shape(), strides));
            return Self { memory: (id.value, start, end), layout, is_known: !tensor.meta.is_tiled(), ..unknown };
        }
        let Some(tensor) = on::<Flex>(tensor) else { return unknown };
        let (layout, size) = (tensor.layout(), tensor.dtype().size() as u64);
        let start = layout.start_offset() as u64 * size;
        let end = start + tensor.shape().num_elements() as u64 * size;
        let strides = (!layout.is_contiguous()).then(|| (tensor.shape(), layout.strides().to_vec()));
        Self { memory: (tensor.bytes().as_ptr().addr(), start, end), layout: strides, is_known: true, ..unknown }
    }

    /// True if two tensors that both exist have the same values.
    pub fn is_that_of(&self, other: &Self) -> bool {
        self.is_known && self == other
    }
}

/// The primitive of a tensor on a backend.
fn on<B: Lift>(tensor: &DispatchTensor) -> Option<FloatTensor<B>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.clone()) {
        Ok(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// True if the tensor is in memory of a separate device.
pub(super) const fn is_accelerator(tensor: &DispatchTensor) -> bool {
    !matches!(tensor.kind, DispatchTensorKind::Flex(_))
}

pub(super) fn shape_of(tensor: &DispatchTensor) -> Shape {
    tensor.shape()
}

pub(super) fn elements_of(tensor: &DispatchTensor) -> usize {
    tensor.shape().num_elements()
}

pub(super) fn bytes_of(tensor: &DispatchTensor) -> u64 {
    (elements_of(tensor) * tensor.dtype().size()) as u64
}

/// Another shape of the same elements.
pub(super) fn reshaped(tensor: DispatchTensor, shape: Shape) -> DispatchTensor {
    if tensor.shape() == shape { tensor } else { Dispatch::float_reshape(tensor, shape) }
}

/// The same values side by side, as they are read; `None` where there is nothing to read.
pub(super) fn side_by_side(tensor: &DispatchTensor) -> Option<DispatchTensor> {
    #[cfg(feature = "cube")]
    if let Some(tensor) = on::<Cube>(tensor) {
        return Buffer::side_by_side(tensor).map(|buffer| Cube::lift(buffer.0));
    }
    (elements_of(tensor) > 0 && on::<Flex>(tensor).is_some()).then(|| tensor.clone())
}

/// A tensor in host memory, and where it comes from.
pub(super) enum Host {
    /// Tensor of the host's own backend.
    Flex(TensorData),
    /// Tensor of a CubeCL device.
    #[cfg(feature = "cube")]
    Cube(Bytes, CubeOrigin),
}

/// Properties of a tensor on a CubeCL device besides its elements.
#[cfg(feature = "cube")]
pub(super) struct CubeOrigin {
    client: burn::cubecl::client::Client,
    device: <CubeTensor as TensorMetadata>::Device,
    shape: Shape,
    dtype: DType,
}

/// Reads a tensor whose elements are [side by side](side_by_side).
pub(super) fn read(tensor: DispatchTensor) -> Result<Host, String> {
    #[cfg(feature = "cube")]
    if let Some(tensor) = on::<Cube>(&tensor) {
        let (shape, strides) = (tensor.meta.shape().clone(), tensor.meta.strides().clone());
        let descriptor = tensor.handle.clone().copy_descriptor(shape.clone(), strides, tensor.dtype.size());
        // Burn's own reads keep the memory until the bytes are gone.
        let mut bytes = tensor.client.read_tensor(vec![descriptor]).map_err(|error| error.to_string())?;
        let bytes = bytes.pop().ok_or_else(|| "the device gave no bytes".to_owned())?;
        let CubeTensor { client, device, dtype, .. } = tensor;
        return Ok(Host::Cube(bytes, CubeOrigin { client, device, shape, dtype }));
    }
    match on::<Flex>(&tensor) {
        Some(primitive) => Ok(Host::Flex(primitive.into_data())),
        None => Err("no way to read tensors of this backend".into()),
    }
}

impl Host {
    /// The tensor, on its device again.
    pub fn upload(self) -> DispatchTensor {
        match self {
            Self::Flex(data) => Flex::lift(FloatTensor::<Flex>::from_data(data)),
            #[cfg(feature = "cube")]
            Self::Cube(bytes, CubeOrigin { client, device, shape, dtype }) => {
                let handle = client.create(bytes);
                Cube::lift(CubeTensor::new_contiguous(client, device, shape, handle, dtype))
            }
        }
    }
}
