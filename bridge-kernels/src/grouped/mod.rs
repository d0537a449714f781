//! Linear layers of several experts: each works on its own rows of one matrix, and all are one
//! operation.
//!
//! Further shape letters: `e` experts, `m` rows of all experts, those of the first expert first.

mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;

use burn::tensor::{Int, Tensor, TensorData};

use crate::activation::{FeedForwardUnit, activation, glu};
use crate::linear::linear;
use crate::offload::{in_module, in_unit};
use crate::vjp;

/// A linear layer of each expert, all of one shape.
#[derive(Clone, Debug)]
pub struct GroupedLinear {
    /// `[o, i]` each.
    pub weights_oi: Vec<Tensor<2>>,
    /// `[o]` each: as many as weights, or none.
    pub biases_o: Vec<Tensor<1>>,
}

/// The feed-forward block of each expert: a linear layer, a non-linearity, a linear layer.
#[derive(Clone, Debug)]
pub struct GroupedMlp {
    /// Layer from width `c` to the unit's input.
    pub first: GroupedLinear,
    /// Unit between the two layers.
    pub unit: FeedForwardUnit,
    /// Layer from the unit's output to width `c`.
    pub second: GroupedLinear,
}

/// `x w^T + bias`, each row with the weight and the bias of its expert; `counts` are the rows of
/// each expert, of which there may be none.
///
/// An expert without rows has gradients of zero.
///
/// # Shapes
/// `x_mi` `[m, i]`, `layer` `e` times `[o, i]` and `[o]` -> `[m, o]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn grouped_linear(x_mi: Tensor<2>, counts: &[usize], layer: &GroupedLinear) -> Tensor<2> {
    layer.check(&x_mi, counts);
    if x_mi.dims()[0] == 0 {
        return nothing(x_mi, &[layer]);
    }
    #[cfg(feature = "cube")]
    if let Some(y) = cube::grouped_linear(&x_mi, counts, layer) {
        return y;
    }
    flex::grouped_linear(&x_mi, counts, layer).unwrap_or_else(|| reference(x_mi, counts, layer))
}

/// The experts' feed-forward blocks: [`grouped_linear`] of the first layers, the unit, and
/// [`grouped_linear`] of the second.
///
/// On Flex this is one operation, which forms the unit's output again in backward.
///
/// # Shapes
/// `x_mc` `[m, c]` -> the same.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn grouped_mlp(x_mc: Tensor<2>, counts: &[usize], mlp: &GroupedMlp) -> Tensor<2> {
    mlp.check(&x_mc, counts);
    if x_mc.dims()[0] == 0 {
        return nothing(x_mc, &[&mlp.first, &mlp.second]);
    }
    flex::grouped_mlp(&x_mc, counts, mlp).unwrap_or_else(|| {
        let before = grouped_linear(x_mc, counts, &mlp.first);
        let hidden = in_unit(|| mlp.unit.apply(before));
        in_module(None, || grouped_linear(hidden, counts, &mlp.second))
    })
}

/// [`grouped_linear`] as a linear layer an expert.
pub fn reference(x_mi: Tensor<2>, counts: &[usize], layer: &GroupedLinear) -> Tensor<2> {
    let inputs = x_mi.dims()[1];
    let (device, dtype) = (x_mi.device(), x_mi.dtype());
    let (mut outputs, mut kept) = (Vec::new(), Vec::new());
    let (mut start, mut next) = (0, 0_i64);
    for (expert, count) in counts.iter().enumerate() {
        // An expert without rows works on one of zeros, which is left out of the result.
        let rows = match count {
            0 => Tensor::zeros([1, inputs], (&device, dtype)),
            _ => x_mi.clone().narrow(0, start, *count),
        };
        outputs.push(linear(rows, layer.weights_oi[expert].clone(), layer.biases_o.get(expert).cloned()));
        kept.extend(next..next + *count as i64);
        start += count;
        next += (*count).max(1) as i64;
    }
    let all = Tensor::cat(outputs, 0);
    if kept.len() as i64 == next {
        return all;
    }
    let length = kept.len();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(kept, [length]), &device.without_autodiff());
    all.select(0, ids)
}

