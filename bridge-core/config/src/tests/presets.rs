//! Precision presets against explicit settings.

use super::super::{
    AmaxAlgo, DType, Format, Fp8Format, Fp8Recipe, Kinds, MixedPrecisionConfig, Precision, RunConfig, World, load_text,
};
use super::{TINY, assert_refused, tiny, tiny_errors, tiny_raw};

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

/// Layers at the start and at the end that are left out of 8-bit products, where any are.
fn edges(run: &RunConfig) -> Option<(usize, usize)> {
    let model = &run.model;
    model.first_last_layers_bf16.then_some((model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16))
}

#[test]
fn named_recipes_of_8_bits_set_format_scales_history_and_edges() {
    use Fp8Format::{E4m3, Hybrid};
    use Fp8Recipe::{Blockwise, Delayed, Mxfp8, Tensorwise};
    let (newest, longest) = ((1, AmaxAlgo::MostRecent), (1024, AmaxAlgo::Max));
    for (name, dtype, format, scales, history, outside) in [
        ("bf16_with_fp8_delayed_scaling_mixed", DType::BFloat16, Hybrid, Delayed, longest, None),
        ("fp16_with_fp8_delayed_scaling_mixed", DType::Float16, Hybrid, Delayed, longest, None),
        ("bf16_with_mxfp8_mixed", DType::BFloat16, E4m3, Mxfp8, newest, None),
        ("fp16_with_mxfp8_mixed", DType::Float16, E4m3, Mxfp8, newest, None),
        ("bf16_with_fp8_current_scaling_mixed", DType::BFloat16, Hybrid, Tensorwise, newest, Some((1, 1))),
        ("fp16_with_fp8_current_scaling_mixed", DType::Float16, Hybrid, Tensorwise, newest, Some((1, 1))),
        ("nemotron_h_bf16_with_fp8_current_scaling_mixed", DType::BFloat16, Hybrid, Tensorwise, newest, Some((2, 2))),
        ("nanov2_bf16_with_fp8_current_scaling_mixed", DType::BFloat16, Hybrid, Blockwise, newest, Some((2, 2))),
        ("bf16_with_fp8_subchannel_scaling_mixed", DType::BFloat16, Hybrid, Blockwise, newest, None),
        ("fp16_with_fp8_subchannel_scaling_mixed", DType::Float16, Hybrid, Blockwise, newest, None),
    ] {
        let preset = format!("mixed_precision={name}");
        let run = tiny(&[&preset, "model.num_layers=8"]).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        assert_eq!(run.model.params_dtype, dtype, "{name}");
        assert_eq!(run.ddp.grad_reduce_in_fp32, dtype == DType::BFloat16, "{name}");
        assert_eq!((run.model.fp8, run.model.fp8_recipe), (Some(format), Some(scales)), "{name}");
        assert_eq!((run.model.fp8_amax_history_len, run.model.fp8_amax_compute_algo), history, "{name}");
        assert_eq!(edges(&run), outside, "{name}");
        // An explicit value wins over a value that the preset only suggests.
        let run = tiny(&[&preset, "model.first_last_layers_bf16=false"]);
        let run = run.unwrap_or_else(|errors| panic!("{name}: {errors}"));
        assert_eq!((run.model.fp8, edges(&run)), (Some(format), None), "{name}");
        assert_refused(&[&preset, "model.num_layers=8", "model.fp8_recipe=null"], "model.fp8_recipe");
    }
}

#[test]
fn a_table_suggests_numbers_of_layers_with_its_own_switch_alone() {
    let of = |table: &str, more: &[&str]| {
        let table = format!("mixed_precision={{bf16 = true, fp8 = 'hybrid'{table}}}");
        let run = tiny(&[&[table.as_str(), "model.num_layers=8"], more].concat());
        edges(&run.unwrap_or_else(|errors| panic!("{table}: {errors}")))
    };
    assert_eq!(of("", &[]), None);
    assert_eq!(of("", &["model.first_last_layers_bf16=true"]), Some((1, 1)));
    assert_eq!(of("", &["model.first_last_layers_bf16=true", "model.num_layers_at_end_in_bf16=3"]), Some((1, 3)));
    assert_eq!(of(", first_last_layers_bf16 = true, num_layers_at_end_in_bf16 = 2", &[]), Some((0, 2)));
}

#[test]
fn a_gather_of_16_bits_is_told_where_weights_are_gathered() {
    let on = |size: usize, more: &[&str]| {
        let all = [&["mixed_precision=bf16_with_mxfp8_mixed"][..], more].concat();
        let overrides: Vec<String> = all.iter().map(|text| (*text).to_owned()).collect();
        let run = load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World { size }).expect("accepted");
        run.warnings().iter().any(|warning| warning.contains("gathered in 16 bits"))
    };
    let sharded = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    assert!(on(2, &["ddp.use_distributed_optimizer=true"]) && on(2, &sharded));
    assert!(!on(1, &["ddp.use_distributed_optimizer=true"]) && !on(1, &sharded) && !on(2, &[]));
}

