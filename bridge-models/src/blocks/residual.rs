//! The residual stream: inputs of the blocks of a layer, and the addition of their outputs.
//!
//! With `x` the stream, one step of a layer is
//!
//! ```text
//! x <- norm(stream_multiplier * x + sum over branches of dropout(branch_multiplier * after(block(before(x)))))
//! ```
//!
//! where each norm, each factor and the dropout may be absent. The stream may be in float32 between
//! blocks of 16 bits: inputs are then rounded, and outputs are widened before they are added.
//! Which of these operations run as one (a norm with the stream that it reads, a product with the
//! addition) is decided here and nowhere else.

use bridge_core::model::WeightGradientStore;
use bridge_kernels::offload::{Module, in_module};
use bridge_kernels::{DropoutKey, Recomputable};
use burn::tensor::{FloatDType, Tensor};

use super::hyper_connection::HyperConnection;
use super::linear::Linear;
use super::norm::Norm;
use super::regions::Regions;

/// Input of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BranchInput<'a> {
    /// The stream.
    Stream,
    /// A norm of the stream, with its name as a module in recipes, if it has one.
    Norm(&'a Norm, Option<Module>),
    /// Input of the previous branch.
    Shared,
}

/// A block, its input, and the norm and dropout of its output.
pub(crate) struct Branch<'a> {
    pub input: BranchInput<'a>,
    /// Maps the input, `[b, this rank's tokens, c]`, to the output.
    pub block: Box<dyn FnOnce(Recomputable<3>) -> BlockOutput<'a> + 'a>,
    /// Norm of the block's output, before it is added.
    pub after: Option<&'a Norm>,
    /// Factor on the block's output, besides the factor of all branches.
    pub multiplier: f64,
    /// Key of the dropout mask of the output.
    pub key: Option<DropoutKey>,
}

/// Output of a block: `[b, this rank's tokens, c]`.
pub(crate) enum BlockOutput<'a> {
    /// Computed output.
    Computed(Tensor<3>),
    /// Product of a row-parallel layer that is still to be computed, so that it can be fused with
    /// the addition to the stream.
    Product {
        /// `[b, t, this rank's inputs]`.
        x: Recomputable<3>,
        linear: &'a Linear,
        /// Store for the deferred gradient of the layer's weight.
        store: Option<&'a WeightGradientStore>,
        /// Name of the layer as a module in recipes.
        module: Option<Module>,
    },
}

impl BlockOutput<'_> {
    /// The output, with the product if it is not computed yet.
    pub fn compute(self, regions: &Regions) -> Tensor<3> {
        match self {
            Self::Computed(y_btc) => y_btc,
            Self::Product { x, linear, store, module } => {
                in_module(module, || linear.forward_and_leave(x, regions, store))
            }
        }
    }
}

/// Addition of branches to the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual<'a> {
    pub regions: &'a Regions,
    /// Rate of the dropout of each branch's output.
    pub dropout: f64,
    pub branch_multiplier: f64,
    pub stream_multiplier: f64,
    /// True if the branch's output is added to the norm that the branch reads, instead of the
    /// stream.
    pub adds_to_norm: bool,
    /// Norm of the sum.
    pub norm: Option<&'a Norm>,
    /// Dtype of inputs and outputs of blocks.
    pub block_dtype: FloatDType,
}

impl Residual<'_> {
    /// One step of the stream, `[b, this rank's tokens, c]` -> the same. All branches read the
    /// stream as it is before the step.
    pub fn step<const N: usize>(&self, x_btc: Tensor<3>, branches: [Branch; N]) -> Tensor<3> {
        let mut stream_btc = x_btc;
        let mut shared: Option<Recomputable<3>> = None;
        let inputs = branches.each_ref().map(|branch| {
            let input_btc = match branch.input {
                BranchInput::Stream => stream_btc.clone().cast(self.block_dtype).into(),
                BranchInput::Norm(norm, module) => {
                    let (normed_btc, same_btc) = in_module(module, || norm.forward_residual(stream_btc.clone()));
                    let dtype = FloatDType::from(same_btc.dtype());
                    stream_btc = if self.adds_to_norm { normed_btc.tensor.clone().cast(dtype) } else { same_btc };
                    normed_btc
                }
                BranchInput::Shared => shared.take().expect("the first branch shares with none"),
            };
            shared = Some(input_btc.clone());
            input_btc
        });
        drop(shared);
        let stream_btc = scaled(stream_btc, self.stream_multiplier);
        let sum_btc = branches.into_iter().zip(inputs).fold(stream_btc, |stream_btc, (branch, input_btc)| {
            let output = (branch.block)(input_btc);
            self.add(stream_btc, output, branch.after, self.branch_multiplier * branch.multiplier, branch.key)
        });
        match self.norm {
            Some(norm) => norm.forward(sum_btc),
            None => sum_btc,
        }
    }

    /// [`Self::step`] of one branch, of several streams if there is a connection: `[b, this rank's
    /// tokens, n * c]` -> the same.
    pub fn step_of(&self, x_btf: Tensor<3>, connection: &Option<HyperConnection>, branch: Branch) -> Tensor<3> {
        let Some(connection) = connection else {
            return self.step(x_btf, [branch]);
        };
        let (read_btc, weights_btk) = connection.read(x_btf.clone());
        let input_btc = match branch.input {
            BranchInput::Norm(norm, module) => in_module(module, || norm.forward_residual(read_btc).0),
            BranchInput::Stream | BranchInput::Shared => read_btc.cast(self.block_dtype).into(),
        };
        let multiplier = self.branch_multiplier * branch.multiplier;
        let y_btc = self.output((branch.block)(input_btc), branch.after, multiplier, branch.key);
        connection.write(x_btf, weights_btk, y_btc)
    }

    fn add(
        &self,
        stream_btc: Tensor<3>,
        output: BlockOutput,
        after: Option<&Norm>,
        multiplier: f64,
        key: Option<DropoutKey>,
    ) -> Tensor<3> {
        let dtype = FloatDType::from(stream_btc.dtype());
        let adds_unchanged =
            after.is_none() && multiplier == 1.0 && (self.dropout == 0.0 || key.is_none()) && dtype == self.block_dtype;
        match output {
            BlockOutput::Product { x, linear, store: None, module }
                if adds_unchanged && self.regions.tensor().size() == 1 =>
            {
                in_module(module, || linear.forward_and_add(x, stream_btc))
            }
            output => stream_btc + self.output(output, after, multiplier, key).cast(dtype),
        }
    }

    /// A block's output as it is added.
    fn output(&self, output: BlockOutput, after: Option<&Norm>, multiplier: f64, key: Option<DropoutKey>) -> Tensor<3> {
        let y_btc = output.compute(self.regions);
        let y_btc = match after {
            Some(norm) => norm.forward(y_btc),
            None => y_btc,
        };
        self.regions.dropout(scaled(y_btc, multiplier), self.dropout, key)
    }
}

/// `x` times a factor.
pub(crate) fn scaled<const D: usize>(x: Tensor<D>, factor: f64) -> Tensor<D> {
    if factor == 1.0 { x } else { x * factor }
}
