//! Constant and ramped batch sizes.

use proptest::prelude::*;

use crate::schedule::*;

fn config(global_batch_size: u64, rampup: Option<[u64; 3]>) -> BatchSizeConfig {
    BatchSizeConfig {
        micro_batch_size: 2,
        global_batch_size,
        data_parallel_size: 4,
        rampup_batch_size: rampup.map(|[start, increment, samples]| BatchRampup { start, increment, samples }),
        indivisible: Indivisible::Refuse,
    }
}

#[test]
fn constant() {
    let mut calculator = NumMicrobatchesCalculator::new(config(32, None)).unwrap();
    assert_eq!(calculator.num_microbatches(), 4);
    assert_eq!(calculator.update(1 << 40), None);
    assert_eq!(calculator.current_running_global_batch_size(), 32);
    assert_eq!(calculator.micro_batch_size(), 2);
}

#[test]
fn remainders_are_refused_or_rounded_down() {
    let message = NumMicrobatchesCalculator::new(config(30, None)).unwrap_err().to_string();
    assert!(message.contains("global_batch_size is 30"), "{message}");
    assert!(message.contains("nearest sizes that do are 24 and 32"), "{message}");

    let rounding = BatchSizeConfig { indivisible: Indivisible::RoundDown, ..config(30, None) };
    let calculator = NumMicrobatchesCalculator::new(rounding).unwrap();
    assert_eq!(calculator.num_microbatches(), 3);
    assert_eq!(calculator.current_global_batch_size(), 30);
    assert_eq!(calculator.current_running_global_batch_size(), 24);

    let too_small = BatchSizeConfig { indivisible: Indivisible::RoundDown, ..config(7, None) };
    assert_eq!(
        NumMicrobatchesCalculator::new(too_small),
        Err(BatchSizeError::TooSmall { what: "global_batch_size", batch_size: 7, unit: 8 })
    );
}

#[test]
fn ramp_up_changes_at_the_documented_samples() {
    // Three increments over 300 samples: one per 100.
    let mut calculator = NumMicrobatchesCalculator::new(config(32, Some([8, 8, 300]))).unwrap();
    assert_eq!(calculator.num_microbatches(), 1);
    for (consumed, expected) in [(0, 8), (99, 8), (100, 16), (199, 16), (200, 24), (300, 32), (301, 32), (5000, 32)] {
        calculator.update(consumed);
        assert_eq!(calculator.current_global_batch_size(), expected, "after {consumed} samples");
    }
    let mut fresh = NumMicrobatchesCalculator::new(config(32, Some([8, 8, 300]))).unwrap();
    assert_eq!(
        fresh.update(250),
        Some(BatchSizeChange {
            previous_global_batch_size: 8,
            global_batch_size: 24,
            previous_num_microbatches: 1,
            num_microbatches: 3,
        })
    );
    assert_eq!(fresh.update(250), None);
}

#[test]
fn ramp_up_rounds_down_when_asked() {
    let rounding = BatchSizeConfig { indivisible: Indivisible::RoundDown, ..config(32, Some([12, 4, 500])) };
    let mut calculator = NumMicrobatchesCalculator::new(rounding).unwrap();
    assert_eq!((calculator.current_global_batch_size(), calculator.current_running_global_batch_size()), (12, 8));
    // 12 -> 16 changes nothing but the remainder at first, then a micro-batch.
    calculator.update(100);
    assert_eq!((calculator.current_global_batch_size(), calculator.num_microbatches()), (16, 2));
}

#[test]
fn ramp_up_without_anything_to_ramp_is_a_no_op() {
    for rampup in [[32, 8, 1000], [8, 8, 0]] {
        let mut calculator = NumMicrobatchesCalculator::new(config(32, Some(rampup))).unwrap();
        assert_eq!(calculator.num_microbatches(), 4);
        assert_eq!(calculator.update(10), None);
    }
}

#[test]
fn senseless_ramp_ups_are_refused() {
    for (rampup, expected) in [
        ([40, 8, 100], "at most global_batch_size (32)"),
        ([8, 7, 100], "steps of 7"),
        ([8, 0, 100], "increment` is 0"),
        ([0, 8, 100], "start` is 0"),
        ([12, 4, 100], "start is 12"),
        ([8, 4, 100], "second stage is 12"),
    ] {
        let message = NumMicrobatchesCalculator::new(config(32, Some(rampup))).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let no_ranks = BatchSizeConfig { data_parallel_size: 0, ..config(32, None) };
    assert_eq!(NumMicrobatchesCalculator::new(no_ranks), Err(BatchSizeError::Zero { field: "data_parallel_size" }));
}

proptest! {
    #[test]
    fn ramps_grow_in_whole_steps_to_the_global_batch(
        micro in 1u64..4, replicas in 1u64..5, start in 1u64..6, increment in 1u64..5, stages in 0u64..9,
        samples in 0u64..4000, consumed in prop::collection::vec(0u64..6000, 1..30),
    ) {
        let unit = micro * replicas;
        let global = (start + increment * stages) * unit;
        let mut calculator = NumMicrobatchesCalculator::new(BatchSizeConfig {
            micro_batch_size: micro,
            global_batch_size: global,
            data_parallel_size: replicas,
            rampup_batch_size: Some(BatchRampup { start: start * unit, increment: increment * unit, samples }),
            indivisible: Indivisible::Refuse,
        }).unwrap();
        let mut consumed = consumed;
        consumed.sort_unstable();
        let mut previous = calculator.num_microbatches();
        for consumed in consumed {
            calculator.update(consumed);
            let now = calculator.num_microbatches();
            prop_assert!(now >= previous && now >= start);
            prop_assert_eq!((now - start) % increment, 0);
            prop_assert_eq!(now * unit, calculator.current_global_batch_size());
            if consumed > samples {
                prop_assert_eq!(calculator.current_global_batch_size(), global);
            }
            previous = now;
        }
    }
}
