//! `[dist]`, `[ddp]` and `[comm_overlap]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{BootstrapBackend, DType, DistributedBackend, ShardingStrategy, SharpGroup};
use super::super::field::AnyValue;
use super::super::limits::Limits;
use super::super::section::section;

section! {
    /// Process-group start-up.
    pub struct DistributedInitConfig {
        /// Collective library.
        distributed_backend: DistributedBackend = DistributedBackend::Nccl;
        /// Timeout of a collective, in minutes.
        distributed_timeout_minutes: usize = 10, Limits::POSITIVE;
        /// Timeout from the end of the first step on, in seconds. Saves and evaluations must not hold a rank up for longer.
        distributed_timeout_seconds_after_init: Option<usize> = None, Limits::POSITIVE;
        /// Stages reduce at the same time.
        align_grad_reduce: bool = true;
        /// Device index on this machine; the launcher sets it.
        local_rank: usize = 0;
        /// Leave initialization to the caller.
        lazy_mpu_init: bool = false;
        /// Shard what `ddp.data_parallel_sharding_strategy` says.
        use_megatron_fsdp: bool = false;
        /// PyTorch FSDP.
        use_torch_fsdp2: bool = false;
        /// File of communicator options.
        nccl_communicator_config_path: Option<PathBuf> = None;
        /// Rank order tp-cp-ep-pp-dp.
        use_tp_pp_dp_mapping: bool = false;
        /// Create gloo twins of groups.
        use_gloo_process_groups: bool = true;
        /// In-network reduction.
        use_sharp: bool = false;
        /// Group that uses it.
        sharp_enabled_group: Option<SharpGroup> = None;
        /// Prioritized groups.
        high_priority_stream_groups: Vec<String> = Vec::new();
        /// Collective trace.
        flight_recorder_dump_path: Option<PathBuf> = None;
        /// Trace entries.
        flight_recorder_trace_buffer_size: usize = 2000;
        /// Write the trace at a timeout.
        flight_recorder_dump_on_timeout: bool = true;
        /// Include stack traces.
        flight_recorder_include_stack_trace: bool = false;
        /// Only active entries.
        flight_recorder_include_only_active: bool = true;
        /// Also when executing.
        flight_recorder_extra_dump_on_exec: bool = true;
        /// No fusion by a compiler.
        disable_jit_fuser: bool = false;
        /// Each rank sees only its own device, which the launcher has chosen.
        external_gpu_device_mapping: bool = false;
        /// Experimental features.
        enable_megatron_core_experimental: bool = false;
        /// Explicit group collection.
        use_decentralized_pg: bool = false;

        alias "lazy_init" = lazy_mpu_init;
    }
}

