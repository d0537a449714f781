//! Data-parallel ranks that divide optimizer state or parameters among themselves, against ranks
//! that each have all: the same bits.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bridge_dist::comm::counting::{CountingCommunicator, Ledger};
use bridge_dist::comm::thread::{Devices, run_ranks_on};
use bridge_dist::comm::{CommError, Group};
use bridge_dist::mesh::{Mesh, ParallelSizes, ProcessGroups, RankOrder};
use bridge_kernels::optim::{Master, Stored};
use burn::tensor::{Device, FloatDType, Tensor};

use super::bucket::owned_range;
use super::rules::tests::{adam, overrides, with_defaults};
use super::rules::{Algorithm, RULES};
use super::*;
use crate::config::optimizer_rules::KeptFormats;
use crate::model::{DeferredParameters, ModelChunk, Replacement, ReplicaGroup};
use crate::tests::toy;

/// State of one rank after some steps.
pub(super) struct Trained {
    /// Bits of all parameters.
    pub values: BTreeMap<String, Vec<u64>>,
    norms: Vec<f64>,
    /// Norms of the rank's local gradients, rounded: their squares may be summed in another order.
    local_norms: Vec<(GradientPart, f32)>,
    /// Elements of moments and master weights on this rank, and on all.
    state: (usize, usize),
    pub whole_state: OptimizerState,
}

/// A gradient that is different on each rank, in each step.
fn fill(buffer: &mut GradientBuffer, chunk: &dyn ModelChunk, seed: usize) {
    for info in chunk.parameters() {
        let value = |i: usize| ((i * 7 + seed * 5 + info.name.len()) % 13) as f32 * 0.07 - 0.3;
        let values: Vec<f32> = (0..info.num_elements()).map(value).collect();
        buffer.add(&info.name, Tensor::from_floats(values.as_slice(), &Device::flex()));
    }
}

/// The state of the optimizer with each tensor whole, and masters in float32, from the ranges that
/// the ranks own.
fn whole_state(optimizer: &mut Optimizer, chunks: &mut [Box<dyn ModelChunk>]) -> Result<OptimizerState, CommError> {
    // Masters go with parameters that have arrived.
    optimizer.parameters().wait_for_gathers(chunks)?;
    let OptimizerState { mut tensors, remainders, ranges, whole, step } = optimizer.state();
    let owned_values = optimizer.updated(chunks);
    for (key, remainders) in remainders {
        let name = key.split_once('.').unwrap().1;
        let value = Master::Remainders(remainders).widen(&owned_values[name]);
        tensors.insert(key, Stored::Plain(value));
    }
    let group = optimizer.distribution().shards(ReplicaGroup::Dense);
    for info in chunks[0].parameters() {
        let owned = |rank: usize| owned_range(info.num_elements(), rank, group.size());
        let part = (0..group.size()).map(|rank| owned(rank).len()).max().unwrap_or(0);
        let is_shard = |key: &str| {
            ranges.get(key).is_some_and(|range| range.len() < info.num_elements())
                && key.split_once('.').is_some_and(|(_, name)| name == info.name)
        };
        for (_, stored) in tensors.iter_mut().filter(|(key, _)| is_shard(key)) {
            let mut mine: Vec<f32> = stored.widen(&Device::flex()).to_data().iter::<f32>().collect();
            mine.resize(part, 0.0);
            let mut all = vec![0_f32; part * group.size()];
            group.all_gather((&mine).into(), (&mut all).into())?;
            let values: Vec<f32> =
                (0..group.size()).flat_map(|rank| &all[rank * part..][..owned(rank).len()]).copied().collect();
            let whole = Tensor::from_floats(values.as_slice(), &Device::flex());
            let format = stored.format().expect("a format of a state");
            *stored = Stored::narrow(whole, format, stored.scale().unwrap_or(1.0));
        }
    }
    Ok(OptimizerState { tensors, whole, step, ..OptimizerState::default() })
}

fn train(algorithm: &Algorithm, ranks: usize, dtype: FloatDType, settings: DistributionSettings) -> Vec<Trained> {
    train_with(algorithm, ranks, 1, dtype, settings, None)
}

