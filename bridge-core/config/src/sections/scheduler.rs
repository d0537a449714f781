//! `[scheduler]`: names, defaults, ranges. The derived steps are in `finalize`.

use super::super::choice::{LrDecayStyle, WeightDecayIncrStyle, WeightDecayRule, WsdDecayStyle};
use super::super::limits::Limits;
use super::super::rule::{excludes, idle_unless};
use super::super::section::section;

section! {
    /// Learning-rate and weight-decay schedules.
    pub struct SchedulerConfig {
        /// Curve after warm-up.
        lr_decay_style: LrDecayStyle = LrDecayStyle::Linear;
        /// Annealing curve of WSD.
        lr_wsd_decay_style: WsdDecayStyle = WsdDecayStyle::Exponential, idle_unless("scheduler.lr_decay_style = WSD");
        /// Decay horizon in iterations; null means the whole training.
        lr_decay_iters: Option<usize> = None, Limits::POSITIVE;
        /// Decay horizon in samples; null means the whole training.
        lr_decay_samples: Option<usize> = None, Limits::POSITIVE;
        /// Length of WSD annealing in iterations.
        lr_wsd_decay_iters: Option<usize> = None, Limits::POSITIVE, idle_unless("scheduler.lr_decay_style = WSD");
        /// Length of WSD annealing in samples.
        lr_wsd_decay_samples: Option<usize> = None, Limits::POSITIVE, idle_unless("scheduler.lr_decay_style = WSD");
        /// Warm-up as a fraction of the decay horizon.
        lr_warmup_fraction: Option<f64> = None, Limits::FRACTION,
            excludes("scheduler.lr_warmup_iters | scheduler.lr_warmup_samples");
        /// Warm-up in iterations.
        lr_warmup_iters: usize = 0;
        /// Warm-up in samples.
        lr_warmup_samples: usize = 0;
        /// Learning rate at step 0.
        lr_warmup_init: f64 = 0.0, Limits::NON_NEGATIVE,
            idle_unless("scheduler.lr_warmup_iters | scheduler.lr_warmup_samples | scheduler.lr_warmup_fraction: there is no warm-up");
        /// Ignore schedule values of the checkpoint.
        @execution override_opt_param_scheduler: bool = false,
            idle_unless("checkpoint.load | checkpoint.save: there is no run to resume");
        /// Take schedule values from the checkpoint.
        @execution use_checkpoint_opt_param_scheduler: bool = false,
            idle_unless("checkpoint.load | checkpoint.save: there is no run to resume"),
            idle_unless("checkpoint.load_optim: the schedule is part of the optimizer state"),
            idle_unless("checkpoint.finetune != true: the schedule begins anew"),
            excludes("scheduler.override_opt_param_scheduler");
        /// Weight decay at the start; null means `optimizer.weight_decay`.
        start_weight_decay: Option<f64> = None, Limits::NON_NEGATIVE;
        /// Weight decay at the end; null means `optimizer.weight_decay`.
        end_weight_decay: Option<f64> = None, Limits::NON_NEGATIVE;
        /// Curve between the two.
        weight_decay_incr_style: WeightDecayIncrStyle = WeightDecayIncrStyle::Constant;
        /// Rule of weight decay besides the usual one: "qwen3_next" keeps it on query and key
        /// norms, as `optimizer.apply_wd_to_qk_layernorm` does.
        no_weight_decay_cond_type: Option<WeightDecayRule> = None, idle_unless("model.qk_layernorm");
    }
}
