//! An adapter for tests: it freezes a model, and adds a product of two thin matrices to linear
//! layers (Hu et al., arXiv:2106.09685).

use crate::model::{
    Adapter, Added, Declaration, Initial, LinearAdaptation, LinearChange, LinearLayer, LinearOperands, LinearRule,
    ParameterRole, Scope,
};

/// Adds `scale * (x a^T) b^T` to the product of linear layers. `a`, `[rank, inputs]`, and `b`,
/// `[outputs, rank]`, are called `adapter.a` and `adapter.b` below the layer.
#[derive(Clone, Copy, Debug)]
pub struct LowRank {
    /// Rows of `a`.
    pub rank: usize,
    /// Factor on the added term.
    pub scale: f64,
    /// Initial value of `b`: with zeros the model's function is unchanged.
    pub start: Initial,
    /// The linear layers that are adapted, by their names.
    pub adapts: fn(&str) -> bool,
    /// The parameters of the base model that are also trained, by their names.
    pub trains: fn(&str) -> bool,
}

impl Default for LowRank {
    /// Rank 3 on all linear layers, with no effect at first; all other parameters are frozen.
    fn default() -> Self {
        Self { rank: 3, scale: 0.7, start: Initial::Zeros, adapts: |_| true, trains: |_| false }
    }
}

impl Adapter for LowRank {
    fn trains(&self, declaration: &Declaration) -> bool {
        (self.trains)(&declaration.name)
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        if !(self.adapts)(&layer.name) {
            return None;
        }
        let (scope, role) = (scope.child("adapter"), ParameterRole::Weight);
        let normal = Initial::Normal(0.2);
        let a = scope.parameter("a", [self.rank, layer.inputs], layer.cut_by_inputs(), normal, role);
        let b = scope.parameter("b", [layer.outputs, self.rank], layer.cut_by_outputs(), self.start, role);
        Some(LinearAdaptation::new(vec![a, b], Vec::new(), *self))
    }
}

impl LinearRule for LowRank {
    fn change(&self, operands: LinearOperands<'_>) -> LinearChange {
        let [a_ri, b_or] = [0, 1].map(|i| operands.matrices[i].clone().transpose());
        let added_no = operands.x_ni.matmul(a_ri).matmul(b_or) * self.scale;
        LinearChange { added: Added::Made(added_no), factors_o: None }
    }
}
