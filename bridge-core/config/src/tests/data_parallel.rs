//! Settings of replicas together: names of one feature, presets of overlap, and values that state
//! the default behaviour.

use super::super::{DType, Format, Kinds, World, load_text};
use super::{TINY, tiny, tiny_errors};

#[test]
fn a_table_of_overlap_turns_it_on_where_state_is_sharded() {
    let of = |overrides: &[&str]| {
        let run = tiny(overrides).unwrap_or_else(|errors| panic!("{overrides:?}\n{errors}"));
        (run.ddp.overlap_grad_reduce, run.ddp.overlap_param_gather, run.ddp.bucket_size)
    };
    let sharded = "ddp.use_distributed_optimizer=true";
    let (table, fsdp) = ("comm_overlap={}", "ddp.use_megatron_fsdp=true");
    let gradients = "ddp.data_parallel_sharding_strategy=optim_grads";
    assert_eq!(of(&[sharded]), (false, false, None));
    assert_eq!(of(&[table]), (false, false, None));
    assert_eq!(of(&[table, sharded]), (true, true, Some(134_217_728)));
    assert_eq!(of(&[table, "optimizer.use_distributed_optimizer=true"]), (true, true, Some(134_217_728)));
    assert_eq!(of(&[table, sharded, "ddp.bucket_size=900"]), (true, true, Some(900)));
    assert_eq!(of(&[table, sharded, "ddp.overlap_grad_reduce=false"]), (false, true, Some(134_217_728)));
    assert_eq!(of(&[table, fsdp, gradients]), (true, true, None), "buckets are segments");
    assert_eq!(of(&["comm_overlap={overlap_grad_reduce = true}"]), (true, false, None));
    let some = "comm_overlap={overlap_grad_reduce = true, overlap_param_gather = false, bucket_size = 77}";
    assert_eq!(of(&[some, sharded]), (true, false, Some(77)));
    let as_it_is = "comm_overlap={tp_comm_overlap = false, align_param_gather = false, wgrad_deferral_limit = -1, \
                    delay_wgrad_compute = false, data_parallel_size = 1}";
    assert_eq!(of(&[as_it_is]), (false, false, None));
    let both_off = "comm_overlap={overlap_grad_reduce = false, overlap_param_gather = false}";
    assert_eq!(of(&[both_off, sharded]), (false, false, None));
}

