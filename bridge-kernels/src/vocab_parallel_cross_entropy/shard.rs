//! The part of a vocabulary that a rank holds, and the exchange with the ranks of the other parts.

use burn::tensor::{Int, Tensor};

/// Reductions among ranks that hold parts of one vocabulary.
pub trait VocabularyExchange: Sync {
    /// Replaces each value by the largest over all ranks.
    fn max(&self, values: &mut [f32]);
    /// Replaces each value by the sum over all ranks.
    fn sum(&self, values: &mut [f32]);
}

/// The rows of the output projection that this rank holds.
#[derive(Clone, Copy)]
pub struct VocabularyShard<'a> {
    /// First of them in the whole vocabulary.
    pub start: usize,
    /// Size of the whole vocabulary.
    pub size: usize,
    /// The other ranks.
    pub exchange: &'a dyn VocabularyExchange,
}

/// Targets of the loss. They are the same on all ranks.
#[derive(Clone, Debug)]
pub struct Targets {
    /// Ids in the whole vocabulary, `[n]`.
    pub ids_n: Tensor<1, Int>,
    /// Weight of each token, `[n]` float32.
    pub mask_n: Tensor<1>,
}
