//! The scan on Flex.

use burn::tensor::Tensor;

use super::cpu::{Inputs, Scan};
use super::shape::{ScanInputs, ScanOptions};
use crate::flex::{Values, document_starts, gradient, tensor, tracked};
use crate::vjp;

/// The inputs on Flex.
struct Operands {
    scan: Scan,
    values: [Values; 5],
    /// The first token of each token's document.
    starts: Vec<usize>,
}

impl Operands {
    fn new(inputs: &ScanInputs, options: &ScanOptions) -> Option<Self> {
        let ([b, t, _], [_, _, h]) = (inputs.xbc_btf.dims(), inputs.dt_bth.dims());
        let ScanOptions { head_size: p, groups: g, state_size: n, chunk_size, time_steps } = *options;
        let values = [
            Values::contiguous_of(&inputs.xbc_btf)?,
            Values::contiguous_of(&inputs.dt_bth)?,
            Values::contiguous_of(&inputs.a_log_h)?,
            Values::contiguous_of(&inputs.dt_bias_h)?,
            Values::contiguous_of(&inputs.d_h)?,
        ];
        let starts = document_starts(inputs.document_ids.as_ref(), [b, t])?;
        let is_empty = b * t * h * p * n == 0;
        let scan = Scan { b, t, h, p, g, n, chunk: chunk_size.min(t.max(1)), time_steps };
        (!is_empty).then_some(Self { scan, values, starts })
    }

    fn slices(&self) -> Inputs<'_> {
        let [xbc, dt, a_log, dt_bias, d] = self.values.each_ref().map(Values::slice);
        Inputs { xbc, dt, a_log, dt_bias, d, starts: &self.starts }
    }

    /// Shape of the output.
    fn output(&self) -> [usize; 3] {
        [self.scan.b, self.scan.t, self.scan.h * self.scan.p]
    }
}

pub(crate) fn ssd_scan(inputs: &ScanInputs, options: &ScanOptions) -> Option<Tensor<3>> {
    let operands = Operands::new(inputs, options)?;
    let scanned = operands.scan.forward(&operands.slices(), None);
    let y = tensor(scanned.y, operands.output());
    let (xbc, dt, [h]) = (inputs.xbc_btf.dims(), inputs.dt_bth.dims(), inputs.d_h.dims());
    let tracked = tracked![inputs.xbc_btf, inputs.dt_bth, inputs.a_log_h, inputs.dt_bias_h, inputs.d_h];
    let states = scanned.states;
    Some(vjp::attach_some(y, tracked, move |dy: Tensor<3>| {
        let gradients = operands.scan.backward(&operands.slices(), &states, Values::from_gradient(dy).slice());
        vec![
            gradient(gradients.xbc, xbc),
            gradient(gradients.dt, dt),
            gradient(gradients.a_log, [h]),
            gradient(gradients.dt_bias, [h]),
            gradient(gradients.d, [h]),
        ]
    }))
}

pub(crate) fn ssd_scan_from(
    inputs: &ScanInputs,
    state_bhnp: Option<&Tensor<4>>,
    options: &ScanOptions,
) -> Option<(Tensor<3>, Tensor<4>)> {
    let operands = Operands::new(inputs, options)?;
    let state = Values::of_optional(state_bhnp)?;
    let scanned = operands.scan.forward(&operands.slices(), state.as_ref().map(Values::slice));
    let Scan { b, h, n, p, .. } = operands.scan;
    Some((tensor(scanned.y, operands.output()), tensor(scanned.last, [b, h, n, p])))
}
