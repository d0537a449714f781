//! `[dist]`, `[ddp]` and `[comm_overlap]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{DType, DistributedBackend, ShardingStrategy};
use super::super::field::AnyValue;
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::refused_values::one_or_null;
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;

/// Condition: replicas shard optimizer state.
const SHARDED: &str = "ddp.use_distributed_optimizer | optimizer.use_distributed_optimizer | \
                       ddp.data_parallel_sharding_strategy != no_shard: nothing is sharded otherwise";
/// Condition: fully sharded data parallelism, under any of the names of the setting.
const FSDP: &str = "ddp.use_megatron_fsdp | dist.use_megatron_fsdp | ddp.use_custom_fsdp";

section! {
    /// Process-group start-up.
    pub struct DistributedInitConfig {
        /// Communication between ranks with one CUDA device each: nccl (in builds with the cargo
        /// feature nccl), or gloo, which means through host memory. Threads that share a GPU
        /// exchange its memory directly; all other ranks communicate through host memory.
        distributed_backend: DistributedBackend = DistributedBackend::Nccl
            => no_counterpart("no choice without CUDA devices; the launcher (threads or mpi) connects the ranks")
            .inert(&["gloo"]);
        /// Timeout of a collective, in minutes.
        distributed_timeout_minutes: usize = 10, Limits::POSITIVE;
        /// Timeout after the first step, in seconds. Saves and evaluations must not delay a rank
        /// for longer.
        distributed_timeout_seconds_after_init: Option<usize> = None, Limits::POSITIVE;
        /// All stages start overlapped reductions when the first stage does, which finishes last;
        /// with false each starts when its own gradients are complete.
        align_grad_reduce: bool = true;
        refused local_rank = 0_usize, "Device index on this node; the launcher sets it."
            => no_counterpart("the device number of a rank; the launcher counts the ranks of a node");
        refused lazy_mpu_init = false, "Leave initialization to the caller."
            => no_counterpart("groups made by the caller of the Python library; in Rust, pretrain takes RunOptions.groups");
        /// Shard according to `ddp.data_parallel_sharding_strategy`.
        use_megatron_fsdp: bool = false;
        refused use_torch_fsdp2 = false, "PyTorch FSDP."
            => not_built("PyTorch's sharding; use_megatron_fsdp shards the same tensors");
        refused nccl_communicator_config_path = None::<PathBuf>, "File of communicator options."
            => no_counterpart("a file of NCCL's options for each group");
        /// Rank order tp-cp-ep-pp-dp: stages are neighbours instead of replicas.
        use_tp_pp_dp_mapping: bool = false,
            idle_unless("model.pipeline_model_parallel_size > 1: it says whether stages or replicas are neighbours"),
            excludes(FSDP);
        refused use_gloo_process_groups = true,
            "Creates a second, gloo group for each group. Bridge has none, as false states."
            => no_counterpart("a second set of groups for host memory; collectives work on host memory").inert(&["false"]);
        refused use_sharp = false, "In-network reduction."
            => no_counterpart("reductions in the switches of NVIDIA's network");
        refused sharp_enabled_group = one_or_null(None, &["dp", "dp_replica"]), "Group that uses it."
            => no_counterpart("the group of use_sharp");
        refused high_priority_stream_groups = Vec::<String>::new(), "Prioritized groups."
            => no_counterpart("high-priority CUDA streams");
        /// Prefix of the files to which the flight recorder writes the last calls of each rank when
        /// a run fails; the rank's number follows it.
        flight_recorder_dump_path: Option<PathBuf> = None,
            needs("dist.flight_recorder_dump_on_timeout | dist.flight_recorder_extra_dump_on_exec: the file is never written otherwise");
        /// Number of calls of a rank that the flight recorder keeps.
        flight_recorder_trace_buffer_size: usize = 2000, Limits::POSITIVE,
            idle_unless("dist.flight_recorder_dump_path");
        /// True if the flight recorder writes when ranks waited too long for another one.
        flight_recorder_dump_on_timeout: bool = true, idle_unless("dist.flight_recorder_dump_path");
        /// True if the flight recorder keeps a backtrace with each call, which takes longer than
        /// most calls.
        flight_recorder_include_stack_trace: bool = false, idle_unless("dist.flight_recorder_dump_path");
        /// True if the flight recorder leaves out completed calls.
        flight_recorder_include_only_active: bool = true, idle_unless("dist.flight_recorder_dump_path");
        /// True if the flight recorder writes at other errors, panics and signals too.
        flight_recorder_extra_dump_on_exec: bool = true, idle_unless("dist.flight_recorder_dump_path");
        refused disable_jit_fuser = false, "Disables fusion by PyTorch's compiler. Bridge has none, as true states."
            => no_counterpart("PyTorch's compiler of fused operations").inert(&["true"]);
        /// Each rank sees only its own device, which the launcher has chosen.
        external_gpu_device_mapping: bool = false, excludes("device = flex | = cpu: it concerns GPUs");
        refused enable_megatron_core_experimental = false, "Experimental features."
            => no_counterpart("experimental parts of Megatron Core");
        refused use_decentralized_pg = false, "Explicit group collection: groups are arguments here, which true states."
            => no_counterpart("global process groups; they are arguments here").inert(&["true"]);

        alias "lazy_init" = lazy_mpu_init;
    }
}

