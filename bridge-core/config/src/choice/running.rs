//! Choices of checkpoints, ranks and resilience.

choices! {
    /// Start-up backend of tensor-parallel overlap.
    pub enum BootstrapBackend {
        /// NCCL.
        Nccl = "nccl",
        /// MPI.
        Mpi = "mpi",
        /// Through host memory.
        Gloo = "gloo",
    }

    /// Reaction to a damaged checkpoint. Ours.
    pub enum OnDamaged {
        /// Stop.
        Error = "error",
        /// Use the newest intact one before it, and report it.
        Fallback = "fallback",
    }

    /// Format of a checkpoint. `safetensors` is ours and the only one implemented.
    pub enum CkptFormat {
        /// Safetensors shards with metadata.
        Safetensors = "safetensors",
        /// Upstream's plain format.
        Torch = "torch",
        /// Upstream's distributed format.
        TorchDist = "torch_dist",
        /// PyTorch DCP.
        TorchDcp = "torch_dcp",
        /// Megatron FSDP.
        FsdpDtensor = "fsdp_dtensor",
    }

    /// Kind of a temporary checkpoint.
    pub enum NonPersistentType {
        /// Shared storage.
        Global = "global",
        /// Local storage.
        Local = "local",
        /// Memory.
        InMemory = "in_memory",
    }

    /// Layout of local checkpoints.
    pub enum LocalCkptAlgo {
        /// Split over ranks.
        FullyParallel = "fully_parallel",
        /// One file.
        Atomic = "atomic",
    }

    /// Exchange of loaded shards.
    pub enum ExchangeAlgo {
        /// Broadcast.
        Broadcast = "broadcast",
        /// Gather in rounds.
        GatherRounds = "gather_rounds",
        /// Gather objects.
        GatherObject = "gather_object",
    }

    /// Group that shares checkpoint work.
    pub enum CkptGroup {
        /// Data parallel.
        Dp = "dp",
        /// Expert data parallel.
        EpDp = "ep_dp",
    }

    /// Background saving implementation.
    pub enum AsyncStrategy {
        /// Resiliency extension.
        Nvrx = "nvrx",
        /// Core.
        Mcore = "mcore",
    }

    /// Start method of background writers.
    pub enum AsyncMpMode {
        /// Fork.
        Fork = "fork",
        /// Spawn.
        Spawn = "spawn",
        /// Fork server.
        ForkServer = "forkserver",
    }

    /// Reaction to unexpected or missing checkpoint keys.
    pub enum DistCkptStrictness {
        /// Assume none.
        AssumeOkUnexpected = "assume_ok_unexpected",
        /// Log the unexpected.
        LogUnexpected = "log_unexpected",
        /// Log all.
        LogAll = "log_all",
        /// Fail on the unexpected.
        RaiseUnexpected = "raise_unexpected",
        /// Fail on all.
        RaiseAll = "raise_all",
        /// Return the unexpected.
        ReturnUnexpected = "return_unexpected",
        /// Return all.
        ReturnAll = "return_all",
        /// Ignore all.
        IgnoreAll = "ignore_all",
    }

    /// State that fully sharded data parallelism shards.
    pub enum ShardingStrategy {
        /// No sharding.
        NoShard = "no_shard",
        /// Optimizer states.
        Optim = "optim",
        /// And gradients.
        OptimGrads = "optim_grads",
        /// And parameters.
        OptimGradsParams = "optim_grads_params",
    }

    /// Collective library.
    pub enum DistributedBackend {
        /// NCCL.
        Nccl = "nccl",
        /// Gloo.
        Gloo = "gloo",
    }

    /// Group that uses in-network reduction.
    pub enum SharpGroup {
        /// Data parallel.
        Dp = "dp",
        /// Replicas.
        DpReplica = "dp_replica",
    }

    /// Injected fault.
    pub enum ErrorInjectionType {
        /// A correct result that looks unexpected.
        CorrectResult = "correct_result",
        /// Gone at the first rerun.
        TransientError = "transient_error",
        /// Gone only on another device.
        PersistentError = "persistent_error",
    }

    /// Mode of the rerun state machine.
    pub enum RerunMode {
        /// A rejected result fails at once.
        Disabled = "disabled",
        /// A rejected result is computed again.
        ValidateResults = "validate_results",
        /// Everything is computed twice.
        ReportDeterminismStats = "report_determinism_stats" | "report_stats",
    }

    /// Simulated process fault.
    pub enum SimulatedFault {
        /// Stopped.
        RankHung = "rank_hung",
        /// Killed.
        RankKilled = "rank_killed",
        /// Either.
        Random = "random",
    }

    /// Unit of an in-process restart.
    pub enum RestartGranularity {
        /// Node.
        Node = "node",
        /// Rank.
        Rank = "rank",
    }
}
