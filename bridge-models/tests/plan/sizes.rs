//! Parameters and FLOPs, and refusals.

use std::time::{Duration, Instant};

use bridge_core::model::Component;
use bridge_core::plan::{Gpu, PlanOptions, Rates};

use super::{LLAMA_405B, MOE, TINY, config, plan, tiny, try_config};

/// 32,768 embedding and output each, 49,280 a layer, 64 the last norm.
const TINY_PARAMETERS: u64 = 2 * 32_768 + 2 * 49_280 + 64;

#[test]
fn parameters_add_up() {
    let counts = tiny(1, &[]).parameters;
    assert_eq!(counts.total, TINY_PARAMETERS);
    assert_eq!(counts.total, Component::ALL.into_iter().map(|kind| counts.get(kind)).sum::<u64>());
    assert_eq!(counts.get(Component::Attention), 2 * (16 * 8 * 64 + 64 * 64));
    assert_eq!(counts.get(Component::Norm), 5 * 64);
}

#[test]
fn a_rank_holds_its_slice() {
    let split = tiny(4, &["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"]);
    assert_eq!(split.parameters.total, TINY_PARAMETERS);
    // Norms are whole on each rank, all else is halved.
    let layer = 128 + (49_280 - 128) / 2;
    let held: Vec<u64> = split.stages.iter().map(|stage| stage.parameters.total).collect();
    assert_eq!(held, [16_384 + layer, layer + 64 + 16_384]);
}

#[test]
fn a_tied_embedding_is_one_parameter_on_two_stages() {
    let tied = tiny(2, &["model.pipeline_model_parallel_size=2", "model.share_embeddings_and_output_weights=true"]);
    assert_eq!(tied.parameters.total, TINY_PARAMETERS - 32_768);
    let tables: Vec<u64> = tied.stages.iter().map(|stage| stage.parameters.get(Component::Embedding)).collect();
    assert_eq!(tables, [32_768, 32_768]);
}

#[test]
fn experts_count_apart() {
    let parallel = ["model.expert_model_parallel_size=2"];
    let moe = tiny(2, &[&MOE[..], &parallel].concat());
    let experts = 2 * 4 * 3 * 64 * 96;
    assert_eq!(moe.parameters.get(Component::Experts), experts);
    assert_eq!(moe.parameters.get(Component::Router), 2 * 4 * 64);
    assert_eq!(moe.parameters.get(Component::Mlp), 0);
    assert_eq!(moe.active_parameters, moe.parameters.total - experts / 2);
    assert_eq!(moe.stages[0].parameters.get(Component::Experts), experts / 2);
    // Two of four experts of half the width cost as much as the dense block.
    assert_eq!(moe.flops.per_step, tiny(2, &[]).flops.per_step);
}

#[test]
fn stages_share_the_flops() {
    let layouts: [(usize, &[&str]); 3] = [
        (1, &[]),
        (8, &["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"]),
        (4, &["model.context_parallel_size=2", "model.window_size=[16, 0]", "model.window_attn_skip_freq=2"]),
    ];
    for (size, overrides) in layouts {
        let flops = tiny(size, overrides).flops;
        let difference = (flops.per_step_with_recompute / flops.per_step - 1.0).abs();
        assert!(difference < 1e-12, "{overrides:?}: {flops:?}");
    }
    let recompute =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    let again = tiny(1, &recompute).flops;
    // Forward runs twice for all but the head.
    let head = 6.0 * 64.0 * 512.0 * 256.0;
    assert_eq!(again.per_step_with_recompute, again.per_step + (again.per_step - head) / 3.0);
}

#[test]
fn llama_405b_is_the_published_one_and_planned_at_once() {
    let started = Instant::now();
    let config = config(LLAMA_405B, 16_384, &[]);
    let rates = Rates {
        device_tflops: 989.0,
        device_efficiency: 0.6,
        link_gbps: 400.0,
        intra_link_gbps: 3600.0,
        ranks_per_node: 8,
        memory_bandwidth_gb_per_s: f64::INFINITY,
        message_seconds: 0.0,
        host_bandwidth_gb_per_s: f64::INFINITY,
    };
    let plan = plan(&config, &PlanOptions { rates: Some(rates), ..PlanOptions::default() }).unwrap();
    let took = started.elapsed();
    // Each rank in turn would take hours.
    assert!(took < Duration::from_secs(20), "took {took:?}");
    // 405.85 billion (arXiv:2407.21783, table 3 and its released weights).
    assert_eq!(plan.parameters.total, 405_853_388_800);
    // 6 operations a parameter but those of the input embedding, and causal attention: 6 x layers x
    // sequence x hidden.
    let weights = 6.0 * (405_853_388_800_u64 - 128_256 * 16_384 - 253 * 16_384) as f64;
    assert_eq!(plan.flops.per_token, weights + 6.0 * 126.0 * 8_192.0 * 16_384.0);
    // Published: 3.8e25 for 15.6 T tokens, 6 operations a parameter.
    assert!((6.0 * plan.parameters.total as f64 * 15.6e12 / 3.8e25 - 1.0).abs() < 0.01);
    let layers: Vec<usize> = plan.stages.iter().map(|stage| stage.num_layers).collect();
    assert_eq!((layers[0], layers[7], layers[15], layers.iter().sum::<usize>()), (7, 8, 7, 126));
    let utilization = plan.estimate.unwrap().model_flops_utilization;
    assert!((0.3..0.6).contains(&utilization), "{utilization}");
}

