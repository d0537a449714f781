//! Name of this machine.

/// Name of this machine; empty if the system does not say.
pub fn host_name() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    from_kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default().trim().to_owned()
}
