//! Parts of a segment that run again in backward: which of them a recipe names, and how a module is
//! run so.
//!
//! Graphs are cut between segments, so what is smaller is one operation of the segment's graph that
//! keeps its inputs alone.

use std::collections::VecDeque;

use bridge_core::config::{RecomputeGranularity, TransformerConfig};
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Names of `model.recompute_modules`.
const MOE_ACT: &str = "moe_act";
const SHARED_EXPERTS: &str = "shared_experts";
const MLA_UP_PROJ: &str = "mla_up_proj";

/// The parts of segments that are recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecomputedParts {
    /// Outputs of the activation of routed experts.
    pub moe_act: bool,
    /// Shared experts.
    pub shared_experts: bool,
    /// Tensors that latent attention derives from its latent vectors: queries, keys, values, and
    /// attention over them.
    pub mla_up_proj: bool,
}

impl RecomputedParts {
    /// Parts that a section names.
    pub fn read(section: &TransformerConfig) -> Self {
        let is_selective = section.recompute_granularity == Some(RecomputeGranularity::Selective);
        let modules = section.recompute_modules.as_deref().filter(|_| is_selective).unwrap_or_default();
        let has = |name: &str| modules.iter().any(|module| module == name);
        Self { moe_act: has(MOE_ACT), shared_experts: has(SHARED_EXPERTS), mla_up_proj: has(MLA_UP_PROJ) }
    }

    /// Sets a section to name them, if there are any.
    pub fn write(self, section: &mut TransformerConfig) {
        let all = [(self.moe_act, MOE_ACT), (self.shared_experts, SHARED_EXPERTS), (self.mla_up_proj, MLA_UP_PROJ)];
        let names: Vec<String> =
            all.into_iter().filter(|(is_named, _)| *is_named).map(|(_, name)| name.into()).collect();
        if !names.is_empty() {
            section.recompute_granularity = Some(RecomputeGranularity::Selective);
            section.recompute_modules = Some(names);
        }
    }
}

/// `f(module, inputs)`, of which only the inputs are kept for backward.
///
/// `f` runs again there, with the same values of the module's parameters. What it uses besides
/// these and its inputs has no gradient.
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
