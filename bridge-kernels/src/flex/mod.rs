//! Code that the operations' files `flex.rs` share, the fast implementations on Burn tensors:
//! slices of tensors, gradients for pullbacks.
//!
//! Such a file takes slices out of tensors, calls its kernels in `cpu.rs` beside it, and attaches a
//! pullback. Its functions return `None` where they do not apply (another device, another dtype);
//! the caller then uses the reference.

mod kernels;

use std::marker::PhantomData;

use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchTensor, Flex};
use burn::tensor::{DType, Int, Tensor, TensorData};
use half::bf16;

use crate::cpu::documents;
use crate::cpu::element::{Element, narrowed, widened};
use crate::cpu::gemm::Matrix;
use crate::offload::Kept;
use crate::vjp::{self, Lift};

/// A tensor of elements `E` in the memory of this process.
#[derive(Clone)]
pub(crate) struct Typed<E>(pub FloatTensor<Flex>, PhantomData<E>);

/// A float32 tensor in the memory of this process.
pub(crate) type Values = Typed<f32>;

/// Evaluates an expression that returns an `Option` with the element type of a tensor, of float32
/// or bfloat16; `None` for other dtypes.
macro_rules! by_element {
    ($x:expr, $element:ident => $body:expr) => {
        match $x.dtype() {
            burn::tensor::DType::F32 => {
                type $element = f32;
                $body
            }
            burn::tensor::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            _ => None,
        }
    };
}

impl Values {
    /// [`Self::contiguous_of`], widened if it is bfloat16: for vectors, of which a copy is cheap.
    pub fn widened_of<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        match x.dtype() {
            DType::BF16 => Some(Self::from_vec(widened(Typed::<bf16>::contiguous_of(x)?.slice()), x.dims())),
            _ => Self::contiguous_of(x),
        }
    }

    /// [`Self::widened_of`] a tensor, if there is one; `None` if it is somewhere else.
    pub fn optional_widened_of<const D: usize>(x: Option<&Tensor<D>>) -> Option<Option<Self>> {
        x.map_or(Some(None), |x| Self::widened_of(x).map(Some))
    }
}

impl<E: Element> Typed<E> {
    /// The tensor behind `x`, without its place in a graph; `None` unless it has such elements on
    /// Flex.
    pub fn from_tensor<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        (x.dtype() == E::DTYPE).then_some(())?;
        x.clone().without_autodiff().try_into_primitive::<Flex>().ok().map(Self::new)
    }

    /// A primitive that has such elements.
    pub fn new(primitive: FloatTensor<Flex>) -> Self {
        Self(primitive, PhantomData)
    }

    /// As [`Self::from_tensor`], with the elements side by side.
    pub fn contiguous_of<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        Self::from_tensor(x).map(Self::contiguous)
    }

    /// [`Self::contiguous_of`] a tensor, if there is one; `None` if it is somewhere else.
    pub fn of_optional<const D: usize>(x: Option<&Tensor<D>>) -> Option<Option<Self>> {
        x.map_or(Some(None), |x| Self::contiguous_of(x).map(Some))
    }

    /// A contiguous tensor of its own.
    pub fn from_vec<const D: usize>(values: Vec<E>, shape: [usize; D]) -> Self {
        Self::new(FloatTensor::<Flex>::from_data(TensorData::new(values, shape)))
    }

    /// The gradient that a pullback is given.
    pub fn from_gradient<const D: usize>(gradient: Tensor<D>) -> Self {
        let primitive = gradient.try_into_primitive::<Flex>();
        let gradient = Self::new(primitive.expect("the gradient of a Flex tensor is a Flex tensor")).contiguous();
        assert_eq!(gradient.0.dtype(), E::DTYPE, "a gradient has the dtype of its tensor");
        gradient
    }

    pub fn contiguous(self) -> Self {
        if self.0.is_contiguous() { self } else { Self::new(self.0.to_contiguous()) }
    }

    /// The elements of a contiguous tensor.
    pub fn slice(&self) -> &[E] {
        self.0.as_slice().expect("the tensor was made contiguous and has such elements")
    }

    /// The elements as a vector, without a copy if the memory is exclusive.
    pub fn into_vec(self) -> Vec<E> {
        self.0.into_data().try_into_vec().expect("the tensor has such elements")
    }

    /// Everything from the first element on, and the strides; `None` if a stride is negative.
    pub fn strided(&self) -> Option<(&[E], Vec<usize>)> {
        let layout = self.0.layout();
        let strides: Option<Vec<usize>> = layout.strides().iter().map(|s| usize::try_from(*s).ok()).collect();
        Some((&self.0.storage()[layout.start_offset()..], strides?))
    }

    /// A two-dimensional tensor as a matrix, transposed or sliced views included. Panics if a
    /// stride is negative: see [`Self::without_flips`].
    pub fn matrix(&self) -> Matrix<'_, E> {
        let [rows, cols] = self.0.layout().shape().dims();
        let (data, strides) = self.strided().expect("flipped views were copied");
        Matrix::strided(data, rows, cols, strides[0], strides[1])
    }

    /// The same tensor, copied if a dimension runs backwards.
    pub fn without_flips(self) -> Self {
        if self.strided().is_some() { self } else { Self::new(self.0.to_contiguous()) }
    }
}

