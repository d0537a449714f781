//! Generation state of a state space block (SSM state): the inputs that the convolution still
//! reaches, and the state.

use bridge_kernels::{ScanInputs, ScanOptions, causal_conv, ssd_scan_from};
use burn::tensor::{Int, Tensor};

/// The dimension of the sequence in `[b, t, ..]`.
const SEQUENCE: usize = 1;

/// Convolution and state of one layer. Its size does not grow with the tokens seen.
#[derive(Debug, Default)]
pub(crate) struct MambaState {
    /// The last inputs of the convolution, one less than it has taps: `[b, k - 1, f]`.
    inputs: Option<Tensor<3>>,
    /// `[b, h, n, p]` float32.
    state: Option<Tensor<4>>,
}

impl MambaState {
    /// The convolution of new tokens after those seen, `[b, t, f]` -> the same.
    pub fn convolve(&mut self, xbc_btf: Tensor<3>, taps_fk: Tensor<2>, bias_f: Option<Tensor<1>>) -> Tensor<3> {
        let ([b, t, f], [_, k]) = (xbc_btf.dims(), taps_fk.dims());
        if k == 1 {
            return causal_conv(xbc_btf, taps_fk, bias_f, None);
        }
        let zeros = || Tensor::zeros([b, k - 1, f], (&xbc_btf.device(), xbc_btf.dtype()));
        let before = self.inputs.take().unwrap_or_else(zeros);
        let all = Tensor::cat(vec![before, xbc_btf], SEQUENCE);
        // A copy: a view would keep all tokens in memory.
        let last = Tensor::<1, Int>::arange(t as i64..(t + k - 1) as i64, &all.device());
        self.inputs = Some(all.clone().select(SEQUENCE, last));
        causal_conv(all, taps_fk, bias_f, None).narrow(SEQUENCE, k - 1, t)
    }

    /// The scan of new tokens after those seen.
    pub fn scan(&mut self, inputs: ScanInputs, options: &ScanOptions) -> Tensor<3> {
        let (y_btf, after) = ssd_scan_from(inputs, self.state.take(), options);
        self.state = Some(after);
        y_btf
    }
}

#[cfg(test)]
mod tests {
    use bridge_kernels::Philox;
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn the_convolution_goes_on_and_keeps_no_more_than_it_reaches() {
        let (b, t, f) = (2, 11, 3);
        let values = |seed, shape: [usize; 3]| {
            let count = shape.iter().product();
            Tensor::<3>::from_data(TensorData::new(Philox::new(seed).normal(count, 1.0), shape), &Device::flex())
        };
        for k in [1, 2, 4] {
            let (x, taps) = (values(1, [b, t, f]), values(2, [1, f, k]).reshape([f, k]));
            let bias = values(3, [1, 1, f]).reshape([f]);
            let expected = causal_conv(x.clone(), taps.clone(), Some(bias.clone()), None);
            let (mut state, mut parts, mut start) = (MambaState::default(), Vec::new(), 0);
            for length in [1, 1, 5, 2, 1, 1] {
                let part = x.clone().narrow(SEQUENCE, start, length);
                parts.push(state.convolve(part, taps.clone(), Some(bias.clone())));
                start += length;
                assert_eq!(state.inputs.as_ref().map_or(0, |kept| kept.dims()[SEQUENCE]), k - 1);
            }
            let found: Vec<f32> = Tensor::cat(parts, SEQUENCE).into_data().try_into_vec().unwrap();
            let expected: Vec<f32> = expected.into_data().try_into_vec().unwrap();
            assert_eq!(found, expected, "{k} taps");
        }
    }
}
