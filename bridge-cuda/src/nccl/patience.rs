//! Waiting for a thread that may never end.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pause between checks.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a thread has ended: up to `limit`, and after `give_up`, which is to make it end, up
/// to `farewell`. A thread that does not end is detached and keeps its resources. Whether it has
/// ended.
pub(super) fn wait_for(thread: JoinHandle<()>, limit: Duration, give_up: impl FnOnce(), farewell: Duration) -> bool {
    if !has_ended(&thread, limit) {
        give_up();
        if !has_ended(&thread, farewell) {
            return false;
        }
    }
    // A panic of the thread has been printed already.
    let _ = thread.join();
    true
}

fn has_ended(thread: &JoinHandle<()>, limit: Duration) -> bool {
    let start = Instant::now();
    while !thread.is_finished() {
        if start.elapsed() >= limit {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn who_ends_is_not_given_up() {
        let thread = thread::spawn(|| thread::sleep(SHORT));
        assert!(wait_for(thread, LONG, || panic!("it ends"), SHORT));
        assert!(wait_for(thread::spawn(|| std::panic::resume_unwind(Box::new(()))), LONG, || (), SHORT));
    }

    #[test]
    fn who_hangs_is_given_up_and_then_left_alone() {
        let (stop, stopped) = mpsc::channel::<()>();
        let hangs = thread::spawn(move || stopped.recv().unwrap_or(()));
        assert!(wait_for(hangs, SHORT, || drop(stop), LONG), "giving up ends it");
        let (stop, stopped) = mpsc::channel::<()>();
        let (begun, given_up) = (Instant::now(), Cell::new(false));
        let hangs = thread::spawn(move || stopped.recv().unwrap_or(()));
        assert!(!wait_for(hangs, SHORT, || given_up.set(true), SHORT));
        assert!(given_up.get() && begun.elapsed() >= 2 * SHORT && begun.elapsed() < LONG);
        drop(stop);
    }
}
