//! Initial values of the parameters of blocks.

use bridge_core::model::Initial;

use crate::architecture::config::DecoderConfig;

/// Initial values of a decoder's matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialValues {
    /// Projections into a block.
    pub weight: Initial,
    /// Projections back into the residual stream: smaller by `sqrt(2 num_layers)`, the root of the
    /// number of blocks, so that the stream's variance does not grow with depth (Radford et al.
    /// 2019, section 2.3).
    pub output: Initial,
    /// Output table, if it is not the word embedding.
    pub output_table: Initial,
    /// Embedding tables.
    pub embedding: Initial,
}

impl InitialValues {
    pub fn new(config: &DecoderConfig) -> Self {
        let of = |std: f64| if config.perform_initialization { Initial::Normal(std) } else { Initial::Zeros };
        // Number of blocks per layer that add to the stream: two, or one in a hybrid model.
        let additions = if config.hybrid.is_some() { 1.0 } else { 2.0 };
        let hidden = config.init_method_std / config.initial_divisor();
        Self {
            weight: of(hidden),
            output: of(hidden / (additions * config.num_layers as f64).sqrt()),
            output_table: of(config.init_method_std),
            embedding: of(config.embedding_init_method_std),
        }
    }
}
