//! The gated delta rule on Flex.

use burn::tensor::Tensor;

use super::cpu::{Delta, Inputs};
use super::shape::{DeltaInputs, DeltaOptions, Sizes};
use crate::flex::{Values, document_starts, gradient, tensor, tracked};
use crate::vjp;

/// The inputs on Flex.
struct Operands {
    delta: Delta,
    values: [Values; 5],
    /// The first token of each token's document.
    starts: Vec<usize>,
}

impl Operands {
    fn new(inputs: &DeltaInputs, sizes: Sizes, options: &DeltaOptions) -> Option<Self> {
        let Sizes { b, t, h, k, p, .. } = sizes;
        let values = [
            Values::contiguous_of(&inputs.q_btgk)?,
            Values::contiguous_of(&inputs.k_btgk)?,
            Values::contiguous_of(&inputs.v_bthp)?,
            Values::contiguous_of(&inputs.decay_bthe)?,
            Values::contiguous_of(&inputs.beta_bth)?,
        ];
        let starts = document_starts(inputs.document_ids.as_ref(), [b, t])?;
        let DeltaOptions { scale, norm_epsilon, chunk_size } = *options;
        let delta = Delta { sizes, chunk: chunk_size.min(t.max(1)), scale, norm_epsilon };
        let is_empty = b * t * h * k * p == 0;
        (!is_empty).then_some(Self { delta, values, starts })
    }

    fn slices(&self) -> Inputs<'_> {
        let [q, k, v, decay, beta] = self.values.each_ref().map(Values::slice);
        Inputs { q, k, v, decay, beta, starts: &self.starts }
    }
}

pub(crate) fn gated_delta_rule(inputs: &DeltaInputs, sizes: Sizes, options: &DeltaOptions) -> Option<Tensor<4>> {
    let operands = Operands::new(inputs, sizes, options)?;
    let forwarded = operands.delta.forward(&operands.slices(), None, true);
    let Sizes { b, t, g, h, k, p, e } = sizes;
    let y = tensor(forwarded.y, [b, t, h, p]);
    let tracked = tracked![inputs.q_btgk, inputs.k_btgk, inputs.v_bthp, inputs.decay_bthe, inputs.beta_bth];
    let states = forwarded.states;
    Some(vjp::attach_some(y, tracked, move |dy: Tensor<4>| {
        let dy = Values::from_gradient(dy);
        let gradients = operands.delta.backward(&operands.slices(), &states, dy.slice());
        vec![
            gradient(gradients.q, [b, t, g, k]),
            gradient(gradients.k, [b, t, g, k]),
            gradient(gradients.v, [b, t, h, p]),
            gradient(gradients.decay, [b, t, h, e]),
            gradient(gradients.beta, [b, t, h]),
        ]
    }))
}

pub(crate) fn gated_delta_rule_from(
    inputs: &DeltaInputs,
    state_bhkp: Option<&Tensor<4>>,
    sizes: Sizes,
    options: &DeltaOptions,
) -> Option<(Tensor<4>, Tensor<4>)> {
    let operands = Operands::new(inputs, sizes, options)?;
    let state = Values::of_optional(state_bhkp)?;
    let forwarded = operands.delta.forward(&operands.slices(), state.as_ref().map(Values::slice), false);
    let Sizes { b, t, h, k, p, .. } = sizes;
    Some((tensor(forwarded.y, [b, t, h, p]), tensor(forwarded.last, [b, h, k, p])))
}
