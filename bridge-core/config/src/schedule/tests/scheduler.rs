//! Curves against values recorded from Megatron and the reference's table, state handling.

use std::fs::File;

use proptest::prelude::*;
use serde::Deserialize;

use crate::schedule::*;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/scheduler.json");

#[derive(Deserialize)]
struct Golden {
    cases: Vec<GoldenCase>,
}

#[derive(Deserialize)]
struct GoldenCase {
    config: serde_json::Value,
    lr: Vec<f64>,
    weight_decay: Vec<f64>,
}

fn close(actual: f64, expected: f64, relative: f64) -> bool {
    (actual - expected).abs() <= relative * expected.abs()
}

fn config(style: LrDecayStyle) -> OptimizerParamSchedulerConfig {
    OptimizerParamSchedulerConfig {
        init_lr: 0.0,
        max_lr: 1e-3,
        min_lr: 1e-5,
        lr_warmup_steps: 100.0,
        lr_decay_steps: 1000,
        lr_decay_style: style,
        start_wd: 0.1,
        end_wd: 0.1,
        wd_incr_steps: 1000,
        wd_incr_style: WeightDecayIncrStyle::Constant,
        wsd_decay_steps: Some(200),
        lr_wsd_decay_style: WsdDecayStyle::Exponential,
    }
}

fn scheduler(style: LrDecayStyle) -> OptimizerParamScheduler {
    OptimizerParamScheduler::new(config(style)).unwrap()
}

fn lr_at(scheduler: &OptimizerParamScheduler, n: u64) -> f64 {
    scheduler.values_at(n, &GroupSettings::default()).learning_rate
}

#[test]
fn recorded_curves() {
    let golden: Golden = serde_json::from_reader(File::open(FIXTURE).unwrap()).unwrap();
    assert_eq!(golden.cases.len(), 12);
    for case in &golden.cases {
        let config: OptimizerParamSchedulerConfig = serde_json::from_value(case.config.clone()).unwrap();
        let mut scheduler = OptimizerParamScheduler::new(config).unwrap();
        assert!(case.lr.len() > 60);
        for (i, (lr, weight_decay)) in case.lr.iter().zip(&case.weight_decay).enumerate() {
            let values = scheduler.values(&GroupSettings::default());
            assert!(close(values.learning_rate, *lr, 1e-14), "{i} {}: {} {lr}", case.config, values.learning_rate);
            assert!(
                close(values.weight_decay, *weight_decay, 1e-14),
                "{i} {}: {} {weight_decay}",
                case.config,
                values.weight_decay
            );
            scheduler.step(1);
        }
    }
}

#[test]
fn reference_table() {
    let steps = [0, 50, 100, 550, 1000, 1001];
    let rows = [
        (LrDecayStyle::Linear, [0.0, 5e-4, 1e-3, 5.05e-4, 1e-5, 1e-5]),
        (LrDecayStyle::Cosine, [0.0, 5e-4, 1e-3, 5.05e-4, 1e-5, 1e-5]),
        (LrDecayStyle::InverseSquareRoot, [0.0, 5e-4, 1e-3, 4.26401433e-4, 3.16227766e-4, 1e-5]),
        (LrDecayStyle::Constant, [0.0, 5e-4, 1e-3, 1e-3, 1e-3, 1e-3]),
    ];
    for (style, expected) in rows {
        let scheduler = scheduler(style);
        for (n, expected) in steps.into_iter().zip(expected) {
            assert!(close(lr_at(&scheduler, n), expected, 1e-8), "{style} at {n}: {}", lr_at(&scheduler, n));
        }
    }
}

#[test]
fn reference_table_of_wsd() {
    let steps = [800, 850, 900, 1000, 1001];
    let rows = [
        (WsdDecayStyle::Exponential, [1e-3, 6.84974902e-4, 4.20071427e-4, 1e-5, 1e-5]),
        (WsdDecayStyle::Linear, [1e-3, 7.525e-4, 5.05e-4, 1e-5, 1e-5]),
        (WsdDecayStyle::Cosine, [1e-3, 8.55017857e-4, 5.05e-4, 1e-5, 1e-5]),
        (WsdDecayStyle::MinusSqrt, [1e-3, 5.05e-4, 2.99964287e-4, 1e-5, 1e-5]),
    ];
    for (style, expected) in rows {
        let config = OptimizerParamSchedulerConfig { lr_wsd_decay_style: style, ..config(LrDecayStyle::Wsd) };
        let scheduler = OptimizerParamScheduler::new(config).unwrap();
        for (n, expected) in steps.into_iter().zip(expected) {
            assert!(close(lr_at(&scheduler, n), expected, 1e-8), "{style:?} at {n}: {}", lr_at(&scheduler, n));
        }
    }
}

