//! Refusal of a run that does not fit into the memory of its machine.

/// A run that does not fit into the memory of a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the run needs {} of memory on this machine ({ranks}), and {} can be had ({limit}); the largest parts: {parts}. What helps: {advice}. \
     train.check_memory = false goes on all the same",
    bytes(*needed),
    bytes(*available)
)]
pub struct NotEnoughMemory {
    /// Bytes that the ranks of the machine need together.
    pub needed: u64,
    /// Bytes that can be had.
    pub available: u64,
    /// Name of the limit.
    pub limit: String,
    /// The ranks, in words.
    pub(in crate::train) ranks: String,
    /// The largest parts of a rank, in words.
    pub(in crate::train) parts: String,
    /// Advice in words.
    pub(in crate::train) advice: String,
}

/// Bytes in binary units.
pub(in crate::train) fn bytes(count: u64) -> String {
    let (unit, size) = if count >= 1 << 30 { ("GiB", 1 << 30) } else { ("MiB", 1 << 20) };
    format!("{:.1} {unit}", count as f64 / f64::from(size))
}
