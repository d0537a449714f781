//! Generation state of a recurrent block, a state space block, linear attention or a short
//! convolution: the inputs that its convolution still reaches, and the state.

use bridge_kernels::{causal_conv, linear_causal_conv};
use burn::tensor::{Int, Tensor};

/// The dimension of the sequence in `[b, t, ..]`.
const SEQUENCE: usize = 1;

/// A causal convolution: input, taps, bias and documents to its output.
type Convolution = fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>, Option<Tensor<2, Int>>) -> Tensor<3>;

/// Convolution and state of one layer. Its size does not grow with the tokens seen.
#[derive(Debug, Default)]
pub(crate) struct RecurrentState {
    /// The last inputs of the convolution, one less than it has taps: `[b, k - 1, f]`.
    inputs: Option<Tensor<3>>,
    /// State of each head after the tokens seen, float32: `[b, h, ..]`; `None` before the first
    /// token.
    pub heads: Option<Tensor<4>>,
}

impl RecurrentState {
    /// [`causal_conv`] of new tokens after those seen, `[b, t, f]` -> the same.
    pub fn convolve(&mut self, x_btf: Tensor<3>, taps_fk: Tensor<2>, bias_f: Option<Tensor<1>>) -> Tensor<3> {
        self.convolve_by(causal_conv, x_btf, taps_fk, bias_f)
    }

    /// [`linear_causal_conv`] of new tokens after those seen, `[b, t, f]` -> the same.
    pub fn convolve_linearly(&mut self, x_btf: Tensor<3>, taps_fk: Tensor<2>, bias_f: Option<Tensor<1>>) -> Tensor<3> {
        self.convolve_by(linear_causal_conv, x_btf, taps_fk, bias_f)
    }

    fn convolve_by(
        &mut self,
        convolution: Convolution,
        x_btf: Tensor<3>,
        taps_fk: Tensor<2>,
        bias_f: Option<Tensor<1>>,
    ) -> Tensor<3> {
        let ([b, t, f], [_, k]) = (x_btf.dims(), taps_fk.dims());
        if k == 1 {
            return convolution(x_btf, taps_fk, bias_f, None);
        }
        let zeros = || Tensor::zeros([b, k - 1, f], (&x_btf.device(), x_btf.dtype()));
        let before = self.inputs.take().unwrap_or_else(zeros);
        let all = Tensor::cat(vec![before, x_btf], SEQUENCE);
        // A copy: a view would keep all tokens in memory.
        let last = Tensor::<1, Int>::arange(t as i64..(t + k - 1) as i64, &all.device());
        self.inputs = Some(all.clone().select(SEQUENCE, last));
        convolution(all, taps_fk, bias_f, None).narrow(SEQUENCE, k - 1, t)
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
            let (mut state, mut parts, mut start) = (RecurrentState::default(), Vec::new(), 0);
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
