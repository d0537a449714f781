//! The names accepted by `logger.memory_keys`: PyTorch's names of statistics that an allocator of
//! Bridge keeps, and statistics of the process.

/// A statistic and the name that it is logged under by default.
pub const MEMORY_STATISTICS: [(&str, &str); 8] = [
    ("allocated_bytes.all.current", "mem-allocated-bytes"),
    ("allocated_bytes.all.peak", "mem-max-allocated-bytes"),
    ("reserved_bytes.all.current", "mem-reserved-bytes"),
    ("reserved_bytes.all.peak", "mem-max-reserved-bytes"),
    ("allocation.all.current", "mem-allocated-count"),
    ("host_bytes.all.current", "mem-host-bytes"),
    ("host_bytes.all.peak", "mem-max-host-bytes"),
    ("device_used_bytes.all.current", "mem-device-used-bytes"),
];
