//! `[dist]`, `[ddp]` and `[comm_overlap]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{BootstrapBackend, DType, DistributedBackend, ShardingStrategy, SharpGroup};
use super::super::field::AnyValue;
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;

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
        /// Device index on this node; the launcher sets it.
        local_rank: usize = 0 => no_counterpart("the device number of a rank; the launcher counts the ranks of a node");
        /// Leave initialization to the caller.
        lazy_mpu_init: bool = false
            => no_counterpart("groups made by the caller of the Python library; in Rust, pretrain takes RunOptions.groups");
        /// Shard according to `ddp.data_parallel_sharding_strategy`.
        use_megatron_fsdp: bool = false;
        /// PyTorch FSDP.
        use_torch_fsdp2: bool = false => not_built("PyTorch's sharding; use_megatron_fsdp shards the same tensors");
        /// File of communicator options.
        nccl_communicator_config_path: Option<PathBuf> = None
            => no_counterpart("a file of NCCL's options for each group");
        /// Rank order tp-cp-ep-pp-dp: stages are neighbours instead of replicas.
        use_tp_pp_dp_mapping: bool = false,
            idle_unless("model.pipeline_model_parallel_size > 1: it says whether stages or replicas are neighbours");
        /// Creates a second, gloo group for each group. Bridge has none, as false states.
        use_gloo_process_groups: bool = true
            => no_counterpart("a second set of groups for host memory; collectives work on host memory")
            .inert(&["false"]);
        /// In-network reduction.
        use_sharp: bool = false => no_counterpart("reductions in the switches of NVIDIA's network");
        /// Group that uses it.
        sharp_enabled_group: Option<SharpGroup> = None => no_counterpart("the group of use_sharp");
        /// Prioritized groups.
        high_priority_stream_groups: Vec<String> = Vec::new()
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
        /// Disables fusion by PyTorch's compiler. Bridge has none, as true states.
        disable_jit_fuser: bool = false => no_counterpart("PyTorch's compiler of fused operations").inert(&["true"]);
        /// Each rank sees only its own device, which the launcher has chosen.
        external_gpu_device_mapping: bool = false;
        /// Experimental features.
        enable_megatron_core_experimental: bool = false => no_counterpart("experimental parts of Megatron Core");
        /// Explicit group collection: groups are arguments here, which true states.
        use_decentralized_pg: bool = false
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
        overlap_grad_reduce: bool = false;
        /// Gather parameters during forward; no effect on one rank.
        overlap_param_gather: bool = false;
        /// All stages gather at the same time: after the step, which they end together.
        align_param_gather: bool = false,
            excludes("ddp.data_parallel_sharding_strategy = optim_grads_params: a layer is gathered when it runs")
            => not_built("a choice of when stages gather parameters; they begin together when the step ends").inert(&["true"]);
        /// Reduce-scatter gradients.
        use_distributed_optimizer: bool = false;
        /// Instances, that is groups of replicas that each shard the optimizer state separately.
        num_distributed_optimizer_instances: usize = 1, Limits::POSITIVE;
        /// Fail on NaN and infinite gradients.
        check_for_nan_in_grad: bool = false;
        /// Fail on unusually large gradients.
        check_for_large_grads: bool = false
            => not_built("a failure on unusually large gradients; check_for_nan_in_grad fails on infinite ones");
        /// Elements per bucket of an overlapped reduction or gather; no effect on one rank.
        bucket_size: Option<usize> = None, Limits::POSITIVE;
        /// Pad sharded buckets to a multiple of 2^16 elements; no effect on one rank.
        pad_buckets_for_high_nccl_busbw: bool = false;
        /// Sum 16-bit gradients in 32 bits, which is always done; no effect on one rank.
        reduce_scatter_with_fp32_accumulation: bool = false;
        /// Parameters accumulated in 32 bits locally.
        param_name_patterns_for_fp32_local_accumulation: Vec<String> = Vec::new()
            => not_built("some parameters accumulated in 32 bits; grad_reduce_in_fp32 does it for all");
        /// Average in the collective instead of scaling first; no effect on one rank.
        average_in_collective: bool = false, excludes("model.calculate_per_token_loss");
        /// Gather weights of 8-bit layers as codes of 8 bits, where parameters are sharded and
        /// `model.fp8_recipe` is "tensorwise" or "delayed".
        fp8_param_gather: bool = false;
        /// Share gradient buffers with the mxfp8 gather.
        reuse_grad_buf_for_mxfp8_param_ag: bool = false
            => not_built("one buffer for gradients and gathered 8-bit weights; there are no 8-bit weights");
        /// Shard according to `ddp.data_parallel_sharding_strategy`.
        use_megatron_fsdp: bool = false;
        /// Deprecated alias of the above.
        use_custom_fsdp: bool = false;
        /// State that replicas shard; needs `use_megatron_fsdp`.
        data_parallel_sharding_strategy: ShardingStrategy = ShardingStrategy::NoShard;
        /// State that is sharded between groups.
        outer_dp_sharding_strategy: ShardingStrategy = ShardingStrategy::NoShard
            => not_built("a second level of sharding; num_distributed_optimizer_instances replicates one level");
        /// No pass over gradients to divide them.
        gradient_reduce_div_fusion: bool = true
            => not_built("a separate division of gradients; the loss is divided before backward, or the collective averages");
        /// Size of a communication unit.
        suggested_communication_unit_size: Option<usize> = None, Limits::POSITIVE
            => not_built("the number of elements gathered at once; parameters are gathered layer by layer");
        /// Cache of transposed 8-bit weights.
        keep_fp8_transpose_cache: bool = false => not_built("transposed copies of the 8-bit weights of model.fp8");
        /// User buffers.
        nccl_ub: bool = false => no_counterpart("buffers registered with NCCL");
        /// No symmetric registration.
        disable_symmetric_registration: bool = false => no_counterpart("how nccl_ub registers buffers");
        /// Manual registration.
        fsdp_manual_registration: bool = false => no_counterpart("when nccl_ub registers buffers");
        /// Persistent buffers.
        fsdp_double_buffer: bool = false
            => no_counterpart("two persistent buffers for gathered parameters; each is allocated when it is gathered");
        /// Persistent buffers when allocation fails.
        fsdp_db_use_persist_buf_on_alloc_fail: bool = false
            => no_counterpart("what fsdp_double_buffer does if memory is short");
        /// Gather when synchronization starts.
        fsdp_all_gather_in_start_param_sync: bool = true
            => no_counterpart("where Megatron's wrapper starts to gather; a layer is gathered before it runs");
        /// Delay weight gradients.
        delay_wgrad_compute: bool = false
            => not_built("weight gradients deferred to overlap with model.overlap_moe_expert_parallel_comm");
        /// Sharded master weights.
        megatron_fsdp_main_params_dtype: Option<DType> = Some(DType::Float32)
            => not_built("a separate dtype for sharded master weights; optimizer.main_params_dtype is that of all");
        /// Sharded master gradients.
        megatron_fsdp_main_grads_dtype: Option<DType> = None
            => not_built("a separate dtype for sharded gradients; grad_reduce_in_fp32 says in which all are summed");
        /// Sharded gradient communication.
        megatron_fsdp_grad_comm_dtype: Option<DType> = None
            => not_built("a separate dtype for reductions; grad_reduce_in_fp32 chooses between the model's and 32 bits");
        /// A separate gradient attribute.
        megatron_fsdp_use_decoupled_grad: bool = false
            => no_counterpart("a second gradient attribute on PyTorch's parameters");
    }
}

