//! Tensors as plain host memory: an element type, a shape, little-endian bytes in row-major order.
//! No arithmetic, files or backend tensors belong here.

use std::fmt;

use bytes::Bytes;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::error::CheckpointError;

/// The type of a stored element. Serialised under its safetensors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// 64-bit IEEE float.
    F64,
    /// 32-bit IEEE float.
    F32,
    /// 16-bit brain float.
    BF16,
    /// 16-bit IEEE float.
    F16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, 0 or 1.
    #[serde(rename = "BOOL")]
    Bool,
}

impl DType {
    /// All of them, widest first.
    pub const ALL: [Self; 9] =
        [Self::F64, Self::I64, Self::F32, Self::I32, Self::U32, Self::BF16, Self::F16, Self::U8, Self::Bool];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::BF16 | Self::F16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Bytes of a tensor of this type with `shape`; `None` on overflow.
    #[must_use]
    pub fn byte_len(self, shape: &[usize]) -> Option<usize> {
        // A zero makes the tensor empty, however large the other dimensions are.
        if shape.contains(&0) {
            return Some(0);
        }
        shape.iter().try_fold(self.size(), |product, &dim| product.checked_mul(dim))
    }
}

impl From<DType> for safetensors::Dtype {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::BF16 => Self::BF16,
            DType::F16 => Self::F16,
            DType::I64 => Self::I64,
            DType::I32 => Self::I32,
            DType::U32 => Self::U32,
            DType::U8 => Self::U8,
            DType::Bool => Self::BOOL,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&safetensors::Dtype::from(*self), f)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that corresponds to a [`DType`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The stored type.
    const DTYPE: DType;
    /// The elements as bytes, without copying.
    fn as_bytes(elements: &[Self]) -> &[u8];
    /// The elements in `bytes`; `None` if a byte pattern is not a valid element.
    fn from_bytes(bytes: &[u8]) -> Option<Vec<Self>>;
}

macro_rules! plain_elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            fn as_bytes(elements: &[Self]) -> &[u8] {
                bytemuck::cast_slice(elements)
            }
            fn from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
                bytes.len().is_multiple_of(size_of::<Self>()).then(|| bytemuck::pod_collect_to_vec(bytes))
            }
        }
    )*};
}
plain_elements!(f64 => F64, f32 => F32, bf16 => BF16, f16 => F16, i64 => I64, i32 => I32, u32 => U32, u8 => U8);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn as_bytes(elements: &[Self]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        bytemuck::checked::try_cast_slice(bytes).ok().map(<[bool]>::to_vec)
    }
}

