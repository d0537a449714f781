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

    /// Type of an injected fault.
    #[derive(Default)]
    pub enum ErrorInjectionType {
        /// Every rerun agrees with the first run.
        CorrectResult = "correct_result",
        /// The rerun in place differs.
        #[default]
        TransientError = "transient_error",
        /// The rerun in place agrees, the one from a checkpoint differs.
        PersistentError = "persistent_error",
    }

    /// Reaction of the rerun state machine to rejected results.
    #[derive(Default)]
    pub enum RerunMode {
        /// An error, or a warning when the check is not fatal.
        #[default]
        Disabled = "disabled",
        /// Reruns.
        ValidateResults = "validate_results",
        /// The same as when disabled; and every step runs twice, to see how far its results are
        /// apart.
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
