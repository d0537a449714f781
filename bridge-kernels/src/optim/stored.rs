//! States of an optimizer in the formats in which they are kept, and masters of parameters in 16
//! bits. Their elements are coded by `cpu/small` and `formats`.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::cpu::blocks::{BLOCK, BlockSlice, BlockSliceMut, round};
use super::cpu::low_precision::{Place, Source, joined, largest, narrow, remainders, widened};
use super::formats::{BlockCode, Format};
use crate::flex::Values;
use crate::precision::widen;

/// A state, or the range of it that a rank has, flat. Cloning shares the elements.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Floats without a scale.
    Plain(Tensor<1>),
    /// float16 ([`Format::Float16`]): multiples of a scale.
    Scaled {
        /// The elements.
        values: Tensor<1>,
        /// Value of a code of one.
        scale: f32,
    },
    /// 8-bit floats ([`Format::Float8`]): multiples of a scale. They are in host memory for any
    /// device.
    Codes {
        /// The elements.
        codes: Arc<Vec<u8>>,
        /// Value of a code of one.
        scale: f32,
    },
    /// Codes by blocks ([`Format::Blocks`]). They are in host memory for any device.
    Blocks(Blocks),
}

/// Elements as multiples of one scale a block.
#[derive(Clone, Debug)]
pub struct Blocks {
    code: BlockCode,
    len: usize,
    pub(super) codes: Arc<Vec<u8>>,
    pub(super) scales: Arc<Vec<f32>>,
}

impl Blocks {
    fn zeros(len: usize, code: BlockCode) -> Self {
        let (codes, scales) = (vec![0; code.bytes(len)], vec![0.0; len.div_ceil(BLOCK)]);
        Self { code, len, codes: Arc::new(codes), scales: Arc::new(scales) }
    }

    fn rounded(values: &[f32], code: BlockCode, by: impl Fn(BlockCode, &[f32], &mut [u8], &mut [f32]) + Sync) -> Self {
        let mut blocks = Self::zeros(values.len(), code);
        round(blocks.as_mut_slice(), values, by);
        blocks
    }

    pub(super) fn as_slice(&self) -> BlockSlice<'_> {
        BlockSlice { code: self.code, codes: &self.codes, scales: &self.scales, len: self.len }
    }

    pub(super) fn as_mut_slice(&mut self) -> BlockSliceMut<'_> {
        let (codes, scales): (&mut Vec<u8>, &mut Vec<f32>) =
            (Arc::make_mut(&mut self.codes), Arc::make_mut(&mut self.scales));
        BlockSliceMut { code: self.code, codes, scales, len: self.len }
    }

    /// The values of some elements.
    pub fn widen(&self, range: Range<usize>) -> Vec<f32> {
        // Only blocks can be widened from their beginning.
        let start = range.start - range.start % BLOCK;
        let mut values = widened(Source::Blocks(self.as_slice().part(start, range.end - start)));
        drop(values.drain(..range.start - start));
        values
    }
}

impl Stored {
    /// Zeros of this length.
    pub fn zeros(len: usize, format: Format, device: &Device) -> Self {
        let zeros = |dtype: FloatDType| Tensor::zeros([len], (device, DType::from(dtype)));
        match format {
            Format::Float32 => Self::Plain(zeros(FloatDType::F32)),
            Format::BFloat16 => Self::Plain(zeros(FloatDType::BF16)),
            Format::Float16 => Self::Scaled { values: zeros(FloatDType::F16), scale: 1.0 },
            Format::Float8 => Self::Codes { codes: Arc::new(vec![0; len]), scale: 1.0 },
            Format::Blocks(code) => Self::Blocks(Blocks::zeros(len, code)),
        }
    }

    /// Float32 values rounded to nearest even; `scale` is 1 for formats without one.
    pub fn narrow(values: Tensor<1>, format: Format, scale: f32) -> Self {
        match format {
            Format::Float32 => Self::Plain(values),
            Format::BFloat16 => Self::Plain(values.cast(FloatDType::BF16)),
            Format::Float16 => {
                let largest = f64::from(half::f16::MAX.to_f32());
                let values = (values / scale).clamp(-largest, largest).cast(FloatDType::F16);
                Self::Scaled { values, scale }
            }
            Format::Float8 => {
                let values = host(values);
                let mut codes = vec![0; values.len()];
                narrow(Place::Float8(&mut codes, [1.0, scale]), &values);
                Self::Codes { codes: Arc::new(codes), scale }
            }
            Format::Blocks(code) => Self::Blocks(Blocks::rounded(&host(values), code, BlockCode::narrow)),
        }
    }

