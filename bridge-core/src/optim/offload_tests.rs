//! States in host memory against states beside the parameters: which are moved, and that the way
//! changes no bit. Both memories are the host's here; on a GPU the suite `device` compares.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::offload::{HostTransfers, Offload, UpdateInputs};
use super::rules::tests::{adam, with_defaults};
use super::rules::{Algorithm, RULES};
use super::sharded_tests::train_with;
use super::tests::{fill, formats, rates, values};
use super::*;
use crate::model::ModelChunk;
use crate::tests::toy;

const TIMINGS: [TransferTiming; 2] = [TransferTiming::OnDemand, TransferTiming::Prefetched];

fn share(fraction: f64, transfers: TransferTiming) -> Option<OffloadSettings> {
    Some(OffloadSettings { fraction, transfers })
}

/// Every rule in float32 and bfloat16, and every format of states.
fn algorithms() -> Vec<(Algorithm, FloatDType)> {
    let of_rules = RULES.iter().map(with_defaults).filter(|rule| !rule.is_whole());
    let of_rules = of_rules.flat_map(|rule| [(rule.clone(), FloatDType::F32), (rule, FloatDType::BF16)]);
    of_rules.chain(formats().map(|(formats, dtype)| (adam().keeping(formats), dtype))).collect()
}

fn optimizer(algorithm: &Algorithm, chunks: &[Box<dyn ModelChunk>], offload: Option<OffloadSettings>) -> Optimizer {
    let settings = OptimizerSettings {
        algorithm: algorithm.clone(),
        clip_grad: 1.0,
        skip_above: f64::INFINITY,
        ema_decay: None,
        count_zeros: false,
        offload,
    };
    Optimizer::new(settings, chunks, &StandardOverrides::default(), Arc::new(Distribution::single(chunks))).unwrap()
}

/// Parameters, and for each state its elements and scale.
#[derive(Debug, PartialEq)]
struct Found {
    values: BTreeMap<String, Vec<f64>>,
    states: BTreeMap<String, (TensorData, Option<f32>)>,
    remainders: BTreeMap<String, (Vec<u16>, Vec<u32>)>,
    norm: f64,
}

/// Four steps, the third without a gradient of the first parameter; after the second the state
/// goes through a save, and on with `then`.
fn trained(
    (algorithm, dtype): &(Algorithm, FloatDType),
    first: Option<OffloadSettings>,
    then: Option<OffloadSettings>,
) -> Found {
    let mut chunks = vec![toy(2, *dtype)];
    let left_out = chunks[0].parameters()[0].name.clone();
    let mut current = optimizer(algorithm, &chunks, first);
    assert_eq!(current.offloaded().moved > 0, first.is_some());
    for step in 1..=4 {
        let mut buffer = GradientBuffer::new(AccumulationDType::Float32);
        fill(&mut buffer, chunks[0].as_ref(), step);
        if step == 3 {
            buffer.take_unchanged(&left_out).expect("it had one");
        }
        let rates = rates(&current);
        current.step(&mut chunks, &mut buffer, &rates, StepScales { loss_scale: 2.0, divisor: 1.0 }).unwrap();
        if step == 2 {
            let state = current.state();
            current = optimizer(algorithm, &chunks, then);
            assert!(current.load_state(state).is_empty());
        }
    }
    let state = current.state();
    Found {
        values: values(chunks[0].as_ref()),
        states: state.tensors.into_iter().map(|(name, kept)| (name, (kept.to_data(), kept.scale()))).collect(),
        remainders: state
            .remainders
            .into_iter()
            .map(|(name, kept)| (name, (kept.low.to_vec(), kept.ties.to_vec())))
            .collect(),
        norm: current.parameter_norm(&chunks).unwrap(),
    }
}

#[test]
fn parameters_are_moved_from_the_first_on_until_the_fraction_is_reached() {
    let sizes = [7, 1, 0, 13, 5, 11];
    let moved = |fraction| offloaded(&sizes, fraction);
    assert_eq!(moved(0.0), [false; 6]);
    // 11.1 of 37 elements: with 8 of them there the fourth goes too.
    assert_eq!(moved(0.3), [true, true, true, true, false, false]);
    assert_eq!(moved(7.0 / 37.0), [true, false, false, false, false, false], "exactly reached");
    assert_eq!(moved(1e-9), [true, false, false, false, false, false]);
    assert_eq!(moved(26.0 / 37.0), [true, true, true, true, true, false]);
    assert_eq!(moved(1.0), [true; 6]);
    assert!(offloaded(&[], 1.0).is_empty());
    for fraction in (0..=37).map(|elements| f64::from(elements) / 37.0) {
        let chosen = moved(fraction);
        let count = |taken: usize| sizes[..taken].iter().sum::<usize>() as f64;
        let number = chosen.iter().filter(|is_moved| **is_moved).count();
        assert!(count(number) >= fraction * 37.0 - 1e-9, "{fraction}: enough");
        assert!(number == 0 || count(number - 1) < fraction * 37.0, "{fraction}: and no parameter more");
    }
}

