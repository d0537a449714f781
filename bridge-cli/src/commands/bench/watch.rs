//! Observations of a measured run: times of its steps, losses, memory of the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bridge_core::logging::DeviceMemory;
use bridge_core::train::{Agreement, CommonError, RunContext, StepReport, Subsystem, SubsystemError};
use burn::tensor::Device;

/// Records time and loss of each step.
///
/// A GPU computes asynchronously, so there a step's time is from a moment at which the device has
/// nothing to do to the next such moment, after the update. On the CPU it is the loop's own figure.
#[derive(Clone)]
pub struct Watch {
    warmup: u64,
    /// When setting up began.
    started: Instant,
    /// Device memory at the start of the current step; `None` on the CPU.
    step_started: Option<Instant>,
    seen: Arc<Mutex<Seen>>,
}

/// Observations of the run.
#[derive(Clone, Default)]
pub struct Seen {
    /// Wall time of the measured steps.
    pub seconds: Vec<f64>,
    /// Losses of all steps, to four decimals.
    pub losses: Vec<f64>,
    /// Measured steps that changed nothing, because their gradients were not finite.
    pub skipped: usize,
    /// Floating-point operations of the last step, as the model counts them.
    pub flops: Option<f64>,
    /// CPU time before the measured steps and after the last one.
    pub warm: Option<f64>,
    pub end: Option<f64>,
    /// Seconds from the beginning until the model was built.
    pub setup_seconds: Option<f64>,
    /// From the beginning until the first step was done, with the choice of kernels.
    pub first_step_seconds: Option<f64>,
    /// The maximum of each figure after a step; `None` on the CPU.
    pub device: Option<DeviceMemory>,
}

impl Watch {
    /// For a run whose first `warmup` steps are not measured, and which is set up from `started`
    /// on.
    pub fn new(warmup: u64, started: Instant) -> Self {
        Self { warmup, started, step_started: None, seen: Arc::default() }
    }

    /// Observations so far.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a finished step that took `seconds`.
    fn add(&self, step: &StepReport, seconds: f64, device: Option<DeviceMemory>) {
        let mut seen = self.lock();
        let is_measured = step.iteration > self.warmup;
        seen.end = cpu_seconds();
        seen.flops = step.flops;
        match is_measured {
            true => seen.seconds.push(seconds),
            false => seen.warm = seen.end,
        }
        seen.skipped += usize::from(is_measured && step.skipped);
        seen.first_step_seconds.get_or_insert(self.started.elapsed().as_secs_f64());
        let loss = step.loss().map_or(f64::NAN, f64::from);
        seen.losses.push((loss * 1e4).round() / 1e4);
        seen.device = most(seen.device, device);
    }
}

/// The larger of each figure.
fn most(one: Option<DeviceMemory>, other: Option<DeviceMemory>) -> Option<DeviceMemory> {
    let Some((one, other)) = one.zip(other) else { return one.or(other) };
    Some(DeviceMemory {
        allocated_bytes: one.allocated_bytes.max(other.allocated_bytes),
        reserved_bytes: one.reserved_bytes.max(other.reserved_bytes),
        num_allocations: one.num_allocations.max(other.num_allocations),
    })
}

/// True if the device computes asynchronously.
pub fn computes_behind(device: &Device) -> bool {
    device.clone().without_autodiff() != Device::flex()
}

/// Waits for all that the calling thread has asked of `device`.
///
/// # Errors
/// The failure in words.
pub fn wait_for(device: &Device) -> Result<(), String> {
    device.sync().map_err(|error| format!("the device failed: {error:?}"))
}

/// Memory in the device's pool, if it has one.
fn memory_of(device: &Device) -> Option<DeviceMemory> {
    device.memory_pool_usage().map(|usage| DeviceMemory {
        allocated_bytes: usage.bytes_in_use,
        reserved_bytes: usage.bytes_reserved,
        num_allocations: usage.number_allocs,
    })
}

impl Subsystem for Watch {
    fn name(&self) -> &str {
        "benchmark"
    }

    fn agreement(&self) -> Agreement {
        Agreement::Symmetric
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        wait_for(run.device()).map_err(CommonError::Device)?;
        let mut seen = self.lock();
        seen.warm = cpu_seconds();
        seen.setup_seconds = Some(self.started.elapsed().as_secs_f64());
        Ok(())
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.step_started = None;
        if computes_behind(run.device()) {
            wait_for(run.device()).map_err(CommonError::Device)?;
            self.step_started = Some(Instant::now());
        }
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let seconds = match self.step_started {
            Some(started) => {
                wait_for(run.device()).map_err(CommonError::Device)?;
                started.elapsed().as_secs_f64()
            }
            None => step.seconds,
        };
        self.add(step, seconds, memory_of(run.device()));
        Ok(())
    }
}

/// CPU time of this process so far, over all threads, in hundredths of a second, if the system
/// reports it: the cost of a step on a machine with other users.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; times in user and kernel mode are fields 14 and
    // 15.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / 100.0)
}
