//! Orders against worked examples, and the property that a resumed sampler continues an
//! uninterrupted one.

use proptest::prelude::*;

use super::*;

fn params(kind: SamplerKind, total: usize, micro: usize, ranks: usize) -> SamplerParams {
    SamplerParams {
        kind,
        total_samples: total,
        consumed_samples: 0,
        micro_batch_size: micro,
        global_batch_size: 2 * micro * ranks,
        data_parallel: DataParallel { rank: 0, size: ranks },
    }
}

fn rank(params: SamplerParams, rank: usize) -> Sampler {
    let data_parallel = DataParallel { rank, size: params.data_parallel.size };
    Sampler::new(SamplerParams { data_parallel, ..params }).expect("valid parameters")
}

fn plain(batches: impl IntoIterator<Item = SampleIndices>) -> Vec<Vec<usize>> {
    batches.into_iter().map(|batch| batch.into_iter().map(|i| i.expect("no padding")).collect()).collect()
}

const SINGLE: SamplerKind = SamplerKind::Single { incomplete: Incomplete::Drop };
const CYCLIC: SamplerKind = SamplerKind::Cyclic { sharding: Sharding::Buckets };
const BATCH: SamplerKind = SamplerKind::Batch { incomplete: Incomplete::Drop, passes: Passes::Endless };

#[test]
fn single_reads_in_sequence() {
    let params = params(SINGLE, 10, 2, 2);
    assert_eq!(plain(rank(params, 0)), [[0, 1], [4, 5]]);
    assert_eq!(plain(rank(params, 1)), [[2, 3], [6, 7]]);
    let resumed = SamplerParams { consumed_samples: 4, ..params };
    assert_eq!(plain(rank(resumed, 1)), [[6, 7]]);
}

#[test]
fn single_keeps_or_pads_the_rest() {
    let keep = params(SamplerKind::Single { incomplete: Incomplete::Keep }, 11, 2, 2);
    assert_eq!(plain(rank(keep, 0)), [vec![0, 1], vec![4, 5], vec![8, 9]]);
    assert_eq!(plain(rank(keep, 1)), [vec![2, 3], vec![6, 7], vec![10]]);
    let keep = SamplerParams { total_samples: 9, ..keep };
    assert_eq!(plain(rank(keep, 1)), [[2, 3], [6, 7]]);
    let pad = params(SamplerKind::Single { incomplete: Incomplete::Pad }, 9, 2, 2);
    assert_eq!(rank(pad, 0).last(), Some(vec![Some(8), None]));
    assert_eq!(rank(pad, 1).last(), Some(vec![None, None]));
}

/// Epoch 0 permutes a bucket of ten by `randperm(10)` with seed 0, epoch 1 with seed 1.
#[test]
fn cyclic_shuffles_each_ranks_bucket() {
    let params = params(CYCLIC, 23, 2, 2);
    let expected = [[14, 11], [17, 15], [13, 19], [10, 18], [16, 12], [15, 16], [11, 12], [10, 18]];
    assert_eq!(plain(rank(params, 1).take(8)), expected);
    let resumed = SamplerParams { consumed_samples: 20 + 4, ..params };
    assert_eq!(plain(rank(resumed, 1).take(2)), expected[6..]);
}

#[test]
fn interleaved_cyclic_deals_one_permutation() {
    let kind = SamplerKind::Cyclic { sharding: Sharding::Interleaved };
    let params = params(kind, 10, 1, 2);
    assert_eq!(plain(rank(params, 0).take(5)).concat(), [4, 7, 3, 0, 6]);
    assert_eq!(plain(rank(params, 1).take(5)).concat(), [1, 5, 9, 8, 2]);
}

#[test]
fn interleaved_ranks_agree_on_the_epochs_end() {
    let kind = SamplerKind::Cyclic { sharding: Sharding::Interleaved };
    // One unit of four fits into seven samples; dealt out naively, three of four ranks would get a
    // second sample.
    let params = params(kind, 7, 1, 4);
    let second: Vec<u64> = torch_randperm(7, 1)[..4].to_vec();
    let dealt: Vec<u64> = (0..4).map(|r| plain(rank(params, r).take(2))[1][0] as u64).collect();
    assert_eq!(dealt, second);
}

#[test]
fn batch_deals_global_batches() {
    let params = params(BATCH, 11, 1, 2);
    assert_eq!(plain(rank(params, 0).take(6)).concat(), [0, 2, 4, 6, 0, 2]);
    assert_eq!(plain(rank(params, 1).take(6)).concat(), [1, 3, 5, 7, 1, 3]);
}