#[test]
fn what_cannot_be_counted_is_refused() {
    // A plan refuses the same settings as training.
    let heads = ["model.hidden_size=96", "model.num_attention_heads=12", "model.num_query_groups=4"];
    let errors = try_config(TINY, 6, &[&["model.tensor_model_parallel_size=6"], &heads[..]].concat());
    assert!(errors.expect_err("neither divides the other").names("model.num_query_groups"));
    for (size, setting, key) in [
        (3, "model.tensor_model_parallel_size=3", "model.num_attention_heads"),
        (2, "model.expert_model_parallel_size=2", "model.expert_model_parallel_size"),
        (4, "model.pipeline_model_parallel_size=4", "model.pipeline_model_parallel_size"),
    ] {
        let errors = try_config(TINY, size, &[setting]).expect_err(setting);
        assert!(errors.names(key), "{setting}: {errors}");
    }
    let odd = try_config(TINY, 2, &["model.tensor_model_parallel_size=2", "model.vocab_size=513"]);
    let odd = odd.expect_err("padding is off").to_string();
    assert!(odd.contains("model.vocab_size: expected a multiple"), "{odd}");
}

#[test]
fn ranks_beyond_the_key_value_heads_hold_copies_of_them() {
    let of = |size, more: &[&str]| plan(&config(TINY, size, more), &PlanOptions::default()).unwrap();
    let (one, eight) = (of(1, &[]), of(8, &["model.tensor_model_parallel_size=8"]));
    assert_eq!(eight.parameters, one.parameters, "of the model, each counts once");
    // Two layers, heads of 8 channels, 64 inputs: a rank has one query head of eight, and a key and
    // a value head that another has too.
    let (projection, output) = (3 * 8 * 64, 64 * 64 / 8);
    assert_eq!(eight.stages[0].parameters.get(Component::Attention), 2 * (projection + output));
}

#[test]
fn a_plan_needs_no_data_and_runs_need_what_they_needed() {
    let without_tokenizer = TINY.replace("tokenizer_type = \"NullTokenizer\"\nvocab_size = 511", "");
    let config = config(&without_tokenizer, 1, &["dataset.kind=gpt"]);
    assert_eq!(plan(&config, &PlanOptions::default()).unwrap().parameters.total, TINY_PARAMETERS);
    let without_size = try_config(
        &without_tokenizer.replace("vocab_size = 512", ""),
        1,
        &["tokenizer.tokenizer_type=HuggingFaceTokenizer"],
    );
    let error = plan(&without_size.unwrap(), &PlanOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "model.vocab_size: must be given for a plan, which opens no tokenizer");
    // Other invalid settings are still refused.
    assert!(try_config(TINY, 1, &["model.hidden_size=0"]).unwrap_err().names("model.hidden_size"));
    assert!(try_config(TINY, 3, &["model.tensor_model_parallel_size=2"]).is_err());
}

