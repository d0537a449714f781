//! Initial values of parameters: a function of seed and parameter name alone, so that they depend neither on the order of
//! creation nor on rank or pipeline stage.

use bridge_core::model::BuildContext;
use bridge_kernels::Philox;
use burn::module::Param;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::config::DecoderConfig;

/// Makes parameters on one device.
#[derive(Clone, Debug)]
pub(super) struct Initializer {
    device: Device,
    dtype: FloatDType,
    stream: Philox,
    draw: bool,
}

/// Standard deviations of the normal distributions that weights start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deviations {
    /// Of projections into a block.
    pub weight: f64,
    /// Of projections back into the residual stream: smaller by `sqrt(2 num_layers)`, so that the stream's variance does
    /// not grow with depth (Radford et al. 2019, section 2.3).
    pub output: f64,
    /// Of the embedding tables.
    pub embedding: f64,
}

impl Deviations {
    pub fn new(config: &DecoderConfig) -> Self {
        Self {
            weight: config.init_method_std,
            output: config.init_method_std / (2.0 * config.num_layers as f64).sqrt(),
            embedding: config.embedding_init_method_std,
        }
    }
}

impl Initializer {
    pub fn new(context: &BuildContext, config: &DecoderConfig) -> Self {
        Self {
            device: context.device.clone(),
            dtype: context.params_dtype,
            stream: Philox::new(context.seed),
            draw: config.perform_initialization,
        }
    }

    /// A matrix of normal draws from the stream of `name`.
    pub fn normal(&self, name: &str, shape: [usize; 2], std: f64) -> Param<Tensor<2>> {
        if !self.draw {
            return Param::from_tensor(Tensor::zeros(shape, (&self.device, self.dtype.into())));
        }
        let values = self.stream.derive_name(name).normal(shape[0] * shape[1], std);
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (&self.device, self.dtype.into())))
    }

    /// A vector of zeros.
    pub fn zeros(&self, size: usize) -> Param<Tensor<1>> {
        Param::from_tensor(Tensor::zeros([size], (&self.device, self.dtype.into())))
    }

    /// A vector of ones.
    pub fn ones(&self, size: usize) -> Param<Tensor<1>> {
        Param::from_tensor(Tensor::ones([size], (&self.device, self.dtype.into())))
    }
}