/// Transfer through copies in host memory or in shared device memory, and dtype of gradients in
/// transfer.
type Transport = (Devices, ReduceDType);

const THROUGH_HOST: Transport = (Devices::Apart, ReduceDType::Float32);

/// With several instances of the distributed optimizer.
fn train_instances(
    algorithm: &Algorithm,
    ranks: usize,
    instances: usize,
    dtype: FloatDType,
    settings: DistributionSettings,
) -> Vec<Trained> {
    train_with(algorithm, ranks, instances, dtype, settings, None)
}

/// With states in host memory.
pub(super) fn train_with(
    algorithm: &Algorithm,
    ranks: usize,
    instances: usize,
    dtype: FloatDType,
    settings: DistributionSettings,
    offload: Option<OffloadSettings>,
) -> Vec<Trained> {
    train_by(THROUGH_HOST, algorithm, ranks, instances, dtype, settings, offload)
}

fn train_by(
    (devices, reduce_dtype): Transport,
    algorithm: &Algorithm,
    ranks: usize,
    instances: usize,
    dtype: FloatDType,
    settings: DistributionSettings,
    offload: Option<OffloadSettings>,
) -> Vec<Trained> {
    let program = |world| -> Result<Trained, Box<dyn Error + Send + Sync>> {
        let sizes = ParallelSizes { num_distributed_optimizer_instances: instances, ..ParallelSizes::default() };
        let mesh = Mesh::new(ranks, sizes, RankOrder::default()).expect("a mesh");
        let groups = ProcessGroups::new(world, mesh)?;
        let rank = groups.world().rank();
        let mut chunks = vec![toy(3, dtype)];
        let distribution = Arc::new(Distribution::new(&chunks, groups, settings)?);
        let optimizer_settings = OptimizerSettings {
            algorithm: algorithm.clone(),
            clip_grad: 1.0,
            skip_above: f64::INFINITY,
            ema_decay: None,
            count_zeros: true,
            offload,
        };
        let provider = overrides(algorithm);
        let mut optimizer = Optimizer::new(optimizer_settings, &chunks, &provider, Arc::clone(&distribution)).unwrap();
        let reducer = GradientReducer::new(Arc::clone(&distribution), reduce_dtype, Device::flex());
        let mut reducer = reducer.with_local_norms(true);
        // Some values are there, one is left for later.
        let deferred = DeferredParameters::default();
        let late = toy(3, dtype);
        late.visit_parameters(&mut |name, value| {
            if name == "embedding" {
                deferred.defer(name, move || value);
            }
        });
        if settings.sharding == Sharding::Full {
            chunks[0].replace_parameters([("embedding", Replacement::Released)].into());
        }
        optimizer.parameters().shard(&mut chunks, &deferred);
        let (mut norms, mut local_norms) = (Vec::new(), Vec::new());
        for step in 0..3 {
            let mut gradients = GradientBuffer::new(AccumulationDType::Float32);
            fill(&mut gradients, chunks[0].as_ref(), 17 * step + rank);
            for segment in (0..chunks[0].segments().len()).rev() {
                reducer.reduce_complete_buckets(0, segment, &mut gradients)?;
            }
            if settings.sharding.divides_gradients() {
                reducer.end_micro_batch(0, &mut gradients)?;
            }
            reducer.finish(&mut gradients)?;
            local_norms.extend(reducer.take_local_norms().into_iter().map(|(part, norm)| (part, norm as f32)));
            let rates: Vec<_> = optimizer
                .groups()
                .map(|group| GroupRates { learning_rate: 0.01, weight_decay: 0.1 * group.wd_mult })
                .collect();
            let scales = StepScales { loss_scale: 1.0, divisor: ranks as f64 };
            let outcome = optimizer.step(&mut chunks, &mut gradients, &rates, scales)?;
            assert!(outcome.success);
            norms.push(outcome.grad_norm);
            if step == 1 {
                // An interrupted run resumes from its saved state.
                let whole = whole_state(&mut optimizer, &mut chunks)?;
                assert!(optimizer.load_state(whole).is_empty());
            }
        }
        let state = optimizer.state();
        for (name, range) in &state.ranges {
            let len = state.tensors.get(name).map_or_else(|| state.remainders[name].low.len(), Stored::len);
            assert_eq!(len, range.len(), "{name}");
        }
        let elements = |state: &OptimizerState| {
            let of_remainders = state.remainders.values().map(|remainders| remainders.low.len()).sum::<usize>();
            state.tensors.values().map(Stored::len).sum::<usize>() + of_remainders
        };
        let whole_state = whole_state(&mut optimizer, &mut chunks)?;
        optimizer.parameters().make_whole(&mut chunks)?;
        let mut values = BTreeMap::new();
        chunks[0].visit_parameters(&mut |name, value| {
            values.insert(name.to_owned(), value.into_data().iter::<f64>().map(f64::to_bits).collect());
        });
        Ok(Trained { values, norms, local_norms, state: (elements(&state), elements(&whole_state)), whole_state })
    };
    run_ranks_on(devices, ranks, Duration::from_secs(120), program).expect("all ranks succeed")
}

