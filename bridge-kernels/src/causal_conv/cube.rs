//! The convolution on GPUs: a unit an element. The sum before the SiLU is formed again in backward,
//! not kept.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Int as IntKind, Tensor};

use crate::cube::Buffer;
use crate::precision::sum_of_rows;
use crate::vjp;

/// Rows whose parameter gradients one unit adds up.
const ROWS: usize = 64;

#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    /// Tokens of a sequence.
    tokens: u32,
    channels: u32,
    taps: u32,
}

/// Number of taps that meet a token of the same document: the token itself and those before it.
#[cube]
fn reach<P: Int>(documents: ComptimeOption<&[P]>, row: usize, sizes: &Sizes) -> usize {
    let mut reach = min(row % sizes.tokens as usize + 1, sizes.taps as usize);
    #[comptime]
    match documents {
        ComptimeOption::Some(documents) => {
            let mut lag = 1;
            while lag < reach {
                if documents[row - lag] != documents[row] {
                    reach = lag;
                }
                lag += 1;
            }
        }
        ComptimeOption::None => {}
    }
    reach
}

/// Number of taps of this token and later ones that meet it.
#[cube]
fn reached<P: Int>(documents: ComptimeOption<&[P]>, row: usize, sizes: &Sizes) -> usize {
    let mut reached = min(sizes.tokens as usize - row % sizes.tokens as usize, sizes.taps as usize);
    #[comptime]
    match documents {
        ComptimeOption::Some(documents) => {
            let mut lag = 1;
            while lag < reached {
                if documents[row + lag] != documents[row] {
                    reached = lag;
                }
                lag += 1;
            }
        }
        ComptimeOption::None => {}
    }
    reached
}

/// Input of the SiLU.
#[cube]
fn sum_of_taps<X: Float, W: Float, P: Int>(
    x: &[X],
    weight: &[W],
    bias: ComptimeOption<&[W]>,
    documents: ComptimeOption<&[P]>,
    element: usize,
    sizes: &Sizes,
) -> f32 {
    let (channels, taps) = (sizes.channels as usize, sizes.taps as usize);
    let (row, channel) = (element / channels, element % channels);
    let mut sum = 0.0f32;
    #[comptime]
    match bias {
        ComptimeOption::Some(bias) => sum += f32::cast_from(bias[channel]),
        ComptimeOption::None => {}
    }
    let count = reach::<P>(documents, row, sizes);
    for lag in 0..count {
        let tap = f32::cast_from(weight[channel * taps + taps - 1 - lag]);
        sum += tap * f32::cast_from(x[element - lag * channels]);
    }
    sum
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

#[cube(launch)]
fn forward<X: Float, W: Float, P: Int>(
    x: &[X],
    weight: &[W],
    bias: ComptimeOption<&[W]>,
    documents: ComptimeOption<&[P]>,
    y: &mut [X],
    sizes: Sizes,
    #[define(X, W, P)] _storage: [ElemType; 3],
) {
    let element = ABSOLUTE_POS;
    if element >= y.len() {
        terminate!();
    }
    let sum = sum_of_taps::<X, W, P>(x, weight, bias, documents, element, &sizes);
    y[element] = X::cast_from(sum * sigmoid(sum));
}

/// The gradient of the SiLU's input.
#[cube(launch)]
fn slopes<X: Float, W: Float, P: Int>(
    x: &[X],
    weight: &[W],
    bias: ComptimeOption<&[W]>,
    documents: ComptimeOption<&[P]>,
    dy: &[X],
    slopes: &mut [f32],
    sizes: Sizes,
    #[define(X, W, P)] _storage: [ElemType; 3],
) {
    let element = ABSOLUTE_POS;
    if element >= slopes.len() {
        terminate!();
    }
    let sum = sum_of_taps::<X, W, P>(x, weight, bias, documents, element, &sizes);
    let s = sigmoid(sum);
    slopes[element] = f32::cast_from(dy[element]) * s * (1.0f32 + sum * (1.0f32 - s));
}

/// The gradient of the input, from the taps of this token and those after it.
#[cube(launch)]
fn input_gradient<X: Float, W: Float, P: Int>(
    slopes: &[f32],
    weight: &[W],
    documents: ComptimeOption<&[P]>,
    dx: &mut [X],
    sizes: Sizes,
    #[define(X, W, P)] _storage: [ElemType; 3],
) {
    let element = ABSOLUTE_POS;
    if element >= dx.len() {
        terminate!();
    }
    let (channels, taps) = (sizes.channels as usize, sizes.taps as usize);
    let (row, channel) = (element / channels, element % channels);
    let mut sum = 0.0f32;
    let count = reached::<P>(documents, row, &sizes);
    for lag in 0..count {
        sum += f32::cast_from(weight[channel * taps + taps - 1 - lag]) * slopes[element + lag * channels];
    }
    dx[element] = X::cast_from(sum);
}

/// Gradients of the taps and, in the last row, of the bias, over [`ROWS`] rows a unit: `partial` is
/// `[ceil(n / ROWS), k + 1, c]`.
#[cube(launch)]
fn parameter_gradients<X: Float, P: Int>(
    x: &[X],
    slopes: &[f32],
    documents: ComptimeOption<&[P]>,
    partial: &mut [f32],
    sizes: Sizes,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    if ABSOLUTE_POS >= partial.len() {
        terminate!();
    }
    let (channels, taps) = (sizes.channels as usize, sizes.taps as usize);
    let (line, channel) = (ABSOLUTE_POS / channels, ABSOLUTE_POS % channels);
    let (block, tap) = (line / (taps + 1), line % (taps + 1));
    let first = block * ROWS;
    let last = min(first + ROWS, slopes.len() / channels);
    let mut sum = 0.0f32;
    for row in first..last {
        let slope = slopes[row * channels + channel];
        if tap == taps {
            sum += slope;
        } else {
            let lag = taps - 1 - tap;
            if lag < reach::<P>(documents, row, &sizes) {
                sum += slope * f32::cast_from(x[(row - lag) * channels + channel]);
            }
        }
    }
    partial[ABSOLUTE_POS] = sum;
}

/// A convolution's inputs.
struct Convolution {
    x: Buffer,
    weight: Buffer,
    bias: Option<Buffer>,
    documents: Option<Buffer>,
    tokens: usize,
}

impl Convolution {
    fn taps(&self) -> usize {
        self.weight.0.meta.shape()[1]
    }

    fn channels(&self) -> usize {
        self.weight.len() / self.taps()
    }

    fn sizes(&self) -> SizesLaunch {
        SizesLaunch::new(self.tokens as u32, self.channels() as u32, self.taps() as u32)
    }

    /// Storage types of values, parameters and documents.
    fn storage(&self) -> [ElemType; 3] {
        let documents = self.documents.as_ref().map_or_else(i32::elem_type_native, Buffer::storage);
        [self.x.storage(), self.weight.storage(), documents]
    }

    fn forward(&self) -> Buffer {
        let Self { x, weight, bias, documents, .. } = self;
        let y = x.uninitialised_like();
        let (count, dim) = y.unit_per_element();
        forward::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            weight.arg(),
            bias.as_ref().map(Buffer::arg).into(),
            documents.as_ref().map(Buffer::arg).into(),
            y.arg(),
            self.sizes(),
            self.storage(),
        );
        y
    }

    /// The gradient of the SiLU's input, float32.
    fn slopes(&self, dy: &Buffer) -> Buffer {
        let Self { x, weight, bias, documents, .. } = self;
        let result = x.uninitialised(x.0.meta.shape().clone(), DType::F32);
        let (count, dim) = result.unit_per_element();
        slopes::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            weight.arg(),
            bias.as_ref().map(Buffer::arg).into(),
            documents.as_ref().map(Buffer::arg).into(),
            dy.arg(),
            result.arg(),
            self.sizes(),
            self.storage(),
        );
        result
    }

    fn input_gradient(&self, slopes: &Buffer) -> Buffer {
        let Self { x, weight, documents, .. } = self;
        let dx = x.uninitialised_like();
        let (count, dim) = dx.unit_per_element();
        input_gradient::launch(
            &x.0.client,
            count,
            dim,
            slopes.arg(),
            weight.arg(),
            documents.as_ref().map(Buffer::arg).into(),
            dx.arg(),
            self.sizes(),
            self.storage(),
        );
        dx
    }

    /// The gradients of the weight `[c, k]` and of the bias `[c]`, in the weight's dtype.
    fn parameter_gradients(&self, slopes: &Buffer) -> (Tensor<2>, Tensor<1>) {
        let Self { x, weight, documents, .. } = self;
        let (c, k) = (self.channels(), self.taps());
        let partial = x.uninitialised([(x.len() / c).div_ceil(ROWS), k + 1, c], DType::F32);
        let (count, dim) = partial.unit_per_element();
        let [of_x, _, of_documents] = self.storage();
        parameter_gradients::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            slopes.arg(),
            documents.as_ref().map(Buffer::arg).into(),
            partial.arg(),
            self.sizes(),
            [of_x, of_documents],
        );
        let blocks = partial.len() / ((k + 1) * c);
        let sums =
            sum_of_rows(partial.tensor::<3>().reshape([blocks, (k + 1) * c]), weight.0.dtype).reshape([k + 1, c]);
        (sums.clone().narrow(0, 0, k).swap_dims(0, 1), sums.narrow(0, k, 1).reshape([c]))
    }
}

