//! From the recipe's `device` to a Burn device, among those compiled in.

#[cfg(any(feature = "wgpu", feature = "vulkan"))]
use burn::tensor::DeviceKind;
#[cfg(any(feature = "cuda", feature = "wgpu", feature = "vulkan"))]
use burn::tensor::DeviceType;
use burn::tensor::{Device, FloatDType};

use crate::config::RunConfig;
use crate::logging::host_name;
use crate::resilience::rerun::RankLocation;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The name is not one of ours.
    #[error("device: expected one of flex, cuda, wgpu, vulkan (`:N` chooses the N-th), found `{found}`{hint}")]
    Unknown {
        /// Value in the recipe.
        found: String,
        /// The nearest valid name.
        hint: String,
    },
    /// The backend was not compiled in.
    #[error(
        "device: `{found}` needs the cargo feature `{feature}`, which this build does not have \
         (build with `--features {feature}`; `cargo xtask train RECIPE --device {feature}` does it)"
    )]
    NotCompiledIn {
        /// Value in the recipe.
        found: String,
        /// The feature to build with.
        feature: String,
    },
    /// The machine has no such device.
    #[error(
        "device: `{found}` is not on this machine, which has {}",
        match count { 0 => "none of that kind".to_owned(), _ => format!("{count} of that kind, numbered from 0") }
    )]
    Absent {
        /// Value in the recipe.
        found: String,
        /// Devices of that kind.
        count: usize,
    },
    /// The device has no arithmetic of the parameters' number format.
    #[error("device: `{found}` does not compute in {dtype:?}, in which `mixed_precision` has the parameters")]
    NoArithmetic {
        /// Value in the recipe.
        found: String,
        /// The number format.
        dtype: FloatDType,
    },
    /// The machine has fewer devices than ranks.
    #[error(
        "device: each of the {} ranks on this machine takes a `{found}` device of its own, and there are {count}, so rank {} of them has \
         none: start fewer, or let them share one with `{found}:0`",
        place.size, place.rank
    )]
    TooFew {
        /// Value in the recipe.
        found: String,
        /// The rank that has none.
        place: LocalRank,
        /// Devices of that kind.
        count: usize,
    },
}

/// A rank among those of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// Number of the rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
}

impl LocalRank {
    /// The only one.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// The place of rank `rank` of a world whose ranks are on these machines.
    pub(in crate::train) fn among(machines: &[i64], rank: usize) -> Self {
        let here = |ranks: &[i64]| ranks.iter().filter(|machine| **machine == machines[rank]).count();
        Self { rank: here(&machines[..rank]), size: here(machines) }
    }
}

/// The device called `name`, without autodiff.
///
/// # Errors
/// If the name is unknown, its backend is not part of this build, or this machine has no such
/// device.
pub fn select_device(name: &str) -> Result<Device, DeviceError> {
    select_device_of_rank(name, LocalRank::ALONE)
}

/// The device called `name`, without autodiff, for one of the ranks of a machine. Without a number
/// in the name each rank has a device of its own, the one of its number; with a number all ranks
/// share that one.
///
/// # Errors
/// As [`select_device`], or if there are fewer devices than ranks.
pub fn select_device_of_rank(name: &str, place: LocalRank) -> Result<Device, DeviceError> {
    let choice = Choice::parse(name)?;
    if choice.kind == Kind::Cpu {
        return Ok(Device::flex());
    }
    let Some(index) = choice.index_of_rank(place) else { return usual_device(choice.kind, name) };
    let devices = devices(choice.kind);
    let count = devices.len();
    devices.into_iter().nth(index).ok_or_else(|| match choice.index {
        Some(_) => DeviceError::Absent { found: name.to_owned(), count },
        None => DeviceError::TooFew { found: name.to_owned(), place, count },
    })
}

/// Number of the CUDA device that a rank has to itself, if each rank of its machine has one. `None`
/// for other devices, for a numbered device that ranks share, and for names that
/// [`select_device_of_rank`] refuses.
pub(in crate::train) fn own_cuda_device(name: &str, place: LocalRank) -> Option<usize> {
    let choice = Choice::parse(name).ok().filter(|choice| choice.kind == Kind::Cuda)?;
    let index = choice.own_index(place)?;
    (index.max(place.size - 1) < devices(choice.kind).len()).then_some(index)
}

