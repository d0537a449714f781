//! Memory of processes as the operating system counts it, and of devices as their allocators do;
//! over all ranks of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use bridge_memory as memory;
use serde::{Deserialize, Serialize};

use bridge_config::MEMORY_STATISTICS;

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
        let bytes = |field| Some(kib(status, field)? * 1024);
        Some(Self { resident_bytes: bytes("VmRSS:")?, peak_resident_bytes: bytes("VmHWM:")? })
    }
}

/// Memory that the allocator of a device with its own memory holds for this process. The allocator
/// keeps no peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// In use by tensors.
    pub allocated_bytes: u64,
    /// Taken from the device, in use or kept for reuse.
    pub reserved_bytes: u64,
    /// Number of allocations in use.
    pub num_allocations: u64,
}

/// Memory that the allocator of the process holds in large blocks, which are the tensors of the
/// CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorMemory {
    /// In use.
    pub allocated_bytes: u64,
    /// The most that was.
    pub peak_allocated_bytes: u64,
    /// Taken from the system, in use or kept for reuse. None goes back, so this is the most as
    /// well.
    pub reserved_bytes: u64,
    /// Number of blocks in use.
    pub num_allocations: u64,
}

impl AllocatorMemory {
    /// Current memory; `None` in programs with another allocator.
    pub fn read() -> Option<Self> {
        let usage = memory::usage()?;
        Some(Self {
            allocated_bytes: usage.used_bytes as u64,
            peak_allocated_bytes: usage.most_used_bytes as u64,
            reserved_bytes: usage.held_bytes as u64,
            num_allocations: usage.num_blocks as u64,
        })
    }
}

