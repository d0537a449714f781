//! Memory of this process as the operating system counts it. Device memory is the backend's to report.

use std::fs;

/// Resident memory of this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;

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
