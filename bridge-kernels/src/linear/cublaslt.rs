//! Linear layer by a [`Table`] of products, on any device: forward with bias, GELU and residual
//! stream in one call, and the three products of backward. A function returns `None` where it does
//! not apply (another device, mixed dtypes, no algorithm); the caller then uses the reference. If
//! the table does not support a product of backward, Burn computes it.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use crate::activation::{Activation, activation_gradient};
use crate::cublaslt::{Compute, Element, Epilogue, Operand, Operands, Product, Results, Table};
use crate::flex::inputs;
use crate::offload::{Kept, in_unit};
use crate::precision::sum_of_rows;
use crate::vjp;

pub(crate) fn linear<T: Table, const D: usize>(
    table: &T,
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let layer = Layer::new(table, x, weight_oi, bias_o)?;
    let y = layer.forward(None, None)?.d.reshape(layer.shape());
    let backward = layer.into_backward();
    Some(vjp::attach_some(y, inputs(x, weight_oi, bias_o), move |dy: Tensor<D>| backward.gradients(dy)))
}

pub(crate) fn linear_residual<T: Table, const D: usize>(
    table: &T,
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    residual: &Tensor<D>,
) -> Option<Tensor<D>> {
    let layer = Layer::new(table, x, weight_oi, bias_o)?;
    let y = layer.forward(None, Some(residual))?.d.reshape(layer.shape());
    let backward = layer.into_backward();
    let mut all = inputs(x, weight_oi, bias_o);
    all.push(residual.clone().into_dispatch());
    let is_tracked = residual.is_tracked();
    Some(vjp::attach_some(y, all, move |dy: Tensor<D>| {
        let of_residual = is_tracked.then(|| dy.clone().into_dispatch());
        let mut gradients = backward.gradients(dy);
        gradients.push(of_residual);
        gradients
    }))
}

/// See [`crate::linear::linear_activation`]. `None` for activations other than the tanh form of
/// GELU, because cuBLASLt has no other.
pub(crate) fn linear_activation<T: Table, const D: usize>(
    table: &T,
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    kind: Activation,
) -> Option<Tensor<D>> {
    if kind != Activation::GeluTanh {
        return None;
    }
    let layer = Layer::new(table, x, weight_oi, bias_o)?;
    let keeps = x.is_tracked() || weight_oi.is_tracked() || bias_o.is_some_and(Tensor::is_tracked);
    let Results { d, kept, .. } = layer.forward(Some(keeps), None)?;
    let y = d.reshape(layer.shape());
    let kept = kept.map(|before| in_unit(|| Kept::from_tensor(&before)));
    let backward = layer.into_backward();
    Some(vjp::attach_some(y, inputs(x, weight_oi, bias_o), move |dy: Tensor<D>| {
        let before: Tensor<2> = kept.expect("it is kept where there is a backward").into_tensor();
        let dy: Tensor<2> = dy.reshape(before.dims());
        backward.gradients(activation_gradient(dy, before, kind))
    }))
}

/// See [`crate::linear::add_weight_gradient`]. If the result is `None`, `into_oi` still has the sum
/// so far.
pub(crate) fn add_weight_gradient<T: Table>(
    table: &T,
    into_oi: &mut Option<Tensor<2>>,
    dy_no: &Tensor<2>,
    x_ni: &Tensor<2>,
) -> Option<Tensor<2>> {
    let [dy, x] = [dy_no, x_ni].map(|factor| table.operand(factor.clone()));
    let (dy, x) = (dy?.transposed(), x?);
    let mut product = Product::new(dy.matrix, x.matrix, Element::F32, Compute::Float32)?;
    if let Some(into) = into_oi {
        let operand = table.operand(into.clone())?;
        product = product.plus(operand.matrix, 1.0)?;
        // The operand is a copy if its strides are unsupported; then the product may write into the
        // copy.
        *into = operand.tensor;
    }
    let mut operands = Operands { c: into_oi.take(), ..Operands::new(dy.tensor, x.tensor) };
    let results = table.multiply(&product, &mut operands);
    *into_oi = operands.c;
    results.map(|results| results.d)
}

