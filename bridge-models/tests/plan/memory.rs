//! Bytes of memory.

use bridge_core::plan::{Memory, PlanOptions};
use bridge_kernels::cross_entropy::workspace_bytes;

use super::{MOE, TINY, config, plan, tiny};

/// Parameters of a rank at tensor parallel 2: norms whole, all else halved.
const HALF: u64 = 16_384 * 2 + 2 * (128 + (49_280 - 128) / 2) + 64;

/// A scale of each tensor: embedding, head and norm, and six of each layer.
const SCALES: u64 = 4 * (3 + 2 * 6);

#[test]
fn states_follow_precision_and_sharding() {
    let states = |size: usize, more: &[&str]| {
        // Two micro-batches: there are sums of gradients at every moment.
        let usual = ["model.tensor_model_parallel_size=2", "train.global_batch_size=8"];
        let plan = tiny(size, &[&usual[..], more].concat());
        let memory = plan.stages[0].memory;
        [memory.parameters, memory.gradients, memory.optimizer]
    };
    assert_eq!(states(4, &[]), [4 * HALF, 4 * HALF, 8 * HALF]);
    assert_eq!(states(4, &["optimizer.optimizer=sgd", "optimizer.adam_beta2=null"]), [4 * HALF, 4 * HALF, 4 * HALF]);
    assert_eq!(states(4, &["mixed_precision=bf16_mixed"]), [2 * HALF, 4 * HALF, 12 * HALF]);
    assert_eq!(states(4, &["mixed_precision=fp16_mixed"]), [2 * HALF, 2 * HALF, 12 * HALF]);
    let distributed = ["mixed_precision=bf16_mixed", "ddp.use_distributed_optimizer=true"];
    assert_eq!(states(4, &distributed), [2 * HALF, 4 * HALF, 12 * HALF / 2]);
    let instances = [&distributed[..], &["ddp.num_distributed_optimizer_instances=2"]].concat();
    assert_eq!(states(4, &instances), [2 * HALF, 4 * HALF, 12 * HALF]);
    let strategy = |name: &str| {
        let strategy = format!("ddp.data_parallel_sharding_strategy={name}");
        states(4, &["mixed_precision=bf16_mixed", "ddp.use_megatron_fsdp=true", &strategy])
    };
    assert_eq!(strategy("optim"), [2 * HALF, 4 * HALF, 6 * HALF]);
    assert_eq!(strategy("optim_grads"), [2 * HALF, 2 * HALF, 6 * HALF]);
    assert_eq!(strategy("optim_grads_params"), [HALF, 2 * HALF, 6 * HALF]);
}

#[test]
fn states_that_are_moved_are_in_host_memory() {
    const ON: &str = "optimizer.optimizer_cpu_offload=true";
    let all = ["model.tensor_model_parallel_size=2", "train.global_batch_size=8", "mixed_precision=bf16_mixed"];
    let states = |size: usize, more: &[&str]| {
        let memory = tiny(size, &[&all[..], more].concat()).stages[0].memory;
        (memory.optimizer, memory.host_optimizer, memory.total)
    };
    let on_gpu = |size: usize, more: &[&str]| states(size, &[&["device=cuda", ON], more].concat());
    let (optimizer, host, total) = states(4, &["device=cuda"]);
    assert_eq!((optimizer, host), (12 * HALF, 0));
    let whole = "optimizer.optimizer_offload_fraction=1.0";
    assert_eq!(on_gpu(4, &[whole]), (0, 12 * HALF, total - 12 * HALF));
    // The embedding, of 512 rows, alone is more than a tenth; a parameter goes as a whole.
    let tenth = on_gpu(4, &["optimizer.optimizer_offload_fraction=0.1"]);
    assert_eq!(tenth, (12 * (HALF - 16_384), 12 * 16_384, total - 12 * 16_384));
    let divided = ["ddp.use_distributed_optimizer=true", whole];
    let (optimizer, host, _) = on_gpu(4, &divided);
    assert_eq!((optimizer, host), (0, 12 * HALF / 2));
    // On a CPU there is no other memory.
    assert_eq!(states(4, &[ON, whole]), states(4, &[]));
    // Remainders and codes are on the host anyway, and all else goes there.
    let kept = ["optimizer.use_precision_aware_optimizer=true", "optimizer.exp_avg_dtype=fp8", divided[0]];
    let (optimizer, host, _) = states(4, &[&["device=cuda"], &kept[..]].concat());
    assert_eq!((optimizer, host), (4 * HALF / 2, 3 * HALF / 2 + SCALES));
    let (optimizer, host, _) = on_gpu(4, &[&kept[..], &[whole]].concat());
    assert_eq!((optimizer, host), (0, 7 * HALF / 2 + SCALES));
    assert_eq!(states(4, &kept).0, 7 * HALF / 2 + SCALES);
}