/// Settings of 8-bit products that exclude each other: overrides, the key of the only problem of
/// that key, and how its message ends.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (
        &["mixed_precision=bf16_with_fp8_current_scaling_mixed"],
        "mixed_precision",
        "; model.first_last_layers_bf16 = false gives them 8-bit products too",
    ),
    (
        &["mixed_precision={fp8 = 'hybrid', first_last_layers_bf16 = true, num_layers_at_end_in_bf16 = 2}"],
        "mixed_precision.first_last_layers_bf16",
        "; mixed_precision.first_last_layers_bf16 = false gives them 8-bit products too",
    ),
    (
        &["model.fp8=hybrid", "model.first_last_layers_bf16=true"],
        "model.first_last_layers_bf16",
        "; model.first_last_layers_bf16 = false gives them 8-bit products too",
    ),
    (
        &["mixed_precision={fp8 = 'hybrid', first_last_layers_bf16 = true}"],
        "mixed_precision.first_last_layers_bf16",
        "set mixed_precision.num_layers_at_start_in_bf16 or mixed_precision.num_layers_at_end_in_bf16",
    ),
    (
        &[
            "model.fp8=hybrid",
            "model.first_last_layers_bf16=true",
            "model.num_layers_at_start_in_bf16=0",
            "model.num_layers_at_end_in_bf16=0",
        ],
        "model.first_last_layers_bf16",
        "set model.num_layers_at_start_in_bf16 or model.num_layers_at_end_in_bf16",
    ),
    (
        &["model.fp8=hybrid", "peft.kind=lora", "checkpoint.pretrained_checkpoint=x"],
        "model.fp8",
        "use peft.base_quantization, or no fp8",
    ),
    (
        &["model.fp8=e4m3", "model.pipeline_schedule=zb_h1"],
        "model.fp8",
        "which defers weight gradients of 16 or 32 bits",
    ),
    (
        &["mixed_precision=bf16_with_mxfp8_mixed", "model.pipeline_schedule=zb_h1"],
        "mixed_precision",
        "which defers weight gradients of 16 or 32 bits",
    ),
    (&["ddp.fp8_param_gather=true"], "ddp.fp8_param_gather", "has no effect without model.fp8"),
    (
        &[
            "mixed_precision={fp8 = 'hybrid', fp8_recipe = 'mxfp8', fp8_param_gather = true}",
            "ddp.use_megatron_fsdp=true",
            "ddp.data_parallel_sharding_strategy=optim_grads_params",
        ],
        "mixed_precision.fp8_param_gather",
        "blocks with a scale of their own would end inside of what a rank owns",
    ),
    (
        &["model.fp8=hybrid", "ddp.fp8_param_gather=true", "ddp.use_distributed_optimizer=true"],
        "ddp.fp8_param_gather",
        "elsewhere each rank has whole parameters, of which checkpoints are made",
    ),
    (&["model.fp8_recipe=tensorwise"], "model.fp8_recipe", "has no effect without model.fp8"),
    (&["model.fp8_wgrad=false"], "model.fp8_wgrad", "has no effect without model.fp8"),
    (
        &["mixed_precision={bf16 = true, fp8_wgrad = false}"],
        "mixed_precision.fp8_wgrad",
        "has no effect without model.fp8",
    ),
    (&["model.first_last_layers_bf16=true"], "model.first_last_layers_bf16", "has no effect without model.fp8"),
    (&["model.fp8_margin=2"], "model.fp8_margin", "has no effect without model.fp8"),
    (
        &["model.fp8=hybrid", "model.fp8_recipe=tensorwise", "model.fp8_margin=2"],
        "model.fp8_margin",
        "has no effect without model.fp8_recipe = \"delayed\"",
    ),
    (
        &["mixed_precision=bf16_with_mxfp8_mixed", "model.fp8_amax_history_len=4"],
        "model.fp8_amax_history_len",
        "has no effect without model.fp8_recipe = \"delayed\"",
    ),
    (
        &["model.fp8=hybrid", "model.fp8_recipe=blockwise", "model.fp8_amax_compute_algo=max"],
        "model.fp8_amax_compute_algo",
        "has no effect without model.fp8_recipe = \"delayed\"",
    ),
    (
        &["model.fp8=hybrid", "model.num_layers_at_start_in_bf16=2"],
        "model.num_layers_at_start_in_bf16",
        "has no effect without model.first_last_layers_bf16 = true",
    ),
    (
        &["model.fp8=hybrid", "model.num_layers_at_end_in_bf16=2"],
        "model.num_layers_at_end_in_bf16",
        "has no effect without model.first_last_layers_bf16 = true",
    ),
    (
        &["model.fp8=hybrid", "model.fp8_recipe=null"],
        "model.fp8_recipe",
        "must say where the scales of model.fp8 come from",
    ),
];

#[test]
fn settings_of_8_bit_products_that_do_not_fit_are_named_with_a_way_out() {
    for (overrides, key, end) in REFUSED {
        let errors = tiny_errors(overrides);
        let of_key: Vec<_> = errors.iter().filter(|error| error.key == *key).collect();
        assert!(of_key.len() == 1 && of_key[0].message.ends_with(end), "{overrides:?} should say {end:?}:\n{errors}");
    }
}

#[test]
fn a_format_that_is_not_known_has_no_echo() {
    for overrides in [
        ["mixed_precision=bf16_with_fp8_curent_scaling_mixed", "model.fp8_wgrad=false"],
        ["mixed_precision=bf16_with_nvfp4_mixed", "model.fp8_recipe=mxfp8"],
        ["mixed_precision={bf16 = true, fp8 = 'hybird', fp8_wgrad = false}", "model.num_layers=4"],
        ["model.fp8=hybird", "model.fp8_margin=2"],
    ] {
        let errors = tiny_errors(&overrides);
        assert_eq!(errors.len(), 1, "{overrides:?}:\n{errors}");
    }
    tiny(&["model.fp8_recipe=null"]).expect("says nothing without model.fp8");
}