/// Memory of the machine in use by all processes: memory that Linux reports as unavailable without
/// swapping.
pub fn used_on_machine() -> Option<u64> {
    used_of(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn used_of(meminfo: &str) -> Option<u64> {
    kib(meminfo, "MemTotal:")?.checked_sub(kib(meminfo, "MemAvailable:")?).map(|kib| kib * 1024)
}

/// A field in kibibytes of a file in `/proc`.
fn kib(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Memory that one rank sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Hash of the process that the rank is in: ranks that are threads of one process share its
    /// memory.
    pub process: u64,
    /// True if the rank is the first of those that hold the same part of the model.
    pub is_first_replica: bool,
    /// Memory of the process, if the system reports it.
    pub host: Option<HostMemory>,
    /// Memory of the device, if it has its own.
    pub device: Option<DeviceMemory>,
    /// Memory of the process's allocator, if it counts.
    pub allocator: Option<AllocatorMemory>,
    /// On the whole device, by all processes, if asked for.
    pub used_on_device: Option<u64>,
}

impl RankMemory {
    /// The value of one of [`MEMORY_STATISTICS`]; `None` if it is not available. A device with
    /// memory of its own takes precedence over the process's allocator, which has no tensors then.
    pub fn statistic(&self, name: &str) -> Option<u64> {
        let allocator = self.allocator.filter(|_| self.device.is_none());
        let of = |device: fn(DeviceMemory) -> u64, of_allocator: fn(AllocatorMemory) -> u64| {
            self.device.map(device).or(allocator.map(of_allocator))
        };
        match name {
            "allocated_bytes.all.current" => of(|d| d.allocated_bytes, |a| a.allocated_bytes),
            "allocated_bytes.all.peak" => allocator.map(|a| a.peak_allocated_bytes),
            "reserved_bytes.all.current" => of(|d| d.reserved_bytes, |a| a.reserved_bytes),
            "reserved_bytes.all.peak" => allocator.map(|a| a.reserved_bytes),
            "allocation.all.current" => of(|d| d.num_allocations, |a| a.num_allocations),
            "host_bytes.all.current" => self.host.map(|host| host.resident_bytes),
            "host_bytes.all.peak" => self.host.map(|host| host.peak_resident_bytes),
            "device_used_bytes.all.current" => self.used_on_device,
            _ => None,
        }
    }

    /// The figures by name, bytes in gigabytes (10^9) to five significant digits: those of `keys`,
    /// or else those of the process and of a device with memory of its own. Unavailable figures are
    /// left out.
    pub fn metrics(&self, keys: Option<&BTreeMap<String, String>>) -> Vec<(String, f64)> {
        let figure = |(statistic, name): (&str, &str)| {
            let value = self.statistic(statistic)? as f64;
            let is_bytes = statistic.contains("_bytes.");
            let value = if is_bytes { five_digits(value / 1e9) } else { value };
            Some((if is_bytes { name.replace("bytes", "gigabytes") } else { name.to_owned() }, value))
        };
        match keys {
            Some(keys) => keys.iter().filter_map(|(statistic, name)| figure((statistic, name))).collect(),
            None => {
                let is_of_allocator =
                    |statistic: &str| !statistic.starts_with("host") && !statistic.starts_with("device");
                let is_shown = |statistic: &str| self.device.is_some() || !is_of_allocator(statistic);
                MEMORY_STATISTICS.into_iter().filter(|(statistic, _)| is_shown(statistic)).filter_map(figure).collect()
            }
        }
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
    pub fn metrics(&self, keys: Option<&BTreeMap<String, String>>) -> Vec<(String, f64)> {
        let mut largest: Vec<(String, f64)> = Vec::new();
        for (name, value) in self.0.iter().flat_map(|rank| rank.metrics(keys)) {
            match largest.iter_mut().find(|(known, _)| *known == name) {
                Some((_, figure)) => *figure = figure.max(value),
                None => largest.push((name, value)),
            }
        }
        largest
    }

    /// Memory of the process that has most now, with the highest peak of any process.
    pub fn host(&self) -> Option<HostMemory> {
        let all = || self.0.iter().filter_map(|rank| rank.host);
        Some(HostMemory {
            resident_bytes: all().map(|host| host.resident_bytes).max()?,
            peak_resident_bytes: all().map(|host| host.peak_resident_bytes).max()?,
        })
    }

    /// Memory of the device with the most memory in use.
    pub fn device(&self) -> Option<DeviceMemory> {
        self.0
            .iter()
            .filter_map(|rank| rank.device)
            .max_by_key(|device| (device.allocated_bytes, device.reserved_bytes))
    }

    /// The ranks whose figures are printed on a line each: ranks of the first replica, but only the
    /// first of several ranks in a process without device memory.
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
        let device = device.map(held);
        RankMemory { process, is_first_replica, host: Some(host), device, allocator: None, used_on_device: None }
    }

    #[test]
    fn figures_are_the_largest_of_any_rank() {
        let ranks = MemoryOfRanks(vec![rank(1, true, 10, None), rank(1, true, 10, None), rank(2, false, 30, None)]);
        assert_eq!(ranks.host(), Some(HostMemory { resident_bytes: 30, peak_resident_bytes: 90 }));
        assert_eq!(ranks.device(), None, "a figure that cannot be had is left out");
        assert_eq!(named(&ranks.metrics(None)), [("mem-host-gigabytes", 3e-8), ("mem-max-host-gigabytes", 9e-8)]);
        let speakers = |ranks: &MemoryOfRanks| ranks.speakers().iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
        assert_eq!(speakers(&ranks), [0], "ranks of one process have one memory");

        let devices =
            MemoryOfRanks(vec![rank(1, true, 10, Some(5)), rank(1, false, 10, Some(8)), rank(1, true, 10, Some(7))]);
        assert_eq!(devices.device().map(|device| device.allocated_bytes), Some(8));
        assert_eq!(named(&devices.metrics(None))[0], ("mem-allocated-gigabytes", 8e-9));
        assert_eq!(devices.metrics(None).len(), 5);
        assert_eq!(speakers(&devices), [0, 2]);
    }

    #[test]
    fn gigabytes_have_five_digits() {
        let host = HostMemory { resident_bytes: 1_234_567_890, peak_resident_bytes: 3_000_000_000 };
        let memory = RankMemory { host: Some(host), ..rank(1, true, 0, None) };
        assert_eq!(named(&memory.metrics(None)), [("mem-host-gigabytes", 1.2346), ("mem-max-host-gigabytes", 3.0)]);
        assert_eq!(
            crate::logging::format_memory_report(3, 2, &memory.metrics(None)),
            "[Rank 3] (after 2 iterations) memory (GB) | mem-host-gigabytes: 1.2346 | mem-max-host-gigabytes: 3"
        );
    }

    fn named(figures: &[(String, f64)]) -> Vec<(&str, f64)> {
        figures.iter().map(|(name, value)| (name.as_str(), *value)).collect()
    }

    #[test]
    fn keys_choose_statistics_and_their_names() {
        let allocator = AllocatorMemory {
            allocated_bytes: 3_000_000_000,
            peak_allocated_bytes: 5_000_000_000,
            reserved_bytes: 6_123_456_789,
            num_allocations: 17,
        };
        let memory = RankMemory { allocator: Some(allocator), used_on_device: Some(9), ..rank(1, true, 10, None) };
        let keys = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, name)| ((*key).to_owned(), (*name).to_owned())).collect()
        };
        let asked = keys(&[
            ("allocated_bytes.all.current", "a bytes"),
            ("allocated_bytes.all.peak", "b"),
            ("allocation.all.current", "bytes of c"),
            ("device_used_bytes.all.current", "u"),
            ("reserved_bytes.all.peak", "r"),
        ]);
        let expected = [("a gigabytes", 3.0), ("b", 5.0), ("bytes of c", 17.0), ("u", 9e-9), ("r", 6.1235)];
        assert_eq!(named(&memory.metrics(Some(&asked))), expected);
        // Tensors are on the device, so the figures of the process's allocator do not count.
        let on_device = RankMemory { allocator: Some(allocator), ..rank(1, true, 10, Some(5)) };
        assert_eq!(named(&on_device.metrics(Some(&asked))), [("a gigabytes", 5e-9), ("bytes of c", 4.0)]);
        let of_all = MemoryOfRanks(vec![memory, on_device]);
        assert_eq!(of_all.metrics(Some(&keys(&[("allocation.all.current", "n")]))), [("n".to_owned(), 17.0)]);
    }

    #[test]
    fn what_is_used_on_a_machine_cannot_be_had() {
        assert_eq!(used_of("MemTotal: 100 kB\nMemFree: 3 kB\nMemAvailable:  60 kB\n"), Some(40 * 1024));
        assert_eq!(used_of("MemTotal: 100 kB\n"), None);
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