#[test]
fn sharding_changes_no_bit() {
    let of_adam = [(2, FloatDType::F32), (3, FloatDType::BF16)].map(|(ranks, dtype)| (adam(), ranks, dtype));
    // Blocks begin where a rank's range begins: see `blocks_of_ranges_train_alike`.
    let by_elements = RULES.iter().filter(|rule| rule.declared.formats != KeptFormats::Blocks);
    let of_all = by_elements.map(|rule| (with_defaults(rule), 3, FloatDType::F32));
    let of_formats = super::tests::formats().map(|(formats, dtype)| (adam().keeping(formats), 3, dtype));
    for (algorithm, ranks, dtype) in of_adam.into_iter().chain(of_all).chain(of_formats) {
        let plain = train(&algorithm, ranks, dtype, DistributionSettings::default());
        let (waiting, overlapped) = (false, true);
        for (sharding, bucket_rule, overlaps) in [
            (Sharding::None, BucketRule::Elements(150), overlapped),
            (Sharding::Optimizer, BucketRule::One, waiting),
            (Sharding::Optimizer, BucketRule::Elements(150), overlapped),
            (Sharding::Gradients, BucketRule::One, waiting),
            (Sharding::Gradients, BucketRule::Elements(150), overlapped),
            (Sharding::Full, BucketRule::One, waiting),
            (Sharding::Full, BucketRule::One, overlapped),
        ] {
            // Includes padding that is longer than the data.
            let padding = match overlaps && sharding.divides_state() {
                true => BucketPadding::HighBandwidth,
                false => BucketPadding::EqualParts,
            };
            let settings = DistributionSettings {
                sharding,
                bucket_rule,
                padding,
                overlap_param_gather: overlaps,
                overlap_grad_reduce: overlaps,
                ..DistributionSettings::default()
            };
            let found = train(&algorithm, ranks, dtype, settings);
            for (rank, trained) in found.iter().enumerate() {
                let what = format!("{algorithm:?}, {sharding:?}, {bucket_rule:?}, {dtype:?}, rank {rank} of {ranks}");
                assert_eq!(trained.norms, plain[0].norms, "{what}");
                assert!(trained.values == plain[0].values, "{what}: parameters differ");
                for (name, stored) in &trained.whole_state.tensors {
                    let expected = &plain[0].whole_state.tensors[name];
                    assert_eq!(stored.to_data(), expected.to_data(), "{what}: {name}");
                    assert_eq!(stored.scale(), expected.scale(), "{what}: {name}");
                }
                if sharding != Sharding::None && !algorithm.is_whole() {
                    let (own, all) = trained.state;
                    // Each tensor is cut for itself, so a rank may be off by less than one element
                    // of each.
                    let off = (own as f64 - all as f64 / ranks as f64).abs();
                    let tensors = trained.whole_state.tensors.len() as f64;
                    assert!(off < tensors, "{what}: {own} of {all} elements of state");
                }
            }
        }
    }
}

