//! Keys and values of the tokens already seen, for generation.

use burn::tensor::Tensor;

/// Cached keys and values of one attention layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache(Option<(Tensor<4>, Tensor<4>)>);

impl LayerCache {
    /// Appends keys and values of new tokens and returns those of all tokens so far.
    ///
    /// # Shapes
    /// `k` and `v` `[b, t, g, d]` -> `[b, s, g, d]` each, where `s` counts all tokens seen.
    pub fn append(&mut self, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (k, v) = match self.0.take() {
            Some((old_k, old_v)) => (Tensor::cat(vec![old_k, k], 1), Tensor::cat(vec![old_v, v], 1)),
            None => (k, v),
        };
        self.0 = Some((k.clone(), v.clone()));
        (k, v)
    }
}

/// Keys and values of every layer of a chunk.
#[derive(Clone, Debug, Default)]
pub struct KeyValueCache {
    /// One entry a layer, in order.
    pub layers: Vec<LayerCache>,
    /// Number of tokens seen.
    pub length: usize,
}

impl KeyValueCache {
    /// An empty cache for `num_layers` layers.
    pub fn new(num_layers: usize) -> Self {
        Self { layers: vec![LayerCache::default(); num_layers], length: 0 }
    }
}