/// One micro-batch of 2 x 64 tokens on one rank, in float32: 128 rows.
#[test]
fn activations_are_what_backward_keeps() {
    let stream = 128 * 64 * 4;
    // Statistics, normed, rotated projection, output, log-sum-exp.
    let attention = 128 * 4 + stream + 128 * 128 * 4 + stream + 128 * 8 * 4;
    let mlp = 128 * 4 + stream + 128 * (384 + 192) * 4;
    // Statistics, normed, gradients of hidden states and of the output table.
    let head = 128 * 4 + stream + stream + 512 * 64 * 4;
    let layer = 2 * stream + attention + mlp;
    let ids = 128 * 8;
    let kept = |overrides: &[&str]| {
        let stage = &tiny(1, overrides).stages[0];
        (stage.kept_activations, stage.recomputed_activations)
    };
    assert_eq!(kept(&[]), (ids + 2 * layer + stream + head, 0));
    let full = |method: &str, layers: &str| {
        let (method, layers) =
            (format!("model.recompute_method={method}"), format!("model.recompute_num_layers={layers}"));
        kept(&["model.recompute_granularity=full", &method, &layers])
    };
    assert_eq!(full("uniform", "1"), (ids + 2 * stream + stream + head, layer - stream));
    assert_eq!(full("uniform", "2"), (ids + stream + stream + head, 2 * layer - stream));
    assert_eq!(full("block", "1"), (ids + stream + layer + stream + head, layer - stream));
    let selective = kept(&["model.recompute_granularity=selective", "model.recompute_modules=[\"mlp\"]"]);
    assert_eq!(selective, (ids + 2 * (layer - mlp) + stream + head, mlp));
}

/// On the CPU inputs of linear layers are kept as 8-bit codes, and attention also keeps one of them
/// unconverted; a GPU keeps the inputs as they are.
#[test]
fn inputs_of_products_in_eight_bits_are_kept_as_codes() {
    let kept = |more: &[&str]| tiny(1, &[&["model.num_layers=4"], more].concat()).stages[0].kept_activations;
    let eight_bits = |more: &[&str]| kept(&[&["model.fp8=hybrid"], more].concat());
    // Inputs of the projections of queries, keys and values, and of both of the feed-forward block;
    // the other projection's.
    let (alone, besides) = (128 * (64 + 64 + 192), 128 * 64);
    let plain = kept(&[]);
    let saved = |bits: u64| 4 * alone - (alone + besides) * bits / 8;
    assert_eq!(plain - eight_bits(&["model.fp8_recipe=tensorwise"]), 4 * saved(8));
    assert_eq!(plain - eight_bits(&["model.fp8_recipe=delayed"]), 4 * saved(8));
    assert_eq!(plain - eight_bits(&["model.fp8_recipe=mxfp8"]), 4 * saved(9));
    let ends = ["model.fp8_recipe=tensorwise", "model.first_last_layers_bf16=true"];
    assert_eq!(plain - eight_bits(&ends), 2 * saved(8));
    assert_eq!(eight_bits(&["model.fp8_recipe=mxfp8", "model.fp8_wgrad=false"]), plain);
    assert_eq!(eight_bits(&["model.fp8_recipe=mxfp8", "device=cuda"]), kept(&["device=cuda"]));
    let total = |more: &[&str]| tiny(1, more).stages[0].memory;
    let (with, without) = (total(&["model.fp8=hybrid", "model.fp8_recipe=tensorwise"]), total(&[]));
    assert!(with.backward > without.backward, "{with:?}, {without:?}");
    // Scales and magnitudes of four layers on each of two.
    let delayed = total(&["model.fp8=hybrid", "model.fp8_recipe=delayed", "model.fp8_amax_history_len=5"]);
    assert_eq!(delayed.parameters - without.parameters, 2 * 4 * 4 * (3 + 3 * 5));
}

/// A GPU keeps two numbers of each query. In 16 bits and with 256 keys, scores exist, but not on
/// tensor cores, which take heads of a multiple of 16.
#[test]
fn attention_on_a_gpu_keeps_statistics_and_may_have_scores() {
    let of = |has_tensor_cores: bool, overrides: &[&str]| {
        let config = config(TINY, 1, &[&["device=cuda", "model.seq_length=256"], overrides].concat());
        let options = PlanOptions { has_tensor_cores, ..PlanOptions::default() };
        plan(&config, &options).unwrap().stages[0].memory.attention
    };
    let (bf16, heads) = (["model.bf16=true"], ["model.bf16=true", "model.kv_channels=16"]);
    // Two sequences and 8 heads; 4 key/value heads.
    let scores = |head: u64| 2 * 2 * 8 * 256 * 256 * (4 + 2) + 2 * 4 * 256 * 2 * head * 4;
    assert_eq!([false, true].map(|has_cores| of(has_cores, &bf16)), [scores(8); 2]);
    assert_eq!([false, true].map(|has_cores| of(has_cores, &heads)), [scores(16), 0]);
    assert_eq!([false, true].map(|has_cores| of(has_cores, &["model.kv_channels=16"])), [0; 2]);
    let latent = ["model.multi_latent_attention=true", "model.num_query_groups=8", "model.kv_lora_rank=10"];
    for kind in [&[][..], &latent] {
        let kept = |more: &[&str]| {
            let of = |layers: &str| tiny(1, &[kind, &[layers], more].concat()).stages[0].kept_activations;
            of("model.num_layers=4") - of("model.num_layers=2")
        };
        assert_eq!(kept(&["device=cuda"]) - kept(&[]), 2 * 128 * 8 * 4, "{kind:?}");
    }
}