    /// This state by blocks if that is its format, with the codes and scales that it had when it
    /// was widened.
    #[must_use]
    pub fn recovered(self, format: Format) -> Self {
        match (self, format) {
            (Self::Plain(values), Format::Blocks(code)) if values.dtype() == DType::F32 => {
                Self::Blocks(Blocks::rounded(&host(values), code, BlockCode::recover))
            }
            (other, _) => other,
        }
    }

    /// The values in float32. Codes come to `device`.
    pub fn widen(&self, device: &Device) -> Tensor<1> {
        match self {
            Self::Plain(values) => widen(values.clone()),
            Self::Scaled { values, scale } => widen(values.clone()) * *scale,
            Self::Codes { codes, scale } => on_device(widened(Source::Float8(codes, *scale)), device),
            Self::Blocks(blocks) => on_device(blocks.widen(0..blocks.len), device),
        }
    }

    /// [`widen`](Self::widen) by value: float32 values are moved.
    pub fn into_plain(self, device: &Device) -> Tensor<1> {
        match self {
            Self::Plain(values) => widen(values),
            other => other.widen(device),
        }
    }

    /// The format; `None` for floats of another dtype.
    pub fn format(&self) -> Option<Format> {
        match self {
            Self::Plain(values) => match values.dtype() {
                DType::F32 => Some(Format::Float32),
                DType::BF16 => Some(Format::BFloat16),
                _ => None,
            },
            Self::Scaled { .. } => Some(Format::Float16),
            Self::Codes { .. } => Some(Format::Float8),
            Self::Blocks(blocks) => Some(Format::Blocks(blocks.code)),
        }
    }

    /// The scale of the tensor, where there is one.
    pub fn scale(&self) -> Option<f32> {
        match self {
            Self::Plain(_) | Self::Blocks(_) => None,
            Self::Scaled { scale, .. } | Self::Codes { scale, .. } => Some(*scale),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(values) | Self::Scaled { values, .. } => values.dims()[0],
            Self::Codes { codes, .. } => codes.len(),
            Self::Blocks(blocks) => blocks.len,
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements and of scales.
    pub fn bytes(&self) -> u64 {
        let elements = match self {
            Self::Plain(values) | Self::Scaled { values, .. } => values.dims()[0] * values.dtype().size(),
            Self::Codes { codes, .. } => codes.len(),
            Self::Blocks(Blocks { codes, scales, .. }) => codes.len() + size_of_val(scales.as_slice()),
        };
        elements as u64 + if self.scale().is_some() { size_of::<f32>() as u64 } else { 0 }
    }

    /// Some of the elements, with the scale of all; of elements by blocks the values.
    #[must_use]
    pub fn part(&self, range: &Range<usize>) -> Self {
        if *range == (0..self.len()) {
            return self.clone();
        }
        match self {
            Self::Plain(values) => Self::Plain(values.clone().slice(range.clone())),
            Self::Scaled { values, scale } => {
                Self::Scaled { values: values.clone().slice(range.clone()), scale: *scale }
            }
            Self::Codes { codes, scale } => {
                Self::Codes { codes: Arc::new(codes[range.clone()].to_vec()), scale: *scale }
            }
            Self::Blocks(blocks) => Self::Plain(on_device(blocks.widen(range.clone()), &Device::flex())),
        }
    }

    /// Address of the first element in the memory of this process; `None` if it is in other memory.
    pub fn address(&self) -> Option<usize> {
        match self {
            Self::Plain(values) | Self::Scaled { values, .. } => {
                let values = values.clone().without_autodiff().try_into_primitive::<Flex>().ok()?;
                Some(values.bytes().as_ptr().addr() + values.layout().start_offset() * values.dtype().size())
            }
            Self::Codes { codes, .. } | Self::Blocks(Blocks { codes, .. }) => Some(codes.as_ptr().addr()),
        }
    }

    /// The elements as they are kept, without the scale; of elements by blocks the values.
    pub fn to_data(&self) -> TensorData {
        match self {
            Self::Plain(values) | Self::Scaled { values, .. } => values.to_data(),
            Self::Codes { codes, .. } => TensorData::new(codes.to_vec(), [codes.len()]),
            Self::Blocks(blocks) => TensorData::new(blocks.widen(0..blocks.len), [blocks.len]),
        }
    }
}

/// Format of the float32 master value of a 16-bit parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterFormat {
    /// float32.
    Float32,
    /// float16, times a scale of the tensor.
    Float16,
    /// The low half of the float32: the bfloat16 parameter is the high half. Lossless.
    Remainders,
}

impl MasterFormat {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Float32 => 4,
            Self::Float16 | Self::Remainders => 2,
        }
    }

    /// The format of whole values; `None` for remainders.
    pub const fn whole(self) -> Option<Format> {
        match self {
            Self::Float32 => Some(Format::Float32),
            Self::Float16 => Some(Format::Float16),
            Self::Remainders => None,
        }
    }
}

