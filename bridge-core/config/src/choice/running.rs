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
        /// Optimizer states and gradients.
        OptimGrads = "optim_grads",
        /// Optimizer states, gradients and parameters.
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
        /// Reruns a rejected step to find the cause.
        ValidateResults = "validate_results",
        /// As disabled, but every step runs twice, and the differences between both results are
        /// reported.
        ReportDeterminismStats = "report_determinism_stats" | "report_stats",
    }

    /// Simulated process fault.
    pub enum SimulatedFault {
        /// The rank hangs.
        RankHung = "rank_hung",
        /// The rank is killed.
        RankKilled = "rank_killed",
        /// The rank hangs or is killed, at random.
        Random = "random",
    }

    /// Unit of an in-process restart.
    pub enum RestartGranularity {
        Node = "node",
        Rank = "rank",
    }
}