#[test]
fn states_of_less_than_32_bits_need_what_keeps_them() {
    const AWARE: &str = "optimizer.use_precision_aware_optimizer=true";
    let half = "mixed_precision={bf16 = true, grad_reduce_in_fp32 = false}";
    let run =
        tiny(&[AWARE, "optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=torch.uint8"]).expect("accepted");
    assert_eq!([run.optimizer.exp_avg_dtype, run.optimizer.exp_avg_sq_dtype], [DType::UInt8; 2]);
    for (overrides, key, told) in [
        (&["optimizer.exp_avg_dtype=bfloat16"][..], "optimizer.exp_avg_dtype", AWARE),
        (&["optimizer.exp_avg_sq_dtype=fp8"], "optimizer.exp_avg_sq_dtype", "uint8 needs"),
        (&["optimizer.main_grads_dtype=bfloat16", half], "optimizer.main_grads_dtype", "use_precision_aware_optimizer"),
        (
            &["optimizer.main_params_dtype=float16", half],
            "optimizer.main_params_dtype",
            "use_precision_aware_optimizer",
        ),
        (
            &[AWARE, "optimizer.main_params_dtype=float16"],
            "optimizer.main_params_dtype",
            "model.params_dtype = float32",
        ),
        (&[AWARE, "optimizer.main_params_dtype=bfloat16", half], "optimizer.main_params_dtype", "not implemented"),
        (
            &[AWARE, "optimizer.main_params_dtype=float16", "optimizer.store_param_remainders=true", half],
            "optimizer.store_param_remainders",
            "has no effect with",
        ),
        (
            &[AWARE, "optimizer.store_param_remainders=true"],
            "optimizer.store_param_remainders",
            "model.params_dtype = float32",
        ),
        (&[AWARE, "optimizer.main_grads_dtype=float16", half], "optimizer.main_grads_dtype", "not implemented"),
        (&[AWARE, "optimizer.main_grads_dtype=bfloat16"], "optimizer.main_grads_dtype", "grad_reduce_in_fp32 = false"),
        (
            &[AWARE, "optimizer.main_grads_dtype=bfloat16", "mixed_precision=bf16_mixed"],
            "optimizer.main_grads_dtype",
            "summed in float32",
        ),
        (&[AWARE, "optimizer.main_grads_dtype=float32", half], "optimizer.main_grads_dtype", "contradicts"),
        (
            &[AWARE, "optimizer.optimizer=sgd", "optimizer.adam_beta2=null"],
            "optimizer.use_precision_aware_optimizer",
            "optimizer.optimizer = adam",
        ),
    ] {
        let errors = tiny_errors(overrides);
        let error = errors.iter().find(|error| error.key == key).unwrap_or_else(|| panic!("{overrides:?}: {errors}"));
        let told = told.replace("=true", " = true");
        assert!(error.message.contains(&told), "{overrides:?}: {error}");
    }
    // A single rank keeps all states with any sharding.
    let on = |ranks: usize, more: &[&str]| {
        let overrides: Vec<String> = [&[AWARE][..], more].concat().iter().map(|o| (*o).to_owned()).collect();
        load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World { size: ranks })
    };
    assert!(on(1, &[]).is_ok() && on(2, &["model.tensor_model_parallel_size=2"]).is_ok());
    let errors = on(2, &[]).expect_err("two ranks keep the same states");
    assert!(errors.to_string().contains("needs ddp.use_distributed_optimizer on 2 data-parallel ranks"), "{errors}");
    assert!(on(2, &["ddp.use_distributed_optimizer=true"]).is_ok());
    assert!(on(2, &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim"]).is_ok());
    // One dtype has two names.
    assert_eq!(tiny(&[AWARE, half]).expect("accepted").optimizer.main_grads_dtype, DType::BFloat16);
    assert_eq!(tiny(&[half]).expect("accepted").optimizer.main_grads_dtype, DType::Float32);
    assert!(tiny(&[AWARE, half, "optimizer.main_grads_dtype=bf16", "optimizer.store_param_remainders=false"]).is_ok());
    let remainders = |overrides: &[&str]| tiny(overrides).expect("accepted").optimizer.store_param_remainders;
    assert!(remainders(&[AWARE, half, "optimizer.store_param_remainders=true"]));
    assert!(!remainders(&[AWARE, half, "optimizer.main_params_dtype=float16"]), "there are none");
}

#[test]
fn states_are_moved_to_the_host_where_something_is_moved() {
    const ON: &str = "optimizer.optimizer_cpu_offload=true";
    const ALL: &str = "optimizer.optimizer_offload_fraction=1.0";
    const AHEAD: &str = "optimizer.overlap_cpu_optimizer_d2h_h2d=true";
    for device in ["device=flex", "device=cuda"] {
        let run = tiny(&[device, ON, ALL, AHEAD]).expect("accepted");
        assert!(run.optimizer.optimizer_cpu_offload && run.optimizer.overlap_cpu_optimizer_d2h_h2d);
        for (overrides, key, told) in [
            (&[device, ON][..], "optimizer.optimizer_offload_fraction", "0 moves nothing"),
            (
                &[device, ON, "optimizer.optimizer_offload_fraction=0"],
                "optimizer.optimizer_offload_fraction",
                "1.0 for all",
            ),
            (
                &[device, ON, "optimizer.optimizer_offload_fraction=1.5"],
                "optimizer.optimizer_offload_fraction",
                "out of range",
            ),
            (&[device, ALL], "optimizer.optimizer_offload_fraction", "has no effect without"),
            (&[device, AHEAD], "optimizer.overlap_cpu_optimizer_d2h_h2d", "has no effect without"),
        ] {
            let errors = tiny_errors(overrides);
            let error =
                errors.iter().find(|error| error.key == key).unwrap_or_else(|| panic!("{overrides:?}: {errors}"));
            assert!(error.message.contains(told), "{overrides:?}: {error}");
        }
    }
}

#[test]
fn values_that_state_what_is_done_are_accepted() {
    for overrides in [
        &["dist.use_decentralized_pg=true"][..],
        &["dist.use_decentralized_pg=true", "dist.use_gloo_process_groups=false"],
        &["dist.disable_jit_fuser=true"],
        &["optimizer.store_param_remainders=false"],
        &["model.overlap_p2p_comm=true", "model.batch_p2p_comm=false", "model.overlap_p2p_comm_warmup_flush=true"],
        &["comm_overlap={overlap_p2p_comm = true, batch_p2p_comm = false, align_param_gather = true}"],
        &["ddp.align_param_gather=true"],
        &[
            "ddp.reduce_scatter_with_fp32_accumulation=true",
            "mixed_precision={bf16 = true, grad_reduce_in_fp32 = false}",
            "ddp.use_distributed_optimizer=true",
        ],
        &["ddp.gradient_reduce_div_fusion=true", "dist.distributed_backend=nccl"],
        // How ranks work together, on a world of one.
        &["ddp.overlap_grad_reduce=true", "ddp.bucket_size=1000", "ddp.average_in_collective=true"],
        &["ddp.use_distributed_optimizer=true", "ddp.pad_buckets_for_high_nccl_busbw=true"],
        &["dist.distributed_timeout_minutes=3", "dist.distributed_timeout_seconds_after_init=20"],
        &["device=cuda", "dist.external_gpu_device_mapping=true"],
        &["scheduler.lr_decay_style=constant", "optimizer.min_lr=0"],
    ] {
        tiny(overrides).unwrap_or_else(|errors| panic!("{overrides:?}\n{errors}"));
    }
}

#[test]
fn zeros_are_counted_under_either_name() {
    for name in ["optimizer.log_num_zeros_in_grad", "logger.log_num_zeros_in_grad"] {
        let run = tiny(&[&format!("{name}=true")]).expect("accepted");
        assert!(run.optimizer.log_num_zeros_in_grad && run.logger.log_num_zeros_in_grad, "{name}");
    }
}

#[test]
fn messages_name_what_is_missing() {
    for (overrides, key, expected) in [
        (&["ddp.use_megatron_fsdp=true"][..], "ddp.use_megatron_fsdp", "optim_grads_params"),
        (&["ddp.bucket_size=9"], "ddp.bucket_size", "ddp.overlap_grad_reduce"),
        (&["dist.use_tp_pp_dp_mapping=true"], "dist.use_tp_pp_dp_mapping", "pipeline_model_parallel_size"),
    ] {
        let errors = tiny_errors(overrides);
        let error = errors.iter().find(|error| error.key == key).expect(key);
        assert!(error.message.contains(expected), "{error}");
    }
}
