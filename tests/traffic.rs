//! `bridge plan --measure`: traffic and memory of the ranks are exactly the planned ones. Layouts
//! and batches are odd on purpose.

use std::process::Command;

use bridge_tests::{program, root};
use serde_json::Value;

const OVERLAP: [&str; 3] = ["ddp.overlap_grad_reduce=true", "ddp.overlap_param_gather=true", "ddp.bucket_size=20011"];
const FULL: [&str; 2] = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
const GRADIENTS: [&str; 2] = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads"];
const INSTANCES: &str = "ddp.num_distributed_optimizer_instances=2";
const OPTIMIZER: &str = "ddp.use_distributed_optimizer=true";
const TIED: &str = "model.share_embeddings_and_output_weights=true";
const SEQUENCE: &str = "model.sequence_parallel=true";
const GROUPED: &str = "model.moe_grouped_gemm=true";
/// Latent attention whose keys and values have heads of different sizes.
const LATENT: [&str; 6] = [
    "model.multi_latent_attention=true",
    "model.num_query_groups=8",
    "model.kv_lora_rank=10",
    "model.qk_head_dim=6",
    "model.qk_pos_emb_head_dim=4",
    "model.v_head_dim=12",
];

/// Plans and measures a recipe; `short` are sizes such as `tp=2`. Fails unless they agree, and
/// returns the output.
fn check(recipe: &str, ranks: &str, short: &str, more: &[&str]) -> Value {
    let sizes = short.split_whitespace().map(|item| {
        let (name, size) = item.split_once('=').expect("name=size");
        let name = match name {
            "tp" => "model.tensor_model_parallel_size",
            "pp" => "model.pipeline_model_parallel_size",
            "vp" => "model.virtual_pipeline_model_parallel_size",
            "cp" => "model.context_parallel_size",
            "ep" => "model.expert_model_parallel_size",
            "etp" => "model.expert_tensor_parallel_size",
            "mbs" => "train.micro_batch_size",
            "gbs" => "train.global_batch_size",
            "layers" => "model.num_layers",
            other => panic!("no size {other}"),
        };
        format!("{name}={size}")
    });
    let output = Command::new(program())
        .args(["plan", recipe, "--measure", "--json", "--world-size", ranks, "train.num_threads=1"])
        .args(sizes)
        .args(more)
        .current_dir(root())
        .output()
        .unwrap();
    let what = format!("{recipe} on {ranks} ranks, {short} {more:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{what}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let stages = found["measured"]["stages"].as_array().unwrap();
    let measured: usize = stages.iter().map(|stage| stage["ranks"].as_array().unwrap().len()).sum();
    assert_eq!(measured.to_string(), ranks, "{what}: every rank is measured");
    for stage in stages {
        let memory = ["parameters", "optimizer"].map(|what| &stage[what]);
        for entry in stage["traffic"].as_array().unwrap().iter().chain(memory) {
            assert_eq!(entry["matches"], true, "{what}: stage {}: {entry}", stage["stage"]);
        }
    }
    assert_eq!(found["measured"]["matches"], true, "{what}");
    assert_eq!(output.status.code(), Some(0), "{what}");
    found
}

fn tiny(ranks: &str, short: &str, more: &[&str]) -> Value {
    check("recipes/tiny.toml", ranks, short, more)
}

fn moe(ranks: &str, short: &str, more: &[&str]) -> Value {
    check("recipes/tiny-moe.toml", ranks, short, more)
}

/// Measured payload of a kind of operation on the first rank of a stage.
fn measured(found: &Value, stage: usize, group: &str, operation: &str) -> u64 {
    let entries = found["measured"]["stages"][stage]["traffic"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["group"] == group && entry["operation"] == operation);
    entry.unwrap_or_else(|| panic!("{group} {operation} in {entries:?}"))["measured"][0]["bytes"].as_u64().unwrap()
}

#[test]
fn replicas() {
    let found = tiny("2", "", &[]);
    // All gradients in one bucket of float32, with one figure of one micro-batch, the loss and its
    // divisor.
    assert_eq!(measured(&found, 0, "dp-cp", "all_reduce"), 4 * 164_160 + 3 * 8);
    tiny("4", "mbs=1 gbs=12", &[]);
    tiny("3", "mbs=1 gbs=6", &["ddp.overlap_grad_reduce=true", "ddp.bucket_size=9001"]);
    tiny("2", "mbs=1 gbs=6", &[TIED]);
    tiny("2", "", &["mixed_precision=bf16_mixed", "optimizer.optimizer=sgd", "optimizer.adam_beta2=null"]);
}

#[test]
fn sharded_optimizers() {
    let found = tiny("2", "", &[OPTIMIZER]);
    assert_eq!(measured(&found, 0, "dp-cp", "reduce_scatter"), 4 * 164_160);
    assert_eq!(measured(&found, 0, "dp-cp", "all_gather"), 4 * 164_160 / 2);
    tiny("4", "mbs=1 gbs=8", &[&[OPTIMIZER], &OVERLAP[..]].concat());
    tiny("3", "mbs=1 gbs=6", &[&[OPTIMIZER, TIED], &OVERLAP[..]].concat());
    tiny("2", "", &[OPTIMIZER, "mixed_precision=bf16_mixed"]);
    tiny("2", "", &[OPTIMIZER, "mixed_precision=fp16_mixed"]);
    let padded = ["ddp.pad_buckets_for_high_nccl_busbw=true"];
    let found = tiny("3", "mbs=1 gbs=6", &[&[OPTIMIZER], &padded[..]].concat());
    assert_eq!(measured(&found, 0, "dp-cp", "reduce_scatter"), 4 * (3 << 16));
    moe("4", "ep=2 mbs=1 gbs=8", &[&[OPTIMIZER, INSTANCES], &padded[..], &OVERLAP].concat());
    let dynamic = "mixed_precision={fp16 = true, initial_loss_scale = 65536.0}";
    tiny("4", "tp=2", &[dynamic, SEQUENCE]);
}

#[test]
fn states_of_less_than_32_bits() {
    let aware = "optimizer.use_precision_aware_optimizer=true";
    let scaled = [OPTIMIZER, aware, "optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=float16"];
    // 164160 elements in 15 tensors, each with two scales on each rank.
    let bytes = |found: &Value| {
        let stage = &found["measured"]["stages"][0]["optimizer"];
        (stage["planned"].as_u64().unwrap(), stage["measured"][0].as_u64().unwrap())
    };
    let found = tiny("2", "", &scaled);
    assert_eq!(bytes(&found), (164_160 / 2 * 3 + 15 * 8, 164_160 / 2 * 3 + 15 * 8));
    let halves = [OPTIMIZER, aware, "mixed_precision=bf16_mixed", "optimizer.exp_avg_dtype=bfloat16"];
    assert_eq!(bytes(&tiny("2", "", &halves)).1, 164_160 / 2 * (2 + 2 + 4));
    let whole = [&halves[..], &["optimizer.store_param_remainders=false"]].concat();
    assert_eq!(bytes(&tiny("2", "", &whole)).1, 164_160 / 2 * (4 + 2 + 4));
    let masters = [&halves[..], &["optimizer.main_params_dtype=float16", "optimizer.exp_avg_sq_dtype=fp8"]].concat();
    assert_eq!(bytes(&tiny("1", "", &masters)).1, 164_160 * (2 + 2 + 1) + 15 * 8);
    tiny("4", "pp=2 mbs=1 gbs=8", &[&[TIED], &scaled[..]].concat());
    moe("4", "ep=2 mbs=1 gbs=8", &scaled);
    tiny("4", "tp=2 mbs=1 gbs=8", &[&scaled[1..], &FULL].concat());
}

#[test]
fn products_of_8_bits() {
    let current = ["model.fp8=hybrid", "model.fp8_recipe=tensorwise"];
    let delayed = ["model.fp8=hybrid", "model.fp8_recipe=delayed", "model.fp8_amax_history_len=5"];
    tiny("2", "pp=2 mbs=1 gbs=6", &current);
    tiny("4", "tp=2 mbs=1 gbs=6", &[&delayed[..], &[OPTIMIZER]].concat());
    tiny("2", "mbs=1 gbs=6", &[&delayed[..], &FULL].concat());
    moe("4", "ep=2 mbs=1 gbs=8", &delayed);
    // Weights as codes.
    let gather = ["ddp.fp8_param_gather=true"];
    let values = tiny("2", "mbs=1 gbs=6", &[&current[..], &FULL].concat());
    let codes = tiny("2", "mbs=1 gbs=6", &[&current[..], &gather, &FULL].concat());
    let gathered = |found: &Value| measured(found, 0, "dp-cp", "all_gather");
    // Twice for each of three micro-batches, half of two layers' weights in a quarter of the bytes.
    let elements = 2 * 64 * (128 + 64 + 384 + 192) / 2;
    assert_eq!(gathered(&values) - gathered(&codes), 2 * 3 * 3 * elements);
    let half = ["mixed_precision=bf16_mixed"];
    tiny("4", "tp=2 mbs=1 gbs=6", &[&delayed[..], &gather, &half, &FULL].concat());
    tiny("4", "pp=2 layers=4 mbs=1 gbs=8", &[&current[..], &gather, &[TIED], &FULL].concat());
    moe("4", "ep=2 mbs=1 gbs=8", &[&current[..], &gather, &FULL].concat());
}

#[test]
fn fully_sharded_parameters() {
    tiny("2", "mbs=1 gbs=6", &FULL);
    tiny("3", "mbs=1 gbs=3", &[&[TIED], &FULL[..]].concat());
    let uniform =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=2"];
    tiny("2", "layers=3", &[&uniform[..], &FULL].concat());
    tiny("4", "tp=2", &[&[SEQUENCE], &FULL[..]].concat());
    moe("2", "ep=2", &FULL);
    tiny("4", "pp=2 mbs=1 gbs=8", &[&[TIED], &FULL[..]].concat());
    tiny("4", "pp=2 layers=4 mbs=1 gbs=6", &[&["model.pipeline_schedule=gpipe"], &FULL[..]].concat());
    tiny("4", "pp=2 layers=4 mbs=1 gbs=8", &[&["model.pipeline_schedule=zb_h1"], &FULL[..]].concat());
    tiny("4", "pp=2 vp=2 layers=4 mbs=1 gbs=8", &FULL);
}

#[test]
fn sharded_gradients() {
    let found = tiny("2", "mbs=1 gbs=6", &GRADIENTS);
    // Three micro-batches.
    assert_eq!(measured(&found, 0, "dp-cp", "reduce_scatter"), 3 * 4 * 164_160);
    assert_eq!(measured(&found, 0, "dp-cp", "all_gather"), 4 * 164_160 / 2);
    tiny("4", "pp=2 vp=2 layers=4 mbs=1 gbs=8", &[&GRADIENTS[..], &OVERLAP[..2]].concat());
    moe("4", "ep=2 mbs=1 gbs=8", &GRADIENTS);
}

#[test]
fn instances_of_optimizers() {
    let found = tiny("4", "mbs=1 gbs=8", &[OPTIMIZER, INSTANCES]);
    assert_eq!(measured(&found, 0, "optimizer", "reduce_scatter"), 4 * 164_160);
    assert_eq!(measured(&found, 0, "optimizer-replicas", "all_reduce"), 4 * 164_160 / 2);
    tiny("6", "mbs=1 gbs=12", &[&[INSTANCES, TIED], &FULL[..]].concat());
    tiny("4", "mbs=1 gbs=8", &[&[INSTANCES, "mixed_precision=bf16_mixed"], &GRADIENTS[..], &OVERLAP[..2]].concat());
    moe("4", "ep=2 mbs=1 gbs=8", &[OPTIMIZER, INSTANCES]);
}

/// Matrices that one rank updates whole: gathered over data and tensor parallel ranks.
#[test]
fn whole_matrices() {
    let muon = ["optimizer.optimizer=muon", "ddp.use_distributed_optimizer=true"];
    assert!(measured(&tiny("4", "tp=2", &muon), 0, "whole", "all_to_all") > 0);
    moe("2", "ep=2", &muon);
}

#[test]
fn tensors_and_sequences() {
    tiny("2", "tp=2", &[]);
    tiny("2", "tp=2", &[SEQUENCE]);
    tiny("4", "tp=4 mbs=1 gbs=3", &[SEQUENCE, TIED, "model.qk_layernorm=true"]);
    tiny(
        "2",
        "tp=2",
        &["model.normalization=LayerNorm", "model.add_bias_linear=true", "model.gated_linear_unit=false"],
    );
    tiny("2", "tp=2", &["mixed_precision=bf16_mixed", SEQUENCE]);
    // A stream in float32 between layers of 16 bits, which stages send and tensor-parallel ranks do
    // not.
    for precision in ["mixed_precision=bf16_mixed", "mixed_precision=fp16_mixed"] {
        let wide = [precision, SEQUENCE, "model.fp32_residual_connection=true"];
        let (found, narrow) = (tiny("4", "tp=2 pp=2", &wide), tiny("4", "tp=2 pp=2", &wide[..2]));
        let sent = |found: &Value| measured(found, 0, "pp", "send");
        assert_eq!(sent(&found), 2 * sent(&narrow), "{precision}");
        assert_eq!(measured(&found, 0, "tp", "all_gather"), measured(&narrow, 0, "tp", "all_gather"), "{precision}");
    }
    // A vocabulary that follows the tokenizer's 512, in 520 rows.
    tiny("2", "tp=2", &["model.vocab_size=null", "model.make_vocab_size_divisible_by=40"]);
}

#[test]
fn pipelines() {
    tiny("2", "pp=2 gbs=8", &[]);
    tiny("4", "pp=4 layers=4 mbs=1 gbs=5", &[TIED]);
    tiny("2", "pp=2 vp=2 layers=4 mbs=1 gbs=8", &[]);
    tiny("2", "pp=2 layers=4 mbs=1 gbs=8", &["model.pipeline_schedule=zb_h1"]);
    tiny("2", "pp=2 layers=4 mbs=1 gbs=4", &["--schedule", "gpipe"]);
    tiny("2", "pp=2 layers=5", &["model.num_layers_in_first_pipeline_stage=2", TIED]);
}

/// Every schedule with every way to divide, and with overlap as far as the schedule has it, on
/// replicas that no size divides.
#[test]
fn schedules_by_what_replicas_divide() {
    let shardings = [&[][..], &[OPTIMIZER], &GRADIENTS, &FULL];
    let (reduce, gather) = ("ddp.overlap_grad_reduce=true", "ddp.overlap_param_gather=true");
    for (schedule, sizes) in [
        ("model.pipeline_schedule=1f1b", "pp=2 layers=3"),
        ("model.pipeline_schedule=1f1b", "pp=2 vp=2 layers=4"),
        ("model.pipeline_schedule=gpipe", "pp=2 layers=3"),
        ("model.pipeline_schedule=zb_h1", "pp=2 layers=3"),
    ] {
        let uneven = "model.num_layers_in_first_pipeline_stage=2";
        let schedule: &[&str] = if sizes.contains("vp") { &[schedule] } else { &[schedule, uneven] };
        let reduces = schedule[0] != "model.pipeline_schedule=zb_h1";
        for (index, sharding) in shardings.into_iter().enumerate() {
            let more = [schedule, sharding, &[TIED]].concat();
            tiny("6", &format!("{sizes} mbs=1 gbs=12"), &more);
            let overlap: Vec<&str> = [(reduces, reduce), (index > 0, gather)]
                .into_iter()
                .filter_map(|(is, key)| is.then_some(key))
                .collect();
            let padding = if index > 0 { &["ddp.pad_buckets_for_high_nccl_busbw=true"][..] } else { &[] };
            let more = [&more[..], &overlap, padding].concat();
            if !overlap.is_empty() {
                tiny("6", &format!("{sizes} mbs=1 gbs=12"), &more);
            }
            if index > 0 {
                tiny("8", &format!("{sizes} mbs=1 gbs=16"), &[&more[..], &[INSTANCES]].concat());
            }
        }
    }
}

#[test]
fn contexts() {
    tiny("2", "cp=2", &[]);
    tiny("4", "cp=2 tp=2 mbs=1 gbs=3", &[SEQUENCE]);
    tiny("2", "cp=2", &["dataset.reset_attention_mask=true"]);
    tiny("2", "cp=2", &LATENT);
    let shared = [
        "model.experimental_attention_variant=dsa",
        "model.dsa_indexer_topk=5",
        "model.dsa_indexer_n_heads=2",
        "model.dsa_indexer_head_dim=8",
        "model.dsa_indexer_topk_freq=[1, 0]",
    ];
    tiny("4", "pp=2 cp=2 mbs=1 gbs=3", &[&LATENT[..], &shared].concat());
    tiny("4", "cp=2", &[OPTIMIZER]);
}

#[test]
fn layers_that_predict_further_tokens() {
    const TWO: &str = "model.mtp_num_layers=2";
    tiny("2", "tp=2", &[TWO, SEQUENCE]);
    tiny("2", "cp=2", &[TWO]);
    tiny("2", "pp=2 gbs=8", &[TWO, OPTIMIZER]);
    tiny("2", "", &[&[TWO], &FULL[..]].concat());
    moe("2", "ep=2", &[TWO]);
}

#[test]
fn experts() {
    moe("2", "ep=2", &[]);
    moe("2", "ep=2", &[GROUPED]);
    moe("4", "ep=2 tp=2", &[]);
    moe("4", "ep=2 tp=2 mbs=1 gbs=6", &[SEQUENCE, OPTIMIZER]);
    moe("4", "ep=2 mbs=1 gbs=4", &["model.moe_token_dispatcher_type=allgather"]);
    moe("2", "tp=2", &["model.moe_shared_expert_intermediate_size=96", "model.moe_layer_freq=[0,1]"]);
    moe("2", "cp=2", &[]);
    moe("2", "pp=2 gbs=8", &[]);
    moe("4", "ep=2 pp=2 gbs=8", &OVERLAP[..1]);
    // Experts cut over other ranks than the rest.
    moe("2", "tp=2 etp=1 ep=2", &[SEQUENCE]);
    moe("4", "tp=2 etp=1 ep=2", &[SEQUENCE, OPTIMIZER, "model.moe_shared_expert_intermediate_size=96"]);
    moe("2", "etp=2", &[]);
    moe("4", "etp=2 ep=2 mbs=1 gbs=4", &["model.moe_token_dispatcher_type=allgather"]);
}

/// Ranks that hold the same keys and values add up their gradients, in a group of their own.
#[test]
fn shared_keys_and_values() {
    const GROUPS: &str = "model.num_query_groups=2";
    let bias = ["model.add_qkv_bias=true", "model.qk_layernorm=true"];
    let found = tiny("4", "tp=4", &[GROUPS]);
    // For two layers the rows of one key and one value head: 2 x 8 x 64 elements of float32.
    assert_eq!(measured(&found, 0, "tp-copies", "all_reduce"), 2 * 2 * 8 * 64 * 4);
    tiny("4", "tp=4", &[&[GROUPS, SEQUENCE], &bias[..]].concat());
    tiny("8", "tp=4 mbs=1 gbs=6", &[GROUPS, OPTIMIZER]);
    tiny("8", "tp=4 mbs=1 gbs=4", &[&[GROUPS, SEQUENCE], &bias[..], &FULL].concat());
    tiny("8", "tp=4 pp=2 mbs=1 gbs=4", &[GROUPS, TIED]);
    tiny("8", "tp=8 mbs=1 gbs=4", &["model.num_query_groups=1", "mixed_precision=bf16_mixed"]);
    // Three replicas: the parts of them that have a share of the common rows differ.
    tiny("12", "tp=4 mbs=1 gbs=3", &[&[GROUPS, OPTIMIZER], &bias[..]].concat());
    tiny("8", "tp=4 cp=2", &[GROUPS]);
    moe("4", "tp=4 etp=2 ep=2 mbs=1 gbs=4", &[GROUPS, SEQUENCE, OPTIMIZER]);
}

/// Tokens go to their experts once more where blocks with experts are recomputed, and only there.
#[test]
fn recompute_of_dense_blocks_leaves_experts_alone() {
    let sent = |module: &str| {
        let modules = format!("model.recompute_modules=[\"{module}\"]");
        let selective = ["model.moe_layer_freq=[0,1]", "model.recompute_granularity=selective", &modules];
        measured(&moe("2", "ep=2", &selective), 0, "ep", "all_to_all")
    };
    let (dense, experts) = (sent("mlp"), sent("moe"));
    assert!(dense < experts, "{dense} and {experts} bytes to and from experts");
    assert_eq!(sent("core_attn"), dense);
}

#[test]
fn several_kinds_at_once() {
    tiny("4", "tp=2 pp=2", &[]);
    tiny("4", "tp=2", &[]);
    tiny("8", "tp=2 pp=2 mbs=1 gbs=6", &[SEQUENCE]);
    tiny("8", "tp=2 pp=2 mbs=1 gbs=6", &[SEQUENCE, OPTIMIZER, TIED]);
    // Norms are not divisible by three replicas, so shards of parameters that tensor-parallel ranks
    // share are padded.
    tiny("6", "tp=2 mbs=1 gbs=3", &[SEQUENCE, OPTIMIZER]);
    tiny("6", "pp=2 mbs=1 gbs=6", &[&[TIED, OPTIMIZER], &OVERLAP[..]].concat());
}

#[test]
fn recompute_and_reruns() {
    let full = ["model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=1"];
    let selective = ["model.recompute_granularity=selective", "model.recompute_modules=[\"core_attn\"]"];
    tiny("2", "tp=2", &full);
    tiny("2", "tp=2", &[&[SEQUENCE], &selective[..]].concat());
    moe("2", "ep=2", &full);
    tiny("2", "pp=2 layers=4", &full);
    // Recompute inside a segment gathers keys and values once more, but repeats no exchange between
    // experts.
    let parts = [
        "model.moe_shared_expert_intermediate_size=48",
        "model.multi_latent_attention=true",
        "model.num_query_groups=8",
        "model.q_lora_rank=12",
        "model.kv_lora_rank=10",
        "model.qk_head_dim=6",
        "model.qk_pos_emb_head_dim=4",
        "model.v_head_dim=8",
        "model.recompute_granularity=selective",
    ];
    let named = ["model.recompute_modules=['moe_act', 'shared_experts', 'mla_up_proj']"];
    moe("4", "tp=2 ep=2", &[&[SEQUENCE], &parts[..], &named].concat());
    moe("4", "cp=2 pp=2", &[&parts[..], &named].concat());
    moe("2", "cp=2", &[&parts[..], &["model.recompute_modules=['mla_up_proj', 'core_attn']"]].concat());
    // Queries from the stream itself.
    moe("2", "tp=2", &[&parts[..], &["model.q_lora_rank=null", "model.recompute_modules=['mla_up_proj']"]].concat());
    moe("2", "tp=2", &[&parts[..8], &[SEQUENCE, "model.q_lora_rank=null"]].concat());
    tiny("2", "", &["rerun_state_machine.rerun_mode=validate_results", "optimizer.log_num_zeros_in_grad=true"]);
}

#[test]
fn people_see_both_sides() {
    let arguments = ["plan", "recipes/tiny.toml", "--measure", "model.tensor_model_parallel_size=2"];
    let folder = root();
    let output = Command::new(program()).args(arguments).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for expected in ["measured on threads, one step", "all_reduce", "optimizer", "the run does what was planned"] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

/// Links of a gigabyte a second.
const LINK: [&str; 2] = ["--link-gbps", "8"];

/// A model of 3.4 million parameters, so that computing takes the time it takes in practice.
const SMALL: [&str; 4] =
    ["model.hidden_size=192", "model.ffn_hidden_size=512", "model.seq_length=128", "ddp.overlap_grad_reduce=true"];

/// Share of its reduction that a stage does not wait for.
fn hidden(found: &Value, stage: usize) -> f64 {
    let overlap = found["measured"]["gradient_overlap"].as_array().unwrap();
    overlap[stage]["hidden"].as_f64().unwrap()
}

/// The share of a stage that is most in three measurements: other programs on the machine may hold
/// up one.
fn most_hidden(stage: usize, ranks: &str, short: &str, more: &[&str]) -> f64 {
    let mut most = 0.0_f64;
    for _ in 0..3 {
        most = most.max(hidden(&tiny(ranks, short, &[&LINK[..], &SMALL, more].concat()), stage));
        if most >= 0.7 {
            break;
        }
    }
    most
}

#[test]
fn gradients_of_shards_hide_only_if_asked() {
    let waits = tiny("2", "layers=8", &[&LINK[..], &SMALL, &GRADIENTS, &["ddp.overlap_grad_reduce=false"]].concat());
    assert!(hidden(&waits, 0) < 0.1, "backward waits: {waits}");
}

#[test]
fn stages_reduce_together_unless_asked_otherwise() {
    let stages = "pp=2 layers=8 mbs=1 gbs=8";
    let aligned = tiny("4", stages, &[&LINK[..], &SMALL].concat());
    assert!(hidden(&aligned, 1) < 0.2, "the last stage reduces after its backward: {aligned}");
    let alone = most_hidden(1, "4", stages, &["dist.align_grad_reduce=false"]);
    assert!(alone >= 0.5, "the last stage reduces as its backward goes: {alone}");
}

#[test]
fn reductions_hide_behind_backward() {
    let waits = tiny("2", "layers=8", &[&LINK[..], &SMALL, &["ddp.overlap_grad_reduce=false"]].concat());
    assert!(hidden(&waits, 0) < 0.1, "without overlap all of it is waited for: {waits}");
    let link = &waits["measured"]["gradient_overlap"][0]["link_seconds"];
    let bytes = 4.0 * waits["parameters"]["total"].as_f64().unwrap();
    assert!((link.as_f64().unwrap() - bytes / 1e9).abs() < 1e-9, "a ring of two moves each gradient once each way");
    for more in [&[][..], &[OPTIMIZER], &["ddp.bucket_size=200000"], &GRADIENTS] {
        let share = most_hidden(0, "2", "layers=8", more);
        assert!(share >= 0.7, "{more:?}: this share hides behind backward: {share}");
    }
}
