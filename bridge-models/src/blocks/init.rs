//! Initial values of parameters: a function of seed and parameter name alone, so that they depend neither on the order of
//! creation nor on rank or pipeline stage: a rank that holds a slice has that slice of the whole parameter's values.

use bridge_core::model::{BuildContext, DeferredParameters, released};
use bridge_kernels::Philox;
use burn::module::Param;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::placement::Layout;
use crate::models::decoder::config::DecoderConfig;
use crate::sharding::held_runs;

/// Makes this rank's parameters on one device.
#[derive(Clone, Debug)]
pub(crate) struct Initializer {
    device: Device,
    dtype: FloatDType,
    stream: Philox,
    draw: bool,
    layout: Layout,
    /// Where matrices may be left for later.
    deferred: Option<DeferredParameters>,
}

/// Standard deviations of the normal distributions that weights start from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deviations {
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
            layout: Layout::new(config, &context.parallel),
            deferred: context.deferred.clone(),
        }
    }

    /// Ranks that share each matrix.
    pub fn tensor_size(&self) -> usize {
        self.layout.ranks()
    }

    /// Global numbers of the experts of this rank, of `num_experts`.
    pub fn local_experts(&self, num_experts: usize) -> std::ops::Range<usize> {
        self.layout.local_experts(num_experts)
    }

    /// This rank's slice of a matrix of normal draws from the stream of `name`; `shape` is the whole matrix's.
    pub fn normal(&self, name: &str, shape: [usize; 2], std: f64) -> Param<Tensor<2>> {
        let placement = self.layout.placement(name);
        let mut local = shape;
        if let Some(shard) = &placement.shard {
            assert_eq!(shard.size, shape[shard.dim], "the layout of {name} and its shape {shape:?}");
            local[shard.dim] = shard.local_size();
        }
        let (draw, dtype) = (self.draw, DType::from(self.dtype));
        let (stream, device) = (self.stream.derive_name(name), self.device.clone());
        let make = move |device: &Device| {
            if !draw {
                return Tensor::<2>::zeros(local, (device, dtype));
            }
            let values: Vec<f32> =
                held_runs(&placement, &shape).into_iter().flat_map(|run| stream.normal_range(run, std)).collect();
            Tensor::from_data(TensorData::new(values, local), (device, dtype))
        };
        let Some(deferred) = &self.deferred else {
            return Param::from_tensor(make(&device));
        };
        let shape_only = released(local, &device, dtype).autodiff();
        let plain = device.without_autodiff();
        deferred.defer(name, move || make(&plain).reshape([local[0] * local[1]]));
        Param::from_tensor(shape_only)
    }

    /// This rank's slice of the vector of zeros called `name`; `size` is the whole vector's.
    pub fn sharded_zeros(&self, name: &str, size: usize) -> Param<Tensor<1>> {
        self.zeros(self.layout.placement(name).shard.map_or(size, |shard| shard.local_size()))
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