#[test]
fn a_rank_moves_the_share_of_what_it_updates() {
    let chunks = vec![toy(3, FloatDType::F32)];
    let sizes: Vec<usize> = chunks[0].parameters().iter().map(crate::model::Declaration::num_elements).collect();
    let all: usize = sizes.iter().sum();
    for fraction in [0.0, 0.3, 1.0] {
        let optimizer = optimizer(&adam(), &chunks, share(fraction, TransferTiming::OnDemand));
        let chosen = offloaded(&sizes, fraction);
        let expected: usize = sizes.iter().zip(chosen).map(|(size, is_moved)| if is_moved { *size } else { 0 }).sum();
        assert_eq!(optimizer.offloaded(), OffloadedElements { moved: expected, trained: all });
        assert!(expected as f64 >= fraction * all as f64);
    }
    assert_eq!(optimizer(&adam(), &chunks, None).offloaded(), OffloadedElements::default());
}

#[test]
fn updates_in_host_memory_have_the_bits_of_updates_beside_the_parameters() {
    for case in algorithms() {
        let plain = trained(&case, None, None);
        for timing in TIMINGS {
            for fraction in [0.3, 1.0] {
                let settings = share(fraction, timing);
                assert_eq!(trained(&case, settings, settings), plain, "{case:?} {settings:?}");
            }
        }
    }
}

#[test]
fn a_run_goes_on_with_states_elsewhere() {
    for case in algorithms() {
        let plain = trained(&case, None, None);
        let moved = share(0.5, TransferTiming::Prefetched);
        assert_eq!(trained(&case, moved, None), plain, "{case:?}: back to the device");
        assert_eq!(trained(&case, None, moved), plain, "{case:?}: to the host");
        assert_eq!(trained(&case, moved, share(1.0, TransferTiming::OnDemand)), plain, "{case:?}: with another share");
    }
}

#[test]
fn ranges_that_ranks_own_are_moved_too() {
    let of_formats = formats().map(|(formats, dtype)| (adam().keeping(formats), dtype));
    let cases = [(adam(), FloatDType::F32), (adam(), FloatDType::BF16)].into_iter().chain(of_formats);
    for (algorithm, dtype) in cases {
        for sharding in [Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Full] {
            let settings = DistributionSettings { sharding, ..DistributionSettings::default() };
            let plain = train_with(&algorithm, 3, 1, dtype, settings, None);
            for timing in TIMINGS {
                let found = train_with(&algorithm, 3, 1, dtype, settings, share(0.4, timing));
                for (rank, (found, plain)) in found.iter().zip(&plain).enumerate() {
                    let what = format!("{algorithm:?}, {dtype:?}, {sharding:?}, {timing:?}, rank {rank}");
                    assert!(found.values == plain.values, "{what}: parameters differ");
                    for (name, stored) in &found.whole_state.tensors {
                        let expected = &plain.whole_state.tensors[name];
                        assert_eq!(stored.to_data(), expected.to_data(), "{what}: {name}");
                        assert_eq!(stored.scale(), expected.scale(), "{what}: {name}");
                    }
                }
            }
        }
    }
}

/// Tensors of one element each, named as their values.
fn inputs(numbers: std::ops::Range<u8>) -> Vec<UpdateInputs> {
    let tensor = |number: u8| Tensor::<1>::from_floats([f32::from(number)], &Device::flex());
    let of = |number: u8| UpdateInputs { name: number.to_string(), gradient: Some(tensor(number)), value: None };
    numbers.map(of).collect()
}

#[test]
fn what_is_read_ahead_is_found_by_name_and_leaves_nothing_behind() {
    for timing in TIMINGS {
        let names: Vec<String> = (0..9).map(|number| number.to_string()).collect();
        let offload = Offload::new(share(1.0, timing), names.iter().map(|name| (name.as_str(), 1)));
        let take = |transfers: &mut HostTransfers, name: &str| {
            let parameter = Tensor::<1>::zeros([3], (&Device::flex(), DType::BF16));
            let (value, gradient) = transfers.take(name).into_value_and_gradient(&parameter);
            assert_eq!((value.dims(), value.dtype()), ([3], DType::BF16), "memory for a value that is not read");
            gradient.expect("it has one").into_scalar::<f32>()
        };
        // In another order than that in which they come.
        let mut transfers = offload.start_transfers(inputs(0..9));
        for name in ["4", "0", "8", "1", "2", "3", "5", "7", "6"] {
            assert_eq!(take(&mut transfers, name).to_string(), name);
        }
        drop(transfers);
        // A step that fails on its way takes only some.
        let mut transfers = offload.start_transfers(inputs(0..9));
        assert_eq!(take(&mut transfers, "0"), 0.0);
        drop(transfers);
        let mut transfers = offload.start_transfers(inputs(5..7));
        assert_eq!((take(&mut transfers, "5"), take(&mut transfers, "6")), (5.0, 6.0));
    }
}