/// True if all ranks of a machine have their tensors on one device that is not the CPU.
pub(in crate::train) fn is_shared_device(name: &str) -> bool {
    Choice::parse(name).is_ok_and(|choice| choice.kind != Kind::Cpu && choice.index.is_some())
}

/// CUDA's number of the device of a rank; `None` for another type of device.
pub(in crate::train) fn cuda_number(name: &str, place: LocalRank) -> Option<usize> {
    match name.split_once(':') {
        Some(("cuda", number)) => number.parse().ok(),
        None if name == "cuda" => Some(place.rank),
        _ => None,
    }
}

/// Checks that `name` is one of ours and that this build has its backend. Which devices this
/// machine has is not asked.
///
/// # Errors
/// If not.
pub fn check_device_name(name: &str) -> Result<(), DeviceError> {
    Choice::parse(name).map(drop)
}

/// Parsed name of a device.
#[derive(Clone, Copy)]
struct Choice {
    kind: Kind,
    index: Option<usize>,
}

/// A backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cpu,
    Cuda,
    Wgpu,
    Vulkan,
}

impl Kind {
    const fn is_compiled_in(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Vulkan => cfg!(feature = "vulkan"),
        }
    }
}

impl Choice {
    fn parse(name: &str) -> Result<Self, DeviceError> {
        let unknown = |hint: String| DeviceError::Unknown { found: name.to_owned(), hint };
        let (kind, index) = match name.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse().map_err(|_| unknown(String::new()))?)),
            None => (name, None),
        };
        let known = match kind {
            "flex" | "cpu" if index.unwrap_or(0) != 0 => return Err(unknown("; the CPU is one device".into())),
            "flex" | "cpu" => Kind::Cpu,
            "cuda" => Kind::Cuda,
            "wgpu" => Kind::Wgpu,
            "vulkan" => Kind::Vulkan,
            _ => {
                let names = ["flex", "cpu", "cuda", "wgpu", "vulkan"];
                let nearest = names
                    .into_iter()
                    .max_by(|a, b| strsim::jaro_winkler(a, kind).total_cmp(&strsim::jaro_winkler(b, kind)));
                let near = nearest.filter(|n| strsim::jaro_winkler(n, kind) > 0.7);
                return Err(unknown(near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()));
            }
        };
        if !known.is_compiled_in() {
            return Err(DeviceError::NotCompiledIn { found: name.to_owned(), feature: kind.to_owned() });
        }
        Ok(Self { kind: known, index })
    }

    /// Number of the device that a rank takes, if no other rank of its machine takes it too.
    fn own_index(self, place: LocalRank) -> Option<usize> {
        match self.index {
            Some(_) if place.size > 1 => None,
            index => Some(index.unwrap_or(place.rank)),
        }
    }

    /// Number of the device that a rank takes; `None` leaves the choice to the backend, if the
    /// machine has no other ranks.
    fn index_of_rank(self, place: LocalRank) -> Option<usize> {
        self.index.or((place.size > 1).then_some(place.rank))
    }
}

/// The GPUs of a backend, by number.
fn devices(kind: Kind) -> Vec<Device> {
    match kind {
        #[cfg(feature = "cuda")]
        Kind::Cuda => Device::enumerate(DeviceType::Cuda).into_vec(),
        #[cfg(feature = "wgpu")]
        Kind::Wgpu => adapters(Device::enumerate(DeviceType::Wgpu).into_vec(), Device::wgpu),
        #[cfg(feature = "vulkan")]
        Kind::Vulkan => adapters(Device::enumerate(DeviceType::Vulkan).into_vec(), Device::vulkan),
        _ => Vec::new(),
    }
}

/// Graphics adapters by number: discrete GPUs, integrated ones, virtual ones. Software adapters
/// count only if there is no GPU.
#[cfg(any(feature = "wgpu", feature = "vulkan"))]
fn adapters(found: Vec<Device>, of_kind: impl Fn(DeviceKind) -> Device) -> Vec<Device> {
    let numbered = [DeviceKind::DiscreteGpu, DeviceKind::IntegratedGpu, DeviceKind::VirtualGpu];
    let kinds = numbered.into_iter().flat_map(|kind| (0..found.len()).map(kind));
    let gpus: Vec<Device> = kinds.map(of_kind).filter(|device| found.contains(device)).collect();
    if gpus.is_empty() { found } else { gpus }
}