/// Communication that a run does not hide is not hidden in a plan either.
#[test]
fn replicas_cost_what_they_do_not_overlap() {
    let estimate = |more: &[&str]| {
        let rates = Rates {
            device_tflops: 1e-3,
            device_efficiency: 1.0,
            link_gbps: 1.0,
            intra_link_gbps: 1.0,
            ranks_per_node: 1,
            memory_bandwidth_gb_per_s: f64::INFINITY,
            message_seconds: 0.0,
            host_bandwidth_gb_per_s: f64::INFINITY,
        };
        let config = config(TINY, 4, &[&["train.global_batch_size=16"], more].concat());
        plan(&config, &PlanOptions { rates: Some(rates), ..PlanOptions::default() }).unwrap().estimate.unwrap()
    };
    let seconds = |more: &[&str]| estimate(more).replica_seconds;
    let (reduce, gather) = ("ddp.overlap_grad_reduce=true", "ddp.overlap_param_gather=true");
    let strategy = |name: &str| format!("ddp.data_parallel_sharding_strategy={name}");
    for name in ["optim", "optim_grads", "optim_grads_params"] {
        let name = strategy(name);
        let of = |more: &[&str]| seconds(&[&["ddp.use_megatron_fsdp=true", &name], more].concat());
        let [all, reduced, gathered, both] = [&[][..], &[reduce], &[gather], &[reduce, gather]].map(of);
        assert!(all > reduced && all > gathered && both < reduced.min(gathered), "{name}");
    }
    // Gradients of weights come last: there is nothing to hide behind, and the wish is refused.
    let zero_bubble = ["model.pipeline_model_parallel_size=2", "model.pipeline_schedule=zb_h1"];
    assert!(seconds(&zero_bubble) > 0.0);
    // Stages send 32 KiB in each of four micro-batches, a millisecond in all; only figures of a few
    // bytes are waited for.
    assert!(estimate(&zero_bubble).exposed_seconds < 1e-5);
    let errors = try_config(TINY, 4, &[&zero_bubble[..], &[reduce]].concat()).expect_err("no effect");
    assert!(errors.names("ddp.overlap_grad_reduce"), "{errors}");
}

/// Megatron's worked example, and the FLOPs that windows save in it.
#[test]
fn flops_are_megatrons() {
    let sizes = [
        "model.num_layers=2",
        "model.hidden_size=64",
        "model.ffn_hidden_size=256",
        "model.gated_linear_unit=false",
        "model.num_attention_heads=4",
        "model.num_query_groups=4",
        "model.kv_channels=16",
        "model.vocab_size=1024",
        "model.seq_length=128",
        "dataset.seq_length=128",
        "tokenizer.vocab_size=1023",
    ];
    let per_sequence = |more: &[&str]| {
        let plan = tiny(1, &[&sizes[..], more].concat());
        plan.flops.per_step / plan.batch.global_batch_size as f64
    };
    assert_eq!(per_sequence(&[]), 138_412_032.0);
    let saved_per_layer = 128.0 * 6.0 * 64.0 * (128.0 - 32.0);
    let window = "model.window_size=[31, 0]";
    assert_eq!(per_sequence(&[window]), 138_412_032.0 - 2.0 * saved_per_layer);
    assert_eq!(per_sequence(&[window, "model.window_attn_skip_freq=[0, 1]"]), 138_412_032.0 - saved_per_layer);
    assert_eq!(per_sequence(&["model.window_size=[4096, 0]"]), 138_412_032.0);
}

/// Gradients go down, parameters up: in 16 bits with a whole master that is all, in float32 the
/// value is read too.
#[test]
fn states_in_host_memory_cost_transfers() {
    let estimate = |more: &[&str]| {
        let rates = Rates {
            memory_bandwidth_gb_per_s: 1.0,
            host_bandwidth_gb_per_s: 0.25,
            ..Gpu::named("h200").unwrap().rates(2)
        };
        let config = config(TINY, 1, &[&["device=cuda"], more].concat());
        let plan = plan(&config, &PlanOptions { rates: Some(rates), ..PlanOptions::default() }).unwrap();
        (plan.parameters.trained as f64, plan.stages[0].memory, plan.estimate.unwrap())
    };
    let seconds = |bytes: f64| bytes / 0.25e9;
    let (on, all) = ("optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0");
    for (precision, down, up) in [("mixed_precision=null", 8.0, 4.0), ("mixed_precision=bf16_mixed", 4.0, 2.0)] {
        let (elements, memory, plain) = estimate(&[precision]);
        assert_eq!(plain.transfer_seconds, 0.0);
        let (_, moved, in_turn) = estimate(&[precision, on, all]);
        assert_eq!((moved.optimizer, moved.host_optimizer), (0, memory.optimizer), "{precision}");
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(close(in_turn.transfer_seconds, seconds(elements * (down + up))), "{precision}: {in_turn:?}");
        let (_, _, ahead) = estimate(&[precision, on, all, "optimizer.overlap_cpu_optimizer_d2h_h2d=true"]);
        assert!(close(ahead.transfer_seconds, seconds(elements * down.max(up))), "{precision}: {ahead:?}");
        // The device does not read or write states that it does not update.
        let of_device = plain.update_seconds - 2.0 * memory.optimizer as f64 / 1e9;
        assert!(close(in_turn.update_seconds, of_device + in_turn.transfer_seconds), "{precision}: {in_turn:?}");
        assert!(close(ahead.step_seconds - ahead.update_seconds, in_turn.step_seconds - in_turn.update_seconds));
    }
}
