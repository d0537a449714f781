//! AdamW on states of less than 32 bits, on Flex: slices of tensors, in place if the memory is
//! exclusive.

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Element, Tensor, TensorData};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::super::cpu::low_precision::{self as kernel, Place, Source, Weights, WeightsSource};
use super::super::low_precision::{LowPrecisionAdamW, LowPrecisionFormats};
use super::super::steps::AdamWConstants;
use super::super::stored::{Blocks, Master, MasterFormat, Remainders, Stored};

/// The Flex tensor of `x` with contiguous elements, for any dtype; `None` unless it is on Flex.
fn primitive(x: &Tensor<1>) -> Option<FloatTensor<Flex>> {
    let x = x.clone().without_autodiff().try_into_primitive::<Flex>().ok()?;
    Some(if x.is_contiguous() { x } else { x.to_contiguous() })
}

fn is_plain(x: &Tensor<1>) -> bool {
    !x.is_autodiff() && x.clone().try_into_primitive::<Flex>().is_ok()
}

/// True if all tensors are outside any graph and on Flex, and states have the requested formats
/// already.
pub(crate) fn applies_to(state: &LowPrecisionAdamW, gradient: &Tensor<1>, formats: &LowPrecisionFormats) -> bool {
    let has_form = match (state.parameter.dtype(), &state.master) {
        (DType::F32, None) => true,
        (DType::BF16, Some(master)) => master.has(formats.master),
        // Values in float32 begin with the parameter, and remainders with nothing.
        (DType::BF16, None) => formats.master != MasterFormat::Float16,
        (DType::F16, Some(master)) => master.has(formats.master) && formats.master != MasterFormat::Remainders,
        _ => false,
    };
    let moments = state.moments.iter().zip(formats.moments);
    has_form
        && is_plain(&state.parameter)
        && is_plain(gradient)
        && matches!(gradient.dtype(), DType::F32 | DType::BF16)
        && moments.into_iter().all(|(moment, format)| moment.format() == Some(format))
}

/// A tensor's elements, without a copy if the memory is exclusive.
fn take<E: Element>(x: Tensor<1>) -> Vec<E> {
    let x = x.try_into_primitive::<Flex>().expect("the caller asked whether it applies");
    x.into_data().try_into_vec().expect("the dtype was looked at")
}

fn owned<E: Element>(values: Vec<E>) -> Tensor<1> {
    let len = values.len();
    Tensor::from_primitive::<Flex>(FloatTensor::<Flex>::from_data(TensorData::new(values, [len])))
}

/// Elements that are updated in place.
enum Elements {
    Float32(Vec<f32>),
    BFloat16(Vec<bf16>),
    Float16(Vec<f16>, [f32; 2]),
    Float8(Arc<Vec<u8>>, [f32; 2]),
    Blocks(Blocks),
}

impl Elements {
    /// Takes the elements of a state, which gets the scale `next`.
    fn take(stored: Stored, next: f32) -> Self {
        match stored {
            Stored::Plain(values) if values.dtype() == DType::F32 => Self::Float32(take(values)),
            Stored::Plain(values) => Self::BFloat16(take(values)),
            Stored::Scaled { values, scale } => Self::Float16(take(values), [scale, next]),
            Stored::Codes { codes, scale } => Self::Float8(codes, [scale, next]),
            Stored::Blocks(blocks) => Self::Blocks(blocks),
        }
    }

    fn place(&mut self) -> Place<'_> {
        match self {
            Self::Float32(x) => Place::Float32(x),
            Self::BFloat16(x) => Place::BFloat16(x.reinterpret_cast_mut()),
            Self::Float16(x, scales) => Place::Float16(x.reinterpret_cast_mut(), *scales),
            Self::Float8(x, scales) => Place::Float8(Arc::<Vec<u8>>::make_mut(x).as_mut_slice(), *scales),
            Self::Blocks(blocks) => Place::Blocks(blocks.as_mut_slice()),
        }
    }

    fn stored(self) -> Stored {
        match self {
            Self::Float32(x) => Stored::Plain(owned(x)),
            Self::BFloat16(x) => Stored::Plain(owned(x)),
            Self::Float16(x, [_, scale]) => Stored::Scaled { values: owned(x), scale },
            Self::Float8(codes, [_, scale]) => Stored::Codes { codes, scale },
            Self::Blocks(blocks) => Stored::Blocks(blocks),
        }
    }

    /// A parameter of 16 bits, which has no scale.
    fn of_parameter(x: Tensor<1>) -> Self {
        match x.dtype() {
            DType::F16 => Self::Float16(take(x), [1.0; 2]),
            _ => Self::BFloat16(take(x)),
        }
    }

    fn parameter(self) -> Tensor<1> {
        match self {
            Self::Float16(x, _) => owned(x),
            Self::BFloat16(x) => owned(x),
            Self::Float32(x) => owned(x),
            Self::Float8(..) | Self::Blocks(_) => unreachable!("parameters are not codes"),
        }
    }
}