/// See [`crate::causal_conv()`]. Weight and bias are of one dtype, or it does not apply.
pub fn causal_conv(
    x_btc: &Tensor<3>,
    weight_ck: &Tensor<2>,
    bias_c: Option<&Tensor<1>>,
    document_ids: Option<&Tensor<2, IntKind>>,
) -> Option<Tensor<3>> {
    let bias = match bias_c {
        Some(bias_c) if bias_c.dtype() == weight_ck.dtype() => Some(Buffer::from_tensor(bias_c)?),
        Some(_) => return None,
        None => None,
    };
    let documents = match document_ids {
        Some(ids_bt) => Some(Buffer::from_integers(ids_bt)?),
        None => None,
    };
    let (x, weight, [_, tokens, _]) = (Buffer::from_tensor(x_btc)?, Buffer::from_tensor(weight_ck)?, x_btc.dims());
    let convolution = Convolution { x, weight, bias, documents, tokens };
    let y = convolution.forward();
    let mut inputs = vec![x_btc.clone().into_dispatch(), weight_ck.clone().into_dispatch()];
    inputs.extend(bias_c.map(|bias_c| bias_c.clone().into_dispatch()));
    let arity = inputs.len();
    let Convolution { x, weight, bias, documents, tokens } = convolution;
    let x = x.kept();
    Some(vjp::attach_some(y.tensor(), inputs, move |dy: Tensor<3>| {
        let convolution = Convolution { x: x.buffer(), weight, bias, documents, tokens };
        let slopes = convolution.slopes(&Buffer::from_gradient(dy));
        let (d_weight, d_bias) = convolution.parameter_gradients(&slopes);
        let mut gradients = vec![
            convolution.input_gradient(&slopes).gradient(),
            Some(d_weight.into_dispatch()),
            Some(d_bias.into_dispatch()),
        ];
        gradients.truncate(arity);
        gradients
    }))
}
