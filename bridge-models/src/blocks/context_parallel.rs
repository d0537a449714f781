//! Attention over a sequence that context-parallel ranks share.
//!
//! Each rank has the queries of two chunks of the sequence, an early and a late one
//! ([`Cut::Zigzag`]), so that under the causal mask all ranks do the same amount of work. Keys and
//! values, which with grouped heads are small, are gathered from all ranks (as in Llama 3's
//! training, arXiv:2407.21783, section 3.3.2); their gradients are summed over the ranks and cut
//! again.

use bridge_kernels::{AttentionOptions, DropoutKey, attention};
use bridge_regions::{Cut, all_gather, all_gather_int};
use burn::tensor::Tensor;

use super::regions::Regions;

/// The dimension of the sequence.
const SEQUENCE: usize = 1;

/// Queries, keys and values of the tokens a rank has: `[b, t, h, d]`, `[b, t, g, d]` and `[b, t, g,
/// w]`.
pub(crate) struct Heads {
    pub q_bthd: Tensor<4>,
    pub k_btgd: Tensor<4>,
    pub v_btgd: Tensor<4>,
}

/// Causal attention of this rank's queries to the keys of the whole sequence, `[b, t, h, w]`.
///
/// A mask of attention dropout belongs to a chunk: it is another one than a rank alone would draw.
/// A choice of keys is one of the whole sequence's.
pub(crate) fn attend(heads: Heads, options: AttentionOptions, regions: &Regions) -> Tensor<4> {
    let group = regions.context();
    if group.size() == 1 {
        return attend_last(heads, options);
    }
    let k_bsgd = all_gather(heads.k_btgd, SEQUENCE, Cut::Zigzag, group);
    let v_bsgd = all_gather(heads.v_btgd, SEQUENCE, Cut::Zigzag, group);
    if options.choice.is_some() {
        return attention(heads.q_bthd, k_bsgd, v_bsgd, &options);
    }
    let documents_bs = options.document_ids.clone().map(|ids_bt| all_gather_int(ids_bt, SEQUENCE, Cut::Zigzag, group));
    let s = k_bsgd.dims()[SEQUENCE];
    let mut start = 0;
    let outputs = Cut::Zigzag.parts(s, group.rank(), group.size()).into_iter().map(|chunk| {
        let q_bthd = heads.q_bthd.clone().narrow(SEQUENCE, start, chunk.len());
        start += chunk.len();
        let seen = chunk.end;
        let [k_btgd, v_btgd] = [&k_bsgd, &v_bsgd].map(|x_bsgd| x_bsgd.clone().narrow(SEQUENCE, 0, seen));
        let options = AttentionOptions {
            dropout: options.dropout.map(|(rate, key)| (rate, DropoutKey(key.0.derive(chunk.start as u64)))),
            document_ids: documents_bs.clone().map(|ids| ids.narrow(SEQUENCE, 0, seen)),
            ..options.clone()
        };
        attend_last(Heads { q_bthd, k_btgd, v_btgd }, options)
    });
    Tensor::cat(outputs.collect(), SEQUENCE)
}

/// Causal attention of a sequence's last tokens to all its keys.
///
/// With document boundaries the kernel wants as many queries as keys, so that queries of earlier
/// tokens, of zeros, are computed and dropped.
fn attend_last(Heads { q_bthd, k_btgd, v_btgd }: Heads, mut options: AttentionOptions) -> Tensor<4> {
    let [b, t, h, d] = q_bthd.dims();
    let before = k_btgd.dims()[SEQUENCE] - t;
    if options.document_ids.is_none() || before == 0 {
        return attention(q_bthd, k_btgd, v_btgd, &options);
    }
    if let Some(probe) = &mut options.probe {
        probe.first_query = before;
    }
    let zeros = Tensor::zeros([b, before, h, d], (&q_bthd.device(), q_bthd.dtype()));
    let q_bshd = Tensor::cat(vec![zeros, q_bthd], SEQUENCE);
    attention(q_bshd, k_btgd, v_btgd, &options).narrow(SEQUENCE, before, t)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bridge_core::model::Parallel;
    use bridge_dist::comm::thread::run_ranks;
    use bridge_dist::mesh::{Mesh, MeshSetupError, ParallelSizes, ProcessGroups, RankOrder};
    use bridge_kernels::{MaxLogit, MaxLogitProbe};
    use burn::tensor::{Device, Int, TensorData};

    use super::*;

    /// All scores are negative, so that queries of zeros, which only fill a shape, would have the
    /// largest.
    #[test]
    fn queries_that_fill_a_shape_have_no_scores() {
        const SHAPE: [usize; 4] = [1, 8, 3, 5];
        let (device, documents) = (Device::flex(), [0_i64, 0, 0, 1, 1, 1, 2, 2]);
        let tensor = |sign: f32, places: &[usize]| {
            let values: Vec<f32> = places
                .iter()
                .flat_map(|place| (0..15).map(move |i| sign * (1.0 + ((place * 15 + i) % 7) as f32)))
                .collect();
            Tensor::<4>::from_data(TensorData::new(values, [1, places.len(), 3, 5]), &device)
        };
        let ids = |places: &[usize]| {
            let ids: Vec<i64> = places.iter().map(|place| documents[*place]).collect();
            Tensor::<2, Int>::from_data(TensorData::new(ids, [1, places.len()]), &device)
        };
        let score = |groups: ProcessGroups, places: &[usize]| {
            let regions = Regions::new(&Parallel { groups, sequence_parallel: false });
            let largest = Arc::new(MaxLogit::default());
            let options = AttentionOptions {
                document_ids: Some(ids(places)),
                probe: Some(MaxLogitProbe { max_logit: Arc::clone(&largest), first_query: 0 }),
                ..AttentionOptions::causal(SHAPE[3])
            };
            let [q_bthd, k_btgd, v_btgd] = [tensor(1.0, places), tensor(-1.0, places), tensor(1.0, places)];
            attend(Heads { q_bthd, k_btgd, v_btgd }, options, &regions);
            largest.value().expect("there are scores")
        };
        let alone = score(ProcessGroups::single(), &(0..SHAPE[1]).collect::<Vec<_>>());
        assert!(alone < -1.0, "{alone}");
        let sizes = ParallelSizes { context_parallel_size: 2, ..ParallelSizes::default() };
        let of_ranks = run_ranks(2, Duration::from_secs(30), |world| {
            let groups = ProcessGroups::new(world, Mesh::new(2, sizes, RankOrder::default()).unwrap())?;
            let places: Vec<usize> =
                Cut::Zigzag.parts(SHAPE[1], groups.context().rank(), 2).into_iter().flatten().collect();
            Ok::<_, MeshSetupError>(score(groups, &places))
        });
        let largest = of_ranks.unwrap().into_iter().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(largest, alone);
    }
}