/// Tensors that are recomputed inside a segment are brought back for its backward, and are not
/// kept.
#[test]
fn parts_of_segments_that_run_again_are_not_kept() {
    let latent = [
        "model.num_query_groups=8",
        "model.multi_latent_attention=true",
        "model.q_lora_rank=12",
        "model.kv_lora_rank=10",
        "model.qk_head_dim=6",
        "model.qk_pos_emb_head_dim=4",
        "model.v_head_dim=7",
        "model.moe_shared_expert_intermediate_size=40",
    ];
    let of = |size: usize, more: &[&str]| {
        let plan = tiny(size, &[&MOE[..], &latent, more].concat());
        let (stage, flops) = (&plan.stages[0], plan.flops);
        let again = flops.per_step_with_recompute - flops.per_step;
        (stage.kept_activations, stage.recomputed_activations, again, stage.memory.total)
    };
    let plain = of(1, &[]);
    assert_eq!((plain.1, plain.2), (0, 0.0));
    // For two micro-batches and two layers, 2 FLOPs a product: all of shared experts; queries from
    // 12, keys and values from 10, and scores and sums over the keys that are seen.
    let shared_flops = 4.0 * 2.0 * 128.0 * 64.0 * 120.0;
    let latent_flops = 4.0 * (2.0 * 128.0 * 8.0 * (12.0 * 10.0 + 10.0 * 13.0) + 128.0 * 8.0 * 17.0 * 64.0);
    // Two experts a token; gate, other half and their product; queries and keys, values and output,
    // and log-sum-exp.
    let activated = 256 * 96 * 4;
    let shared = 128 * 120 * 4;
    let heads = 2 * 128 * 8 * (10 + 7) * 4 + 128 * 8 * 4;
    let output = 128 * 8 * 7 * 4;
    for (module, kept, brought_back, flops) in [
        ("moe_act", activated, activated, 0.0),
        ("shared_experts", shared, shared, shared_flops),
        ("mla_up_proj", heads - output, heads, latent_flops),
    ] {
        let modules = format!("model.recompute_modules=[\"{module}\"]");
        let found = of(1, &["model.recompute_granularity=selective", &modules]);
        assert_eq!(plain.0 - found.0, 2 * kept, "{module}");
        assert_eq!((found.1, found.2), (brought_back, flops), "{module}");
        assert!(found.3 < plain.3, "{module}: {} of {} bytes", found.3, plain.3);
    }
}

#[test]
fn a_stream_in_float32_is_counted_so() {
    let kept = |more: &[&str]| {
        let plan = tiny(1, &[&["mixed_precision=bf16_mixed"], more].concat());
        plan.stages[0].kept_activations
    };
    // The inputs of four blocks and of the head.
    assert_eq!(kept(&["model.fp32_residual_connection=true"]) - kept(&[]), 5 * 128 * 64 * 2);
}

#[test]
fn tensor_parallel_ranks_share_what_is_inside_blocks() {
    let kept = |more: &[&str]| {
        let plan = tiny(2, &[&["model.tensor_model_parallel_size=2"], more].concat());
        plan.stages[0].kept_activations
    };
    let stream = 128 * 64 * 4;
    let (attention, mlp) = (stream + (128 * 128 * 4 + stream + 128 * 8 * 4) / 2, stream + 128 * 576 * 2);
    let head = 2 * stream + 256 * 64 * 4;
    let plain = kept(&[]);
    assert_eq!(plain, 128 * 8 + 5 * (stream + 128 * 4) + 2 * (attention + mlp) + head);
    // Along the sequence, the stream and its norms' statistics are halved.
    assert_eq!(plain - kept(&["model.sequence_parallel=true"]), 5 * (stream + 128 * 4) / 2);
}