/// Remainders of float32 values beyond their nearest bfloat16 numbers.
#[derive(Clone, Debug)]
pub struct Remainders {
    /// The low half of each value.
    pub low: Arc<Vec<u16>>,
    /// The places, in order, of values midway between two bfloat16 numbers that were rounded up,
    /// which cannot be told from the two halves. One in 131072 on average.
    pub ties: Arc<Vec<u32>>,
}

impl Remainders {
    /// Remainders of float32 values; `None` if a value does not round to its element of
    /// `parameter`, which is bfloat16.
    pub fn split(values: Tensor<1>, parameter: &Tensor<1>) -> Option<Self> {
        let (low, ties) = remainders(&host(values), &halves(parameter.clone()))?;
        Some(Self { low: Arc::new(low), ties: Arc::new(ties) })
    }

    /// The float32 values whose nearest bfloat16 numbers are the elements `range` of `parameter`,
    /// in order.
    pub fn join(&self, parameter: &[u16], range: Range<usize>) -> Vec<f32> {
        joined(&parameter[range.clone()], &self.low[range.clone()], &self.ties, range.start)
    }
}

/// The float32 value of a parameter in 16 bits, or the range of it that a rank has.
#[derive(Clone, Debug)]
pub enum Master {
    /// Stored independently of the parameter.
    Whole(Box<Stored>),
    /// Together with the parameter.
    Remainders(Remainders),
}

impl Master {
    /// The values in float32; `parameter` has the rounded values.
    pub fn widen(&self, parameter: &Tensor<1>) -> Tensor<1> {
        match self {
            Self::Whole(stored) => stored.widen(&parameter.device()),
            Self::Remainders(remainders) => {
                let values = halves(parameter.clone());
                on_device(remainders.join(&values, 0..values.len()), &parameter.device())
            }
        }
    }

    /// Float32 values that were rounded to `parameter`.
    ///
    /// # Panics
    /// If the format is remainders and `parameter` is not the rounding of the values.
    pub fn narrow(values: Tensor<1>, format: MasterFormat, scale: f32, parameter: &Tensor<1>) -> Self {
        match format.whole() {
            Some(format) => Self::Whole(Box::new(Stored::narrow(values, format, scale))),
            None => {
                let remainders = Remainders::split(values, parameter);
                Self::Remainders(remainders.expect("the parameter is what the values were rounded to"))
            }
        }
    }

    /// True if the master value is kept in this format.
    pub fn has(&self, format: MasterFormat) -> bool {
        match self {
            Self::Whole(stored) => format.whole().is_some_and(|format| stored.format() == Some(format)),
            Self::Remainders(_) => format == MasterFormat::Remainders,
        }
    }

    /// Bytes, but for the few of ties.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Whole(stored) => stored.bytes(),
            Self::Remainders(remainders) => size_of_val(remainders.low.as_slice()) as u64,
        }
    }
}

/// The bits of a bfloat16 tensor.
///
/// # Panics
/// If it is of another dtype.
pub fn halves(values: Tensor<1>) -> Vec<u16> {
    let values: Vec<bf16> = values.into_data().try_into_vec().expect("remainders are of bfloat16 parameters");
    values.reinterpret_cast().to_vec()
}

/// The largest magnitude of float32 values.
pub(super) fn magnitude(values: Tensor<1>) -> f32 {
    match Values::contiguous_of(&values) {
        Some(values) => largest(values.slice()),
        None if values.dims()[0] == 0 => 0.0,
        None => values.abs().max().into_scalar(),
    }
}

fn host(values: Tensor<1>) -> Vec<f32> {
    values.into_data().try_into_vec().expect("the values are float32")
}

fn on_device(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), (device, DType::F32))
}
