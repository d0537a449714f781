//! GPUs that plans know by name: figures of their data sheets, and the share that a training run
//! reaches. Data only.
//!
//! Peaks are dense, without sparsity. Memory sizes are as the driver reports them. A link's rate is
//! that of one direction. Sources, by maker:
//! - NVIDIA data sheets of H100 (DS-11151), H200, A100 (DS-10031), L40S, L4, B200 (HGX B200, 8
//!   GPUs); whitepapers of the Ada and Blackwell GeForce architectures, whose tensor cores add up
//!   in float32 at half their float16 rate.
//! - AMD data sheets of MI300X and MI325X (CDNA 3): seven Infinity Fabric links of 64 GB/s each
//!   way.
//! - Networks: one 400 Gb/s port for each GPU of an H100, H200, B200 or MI300X node, 200 Gb/s for
//!   A100, 100 Gb/s for L40S and L4; cards for desktops share one port of 100 Gb/s among eight.
//! - Host memory: 16 lanes of PCIe, of the generation that the data sheet names.

use super::Rates;

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name on the command line.
    pub name: &'static str,
    /// Memory in MiB, as its driver reports it.
    pub memory_mib: u64,
    /// Peak in bfloat16 and float16, in TFLOP/s.
    pub tflops_16: f64,
    /// Peak in float32, in TFLOP/s.
    pub tflops_32: f64,
    /// Memory bandwidth, in GB/s.
    pub memory_bandwidth_gb_per_s: f64,
    /// Rate to other GPUs of the node, in gigabits per second.
    pub intra_link_gbps: f64,
    /// Rate to another node, in gigabits per second.
    pub link_gbps: f64,
    /// Bandwidth to host memory, and from it, in GB/s.
    pub host_bandwidth_gb_per_s: f64,
    /// True if attention in 16 bits runs on tensor cores, which needs no score matrix: NVIDIA GPUs
    /// from compute capability 8.0. The matrix cores of AMD GPUs do not count.
    pub has_tensor_cores: bool,
}

/// GPUs of a node.
const RANKS_PER_NODE: usize = 8;
/// Share of the peak that products and attention reach in a long run. With it the plan gives the
/// layouts of Llama 3 405B (arXiv:2407.21783, table 4: 38% to 43% on up to 16,384 H100) within
/// three points of the published values.
const EFFICIENCY: f64 = 0.56;
/// Share of a link's rate that collectives reach.
const LINK_EFFICIENCY: f64 = 0.8;
/// 16 lanes of PCIe, one direction, in GB/s.
const PCIE_4: f64 = 31.5;
const PCIE_5: f64 = 63.0;
/// Start of a collective.
const MESSAGE_SECONDS: f64 = 15e-6;
/// Share of the memory that a run can fill: the rest is the driver's context, buffers of the
/// communicators, and gaps of the allocator.
const USABLE: f64 = 0.94;

/// Every GPU known by name.
pub const GPUS: [Gpu; 12] = [
    Gpu { memory_mib: 81_559, memory_bandwidth_gb_per_s: 3_350.0, ..hopper("h100-80gb") },
    Gpu { memory_mib: 143_771, memory_bandwidth_gb_per_s: 4_800.0, ..hopper("h200") },
    Gpu { memory_mib: 81_920, memory_bandwidth_gb_per_s: 2_039.0, ..ampere("a100-80gb") },
    Gpu { memory_mib: 40_960, memory_bandwidth_gb_per_s: 1_555.0, ..ampere("a100-40gb") },
    Gpu {
        name: "b200",
        memory_mib: 183_359,
        tflops_16: 2_250.0,
        tflops_32: 75.0,
        memory_bandwidth_gb_per_s: 7_700.0,
        intra_link_gbps: 7_200.0,
        link_gbps: 400.0,
        host_bandwidth_gb_per_s: PCIE_5,
        has_tensor_cores: true,
    },
    Gpu { memory_mib: 196_592, memory_bandwidth_gb_per_s: 5_300.0, ..cdna3("mi300x") },
    Gpu { memory_mib: 262_128, memory_bandwidth_gb_per_s: 6_000.0, ..cdna3("mi325x") },
    Gpu {
        name: "l40s",
        memory_mib: 46_068,
        tflops_16: 362.0,
        tflops_32: 91.6,
        memory_bandwidth_gb_per_s: 864.0,
        intra_link_gbps: 256.0,
        link_gbps: 100.0,
        host_bandwidth_gb_per_s: PCIE_4,
        has_tensor_cores: true,
    },
    Gpu {
        name: "l4",
        memory_mib: 23_034,
        tflops_16: 121.0,
        tflops_32: 30.3,
        memory_bandwidth_gb_per_s: 300.0,
        intra_link_gbps: 256.0,
        link_gbps: 100.0,
        host_bandwidth_gb_per_s: PCIE_4,
        has_tensor_cores: true,
    },
    Gpu { tflops_16: 165.2, tflops_32: 82.6, memory_bandwidth_gb_per_s: 1_008.0, ..desktop("4090", 24_564) },
    Gpu { tflops_16: 71.0, tflops_32: 35.6, memory_bandwidth_gb_per_s: 936.0, ..desktop("3090", 24_576) },
    Gpu {
        tflops_16: 209.5,
        tflops_32: 104.8,
        memory_bandwidth_gb_per_s: 1_792.0,
        intra_link_gbps: 512.0,
        host_bandwidth_gb_per_s: PCIE_5,
        ..desktop("5090", 32_607)
    },
];

