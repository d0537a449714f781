//! `[checkpoint]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::choice::{DistCkptStrictness, NonPersistentType, OnDamaged};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::refused_values::{one_of, one_or_null};
use super::super::rule::{idle_unless, needs};
use super::super::section::section;

/// Checkpoints of which a run loads one.
const LOADED: &str = "checkpoint.load | checkpoint.save | checkpoint.pretrained_checkpoint: there is nothing to load";
/// Checkpoints of a run that this one resumes.
const RESUMED: &str = "checkpoint.load | checkpoint.save: there is no run to resume";

section! {
    /// Save and load policy.
    pub struct CheckpointConfig {
        /// Output folder.
        save: Option<PathBuf> = None;
        /// Input folder.
        load: Option<PathBuf> = None;
        /// Steps between checkpoints.
        save_interval: Option<usize> = None, Limits::POSITIVE, needs("checkpoint.save");
        /// Steps between saves of the gradients of parameters, in `wgrads` in `save`.
        save_wgrads_interval: Option<usize> = None, Limits::POSITIVE, needs("checkpoint.save");
        /// Steps between saves of the gradients of what segments read of the residual stream, in
        /// `dgrads` in `save`.
        save_dgrads_interval: Option<usize> = None, Limits::POSITIVE, needs("checkpoint.save");
        /// Checkpoints at multiples of this are never deleted.
        save_retain_interval: Option<usize> = None, Limits::POSITIVE, needs("checkpoint.save"),
            idle_unless("checkpoint.most_recent_k > 0: every checkpoint is kept otherwise");
        /// Number of recent checkpoints to keep; -1 keeps all.
        most_recent_k: Option<i64> = Some(-1), Limits::at_least(-1.0), needs("checkpoint.save");
        /// Save a checkpoint after each evaluation with the lowest loss so far, and never delete
        /// the best one (ours).
        keep_best: bool = false, needs("checkpoint.save"), needs("validation.eval_interval"),
            needs("validation.eval_iters | validation.full_validation"), idle_unless("validation.skip_train != true");
        /// Save optimizer state.
        save_optim: bool = true, needs("checkpoint.save");
        /// Save random states.
        save_rng: bool = true, needs("checkpoint.save");
        /// Restore optimizer state.
        load_optim: bool = true, idle_unless(RESUMED);
        /// Restore random states.
        load_rng: bool = true, idle_unless(RESUMED);
        /// With load_optim = false: float32 masters of parameters in 16 bits begin with the
        /// checkpoint's masters, or its parameters if they are float32; else with the rounded
        /// parameters.
        load_main_params_from_ckpt: bool = false,
            needs("checkpoint.load_optim = false: masters are part of the optimizer state"), needs(LOADED);
        /// Steps between temporary saves.
        non_persistent_save_interval: Option<usize> = None, Limits::POSITIVE, needs("checkpoint.save"),
            needs("checkpoint.non_persistent_ckpt_type: it says where these saves lie");
        /// Place of temporary saves: one folder for all ranks, each machine's disk, or its memory.
        non_persistent_ckpt_type: Option<NonPersistentType> = None, needs("checkpoint.non_persistent_save_interval");
        /// Folder of global temporary saves; by default `non_persistent` in `save`.
        non_persistent_global_ckpt_dir: Option<PathBuf> = None,
            idle_unless("checkpoint.non_persistent_ckpt_type = global");
        /// Folder of local temporary saves, on each machine.
        non_persistent_local_ckpt_dir: Option<PathBuf> = None,
            idle_unless("checkpoint.non_persistent_ckpt_type = local");
        refused non_persistent_local_ckpt_algo = one_of("fully_parallel", &["fully_parallel", "atomic"]),
            "Layout of local temporary saves."
            => not_built("every rank saving all that it holds, though others save the same; replication keeps copies elsewhere");
        /// Load weights only and start at step 0.
        finetune: bool = false, needs("checkpoint.load | checkpoint.pretrained_checkpoint");
        /// Base weights: a checkpoint folder, a Hugging Face folder, or a GGUF file.
        pretrained_checkpoint: Option<PathBuf> = None;
        /// Settings of `[model]` that may differ from those of the checkpoint, though they change
        /// what the model computes (ours); `tokenizer` lets another tokenizer pass.
        allow_model_changes: Vec<String> = Vec::new();
        /// A particular step to load.
        ckpt_step: Option<usize> = None, needs("checkpoint.load");
        /// Take the settings of `[model]` from the checkpoint that is loaded: those that decide
        /// what is computed, and of those of training what the recipe does not say.
        use_checkpoint_args: bool = false, needs(LOADED);
        /// Take the parallel sizes from the checkpoint that is loaded.
        use_mp_args_from_checkpoint_args: bool = false, needs(LOADED);
        /// With `use_checkpoint_args`, take `[tokenizer]` too.
        use_tokenizer_model_from_checkpoint_args: bool = true, idle_unless("checkpoint.use_checkpoint_args");
        /// Stop when there is nothing to load.
        exit_on_missing_checkpoint: bool = false, needs("checkpoint.load | checkpoint.pretrained_checkpoint");
        refused ckpt_format = one_of("safetensors", &["safetensors", "torch", "torch_dist", "torch_dcp", "fsdp_dtensor"]),
            "On-disk format. Upstream's default torch_dist does not exist here."
            => no_counterpart("PyTorch's formats; checkpoints are safetensors");
        refused auto_detect_ckpt_format = false, "Detect the format."
            => no_counterpart("several formats to detect; checkpoints are safetensors");
        refused ckpt_convert_format = one_or_null(None, &["safetensors", "torch", "torch_dist", "torch_dcp", "fsdp_dtensor"]),
            "Conversion target."
            => no_counterpart("PyTorch's formats to convert to; `bridge convert` takes Megatron's in, and Hugging Face's in and out");
        refused ckpt_convert_save = None::<PathBuf>, "Conversion folder."
            => no_counterpart("the folder of ckpt_convert_format; `bridge convert` writes to the folder that it is given");
        refused ckpt_convert_update_legacy_dist_opt_format = false, "Conversion of old optimizer layouts."
            => no_counterpart("optimizer layouts of older Megatron versions");
        refused fully_parallel_save = true, "Split writing over data parallelism."
            => no_counterpart("checkpoints that one replica writes alone; each slice is written by one of the ranks that hold it");
        refused fully_parallel_load = false, "Split reading over data parallelism."
            => no_counterpart("a choice of the reading ranks; every rank reads what it holds").inert(&["true"]);
        refused ckpt_fully_parallel_load_exchange_algo = one_of("broadcast", &["broadcast", "gather_rounds", "gather_object"]),
            "Exchange of what was read."
            => no_counterpart("how ranks exchange what they read; every rank reads what it holds");
        refused ckpt_fully_parallel_save_process_group = one_of("dp", &["dp", "ep_dp"]), "Group that shares writing."
            => no_counterpart("the group that shares writing; each slice is written by one of the ranks that hold it");
        refused ckpt_fully_parallel_load_process_group = one_of("dp", &["dp", "ep_dp"]), "Group that shares reading."
            => no_counterpart("the group that shares reading; every rank reads what it holds");
        /// Save in the background.
        async_save: bool = false, needs("checkpoint.save");
        refused async_strategy = one_of("nvrx", &["nvrx", "mcore"]), "Background implementation."
            => no_counterpart("the Python library of async_save; it writes from a thread").inert(&["mcore"]);
        refused use_persistent_ckpt_worker = true, "Long-lived save worker."
            => no_counterpart("a process for async_save; it writes from a thread");
        refused async_ckpt_cpu_priority = 10_i64, "Worker niceness."
            => no_counterpart("the niceness of the process of async_save; it writes from a thread");
        refused async_ckpt_io_priority = Some(3_i64), "Worker I/O priority."
            => no_counterpart("the I/O priority of the process of async_save; it writes from a thread");
        refused async_write_results_mp_mode = one_of("fork", &["fork", "spawn", "forkserver"]),
            "Start method of the workers."
            => no_counterpart("how the process of async_save is started; it writes from a thread");
        /// Files of parameters, and as many of optimizer state, that a rank divides a checkpoint
        /// into and writes at the same time.
        storage_writers_per_rank: usize = 1, Limits::between(1.0, 256.0);
        refused ckpt_assume_constant_structure = false, "Cache the save plan."
            => no_counterpart("a cache of the save plan; computing it takes no time");
        refused strict_fsdp_dtensor_load = false, "Strict keys of fully sharded loads."
            => no_counterpart("the strictness of the format fsdp_dtensor; missing keys are always an error");
        /// Treatment of parameters that the checkpoint lacks, and of parameters that the model does
        /// not use.
        dist_ckpt_strictness: DistCkptStrictness = DistCkptStrictness::AssumeOkUnexpected
            => no_counterpart("parameters left at random values without a word; log_unexpected and log_all say which, and programs find them in `TrainingRun::unmatched`")
                .built(&["log_unexpected", "log_all", "raise_unexpected", "raise_all"]);
        refused dist_ckpt_save_pre_mcore_014 = false, "Legacy layout."
            => no_counterpart("a layout of older Megatron versions");
        refused dist_ckpt_optim_fully_reshardable = false, "Reshardable optimizer."
            => no_counterpart("a choice of the optimizer's layout on disk; any layout reads every checkpoint").inert(&["true"]);
        refused distrib_optim_fully_reshardable_mem_efficient = false, "Fully reshardable with less memory."
            => no_counterpart("a way to gather state for dist_ckpt_optim_fully_reshardable; no state is gathered");
        /// Copy tokenizer files.
        save_tokenizer_assets: bool = true, needs("checkpoint.save");
        /// Copies of local and in-memory temporary saves at other ranks.
        replication: bool = false,
            needs("checkpoint.non_persistent_ckpt_type = local | checkpoint.non_persistent_ckpt_type = in_memory: other saves are not on one machine alone"),
            needs("checkpoint.replication_jump: the number of ranks of a machine puts copies on other machines");
        /// Distance between the ranks that keep copies of each other's temporary saves.
        replication_jump: Option<usize> = None, Limits::POSITIVE, idle_unless("checkpoint.replication");
        /// Number of ranks that have each part of a temporary save.
        replication_factor: usize = 2, Limits::at_least(2.0), idle_unless("checkpoint.replication");
        /// Manager that keeps each checkpoint in a second place: the address of an object store
        /// (`s3://BUCKET/PREFIX`) in `bridge train`, a registered name in a program.
        custom_manager_class: Option<String> = None, needs("checkpoint.save");
        /// Reaction to a damaged checkpoint (ours).
        on_damaged: OnDamaged = OnDamaged::Fallback, idle_unless(LOADED);
    }
}