section! {
    /// Communication overlap presets, copied onto ddp.
    pub struct CommOverlapConfig {
        /// Overlap of tensor-parallel collectives.
        tp_comm_overlap: bool = false
            => not_built("tensor-parallel collectives overlapped with parts of their matrix multiplications");
        /// User-buffer table.
        tp_comm_overlap_cfg: Option<AnyValue> = None
            => no_counterpart("the table of Transformer Engine's user buffers for tp_comm_overlap");
        /// Start-up backend.
        tp_comm_bootstrap_backend: Option<BootstrapBackend> = Some(BootstrapBackend::Nccl)
            => no_counterpart("the start-up of Transformer Engine's user buffers for tp_comm_overlap");
        /// Overlap of stage transfers, as `model.overlap_p2p_comm`.
        overlap_p2p_comm: Option<bool> = None
            => not_built("stage transfers that do not overlap; they always overlap").inert(&["true", "false"]);
        /// Batched stage transfers, as `model.batch_p2p_comm`.
        batch_p2p_comm: Option<bool> = None
            => no_counterpart("sends and receives in one NCCL call; each transfer is a separate call").inert(&["true", "false"]);
        /// Reduce gradients during backward; null means true with a distributed optimizer.
        overlap_grad_reduce: Option<bool> = None;
        /// Gather parameters during forward; null means true with a distributed optimizer.
        overlap_param_gather: Option<bool> = None;
        /// Gather while stepping.
        overlap_param_gather_with_optimizer_step: Option<bool> = None
            => not_built("gathering parameters while others are updated; ddp.overlap_param_gather gathers in the next forward").inert(&["false"]);
        /// Stages gather at the same time.
        align_param_gather: Option<bool> = None
            => not_built("a choice of when stages gather parameters; they begin together when the step ends")
            .inert(&["true", "false"]);
        /// Elements per bucket; null means 134217728 with a distributed optimizer.
        bucket_size: Option<usize> = None, Limits::POSITIVE;
        /// Embedding weight gradient during the flush.
        defer_embedding_wgrad_compute: Option<bool> = None
            => not_built("the output layer's weight gradient deferred to the flush; model.pipeline_schedule has \"zb_h1\"").inert(&["false"]);
        /// Micro-batches deferred.
        wgrad_deferral_limit: Option<i64> = None
            => not_built("how many micro-batches defer_embedding_wgrad_compute defers").inert(&["-1"]);
        /// Overlap of the expert exchange.
        overlap_moe_expert_parallel_comm: Option<bool> = None
            => not_built("token dispatch overlapped with the computation of another micro-batch").inert(&["false"]);
        /// Delay weight gradients.
        delay_wgrad_compute: Option<bool> = None
            => not_built("weight gradients deferred to overlap with overlap_moe_expert_parallel_comm").inert(&["false"]);
        /// Filled in by upstream's container; it must equal the derived data-parallel size.
        data_parallel_size: Option<usize> = None, Limits::POSITIVE;
    }
}
