//! `[train]` and `[validation]`: names, defaults, ranges.

use super::super::choice::Signal;
use super::super::limits::Limits;
use super::super::refusal::no_counterpart;
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;

section! {
    /// Loop length, batch sizes and exit conditions.
    pub struct TrainingConfig {
        /// Sequences per model replica and micro-batch. Required.
        @execution micro_batch_size: Option<usize> = None, Limits::SIZE;
        /// Sequences per optimizer step over all ranks. Required.
        global_batch_size: Option<usize> = None, Limits::SIZE;
        /// Batch ramp-up: start, increment, samples over which to grow.
        rampup_batch_size: Option<[usize; 3]> = None, excludes("train.train_samples");
        /// Round the batch size down to a multiple of the data-parallel size x micro-batch size.
        decrease_batch_size_if_needed: bool = false;
        refused empty_unused_memory_level = 0_usize,
            "When to empty allocator caches: 1 after forward-backward, 2 also after the step.",
            Limits::between(0.0, 2.0)
            => no_counterpart("PyTorch's cache of device memory, emptied between steps");
        /// Steps between comparisons of the weights of data-parallel replicas, which must have the
        /// same bits; no effect on one rank.
        @execution check_weight_hash_across_dp_replicas_interval: Option<usize> = None, Limits::POSITIVE,
            excludes("ddp.data_parallel_sharding_strategy = optim_grads_params: each rank keeps another part of the parameters");
        /// Steps between device synchronizations.
        @execution train_sync_interval: Option<usize> = None, Limits::POSITIVE,
            idle_unless("device != flex: it computes synchronously"),
            idle_unless("device != cpu: it computes synchronously");
        /// Optimizer steps over all runs. This, `train_samples` or `num_epochs` is required.
        train_iters: Option<usize> = None, Limits::POSITIVE;
        /// Samples over all runs; excludes `train_iters`.
        train_samples: Option<usize> = None, Limits::POSITIVE, excludes("train.train_iters");
        /// Times that fine-tuning data is read over all runs; excludes `train_iters` and
        /// `train_samples`. The last step may read on into the epoch that follows.
        num_epochs: Option<f64> = None, Limits::ABOVE_ZERO,
            excludes("train.train_iters | train.train_samples | train.rampup_batch_size"),
            needs("dataset.kind = finetuning: it counts epochs of examples, so give train.train_iters for other data");
        /// Exit when the step is a multiple of this.
        @execution exit_interval: Option<usize> = None, Limits::POSITIVE;
        /// Exit after this many minutes.
        @execution exit_duration_in_mins: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Save and stop when `exit_signal` arrives.
        @execution exit_signal_handler: bool = false;
        /// The signal to watch.
        @execution exit_signal: Signal = Signal::Sigterm;
        /// Seconds from a signal that stops the run to its end (ours): what is not saved by then is
        /// given up, and the log and exit code 18 say so; null waits as long as a save takes.
        @execution exit_signal_deadline_s: Option<f64> = None, Limits::ABOVE_ZERO,
            needs("checkpoint.save: it is the time for a last checkpoint");
        refused @execution exit_signal_handler_for_dataloader = false, "Install the handler inside loader workers."
            => no_counterpart("a handler in loader processes; loaders are threads, which exit_signal_handler covers").inert(&["true"]);
        /// Clean shutdown on SIGINT and SIGTERM.
        @execution exit_signal_handler_for_training: bool = false;
        refused manual_gc = false, "Replace automatic garbage collection; Rust has none."
            => no_counterpart("manual control of Python's garbage collector; Rust has none");
        refused manual_gc_interval = 0_usize, "Steps between collections; Rust has none."
            => no_counterpart("steps between runs of Python's garbage collector");
        refused @execution manual_gc_eval = true, "Collect around evaluations; Rust has no collection."
            => no_counterpart("runs of Python's garbage collector around evaluations; Rust has none").inert(&["false"]);
        /// 1-based iterations whose data is read but not used.
        iterations_to_skip: Vec<usize> = Vec::new(), Limits::POSITIVE;
        refused check_optimizer_step_success = true,
            "AND the success flag over model-parallel ranks. Here all ranks share one flag, from the norm over all of them."
            => no_counterpart("success flags that differ from rank to rank; one norm over all ranks decides");
        refused skip_sync_grad_norm_across_mp = false,
            "Leave the gradient norm of each model-parallel rank as it is. Here all ranks have one norm."
            => no_counterpart("gradient norms that differ from rank to rank; the norm is one sum over all ranks");
        /// Consecutive iterations with non-finite gradients or losses after which the run fails
        /// (ours). Overflows that lower a dynamic loss scale do not count.
        @execution max_consecutive_skipped_iterations: usize = 20, Limits::POSITIVE;
        /// Evaluations in a row without a lower validation loss after which training ends (ours);
        /// null trains to the last iteration.
        @execution early_stopping_patience: Option<usize> = None, Limits::POSITIVE, needs("validation.eval_interval"),
            needs("validation.eval_iters | validation.full_validation"), idle_unless("validation.skip_train != true");
        /// By how much a validation loss must be lower to count as such (ours).
        @execution early_stopping_min_delta: f64 = 0.0, Limits::at_least(0.0), needs("train.early_stopping_patience");
        /// Refuse a run that by its plan needs more memory than can be had (ours).
        @execution check_memory: bool = true;
        /// Deprecated alias of `validation.eval_iters`.
        @execution eval_iters: Option<usize> = None, Limits::SIZE_OR_ZERO;
        /// Deprecated alias of `validation.eval_interval`.
        @execution eval_interval: Option<usize> = None, Limits::POSITIVE;
        /// Deprecated alias of `validation.skip_train`.
        @execution skip_train: Option<bool> = None;
        /// Threads of the CPU backend (ours); null means all cores of the machine.
        @execution num_threads: Option<usize> = None, Limits::between(1.0, 65_536.0);
    }
}

section! {
    /// Evaluation cadence and batch sizes.
    pub struct ValidationConfig {
        /// Batches per evaluation, also for the test split; 0 or null evaluates nothing.
        eval_iters: Option<usize> = Some(100), Limits::SIZE_OR_ZERO;
        /// Training steps between evaluations; null evaluates only at the end.
        eval_interval: Option<usize> = None, Limits::POSITIVE;
        /// No evaluation before this step.
        start_eval_at_iter: Option<usize> = None, needs("validation.eval_interval");
        /// Sequences per evaluation step; null means `train.global_batch_size`.
        eval_global_batch_size: Option<usize> = None, Limits::SIZE;
        /// Sequences per evaluation micro-batch; null means `train.micro_batch_size`.
        eval_micro_batch_size: Option<usize> = None, Limits::SIZE;
        /// Only evaluate, then exit.
        skip_train: bool = false,
            needs("validation.eval_iters | validation.full_validation: there is nothing to do otherwise");
        refused test_mode = false, "Run real-time tests alongside."
            => no_counterpart("upstream's real-time tests during a run");
        /// Use the whole validation split once at each evaluation, whatever `eval_iters` is.
        full_validation: bool = false;
        /// The loss by which evaluations are compared, for early stopping and the best checkpoint
        /// (ours); null is the language model's.
        metric: Option<String> = None,
            needs("train.early_stopping_patience | checkpoint.keep_best: nothing else compares evaluations");
        /// Evaluate each validation set apart, with `eval_iters` batches of each: the members of
        /// the validation blend of `dataset.blend_per_split`, or the validation files of
        /// fine-tuning data. Losses are logged for each and for all.
        multiple_validation_sets: bool = false;
    }
}