/// A tensor that owns or shares its memory: cloning copies no elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl HostTensor {
    /// A tensor of `bytes`: little-endian, row-major.
    ///
    /// # Errors
    /// If the number of bytes does not match `dtype` and `shape`.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, bytes: impl Into<Bytes>) -> Result<Self, CheckpointError> {
        let (shape, bytes) = (shape.into(), bytes.into());
        check_len(dtype, &shape, bytes.len())?;
        Ok(Self { dtype, shape, bytes })
    }

    /// As [`new`](Self::new), around any owner of memory without copying, such as another tensor
    /// library's buffer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_owner<O>(dtype: DType, shape: impl Into<Vec<usize>>, owner: O) -> Result<Self, CheckpointError>
    where
        O: AsRef<[u8]> + Send + 'static,
    {
        Self::new(dtype, shape, Bytes::from_owner(owner))
    }

    /// Takes ownership of `elements` without copying them.
    ///
    /// # Errors
    /// If `shape` has another number of elements.
    pub fn from_vec<T: Element>(shape: impl Into<Vec<usize>>, elements: Vec<T>) -> Result<Self, CheckpointError> {
        struct Owner<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Owner<T> {
            fn as_ref(&self) -> &[u8] {
                T::as_bytes(&self.0)
            }
        }
        Self::from_owner(T::DTYPE, shape, Owner(elements))
    }

    /// A tensor of no dimensions.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        Self { dtype: T::DTYPE, shape: Vec::new(), bytes: Bytes::copy_from_slice(T::as_bytes(&[value])) }
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, slowest first; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements: little-endian, row-major.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The memory, without copying.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// The first element that is NaN or infinite, with its place (row-major). Other types than
    /// floats have none.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<(usize, f64)> {
        fn first<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<(usize, f64)> {
            let mut values = bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).enumerate();
            values.find(|(_, value)| !value.is_finite())
        }
        match self.dtype {
            DType::F64 => first(&self.bytes, f64::from_le_bytes),
            DType::F32 => first(&self.bytes, |bytes| f64::from(f32::from_le_bytes(bytes))),
            DType::BF16 => first(&self.bytes, |bytes| half::bf16::from_le_bytes(bytes).to_f64()),
            DType::F16 => first(&self.bytes, |bytes| half::f16::from_le_bytes(bytes).to_f64()),
            DType::I64 | DType::I32 | DType::U32 | DType::U8 | DType::Bool => None,
        }
    }

    /// Elements as numbers.
    ///
    /// # Errors
    /// If `T` is not the stored type, or a stored boolean is neither 0 nor 1.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, CheckpointError> {
        if T::DTYPE != self.dtype {
            return Err(CheckpointError::InvalidTensor {
                reason: format!("its elements are {}, not {}", self.dtype, T::DTYPE),
            });
        }
        T::from_bytes(&self.bytes).ok_or_else(|| CheckpointError::InvalidTensor {
            reason: format!("an element is not a valid {}", self.dtype),
        })
    }
}

fn check_len(dtype: DType, shape: &[usize], found: usize) -> Result<(), CheckpointError> {
    match dtype.byte_len(shape) {
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(CheckpointError::InvalidTensor {
            reason: format!("{dtype} {shape:?} takes {expected} bytes, found {found}"),
        }),
        None => Err(CheckpointError::InvalidTensor {
            reason: format!("{dtype} {shape:?} has more bytes than can be addressed"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_round_trips() {
        fn check<T: Element + PartialEq + fmt::Debug>(elements: &[T]) {
            let tensor = HostTensor::from_vec([elements.len()], elements.to_vec()).unwrap();
            assert_eq!(tensor.dtype(), T::DTYPE);
            assert_eq!(tensor.bytes().len(), elements.len() * T::DTYPE.size());
            assert_eq!(tensor.to_vec::<T>().unwrap(), elements);
        }
        check(&[1.5f64, f64::MIN]);
        check(&[1.5f32, -0.0, f32::INFINITY]);
        check(&[bf16::from_f32(3.0), bf16::MAX]);
        check(&[f16::from_f32(3.0), f16::MAX]);
        check(&[i64::MIN, 7]);
        check(&[i32::MIN, 7]);
        check(&[u32::MAX, 7]);
        check(&[255u8]);
        check(&[true, false, true]);
        check::<f32>(&[]);
    }

    #[test]
    fn lengths_and_types_are_checked() {
        assert!(HostTensor::from_vec([2, 3], vec![0f32; 5]).unwrap_err().to_string().contains("24 bytes, found 20"));
        assert!(HostTensor::new(DType::F32, [usize::MAX, 2], Vec::new()).is_err());
        assert!(HostTensor::from_vec([1], vec![0f32]).unwrap().to_vec::<i32>().is_err());
        assert!(HostTensor::new(DType::Bool, [1], vec![2u8]).unwrap().to_vec::<bool>().is_err());
        assert_eq!(DType::F32.byte_len(&[usize::MAX, usize::MAX, 0]), Some(0));
        assert_eq!(DType::F64.byte_len(&[]), Some(8));
    }

    #[test]
    fn names_are_those_of_safetensors() {
        for dtype in DType::ALL {
            let ours = serde_json::to_string(&dtype).unwrap();
            assert_eq!(ours, serde_json::to_string(&safetensors::Dtype::from(dtype)).unwrap());
            assert_eq!(ours, format!("\"{dtype}\""));
            assert_eq!(dtype.size() * 8, safetensors::Dtype::from(dtype).bitsize());
        }
    }
}