/// `a b`, with elements stored as those of the factors are.
fn multiply<T: Table>(table: &T, a: &Operand<2>, b: &Operand<2>, epilogue: Epilogue) -> Option<Results<2>> {
    let product = Product::new(a.matrix, b.matrix, a.matrix.element, Compute::Float32)?.then(epilogue);
    table.multiply(&product, &mut Operands::new(a.tensor.clone(), b.tensor.clone()))
}

/// A layer outside any graph.
struct Layer<T, const D: usize> {
    table: T,
    dims: [usize; D],
    x_ni: Operand<2>,
    weight_oi: Operand<2>,
    bias_o: Option<Tensor<1>>,
    /// True for each of input, weight and bias that is tracked.
    tracked: [bool; 3],
}

impl<T: Table, const D: usize> Layer<T, D> {
    fn new(table: &T, x: &Tensor<D>, weight_oi: &Tensor<2>, bias_o: Option<&Tensor<1>>) -> Option<Self> {
        let (dims, dtype) = (x.dims(), x.dtype());
        let is_one_dtype = weight_oi.dtype() == dtype && bias_o.is_none_or(|bias| bias.dtype() == dtype);
        // Empty tensors have no valid matrix.
        let rows: usize = dims[..D - 1].iter().product();
        (is_one_dtype && rows * dims[D - 1] > 0).then_some(())?;
        let x_ni = x.clone().without_autodiff().reshape([rows, dims[D - 1]]);
        Some(Self {
            table: table.clone(),
            dims,
            x_ni: table.operand(x_ni)?,
            weight_oi: table.operand(weight_oi.clone().without_autodiff())?,
            bias_o: bias_o.map(|bias| bias.clone().without_autodiff()),
            tracked: [x.is_tracked(), weight_oi.is_tracked(), bias_o.is_some_and(Tensor::is_tracked)],
        })
    }

    fn outputs(&self) -> usize {
        self.weight_oi.matrix.rows
    }

    /// Shape of the outputs.
    fn shape(&self) -> [usize; D] {
        let mut shape = self.dims;
        shape[D - 1] = self.outputs();
        shape
    }

    /// With `gelu` an activation, whose input is kept if that is true.
    fn forward(&self, gelu: Option<bool>, residual: Option<&Tensor<D>>) -> Option<Results<2>> {
        let Self { table, x_ni, weight_oi, bias_o, .. } = self;
        let bias = bias_o.is_some();
        let epilogue = match gelu {
            Some(keeps) => Epilogue::Gelu { bias, keeps },
            None if bias => Epilogue::Bias,
            None => Epilogue::Plain,
        };
        let weight_io = weight_oi.transposed();
        let mut product = Product::new(x_ni.matrix, weight_io.matrix, x_ni.matrix.element, Compute::Float32)?;
        let mut c = None;
        if let Some(residual) = residual {
            // The stream goes on to others, who must not see the sum in its memory: this reference
            // to it stays until the result is there.
            let residual = residual.clone().without_autodiff().reshape([x_ni.matrix.rows, self.outputs()]);
            let residual = table.operand(residual)?;
            product = product.plus(residual.matrix, 1.0)?;
            c = Some(residual.tensor);
        }
        let factors = Operands::new(x_ni.tensor.clone(), weight_io.tensor);
        let mut operands = Operands { c, bias: bias_o.clone(), ..factors };
        table.multiply(&product.then(epilogue), &mut operands)
    }

    /// Tensors that only a frozen input would need are dropped.
    fn into_backward(self) -> Backward<T, D> {
        let outputs = self.outputs();
        let Self { table, dims, x_ni, weight_oi, bias_o, tracked } = self;
        Backward {
            table,
            dims,
            outputs,
            x_ni: tracked[1].then(|| Kept::from_tensor(&x_ni.tensor)),
            weight_oi: tracked[0].then_some(weight_oi),
            bias: bias_o.map(|_| tracked[2]),
        }
    }
}

