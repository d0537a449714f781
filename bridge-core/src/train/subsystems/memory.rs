//! The memory of all ranks: figures with each console line and where TensorBoard shows them, and
//! the lines that `logger.log_memory_interval` asks for. After the first report of a run, each rank
//! has a line of its own.

use crate::logging::numbers::gibibytes;
use crate::logging::{Figure, GIB, Gpu, MemoryOfRanks, RankMemory, format_memory_report, used_on_machine};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::ranks::device::cuda_number;
use crate::train::reporting::rank_memory::rank_memory;
use crate::train::reporting::report::{StepReport, is_reported_every};
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

#[derive(Default)]
pub(super) struct MemoryOfRun {
    /// True if the console has lines of this run about memory.
    has_told: bool,
    /// Memory after the step.
    memory: Option<MemoryOfRanks>,
    /// The GPU, if its driver is queried.
    gpu: Option<Gpu>,
}

impl MemoryOfRun {
    /// Memory as this rank sees it, with the statistics that the recipe asks for.
    fn measured(&self, run: &RunContext) -> RankMemory {
        let memory = rank_memory(run.groups, run.device());
        if !run.state.config.logger.log_device_memory_used {
            return memory;
        }
        let used_on_device = self.gpu.as_ref().map_or_else(used_on_machine, |gpu| gpu.used_bytes().ok());
        RankMemory { used_on_device, ..memory }
    }

    /// Opens the GPU's driver if needed, and checks that each statistic of the recipe is available.
    fn prepare(&mut self, run: &RunContext) -> Result<(), SubsystemError> {
        let (config, logger) = (&run.state.config, &run.state.config.logger);
        let of_device = "logger.log_device_memory_used";
        let number = cuda_number(&config.device, agreement::local_rank(run.groups.world())?);
        if let Some(number) = number.filter(|_| logger.log_device_memory_used) {
            self.gpu = Some(Gpu::open(number).map_err(|message| CommonError::setting(of_device, message))?);
        }
        let asked = logger.memory_keys.iter().flat_map(|keys| keys.keys().map(String::as_str));
        let used = logger.log_device_memory_used.then_some("device_used_bytes.all.current");
        let mine = self.measured(run);
        let Some(missing) = asked.chain(used).find(|statistic| mine.statistic(statistic).is_none()) else {
            return Ok(());
        };
        let key = if logger.memory_keys.is_some() { "logger.memory_keys" } else { of_device };
        Err(CommonError::setting(key, format!("nobody here keeps {missing}, on device = {:?}", config.device)).into())
    }
}

impl Subsystem for MemoryOfRun {
    fn name(&self) -> &str {
        "memory"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let logger = &run.state.config.logger;
        if logger.memory_keys.is_none() && !logger.log_device_memory_used {
            return Ok(());
        }
        let prepared = self.prepare(run);
        agreement::agree(run.groups, "asking for memory statistics", prepared)
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let logger = &run.state.config.logger;
        let is_due = |interval| is_reported_every(&run.state.config, interval, step.iteration);
        let shows = logger.log_memory_to_tensorboard;
        let is_shown = shows && is_due(logger.tensorboard_log_interval);
        let is_asked_for = logger.log_memory_interval.is_some_and(is_due);
        if !(is_due(logger.log_interval) || is_shown || is_asked_for) {
            return Ok(());
        }
        let mine = self.measured(run);
        let memory = MemoryOfRanks(agreement::gather(run.groups.world(), &mine)?);
        step.figures.extend(figures(&memory));
        if shows {
            let help = "Memory in GB, the largest of any rank";
            step.figures.extend(Figure::on_board(help, "memory/", memory.metrics(logger.memory_keys.as_ref())));
        }
        self.memory = Some(memory);
        Ok(())
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let (Some(memory), iteration) = (self.memory.take(), step.iteration) else { return Ok(LoopRequest::default()) };
        let config = &run.state.config;
        let is_due = |interval| is_reported_every(config, interval, iteration);
        let is_asked = config.logger.log_memory_interval.is_some_and(is_due);
        let mut request = LoopRequest::default();
        if is_asked {
            request = request.note(line(iteration, &memory));
        }
        let is_first = !std::mem::replace(&mut self.has_told, true);
        let speakers = memory.speakers();
        if is_first || is_asked && speakers.len() > 1 {
            for (rank, memory) in speakers {
                let report = format_memory_report(rank, iteration, &memory.metrics(config.logger.memory_keys.as_ref()));
                request = if is_asked { request.note(report) } else { request.detail(report) };
            }
        }
        Ok(request)
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

/// Memory, the largest of any rank.
fn figures(memory: &MemoryOfRanks) -> Vec<Figure> {
    let mut figures = Vec::new();
    let bytes = |name, help, value: u64| Figure::new(name, "bytes", help, value).of_interval();
    if let Some(host) = memory.host() {
        let (now, peak) = (host.resident_bytes, host.peak_resident_bytes);
        figures.push(
            bytes("memory_bytes", "Memory of the process", now)
                .line(150, format!("memory (GiB): {:.2} (peak {:.2})", gib(now), gib(peak)))
                .short(50, 30, gibibytes(now))
                .json(160, "memory_bytes"),
        );
        figures.push(bytes("peak_memory_bytes", "Most memory the process had", peak).json(161, "peak_memory_bytes"));
    }
    if let Some(device) = memory.device() {
        let (used, reserved) = (device.allocated_bytes, device.reserved_bytes);
        figures.push(
            bytes("device_memory_bytes", "Memory of the device in use", used)
                .line(160, format!("device memory (GiB): {:.2} (reserved {:.2})", gib(used), gib(reserved)))
                .short(51, 35, format!("device {}", gibibytes(used)))
                .json(170, "device_memory_bytes"),
        );
        figures.push(
            bytes("device_reserved_bytes", "Memory of the device held by its allocator", reserved)
                .json(171, "device_reserved_bytes"),
        );
    }
    figures
}

fn line(iteration: u64, memory: &MemoryOfRanks) -> String {
    let host = memory.host().map(|host| {
        let (now, peak) = (gib(host.resident_bytes), gib(host.peak_resident_bytes));
        format!("memory (GiB): {now:.3} (peak {peak:.3})")
    });
    let device = memory.device().map(|device| {
        let (used, reserved) = (gib(device.allocated_bytes), gib(device.reserved_bytes));
        format!("device memory (GiB): {used:.3} (reserved {reserved:.3})")
    });
    let known: Vec<String> = host.into_iter().chain(device).collect();
    match known.as_slice() {
        [] => format!(" [iteration {iteration}] memory: this system does not say"),
        known => format!(" [iteration {iteration}] {}", known.join(" | ")),
    }
}
