//! `[checkpoint]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{
    AsyncMpMode, AsyncStrategy, CkptFormat, CkptGroup, DistCkptStrictness, ExchangeAlgo, LocalCkptAlgo,
    NonPersistentType, OnDamaged,
};
use super::super::limits::Limits;
use super::super::section::section;

section! {
    /// Save and load policy.
    pub struct CheckpointConfig {
        /// Output folder.
        save: Option<PathBuf> = None;
        /// Input folder.
        load: Option<PathBuf> = None;
        /// Steps between checkpoints.
        save_interval: Option<usize> = None, Limits::POSITIVE;
        /// Steps between weight-gradient dumps.
        save_wgrads_interval: Option<usize> = None, Limits::POSITIVE;
        /// Steps between data-gradient dumps.
        save_dgrads_interval: Option<usize> = None, Limits::POSITIVE;
        /// Checkpoints at its multiples are never removed.
        save_retain_interval: Option<usize> = None, Limits::POSITIVE;
        /// Keep the last so many; -1 keeps all.
        most_recent_k: Option<i64> = Some(-1), Limits::at_least(-1.0);
        /// Save optimizer state.
        save_optim: bool = true;
        /// Save random states.
        save_rng: bool = true;
        /// Restore optimizer state.
        load_optim: bool = true;
        /// Restore random states.
        load_rng: bool = true;
        /// Master weights from the checkpoint.
        load_main_params_from_ckpt: bool = false;
        /// Steps between temporary saves.
        non_persistent_save_interval: Option<usize> = None, Limits::POSITIVE;
        /// Kind of temporary save.
        non_persistent_ckpt_type: Option<NonPersistentType> = None;
        /// Folder of global temporary saves.
        non_persistent_global_ckpt_dir: Option<PathBuf> = None;
        /// Folder of local temporary saves.
        non_persistent_local_ckpt_dir: Option<PathBuf> = None;
        /// Layout of local temporary saves.
        non_persistent_local_ckpt_algo: LocalCkptAlgo = LocalCkptAlgo::FullyParallel;
        /// Load weights only and start at step 0.
        finetune: bool = false;
        /// Base weights.
        pretrained_checkpoint: Option<PathBuf> = None;
        /// A particular step to load.
        ckpt_step: Option<usize> = None;
        /// Take settings from the checkpoint.
        use_checkpoint_args: bool = false;
        /// Take parallel sizes from the checkpoint.
        use_mp_args_from_checkpoint_args: bool = false;
        /// Take the tokenizer from the checkpoint.
        use_tokenizer_model_from_checkpoint_args: bool = true;
        /// Stop when there is nothing to load.
        exit_on_missing_checkpoint: bool = false;
        /// On-disk format. Upstream's default torch_dist does not exist here.
        ckpt_format: CkptFormat = CkptFormat::Safetensors;
        /// Detect the format.
        auto_detect_ckpt_format: bool = false;
        /// Conversion target.
        ckpt_convert_format: Option<CkptFormat> = None;
        /// Conversion folder.
        ckpt_convert_save: Option<PathBuf> = None;
        /// Conversion of old optimizer layouts.
        ckpt_convert_update_legacy_dist_opt_format: bool = false;
        /// Split writing over data parallelism.
        fully_parallel_save: bool = true;
        /// Split reading over data parallelism.
        fully_parallel_load: bool = false;
        /// Exchange of what was read.
        ckpt_fully_parallel_load_exchange_algo: ExchangeAlgo = ExchangeAlgo::Broadcast;
        /// Group that shares writing.
        ckpt_fully_parallel_save_process_group: CkptGroup = CkptGroup::Dp;
        /// Group that shares reading.
        ckpt_fully_parallel_load_process_group: CkptGroup = CkptGroup::Dp;
        /// Save in the background.
        async_save: bool = false;
        /// Background implementation.
        async_strategy: AsyncStrategy = AsyncStrategy::Nvrx;
        /// Long-lived save worker.
        use_persistent_ckpt_worker: bool = true;
        /// Worker niceness.
        async_ckpt_cpu_priority: i64 = 10;
        /// Worker I/O priority.
        async_ckpt_io_priority: Option<i64> = Some(3);
        /// How workers start.
        async_write_results_mp_mode: AsyncMpMode = AsyncMpMode::Fork;
        /// Writers per rank.
        storage_writers_per_rank: usize = 1, Limits::POSITIVE;
        /// Cache the save plan.
        ckpt_assume_constant_structure: bool = false;
        /// Strict keys of fully sharded loads.
        strict_fsdp_dtensor_load: bool = false;
        /// What unexpected or missing keys do.
        dist_ckpt_strictness: DistCkptStrictness = DistCkptStrictness::AssumeOkUnexpected;
        /// Legacy layout.
        dist_ckpt_save_pre_mcore_014: bool = false;
        /// Reshardable optimizer.
        dist_ckpt_optim_fully_reshardable: bool = false;
        /// The same with less memory.
        distrib_optim_fully_reshardable_mem_efficient: bool = false;
        /// Copy tokenizer files.
        save_tokenizer_assets: bool = true;
        /// Local replicas.
        replication: bool = false;
        /// Distance of replicas.
        replication_jump: Option<usize> = None, Limits::POSITIVE;
        /// Number of replicas.
        replication_factor: usize = 2, Limits::POSITIVE;
        /// A manager in code.
        custom_manager_class: Option<String> = None;
        /// What a damaged checkpoint does (ours).
        on_damaged: OnDamaged = OnDamaged::Fallback;
    }
}
