//! Code that the operations' files `cube.rs` share. Kernels for GPUs are written in CubeCL: CUDA,
//! Vulkan, Metal and WebGPU compile the same source.
//!
//! Such a file has its kernels, which see flat buffers, and the functions on tensors that launch
//! them. A function returns `None` where it does not apply (another device, another dtype, no
//! elements); the caller then takes the reference. Storage is float32, float16 or bfloat16;
//! arithmetic is float32 always, and results are rounded once. Sums have a fixed order, so results
//! are the same from run to run on one device.
//!
//! No other code is built for the features `cuda`, `wgpu` and `vulkan`: which of CubeCL's runtimes
//! a kernel runs on is a property of the tensor.

pub(crate) mod columns;
pub(crate) mod fragments;
pub(crate) mod kept;
pub(crate) mod reduce;
pub(crate) mod tile;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, DispatchTensor, TensorMetadata};
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use burn::cubecl::{calculate_cube_count_elemwise, std::tensor::into_contiguous};
use burn::tensor::{DType, Int, Shape, Tensor};

use crate::vjp::{self, Lift};

/// The primitive of all CubeCL runtimes.
pub(crate) type CubeTensor = FloatTensor<Cube>;

/// Most units (threads) of a cube that our kernels use: the limit that WebGPU guarantees.
const MOST_UNITS: u32 = 256;

/// A tensor on a CubeCL device with its elements side by side, outside any graph.
#[derive(Clone)]
pub(crate) struct Buffer(pub CubeTensor);

