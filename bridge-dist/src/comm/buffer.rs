//! Typed host memory for collectives: element types, borrowed and owned buffers. No communication
//! happens here.

use std::fmt;

use bytemuck::Pod;
use half::bf16;

/// The element types a [`Communicator`](crate::comm::Communicator) moves and reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// 32-bit float.
    F32 = 1,
    /// 16-bit brain float. Sums and averages accumulate in float32 and are rounded once.
    Bf16 = 2,
    /// 64-bit float.
    F64 = 3,
    /// 64-bit signed integer. Sums wrap.
    I64 = 4,
    /// 32-bit signed integer. Sums wrap.
    I32 = 5,
    /// Byte. Sums wrap.
    U8 = 6,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 6] = [Self::F32, Self::Bf16, Self::F64, Self::I64, Self::I32, Self::U8];

    /// Size of one element in bytes; also its alignment on all supported platforms.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// True if elements are floating-point numbers (and so have an average).
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::F64)
    }

    fn alignment(self) -> usize {
        match self {
            Self::F32 => align_of::<f32>(),
            Self::Bf16 => align_of::<bf16>(),
            Self::F64 => align_of::<f64>(),
            Self::I64 => align_of::<i64>(),
            Self::I32 => align_of::<i32>(),
            Self::U8 => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U8 => "u8",
        })
    }
}

/// Operation that combines elements of different ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// `x0 + x1 + ...` in rank order; bf16 accumulates in float32, integers wrap.
    Sum = 1,
    /// The largest; NaN if any element is NaN.
    Max = 2,
    /// The smallest; NaN if any element is NaN.
    Min = 3,
    /// The rank-ordered sum divided by the number of ranks. Floating-point types only.
    Avg = 4,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        })
    }
}

/// Bytes that cannot be viewed as elements of the requested type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The byte count is not a multiple of the element size.
    #[error("{found} bytes are not a whole number of {dtype} elements ({size} bytes each)", size = dtype.size())]
    Length {
        /// Requested element type.
        dtype: DType,
        /// Bytes given.
        found: usize,
    },
    /// The first byte is not aligned for the element type.
    #[error("the bytes start at an address that is not aligned for {dtype}")]
    Alignment {
        /// Requested element type.
        dtype: DType,
    },
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element of a buffer. Implemented for `f32`, `bf16`, `f64`, `i64`, `i32`
/// and `u8`.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The run-time name of this type.
    const DTYPE: DType;
    #[doc(hidden)]
    fn wrap(values: Vec<Self>) -> HostBuffer;
    #[doc(hidden)]
    fn unwrap(buffer: HostBuffer) -> Result<Vec<Self>, HostBuffer>;
}

/// An owned buffer, which non-blocking operations take and return.
#[derive(Clone, Debug, PartialEq)]
pub enum HostBuffer {
    /// float32 elements.
    F32(Vec<f32>),
    /// bfloat16 elements.
    Bf16(Vec<bf16>),
    /// float64 elements.
    F64(Vec<f64>),
    /// int64 elements.
    I64(Vec<i64>),
    /// int32 elements.
    I32(Vec<i32>),
    /// bytes.
    U8(Vec<u8>),
}

macro_rules! elements {
    ($($variant:ident: $type:ty),*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$variant;
                fn wrap(values: Vec<Self>) -> HostBuffer {
                    HostBuffer::$variant(values)
                }
                fn unwrap(buffer: HostBuffer) -> Result<Vec<Self>, HostBuffer> {
                    match buffer {
                        HostBuffer::$variant(values) => Ok(values),
                        other => Err(other),
                    }
                }
            }
        )*

        impl HostBuffer {
            /// `len` zeros.
            pub fn zeros(dtype: DType, len: usize) -> Self {
                match dtype {
                    $(DType::$variant => Self::$variant(bytemuck::zeroed_vec(len)),)*
                }
            }

            /// The element type.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)*
                }
            }

            /// A borrowed view.
            pub fn view(&self) -> Buffer<'_> {
                match self {
                    $(Self::$variant(values) => Buffer::from(values.as_slice()),)*
                }
            }

            /// A mutable borrowed view.
            pub fn view_mut(&mut self) -> BufferMut<'_> {
                match self {
                    $(Self::$variant(values) => BufferMut::from(values.as_mut_slice()),)*
                }
            }
        }

        impl From<Buffer<'_>> for HostBuffer {
            /// Copies the elements.
            fn from(buffer: Buffer<'_>) -> Self {
                match buffer.dtype {
                    $(DType::$variant => Self::$variant(bytemuck::cast_slice(buffer.bytes).to_vec()),)*
                }
            }
        }
    };
}

elements!(F32: f32, Bf16: bf16, F64: f64, I64: i64, I32: i32, U8: u8);

impl HostBuffer {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, or the unchanged buffer if it holds another type.
    ///
    /// # Errors
    /// The unchanged buffer when `T` is not its element type.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, Self> {
        T::unwrap(self)
    }
}

