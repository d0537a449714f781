//! Growth, backoff, hysteresis and state of the loss scale.

use crate::schedule::*;

fn scaler() -> LossScaler {
    LossScaler::dynamic(DynamicLossScaleConfig {
        initial_loss_scale: 64.0,
        min_loss_scale: 16.0,
        loss_scale_window: 3,
        hysteresis: 2,
    })
    .unwrap()
}

fn run(scaler: &mut LossScaler, steps: &str) -> Vec<f64> {
    steps
        .chars()
        .map(|step| {
            scaler.update(if step == 'o' { GradientCheck::Overflow } else { GradientCheck::Finite });
            scaler.scale()
        })
        .collect()
}

#[test]
fn hysteresis_delays_the_first_backoff_only() {
    let mut scaler = scaler();
    assert_eq!(run(&mut scaler, "oooo"), [64.0, 32.0, 16.0, 16.0]);
    // Growth refills it.
    assert_eq!(run(&mut scaler, "...oo"), [16.0, 16.0, 32.0, 32.0, 16.0]);
}

#[test]
fn an_overflow_restarts_the_growth_window() {
    let mut scaler = scaler();
    assert_eq!(run(&mut scaler, "..o..."), [64.0, 64.0, 64.0, 64.0, 64.0, 128.0]);
}

#[test]
fn growth_stops_where_float32_ends() {
    let config =
        DynamicLossScaleConfig { initial_loss_scale: 2f64.powi(126), loss_scale_window: 1, ..Default::default() };
    let mut scaler = LossScaler::dynamic(config).unwrap();
    assert_eq!(run(&mut scaler, "..."), [2f64.powi(127); 3]);
}

#[test]
fn state_round_trips() {
    let mut first = scaler();
    run(&mut first, "o..");
    let json = serde_json::to_string(&first.state()).unwrap();
    let mut second = scaler();
    second.load_state(serde_json::from_str(&json).unwrap()).unwrap();
    assert_eq!(first, second);
    assert_eq!(run(&mut second, "."), [128.0]);
    assert!(second.load_state(LossScalerState { scale: f64::NAN, ..first.state() }).is_err());
}

#[test]
fn a_scale_can_fall_as_long_as_it_is_above_its_floor() {
    let config =
        DynamicLossScaleConfig { initial_loss_scale: 4.0, min_loss_scale: 1.0, loss_scale_window: 2, hysteresis: 1 };
    let mut scaler = LossScaler::dynamic(config).unwrap();
    for expected in [true, true, false, false] {
        assert_eq!(scaler.can_fall(), expected, "at {}", scaler.scale());
        scaler.update(GradientCheck::Overflow);
    }
    scaler.update(GradientCheck::Finite);
    scaler.update(GradientCheck::Finite);
    assert!(scaler.can_fall(), "it has grown");
    assert!(!LossScaler::constant(8.0).unwrap().can_fall());
}

#[test]
fn constant_scales_stay() {
    let mut scaler = LossScaler::constant(1024.0).unwrap();
    assert_eq!(run(&mut scaler, "oo.."), [1024.0; 4]);
    scaler.load_state(LossScalerState { scale: 2.0, growth_tracker: 0, hysteresis_tracker: 0 }).unwrap();
    assert_eq!(scaler.scale(), 1024.0);
}

#[test]
fn senseless_scales_are_refused_by_name() {
    assert_eq!(LossScaler::constant(0.0).unwrap_err().field, "loss_scale");
    assert_eq!(LossScaler::constant(f64::INFINITY).unwrap_err().field, "loss_scale");
    for (config, field) in [
        (DynamicLossScaleConfig { initial_loss_scale: -1.0, ..Default::default() }, "initial_loss_scale"),
        (DynamicLossScaleConfig { min_loss_scale: 1e12, ..Default::default() }, "min_loss_scale"),
        (DynamicLossScaleConfig { loss_scale_window: 0, ..Default::default() }, "loss_scale_window"),
        (DynamicLossScaleConfig { hysteresis: 0, ..Default::default() }, "hysteresis"),
    ] {
        assert_eq!(LossScaler::dynamic(config).unwrap_err().field, field);
    }
}