/// Scales of other blocks are other roundings of states.
#[test]
fn blocks_of_ranges_train_alike() {
    for rule in RULES.iter().filter(|rule| rule.declared.formats == KeptFormats::Blocks) {
        let plain = train(&with_defaults(rule), 3, FloatDType::F32, DistributionSettings::default());
        for sharding in [Sharding::Optimizer, Sharding::Gradients, Sharding::Full] {
            let settings = DistributionSettings { sharding, ..DistributionSettings::default() };
            let found = train(&with_defaults(rule), 3, FloatDType::F32, settings);
            for trained in &found {
                let what = format!("{}, {sharding:?}", rule.declared.name);
                assert!(trained.values == found[0].values, "{what}: ranks differ");
                for (name, expected) in &plain[0].values {
                    let far = trained.values[name].iter().zip(expected);
                    let is_far = |(a, b): &(&u64, &u64)| (f64::from_bits(**a) - f64::from_bits(**b)).abs() > 6e-3;
                    let far = far.filter(is_far);
                    let (far, all) = (far.count(), expected.len());
                    assert!(far * 5 <= all, "{what}: {far} of {all} elements of {name} are far");
                }
            }
        }
    }
}

/// Without copies in host memory nothing changes: gradients of each dtype, ranks that divide
/// parameters evenly and not, instances, averages.
#[test]
fn what_stays_on_the_device_has_the_same_bits() {
    let overlapped = DistributionSettings {
        bucket_rule: BucketRule::Elements(150),
        overlap_param_gather: true,
        overlap_grad_reduce: true,
        ..DistributionSettings::default()
    };
    let padded = DistributionSettings { padding: BucketPadding::HighBandwidth, ..overlapped };
    let averaged = DistributionSettings { average_in_collective: true, ..DistributionSettings::default() };
    for (ranks, instances, dtype, reduce_dtype) in [
        (2, 1, FloatDType::F32, ReduceDType::Float32),
        (3, 1, FloatDType::BF16, ReduceDType::BFloat16),
        (4, 2, FloatDType::F32, ReduceDType::BFloat16),
    ] {
        for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Full] {
            if instances > 1 && sharding == Sharding::None {
                continue;
            }
            for settings in [overlapped, averaged, padded] {
                if sharding == Sharding::None && settings.padding == BucketPadding::HighBandwidth {
                    continue;
                }
                let settings = DistributionSettings { sharding, ..settings };
                let by = |devices| train_by((devices, reduce_dtype), &adam(), ranks, instances, dtype, settings, None);
                for (found, expected) in by(Devices::Shared).iter().zip(&by(Devices::Apart)) {
                    let what = format!("{settings:?}, {dtype:?}, {reduce_dtype:?}, {ranks} ranks");
                    assert_eq!(found.norms, expected.norms, "{what}");
                    assert!(found.values == expected.values, "{what}: parameters differ");
                    assert_eq!(found.state, expected.state, "{what}");
                    assert_eq!(found.local_norms, expected.local_norms, "{what}");
                    assert!(!found.local_norms.is_empty(), "{what}");
                }
            }
        }
    }
}

#[test]
fn instances_of_an_optimizer_train_alike() {
    let numbers = |stored: &Stored| stored.to_data().iter::<f64>().collect::<Vec<f64>>();
    for (average_in_collective, (ranks, instances)) in
        [false, true].into_iter().flat_map(|average| [(average, (6, 2)), (average, (4, 4))])
    {
        let plain = DistributionSettings { average_in_collective, ..DistributionSettings::default() };
        let expected = &train(&adam(), ranks, FloatDType::F32, plain)[0];
        for sharding in [Sharding::Optimizer, Sharding::Gradients, Sharding::Full] {
            let settings = DistributionSettings { sharding, ..plain };
            let found = train_instances(&adam(), ranks, instances, FloatDType::F32, settings);
            for (rank, trained) in found.iter().enumerate() {
                let what =
                    format!("{sharding:?}, {average_in_collective}, rank {rank} of {ranks} in {instances} instances");
                assert!(trained.values == found[0].values, "{what}: ranks differ");
                // The same sums in another order. Moments follow gradients smoothly, as parameters
                // do not where a sum is nearly zero.
                for (found, expected) in trained.norms.iter().zip(&expected.norms) {
                    assert!((found - expected).abs() <= 1e-6 * expected, "{what}: norm {found}, expected {expected}");
                }
                assert_eq!(trained.whole_state.tensors.len(), expected.whole_state.tensors.len());
                for (name, tensor) in &trained.whole_state.tensors {
                    let expected = numbers(&expected.whole_state.tensors[name]);
                    let scale = expected.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
                    let close = |(a, b): (f64, &f64)| (a - b).abs() <= 2e-6 * scale;
                    assert!(numbers(tensor).into_iter().zip(&expected).all(close), "{what}: {name}");
                }
                let (own, all) = trained.state;
                let off = (own as f64 - (all * instances) as f64 / ranks as f64).abs();
                assert!(off < trained.whole_state.tensors.len() as f64, "{what}: {own} of {all} elements of state");
            }
        }
    }
}

