//! Time limit of operations that wait for other ranks: one limit for all groups of a world, which
//! may change at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limit in nanoseconds, at most about 500 years.
#[derive(Debug)]
pub(crate) struct TimeLimit(AtomicU64);

impl TimeLimit {
    pub fn new(limit: Duration) -> Self {
        Self(AtomicU64::new(nanoseconds(limit)))
    }

    pub fn get(&self) -> Duration {
        // Relaxed ordering, because no other data depends on it: an operation may use the old or
        // the new limit.
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, limit: Duration) {
        self.0.store(nanoseconds(limit), Ordering::Relaxed);
    }
}

fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_change() {
        let limit = TimeLimit::new(Duration::from_millis(1500));
        assert_eq!(limit.get(), Duration::from_millis(1500));
        limit.set(Duration::MAX);
        assert!(limit.get() > Duration::from_secs(500 * 365 * 24 * 3600));
    }
}