section! {
    /// Gradient buffers and reductions. On one rank, settings about how replicas reduce have no
    /// effect.
    pub struct DistributedDataParallelConfig {
        /// Gradient buffers and reduction in 32 bits.
        grad_reduce_in_fp32: bool = false;
        /// Reduce gradients during backward; no effect on one rank.
        overlap_grad_reduce: bool = false,
            excludes("model.pipeline_schedule = zb_h1: gradients of weights come after the backward passes, so nothing is left for a reduction to hide behind");
        /// Gather parameters during forward; no effect on one rank.
        overlap_param_gather: bool = false;
        refused align_param_gather = false,
            "All stages gather at the same time: after the step, which they end together.",
            excludes("ddp.data_parallel_sharding_strategy = optim_grads_params: a layer is gathered when it runs")
            => not_built("a choice of when stages gather parameters; they begin together when the step ends").inert(&["true"]);
        /// Reduce-scatter gradients.
        use_distributed_optimizer: bool = false;
        /// Instances, that is groups of replicas that each shard the optimizer state separately.
        num_distributed_optimizer_instances: usize = 1, Limits::POSITIVE, needs(SHARDED);
        /// Fail on NaN and infinite gradients.
        check_for_nan_in_grad: bool = false;
        /// Report gradients whose norm is ten times the largest of the first hundred, by bucket.
        check_for_large_grads: bool = false;
        /// Elements per bucket of an overlapped reduction or gather; no effect on one rank.
        bucket_size: Option<usize> = None, Limits::POSITIVE,
            idle_unless("ddp.overlap_grad_reduce | ddp.overlap_param_gather | optimizer.overlap_param_gather: there is one bucket"),
            idle_unless("ddp.data_parallel_sharding_strategy = no_shard | = optim: each segment is one bucket");
        /// Pad sharded buckets to a multiple of 2^16 elements; no effect on one rank.
        pad_buckets_for_high_nccl_busbw: bool = false, needs(SHARDED);
        /// Sum 16-bit gradients in 32 bits, which is always done; no effect on one rank.
        reduce_scatter_with_fp32_accumulation: bool = false, needs(SHARDED),
            needs("model.bf16: it is about gradients that are reduce-scattered in bfloat16"),
            needs("ddp.grad_reduce_in_fp32 = false: it is about gradients that are reduce-scattered in bfloat16");
        refused param_name_patterns_for_fp32_local_accumulation = Vec::<String>::new(),
            "Parameters accumulated in 32 bits locally."
            => not_built("some parameters accumulated in 32 bits; grad_reduce_in_fp32 does it for all");
        /// Average in the collective instead of scaling first; no effect on one rank.
        average_in_collective: bool = false, excludes("model.calculate_per_token_loss");
        /// Gather weights of 8-bit layers as codes of 8 bits, where parameters are sharded and
        /// `model.fp8_recipe` is "tensorwise" or "delayed".
        fp8_param_gather: bool = false, idle_unless("model.fp8");
        refused reuse_grad_buf_for_mxfp8_param_ag = false, "Share gradient buffers with the mxfp8 gather."
            => not_built("one buffer for gradients and gathered 8-bit weights; there are no 8-bit weights").execution_only();
        /// Shard according to `ddp.data_parallel_sharding_strategy`.
        use_megatron_fsdp: bool = false;
        /// Deprecated alias of the above.
        use_custom_fsdp: bool = false;
        /// State that replicas shard; needs `use_megatron_fsdp`.
        data_parallel_sharding_strategy: ShardingStrategy = ShardingStrategy::NoShard, needs(FSDP);
        refused outer_dp_sharding_strategy = ShardingStrategy::NoShard, "State that is sharded between groups."
            => not_built("a second level of sharding; num_distributed_optimizer_instances replicates one level");
        refused gradient_reduce_div_fusion = true, "No pass over gradients to divide them."
            => not_built("a separate division of gradients; the loss is divided before backward, or the collective averages");
        refused suggested_communication_unit_size = None::<usize>, "Size of a communication unit.", Limits::POSITIVE
            => not_built("the number of elements gathered at once; parameters are gathered layer by layer");
        refused keep_fp8_transpose_cache = false, "Cache of transposed 8-bit weights."
            => not_built("transposed copies of the 8-bit weights of model.fp8");
        refused nccl_ub = false, "User buffers." => no_counterpart("buffers registered with NCCL");
        refused disable_symmetric_registration = false, "No symmetric registration."
            => no_counterpart("how nccl_ub registers buffers");
        refused fsdp_manual_registration = false, "Manual registration."
            => no_counterpart("when nccl_ub registers buffers");
        refused fsdp_double_buffer = false, "Persistent buffers."
            => no_counterpart("two persistent buffers for gathered parameters; each is allocated when it is gathered");
        refused fsdp_db_use_persist_buf_on_alloc_fail = false, "Persistent buffers when allocation fails."
            => no_counterpart("what fsdp_double_buffer does if memory is short");
        refused fsdp_all_gather_in_start_param_sync = true, "Gather when synchronization starts."
            => no_counterpart("where Megatron's wrapper starts to gather; a layer is gathered before it runs");
        refused delay_wgrad_compute = false, "Delay weight gradients."
            => not_built("weight gradients deferred to overlap with model.overlap_moe_expert_parallel_comm").execution_only();
        refused megatron_fsdp_main_params_dtype = Some(DType::Float32), "Sharded master weights."
            => not_built("a separate dtype for sharded master weights; optimizer.main_params_dtype is that of all");
        refused megatron_fsdp_main_grads_dtype = None::<DType>, "Sharded master gradients."
            => not_built("a separate dtype for sharded gradients; grad_reduce_in_fp32 says in which all are summed");
        refused megatron_fsdp_grad_comm_dtype = None::<DType>, "Sharded gradient communication."
            => not_built("a separate dtype for reductions; grad_reduce_in_fp32 chooses between the model's and 32 bits");
        refused megatron_fsdp_use_decoupled_grad = false, "A separate gradient attribute."
            => no_counterpart("a second gradient attribute on PyTorch's parameters");
    }
}

