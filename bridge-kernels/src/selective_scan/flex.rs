//! The scan on Flex.

use burn::tensor::Tensor;

use super::SelectiveInputs;
use super::cpu::{Inputs, Scan};
use crate::flex::{Values, document_starts, gradient, tensor, tracked};
use crate::vjp;

/// The inputs on Flex.
struct Operands {
    scan: Scan,
    values: [Values; 7],
    /// The first token of each token's document.
    starts: Vec<usize>,
}

impl Operands {
    fn new(inputs: &SelectiveInputs) -> Option<Self> {
        let ([b, t, i], [_, n]) = (inputs.x_bti.dims(), inputs.a_log_in.dims());
        let values = [
            Values::contiguous_of(&inputs.x_bti)?,
            Values::contiguous_of(&inputs.dt_bti)?,
            Values::contiguous_of(&inputs.a_log_in)?,
            Values::contiguous_of(&inputs.b_btn)?,
            Values::contiguous_of(&inputs.c_btn)?,
            Values::contiguous_of(&inputs.dt_bias_i)?,
            Values::contiguous_of(&inputs.d_i)?,
        ];
        let starts = document_starts(inputs.document_ids.as_ref(), [b, t])?;
        (b * t * i * n > 0).then_some(Self { scan: Scan { b, t, i, n }, values, starts })
    }

    fn slices(&self) -> Inputs<'_> {
        let [x, dt, a_log, b, c, dt_bias, d] = self.values.each_ref().map(Values::slice);
        Inputs { x, dt, a_log, b, c, dt_bias, d, starts: &self.starts }
    }
}

pub(crate) fn selective_scan(inputs: &SelectiveInputs) -> Option<Tensor<3>> {
    let operands = Operands::new(inputs)?;
    let scanned = operands.scan.forward(&operands.slices(), None);
    let Scan { b, t, i, n } = operands.scan;
    let tracked = tracked![
        inputs.x_bti,
        inputs.dt_bti,
        inputs.a_log_in,
        inputs.b_btn,
        inputs.c_btn,
        inputs.dt_bias_i,
        inputs.d_i
    ];
    let states = scanned.states;
    Some(vjp::attach_some(tensor(scanned.y, [b, t, i]), tracked, move |dy: Tensor<3>| {
        let gradients = operands.scan.backward(&operands.slices(), &states, Values::from_gradient(dy).slice());
        vec![
            gradient(gradients.x, [b, t, i]),
            gradient(gradients.dt, [b, t, i]),
            gradient(gradients.a_log, [i, n]),
            gradient(gradients.b, [b, t, n]),
            gradient(gradients.c, [b, t, n]),
            gradient(gradients.dt_bias, [i]),
            gradient(gradients.d, [i]),
        ]
    }))
}

pub(crate) fn selective_scan_from(
    inputs: &SelectiveInputs,
    state_bin: Option<&Tensor<3>>,
) -> Option<(Tensor<3>, Tensor<3>)> {
    let operands = Operands::new(inputs)?;
    let state = Values::of_optional(state_bin)?;
    let scanned = operands.scan.forward(&operands.slices(), state.as_ref().map(Values::slice));
    let Scan { b, t, i, n } = operands.scan;
    Some((tensor(scanned.y, [b, t, i]), tensor(scanned.last, [b, i, n])))
}
