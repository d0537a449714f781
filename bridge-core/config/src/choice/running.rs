//! Choices of checkpoints, ranks and resilience.

choices! {
    /// Reaction to a damaged checkpoint. Ours.
    pub enum OnDamaged {
        Error = "error",
        /// Use the newest intact one before it, and report it.
        Fallback = "fallback",
    }

    /// Kind of a temporary checkpoint.
    pub enum NonPersistentType {
        Global = "global",
        Local = "local",
        InMemory = "in_memory",
    }

    /// Reaction to unexpected or missing checkpoint keys.
    pub enum DistCkptStrictness {
        AssumeOkUnexpected = "assume_ok_unexpected",
        LogUnexpected = "log_unexpected",
        LogAll = "log_all",
        RaiseUnexpected = "raise_unexpected",
        RaiseAll = "raise_all",
        ReturnUnexpected = "return_unexpected",
        ReturnAll = "return_all",
        IgnoreAll = "ignore_all",
    }

    /// State that fully sharded data parallelism shards.
    pub enum ShardingStrategy {
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
        Nccl = "nccl",
        Gloo = "gloo",
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
        Node = "node",
        Rank = "rank",
    }
}