section! {
    /// Communication overlap presets, copied onto ddp.
    pub struct CommOverlapConfig {
        // The first row of a table has a field, even if it is refused.
        /// Overlap of tensor-parallel collectives.
        tp_comm_overlap: bool = false
            => not_built("tensor-parallel collectives overlapped with parts of their matrix multiplications");
        refused tp_comm_overlap_cfg = None::<AnyValue>, "User-buffer table."
            => no_counterpart("the table of Transformer Engine's user buffers for tp_comm_overlap");
        refused tp_comm_bootstrap_backend = one_or_null(Some("nccl"), &["nccl", "mpi", "gloo"]), "Start-up backend."
            => no_counterpart("the start-up of Transformer Engine's user buffers for tp_comm_overlap");
        refused overlap_p2p_comm = None::<bool>, "Overlap of stage transfers, as `model.overlap_p2p_comm`."
            => not_built("stage transfers that do not overlap; they always overlap").inert(&["true", "false"]);
        refused batch_p2p_comm = None::<bool>, "Batched stage transfers, as `model.batch_p2p_comm`."
            => no_counterpart("sends and receives in one NCCL call; each transfer is a separate call").inert(&["true", "false"]);
        /// Reduce gradients during backward; null means true with a distributed optimizer.
        overlap_grad_reduce: Option<bool> = None;
        /// Gather parameters during forward; null means true with a distributed optimizer.
        overlap_param_gather: Option<bool> = None;
        refused overlap_param_gather_with_optimizer_step = None::<bool>, "Gather while stepping."
            => not_built("gathering parameters while others are updated; ddp.overlap_param_gather gathers in the next forward").inert(&["false"]);
        refused align_param_gather = None::<bool>, "Stages gather at the same time."
            => not_built("a choice of when stages gather parameters; they begin together when the step ends").inert(&["true", "false"]);
        /// Elements per bucket; null means 134217728 with a distributed optimizer.
        bucket_size: Option<usize> = None, Limits::POSITIVE;
        refused defer_embedding_wgrad_compute = None::<bool>, "Embedding weight gradient during the flush."
            => not_built("the output layer's weight gradient deferred to the flush; model.pipeline_schedule has \"zb_h1\"").inert(&["false"]);
        refused wgrad_deferral_limit = None::<i64>, "Micro-batches deferred."
            => not_built("how many micro-batches defer_embedding_wgrad_compute defers").inert(&["-1"]);
        refused overlap_moe_expert_parallel_comm = None::<bool>, "Overlap of the expert exchange."
            => not_built("token dispatch overlapped with the computation of another micro-batch").inert(&["false"]).execution_only();
        refused delay_wgrad_compute = None::<bool>, "Delay weight gradients."
            => not_built("weight gradients deferred to overlap with overlap_moe_expert_parallel_comm").inert(&["false"]).execution_only();
        /// Filled in by upstream's container; it must equal the derived data-parallel size.
        data_parallel_size: Option<usize> = None, Limits::POSITIVE;
    }
}