/// Inputs for the weight part of backward are kept even with recompute.
#[test]
fn a_split_backward_keeps_what_linear_layers_read() {
    let stages = ["model.pipeline_model_parallel_size=2", "train.global_batch_size=32"];
    let zero_bubble = [&stages[..], &["model.pipeline_schedule=zb_h1"]].concat();
    let recompute =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    let first = |overrides: &[&str]| tiny(2, &[overrides, &recompute].concat()).stages[0].kept_activations;
    let stream = 128 * 64 * 4;
    // Ids and the layer's input, of two micro-batches.
    assert_eq!(first(&stages), 2 * (128 * 8 + stream));
    // Beside the inputs of one more micro-batch: inputs and gradients of the projections and of
    // both feed-forward layers.
    let attention = 2 * stream + 128 * 128 * 4 + stream;
    let mlp = 2 * stream + 128 * 576 * 4;
    assert_eq!(first(&zero_bubble), 128 * 8 + stream + attention + mlp);
}

#[test]
fn context_parallel_ranks_hold_all_keys() {
    let alone = tiny(1, &["train.micro_batch_size=1"]).stages[0].kept_activations;
    let shared = tiny(2, &["model.context_parallel_size=2"]).stages[0].kept_activations;
    // Two sequences of half the length are as many tokens as one whole; gathered keys and values of
    // both come on top, and in both layers rotated queries and keys beside the projection, on which
    // alone the kernel works where nothing is gathered.
    assert_eq!(shared - alone, 2 * 2 * 128 * 32 * 4 + 2 * 64 * 96 * 4);
}

#[test]
fn working_memory_is_that_of_the_moment_with_most() {
    let adds_up = |memory: Memory| assert_eq!(memory.total, memory.parts().iter().map(|(_, bytes)| bytes).sum::<u64>());
    // Many threads: attention of the last layer, which comes first in backward.
    let memory = tiny(1, &["train.num_threads=1000"]).stages[0].memory;
    adds_up(memory);
    // A block's scores and their gradients, and the gradients of one head's keys and values.
    assert_eq!(memory.attention, 1000 * 2 * (64 + 8) * 64 * 4);
    assert_eq!((memory.gathered, memory.cross_entropy, memory.reduction), (0, 0, 0));
    // Gradients of queries and output, of keys and values, and those of the keys before heads add
    // up; of the parameters from here on.
    let heads = 2 * 128 * 64 * 4 + 2 * 128 * 32 * 4 + 2 * 128 * 64 * 4;
    assert_eq!(memory.backward, heads + 4 * (32_768 + 64 + 49_280));
    // Long batches: the loss, before anything is freed.
    let stage = &tiny(1, &["train.micro_batch_size=64", "train.global_batch_size=128"]).stages[0];
    adds_up(stage.memory);
    assert_eq!(stage.memory.activations, stage.kept_activations);
    assert_eq!(stage.memory.cross_entropy, workspace_bytes(64 * 64, 512) as u64);
    // Many parameters and few tokens: most gradients, and little kept.
    let short = ["model.seq_length=8", "train.micro_batch_size=1", "train.global_batch_size=1"];
    let wide = [&short[..], &["model.ffn_hidden_size=65536"]].concat();
    let memory = tiny(1, &wide).stages[0].memory;
    adds_up(memory);
    assert!(memory.activations < memory.parameters / 10, "{memory:?}");
    assert!(memory.backward + memory.gradients >= memory.parameters, "{memory:?}");
    let sharded = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let long = ["train.micro_batch_size=16", "train.global_batch_size=64"];
    let gathered = |more: &[&str]| tiny(2, &[&sharded[..], &long, more].concat()).stages[0].memory.gathered;
    // A layer, and if it is gathered meanwhile, the next.
    assert_eq!(gathered(&[]), 4 * 49_280);
    assert_eq!(gathered(&["ddp.overlap_param_gather=true"]), 4 * 2 * 49_280);
}

/// Before the first micro-batch's backward there are no sums of gradients.
#[test]
fn a_step_of_one_micro_batch_never_has_all_gradients_beside_all_activations() {
    let memory = |batch: &str| {
        let sizes = ["train.micro_batch_size=64", batch];
        tiny(1, &sizes).stages[0].memory
    };
    let (one, two) = (memory("train.global_batch_size=64"), memory("train.global_batch_size=128"));
    assert_eq!(two.total - one.total, 4 * (2 * 32_768 + 2 * 49_280 + 64));
    assert_eq!((one.activations, one.gradients), (two.activations, 0));
}

#[test]
fn experts_keep_the_tokens_they_get() {
    let dense = tiny(1, &[]).stages[0].kept_activations;
    let moe = tiny(1, &MOE).stages[0].kept_activations;
    let stream = 128 * 64 * 4;
    // Two experts of half the width keep as much as the dense block; routed rows, weighted rows,
    // logits and probabilities come on top.
    assert_eq!(moe - dense, 2 * (2 * stream + 2 * stream + 2 * 128 * 4 * 4));
}