/// Activation that a pullback keeps; see [`Kept`]. Its memory is on the host anyway, so only tests
/// move it.
pub(crate) struct KeptValues<E = f32>(Kept, PhantomData<E>);

impl<E: Element> KeptValues<E> {
    /// The tensor again. If it was moved, its elements are side by side.
    pub fn values(self) -> Typed<E> {
        Typed::new(Flex::lower(self.0.into_dispatch()))
    }
}

impl<E: Element> Typed<E> {
    /// The tensor as a pullback keeps it: for activations, never for parameters.
    pub fn kept(self) -> KeptValues<E> {
        KeptValues(Kept::new(Flex::lift(self.0)), PhantomData)
    }
}

/// A float32 copy of a tensor of bfloat16; `None` for other tensors.
pub(crate) fn widened_tensor<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    let (values, dims) = (Typed::<bf16>::contiguous_of(x)?, x.dims());
    let y = tensor(widened(values.slice()), dims);
    Some(attach_one(y, x.clone(), move |dy: Values| gradient(narrowed(dy.slice()), dims)))
}

/// A copy in bfloat16 of a float32 tensor; `None` for other tensors.
pub(crate) fn narrowed_tensor<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    let (values, dims) = (Values::contiguous_of(x)?, x.dims());
    let y = tensor(narrowed(values.slice()), dims);
    Some(attach_one(y, x.clone(), move |dy: Typed<bf16>| gradient(widened(dy.slice()), dims)))
}

/// The inputs of an operation on a tensor, a weight and perhaps a bias.
pub(crate) fn inputs<const D: usize, const E: usize>(
    x: &Tensor<D>,
    weight: &Tensor<E>,
    bias: Option<&Tensor<1>>,
) -> Vec<DispatchTensor> {
    let mut inputs = vec![x.clone().into_dispatch(), weight.clone().into_dispatch()];
    inputs.extend(bias.map(|bias| bias.clone().into_dispatch()));
    inputs
}

/// A tensor that owns `values`.
pub(crate) fn tensor<E: Element, const D: usize>(values: Vec<E>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(Typed::from_vec(values, shape).0)
}

/// A gradient for a pullback to return.
pub(crate) fn gradient<E: Element, const D: usize>(values: Vec<E>, shape: [usize; D]) -> Option<DispatchTensor> {
    Some(Flex::lift(Typed::from_vec(values, shape).0))
}

/// [`gradient`] of float32 sums for a tensor of a dtype.
pub(crate) fn rounded_gradient<const D: usize>(
    values: Vec<f32>,
    shape: [usize; D],
    dtype: DType,
) -> Option<DispatchTensor> {
    match dtype {
        DType::BF16 => gradient(narrowed(&values), shape),
        _ => gradient(values, shape),
    }
}

/// Non-negative integers; `None` for a tensor that is not on Flex. Panics if one is negative.
pub(crate) fn indices<const D: usize>(ids: &Tensor<D, Int>) -> Option<Vec<usize>> {
    let integers = integers(ids)?;
    let index = |(position, id): (usize, &i64)| {
        usize::try_from(*id).unwrap_or_else(|_| panic!("index {id} at position {position} is negative"))
    };
    Some(integers.iter().enumerate().map(index).collect())
}

/// Integers of any width; `None` for a tensor that is not on Flex.
pub(crate) fn integers<const D: usize>(ids: &Tensor<D, Int>) -> Option<Vec<i64>> {
    let primitive = ids.clone().without_autodiff().try_into_primitive::<Flex>().ok()?;
    Some(primitive.into_data().iter::<i64>().collect())
}

/// [`integers`] of a tensor, if there is one.
pub(crate) fn optional_integers<const D: usize>(ids: Option<&Tensor<D, Int>>) -> Option<Option<Vec<i64>>> {
    ids.map_or(Some(None), |ids| integers(ids).map(Some))
}

/// The first token of each token's document in `b` sequences of `t` tokens, see
/// [`documents::starts`].
pub(crate) fn document_starts(ids_bt: Option<&Tensor<2, Int>>, [b, t]: [usize; 2]) -> Option<Vec<usize>> {
    Some(documents::starts(optional_integers(ids_bt)?.as_deref(), t, b * t))
}

/// Tensors for [`vjp::attach_some`], each with its place in a graph.
macro_rules! tracked {
    ($($tensor:expr),+ $(,)?) => { vec![$($tensor.clone().into_dispatch()),+] };
}

pub(crate) use kernels::Kernels;
pub(crate) use {by_element, tracked};

/// [`vjp::attach_some`] of an operation on one tensor.
pub(crate) fn attach_one<E: Element, const D: usize, const I: usize>(
    output: Tensor<D>,
    input: Tensor<I>,
    pullback: impl FnOnce(Typed<E>) -> Option<DispatchTensor> + Send + 'static,
) -> Tensor<D> {
    vjp::attach_some(output, vec![input.into_dispatch()], move |dy| vec![pullback(Typed::from_gradient(dy))])
}
/// Address of the first element of a float32 tensor on Flex; `None` for other tensors.
pub fn address_on_cpu<const D: usize>(x: &Tensor<D>) -> Option<usize> {
    Values::from_tensor(x)?.strided().map(|(values, _)| values.as_ptr().addr())
}
