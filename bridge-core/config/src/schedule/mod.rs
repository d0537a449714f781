//! Quantities that change from step to step: learning rate, weight decay, batch size and loss
//! scale; and rates of FLOPs. Pure arithmetic over plain parameters. Code here must not read a
//! config tree, use tensors or do I/O.

mod flops;
mod loss_scaler;
mod num_microbatches;
mod optimizer_param_scheduler;
mod scheduler_state;
#[cfg(test)]
mod tests;
mod windows;

pub use flops::tflops_per_device;
pub use loss_scaler::{DynamicLossScaleConfig, GradientCheck, LossScaleError, LossScaler, LossScalerState};
pub use num_microbatches::{
    BatchRampup, BatchSizeChange, BatchSizeConfig, BatchSizeError, Indivisible, NumMicrobatchesCalculator,
};
pub use optimizer_param_scheduler::{
    GroupRates, GroupSettings, LrDecayStyle, OptimizerParamScheduler, OptimizerParamSchedulerConfig, SchedulerError,
    WeightDecayIncrStyle, WsdDecayStyle,
};
pub use scheduler_state::{OnStateMismatch, SchedulerState, SchedulerStateError, StateMismatch};
pub use windows::MicroBatchWindows;