/// For each region, true if a rank starts to gather when the next region is announced, and true if
/// the gradients of the first bucket are complete when backward has left its segment.
fn overlap_of(settings: DistributionSettings) -> Vec<(bool, bool)> {
    let program = |world: Group| -> Result<(bool, bool), Box<dyn Error + Send + Sync>> {
        let ledger = Ledger::default();
        let world: Group = Arc::new(CountingCommunicator::new(world, ledger.clone()));
        let mesh = Mesh::new(2, ParallelSizes::default(), RankOrder::default()).expect("a mesh");
        let groups = ProcessGroups::new(world, mesh)?;
        let mut chunks = vec![toy(3, FloatDType::F32)];
        let distribution = Arc::new(Distribution::new(&chunks, groups, settings)?);
        let mut parameters = ShardedParameters::new(Arc::clone(&distribution), &chunks);
        parameters.shard(&mut chunks, &DeferredParameters::default());
        ledger.take();
        parameters.prefetch(0, &(1..2))?;
        let starts = !ledger.take().is_empty();
        parameters.make_whole(&mut chunks)?;
        let mut reducer = GradientReducer::new(Arc::clone(&distribution), ReduceDType::Float32, Device::flex());
        let mut gradients = GradientBuffer::new(AccumulationDType::Float32);
        fill(&mut gradients, chunks[0].as_ref(), 1);
        let first = &distribution.buckets(0)[0];
        reducer.reduce_complete_buckets(0, first.first_segment, &mut gradients)?;
        let is_there = gradients.take_reduced(&first.entries[0].name).is_some();
        reducer.end_micro_batch(0, &mut gradients)?;
        Ok((starts, is_there))
    };
    bridge_dist::comm::thread::run_ranks(2, Duration::from_secs(120), program).expect("both ranks succeed")
}

#[test]
fn what_is_sharded_travels_beside_computing_only_if_asked() {
    let full = DistributionSettings { sharding: Sharding::Full, ..DistributionSettings::default() };
    let gathers = DistributionSettings { overlap_param_gather: true, ..full };
    let reduces = DistributionSettings { overlap_grad_reduce: true, ..full };
    assert_eq!(overlap_of(full), [(false, true); 2], "regions are gathered when they run, and backward waits");
    assert_eq!(overlap_of(gathers), [(true, true); 2]);
    assert_eq!(overlap_of(reduces), [(false, false); 2]);
    assert_eq!(overlap_of(DistributionSettings { overlap_grad_reduce: true, ..gathers }), [(true, false); 2]);
}

#[test]
fn released_parameters_keep_their_shapes() {
    use crate::model::Replacement;
    let mut chunk = toy(2, FloatDType::F32);
    let before = chunk.parameters().to_vec();
    let others = before.iter().map(|declaration| declaration.name.as_str()).filter(|name| *name != "embedding");
    chunk.replace_parameters(others.map(|name| (name, Replacement::Released)).collect());
    assert_eq!(chunk.parameters(), before);
    let mut embedding = Vec::new();
    chunk.visit_parameters(&mut |name, value| {
        let values: Vec<f32> = value.into_data().iter().collect();
        match name {
            "embedding" => embedding = values,
            _ => assert!(values.iter().all(|v| v.is_nan())),
        }
    });
    assert!(embedding.iter().any(|v| *v != 0.0));
}