/// The backward of a layer.
struct Backward<T, const D: usize> {
    table: T,
    dims: [usize; D],
    outputs: usize,
    x_ni: Option<Kept>,
    weight_oi: Option<Operand<2>>,
    /// `Some` if there is a bias, true if it is tracked.
    bias: Option<bool>,
}

impl<T: Table, const D: usize> Backward<T, D> {
    /// Gradients of input, weight and, if there is one, bias, from that of the outputs in any
    /// shape.
    fn gradients<const E: usize>(self, dy: Tensor<E>) -> Vec<Option<DispatchTensor>> {
        let Self { table, dims, outputs, x_ni, weight_oi, bias } = self;
        let rows: usize = dims[..D - 1].iter().product();
        let dy_no: Tensor<2> = dy.reshape([rows, outputs]);
        let dy = table.operand(dy_no.clone());
        let dx = weight_oi.map(|weight| {
            let product = dy.as_ref().and_then(|dy| multiply(&table, dy, &weight, Epilogue::Plain));
            let dx = product.map_or_else(|| dy_no.clone().matmul(weight.tensor), |results| results.d);
            dx.reshape(dims).into_dispatch()
        });
        let is_bias_tracked = bias == Some(true);
        let mut of_bias = None;
        let dw = x_ni.map(|x| {
            let x_ni: Tensor<2> = x.into_tensor();
            // If it was elsewhere meanwhile it may lie in memory in another way.
            let x = table.operand(x_ni.clone());
            let epilogue = if is_bias_tracked { Epilogue::BiasGradient } else { Epilogue::Plain };
            let product = |epilogue| multiply(&table, &dy.as_ref()?.transposed(), x.as_ref()?, epilogue);
            let results = product(epilogue).or_else(|| if is_bias_tracked { product(Epilogue::Plain) } else { None });
            let dw = match results {
                Some(Results { d, bias_gradient, .. }) => {
                    of_bias = bias_gradient;
                    d
                }
                None => dy_no.clone().transpose().matmul(x_ni),
            };
            dw.into_dispatch()
        });
        let mut gradients = vec![dx, dw];
        if bias.is_some() {
            let dtype = dy_no.dtype();
            let sum = || sum_of_rows(dy_no, dtype);
            gradients.push(is_bias_tracked.then(|| of_bias.unwrap_or_else(sum).into_dispatch()));
        }
        gradients
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::activation;
    use crate::cublaslt::tests::host_table::HostStandIn;
    use crate::linear::reference;
    use crate::precision::widen;
    use crate::random::Philox;

    /// Variant of a layer under test.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Form {
        Plain,
        Residual,
        Gelu,
    }

    /// Sizes of a layer, and how it is made.
    #[derive(Clone, Copy, Debug)]
    struct Trial {
        batch: usize,
        tokens: usize,
        inputs: usize,
        outputs: usize,
        bias: bool,
        /// True if the weight is a transposed view of its memory.
        transposed: bool,
        /// True for each of input, weight and bias that is tracked.
        tracked: [bool; 3],
        form: Form,
    }

    const ALL: [bool; 3] = [true; 3];

    fn values<const D: usize>(key: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
        let data = TensorData::new(Philox::new(key).normal(shape.iter().product(), 0.5), shape);
        Tensor::from_data(data, device)
    }

    fn read<const D: usize>(x: Tensor<D>) -> Vec<f32> {
        x.into_data().try_into_vec().unwrap()
    }

