//! Precision presets against explicit settings.

use super::super::{DType, MixedPrecisionConfig, Precision, World};
use super::{assert_refused, tiny, tiny_errors, tiny_raw};

#[test]
fn a_named_recipe_sets_model_optimizer_and_ddp() {
    for name in ["bf16_mixed", "bf16-mixed"] {
        let run = tiny(&[&format!("mixed_precision={name}")]).expect("accepted");
        assert!(run.model.bf16 && run.optimizer.bf16 && run.ddp.grad_reduce_in_fp32);
        assert_eq!(run.model.params_dtype, DType::BFloat16);
        assert_eq!(run.optimizer.params_dtype, DType::BFloat16);
    }
    let run = tiny(&["mixed_precision=fp16_mixed", "optimizer.loss_scale=1024"]).expect("accepted");
    assert!(run.model.fp16 && !run.ddp.grad_reduce_in_fp32);
    assert_eq!(run.optimizer.loss_scale, Some(1024.0));
}

#[test]
fn an_explicit_value_is_never_overwritten() {
    tiny(&["mixed_precision=bf16_mixed", "model.bf16=true"]).expect("equal is fine");
    // Explicit although it is the default.
    let errors = tiny_errors(&["mixed_precision=bf16_mixed", "model.bf16=false"]);
    let error = errors.iter().find(|e| e.key == "model.bf16").expect("named");
    assert!(error.message.contains("mixed_precision = \"bf16_mixed\""), "{error}");
    assert!(error.message.contains("false") && error.message.contains("true"), "{error}");
    assert_refused(&["mixed_precision=bf16_mixed", "ddp.grad_reduce_in_fp32=false"], "ddp.grad_reduce_in_fp32");
    assert_refused(&["mixed_precision=bf16_mixed", "model.params_dtype=float32"], "model.params_dtype");
}

#[test]
fn code_can_pin_a_default() {
    let mut raw = tiny_raw();
    raw.mixed_precision = Some(Precision::Named("bf16_mixed".into()));
    assert!(raw.finalize(&World::SINGLE).expect("accepted").model.bf16);
    raw.mark_explicit("model.bf16");
    let errors = raw.finalize(&World::SINGLE).expect_err("pinned to false");
    assert!(errors.names("model.bf16"));
}

#[test]
fn a_table_states_only_what_it_says() {
    let run = tiny(&["mixed_precision={bf16 = true}", "ddp.grad_reduce_in_fp32=false"]).expect("accepted");
    assert!(run.model.bf16 && !run.ddp.grad_reduce_in_fp32);
    let run = tiny(&["mixed_precision={fp16 = true, hysteresis = 4}"]).expect("accepted");
    assert_eq!((run.optimizer.hysteresis, run.ddp.grad_reduce_in_fp32), (4, true));
    assert_refused(&["mixed_precision={fp16 = true, bf16 = true}"], "mixed_precision");
    assert_refused(
        &["mixed_precision={fp16 = true, hysteresis = 4}", "optimizer.hysteresis=3"],
        "optimizer.hysteresis",
    );
    let mut raw = tiny_raw();
    raw.mixed_precision = Some(Precision::Custom(MixedPrecisionConfig {
        bf16: true,
        params_dtype: Some(DType::Float32),
        ..MixedPrecisionConfig::default()
    }));
    let errors = raw.finalize(&World::SINGLE).expect_err("32-bit parameters");
    assert!(errors.names("mixed_precision.params_dtype"));
}

#[test]
fn unknown_and_unimplemented_recipes_are_errors() {
    let errors = tiny_errors(&["mixed_precision=bf16_mix"]);
    let error = errors.iter().next().expect("one");
    assert_eq!(error.nearest.as_deref(), Some("bf16_mixed"));
    assert_refused(&["mixed_precision=bf16_with_nvfp4_mixed"], "mixed_precision");
}

#[test]
fn the_mode_alone_decides_dtypes() {
    let run = tiny(&["model.bf16=true"]).expect("accepted");
    assert_eq!(run.model.params_dtype, DType::BFloat16);
    assert!(run.optimizer.bf16);
    // As upstream: a step of many micro-batches is not added up in eight bits.
    assert!(run.ddp.grad_reduce_in_fp32);
    assert_refused(&["model.bf16=true", "ddp.grad_reduce_in_fp32=false"], "ddp.grad_reduce_in_fp32");
    assert!(!tiny(&["model.fp16=true"]).expect("accepted").ddp.grad_reduce_in_fp32);
    assert_refused(&["model.bf16=true", "model.fp16=true"], "model.bf16");
    assert_refused(&["model.params_dtype=bfloat16"], "model.params_dtype");
    assert_refused(&["optimizer.bf16=true"], "optimizer.bf16");
}