/// [`grouped_mlp`] as two linear layers an expert.
pub fn mlp_reference(x_mc: Tensor<2>, counts: &[usize], mlp: &GroupedMlp) -> Tensor<2> {
    let hidden = mlp.unit.apply(reference(x_mc, counts, &mlp.first));
    reference(hidden, counts, &mlp.second)
}

/// The result for no rows at all. It has its place in the graph, so that all ranks' graphs look
/// alike.
fn nothing(x_mi: Tensor<2>, layers: &[&GroupedLinear]) -> Tensor<2> {
    let outputs = layers.last().map_or(0, |layer| layer.outputs());
    let (device, dtype) = (x_mi.device().without_autodiff(), x_mi.dtype());
    let mut shapes = vec![x_mi.dims().to_vec()];
    let mut inputs = vec![x_mi.into_dispatch()];
    for layer in layers {
        shapes.extend(layer.weights_oi.iter().map(|weight| weight.dims().to_vec()));
        shapes.extend(layer.biases_o.iter().map(|bias| bias.dims().to_vec()));
        inputs.extend(layer.inputs());
    }
    let y = Tensor::<2>::zeros([0, outputs], (&device, dtype));
    vjp::attach(y, inputs, move |_: Tensor<2>| {
        let zeros = |shape: &Vec<usize>| match shape[..] {
            [rows, columns] => Tensor::<2>::zeros([rows, columns], (&device, dtype)).into_dispatch(),
            _ => Tensor::<1>::zeros([shape[0]], (&device, dtype)).into_dispatch(),
        };
        shapes.iter().map(zeros).collect()
    })
}

impl FeedForwardUnit {
    /// `[m, ..]` -> `[m, f]`.
    fn apply(self, x_mf: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Plain(kind) => activation(x_mf, kind),
            Self::Gated(unit) => {
                let [m, width] = x_mf.dims();
                glu(x_mf.reshape([1, m, width]), unit).reshape([m, width / 2])
            }
        }
    }
}

impl GroupedLinear {
    fn outputs(&self) -> usize {
        self.weights_oi.first().map_or(0, |weight| weight.dims()[0])
    }

    /// The tensors of the layer: weights, then biases.
    fn inputs(&self) -> impl Iterator<Item = burn::backend::DispatchTensor> {
        let weights = self.weights_oi.iter().map(|weight| weight.clone().into_dispatch());
        weights.chain(self.biases_o.iter().map(|bias| bias.clone().into_dispatch()))
    }

    /// Fails early on shapes that do not fit each other.
    fn check(&self, x_mi: &Tensor<2>, counts: &[usize]) {
        let ([rows, inputs], outputs) = (x_mi.dims(), self.outputs());
        self.check_experts(counts);
        assert_eq!(counts.iter().sum::<usize>(), rows, "grouped_linear: the experts' rows are those of the input");
        for weight in &self.weights_oi {
            assert_eq!(weight.dims(), [outputs, inputs], "grouped_linear: a weight of another shape");
        }
        for bias in &self.biases_o {
            assert_eq!(bias.dims(), [outputs], "grouped_linear: a bias of another shape");
        }
    }

    fn check_experts(&self, counts: &[usize]) {
        let (experts, biases) = (self.weights_oi.len(), self.biases_o.len());
        assert!(experts > 0 && counts.len() == experts, "grouped_linear: {experts} experts, {} counts", counts.len());
        assert!(biases == 0 || biases == experts, "grouped_linear: {experts} experts, {biases} biases");
    }
}

impl GroupedMlp {
    fn check(&self, x_mc: &Tensor<2>, counts: &[usize]) {
        self.first.check(x_mc, counts);
        self.second.check_experts(counts);
        let hidden = match self.unit {
            FeedForwardUnit::Plain(_) => self.first.outputs(),
            FeedForwardUnit::Gated(_) => {
                let outputs = self.first.outputs();
                assert!(outputs.is_multiple_of(2), "a gated unit needs an even number of rows, got {outputs}");
                outputs / 2
            }
        };
        let outputs = self.second.outputs();
        for weight in &self.second.weights_oi {
            assert_eq!(weight.dims(), [outputs, hidden], "grouped_mlp: a second weight of another shape");
        }
        for bias in &self.second.biases_o {
            assert_eq!(bias.dims(), [outputs], "grouped_mlp: a second bias of another shape");
        }
    }
}