    /// The output and the gradients of input, weight, bias and residual stream, those that are
    /// tracked.
    fn run(trial: &Trial, table: Option<&HostStandIn>) -> Vec<Vec<f32>> {
        let Trial { batch, tokens, inputs, outputs, bias, transposed, tracked, form } = *trial;
        let device = Device::default().autodiff();
        let stored = if transposed { [inputs, outputs] } else { [outputs, inputs] };
        let leaf = |is_tracked: bool, x: Tensor<2>| if is_tracked { x.require_grad() } else { x };
        let x_leaf = leaf(tracked[0], values::<2>(1, [batch * tokens, inputs], &device));
        let weight_leaf = leaf(tracked[1], values::<2>(2, stored, &device));
        let bias_leaf = values::<1>(3, [outputs], &device);
        let bias_leaf = bias.then(|| if tracked[2] { bias_leaf.require_grad() } else { bias_leaf });
        let residual_leaf = values::<3>(4, [batch, tokens, outputs], &device).require_grad();
        let x = x_leaf.clone().reshape([batch, tokens, inputs]);
        let weight = if transposed { weight_leaf.clone().transpose() } else { weight_leaf.clone() };
        let y = match (form, table) {
            (Form::Plain, None) => reference(x, weight, bias_leaf.clone()),
            (Form::Residual, None) => residual_leaf.clone() + reference(x, weight, bias_leaf.clone()),
            (Form::Gelu, None) => activation::reference(reference(x, weight, bias_leaf.clone()), Activation::GeluTanh),
            (Form::Plain, Some(table)) => linear(table, &x, &weight, bias_leaf.as_ref()).unwrap(),
            (Form::Residual, Some(table)) => {
                linear_residual(table, &x, &weight, bias_leaf.as_ref(), &residual_leaf).unwrap()
            }
            (Form::Gelu, Some(table)) => {
                linear_activation(table, &x, &weight, bias_leaf.as_ref(), Activation::GeluTanh).unwrap()
            }
        };
        let upstream = values::<3>(5, [batch, tokens, outputs], &device);
        let mut all = vec![read(y.clone())];
        if !y.is_tracked() {
            return all;
        }
        let gradients = (y * upstream).sum().backward();
        all.extend([x_leaf, weight_leaf].iter().filter_map(|leaf| leaf.grad(&gradients)).map(read));
        all.extend(bias_leaf.and_then(|leaf| leaf.grad(&gradients)).map(read));
        all.extend(residual_leaf.grad(&gradients).map(read));
        all
    }