#[test]
fn groups_override_peak_floor_and_decay() {
    let mut scheduler = scheduler(LrDecayStyle::Linear);
    let group = GroupSettings { max_lr: Some(2e-3), min_lr: Some(4e-4), wd_mult: 0.5, ..GroupSettings::default() };
    scheduler.check_group(&group).unwrap();
    scheduler.step(550);
    let values = scheduler.values(&group);
    assert!(close(values.learning_rate, 1.2e-3, 1e-12));
    assert!(close(values.weight_decay, 0.05, 1e-12));
    let undecayed = GroupSettings { wd_mult: 0.0, ..GroupSettings::default() };
    assert_eq!(scheduler.values(&undecayed).weight_decay, 0.0);

    let upside_down = GroupSettings { max_lr: Some(1e-6), ..GroupSettings::default() };
    assert!(scheduler.check_group(&upside_down).unwrap_err().to_string().contains("`max_lr` is 0.000001"));
    let negative = GroupSettings { wd_mult: -1.0, ..GroupSettings::default() };
    assert!(scheduler.check_group(&negative).unwrap_err().to_string().contains("`wd_mult` is -1"));
}

#[test]
fn a_weight_decay_ramp_of_no_length_is_over() {
    let config = OptimizerParamSchedulerConfig {
        start_wd: 0.0,
        end_wd: 0.3,
        wd_incr_steps: 0,
        wd_incr_style: WeightDecayIncrStyle::Linear,
        ..config(LrDecayStyle::Linear)
    };
    let scheduler = OptimizerParamScheduler::new(config).unwrap();
    assert_eq!(scheduler.values(&GroupSettings::default()).weight_decay, 0.3);
}