section! {
    /// Gradient buffers and reductions. One rank reduces nothing: settings that say only how replicas
    /// reduce have nothing to do there.
    pub struct DistributedDataParallelConfig {
        /// Gradient buffers and reduction in 32 bits.
        grad_reduce_in_fp32: bool = false;
        /// Reduce during backward; nothing to do on one rank.
        overlap_grad_reduce: bool = false;
        /// Gather parameters during forward.
        overlap_param_gather: bool = false;
        /// All stages gather at the same time.
        align_param_gather: bool = false;
        /// Reduce-scatter gradients.
        use_distributed_optimizer: bool = false;
        /// Groups of replicas that each shard optimizer state by themselves.
        num_distributed_optimizer_instances: usize = 1, Limits::POSITIVE;
        /// Fail on NaN and infinite gradients.
        check_for_nan_in_grad: bool = false;
        /// Fail on unusually large gradients.
        check_for_large_grads: bool = false;
        /// Elements per bucket of a reduction; nothing to do on one rank.
        bucket_size: Option<usize> = None, Limits::POSITIVE;
        /// Bucket sizes that suit the bus; nothing to do on one rank.
        pad_buckets_for_high_nccl_busbw: bool = false;
        /// Sum in 32 bits what travels in 16; nothing to do on one rank.
        reduce_scatter_with_fp32_accumulation: bool = false;
        /// Parameters accumulated in 32 bits locally.
        param_name_patterns_for_fp32_local_accumulation: Vec<String> = Vec::new();
        /// Average in the collective instead of scaling first; nothing to do on one rank.
        average_in_collective: bool = false;
        /// Gather 8-bit weights.
        fp8_param_gather: bool = false;
        /// Share gradient buffers with the mxfp8 gather.
        reuse_grad_buf_for_mxfp8_param_ag: bool = false;
        /// Shard what `ddp.data_parallel_sharding_strategy` says.
        use_megatron_fsdp: bool = false;
        /// Deprecated alias of the above.
        use_custom_fsdp: bool = false;
        /// What replicas divide; needs `use_megatron_fsdp`.
        data_parallel_sharding_strategy: ShardingStrategy = ShardingStrategy::NoShard;
        /// What is sharded between groups.
        outer_dp_sharding_strategy: ShardingStrategy = ShardingStrategy::NoShard;
        /// Fold the division into the reduction; nothing to do on one rank.
        gradient_reduce_div_fusion: bool = true;
        /// Size of a communication unit.
        suggested_communication_unit_size: Option<usize> = None, Limits::POSITIVE;
        /// Cache of transposed 8-bit weights.
        keep_fp8_transpose_cache: bool = false;
        /// User buffers.
        nccl_ub: bool = false;
        /// No symmetric registration.
        disable_symmetric_registration: bool = false;
        /// Manual registration.
        fsdp_manual_registration: bool = false;
        /// Persistent buffers.
        fsdp_double_buffer: bool = false;
        /// Persistent buffers when allocation fails.
        fsdp_db_use_persist_buf_on_alloc_fail: bool = false;
        /// Gather when synchronization starts.
        fsdp_all_gather_in_start_param_sync: bool = true;
        /// Delay weight gradients.
        delay_wgrad_compute: bool = false;
        /// Sharded master weights.
        megatron_fsdp_main_params_dtype: Option<DType> = Some(DType::Float32);
        /// Sharded master gradients.
        megatron_fsdp_main_grads_dtype: Option<DType> = None;
        /// Sharded gradient communication.
        megatron_fsdp_grad_comm_dtype: Option<DType> = None;
        /// A separate gradient attribute.
        megatron_fsdp_use_decoupled_grad: bool = false;
    }
}

section! {
    /// Communication overlap presets.
    pub struct CommOverlapConfig {
        /// Overlap of tensor-parallel collectives.
        tp_comm_overlap: bool = false;
        /// User-buffer table.
        tp_comm_overlap_cfg: Option<AnyValue> = None;
        /// Start-up backend.
        tp_comm_bootstrap_backend: Option<BootstrapBackend> = Some(BootstrapBackend::Nccl);
        /// Overlap of stage transfers.
        overlap_p2p_comm: Option<bool> = None;
        /// Batched stage transfers.
        batch_p2p_comm: Option<bool> = None;
        /// Reduce during backward.
        overlap_grad_reduce: Option<bool> = None;
        /// Gather during forward.
        overlap_param_gather: Option<bool> = None;
        /// Gather while stepping.
        overlap_param_gather_with_optimizer_step: Option<bool> = None;
        /// Stages gather at the same time.
        align_param_gather: Option<bool> = None;
        /// Elements per bucket.
        bucket_size: Option<usize> = None, Limits::POSITIVE;
        /// Embedding weight gradient during the flush.
        defer_embedding_wgrad_compute: Option<bool> = None;
        /// Micro-batches deferred.
        wgrad_deferral_limit: Option<i64> = None;
        /// Overlap of the expert exchange.
        overlap_moe_expert_parallel_comm: Option<bool> = None;
        /// Delay weight gradients.
        delay_wgrad_compute: Option<bool> = None;
        /// Filled in by upstream's container.
        data_parallel_size: Option<usize> = None, Limits::POSITIVE;
    }
}