/// See [`adamw_low_precision`](super::super::adamw_low_precision). Only for tensors that it
/// [`applies_to`].
pub(crate) fn adamw(
    state: LowPrecisionAdamW,
    gradient: &Tensor<1>,
    step: AdamWConstants,
    formats: &LowPrecisionFormats,
    scales: [f32; 3],
) -> LowPrecisionAdamW {
    let LowPrecisionAdamW { parameter, master, moments: [exp_avg, exp_avg_sq] } = state;
    let gradient = primitive(gradient).expect("the caller asked whether it applies");
    let gradient = source_of(&gradient).expect("the caller asked whether it applies");
    let (mut m, mut v) = (Elements::take(exp_avg, scales[1]), Elements::take(exp_avg_sq, scales[2]));
    let (parameter, master) = if parameter.dtype() == DType::F32 {
        let mut values = take::<f32>(parameter);
        kernel::adamw(Weights::Float32(&mut values), [m.place(), v.place()], gradient, step);
        (owned(values), None)
    } else {
        let master = master.unwrap_or_else(|| begin(&parameter, formats.master));
        let mut value = Elements::of_parameter(parameter);
        match master {
            Master::Whole(stored) => {
                let mut wide = Elements::take(*stored, scales[0]);
                let weights = Weights::Master { value: value.place(), master: wide.place() };
                kernel::adamw(weights, [m.place(), v.place()], gradient, step);
                (value.parameter(), Some(Master::Whole(Box::new(wide.stored()))))
            }
            Master::Remainders(Remainders { mut low, ties }) => {
                let Place::BFloat16(high) = value.place() else {
                    unreachable!("remainders are of bfloat16 parameters");
                };
                let halves: &mut Vec<u16> = Arc::make_mut(&mut low);
                let weights = Weights::Remainders { value: high, low: halves, ties: &ties };
                let ties = Arc::new(kernel::adamw(weights, [m.place(), v.place()], gradient, step));
                (value.parameter(), Some(Master::Remainders(Remainders { low, ties })))
            }
        }
    };
    LowPrecisionAdamW { parameter, master, moments: [m.stored(), v.stored()] }
}

/// The master of a bfloat16 parameter that has not been updated yet.
fn begin(parameter: &Tensor<1>, format: MasterFormat) -> Master {
    match format {
        MasterFormat::Remainders => {
            let low = Arc::new(vec![0; parameter.dims()[0]]);
            Master::Remainders(Remainders { low, ties: Arc::default() })
        }
        MasterFormat::Float32 | MasterFormat::Float16 => {
            let wide = Stored::Plain(parameter.clone()).widen(&parameter.device());
            Master::Whole(Box::new(Stored::Plain(wide)))
        }
    }
}

/// A tensor's elements.
fn source_of(x: &FloatTensor<Flex>) -> Option<Source<'_>> {
    match x.dtype() {
        DType::F32 => x.as_slice::<f32>().map(Source::Float32),
        DType::BF16 => x.as_slice::<bf16>().map(|x| Source::BFloat16(x.reinterpret_cast())),
        DType::F16 => x.as_slice::<f16>().map(|x| Source::Float16(x.reinterpret_cast(), 1.0)),
        _ => None,
    }
}

/// Elements that are only read.
enum Read<'a> {
    Tensor(FloatTensor<Flex>, f32),
    Codes(&'a [u8], f32),
    Blocks(&'a Blocks),
}

impl<'a> Read<'a> {
    fn from_stored(stored: &'a Stored) -> Option<Self> {
        match stored {
            Stored::Plain(values) => Some(Self::Tensor(primitive(values)?, 1.0)),
            Stored::Scaled { values, scale } => Some(Self::Tensor(primitive(values)?, *scale)),
            Stored::Codes { codes, scale } => Some(Self::Codes(codes, *scale)),
            Stored::Blocks(blocks) => Some(Self::Blocks(blocks)),
        }
    }

    fn source(&self) -> Option<Source<'_>> {
        match self {
            Self::Tensor(x, scale) => match source_of(x)? {
                Source::Float16(x, _) => Some(Source::Float16(x, *scale)),
                source => Some(source),
            },
            Self::Codes(codes, scale) => Some(Source::Float8(codes, *scale)),
            Self::Blocks(blocks) => Some(Source::Blocks(blocks.as_slice())),
        }
    }
}

/// See [`adamw_magnitudes`](super::super::adamw_magnitudes); `None` where something is not on Flex.
pub(crate) fn magnitudes(state: &LowPrecisionAdamW, gradient: &Tensor<1>, step: AdamWConstants) -> Option<[f32; 3]> {
    let (gradient, parameter) = (primitive(gradient)?, primitive(&state.parameter)?);
    let [exp_avg, exp_avg_sq] = state.moments.each_ref().map(Read::from_stored);
    let (exp_avg, exp_avg_sq) = (exp_avg?, exp_avg_sq?);
    let moments = [exp_avg.source()?, exp_avg_sq.source()?];
    let master = match &state.master {
        Some(Master::Whole(stored)) => Some(Read::from_stored(stored)?),
        _ => None,
    };
    let weights = match (&state.master, &master) {
        (Some(Master::Remainders(Remainders { low, ties })), _) => {
            let Source::BFloat16(value) = source_of(&parameter)? else { return None };
            WeightsSource::Remainders { value, low, ties }
        }
        (_, Some(master)) => WeightsSource::Plain(master.source()?),
        (_, None) => WeightsSource::Plain(source_of(&parameter)?),
    };
    Some(kernel::magnitudes(weights, moments, source_of(&gradient)?, step))
}