#[test]
fn senseless_schedules_are_refused_by_name() {
    type Change = fn(&mut OptimizerParamSchedulerConfig);
    let cases: [(&str, Change); 10] = [
        ("`min_lr`", |c| c.min_lr = -1e-6),
        ("`max_lr`", |c| c.max_lr = 1e-6),
        ("`max_lr`", |c| c.max_lr = f64::NAN),
        ("`init_lr`", |c| c.init_lr = 1.0),
        ("`lr_decay_steps`", |c| c.lr_decay_steps = 0),
        ("`lr_warmup_steps`", |c| c.lr_warmup_steps = 1000.0),
        ("`start_wd`", |c| c.start_wd = -0.1),
        ("`end_wd`", |c| c.end_wd = 0.01),
        ("constant", |c| c.end_wd = 0.2),
        ("`wsd_decay_steps`", |c| {
            c.lr_decay_style = LrDecayStyle::Wsd;
            c.wsd_decay_steps = None;
        }),
    ];
    for (name, change) in cases {
        let mut config = config(LrDecayStyle::Linear);
        change(&mut config);
        let message = OptimizerParamScheduler::new(config).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn state_continues_the_curve() {
    let mut first = scheduler(LrDecayStyle::Cosine);
    first.step(321);
    let json = serde_json::to_string(&first.state()).unwrap();
    let mut second = scheduler(LrDecayStyle::Cosine);
    second.load_state(&serde_json::from_str(&json).unwrap(), OnStateMismatch::Refuse).unwrap();
    assert_eq!(first, second);
    // Loading twice does not add up.
    second.load_state(&first.state(), OnStateMismatch::Refuse).unwrap();
    assert_eq!(second.num_steps(), 321);
}

#[test]
fn differing_states_follow_the_policy() {
    let state =
        SchedulerState { max_lr: 5e-4, lr_decay_steps: 500, num_steps: 7, ..scheduler(LrDecayStyle::Linear).state() };

    let mut refusing = scheduler(LrDecayStyle::Linear);
    let error = refusing.load_state(&state, OnStateMismatch::Refuse).unwrap_err().to_string();
    assert!(error.contains("`max_lr` is 0.001 in this run and 0.0005 in the checkpoint"), "{error}");
    assert!(error.contains("`lr_decay_steps` is 1000 in this run and 500"), "{error}");
    assert_eq!(refusing, scheduler(LrDecayStyle::Linear), "a refused load changes nothing");

    let mut keeping = scheduler(LrDecayStyle::Linear);
    keeping.load_state(&state, OnStateMismatch::KeepRun).unwrap();
    assert_eq!((keeping.config().max_lr, keeping.config().lr_decay_steps, keeping.num_steps()), (1e-3, 1000, 7));

    let mut taking = scheduler(LrDecayStyle::Linear);
    taking.load_state(&state, OnStateMismatch::TakeCheckpoint).unwrap();
    assert_eq!((taking.config().max_lr, taking.config().lr_decay_steps, taking.num_steps()), (5e-4, 500, 7));

    let broken = SchedulerState { lr_decay_steps: 50, ..state };
    assert!(matches!(
        taking.load_state(&broken, OnStateMismatch::TakeCheckpoint),
        Err(SchedulerStateError::Invalid(SchedulerError::OutOfRange { field: "lr_warmup_steps", .. }))
    ));
}

#[test]
fn a_checkpoint_that_is_taken_brings_the_whole_schedule() {
    let of = |init_lr, annealing, style| {
        let config = OptimizerParamSchedulerConfig {
            init_lr,
            wsd_decay_steps: Some(annealing),
            lr_wsd_decay_style: style,
            ..config(LrDecayStyle::Wsd)
        };
        OptimizerParamScheduler::new(config).unwrap()
    };
    let saved = of(1e-4, 300, WsdDecayStyle::Linear);
    let mut taking = of(0.0, 100, WsdDecayStyle::Cosine);
    taking.load_state(&saved.state(), OnStateMismatch::TakeCheckpoint).unwrap();
    assert_eq!(taking, saved);
}

#[test]
fn iterations_stay_iterations_when_the_batch_changes() {
    let mut saved = scheduler(LrDecayStyle::Linear);
    saved.step(400);
    let state = saved.state().rescaled(4, 8);
    assert_eq!((state.num_steps, state.lr_decay_steps, state.lr_warmup_steps), (800, 2000, 200.0));
    assert_eq!(state.clone().rescaled(8, 4), saved.state());
    assert_eq!(state.clone().rescaled(1, 1), state);
    let fraction = OptimizerParamSchedulerConfig { lr_warmup_steps: 0.6, ..config(LrDecayStyle::Linear) };
    let mut run = OptimizerParamScheduler::new(fraction).unwrap();
    let rounded = SchedulerState { lr_warmup_steps: 0.4 * 6.0 / 4.0, ..run.state() };
    assert_ne!(rounded, run.state());
    run.load_state(&rounded, OnStateMismatch::Refuse).unwrap();
}

#[test]
fn old_names_are_read() {
    for old in [
        r#"{"start_lr":1e-3,"warmup_iter":100,"end_iter":1000,"decay_style":"linear","num_iters":12,"min_lr":1e-5}"#,
        r#"{"start_lr":1e-3,"warmup_steps":100,"decay_steps":1000,"decay_style":"linear","num_steps":12,"min_lr":1e-5}"#,
    ] {
        let mut scheduler = scheduler(LrDecayStyle::Linear);
        scheduler.load_state(&serde_json::from_str(old).unwrap(), OnStateMismatch::Refuse).unwrap();
        assert_eq!(scheduler.num_steps(), 12);
    }
    let error = serde_json::from_str::<SchedulerState>(r#"{"min_lr": 0.0}"#).unwrap_err().to_string();
    assert!(error.contains("missing field"), "{error}");
}

proptest! {
    #[test]
    fn curves_stay_between_floor_and_peak(
        style in prop::sample::select(vec![
            LrDecayStyle::Constant, LrDecayStyle::Linear, LrDecayStyle::Cosine,
            LrDecayStyle::InverseSquareRoot, LrDecayStyle::Wsd,
        ]),
        warmup in 0u64..500, extra in 1u64..500, annealing in 0u64..600, n in 0u64..1200,
    ) {
        let scheduler = OptimizerParamScheduler::new(OptimizerParamSchedulerConfig {
            init_lr: 1e-5,
            lr_warmup_steps: warmup as f64,
            lr_decay_steps: warmup + extra,
            wsd_decay_steps: Some(annealing),
            ..config(style)
        }).unwrap();
        let lr = lr_at(&scheduler, n);
        let range = 1e-5 * (1.0 - 1e-12)..=1e-3 * (1.0 + 1e-12);
        prop_assert!(range.contains(&lr), "{lr}");
        if n >= warmup {
            prop_assert!(lr_at(&scheduler, n + 1) <= lr * (1.0 + 1e-12), "rises after warm-up");
        }
    }
}