    fn check(trial: &Trial, table: &HostStandIn) {
        let (found, expected) = (run(trial, Some(table)), run(trial, None));
        assert_eq!(found.len(), expected.len(), "{trial:?}");
        for (which, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "{trial:?}, tensor {which}");
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs();
                assert!(error < 3e-5 * (1.0 + expected.abs()), "{trial:?}, tensor {which}: {found}, not {expected}");
            }
        }
    }

    const SHAPE: Trial = Trial {
        batch: 2,
        tokens: 7,
        inputs: 5,
        outputs: 11,
        bias: true,
        transposed: false,
        tracked: ALL,
        form: Form::Plain,
    };
    const FORMS: [Form; 3] = [Form::Plain, Form::Residual, Form::Gelu];

    /// Output and gradients, with and without a bias, with all inputs tracked or only one.
    #[test]
    fn layers_are_the_reference() {
        let table = HostStandIn::default();
        for form in FORMS {
            for transposed in [false, true] {
                for bias in [false, true] {
                    for tracked in [ALL, [true, false, false], [false, true, false], [false, false, true]] {
                        check(&Trial { form, bias, transposed, tracked, ..SHAPE }, &table);
                        let wanted = 1 + usize::from(tracked[0]) + usize::from(tracked[1]);
                        assert_eq!(table.ran(), wanted, "{form:?}, {tracked:?}: forward and what backward needs");
                    }
                }
            }
        }
    }

    #[test]
    fn layers_of_any_size_are_the_reference() {
        let sizes = [1..9usize, 1..9, 1..9, 1..20];
        let trials = (sizes, any::<[bool; 5]>(), prop::sample::select(FORMS.to_vec()));
        let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&trials, |([batch, tokens, inputs, outputs], [bias, transposed, a, b, c], form)| {
            let trial = Trial { batch, tokens, inputs, outputs, bias, transposed, tracked: [a, b, c], form };
            check(&trial, &HostStandIn::default());
            Ok(())
        });
        outcome.unwrap();
    }

    /// Products without an algorithm in the library run on Burn: a bias' gradient beside the
    /// weight's, and every product of backward.
    #[test]
    fn products_of_backward_that_are_refused_are_burns() {
        let refuse = |refused| HostStandIn { refused: Some(refused), ..HostStandIn::default() };
        let table = refuse(|product| product.epilogue == Epilogue::BiasGradient);
        check(&SHAPE, &table);
        assert_eq!(table.ran(), 3);
        // Backward multiplies over outputs or tokens.
        let table = refuse(|product| product.k != SHAPE.inputs);
        check(&SHAPE, &table);
        assert_eq!(table.ran(), 1);
    }

    #[test]
    fn layers_that_do_not_apply_are_left_alone() {
        let device = Device::default();
        let (x, weight) = (values::<2>(1, [3, 5], &device), values::<2>(2, [7, 5], &device));
        let half = || weight.clone().cast(FloatDType::BF16);
        let table = HostStandIn::default();
        assert!(linear(&table, &x, &half(), None).is_none());
        assert!(linear(&table, &values::<2>(1, [0, 5], &device), &weight, None).is_none());
        assert!(linear_activation(&table, &x, &weight, None, Activation::Gelu).is_none());
        let refuses_all = HostStandIn { refused: Some(|_| true), ..HostStandIn::default() };
        assert!(linear(&refuses_all, &x, &weight, None).is_none());
        assert_eq!(table.ran() + refuses_all.ran(), 0);
    }

    /// Layers of 16 bits: sums in float32 and more, rounded once, against float32 of the same
    /// values.
    #[test]
    fn layers_of_16_bits_are_rounded_once() {
        let device = Device::default();
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            let [x, weight] = [[6, 13], [9, 13]].map(|shape| values::<2>(7, shape, &device).cast(dtype));
            let y = linear(&HostStandIn::default(), &x, &weight, None).unwrap();
            assert_eq!(y.dtype(), dtype.into());
            let expected = read(reference(widen(x), widen(weight), None));
            for (found, expected) in read(widen(y)).iter().zip(expected) {
                assert!((found - expected).abs() <= 0.004 * expected.abs(), "{found}, not {expected}");
            }
        }
    }

    /// Gradients of several micro-batches, of 16 bits and of 32, on top of each other in float32.
    #[test]
    fn weight_gradients_add_up_in_float32() {
        let device = Device::default();
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let (table, mut sum, mut expected) = (HostStandIn::default(), None, vec![0.0; 35]);
            for batch in 0..3 {
                let (dy, x) = (values::<2>(20 + batch, [13, 7], &device), values::<2>(30 + batch, [13, 5], &device));
                let (dy, x) = (dy.cast(dtype), x.cast(dtype));
                sum = add_weight_gradient(&table, &mut sum, &dy, &x);
                assert_eq!(sum.as_ref().unwrap().dtype(), DType::F32);
                let (dy, x) = (read(widen(dy)), read(widen(x)));
                for (i, sum) in expected.iter_mut().enumerate() {
                    let term = |n: usize| f64::from(dy[n * 7 + i / 5]) * f64::from(x[n * 5 + i % 5]);
                    *sum += (0..13).map(term).sum::<f64>();
                }
            }
            assert_eq!(table.ran(), 3);
            let refuses = HostStandIn { refused: Some(|_| true), ..HostStandIn::default() };
            let [dy, x] = [[13, 7], [13, 5]].map(|shape| values::<2>(9, shape, &device));
            assert!(add_weight_gradient(&refuses, &mut sum, &dy, &x).is_none());
            for (found, expected) in read(sum.expect("a refusal leaves the sum")).iter().zip(expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                    "{found}, not {expected}"
                );
            }
        }
    }
}
