//! Waiting between polls. This file does not do the polling.

use std::thread;
use std::time::Duration;

/// At first only yields, since most operations are short, then sleeps.
#[derive(Default)]
pub struct Pace {
    polls: u32,
}

impl Pace {
    /// Waits before the next poll.
    pub fn pause(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls < 2000 {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_micros(50));
        }
    }
}
