//! Limits on the work of a template: steps, bytes that it makes or reads, and time. Each thread
//! renders one template at a time.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::error::Error;

/// Bytes that any template may make, and how many more for each byte of the conversation.
const BYTES: u64 = 64 << 20;
const BYTES_PER_BYTE: u64 = 64;
/// Time that any template may compute, and how much more for each byte of the conversation.
const TIME: Duration = Duration::from_millis(500);
const TIME_PER_BYTE: Duration = Duration::from_micros(1);
/// Bytes after which the clock is read.
const BETWEEN_LOOKS: u64 = 64 << 10;
/// Cost of a step in bytes.
const STEP: u64 = 16;
/// Deepest nesting of values that are printed, compared or serialized.
pub(super) const DEPTH: usize = 64;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Bytes until the clock is read again.
    static UNTIL_LOOK: Cell<u64> = const { Cell::new(0) };
    /// CPU time of the thread when the template's time is over.
    static END: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time of this thread: time of other programs does not count.
pub(crate) fn computed() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Gives this thread's next template its limits, for a conversation of `bytes`.
pub(in crate::chat) fn open(bytes: u64) {
    LEFT.set(BYTES + BYTES_PER_BYTE.saturating_mul(bytes));
    UNTIL_LOOK.set(BETWEEN_LOOKS);
    END.set(computed() + TIME + TIME_PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX));
}

/// Counts `bytes` that are made or read. Fails if the template made or read more than its limit, or
/// its time is over.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let bytes = bytes as u64;
    let left = LEFT.get().checked_sub(bytes);
    LEFT.set(left.ok_or_else(|| Error::too_much("it makes or reads more text than any conversation needs"))?);
    tick(bytes)
}

/// Counts a step of the evaluation. Fails if the template's time is over.
pub(super) fn step() -> Result<(), Error> {
    tick(STEP)
}

fn tick(bytes: u64) -> Result<(), Error> {
    match UNTIL_LOOK.get().checked_sub(bytes) {
        Some(until) => UNTIL_LOOK.set(until),
        None if computed() > END.get() => {
            return Err(Error::too_much("it computes for longer than any conversation needs"));
        }
        None => UNTIL_LOOK.set(BETWEEN_LOOKS),
    }
    Ok(())
}
