//! Energy that the processors and memory of a machine have used, by the counters that Linux shows
//! in its power capping framework (RAPL of Intel and AMD processors; kernel documentation,
//! power/powercap).

use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the counters on Linux.
const FOLDER: &str = "/sys/class/powercap";

/// The counters of this machine.
#[derive(Debug)]
pub struct EnergyCounters(Vec<Counter>);

/// One counter, which wraps around.
#[derive(Debug)]
struct Counter {
    file: PathBuf,
    /// Microjoules at which it begins again at 0.
    range: u64,
    last: u64,
}

impl EnergyCounters {
    /// Opens the counters of all processors, and of memory if it is counted separately. `None` if
    /// this process may read no counter.
    pub fn open() -> Option<Self> {
        Self::in_folder(Path::new(FOLDER))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let mut zones: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
        zones.sort();
        let counters: Vec<Counter> = zones.iter().filter_map(|zone| Counter::open(zone)).collect();
        (!counters.is_empty()).then_some(Self(counters))
    }

    /// Joules since the last call, or since the counters were opened. Counters of a hot processor
    /// begin again after some minutes at the earliest: calls have to be closer.
    pub fn joules(&mut self) -> f64 {
        self.0.iter_mut().map(Counter::microjoules).sum::<u64>() as f64 * 1e-6
    }
}

impl Counter {
    /// The counter of a zone, unless another zone counts the same energy: cores and graphics are
    /// parts of their package, and a package seen through another interface (`intel-rapl-mmio`) is
    /// the same one.
    fn open(zone: &Path) -> Option<Self> {
        let is_rapl = zone.file_name()?.to_str()?.starts_with("intel-rapl:");
        let name = text(zone, "name")?;
        if !is_rapl || !(name.starts_with("package") || name == "dram") {
            return None;
        }
        let file = zone.join("energy_uj");
        let last = number(&file)?;
        Some(Self { range: number(&zone.join("max_energy_range_uj"))?, file, last })
    }

    /// Microjoules since the last call; 0 where it cannot be read any more.
    fn microjoules(&mut self) -> u64 {
        let Some(now) = number(&self.file) else { return 0 };
        let last = std::mem::replace(&mut self.last, now);
        if now >= last { now - last } else { (self.range + now).saturating_sub(last) }
    }
}

fn text(zone: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(zone.join(name)).ok()?.trim().to_owned())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy: u64) {
        let zone = folder.join(zone);
        fs::create_dir_all(&zone).unwrap();
        for (file, text) in [("name", name), ("max_energy_range_uj", "1000000000"), ("energy_uj", &energy.to_string())]
        {
            fs::write(zone.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn packages_and_memory_are_counted_once_and_over_the_wrap() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        zone(folder, "intel-rapl:0", "package-0", 999_000_000);
        zone(folder, "intel-rapl:0:0", "core", 5);
        zone(folder, "intel-rapl:0:1", "dram", 100);
        zone(folder, "intel-rapl:1", "package-1", 7);
        zone(folder, "intel-rapl-mmio:0", "package-0", 999_000_000);
        let mut counters = EnergyCounters::in_folder(folder).unwrap();
        zone(folder, "intel-rapl:0", "package-0", 2_000_000);
        zone(folder, "intel-rapl:0:0", "core", 900_000_000);
        zone(folder, "intel-rapl:0:1", "dram", 500_100);
        assert_eq!(counters.joules(), 3.5);
        assert_eq!(counters.joules(), 0.0);
        fs::remove_dir_all(folder.join("intel-rapl:1")).unwrap();
        assert_eq!(counters.joules(), 0.0);
    }

    #[test]
    fn a_machine_without_counters_has_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(EnergyCounters::in_folder(folder.path()).is_none());
        zone(folder.path(), "intel-rapl:0", "psys", 1);
        assert!(EnergyCounters::in_folder(folder.path()).is_none());
        assert!(EnergyCounters::in_folder(&folder.path().join("none")).is_none());
    }
}