#[test]
fn batch_keeps_or_pads_the_rest() {
    let keep = SamplerKind::Batch { incomplete: Incomplete::Keep, passes: Passes::Once };
    assert_eq!(plain(rank(params(keep, 11, 1, 2), 0)).concat(), [0, 2, 4, 6, 8, 10]);
    assert_eq!(plain(rank(params(keep, 11, 1, 2), 1)).concat(), [1, 3, 5, 7, 9]);
    let pad = SamplerKind::Batch { incomplete: Incomplete::Pad, passes: Passes::Once };
    let padded: Vec<_> = rank(params(pad, 11, 1, 2), 1).collect();
    assert_eq!(padded.concat(), [Some(1), Some(3), Some(5), Some(7), Some(9), None]);
}

#[test]
fn batches_are_cut_into_micro_batches() {
    let params = SamplerParams { global_batch_size: 8, ..params(BATCH, 16, 2, 2) };
    assert_eq!(plain(rank(params, 1).take(3)), [[1, 3], [5, 7], [9, 11]]);
}

#[test]
fn unusable_parameters_are_errors() {
    let message = |params| Sampler::new(params).expect_err("refused").to_string();
    assert!(message(params(SINGLE, 0, 1, 1)).contains("no samples"));
    assert!(message(params(SINGLE, 5, 0, 1)).contains("micro_batch_size"));
    let consumed = SamplerParams { consumed_samples: 5, ..params(SINGLE, 5, 1, 1) };
    assert!(message(consumed).contains("5 of 5"));
    assert!(message(params(CYCLIC, 3, 2, 2)).contains("needs 4"));
    let off_grid = SamplerParams { consumed_samples: 3, ..params(CYCLIC, 8, 2, 1) };
    assert!(message(off_grid).contains("multiple"));
    let odd = SamplerParams { global_batch_size: 3, ..params(BATCH, 8, 2, 1) };
    assert!(message(odd).contains("global_batch_size = 3"));
    assert!(message(params(BATCH, 3, 1, 2)).contains("drop_last"));
    let outside = SamplerParams { data_parallel: DataParallel { rank: 2, size: 2 }, ..params(SINGLE, 8, 1, 1) };
    assert!(message(outside).contains("rank 2"));
}

fn kinds() -> impl Strategy<Value = SamplerKind> {
    prop_oneof![
        Just(SINGLE),
        Just(CYCLIC),
        Just(SamplerKind::Cyclic { sharding: Sharding::Interleaved }),
        Just(BATCH),
        Just(SamplerKind::Batch { incomplete: Incomplete::Pad, passes: Passes::Endless }),
    ]
}

proptest! {
    #[test]
    fn a_resumed_sampler_continues_an_uninterrupted_one(
        kind in kinds(),
        micro in 1usize..4,
        ranks in 1usize..4,
        units in 2usize..9,
        rest in 0usize..12,
        done in 0usize..20,
    ) {
        let unit = micro * ranks;
        let base = params(kind, units * unit + rest % unit, micro, ranks);
        // Runs resume only after whole steps: a global batch for the batch sampler, a unit for all
        // others.
        let (step, per_step) = match kind {
            SamplerKind::Batch { .. } => (base.global_batch_size, 2),
            _ => (unit, 1),
        };
        let done = if matches!(kind, SamplerKind::Single { .. }) { done % units } else { done };
        for r in 0..ranks {
            let tail: Vec<_> = rank(base, r).skip(done * per_step).take(12).collect();
            let resumed = SamplerParams { consumed_samples: (done * step) as u64, ..base };
            prop_assert_eq!(rank(resumed, r).take(12).collect::<Vec<_>>(), tail);
        }
    }

    #[test]
    fn ranks_never_share_a_sample_within_an_epoch(
        kind in prop_oneof![Just(SINGLE), Just(CYCLIC), Just(SamplerKind::Cyclic { sharding: Sharding::Interleaved })],
        micro in 1usize..4,
        ranks in 1usize..5,
        total in 12usize..60,
    ) {
        let base = params(kind, total, micro, ranks);
        let batches = total / (micro * ranks);
        let mut seen: Vec<usize> =
            (0..ranks).flat_map(|r| plain(rank(base, r).take(batches)).concat()).collect();
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), batches * micro * ranks);
        prop_assert!(seen.iter().all(|&i| i < total));
    }
}