impl Buffer {
    /// The tensor behind `x`; `None` unless it is on a CubeCL device, of 16 or 32 bits, and neither
    /// empty nor huge.
    pub fn from_tensor<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16).then_some(())?;
        Self::side_by_side(x.clone().without_autodiff().try_into_primitive::<Cube>().ok()?)
    }

    /// As [`Self::from_tensor`], if no copy is needed.
    pub fn as_it_is<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16).then_some(())?;
        let tensor = x.clone().without_autodiff().try_into_primitive::<Cube>().ok()?;
        if tensor.is_contiguous() { Self::side_by_side(tensor) } else { None }
    }

    /// As [`Self::from_tensor`], for float32 alone.
    pub fn from_f32<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        (x.dtype() == DType::F32).then_some(())?;
        Self::from_tensor(x)
    }

    /// [`Self::from_tensor`] with exclusive memory: the tensor's own, or a copy.
    pub fn owned<const D: usize>(x: Tensor<D>) -> Option<Self> {
        let buffer = Self::from_tensor(&x)?;
        drop(x);
        Some(if buffer.0.can_mut() { buffer } else { Self(buffer.0.copy()) })
    }

    /// Integers of any width; `None` as for [`Self::from_tensor`].
    pub fn from_integers<const D: usize>(x: &Tensor<D, Int>) -> Option<Self> {
        Self::side_by_side(x.clone().without_autodiff().try_into_primitive::<Cube>().ok()?)
    }

    /// The gradient that a pullback is given.
    pub fn from_gradient<const D: usize>(gradient: Tensor<D>) -> Self {
        Self::from_tensor(&gradient).expect("the gradient of a tensor has its device, dtype and shape")
    }

    /// Kernels index with 32 bits, and a storage-tiled tensor is read by nothing but the product it
    /// was tiled for.
    pub fn side_by_side(tensor: CubeTensor) -> Option<Self> {
        let elements = tensor.shape().num_elements();
        if elements == 0 || u32::try_from(elements).is_err() || tensor.meta.is_tiled() {
            return None;
        }
        if tensor.is_contiguous() {
            return Some(Self(tensor));
        }
        let (client, device, dtype) = (tensor.client.clone(), tensor.device.clone(), tensor.dtype);
        let copy = into_contiguous(&client, tensor.binding(), dtype_to_storage_type(dtype));
        Some(Self(CubeTensor::new(client, copy.handle, *copy.metadata, device, dtype)))
    }

    /// Memory on the device of `self`, not yet written.
    pub fn uninitialised(&self, shape: impl Into<Shape>, dtype: DType) -> Self {
        let (client, shape) = (self.0.client.clone(), shape.into());
        let handle = client.empty(shape.num_elements() * dtype.size());
        Self(CubeTensor::new_contiguous(client, self.0.device.clone(), shape, handle, dtype))
    }

    /// Memory of the size and dtype of a tensor whose elements are not needed. The tensor's memory
    /// is reused if it is exclusive and on the device and stream of `self`. A reader on another
    /// stream only waits for work up to the reservation of the memory.
    pub fn in_place_of<const D: usize>(&self, x: Tensor<D>) -> Self {
        let (len, dtype) = (x.shape().num_elements(), x.dtype());
        match Self::as_it_is(&x) {
            Some(buffer) if buffer.0.device == self.0.device && buffer.0.handle.stream == self.0.handle.stream => {
                drop(x);
                if buffer.0.can_mut() { buffer } else { self.uninitialised([len], dtype) }
            }
            _ => self.uninitialised([len], dtype),
        }
    }

    /// Memory of the same shape and dtype, not yet written.
    pub fn uninitialised_like(&self) -> Self {
        self.uninitialised(self.0.shape(), self.0.dtype)
    }

    /// Number of elements that kernels read and write at once if runs of `run` elements begin
    /// anywhere in this buffer and in others like it: a vector of 16 bytes for 32-bit elements, of
    /// 8 bytes for 16-bit elements, or less.
    pub fn lanes(&self, run: usize) -> usize {
        self.lanes_of(size_of::<f32>(), run)
    }

    /// [`Self::lanes`] for kernels whose widest elements have `bytes`.
    pub fn lanes_of(&self, bytes: usize, run: usize) -> usize {
        let sizes = self.0.client.io_optimized_vector_sizes(bytes);
        sizes.filter(|lanes| run.is_multiple_of(*lanes)).max().unwrap_or(1)
    }

    pub fn len(&self) -> usize {
        self.0.shape().num_elements()
    }

    /// The buffer as an argument of a kernel.
    pub fn arg(&self) -> BufferArg {
        self.0.clone().into_buffer_arg()
    }

    /// Storage type of the elements, as an argument of a kernel.
    pub fn storage(&self) -> ElemType {
        dtype_to_storage_type(self.0.dtype)
    }

    /// # Panics
    /// If `D` is not the rank.
    pub fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_primitive::<Cube>(self.0)
    }

    /// A gradient for a pullback to return.
    pub fn gradient(self) -> Option<DispatchTensor> {
        Some(Cube::lift(self.0))
    }

    /// A grid with at least `units` units.
    pub fn grid(&self, units: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new(&self.0.client, units);
        (calculate_cube_count_elemwise(&self.0.client, units, dim), dim)
    }

    /// A grid with at least one unit an element of `self`.
    pub fn unit_per_element(&self) -> (CubeCount, CubeDim) {
        self.grid(self.len())
    }

    /// A grid with at least one cube for each of `rows` rows, and the units of a cube: a power of
    /// two that suits `columns`.
    pub fn cube_per_row(&self, rows: usize, columns: usize) -> (CubeCount, CubeDim, usize) {
        let most = self.0.client.properties().hardware.max_units_per_cube.min(MOST_UNITS);
        let columns = u32::try_from(columns).unwrap_or(MOST_UNITS).min(MOST_UNITS);
        let units = columns.next_power_of_two().min(1 << most.ilog2());
        let (count, dim) = self.cubes(rows, units as usize);
        (count, dim, units as usize)
    }

    /// Grid of at least `count` cubes of `units` units.
    pub fn cubes(&self, count: usize, units: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(units as u32);
        (calculate_cube_count_elemwise(&self.0.client, count * units, dim), dim)
    }
}

/// [`vjp::attach_some`] of an operation on one tensor.
pub(crate) fn attach_one<const D: usize, const E: usize>(
    output: Buffer,
    input: &Tensor<E>,
    pullback: impl FnOnce(Buffer) -> Buffer + Send + 'static,
) -> Tensor<D> {
    vjp::attach_some(output.tensor(), vec![input.clone().into_dispatch()], move |dy: Tensor<D>| {
        vec![pullback(Buffer::from_gradient(dy)).gradient()]
    })
}
