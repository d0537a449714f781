//! The feed-forward block, plain or gated.

use bridge_core::model::{Cut, Scope, WeightGradientStore};
use bridge_kernels::Activation;
use burn::module::Module;
use burn::tensor::Tensor;

use super::init::InitialValues;
use super::linear::{Linear, LinearConfig};
use super::regions::Regions;
use super::residual::BlockOutput;
use crate::models::decoder::config::DecoderConfig;

/// Two linear layers with a non-linearity between them. A gated unit's first layer has the gate's rows, then the others.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    linear_fc1: Linear,
    linear_fc2: Linear,
    gated: bool,
    #[module(skip)]
    activation: Activation,
}

impl Mlp {
    /// The block at `scope`, of width `f` over all ranks.
    pub fn new(config: &DecoderConfig, f: usize, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, blocks, bias) = (config.hidden_size, config.fc1_blocks(), config.mlp_bias);
        let linear_fc1 =
            LinearConfig { inputs: c, outputs: blocks * f, bias, cut: Cut::Blocks(blocks), initial: initial.weight };
        let linear_fc2 = LinearConfig { inputs: f, outputs: c, bias, cut: Cut::Columns, initial: initial.output };
        Self {
            linear_fc1: Linear::new(&linear_fc1, scope, "linear_fc1"),
            linear_fc2: Linear::new(&linear_fc2, scope, "linear_fc2"),
            gated: config.gated_linear_unit,
            activation: config.activation,
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(
        &'a self,
        x_btc: Tensor<3>,
        regions: &Regions,
        store: Option<&'a WeightGradientStore>,
    ) -> BlockOutput<'a> {
        let h_btf = self.hidden(regions.enter(x_btc), store);
        BlockOutput::Product { x: h_btf, linear: &self.linear_fc2, store }
    }

    /// This rank's term of a sum over the tensor-parallel ranks, without communication; with one such rank, the whole.
    ///
    /// `[n, c]` -> `[n, c]`. With a bias in the second layer there must be one rank only.
    pub fn forward_term(&self, x_nc: Tensor<2>) -> Tensor<2> {
        let [n, c] = x_nc.dims();
        self.linear_fc2.forward(self.hidden(x_nc.reshape([1, n, c]), None), None).reshape([n, c])
    }

    /// `[b, t, c]` -> `[b, t, f]`, of this rank's columns.
    fn hidden(&self, x_btc: Tensor<3>, store: Option<&WeightGradientStore>) -> Tensor<3> {
        self.linear_fc1.forward_and_activate(x_btc, self.activation, self.gated, store)
    }
}
