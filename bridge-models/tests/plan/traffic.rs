//! Bytes between ranks.

use bridge_core::config::pipeline_schedule;
use bridge_core::model::TrafficKind;
use bridge_core::plan::Plan;
use bridge_dist::comm::Operation::{self, AllGather, AllReduce, AllToAll, Broadcast, Recv, ReduceScatter, Send};
use bridge_dist::schedule::{PipelineSchedule, PipelineShape, ScheduleKind};

use super::{MOE, TINY, config, tiny};

/// The residual stream of a micro-batch: 2 x 64 tokens of 64 float32 values.
const STREAM: u64 = 128 * 64 * 4;
const PARAMETERS: u64 = 2 * 32_768 + 2 * 49_280 + 64;
/// Final norm and output table.
const HEAD: u64 = 32_768 + 64;

type Entry = (&'static str, Operation, u64, u64);

/// Group, operation, calls and payload bytes of one kind of traffic on a stage.
fn entries(plan: &Plan, stage: usize, kind: TrafficKind) -> Vec<Entry> {
    let traffic = plan.stages[stage].traffic.iter().filter(|traffic| traffic.kind == kind);
    traffic.map(|traffic| (traffic.group.name(), traffic.operation, traffic.operations, traffic.bytes)).collect()
}

#[test]
fn one_rank_is_silent() {
    assert_eq!(tiny(1, &[]).stages[0].traffic, []);
}

#[test]
fn tensor_parallel_ranks_reduce() {
    // Two micro-batches. Embedding 1, each layer 2 forward and 2 backward, the head 1.
    let plan = tiny(2, &["model.tensor_model_parallel_size=2"]);
    assert_eq!(entries(&plan, 0, TrafficKind::Tensor), [("tp", AllReduce, 2 * 10, 2 * 10 * STREAM)]);
    assert_eq!(entries(&plan, 0, TrafficKind::Loss), [("tp", AllReduce, 2 * 2, 2 * 3 * 128 * 4)]);
    // The gather has whether data could be read; the reductions have whether losses are finite, the
    // norm, and requests to exit.
    assert_eq!(entries(&plan, 0, TrafficKind::Scalars), [("world", AllGather, 1, 1), ("world", AllReduce, 3, 5 * 8)]);
    assert_eq!(entries(&plan, 0, TrafficKind::SharedGradients), []);
}

#[test]
fn along_the_sequence_they_gather_and_scatter() {
    let plan = tiny(2, &["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]);
    let mut found = entries(&plan, 0, TrafficKind::Tensor);
    found.sort_by_key(|entry| entry.1);
    let expected = [("tp", ReduceScatter, 2 * 10, 2 * 10 * STREAM), ("tp", AllGather, 2 * 10, 2 * 10 * STREAM / 2)];
    assert_eq!(found, expected);
    // The same bytes on the wire.
    let wire = |plan: &Plan| {
        let tensor = plan.stages[0].traffic.iter().filter(|traffic| traffic.kind == TrafficKind::Tensor);
        tensor.map(|traffic| traffic.wire_bytes).sum::<f64>()
    };
    assert_eq!(wire(&plan), wire(&tiny(2, &["model.tensor_model_parallel_size=2"])));
    // Five norms.
    assert_eq!(entries(&plan, 0, TrafficKind::SharedGradients), [("tp", AllReduce, 1, 5 * 64 * 4)]);
}

#[test]
fn recompute_repeats_the_forward() {
    let full = ["model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=1"];
    let plan = tiny(2, &[&["model.tensor_model_parallel_size=2"], &full[..]].concat());
    assert_eq!(entries(&plan, 0, TrafficKind::Tensor), [("tp", AllReduce, 2 * 12, 2 * 12 * STREAM)]);
}

#[test]
fn float16_travels_as_float32_between_tensor_parallel_ranks() {
    let bytes = |precision: &str| {
        let precision = format!("mixed_precision={precision}");
        let plan = tiny(4, &["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2", &precision]);
        [TrafficKind::Tensor, TrafficKind::Pipeline].map(|kind| plan.stages[0].traffic_bytes(kind))
    };
    let [tensor, pipeline] = bytes("bf16_mixed");
    assert_eq!(bytes("fp16_mixed"), [2 * tensor, pipeline]);
}

#[test]
fn stages_send_what_their_lists_say() {
    let overrides = ["model.num_layers=8", "model.pipeline_model_parallel_size=2", "train.global_batch_size=16"];
    let chunks = [&overrides[..], &["model.virtual_pipeline_model_parallel_size=4"]].concat();
    for overrides in [&overrides[..], &chunks] {
        let config = config(TINY, 2, overrides);
        let num_chunks = config.parallel.virtual_pipeline;
        let shape = PipelineShape { num_stages: 2, num_chunks, num_microbatches: config.train.num_microbatches };
        let lists = PipelineSchedule::new(pipeline_schedule(&config.model, num_chunks), shape).unwrap();
        let plan = tiny(2, overrides);
        for (stage, actions) in lists.ranks.iter().enumerate() {
            let messages = actions.iter().filter(|action| action.message().is_some());
            let (sends, receives): (Vec<&_>, Vec<&_>) = messages.partition(|action| action.is_send());
            let [sends, receives] = [sends, receives].map(|list| list.len() as u64);
            let expected = [("pp", Send, sends, sends * STREAM), ("pp", Recv, receives, receives * STREAM)];
            assert_eq!(entries(&plan, stage, TrafficKind::Pipeline), expected, "{overrides:?} stage {stage}");
        }
        // The last stage broadcasts the loss with its divisor.
        let scalars = |stage| entries(&plan, stage, TrafficKind::Scalars)[0];
        assert_eq!(scalars(0), ("pp", Broadcast, 1, 0));
        assert_eq!(scalars(1), ("pp", Broadcast, 1, 2 * 8));
    }
    assert_eq!(ScheduleKind::OneForwardOneBackward.to_string(), tiny(2, &overrides).pipeline.schedule);
}

#[test]
fn replicas_reduce_gradients() {
    let plan = tiny(2, &[]);
    assert_eq!(entries(&plan, 0, TrafficKind::Gradients), [("dp-cp", AllReduce, 1, 4 * PARAMETERS)]);
    assert_eq!(plan.stages[0].traffic_bytes(TrafficKind::Parameters), 0);
    // The tokens of one micro-batch, and the loss with its divisor.
    assert_eq!(entries(&plan, 0, TrafficKind::Scalars)[0], ("dp-cp", AllReduce, 2, 3 * 8));
    let mixed = |more: &[&str]| tiny(2, &[&["mixed_precision=bf16_mixed"], more].concat());
    assert_eq!(mixed(&[]).stages[0].traffic_bytes(TrafficKind::Gradients), 4 * PARAMETERS);
    let sharded = mixed(&["optimizer.use_distributed_optimizer=true"]);
    let shard = PARAMETERS / 2;
    assert_eq!(entries(&sharded, 0, TrafficKind::Gradients), [("dp-cp", ReduceScatter, 1, 4 * PARAMETERS)]);
    assert_eq!(entries(&sharded, 0, TrafficKind::Parameters), [("dp-cp", AllGather, 1, 2 * shard)]);
}

#[test]
fn full_shards_travel_for_each_micro_batch() {
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let plan = tiny(2, &[&full[..], &["mixed_precision=bf16_mixed", "train.global_batch_size=12"]].concat());
    // Three micro-batches; embedding, two blocks in each of two layers, head.
    assert_eq!(entries(&plan, 0, TrafficKind::Gradients), [("dp-cp", ReduceScatter, 3 * 6, 3 * 4 * PARAMETERS)]);
    // Forward and backward each gather, but the head stays between them.
    let gathered = 2 * (PARAMETERS - HEAD) + HEAD;
    assert_eq!(entries(&plan, 0, TrafficKind::Parameters), [("dp-cp", AllGather, 3 * 11, 3 * gathered)]);
    // A tied table is there for the embedding, for the head, and for the embedding again.
    let tied = ["model.share_embeddings_and_output_weights=true", "mixed_precision=bf16_mixed"];
    let plan = tiny(2, &[&full[..], &tied].concat());
    let layers = 2 * 49_280;
    assert_eq!(
        entries(&plan, 0, TrafficKind::Parameters),
        [("dp-cp", AllGather, 3 + 2 * 4 + 1, 3 * 32_768 + 2 * layers + 64)]
    );
}

#[test]
fn overlapped_reductions_go_by_buckets() {
    let overlap = ["ddp.overlap_grad_reduce=true", "ddp.bucket_size=40000"];
    let plan = tiny(2, &overlap);
    // Backward fills three buckets: head and last matrix of the second layer; the rest of that
    // layer and a matrix of the first; the remaining parameters.
    assert_eq!(entries(&plan, 0, TrafficKind::Gradients), [("dp-cp", AllReduce, 3, 4 * PARAMETERS)]);
    let three = tiny(3, &[&overlap[..], &["train.global_batch_size=6"]].concat());
    // Each bucket is padded separately.
    assert!(three.stages[0].traffic_bytes(TrafficKind::Gradients) > 4 * PARAMETERS);
}

#[test]
fn buckets_are_padded_to_suit_the_bus() {
    let distributed = "ddp.use_distributed_optimizer=true";
    let padded = |ranks: usize, more: &[&str]| {
        let batch = format!("train.global_batch_size={}", 2 * ranks);
        let plan = tiny(ranks, &[&[distributed, "ddp.pad_buckets_for_high_nccl_busbw=true", &batch], more].concat());
        let reductions = entries(&plan, 0, TrafficKind::Gradients)[0];
        assert_eq!(plan.stages[0].traffic_bytes(TrafficKind::Parameters), reductions.3 / ranks as u64);
        (reductions.2, reductions.3 / 4)
    };
    // 164160 elements are more than two and a half times 2^16.
    assert_eq!(padded(2, &[]), (1, 3 << 16));
    assert_eq!(padded(4, &[]), (1, 3 << 16));
    // 3 times 2^16 is also a multiple of three ranks.
    assert_eq!(padded(3, &[]), (1, 3 << 16));
    assert_eq!(padded(5, &[]), (1, 5 << 16));
    let (buckets, elements) = padded(2, &["ddp.overlap_grad_reduce=true", "ddp.bucket_size=40000"]);
    // 45120, 49280 and 69760 elements.
    assert_eq!((buckets, elements), (3, (1 + 1 + 2) << 16), "each by itself");
}

#[test]
fn odd_parameters_are_padded_to_equal_parts() {
    // A norm's 64 elements are cut into 21, 21 and 22, and so on.
    let plan = tiny(3, &["train.global_batch_size=6"]);
    let thirds = |rank: u64, count: u64| count * (rank + 1) / 3 - count * rank / 3;
    let counts: Vec<u64> =
        [32_768, 32_768, 64].into_iter().chain([64, 8_192, 4_096, 64, 24_576, 12_288].repeat(2)).collect();
    let part = (0..3).map(|rank| counts.iter().map(|count| thirds(rank, *count)).sum::<u64>()).max().unwrap();
    assert!(3 * part > PARAMETERS);
    assert_eq!(entries(&plan, 0, TrafficKind::Gradients), [("dp-cp", AllReduce, 1, 4 * 3 * part)]);
}

#[test]
fn a_tied_embedding_is_reduced_between_its_stages() {
    let tied = ["model.pipeline_model_parallel_size=2", "model.share_embeddings_and_output_weights=true"];
    let plan = tiny(2, &tied);
    for stage in 0..2 {
        assert_eq!(entries(&plan, stage, TrafficKind::TiedEmbedding), [("embedding", AllReduce, 1, 4 * 32_768)]);
    }
    let sharded = tiny(4, &[&tied[..], &["ddp.use_distributed_optimizer=true"]].concat());
    assert_eq!(sharded.stages[0].traffic_bytes(TrafficKind::TiedEmbedding), 4 * 32_768 / 2);
    assert_eq!(tiny(1, &tied[1..]).stages[0].traffic_bytes(TrafficKind::TiedEmbedding), 0);
}

#[test]
fn context_parallel_ranks_gather_keys_and_values() {
    let plan = tiny(2, &["model.context_parallel_size=2"]);
    // All tokens of both sequences: half of them are this rank's.
    let keys = 128 * 32 * 4;
    // Keys and values, two layers, two micro-batches.
    let expected = [("cp", AllGather, 8, 8 * keys / 2), ("cp", ReduceScatter, 8, 8 * keys)];
    assert_eq!(entries(&plan, 0, TrafficKind::Context), expected);
}

#[test]
fn experts_exchange_the_tokens_they_are_sent() {
    let all_to_all = "model.moe_token_dispatcher_type=alltoall";
    let plan = tiny(2, &[&MOE[..], &["model.expert_model_parallel_size=2", all_to_all]].concat());
    // One micro-batch, two layers: there and back, forward and backward. Two experts a token. And
    // how many go to each of four.
    let rows = 2 * 4 * 2 * STREAM;
    assert_eq!(entries(&plan, 0, TrafficKind::Expert), [("ep", AllToAll, 2 * (4 + 1), rows + 2 * 4 * 8)]);
    let experts = 2 * 4 * 3 * 64 * 96;
    let dense = plan.parameters.total - experts;
    // Each expert is on one rank, so only dense gradients are reduced.
    assert_eq!(entries(&plan, 0, TrafficKind::Gradients), [("dp-cp", AllReduce, 1, 4 * dense)]);
    let gathered = tiny(2, &[&MOE[..], &["model.expert_model_parallel_size=2"]].concat());
    let (choices, weights) = (128 * 2 * 8, 128 * 2 * 4);
    let expected = [
        ("ep", AllGather, 2 * 4, 2 * (choices + STREAM + weights + STREAM)),
        ("ep", ReduceScatter, 2 * 3, 2 * 2 * (STREAM + weights + STREAM)),
    ];
    assert_eq!(entries(&gathered, 0, TrafficKind::Expert), expected);
}

#[test]
fn experts_are_cut_in_the_region_of_their_block() {
    let split = ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"];
    let plan = tiny(2, &[&MOE[..], &split].concat());
    assert_eq!(entries(&plan, 0, TrafficKind::Expert), []);
    let bytes = |plan: &Plan| plan.stages[0].traffic_bytes(TrafficKind::Tensor);
    // Two micro-batches and two layers of scores of four experts: half gathered in forward, the
    // whole scattered in backward.
    let scores = 128 * 4 * 4;
    assert_eq!(bytes(&plan) - bytes(&tiny(2, &split)), 2 * 2 * (scores / 2 + scores));
    // Whole experts: each rank sends its half of the tokens, and gathers no weights. The router's
    // statistics are of all tokens.
    let whole = ["model.expert_tensor_parallel_size=1", "model.expert_model_parallel_size=2"];
    let plan = tiny(2, &[&MOE[..], &split, &whole, &["model.moe_token_dispatcher_type=alltoall"]].concat());
    let rows = 2 * 2 * 4 * 2 * STREAM / 2;
    let expected = [("tp", AllReduce, 4, 4 * (3 * 4 + 1) * 8), ("ep", AllToAll, 2 * 2 * (4 + 1), rows + 2 * 2 * 4 * 8)];
    assert_eq!(entries(&plan, 0, TrafficKind::Expert), expected);
}
