//! From the configuration's types to the parameter structs of schedules, optimizer, resilience and
//! logging. One small function for each; no rule lives here.

use burn::tensor::FloatDType;

use crate::config::{self, RunConfig};
use crate::optim::{AccumulationDType, OptimizerSettings, ReduceDType, rules};
use crate::plan;
use crate::resilience::rerun::{ErrorInjection, RankLocation, RerunConfig};
use crate::resilience::{LossChecks, Signal, SpikyLossDetector};
use crate::schedule::{BatchRampup, BatchSizeConfig, DynamicLossScaleConfig, Indivisible, LossScaleError, LossScaler};
use crate::timers::TimerLevel;

pub(in crate::train) fn params_dtype(config: &RunConfig) -> FloatDType {
    float_dtype(config.model.params_dtype)
}

/// The number format on devices.
pub(in crate::train) fn float_dtype(dtype: config::DType) -> FloatDType {
    match dtype {
        config::DType::Float16 => FloatDType::F16,
        config::DType::BFloat16 => FloatDType::BF16,
        config::DType::Float32 | config::DType::UInt8 => FloatDType::F32,
    }
}

pub(in crate::train) fn grad_reduce_in_fp32(config: &RunConfig) -> bool {
    config.ddp.grad_reduce_in_fp32
}

pub(in crate::train) fn reduce_dtype(config: &RunConfig) -> ReduceDType {
    let is_bfloat16 = params_dtype(config) == FloatDType::BF16;
    if is_bfloat16 && !grad_reduce_in_fp32(config) { ReduceDType::BFloat16 } else { ReduceDType::Float32 }
}

pub(in crate::train) fn accumulation_dtype(config: &RunConfig) -> AccumulationDType {
    let is_float32 = params_dtype(config) == FloatDType::F32;
    if is_float32 || grad_reduce_in_fp32(config) { AccumulationDType::Float32 } else { AccumulationDType::AsComputed }
}

pub(in crate::train) fn optimizer_settings(config: &RunConfig) -> OptimizerSettings {
    let optimizer = &config.optimizer;
    let algorithm = rules::find(optimizer.optimizer).with(optimizer);
    OptimizerSettings {
        algorithm: match plan::settings::state_formats(config) {
            Some(formats) => algorithm.keeping(formats),
            None => algorithm,
        },
        clip_grad: optimizer.clip_grad,
        ema_decay: optimizer.ema_decay,
        skip_above: optimizer.grad_norm_skip_threshold.unwrap_or(f64::INFINITY),
        count_zeros: optimizer.log_num_zeros_in_grad || config.logger.log_num_zeros_in_grad,
        offload: plan::settings::optimizer_offload(config),
    }
}

pub(in crate::train) fn batch_size(config: &RunConfig) -> BatchSizeConfig {
    let rampup = config.train.rampup_batch_size.map(|[start, increment, samples]| BatchRampup {
        start: start as u64,
        increment: increment as u64,
        samples: samples as u64,
    });
    BatchSizeConfig {
        micro_batch_size: config.train.micro_batch_size as u64,
        global_batch_size: config.train.global_batch_size as u64,
        data_parallel_size: config.parallel.data as u64,
        rampup_batch_size: rampup,
        indivisible: if config.train.decrease_batch_size_if_needed {
            Indivisible::RoundDown
        } else {
            Indivisible::Refuse
        },
    }
}

pub(in crate::train) fn loss_scaler(config: &RunConfig) -> Result<LossScaler, LossScaleError> {
    let optimizer = &config.optimizer;
    Ok(match optimizer.loss_scale {
        Some(scale) => LossScaler::constant(scale)?,
        None if params_dtype(config) == FloatDType::F16 => LossScaler::dynamic(DynamicLossScaleConfig {
            initial_loss_scale: optimizer.initial_loss_scale,
            min_loss_scale: optimizer.min_loss_scale,
            loss_scale_window: optimizer.loss_scale_window as u64,
            hysteresis: optimizer.hysteresis as u32,
        })?,
        None => LossScaler::constant(1.0)?,
    })
}

pub(in crate::train) fn rerun(config: &RunConfig, placement: RankLocation) -> RerunConfig {
    let settings = &config.rerun_state_machine;
    RerunConfig {
        mode: settings.rerun_mode,
        injection: ErrorInjection {
            rate: settings.error_injection_rate as u64,
            kind: settings.error_injection_type,
            seed: config.rng.seed,
        },
        placement,
    }
}

/// Multiple of the largest gradient norm seen that counts as unusual, as upstream has it.
const LARGE_GRADS_FACTOR: f64 = 10.0;

pub(in crate::train) fn loss_checks(config: &RunConfig) -> LossChecks {
    let settings = &config.rerun_state_machine;
    LossChecks {
        check_for_nan_in_loss: settings.check_for_nan_in_loss,
        spiky_loss: settings.check_for_spiky_loss.then(|| SpikyLossDetector::new(settings.spiky_loss_factor)),
        check_for_nan_in_grad: config.ddp.check_for_nan_in_grad,
        large_grads: config.ddp.check_for_large_grads.then(|| SpikyLossDetector::new(LARGE_GRADS_FACTOR)),
    }
}

/// The most detailed timers that run; `None` below 0.
pub(in crate::train) fn timing_level(config: &RunConfig) -> Option<TimerLevel> {
    let levels = [TimerLevel::Iteration, TimerLevel::Phase, TimerLevel::MicroBatch];
    levels.into_iter().rfind(|level| *level as i64 <= config.logger.timing_log_level)
}

pub(in crate::train) fn signal(signal: config::Signal) -> Signal {
    match signal {
        config::Signal::Sigint => Signal::Int,
        config::Signal::Sigterm => Signal::Term,
        config::Signal::Sighup => Signal::Hup,
        config::Signal::Sigusr1 => Signal::Usr1,
        config::Signal::Sigusr2 => Signal::Usr2,
    }
}
