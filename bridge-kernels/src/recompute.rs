//! Operations of which only the inputs are kept: they run again in backward, in a graph of their
//! own.
//!
//! The step of the outer graph that runs the pullback holds that graph's lock, so the inner graph
//! shares no node with it: its leaves are new.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::offload::{Kept, closed};
use crate::vjp;

/// `f(inputs, parameters)`, of which nothing is kept from forward to backward but these: backward
/// runs `f` again, in a graph of its own.
///
/// `f` must compute the same each time. It gets float tensors, the inputs and then the parameters,
/// in their order, and may use nothing else that gradients are wanted of. In the scope of an
/// [`Offloader`](crate::offload::Offloader) inputs are moved, and parameters are not.
///
/// # Panics
/// As [`vjp::attach_all`].
pub fn recomputed<const D: usize>(
    inputs: Vec<DispatchTensor>,
    parameters: Vec<DispatchTensor>,
    f: impl Fn(Vec<DispatchTensor>) -> Tensor<D> + Send + 'static,
) -> Tensor<D> {
    let num_inputs = inputs.len();
    let inputs: Vec<DispatchTensor> = inputs.into_iter().chain(parameters).collect();
    let of = |input: &DispatchTensor| Tensor::<1>::from_dispatch(input.clone());
    let tracked: Vec<bool> = inputs.iter().map(|input| of(input).is_tracked()).collect();
    if !tracked.contains(&true) {
        return f(inputs);
    }
    let mut plain: Vec<DispatchTensor> =
        inputs.iter().map(|input| of(input).without_autodiff().into_dispatch()).collect();
    let output = closed(|| f(plain.clone()));
    let parameters = plain.split_off(num_inputs);
    let kept: Vec<Kept> = plain.into_iter().map(Kept::new).collect();
    vjp::attach_some(output, inputs, move |gradient: Tensor<D>| {
        let leaf = |(input, tracked): (DispatchTensor, bool)| {
            Tensor::<1>::from_dispatch(input).autodiff().set_require_grad(tracked)
        };
        let plain = kept.into_iter().map(Kept::into_dispatch).chain(parameters);
        let leaves: Vec<Tensor<1>> = plain.zip(tracked).map(leaf).collect();
        let output = f(leaves.iter().cloned().map(Tensor::into_dispatch).collect());
        // The gradient of this sum with respect to the output is exactly `gradient`.
        let mut gradients = (output * gradient.autodiff()).sum().backward();
        leaves.iter().map(|leaf| leaf.grad_remove(&mut gradients).map(Tensor::into_dispatch)).collect()
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;
    use crate::linear::linear_of_glu;
    use crate::{Activation, GatedUnit, Philox, glu, linear};

    fn random<const D: usize>(name: &str, shape: [usize; D], device: &Device) -> Tensor<D> {
        let values = Philox::new(3).derive_name(name).normal(shape.iter().product(), 1.0);
        Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
    }

    fn bits<const D: usize>(x: Tensor<D>) -> Vec<u32> {
        x.cast(FloatDType::F32).into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    type Operation = fn(Tensor<3>, Tensor<2>, Tensor<1>) -> Tensor<3>;

    /// Output and gradients of input, weight and bias, where the input is not a leaf.
    fn results(operation: Operation, dtype: FloatDType) -> [Vec<u32>; 4] {
        let device = Device::flex().autodiff();
        let x = random("x", [3, 5, 14], &device).cast(dtype).require_grad();
        let weight = random("weight", [11, 7], &device).cast(dtype).require_grad();
        let bias = random("bias", [11], &device).cast(dtype).require_grad();
        let y = operation(x.clone() * 1.5, weight.clone(), bias.clone());
        let gradient = random("gradient", [3, 5, 11], &device).cast(dtype);
        let mut gradients = (y.clone() * gradient).sum().backward();
        let of = |gradient: Option<Vec<u32>>| gradient.expect("all are trained");
        [
            bits(y.without_autodiff()),
            of(x.grad_remove(&mut gradients).map(bits)),
            of(weight.grad_remove(&mut gradients).map(bits)),
            of(bias.grad_remove(&mut gradients).map(bits)),
        ]
    }

    fn unit() -> GatedUnit {
        GatedUnit { clamp: Some(1.25), linear_offset: 0.5, ..Activation::Silu.into() }
    }

    #[test]
    fn running_again_changes_no_bit() {
        let kept: Operation = |x, w, b| linear(glu(x, unit()), w, Some(b));
        let again: Operation = |x, w, b| {
            recomputed(vec![x.into_dispatch()], vec![w.into_dispatch(), b.into_dispatch()], |inputs| {
                let [x, w, b] = inputs.try_into().expect("three");
                linear(glu(Tensor::from_dispatch(x), unit()), Tensor::from_dispatch(w), Some(Tensor::from_dispatch(b)))
            })
        };
        let of_glu: Operation = |x, w, b| linear_of_glu(x, unit(), w, Some(b));
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let expected = results(kept, dtype);
            assert!(expected.iter().all(|values| values.iter().any(|bits| f32::from_bits(*bits) != 0.0)));
            assert_eq!(results(again, dtype), expected, "{dtype:?}");
            assert_eq!(results(of_glu, dtype), expected, "{dtype:?}");
        }
    }

    #[test]
    fn one_may_be_inside_another() {
        let twice: Operation = |x, w, b| {
            recomputed(vec![x.into_dispatch()], vec![w.into_dispatch(), b.into_dispatch()], |inputs| {
                let [x, w, b] = inputs.try_into().expect("three");
                linear_of_glu(
                    Tensor::from_dispatch(x),
                    unit(),
                    Tensor::from_dispatch(w),
                    Some(Tensor::from_dispatch(b)),
                )
            })
        };
        let kept: Operation = |x, w, b| linear(glu(x, unit()), w, Some(b));
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            assert_eq!(results(twice, dtype), results(kept, dtype), "{dtype:?}");
        }
    }

    #[test]
    fn what_is_frozen_has_no_gradient() {
        let device = Device::flex().autodiff();
        let x = random("x", [2, 3, 14], &device).require_grad();
        let weight = random("weight", [5, 7], &device);
        let y = linear_of_glu(x.clone(), unit(), weight.clone(), None);
        let mut gradients = y.sum().backward();
        let found = bits(x.grad_remove(&mut gradients).expect("the input is tracked"));
        assert!(weight.grad_remove(&mut gradients).is_none());
        let same = random("x", [2, 3, 14], &device).require_grad();
        let mut gradients = linear(glu(same.clone(), unit()), weight, None).sum().backward();
        assert_eq!(found, bits(same.grad_remove(&mut gradients).expect("the input is tracked")));
    }
}
