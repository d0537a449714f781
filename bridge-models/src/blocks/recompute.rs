//! Modules of a segment that run again in backward.
//!
//! Graphs are cut between segments, so a smaller part is one operation of the segment's graph that
//! keeps only its inputs.

use std::collections::VecDeque;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// `f(module, inputs)`, of which only the inputs are kept for backward.
///
/// In backward `f` runs again, with the same values of the module's parameters. Other captured
/// tensors get no gradient.
pub(crate) fn recomputed<M: Module + 'static, const N: usize, const I: usize, const D: usize>(
    module: M,
    inputs: [Tensor<I>; N],
    f: impl Fn(&M, [Tensor<I>; N]) -> Tensor<D> + Send + 'static,
) -> Tensor<D> {
    let inputs = inputs.into_iter().map(Tensor::into_dispatch).collect();
    let mut parameters = Vec::new();
    module.visit(&mut Collect(&mut parameters));
    // The module itself is kept for its form: its tensors would hold on to the graph.
    let form = module.map(&mut WithoutGraph);
    bridge_kernels::recomputed(inputs, parameters, move |operands| {
        let mut operands = VecDeque::from(operands);
        let inputs =
            std::array::from_fn(|_| Tensor::from_dispatch(operands.pop_front().expect("all inputs come first")));
        f(&form.clone().map(&mut Put(operands)), inputs)
    })
}

/// Adds a module's parameters, in its order.
struct Collect<'a>(&'a mut Vec<DispatchTensor>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_dispatch());
    }
}

/// Takes a module's parameters out of the graph.
struct WithoutGraph;

impl ModuleMapper for WithoutGraph {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(Tensor::without_autodiff)
    }
}

/// Replaces a module's parameters, in its order.
struct Put(VecDeque<DispatchTensor>);

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.pop_front().expect("as many values as the module has parameters");
        param.map(|_| Tensor::from_dispatch(value))
    }
}
