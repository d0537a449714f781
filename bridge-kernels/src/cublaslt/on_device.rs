//! CubeCL tensors as operands: the description of their memory for cuBLASLt, and the replacement
//! that tests use on other devices.

use burn::backend::Cube;
use burn::cubecl::server::Handle;
use burn::tensor::Tensor;

use super::{Element, Matrix, Operand};
use crate::cube::Buffer;

/// Layout of a tensor in memory; of a copy, if no [`Matrix`] has its strides. `None` for a tensor
/// that is not on a CubeCL device, is empty, or has a dtype without products.
pub fn operand<const D: usize>(x: Tensor<D>) -> Option<Operand<D>> {
    let (element, dims) = (Element::from_dtype(x.dtype())?, x.dims());
    let tensor = x.clone().try_into_primitive::<Cube>().ok()?;
    if tensor.meta.is_tiled() || tensor.qparams.is_some() {
        return None;
    }
    if let Some(matrix) = Matrix::from_strides(&dims, tensor.meta.strides(), element) {
        return has_room(&tensor.handle, &matrix).then_some(Operand { tensor: x, matrix });
    }
    let copy = Buffer::side_by_side(tensor)?;
    Some(Operand { tensor: copy.tensor(), matrix: Matrix::from_shape(&dims, element) })
}

/// True if an allocation has room for the matrices.
pub(crate) fn has_room(memory: &Handle, matrix: &Matrix) -> bool {
    memory.size_in_used() >= (matrix.span() * matrix.element.bytes()) as u64
}