/// Common properties of H100 and H200: SXM5, NVLink 4.
const fn hopper(name: &'static str) -> Gpu {
    Gpu {
        name,
        memory_mib: 0,
        tflops_16: 989.0,
        tflops_32: 67.0,
        memory_bandwidth_gb_per_s: 0.0,
        intra_link_gbps: 3_600.0,
        link_gbps: 400.0,
        host_bandwidth_gb_per_s: PCIE_5,
        has_tensor_cores: true,
    }
}

/// Common properties of both A100: SXM4, NVLink 3.
const fn ampere(name: &'static str) -> Gpu {
    Gpu {
        name,
        memory_mib: 0,
        tflops_16: 312.0,
        tflops_32: 19.5,
        memory_bandwidth_gb_per_s: 0.0,
        intra_link_gbps: 2_400.0,
        link_gbps: 200.0,
        host_bandwidth_gb_per_s: PCIE_4,
        has_tensor_cores: true,
    }
}

const fn cdna3(name: &'static str) -> Gpu {
    Gpu {
        name,
        memory_mib: 0,
        tflops_16: 1_307.4,
        tflops_32: 163.4,
        memory_bandwidth_gb_per_s: 0.0,
        intra_link_gbps: 3_584.0,
        link_gbps: 400.0,
        host_bandwidth_gb_per_s: PCIE_5,
        has_tensor_cores: false,
    }
}

/// Consumer GPU without NVLink: ranks communicate over PCIe 4.
const fn desktop(name: &'static str, memory_mib: u64) -> Gpu {
    Gpu {
        name,
        memory_mib,
        tflops_16: 0.0,
        tflops_32: 0.0,
        memory_bandwidth_gb_per_s: 0.0,
        intra_link_gbps: 256.0,
        link_gbps: 12.5,
        host_bandwidth_gb_per_s: PCIE_4,
        has_tensor_cores: true,
    }
}

impl Gpu {
    /// The GPU called so.
    pub fn named(name: &str) -> Option<Self> {
        GPUS.into_iter().find(|gpu| gpu.name == name)
    }

    /// Rates that runs reach, with parameters of this many bytes.
    pub fn rates(&self, parameter_bytes: u64) -> Rates {
        Rates {
            device_tflops: if parameter_bytes < 4 { self.tflops_16 } else { self.tflops_32 },
            device_efficiency: EFFICIENCY,
            link_gbps: self.link_gbps * LINK_EFFICIENCY,
            intra_link_gbps: self.intra_link_gbps * LINK_EFFICIENCY,
            ranks_per_node: RANKS_PER_NODE,
            memory_bandwidth_gb_per_s: self.memory_bandwidth_gb_per_s,
            message_seconds: MESSAGE_SECONDS,
            host_bandwidth_gb_per_s: self.host_bandwidth_gb_per_s * LINK_EFFICIENCY,
        }
    }

    /// Memory in bytes.
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }
}

/// Part of a device's memory that a run can fill.
pub fn usable_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes as f64 * USABLE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_is_complete_and_found_by_its_name() {
        for gpu in GPUS {
            let links = [gpu.intra_link_gbps, gpu.link_gbps, gpu.host_bandwidth_gb_per_s];
            let numbers = [gpu.tflops_16, gpu.tflops_32, gpu.memory_bandwidth_gb_per_s].into_iter().chain(links);
            assert!(numbers.into_iter().all(|number| number > 0.0) && gpu.memory_mib > 0, "{gpu:?}");
            assert_eq!(Gpu::named(gpu.name), Some(gpu));
            assert!(gpu.rates(2).device_tflops >= gpu.rates(4).device_tflops, "{gpu:?}");
        }
        assert_eq!(Gpu::named("h100"), None);
    }
}
