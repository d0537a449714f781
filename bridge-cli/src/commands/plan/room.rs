//! The device that a plan is held against: its memory, and whether a rank fits.

use bridge_core::plan::{GPUS, Gpu, Plan, usable_bytes};
use serde_json::{Value, json};

use super::text::bytes;
use crate::failure::Failure;

/// Parts of the memory that are named where it does not suffice.
const NAMED_PARTS: usize = 3;

/// A device's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    name: String,
    /// The GPU, if it is a known one.
    pub gpu: Option<Gpu>,
    /// Memory in bytes.
    pub memory: u64,
}

impl Room {
    /// The device of `--gpu` and `--gpu-memory`, if either is given.
    pub fn new(gpu: Option<&str>, gibibytes: Option<f64>) -> Result<Option<Self>, Failure> {
        let known = gpu.map(|name| {
            Gpu::named(name).ok_or_else(|| {
                let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
                Failure::input(format!(
                    "--gpu: expected one of {}, found `{name}`; for others give --gpu-memory, and for times --device-tflops and --link-gbps",
                    names.join(", ")
                ))
            })
        });
        let known = known.transpose()?;
        let memory = gibibytes.map(|gibibytes| (gibibytes * f64::from(1 << 30)) as u64);
        let Some(memory) = memory.or_else(|| known.map(|gpu| gpu.memory_bytes())) else { return Ok(None) };
        let name = known.map_or_else(|| "the device".into(), |gpu| gpu.name.into());
        Ok(Some(Self { name, gpu: known, memory }))
    }

    /// True if every rank of a plan fits.
    pub fn fits(&self, plan: &Plan) -> bool {
        plan.most_memory() <= usable_bytes(self.memory)
    }

    /// Verdict in words, with further needs.
    pub fn verdict(&self, plan: &Plan) -> String {
        match most_on_host(plan) {
            0 => self.verdict_of_device(plan),
            host => {
                let device = self.verdict_of_device(plan);
                format!("{device}; of the host's memory {} for optimizer states and activations", bytes(host))
            }
        }
    }

    fn verdict_of_device(&self, plan: &Plan) -> String {
        let (need, usable) = (bytes(plan.most_memory()), bytes(usable_bytes(self.memory)));
        let of = format!("{usable} of {} can be used", bytes(self.memory));
        if self.fits(plan) {
            return format!("fits on {}: a rank needs {need}, {of}", self.name);
        }
        let stage = plan.largest_stage();
        let parts = stage.memory.parts().into_iter().take(NAMED_PARTS);
        let parts: Vec<String> = parts.map(|(name, size)| format!("{name} {}", bytes(size))).collect();
        let (name, stage) = (&self.name, stage.stage);
        format!("does not fit on {name}: a rank of stage {stage} needs {need}, {of}; largest: {}", parts.join(", "))
    }

    /// The result as JSON.
    pub fn json(&self, plan: &Plan) -> Value {
        json!({
            "name": self.name,
            "memory_bytes": self.memory,
            "usable_bytes": usable_bytes(self.memory),
            "needed_bytes": plan.most_memory(),
            "host_bytes": most_on_host(plan),
            "fits": self.fits(plan),
        })
    }
}

/// Host memory that a rank needs, on the stage that needs most.
pub fn most_on_host(plan: &Plan) -> u64 {
    plan.stages.iter().map(|stage| stage.memory.host_optimizer + stage.host_activations).max().unwrap_or(0)
}