/// The device of a rank that has the machine for itself, where none is named by number.
fn usual_device(kind: Kind, name: &str) -> Result<Device, DeviceError> {
    let absent = DeviceError::Absent { found: name.to_owned(), count: 0 };
    let first = devices(kind).into_iter().next().ok_or(absent)?;
    Ok(match kind {
        // Graphics adapters have an order of preference, and a variable that overrides it.
        #[cfg(feature = "wgpu")]
        Kind::Wgpu => Device::wgpu(DeviceKind::DefaultDevice),
        #[cfg(feature = "vulkan")]
        Kind::Vulkan => Device::vulkan(DeviceKind::DefaultDevice),
        _ => first,
    })
}

/// Location of a rank for fault messages; `node` is the name of its machine, if the program sets
/// one.
pub(in crate::train) fn rank_location(
    config: &RunConfig,
    rank: usize,
    place: LocalRank,
    node: Option<String>,
) -> RankLocation {
    RankLocation { rank, node: node.unwrap_or_else(host_name), device: device_index(config, place) }
}

/// Number of a rank's device on its machine: that of its name, else the rank's. The CPU is one
/// device.
fn device_index(config: &RunConfig, place: LocalRank) -> usize {
    if config.computes_on_cpu() {
        return 0;
    }
    let index = config.device.split_once(':').and_then(|(_, index)| index.parse().ok());
    index.unwrap_or(place.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(select_device("flex").is_ok());
        assert!(select_device("cpu").is_ok());
        assert!(select_device("flex:1").is_err());
        let error = select_device("flx").unwrap_err().to_string();
        assert!(error.contains("did you mean `flex`"), "{error}");
        assert!(check_device_name("cpu").is_ok());
        assert!(check_device_name("wgup").unwrap_err().to_string().contains("did you mean `wgpu`"));
        #[cfg(not(feature = "cuda"))]
        assert!(select_device("cuda:3").unwrap_err().to_string().contains("--features cuda"));
    }

    #[test]
    fn ranks_share_the_cpu() {
        let of = |rank| select_device_of_rank("flex", LocalRank { rank, size: 3 }).unwrap();
        assert_eq!((of(0), of(2)), (Device::flex(), Device::flex()));
    }

    #[test]
    fn only_a_device_of_ones_own_can_join_others() {
        let own = |index, rank, size| Choice { kind: Kind::Cuda, index }.own_index(LocalRank { rank, size });
        assert_eq!((own(None, 2, 3), own(None, 0, 1)), (Some(2), Some(0)));
        assert_eq!((own(Some(1), 2, 3), own(Some(1), 0, 1)), (None, Some(1)), "ranks share a device by its number");
        assert!(["flex", "cpu:0", "nothing:0"].iter().all(|name| !is_shared_device(name)));
        assert_eq!(own_cuda_device("flex", LocalRank { rank: 1, size: 3 }), None);
        // There are more ranks than any machine has devices: setup reports that error.
        assert_eq!(own_cuda_device("cuda", LocalRank { rank: 0, size: 1_000_000 }), None);
    }

    #[test]
    fn ranks_are_numbered_on_their_machines() {
        let places = |machines: &[i64]| -> Vec<(usize, usize)> {
            let place = |rank| LocalRank::among(machines, rank);
            (0..machines.len()).map(|rank| (place(rank).rank, place(rank).size)).collect()
        };
        assert_eq!(places(&[7, 9, 7, 9, 7]), [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]);
        assert_eq!(places(&[5]), [(0, 1)]);
    }

    #[test]
    fn each_rank_takes_the_device_of_its_number_or_all_that_of_the_name() {
        let of = |index, rank, size| {
            let choice = Choice { kind: Kind::Cuda, index };
            choice.index_of_rank(LocalRank { rank, size })
        };
        assert_eq!((of(None, 2, 4), of(None, 0, 4), of(None, 0, 1)), (Some(2), Some(0), None));
        assert_eq!((of(Some(1), 2, 4), of(Some(1), 0, 1)), (Some(1), Some(1)));
    }

    #[test]
    fn ranks_without_a_device_are_told_so() {
        let error = DeviceError::TooFew { found: "cuda".into(), place: LocalRank { rank: 2, size: 4 }, count: 2 };
        let expected = "each of the 4 ranks on this machine takes a `cuda` device of its own, and there are 2, so rank 2 of them has none";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
