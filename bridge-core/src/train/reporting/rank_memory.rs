//! Memory of a rank: its process, its device, its allocator.

use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Device;
use twox_hash::XxHash3_64;

use crate::logging::{AllocatorMemory, DeviceMemory, HostMemory, RankMemory, host_name};

/// Memory as this rank sees it.
pub(in crate::train) fn rank_memory(groups: &ProcessGroups, device: &Device) -> RankMemory {
    let process = format!("{}\n{}", host_name(), std::process::id());
    let device = device.memory_pool_usage().map(|usage| DeviceMemory {
        allocated_bytes: usage.bytes_in_use,
        reserved_bytes: usage.bytes_reserved,
        num_allocations: usage.number_allocs,
    });
    RankMemory {
        process: XxHash3_64::oneshot(process.as_bytes()),
        is_first_replica: groups.data().rank() == 0,
        host: HostMemory::read(),
        device,
        allocator: AllocatorMemory::read(),
        used_on_device: None,
    }
}
