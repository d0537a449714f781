//! Attention inside chunks of positions: for it a chunk of a document is a document of its own.

use bridge_core::model::Workload;
use bridge_kernels::rotary::Positions;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::architecture::config::DecoderConfig;

/// Chunks of a layer's sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    /// Positions in a chunk.
    length: usize,
    /// Above the number of any chunk.
    count: usize,
}

impl Chunks {
    /// Chunks inside which layer `index` (global) attends.
    pub fn of_layer(config: &DecoderConfig, index: usize) -> Option<Self> {
        let length = config.window(index).filter(|_| config.window_chunks)? + 1;
        Some(Self { length, count: config.max_position_embeddings / length + 1 })
    }

    /// The workload of layer `index` (global), whose tokens have documents if it has chunks.
    pub fn workload(config: &DecoderConfig, index: usize, work: &Workload) -> Workload {
        Workload { documents: work.documents || Self::of_layer(config, index).is_some(), ..*work }
    }

    /// Documents of `s` keys, of which the last `t` are those of tokens at `positions` in
    /// `documents_bt`; `None` if all are in one.
    pub fn documents(
        self,
        documents_bt: Option<Tensor<2, Int>>,
        positions: &Positions,
        [b, t, s]: [usize; 3],
        device: &Device,
    ) -> Option<Tensor<2, Int>> {
        let chunks_bs = match positions {
            Positions::From(first) => {
                let first = first + t - s;
                let chunks: Vec<i64> = (first..first + s).map(|position| (position / self.length) as i64).collect();
                if documents_bt.is_none() && chunks.first() == chunks.last() {
                    return None;
                }
                Tensor::<1, Int>::from_data(TensorData::new(chunks, [s]), device).reshape([1, s]).repeat_dim(0, b)
            }
            Positions::Explicit(positions_bt) => positions_bt.clone() / self.length as i64,
        };
        Some(match documents_bt {
            Some(documents_bt) => documents_bt * self.count as i64 + chunks_bs,
            None => chunks_bs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(values: &[i64]) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(values.to_vec(), [2, values.len() / 2]), &Device::flex())
    }

    #[test]
    fn tokens_share_a_document_if_they_shared_one_and_share_a_chunk() {
        let chunks = Chunks { length: 3, count: 4 };
        let places: Vec<i64> = vec![0, 1, 2, 3, 4, 0, 5, 6, 0, 1, 2, 3];
        let documents: Vec<i64> = vec![0, 0, 0, 0, 0, 1, 4, 4, 5, 5, 5, 5];
        let positions = Positions::Explicit(ids(&places));
        let found = chunks.documents(Some(ids(&documents)), &positions, [2, 6, 6], &Device::flex()).unwrap();
        let found: Vec<i64> = found.into_data().iter::<i64>().collect();
        for row in [0..6, 6..12] {
            for (i, j) in row.clone().flat_map(|i| row.clone().map(move |j| (i, j))) {
                let share = documents[i] == documents[j] && places[i] / 3 == places[j] / 3;
                assert_eq!(found[i] == found[j], share, "{i} and {j}");
            }
        }
    }

    #[test]
    fn earlier_keys_of_a_generation_have_chunks_too() {
        let chunks = Chunks { length: 3, count: 4 };
        let of = |first, t, s| chunks.documents(None, &Positions::From(first), [2, t, s], &Device::flex());
        assert!(of(3, 3, 3).is_none() && of(5, 1, 3).is_none());
        let found: Vec<i64> = of(4, 3, 4).unwrap().into_data().iter::<i64>().collect();
        assert_eq!(found, [1, 1, 1, 2, 1, 1, 1, 2]);
    }
}