impl<T: Element> From<Vec<T>> for HostBuffer {
    fn from(values: Vec<T>) -> Self {
        T::wrap(values)
    }
}

/// Borrowed elements that an operation reads. Made with `From` from slices, arrays and vectors of
/// an [`Element`].
#[derive(Clone, Copy)]
pub struct Buffer<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

/// Borrowed elements that an operation writes. Made with `From` from slices, arrays and vectors of
/// an [`Element`].
pub struct BufferMut<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
}

impl<'a> Buffer<'a> {
    /// Views bytes, for instance those of a tensor, as elements.
    ///
    /// # Errors
    /// If the bytes are not a whole number of elements, or not aligned for them.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Result<Self, BufferError> {
        check_bytes(dtype, bytes)?;
        Ok(Self { dtype, bytes })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The memory.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, or `None` if they have another type.
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        (T::DTYPE == self.dtype).then(|| bytemuck::cast_slice(self.bytes))
    }

    /// Elements `start..end`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Buffer<'a> {
        let size = self.dtype.size();
        Buffer { dtype: self.dtype, bytes: &self.bytes[range.start * size..range.end * size] }
    }
}

impl<'a> BufferMut<'a> {
    /// Views bytes as elements to be written.
    ///
    /// # Errors
    /// If the bytes are not a whole number of elements, or not aligned for them.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Result<Self, BufferError> {
        check_bytes(dtype, bytes)?;
        Ok(Self { dtype, bytes })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A read-only view.
    pub fn view(&self) -> Buffer<'_> {
        Buffer { dtype: self.dtype, bytes: self.bytes }
    }

    /// Reborrows the same elements, so that the buffer can be passed on and used again.
    pub fn reborrow(&mut self) -> BufferMut<'_> {
        BufferMut { dtype: self.dtype, bytes: self.bytes }
    }

    /// The memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The elements, or `None` if they have another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        (T::DTYPE == self.dtype).then(|| bytemuck::cast_slice_mut(self.bytes))
    }

    /// Elements `start..end`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn slice(&mut self, range: std::ops::Range<usize>) -> BufferMut<'_> {
        let size = self.dtype.size();
        BufferMut { dtype: self.dtype, bytes: &mut self.bytes[range.start * size..range.end * size] }
    }

    /// Copies all elements of `source`, which has the same type and length.
    ///
    /// # Panics
    /// If type or length differ.
    pub fn copy_from(&mut self, source: Buffer<'_>) {
        assert_eq!(self.dtype, source.dtype, "element types of a copy");
        self.bytes.copy_from_slice(source.bytes);
    }
}

fn check_bytes(dtype: DType, bytes: &[u8]) -> Result<(), BufferError> {
    if !bytes.len().is_multiple_of(dtype.size()) {
        return Err(BufferError::Length { dtype, found: bytes.len() });
    }
    if !bytes.as_ptr().addr().is_multiple_of(dtype.alignment()) {
        return Err(BufferError::Alignment { dtype });
    }
    Ok(())
}

impl<'a, T: Element> From<&'a [T]> for Buffer<'a> {
    fn from(values: &'a [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice(values) }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for BufferMut<'a> {
    fn from(values: &'a mut [T]) -> Self {
        Self { dtype: T::DTYPE, bytes: bytemuck::cast_slice_mut(values) }
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Buffer<'a> {
    fn from(values: &'a Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for BufferMut<'a> {
    fn from(values: &'a mut Vec<T>) -> Self {
        values.as_mut_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Buffer<'a> {
    fn from(values: &'a [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for BufferMut<'a> {
    fn from(values: &'a mut [T; N]) -> Self {
        values.as_mut_slice().into()
    }
}

impl fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {})", self.len(), self.dtype)
    }
}

impl fmt::Debug for BufferMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} x {})", self.len(), self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_be_whole_and_aligned() {
        let words = [0u64; 2];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        assert_eq!(Buffer::from_bytes(DType::F32, bytes).unwrap().len(), 4);
        assert_eq!(
            Buffer::from_bytes(DType::F64, &bytes[..12]).unwrap_err(),
            BufferError::Length { dtype: DType::F64, found: 12 }
        );
        assert_eq!(
            Buffer::from_bytes(DType::F32, &bytes[1..5]).unwrap_err(),
            BufferError::Alignment { dtype: DType::F32 }
        );
    }

    #[test]
    fn owned_buffers_remember_their_type() {
        for dtype in DType::ALL {
            let buffer = HostBuffer::zeros(dtype, 3);
            assert_eq!((buffer.dtype(), buffer.len()), (dtype, 3));
            assert_eq!(HostBuffer::from(buffer.view()), buffer);
        }
        let wrong = HostBuffer::from(vec![1i32, 2]).into_vec::<f32>();
        assert_eq!(wrong, Err(HostBuffer::I32(vec![1, 2])));
    }
}
