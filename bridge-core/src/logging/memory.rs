//! Memory of processes as the operating system counts it, and of devices as their allocators do; over all ranks of a run.

use std::collections::BTreeSet;
use std::fs;

use serde::{Deserialize, Serialize};

/// Resident memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// Now.
    pub resident_bytes: u64,
    /// At its highest.
    pub peak_resident_bytes: u64,
}

impl HostMemory {
    /// Reads `/proc/self/status`; `None` on systems without it.
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let kib = |field: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
            rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        };
        Some(Self { resident_bytes: kib("VmRSS:")? * 1024, peak_resident_bytes: kib("VmHWM:")? * 1024 })
    }
}

/// What the allocator of a device with memory of its own holds for this process. Highest values are not kept by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// In use by tensors.
    pub allocated_bytes: u64,
    /// Taken from the device, in use or kept for reuse.
    pub reserved_bytes: u64,
    /// Number of allocations in use.
    pub num_allocations: u64,
}

/// Memory that one rank sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Which process of the run the rank is in, as a hash: ranks that are threads of one process share its memory.
    pub process: u64,
    /// Whether the rank is the first of those that hold the same part of the model.
    pub is_first_replica: bool,
    /// Of the process, where the system says.
    pub host: Option<HostMemory>,
    /// Of the device, where it has memory of its own.
    pub device: Option<DeviceMemory>,
}

impl RankMemory {
    /// The figures by name, bytes in gigabytes (10^9) to five significant digits. What the system or the device does not say is left out.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let gigabytes = |bytes: u64| five_digits(bytes as f64 / 1e9);
        let device = self.device.map(|device| {
            [
                ("mem-allocated-gigabytes", gigabytes(device.allocated_bytes)),
                ("mem-reserved-gigabytes", gigabytes(device.reserved_bytes)),
                ("mem-allocated-count", device.num_allocations as f64),
            ]
        });
        let host = self.host.map(|host| {
            [
                ("mem-host-gigabytes", gigabytes(host.resident_bytes)),
                ("mem-max-host-gigabytes", gigabytes(host.peak_resident_bytes)),
            ]
        });
        device.into_iter().flatten().chain(host.into_iter().flatten()).collect()
    }
}

fn five_digits(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// Memory of all ranks, in rank order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOfRanks(pub Vec<RankMemory>);

impl MemoryOfRanks {
    /// The largest of each of [`RankMemory::metrics`] over the ranks.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let mut largest: Vec<(&str, f64)> = Vec::new();
        for (name, value) in self.0.iter().flat_map(RankMemory::metrics) {
            match largest.iter_mut().find(|(known, _)| *known == name) {
                Some((_, figure)) => *figure = figure.max(value),
                None => largest.push((name, value)),
            }
        }
        largest
    }

    /// Of the process that has most now, with the highest peak of any.
    pub fn host(&self) -> Option<HostMemory> {
        let all = || self.0.iter().filter_map(|rank| rank.host);
        Some(HostMemory {
            resident_bytes: all().map(|host| host.resident_bytes).max()?,
            peak_resident_bytes: all().map(|host| host.peak_resident_bytes).max()?,
        })
    }

    /// Of the device on which most is in use.
    pub fn device(&self) -> Option<DeviceMemory> {
        self.0
            .iter()
            .filter_map(|rank| rank.device)
            .max_by_key(|device| (device.allocated_bytes, device.reserved_bytes))
    }

    /// The ranks whose figures are worth a line each: first replicas, of those that share a process and have no memory of their own the first.
    pub fn speakers(&self) -> Vec<(usize, &RankMemory)> {
        let mut processes = BTreeSet::new();
        let first = self.0.iter().enumerate().filter(|(_, memory)| memory.is_first_replica);
        first.filter(|(_, memory)| processes.insert(memory.process) || memory.device.is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(process: u64, is_first_replica: bool, host: u64, device: Option<u64>) -> RankMemory {
        let host = HostMemory { resident_bytes: host, peak_resident_bytes: 100 - host };
        let held = |allocated_bytes| DeviceMemory { allocated_bytes, reserved_bytes: 90, num_allocations: 4 };
        RankMemory { process, is_first_replica, host: Some(host), device: device.map(held) }
    }

    #[test]
    fn figures_are_the_largest_of_any_rank() {
        let ranks = MemoryOfRanks(vec![rank(1, true, 10, None), rank(1, true, 10, None), rank(2, false, 30, None)]);
        assert_eq!(ranks.host(), Some(HostMemory { resident_bytes: 30, peak_resident_bytes: 90 }));
        assert_eq!(ranks.device(), None, "a figure that cannot be had is left out");
        assert_eq!(ranks.metrics(), [("mem-host-gigabytes", 3e-8), ("mem-max-host-gigabytes", 9e-8)]);
        let speakers = |ranks: &MemoryOfRanks| ranks.speakers().iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
        assert_eq!(speakers(&ranks), [0], "ranks of one process have one memory");

        let devices =
            MemoryOfRanks(vec![rank(1, true, 10, Some(5)), rank(1, false, 10, Some(8)), rank(1, true, 10, Some(7))]);
        assert_eq!(devices.device().map(|device| device.allocated_bytes), Some(8));
        assert_eq!(devices.metrics()[0], ("mem-allocated-gigabytes", 8e-9));
        assert_eq!(speakers(&devices), [0, 2]);
    }

    #[test]
    fn gigabytes_have_five_digits() {
        let host = HostMemory { resident_bytes: 1_234_567_890, peak_resident_bytes: 3_000_000_000 };
        let memory = RankMemory { host: Some(host), ..rank(1, true, 0, None) };
        assert_eq!(memory.metrics(), [("mem-host-gigabytes", 1.2346), ("mem-max-host-gigabytes", 3.0)]);
        assert_eq!(
            crate::logging::format_memory_report(3, 2, &memory.metrics()),
            "[Rank 3] (after 2 iterations) memory (GB) | mem-host-gigabytes: 1.2346 | mem-max-host-gigabytes: 3"
        );
    }

    #[test]
    fn fields_are_read_in_bytes() {
        let memory = HostMemory::parse("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n");
        assert_eq!(memory, Some(HostMemory { resident_bytes: 1 << 20, peak_resident_bytes: 2 << 20 }));
        assert_eq!(HostMemory::parse("VmRSS:\t1 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_some() {
        let memory = HostMemory::read().unwrap();
        assert!(memory.resident_bytes > 0 && memory.peak_resident_bytes >= memory.resident_bytes);
    }
}
